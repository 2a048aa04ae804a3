"""Calls of the network for requests that share one cache. In: the tokens of some rows and their positions. Out: the
`Scores` of each row: its most probable token, and its logits for a sampler that asks for them. Stands between the
generator, which handles requests, and the network, which handles tensors.

Each request has a row of the cache, its slot. One row runs with its index and its position as symbolic integers of a
jitted function: it attends to exactly the tokens it has. Several rows run together, each with its own position,
and attend to as many tokens as the longest of them has, with a mask. On devices without symbolic sizes a call attends
to the whole cache, which begins small and doubles. Recorded calls are replayed for any position: no token compiles
anything."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.base.config import Context, options
from tilewright.base.dtype import dtypes
from tilewright.base.errors import TilewrightError
from tilewright.engine.jit.jit import Jit, jit
from tilewright.llm.network.cache import Cache, Position, copy_tokens, store_rows
from tilewright.llm.network.model import Transformer
from tilewright.llm.sampling import RUN
from tilewright.runtime.device import open_driver
from tilewright.tensor.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

    Row = np.ndarray[Any, Any]

Weigh = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Scored = tuple[Tensor, Tensor, Tensor]  # logits (rows, vocabulary); the most probable token of each row, and its logit

# Prompts are taken in pieces of these sizes, the last one padded: each size is recorded and compiled once.
PIECES = (8, 16, 24, 32, 128)
COPIED = 32  # tokens that are copied from row to row at a time
FIRST_LENGTH = 2048
FIRST_LENGTH_WITHOUT_SYMBOLIC = 512


def piece_size(count: int, largest: int) -> int:
    """How many tokens a call takes of the `count` that are left: a size that is not half empty, or the smallest."""
    sizes = [size for size in PIECES if size <= max(largest, PIECES[0])]
    for size in sizes:
        if count <= size <= max(2 * count, sizes[0]):
            return size
    return max(size for size in sizes if size <= count)


class Scores:
    """The logits of the next token of each row. The most probable token and its logit are found on the device, and the
    weights that a sampler draws by are computed there, for all rows at once; all logits of a row, `scores[row]`, are
    copied when a sampler first asks: a greedy choice copies a few bytes and needs no NumPy."""

    def __init__(self, logits: Tensor, tokens: Tensor, highest: Tensor, weigh: Weigh | None = None) -> None:
        """`weigh` computes weights from logits, their maxima and the inverse of a temperature; by default at once."""
        self._logits, self._maxima = logits, highest
        self._tokens: list[int] = tokens.tolist()
        self._highest: list[float] = highest.tolist()
        self._rows: Row | None = None
        self._weigh = weigh or _weighed
        self._weights: dict[float, tuple[Row, Row]] = {}  # by temperature

    def best(self, row: int) -> tuple[int, float]:
        """The first of the most probable tokens, and its logit. NaN counts as the greatest."""
        return self._tokens[row], self._highest[row]

    def __getitem__(self, row: int) -> Row:
        if self._rows is None:
            self._rows = self._logits.numpy()
        found: Row = self._rows[row]
        return found

    def weights(self, row: int, temperature: float) -> tuple[Row, Row]:
        """exp((logit - highest) / temperature) of every token of a row, and the sums of runs of `RUN` weights."""
        import numpy as np

        if temperature not in self._weights:
            inverse = Tensor([1 / temperature], dtype=dtypes.float32)
            device = self._logits.device
            inverse = inverse.to(device) if isinstance(device, str) else inverse.shard(device)
            made, sums = self._weigh(self._logits, self._maxima, inverse.realize())
            self._weights[temperature] = np.asarray(made.data()), sums.numpy()
        weights, runs = self._weights[temperature]
        return weights[row], runs[row]


class CacheRows(Cache):
    """A view of `count` rows of a cache, from `first` on. Where each row has its own position, `used` tokens of each
    are attended to."""

    def __init__(self, cache: Cache, first: Any, count: int, used: Any = None) -> None:
        self.batch = count
        self.length = cache.length
        self.layers = cache.layers
        self._rows = slice(None) if cache.batch == count else slice(first, first + count)
        self._first = first
        self._used = used

    def store(self, layer: int, new: tuple[Tensor, ...], position: Position) -> list[Tensor]:
        held = self.layers[layer]
        if isinstance(position, Tensor):
            write = functools.partial(store_rows, first=self._first)
            for memory, value in zip(held, new, strict=True):
                placed = value.cast(memory.dtype)
                if not isinstance(memory.device, str):
                    placed = placed.shard_like(memory)
                memory.assign(Tensor.custom_kernel(memory, placed.contiguous(), position, fxn=write)[0])
            return [memory[self._rows, :, : self._used] for memory in held]
        end = position + new[0].shape[2]
        for memory, value in zip(held, new, strict=True):
            memory[self._rows, :, position:end] = value.cast(memory.dtype)
        return [memory[self._rows, :, :end] for memory in held]


class Slots:
    """The rows of a cache and the jitted calls on them. `context` is the most tokens that a row can hold."""

    def __init__(self, model: Transformer, count: int, context: int) -> None:
        self.model = model
        self.count = count
        self.context = context
        self.is_symbolic = isinstance(model.device, str) and has_symbolic_sizes(model.device)
        first = FIRST_LENGTH if self.is_symbolic else FIRST_LENGTH_WITHOUT_SYMBOLIC
        self._cache = self._make_cache(min(first, context))
        self._calls: dict[tuple[int, int], Jit[..., Scored]] = {}
        self._weigh: dict[int, Jit[..., tuple[Tensor, Tensor]]] = {}  # by rows
        self._copy = jit(_copied)

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes()

    def run_one(self, row: int, tokens: Sequence[int], position: int) -> Scores:
        """The scores after the last of the tokens of one row, the first of which is at `position`."""
        count = len(tokens)
        size = count if count == 1 else piece_size(count, PIECES[-1])
        self._reserve(position + size)
        given = self._whole([[*tokens, *(0,) * (size - count)]])
        last = self._whole([count - 1])
        at = position if self.is_symbolic else self._whole([position])
        # Short prompts and ends of prompts have activations of two terms, at little cost: the answer depends on them,
        # and 8 bits of activations can flip close decisions.
        exact = {"QUANTISED_ACTIVATIONS": 2} if 1 < size < PIECES[-1] and options.QUANTISED_ACTIVATIONS == 1 else {}
        with Context(**exact):
            return self._scores(self._call(1, size), given, last, row, at)

    def run_many(self, tokens: Sequence[int], positions: Sequence[int]) -> Scores:
        """The scores after one token of each of the first rows, at the row's position."""
        used = max(positions) + 1
        self._reserve(used)
        call = self._call(len(tokens), 1)
        given, at = self._whole([[token] for token in tokens]), self._whole(positions)
        return self._scores(call, given, at, used if self.is_symbolic else self._cache.length)

    def copy(self, source: int, target: int, positions: range) -> None:
        """Copies the keys and values at these positions from one row to another, and some of those after them."""
        for position in positions[::COPIED]:
            self._copy(self._cache, self._whole([source, target, position]))

    # ---------------------------------------------------------------- recorded calls

    def _scores(self, call: Jit[..., Scored], *given: Any) -> Scores:
        """Calls. One that was recorded has used memory that a replay does not: results of each part on its own."""
        logits, tokens, highest = call(self.model, self._cache, *given)
        weigh = self._weigh.setdefault(logits.shape[0], jit(_weighed))
        found = Scores(logits, tokens, highest, weigh)
        if call.last_reason:
            for device in (self.model.device,) if isinstance(self.model.device, str) else self.model.device:
                open_driver(device).release_unused()
        return found

    def _call(self, rows: int, size: int) -> Jit[..., Scored]:
        """The jitted call for `rows` rows of `size` tokens each, made when it is first needed."""
        found = self._calls.get((rows, size))
        if found is None:
            found = self._calls[rows, size] = self._jitted(rows, size)
        return found

    def _jitted(self, rows: int, size: int) -> Jit[..., Scored]:
        function = _many_rows if rows > 1 else _one_row
        if not self.is_symbolic:
            return jit(function)
        length = self._cache.length
        bounds = {"used": (1, length)} if rows > 1 else {"position": (0, length - size)}
        if rows == 1 and self.count > 1:
            bounds["row"] = (0, self.count - 1)
        return jit(function, symbolic=bounds)

    # ---------------------------------------------------------------- memory

    def _make_cache(self, length: int) -> Cache:
        """A cache that is longer by a piece, for the padding of the last piece of a prompt. It is not cleared for a
        single row whose position is a symbolic integer, which reads only what was written."""
        return self.model.make_cache(self.count, length + PIECES[-1], clear=self.count > 1 or not self.is_symbolic)

    def _reserve(self, length: int) -> None:
        """Doubles the cache until a row holds `length` tokens, and drops the calls that were recorded for the old
        one."""
        if length <= self._cache.length:
            return
        wanted = self._cache.length - PIECES[-1]
        while wanted + PIECES[-1] < length:
            wanted *= 2
        old, new = self._cache, self._make_cache(min(wanted, self.context))
        for before, after in zip(old.layers, new.layers, strict=True):
            for source, target in zip(before, after, strict=True):
                target[:, :, : old.length] = source
                target.realize()
        self._cache = new
        self._calls.clear()
        self._copy = jit(_copied)

    def _whole(self, values: Sequence[Any]) -> Tensor:
        """Integers on the device of the model."""
        made = Tensor(values, dtype=dtypes.int32)
        device = self.model.device
        return (made.to(device) if isinstance(device, str) else made.shard(device)).realize()


# Model and cache are arguments because jit looks for tensors in those, and not in closures of the package's own code.


def _one_row(model: Transformer, cache: Cache, tokens: Tensor, last: Tensor, row: Any, position: Any) -> Scored:
    used = cache.length if isinstance(position, Tensor) else None
    states = model.hidden(tokens, CacheRows(cache, row, 1, used), position, by_layer=True)
    return _scored(model.head(states[:, 0] if tokens.shape[1] == 1 else states[0][last]))


def _many_rows(model: Transformer, cache: Cache, tokens: Tensor, positions: Tensor, used: Any) -> Scored:
    rows = CacheRows(cache, 0, tokens.shape[0], used)
    return _scored(model.head(model.hidden(tokens, rows, positions, by_layer=True)[:, 0]))


def _copied(cache: Cache, places: Tensor) -> None:
    copy = functools.partial(copy_tokens, count=COPIED)
    first, *others = (memory for held in cache.layers for memory in held)
    for memory in (first, *others):
        memory.assign(Tensor.custom_kernel(memory, places, fxn=copy)[0])
    first.realize(*others)


def _scored(logits: Tensor) -> Scored:
    tokens, highest = logits.argmax(-1), logits.max(-1)
    logits.realize(tokens, highest)
    return logits, tokens, highest


def _weighed(logits: Tensor, highest: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    weights = ((logits.cast(dtypes.float32) - highest.cast(dtypes.float32).unsqueeze(-1)) * inverse).exp()
    sums = weights.pad(((0, 0), (0, -weights.shape[1] % RUN))).unflatten(-1, (-1, RUN)).sum(-1)
    weights.realize(sums)
    return weights, sums


@functools.cache
def has_symbolic_sizes(device: str) -> bool:
    """Whether kernels of a device take sizes when they are launched: tried once, on a sum of a few elements."""
    memory = Tensor.arange(8, device=device).contiguous().realize()
    try:
        return bool(jit(lambda end: memory[:end].sum().realize(), symbolic={"end": (1, 8)})(3).item() == 3)
    except TilewrightError:
        return False

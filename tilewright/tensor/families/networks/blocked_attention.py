"""Attention in blocks. In: queries, keys, values and a mask on a device whose threads are CPU cores. Out: the result of
a custom kernel, or None where it does not support the call; then `attention.py` computes it from products and a
softmax. No matrix of scores is stored, neither for the result nor for its gradients. The kernels are in
`graph/kernels/block_attention.py`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.base.dtype import dtypes
from tilewright.base.records import record, replace
from tilewright.base.target import Target
from tilewright.graph.kernels.block_attention import STRIP, BlockAttention, Tile, forward_kernel
from tilewright.graph.kernels.block_attention_gradient import gradient_kernel, padded_keys
from tilewright.graph.kernels.custom import PureKernel
from tilewright.graph.kernels.values import memory_behind
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.families.networks.attention_layout import broadcast_strides, set_apart
from tilewright.tensor.families.random import RandomMixin
from tilewright.tensor.primitives.reduce import accumulate_dtype

# Queries of a block, in strips, and keys of a block: a multiple of every panel. The scores of a block take 72 KiB in
# float32, a part of a core's cache.
MIN_STRIPS, MAX_STRIPS = 2, 5
COLUMNS = 192
# With fewer queries most of a block would be unused. Products and a softmax, which store scores, are faster below this
# number of scores of a head, since a core's cache holds them, but not of causal calls, of which they compute twice as
# many scores, nor with few features, when a score takes longer to store and load than to compute. They are taken up to
# MAX_STORED scores of all heads, 128 MiB in float32.
MIN_QUERIES = 2 * STRIP
MIN_SCORES = 1 << 18
MIN_CHEAP_SCORES = 1 << 15
FEW_FEATURES = 16
MAX_STORED = 1 << 25
# With more features a block of queries and one of keys do not fit into a core's cache: blocks save memory, not time.
MANY_FEATURES = 512
# Vectors of a register tile, and rows for that many, with 32 and with 16 registers. Rows divide a strip, and the panel
# of scores.
MANY_ROWS = {1: 8, 2: 8, 3: 8, 4: 6, 5: 4}
FEW_ROWS = {1: 8, 2: 6, 3: 4}
MANY_REGISTERS = 32
PANEL_VECTORS = 3
# Fewer heads than this are divided into groups of keys, for the gradients. The numbers do not depend on the cores, so
# that the order of sums does not.
MIN_TASKS = 16
MAX_GROUPS = 4
MIN_GROUP_KEYS = 1024

_DTYPES = (dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float64)

T = TypeVar("T", bound=RandomMixin)
# Attention from other operations, as a function of (query, key, value, mask, is causal, dropout, random state).
Plain = Callable[..., Any]


def blocked_attention(
    query: T, key: T, value: T, mask: T | None, is_causal: bool, dropout: float, plain: Plain
) -> T | None:
    """The result of one kernel, or None where it does not support the call. `plain` is attention from other
    operations, for the gradients of gradients."""
    if not _fits(query, key, value, mask) or not _is_long(query.shape, key.shape[-2], is_causal) or dropout == 1:
        return None
    assert isinstance(query.device, str)
    call = _plan(open_driver(query.device).target, query, key, value, is_causal, dropout)
    key, value = (each.expand(*query.shape[:-3], *each.shape[-3:]) for each in (key, value))
    operands = [_padded(_as_heads(each).cast(call.dtype), call.lanes) for each in (query, key, value)]
    others: tuple[T, ...] = ()
    if mask is not None:
        own = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
        others = (own,)
        call = replace(call, mask=broadcast_strides(own.shape))
    if dropout:
        others = (*others, query._drawn_state(call.scores, query.device))
    padded_query, padded_key, padded_value = operands
    shape = (call.batch, call.heads, call.queries)
    out: Any = query.empty(*shape, call.value_width, dtype=call.dtype, device=query.device)
    sums = query.empty(*shape, dtype=call.dtype, device=query.device)
    given = (padded_query, _panels(padded_key, call, call.features), padded_value, *others, padded_key)
    found = out.custom_kernel(sums, *given, fxn=_kernel(forward_kernel, call), grad_fxn=_Gradient(call, plain))[0]
    result: T = _narrowed(found, value.shape[-1]).cast(query.dtype)
    return result.reshape(*query.shape[:-1], value.shape[-1])


def _fits(query: RandomMixin, key: RandomMixin, value: RandomMixin, mask: RandomMixin | None) -> bool:
    given = (query, key, value)
    if any(is_symbolic(each.shape) or 0 in each.shape or each.ndim != query.ndim for each in given):
        return False
    if query.ndim < 2 or query.dtype not in _DTYPES or any(each.dtype is not query.dtype for each in given):
        return False
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        return False
    if any(one not in (1, most) for one, most in zip(key.shape[:-3], query.shape[:-3])):
        return False
    if query.ndim > 2 and query.shape[-3] % key.shape[-3]:
        return False
    if mask is None:
        return True
    whole = (*query.shape[:-1], key.shape[-2])
    sizes = (1,) * (len(whole) - mask.ndim) + mask.shape
    is_known = mask.dtype.is_bool or mask.dtype in _DTYPES
    is_dense = not is_symbolic(mask.shape) and query.ndim <= 4 and len(sizes) == len(whole)
    return is_known and is_dense and all(one in (1, most) for one, most in zip(sizes, whole))


def _is_long(query: tuple[int, ...], keys: int, is_causal: bool) -> bool:
    """Whether blocks are faster than products and a softmax, or need less memory where that is much."""
    scores = query[-2] * keys
    if query[-2] < MIN_QUERIES or scores < MIN_CHEAP_SCORES:
        return False
    is_cheap = is_causal or query[-1] <= FEW_FEATURES
    is_faster = (is_cheap or scores >= MIN_SCORES) and query[-1] <= MANY_FEATURES
    return is_faster or scores * math.prod(query[:-2]) > MAX_STORED


def _plan(
    target: Target, query: RandomMixin, key: RandomMixin, value: RandomMixin, is_causal: bool, dropout: float
) -> BlockAttention:
    """The facts of the kernels."""
    dtype = accumulate_dtype(query.dtype)
    lanes = max(2, target.lanes(dtype))
    heads, key_heads = (each.shape[-3] if each.ndim > 2 else 1 for each in (query, key))
    batch, keys = math.prod(query.shape[:-3]), key.shape[-2]
    panel = PANEL_VECTORS * lanes
    known = MANY_ROWS if target.vector_registers >= MANY_REGISTERS else FEW_ROWS
    choices = {vectors: rows if panel % rows == 0 else panel // 2 for vectors, rows in known.items()}
    widths = [-(-each.shape[-1] // lanes) * lanes for each in (query, value)]
    query_tile, value_tile = (_tile(width // lanes, lanes, choices) for width in widths)
    return BlockAttention(
        dtype,
        batch,
        heads,
        heads // key_heads,
        query.shape[-2],
        keys,
        query.shape[-1],
        widths[0],
        value.shape[-1],
        widths[1],
        lanes,
        Tile(choices[PANEL_VECTORS], panel),
        query_tile,
        value_tile,
        _block_rows(query.shape[-2]),
        COLUMNS,
        1 / math.sqrt(query.shape[-1]),
        is_causal,
        dropout=dropout,
        groups=min(MAX_GROUPS, -(-MIN_TASKS // (batch * key_heads)), max(1, keys // MIN_GROUP_KEYS)),
    )


def _tile(vectors: int, lanes: int, choices: dict[int, int]) -> Tile:
    """The register tile with the most accumulators for rows of that many vectors."""
    best = max((n for n in choices if vectors % n == 0), key=lambda n: n * choices[n])
    return Tile(choices[best], best * lanes)


def _block_rows(queries: int) -> int:
    """Queries of a block: the number of whole strips with the fewest rows beyond the last query."""
    sizes = [strips * STRIP for strips in range(MAX_STRIPS, MIN_STRIPS - 1, -1)]
    return min(sizes, key=lambda rows: -(-queries // rows) * rows)


def _padded(tensor: T, lanes: int) -> T:
    """Whole vectors of features."""
    missing = -tensor.shape[-1] % lanes
    return tensor.pad((0, missing)) if missing else tensor


def _narrowed(tensor: Any, features: int) -> Any:
    if tensor.shape[-1] == features:
        return tensor
    return tensor.shrink((*((0, size) for size in tensor.shape[:-1]), (0, features)))


def _as_heads(tensor: T) -> T:
    """The tensor as (batch, heads, time, features)."""
    heads = tensor.shape[-3] if tensor.ndim > 2 else 1
    return tensor.reshape(math.prod(tensor.shape[:-3]), heads, *tensor.shape[-2:])


def _panels(tensor: Any, call: BlockAttention, features: int) -> Any:
    """Keys or values as (batch, heads, panels, features, keys of a panel), zeros after the last key."""
    tensor = _narrowed(tensor, features)
    missing = call.panels * call.panel - call.keys
    whole = tensor.pad((0, 0, 0, missing)) if missing else tensor
    parts = whole.reshape(call.batch, call.key_heads, call.panels, call.panel, features)
    return parts.transpose(-1, -2).contiguous()


# ---------------------------------------------------------------- kernels and gradients


@functools.lru_cache(64)
def _kernel(write: Callable[..., UOp], call: BlockAttention) -> PureKernel:
    """Builds a kernel over the arguments of a custom kernel; cached, since the layers of a model call the same one."""

    def attention(*arguments: UOp) -> UOp:
        return write(call, *map(memory_behind, arguments))

    return PureKernel(attention)


@record
class _Rule:
    call: BlockAttention
    plain: Plain

    def attend(self, query: Any, key: Any, value: Any, others: Sequence[Any]) -> Any:
        """The result from other operations, of padded operands."""
        call, rest = self.call, list(others)
        mask = rest.pop(0) if call.mask is not None else None
        keyed = [_narrowed(key, call.features), _narrowed(value, call.value_features)]
        keyed = [each.repeat_interleave(call.shared, 1) if call.shared > 1 else each for each in keyed]
        found = self.plain(
            _narrowed(query, call.features), *keyed, mask, call.is_causal, call.dropout, rest[0] if rest else None
        )
        return _padded(found, call.lanes)

    def of_masks(self, others: Sequence[Any], gradient: Callable[[Any], Any]) -> list[Any]:
        """A gradient for a float mask, none for a bool mask and the random state."""
        is_mask = [n == 0 and self.call.mask is not None and each.dtype.is_float for n, each in enumerate(others)]
        return [gradient(each) if flag else None for flag, each in zip(is_mask, others)]


@record
class _Gradient(_Rule):
    """The gradient rule of the kernel, whose arguments are: out, logsumexp, queries, panels, values, mask and random
    state, keys."""

    def __call__(self, upstream: Any, out: Any, sums: Any, query: Any, panels: Any, value: Any, *rest: Any) -> Any:
        call, (*others, key), slope = self.call, rest, upstream[0]
        keyed = (call.batch, call.key_heads, padded_keys(call))
        shapes = ((call.groups, *query.shape), (*keyed, call.width), (*keyed, call.value_width))
        outputs = [slope.empty(*shape, dtype=call.dtype, device=slope.device) for shape in shapes]
        delta = (slope * out).sum(-1)
        sides = (_panels(key, call, call.features), _panels(value, call, call.value_features))
        found = outputs[0].custom_kernel(
            *outputs[1:],
            *(query, key, slope, sums, delta, *sides, *others, value),
            fxn=_kernel(gradient_kernel, call),
            grad_fxn=_SecondGradient(call, self.plain),
        )
        of_query, of_key, of_value = found[:3]

        def of_mask(mask: Any) -> Any:  # has the size of the scores, and is computed only where it is used
            own = set_apart(mask)
            return self.attend(query, key, value, (own, *others[1:])).gradient(own, gradient=slope)[0]

        total = of_query.sum(0) if call.groups > 1 else of_query.reshape(*query.shape)
        results = (total, None, _of_keys(of_value, call.keys), *self.of_masks(others, of_mask))
        return (None, None, *results, _of_keys(of_key, call.keys))


@record
class _SecondGradient(_Rule):
    """The gradient rule of the gradient kernel, whose arguments are: three outputs, queries, keys, the gradient of the
    result, logsumexp, deltas, two panels, mask and random state, values. It differentiates attention built from other
    operations."""

    def __call__(self, upstream: Any, *given: Any) -> tuple[Any, ...]:
        query, key, slope = (set_apart(each) for each in given[3:6])
        others, value = [set_apart(each) for each in given[10:-1]], set_apart(given[-1])
        firsts = self.attend(query, key, value, others).gradient(query, key, value, gradient=slope)
        # All parts of the queries' gradient have the same slope, that of their sum.
        slopes = (upstream[0][0], *(_of_keys(each, self.call.keys) for each in upstream[1:]))
        total = sum((first * each).sum() for first, each in zip(firsts, slopes))
        wanted: list[Any] = []
        self.of_masks(others, wanted.append)
        of_query, of_key, of_value, of_slope, *rest = total.gradient(query, key, value, slope, *wanted)
        of_masks = self.of_masks(others, lambda _: rest[0])
        return (None, None, None, of_query, of_key, of_slope, None, None, None, None, *of_masks, of_value)


def _of_keys(tensor: Any, keys: int) -> Any:
    batch, heads, time, width = tensor.shape
    return tensor if time == keys else tensor.shrink(((0, batch), (0, heads), (0, keys), (0, width)))

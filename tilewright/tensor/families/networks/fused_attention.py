"""Attention as one kernel. In: queries, keys, values and a mask on a device whose tensor cores multiply staged tiles.
Out: the result of a custom kernel, or None where the kernel does not support the call; then `attention.py` computes it
from products and a softmax. The kernels are in `graph/kernels/attention/attention.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.base.dtype import dtypes
from tilewright.base.records import record, replace
from tilewright.base.target import TensorCore
from tilewright.graph.kernels.attention.attention import LOG2_E, RESULT, Attention, forward_kernel, has_factors
from tilewright.graph.kernels.attention.attention_gradient import key_gradient_kernel, query_gradient_kernel
from tilewright.graph.kernels.attention.split import Split, split_kernel
from tilewright.graph.kernels.language.values import memory_behind
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver, target_of
from tilewright.tensor.families.base import Family
from tilewright.tensor.families.networks.attention_calls import Plain, fits
from tilewright.tensor.families.networks.attention_layout import (
    VECTOR,
    Layout,
    broadcast_strides,
    dense_steps,
    find_layouts,
    separate_use,
    set_apart,
    with_heads,
)

# Maximum features of a head, by the parts that a core multiplies, and for gradients: more accumulators do not fit into
# registers.
MAX_FEATURES, MAX_PART_FEATURES, MAX_GRADIENT_FEATURES = 256, 128, 128
# With fewer queries most of a tile would be unused.
MIN_QUERIES = 16
# Queries, and keys, of a tile. Two work-groups with tiles of 64 share a core: one computes its softmax while the
# other multiplies. Wide tiles are fetched by a warp group of their own, and halve what is read from the cache: 1.1 to
# 1.5 times as fast where all cores have work of the same length (measured on an H200).
TILE, WIDE_TILE = 64, 128
# Where operands are in parts, a tile takes three times the memory. Keys of a tile, with one line of features and with
# two: a tile of queries and two of keys fit into local memory, and so do the tiles of the gradients.
PART_KEYS = {1: 64, 2: 32}
# Where the lengths differ, and the next free core takes a tile, wide ones pay with many features and many tiles.
MIN_UNEQUAL_FEATURES, MIN_UNEQUAL_TILES = 65, 4
# With fewer features the queries' gradient is no faster with the tiles of the forward kernel.
MIN_GRADIENT_FEATURES = 65
# Pairs of causal tiles have the same length, so that some cores may have nothing to do in the end: the time of all, at
# most, as a multiple of what it would be with all at work.
MAX_IDLE = 1.2
CACHE_PART = 2

T = TypeVar("T", bound=Family)


def fused_attention(query: T, key: T, value: T, mask: T | None, is_causal: bool, plain: Plain) -> T | None:
    """The result of one kernel, or None where it does not support the call."""
    core = _core_of(query)
    if core is None or not _fits(query, key, value, mask):
        return None
    has_gradient = any(each.requires_grad for each in (query, key, value))
    most = MAX_PART_FEATURES if core.parts > 1 else MAX_GRADIENT_FEATURES if has_gradient else MAX_FEATURES
    if query.shape[-1] > most:
        return None
    operands = [_widened(each if each.ndim == 4 else each.unsqueeze(1)) for each in (query, key, value)]
    masks = () if mask is None else (with_heads(mask, query.ndim),)
    memories, layouts = zip(*find_layouts(operands))
    # Results have the layout of their operands, so that the transpose which made an operand applies to them too.
    is_transposed = tuple(each.steps.time > each.steps.head for each in layouts[:2])
    (batch, heads, rows, width), keys = operands[0].shape, operands[1].shape
    tile, is_paired = _choose_tile(operands[0], keys[2], is_causal, core)
    dense = [dense_steps(each.shape, flag) for each, flag in zip(operands, is_transposed)]
    steps, slopes = [layout.steps for layout in layouts], dense[0]
    splits = [Split(core, each.shape, layout.steps) for each, layout in zip(operands, layouts)]
    if core.parts > 1:
        steps = [dense_steps(split.result, is_time_first=False) for split in splits]
        slopes = steps[0]
    call = Attention(
        core,
        batch,
        heads,
        heads // keys[1],
        rows,
        keys[2],
        width,
        (*steps, *dense, slopes),
        LOG2_E / math.sqrt(query.shape[-1]),
        is_causal,
        broadcast_strides(masks[0].shape) if masks else None,
        tile,
        _keys_of_tile(tile, splits[0]),
        _heads_together(operands[1], batch * heads, heads // keys[1], core),
        is_paired,
    )
    rule = _Gradient(call, layouts, tuple(splits), is_transposed, query.shape[-1], plain)
    out = rule.empty(operands[0], is_transposed[0])
    kinds = (2,) if has_factors(mask) else ()
    sums = query.empty(*kinds, batch, heads, rows, dtype=dtypes.float32, device=query.device)
    kernel = _Kernel(forward_kernel, call, 2, (*range(3),))
    found: T = out.custom_kernel(sums, *memories, *masks, *rule.parts(memories), fxn=kernel, grad_fxn=rule)[0]
    result: T = rule.narrowed(_transposed(found, is_transposed[0])).reshape(*query.shape)
    return result


def _choose_tile(query: Family, keys: int, is_causal: bool, core: TensorCore) -> tuple[int, bool]:
    """The tile of the forward kernel, and whether a work-group takes pairs of them: where each tile has a partner with
    which it has as many keys as any other pair, and the pairs are not just too many for the cores to do at once."""
    batch, heads, rows, features = query.shape
    assert isinstance(query.device, str)
    cores, count = open_driver(query.device).target.cores, -(-rows // WIDE_TILE)
    tiles, pairs = batch * heads * count, batch * heads * (count // 2)
    if 2 * tiles <= cores:
        return TILE, False
    if not is_causal:
        return WIDE_TILE, False
    if count % 2 == 0 and keys >= rows and -(-pairs // cores) * cores <= MAX_IDLE * pairs:
        return WIDE_TILE, True
    is_wide = core.parts > 1 or (features >= MIN_UNEQUAL_FEATURES and tiles >= MIN_UNEQUAL_TILES * cores)
    return WIDE_TILE if is_wide else TILE, False


def _keys_of_tile(rows: int, split: Split) -> int:
    """Keys of a tile: as many as queries, unless local memory has room for fewer."""
    if split.core.parts > 1:
        return PART_KEYS[split.lines]
    return rows if split.shape[-1] <= MAX_GRADIENT_FEATURES else TILE


def _heads_together(key: Family, heads: int, shared: int, core: TensorCore) -> int:
    """How many heads are processed together so that their keys and values fit into a part of the cache: all, or a power
    of two."""
    assert isinstance(key.device, str)
    nbytes = 2 * key.shape[2] * key.shape[3] * core.parts * core.multiplied.itemsize
    room = open_driver(key.device).target.cache_bytes // CACHE_PART // nbytes * shared
    return heads if room >= heads else 1 << max(0, room.bit_length() - 1)


def _widened(tensor: T) -> T:
    missing = -tensor.shape[-1] % VECTOR
    return tensor.pad((0, missing)) if missing else tensor


def _transposed(tensor: T, is_transposed: bool) -> T:
    return tensor.transpose(1, 2) if is_transposed else tensor


def _core_of(query: Family) -> TensorCore | None:
    """The device's tensor core that multiplies tiles in shared memory, if it has one: float32 in parts alone, which
    lose no bits of it."""
    target = target_of(query.device)
    cores = () if target is None else target.tensor_cores
    is_split = query.dtype is dtypes.float32
    staging = (core for core in cores if core.staged_line_bytes and (core.parts > 1) is is_split)
    return next((core for core in staging if core.operand is query.dtype), None)


def _fits(query: Family, key: Family, value: Family, mask: Family | None) -> bool:
    if not fits(query, key, value, mask) or query.ndim not in (3, 4) or is_symbolic((*query.shape, *key.shape)):
        return False
    if key.shape != value.shape or query.shape[0] != key.shape[0]:
        return False
    return query.shape[-2] >= MIN_QUERIES


# ---------------------------------------------------------------- kernels and gradients


@record
class _Kernel:
    """Builds a kernel over the arguments of a custom kernel: `outputs` of them, operands and others. Where operands are
    in parts, these come last, and the kernel reads them in place of the operands with the numbers `split`."""

    write: Callable[..., UOp]
    call: Attention
    outputs: int
    split: tuple[int, ...]

    def __call__(self, *arguments: UOp) -> UOp:
        memories = list(map(memory_behind, arguments))
        if self.call.core.parts > 1:
            memories, parts = memories[: -len(self.split)], memories[-len(self.split) :]
            for number, part in zip(self.split, parts):
                memories[self.outputs + number] = part
        return self.write(self.call, *memories)


@record
class _SplitKernel:
    split: Split

    def __call__(self, *arguments: UOp) -> UOp:
        return split_kernel(self.split, *map(memory_behind, arguments))


@record
class _Rule:
    """The facts of a call that gradients need. Operands are stored nodes, read through `layouts`; `splits` say how each
    is split into parts. Where `is_transposed`, results and gradients (of queries, and of keys and values) have the time
    axis before the heads."""

    call: Attention
    layouts: tuple[Layout, ...]
    splits: tuple[Split, ...]
    is_transposed: tuple[bool, ...]
    features: int
    plain: Plain

    def parts(self, memories: Sequence[Any]) -> list[Any]:
        """The parts of the operands, and of the gradient of the result after them, where the tensor core multiplies
        parts."""
        if self.call.core.parts == 1:
            return []
        splits = [*self.splits, replace(self.splits[0], steps=self.call.steps[RESULT])]
        found = []
        for memory, split in zip(memories, splits):
            out = memory.empty(*split.result, dtype=split.core.multiplied, device=memory.device)
            found.append(out.custom_kernel(memory, fxn=_SplitKernel(split))[0].detach())
        return found

    def empty(self, like: Any, is_transposed: bool) -> Any:
        return _transposed(like, is_transposed).empty(
            *_transposed(like, is_transposed).shape, dtype=like.dtype, device=like.device
        )

    def narrowed(self, tensor: Any) -> Any:
        return tensor.shrink((*((0, size) for size in tensor.shape[:-1]), (0, self.features)))

    def views(self, memories: Sequence[Any]) -> list[Any]:
        return [layout.view(each) for layout, each in zip(self.layouts, memories)]

    def attend(self, views: Sequence[Any], masks: Sequence[Any]) -> Any:
        """The result, from other operations."""
        query, *keyed = map(self.narrowed, views)
        keyed = [each.repeat_interleave(self.call.shared, 1) for each in keyed]
        found = _widened(self.plain(query, *keyed, *(masks or (None,)), self.call.is_causal))
        return _transposed(found, self.is_transposed[0])

    def of_memories(self, memories: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Gradients of views as gradients of their stored nodes."""
        found = []
        for layout, memory, gradient in zip(self.layouts, memories, gradients):
            own = set_apart(memory)
            found.append(layout.view(own).gradient(own, gradient=gradient)[0] if layout.moves else gradient)
        return found


@record
class _Gradient(_Rule):
    """The gradient rule of the attention kernel, whose arguments are: out, logsumexp, operands, mask and parts of the
    operands."""

    def __call__(self, upstream: Any, out: Any, sums: Any, *given: Any) -> tuple[Any, ...]:
        memories, masks, slope = given[:3], given[3:4] if self.call.mask is not None else (), upstream[0]
        views = self.views(memories)
        if self.call.features > MAX_GRADIENT_FEATURES:
            apart = list(map(set_apart, views))
            found = self.of_memories(memories, self.attend(apart, masks).gradient(*apart, gradient=slope))
            return (None, None, *found, *self.of_masks(views, masks, slope))
        own = slope.float()
        if has_factors(masks[0] if masks else None):
            own = own * _transposed(sums[1], self.is_transposed[0]).unsqueeze(-1)
        delta = _transposed((own * out.float()).sum(-1), self.is_transposed[0])
        arguments = [*memories, slope, sums, delta, *masks]
        if has_factors(masks[0] if masks else None):
            arguments = [*memories, own.cast(slope.dtype).detach(), sums, delta, *masks, slope]
        arguments += self.parts(arguments[:4])
        is_transposed = (*self.is_transposed, self.is_transposed[1])
        query, key, value = map(self.empty, views, is_transposed)
        facts = (self.call, self.layouts, self.splits, self.is_transposed, self.features, self.plain)
        rules = [_SecondGradient(*facts, targets) for targets in ((0,), (1, 2))]
        narrow, operands = (
            replace(self.call, rows=TILE, columns=min(TILE, self.call.columns), is_paired=False),
            range(4),
        )
        of_queries = self.call if self.has_wide_gradient else narrow
        kernels = [
            _Kernel(query_gradient_kernel, of_queries, 1, (*operands,)),
            _Kernel(key_gradient_kernel, narrow, 2, (*operands,)),
        ]
        dense = query.custom_kernel(*arguments, fxn=kernels[0], grad_fxn=rules[0])[:1]
        dense += key.custom_kernel(value, *arguments, fxn=kernels[1], grad_fxn=rules[1])[:2]
        found = self.of_memories(memories, list(map(_transposed, dense, is_transposed)))
        found += self.of_masks(views, masks, slope)
        return (None, None, *found, *(None,) * len(given[3 + len(masks) :]))

    def of_masks(self, views: Sequence[Any], masks: Sequence[Any], slope: Any) -> list[Any]:
        """The gradient of a mask has the size of the scores, and is computed only where it is used."""
        found = []
        for mask in masks:
            own = separate_use(mask)
            is_float = mask.dtype.is_float
            found.append(self.attend(views, (own,)).gradient(own, gradient=slope)[0] if is_float else None)
        return found

    @property
    def has_wide_gradient(self) -> bool:
        """Whether the queries' gradient has the tiles of the forward kernel: in parts, four of two lines are more than
        local memory."""
        if self.call.core.parts > 1:
            return self.splits[0].lines == 1
        return self.call.features >= MIN_GRADIENT_FEATURES


@record
class _SecondGradient(_Rule):
    """The gradient rule of a gradient kernel, whose arguments are: outputs, operands, the gradient of the result,
    logsumexp, deltas, mask, with a float mask the gradient of the result once more, before it was multiplied by the
    factors of the rows, and parts. It differentiates attention built from other operations."""

    targets: tuple[int, ...]

    def __call__(self, upstream: Any, *given: Any) -> tuple[Any, ...]:
        count, parts = len(self.targets), 0 if self.call.core.parts == 1 else 4
        given = given[: len(given) - parts]
        memories, masks = given[count : count + 3], [set_apart(each) for each in given[count + 6 : count + 7]]
        is_scaled = len(given) > count + 7
        views, slope = list(map(set_apart, self.views(memories))), set_apart(given[-1 if is_scaled else count + 3])
        firsts = self.attend(views, masks).gradient(*(views[n] for n in self.targets), gradient=slope)
        upstreams = upstream if count > 1 else (upstream,)
        total = sum(
            (_transposed(first, self.is_transposed[min(n, 1)]).float() * each.float()).sum()
            for n, first, each in zip(self.targets, firsts, upstreams)
        )
        wanted = (*views, slope, *(mask for mask in masks if mask.dtype.is_float))
        found = total.gradient(*wanted)
        rest = iter(found[4:])
        of_masks = [next(rest) if mask.dtype.is_float else None for mask in masks]
        of_slopes = [None, found[3]] if is_scaled else [found[3]]
        of_memories = self.of_memories(memories, found[:3])
        found = [*of_memories, of_slopes[0], None, None, *of_masks, *of_slopes[1:]]
        return (*(None,) * count, *found, *(None,) * parts)

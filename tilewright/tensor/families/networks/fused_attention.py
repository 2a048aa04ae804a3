"""Attention as one kernel. In: queries, keys, values and a mask on a device whose tensor cores multiply staged tiles.
Out: the result of a custom kernel, or None where the kernel does not support the call; then `attention.py` computes it
from products and a softmax. The kernels are in `graph/kernels/attention/attention.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dtype import dtypes
from tilewright.base.records import record, replace
from tilewright.base.target import TensorCore
from tilewright.graph.kernels.attention.attention import (
    LOG2_E,
    RESULT,
    Attention,
    Steps,
    forward_kernel,
    has_factors,
)
from tilewright.graph.kernels.attention.attention_gradient import key_gradient_kernel, query_gradient_kernel
from tilewright.graph.kernels.attention.split import Split, split_kernel
from tilewright.graph.kernels.attention.tile_choice import MAX_GRADIENT_FEATURES, choose_tiles
from tilewright.graph.kernels.origin import greatest, size_of_call
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.symbolic import capacity
from tilewright.graph.uop import UOp
from tilewright.runtime.device import target_of
from tilewright.tensor.families.base import Family
from tilewright.tensor.families.networks.attention_calls import Plain, T, call_kernel, fits
from tilewright.tensor.families.networks.attention_layout import (
    VECTOR,
    Layout,
    broadcast_strides,
    dense_steps,
    find_layouts,
    find_symbolic_layouts,
    separate_use,
    set_apart,
    with_heads,
)

# Maximum features of a head, by the parts that a core multiplies: more accumulators do not fit into registers.
MAX_FEATURES, MAX_PART_FEATURES = 256, 128
# With fewer queries most of a tile would be unused.
MIN_QUERIES = 16
# With fewer features the queries' gradient is no faster with the tiles of the forward kernel.
MIN_GRADIENT_FEATURES = 65


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
    is_open = is_symbolic((query.shape[-2], key.shape[-2]))
    memories, layouts = zip(*(find_symbolic_layouts if is_open else find_layouts)(operands))
    # Results have the layout of their operands, so that the transpose which made an operand applies to them too.
    is_transposed = tuple(_is_time_first(each, is_open) for each in layouts[:2])
    (batch, heads, rows, width), keys = operands[0].shape, operands[1].shape
    dense = [_sizes(dense_steps(each.shape, flag)) for each, flag in zip(operands, is_transposed)]
    steps, slopes = [_sizes(layout.steps) for layout in layouts], dense[0]
    shapes = [tuple(map(size_of_call, each.shape)) for each in operands]
    splits = [Split(core, shape, own) for shape, own in zip(shapes, steps)]
    if core.parts > 1:
        parts = [split.result(each.shape) for split, each in zip(splits, operands)]
        steps = [_sizes(dense_steps(shape, is_time_first=False)) for shape in parts]
        slopes = steps[0]
    target = target_of(query.device)
    assert target is not None
    call = Attention(
        core,
        batch,
        heads,
        heads // keys[1],
        size_of_call(rows),
        size_of_call(keys[2]),
        width,
        (*steps, *dense, slopes),
        LOG2_E / math.sqrt(query.shape[-1]),
        is_causal,
        tuple(map(size_of_call, broadcast_strides(masks[0].shape))) if masks else None,
        target.cores,
        target.cache_bytes,
    )
    rule = _Gradient(call, layouts, tuple(splits), is_transposed, query.shape[-1], plain)
    kinds = (2,) if has_factors(mask) else ()
    outputs = (
        (query.dtype, _transposed(operands[0], is_transposed[0]).shape),
        (dtypes.float32, (*kinds, batch, heads, rows)),
    )
    sources = (*memories, *masks, *rule.parts(memories))
    found = call_kernel(_Kernel(forward_kernel, 2, (*range(3),)), call, outputs, sources, rule)[0]
    result: T = rule.narrowed(_transposed(found, is_transposed[0])).reshape(*query.shape)
    return result


def _sizes(steps: Steps) -> Steps:
    return Steps(*map(size_of_call, steps))


def _is_time_first(layout: Layout, is_open: bool) -> bool:
    """Whether the time axis lies before the heads, from the strides; symbolic sizes have no other moves."""
    return bool(layout.moves) if is_open else greatest(layout.steps.time) > greatest(layout.steps.head)


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
    if not fits(query, key, value, mask) or query.ndim not in (3, 4):
        return False
    if is_symbolic((*query.shape, *key.shape)) and has_factors(mask):
        return False  # a gradient kernel has a memory that it does not use
    if key.shape != value.shape or query.shape[0] != key.shape[0]:
        return False
    return capacity(query.shape[-2]) >= MIN_QUERIES


# ---------------------------------------------------------------- kernels and gradients


@record
class _Kernel:
    """Writes a kernel of a call for its memories: `outputs` of them, operands and others. Where operands are in parts,
    these come last, and the kernel reads them in place of the operands with the numbers `split`."""

    write: Callable[..., UOp]
    outputs: int
    split: tuple[int, ...]
    is_narrow: bool = False

    def __call__(self, call: Attention, *given: UOp) -> UOp:
        memories = list(given)
        if call.core.parts > 1:
            memories, parts = memories[: -len(self.split)], memories[-len(self.split) :]
            for number, part in zip(self.split, parts):
                memories[self.outputs + number] = part
        return self.write(choose_tiles(call, self.is_narrow), *memories)


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
        views = self.views(memories[:3])
        found = []
        for memory, split, view in zip(memories, splits, (*views, views[0])):
            output = (split.core.multiplied, split.result(view.shape))
            found.append(call_kernel(split_kernel, split, (output,), (memory,), None)[0].detach())
        return found

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
        outputs = [(view.dtype, _transposed(view, flag).shape) for view, flag in zip(views, is_transposed)]
        facts = (self.call, self.layouts, self.splits, self.is_transposed, self.features, self.plain)
        rules = [_SecondGradient(*facts, targets) for targets in ((0,), (1, 2))]
        operands = (*range(4),)
        of_query = _Kernel(query_gradient_kernel, 1, operands, not self.has_wide_gradient)
        of_key = _Kernel(key_gradient_kernel, 2, operands, is_narrow=True)
        dense = call_kernel(of_query, self.call, outputs[:1], arguments, rules[0])
        dense += call_kernel(of_key, self.call, outputs[1:], arguments, rules[1])
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

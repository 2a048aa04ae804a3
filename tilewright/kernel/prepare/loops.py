"""Loops before any opt. In: a kernel. Out: an equal kernel with fewer or better loops. Merging makes long unit-stride
loops of the axes of a contiguous tensor; splitting removes divisions from the index expressions."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp
from tilewright.graph.walk import exchange_axes, exchange_axis, named_ranges, size_of, substitute
from tilewright.kernel.axes import KernelView, is_counted, is_uniform, make_range, stride, view_kernel
from tilewright.kernel.masks import mask_axis

# A loop that a divisor does not divide is padded to whole blocks where it has at least this many.
MIN_BLOCKS = 4
_NAMING = (Ops.REDUCE, Ops.END, Ops.AFTER, Ops.BARRIER)
_ADDRESSING = frozenset({Ops.ADD, Ops.MUL, Ops.INDEX, *_NAMING})


def merge_loops(sink: UOp, merges_symbolic: bool = False) -> UOp:
    """
    before: for i in 4: for j in 8: out[i*8 + j] = a[i*8 + j]
    after:  for k in 32: out[k] = a[k]

    With `merges_symbolic` also loops inside of which is one of symbolic size: cores share loops of constant size alone,
    work-groups any."""
    while True:
        view = view_kernel(sink)
        pair = next((p for p in _neighbours(view, merges_symbolic) if _walk_as_one(view, *p)), None)
        if pair is None:
            return sink
        sink = _merge(sink, *pair)


def _neighbours(view: KernelView, merges_symbolic: bool) -> Iterator[tuple[UOp, UOp]]:
    """Adjacent loops that could be merged: both output loops, or both closed by the same reductions."""
    closed = [frozenset(ranges) for node in view.nodes if (ranges := named_ranges(node))]
    stores = [node.ranges for node in view.nodes if node.op is Ops.STORE]
    for outer, inner in zip(view.axes, view.axes[1:], strict=False):
        if outer.arg.kind is not inner.arg.kind or outer.arg.kind not in (AxisType.LOOP, AxisType.REDUCE):
            continue
        # Every node that closes one of the axes closes both, and no store is inside only one of them.
        is_alike = all((outer in ranges) == (inner in ranges) for ranges in (*closed, *stores))
        may_merge = merges_symbolic and is_uniform(outer) and is_uniform(inner) and not is_counted(inner)
        if is_alike and (may_merge or (is_counted(outer) and is_counted(inner))):
            yield outer, inner


def _walk_as_one(view: KernelView, outer: UOp, inner: UOp) -> bool:
    """Whether both axes occur in addresses only, and there with strides of one contiguous loop."""
    for access in view.index_nodes:
        if len(access.src) == 3 and (outer in access.src[2].ranges or inner in access.src[2].ranges):
            return False
        if not _is_one_index(access, outer, inner):
            return False
    axes = frozenset((outer, inner))
    if any(node.op not in _ADDRESSING for node in view.nodes if not axes.isdisjoint(node.src)):
        return False
    return not _used_elsewhere(view, axes)


def _is_one_index(access: UOp, outer: UOp, inner: UOp) -> bool:
    """Whether an index depends on `outer * size of inner + inner` alone."""
    if is_counted(inner):
        outer_step, inner_step = stride(access, outer), stride(access, inner)
        return outer_step is not None and inner_step is not None and outer_step == inner_step * size_of(inner)
    position = access.src[1]
    merged = _merged(outer, inner)
    alone = substitute(position, {outer: outer.const_like(0), inner: merged})
    return simplify(substitute(alone, {merged: outer * inner.src[0] + inner})) is simplify(position)


def _used_elsewhere(view: KernelView, axes: frozenset[UOp]) -> bool:
    """Whether a value other than an address is computed from the axes."""
    inside = {access.src[1] for access in view.index_nodes}
    for node in reversed(view.nodes):
        if node in inside:
            inside.update(node.src)
    for node in view.nodes:
        if node.op is Ops.INDEX or node.op in _NAMING or node in inside:
            continue
        if any(src in axes or (src in inside and not axes.isdisjoint(src.ranges)) for src in node.src):
            return True
    return False


def _merge(sink: UOp, outer: UOp, inner: UOp) -> UOp:
    merged = _merged(outer, inner)
    return simplify(exchange_axes(sink, {inner: merged, outer: merged.const_like(0)}))


def _merged(outer: UOp, inner: UOp) -> UOp:
    return make_range(simplify(outer.src[0] * inner.src[0]), outer.arg.id, outer.arg.kind)


def split_loops(sink: UOp) -> UOp:
    """
    before: for i in 32: out[...] = a[i // 8] + b[i % 8]
    after:  for i0 in 4: for i1 in 8: out[...] = a[i0] + b[i1]

    before: for i in 30: out[i] = a[i // 8] + b[i % 8]
    after:  for i0 in 4: for i1 in 8: out[i0*8 + i1 if i0*8 + i1 < 30] = a[i0] + b[i1]
    """
    for _ in range(16):
        view = view_kernel(sink)
        found = next(iter(_divided(view)), None)
        if found is None:
            return sink
        axis, divisor = found
        outer = make_range(-(-size_of(axis) // divisor), (*axis.arg.id, 0), axis.arg.kind)
        inner = make_range(divisor, (*axis.arg.id, 1), axis.arg.kind)
        sink = simplify(exchange_axis(sink, axis, outer * divisor + inner))
        if size_of(axis) % divisor:
            # Every block has a first iteration, and the first block has all iterations: only accesses that depend on
            # both loops are masked.
            sink = simplify(mask_axis(sink, outer, outer * divisor + inner < size_of(axis), inner))
    return sink


def _divided(view: KernelView) -> list[tuple[UOp, int]]:
    """The (axis, c) of every (axis + constant) // c or % c where c divides the size or the axis may be padded."""
    found = []
    for node in view.nodes:
        if node.op in (Ops.IDIV, Ops.MOD) and node.src[1].op is Ops.CONST:
            axis, divisor = _moved_range(node.src[0]), int(node.src[1].arg)
            if (
                axis is not None
                and axis.arg.kind in (AxisType.LOOP, AxisType.REDUCE)
                and is_counted(axis)
                and 1 < divisor < size_of(axis)
                and (size_of(axis) % divisor == 0 or _may_be_padded(view, axis, divisor))
            ):
                found.append((axis, divisor))
    return found


def _may_be_padded(view: KernelView, axis: UOp, divisor: int) -> bool:
    """Whether an output loop is long enough for a masked last block to cost less than divisions in every iteration."""
    return axis.arg.kind is AxisType.LOOP and axis not in view.reduce_axes and size_of(axis) >= MIN_BLOCKS * divisor


def _moved_range(position: UOp) -> UOp | None:
    """The axis that an index expression equals up to a constant."""
    if position.op is Ops.ADD and position.src[1].op is Ops.CONST:
        position = position.src[0]
    return position if position.op is Ops.RANGE else None

"""The gradient of GATHER, a scatter-add. In: the node and the gradient of its result, one value per position. Out: for
each element of the source the sum of the values whose position read it. Part of `gradients.py`.

An axis that is read straight through (its index counts along an axis of the result) is aligned and costs nothing. The
other axes of the source are one flat number, the other axes of the result are one row of positions to sum over."""

from __future__ import annotations

import math
from typing import NamedTuple

from tilewright.base.dtype import DType, dtypes
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp

# Positions are added among themselves first where there are so many times fewer of them than of elements, unless the
# plain sum over all positions is no more work than this.
_FEW_POSITIONS = 4
_SMALL_WORK = 1 << 16


class Layout(NamedTuple):
    """Which axes of the result run along with an axis of the source, and which are summed over."""

    aligned: dict[int, int]  # axis of the source -> axis of the result
    summed: list[int]  # axes of the result
    selected: list[int]  # axes of the source


def gather_gradient(node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
    source, *indices = node.src
    none = (None,) * len(indices)
    if 0 in source.shape or 0 in node.shape:
        return build.const(source.dtype, 0, source.shape), *none
    layout = find_layout(source.shape, indices)
    values = arrange(upstream, source.shape, layout)
    count = values.shape[-1]
    if not layout.selected:
        return build.reshape(_sum_last(values), source.shape), *none
    selected = math.prod(source.shape[axis] for axis in layout.selected)
    dtype = dtypes.int32 if selected < 1 << 31 and count < 1 << 31 else dtypes.int64
    number = flat_index(source.shape, indices, layout, dtype)
    work = count * math.prod(source.shape)
    if count * _FEW_POSITIONS < selected and work > _SMALL_WORK:
        return _add_among_positions(source.shape, values, number, layout), *none
    return _add_everywhere(source.shape, values, number, layout), *none


def _sum_last(x: UOp) -> UOp:
    """The sum over the last axis, which goes; a short float is carried in float32."""
    carrier = dtypes.float32 if x.dtype.bits < 32 else x.dtype
    summed = build.reduce_axis(Ops.ADD, build.cast(x, carrier), (len(x.shape) - 1,))
    return build.cast(build.reshape(summed, x.shape[:-1]), x.dtype)


# ---------------------------------------------------------------- axes


def counting_axis(index: UOp) -> int | None:
    """The axis along which an index tensor counts 0, 1, 2, ... while it is the same along all others, or None."""
    node = index
    while node.op is Ops.EXPAND or (node.op is Ops.CAST and node.dtype.is_int and node.src[0].vmax <= node.dtype.max):
        node = node.src[0]
    counted = node.src[0] if node.op is Ops.RESHAPE else node
    axes = [axis for axis, size in enumerate(node.shape) if size != 1]
    return axes[0] if counted.op is Ops.IOTA and len(axes) == 1 else None


def find_layout(shape: Shape, indices: list[UOp]) -> Layout:
    aligned: dict[int, int] = {}
    for axis, index in enumerate(indices):
        along = counting_axis(index)
        if along is not None and along not in aligned.values():
            aligned[axis] = along
    summed = [axis for axis in range(len(indices[0].shape)) if axis not in aligned.values()]
    return Layout(aligned, summed, [axis for axis in range(len(shape)) if axis not in aligned])


def arrange(values: UOp, shape: Shape, layout: Layout) -> UOp:
    """A tensor of the result's shape as (axes of the source..., positions): selected axes have size 1, aligned ones the
    source's size, with zeros where nothing was read."""
    order = (*(layout.aligned[axis] for axis in sorted(layout.aligned)), *layout.summed)
    moved = build.permute(values, order)
    sizes = iter(moved.shape)
    spread = [next(sizes) if axis in layout.aligned else 1 for axis in range(len(shape))]
    count = math.prod(values.shape[axis] for axis in layout.summed)
    arranged = build.reshape(moved, (*spread, count))
    wanted = [own if size != 1 else 1 for size, own in zip(spread, shape)]
    cut = tuple((0, min(have, want)) for have, want in zip(spread, wanted))
    arranged = build.shrink(arranged, (*cut, (0, count)))
    return build.pad(arranged, (*((0, want - end) for (_, end), want in zip(cut, wanted)), (0, 0)))


def flat_index(shape: Shape, indices: list[UOp], layout: Layout, dtype: DType) -> UOp:
    """The number that each position selects among the selected axes, or -1; arranged, with size 1 along the aligned
    axes that no index depends on."""
    used = [indices[axis] for axis in layout.selected]
    constant = [along for along in layout.aligned.values() if all(_is_constant(index, along) for index in used)]
    number: UOp | None = None
    inside: UOp | None = None
    for axis in layout.selected:
        size = shape[axis]
        index = _first_along(indices[axis], constant)
        valid = build.alu(Ops.CMPLT, index, build.const(index.dtype, size))
        if int(index.dtype.max) < size:
            valid = build.const(dtypes.bool, True, index.shape)
        if not index.dtype.is_unsigned:
            valid = build.alu(Ops.AND, valid, build.alu(Ops.CMPLT, build.const(index.dtype, -1), index))
        inside = valid if inside is None else build.alu(Ops.AND, inside, valid)
        place = build.cast(index, dtype)
        if number is None:
            number = place
        else:
            number = build.alu(Ops.ADD, build.alu(Ops.MUL, number, build.const(dtype, size)), place)
    assert number is not None
    assert inside is not None
    chosen = build.where(inside, number, build.const(dtype, -1))
    return arrange(chosen, shape, layout)


def _is_constant(index: UOp, axis: int) -> bool:
    """Whether an index tensor is known to be the same along an axis."""
    return index.shape[axis] == 1 or (index.op is Ops.EXPAND and index.src[0].shape[axis] == 1)


def _first_along(index: UOp, axes: list[int]) -> UOp:
    if index.op is Ops.EXPAND:
        source = index.src[0]
        return build.expand(source, tuple(1 if axis in axes else size for axis, size in enumerate(index.shape)))
    return build.shrink(index, tuple((0, 1 if axis in axes else size) for axis, size in enumerate(index.shape)))


# ---------------------------------------------------------------- sums


def _places(shape: Shape, layout: Layout, dtype: DType) -> UOp:
    """The number of each element among the selected axes, of size 1 along the others and along the positions."""
    sizes = tuple(size if axis in layout.selected else 1 for axis, size in enumerate(shape))
    return build.reshape(build.iota(math.prod(sizes), dtype), (*sizes, 1))


def _matches(left: UOp, right: UOp) -> UOp:
    shape = tuple(max(a, b) for a, b in zip(left.shape, right.shape, strict=True))
    return build.alu(Ops.CMPEQ, build.expand(left, shape), build.expand(right, shape))


def _add_everywhere(shape: Shape, values: UOp, number: UOp, layout: Layout) -> UOp:
    """
    before: y = gather(x[N], index[P])
    after:  dx[n] = sum(p, where(index[p] == n, dy[p], 0)), one reduction that stores nothing but its result
    """
    whole = (*shape, values.shape[-1])
    match = build.expand(_matches(number, _places(shape, layout, number.dtype)), whole)
    return _sum_last(build.where(match, build.expand(values, whole), build.const(values.dtype, 0)))


def _add_among_positions(shape: Shape, values: UOp, number: UOp, layout: Layout) -> UOp:
    """
    before: y = gather(x[N], index[P]), with P much less than N
    after:  s[p] = sum(q, where(index[q] == index[p], dy[q], 0)); last[n] = the greatest p with index[p] == n, or -1
            dx[n] = s[last[n]], or 0
    The work is P*P + P*N of small integers instead of P*N of everything (an embedding: N words of D numbers).
    """
    count = values.shape[-1]
    pairs = (*values.shape[:-1], count, count)
    own = build.reshape(number, (*number.shape[:-1], count, 1))
    other = build.reshape(number, (*number.shape[:-1], 1, count))
    given = build.expand(build.reshape(values, (*values.shape[:-1], 1, count)), pairs)
    match = build.expand(_matches(own, other), pairs)
    sums = _sum_last(build.where(match, given, build.const(values.dtype, 0)))
    named = _matches(number, _places(shape, layout, number.dtype))
    offered = build.where(named, build.axis_iota(named.shape, len(shape)), build.const(dtypes.int32, -1))
    last = build.reshape(build.reduce_axis(Ops.MAX, offered, (len(shape),)), named.shape[:-1])
    last = build.expand(last, shape)
    places = [
        build.axis_iota(shape, axis) if size != 1 else build.const(dtypes.int32, 0, shape)
        for axis, size in enumerate(sums.shape[:-1])
    ]
    found = build.gather(sums, *places, last)
    return build.where(build.alu(Ops.CMPLT, last, build.const(last.dtype, 0)), build.const(values.dtype, 0), found)

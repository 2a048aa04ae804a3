"""The gradient of GATHER, a scatter-add. In: the node and the gradient of its result, one value per position. Out: for
each element of the source the sum of the values whose position read it. Part of `gradients.py`.

An axis that is read straight through (its index counts along an axis of the result) is aligned and costs nothing. The
other axes of the source are one flat number, the other axes of the result are one row of positions to sum over. What is
built compares each position with each number; the kernel stage walks the positions instead (docs/decisions/0016)."""

from __future__ import annotations

import math

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.build import counting_axis
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Shape
from tilewright.graph.symbolic import capacity
from tilewright.graph.uop import UOp

# Up to this many comparisons a sum is left to the kernels around it; a larger one is stored as it is, since a kernel
# that does nothing else can go by position.
SMALL_SCATTER = 1 << 16


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
    return _add_by_number(source.shape, values, number, layout), *none


def _sum_last(x: UOp) -> UOp:
    """The sum over the last axis, which goes; a short float is carried in float32."""
    carrier = dtypes.float32 if x.dtype.bits < 32 else x.dtype
    summed = build.reduce_axis(Ops.ADD, build.cast(x, carrier), (len(x.shape) - 1,))
    return build.cast(stored_if_large(build.reshape(summed, x.shape[:-1]), math.prod(x.shape)), x.dtype)


def stored_if_large(total: UOp, comparisons: int) -> UOp:
    return build.contiguous(total) if capacity(comparisons) > SMALL_SCATTER else total


# ---------------------------------------------------------------- axes


def find_layout(shape: Shape, indices: list[UOp]) -> Layout:
    aligned: dict[int, int] = {}
    for axis, index in enumerate(indices):
        along = counting_axis(index)
        if (
            along is None
            and shape[axis] == 1
            and index.shape[axis : axis + 1] == (1,)
            and index.vmin == index.vmax == 0
        ):
            along = axis  # of one element, which is read
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
    chosen = flat_number(
        [_first_along(index, constant) for index in used], [shape[axis] for axis in layout.selected], dtype
    )
    return arrange(chosen, shape, layout)


def flat_number(indices: list[UOp], sizes: list[int], dtype: DType) -> UOp:
    """Indices of one shape into axes of these sizes as one number, row by row; -1 where one lies outside."""
    number: UOp | None = None
    inside: UOp | None = None
    for index, size in zip(indices, sizes, strict=True):
        checks = []
        if is_symbolic((size,)) or index.vmax >= size:
            checks.append(build.alu(Ops.CMPLT, index, build.const(index.dtype, size)))
        if index.vmin < 0:
            checks.append(build.alu(Ops.CMPLT, build.const(index.dtype, -1), index))
        for check in checks:
            inside = check if inside is None else build.alu(Ops.AND, inside, check)
        place = build.cast(index, dtype)
        if number is None:
            number = place
        else:
            number = build.alu(Ops.ADD, build.alu(Ops.MUL, number, build.const(dtype, size)), place)
    assert number is not None
    return number if inside is None else build.where(inside, number, build.const(dtype, -1))


def _is_constant(index: UOp, axis: int) -> bool:
    """Whether an index tensor is known to be the same along an axis."""
    return index.shape[axis] == 1 or (index.op is Ops.EXPAND and index.src[0].shape[axis] == 1)


def _first_along(index: UOp, axes: list[int]) -> UOp:
    if index.op is Ops.EXPAND:
        source = index.src[0]
        return build.expand(source, tuple(1 if axis in axes else size for axis, size in enumerate(index.shape)))
    return build.shrink(index, tuple((0, 1 if axis in axes else size) for axis, size in enumerate(index.shape)))


# ---------------------------------------------------------------- sums


def _add_by_number(shape: Shape, values: UOp, number: UOp, layout: Layout) -> UOp:
    """
    before: y = gather(x[N], index[P])
    after:  dx[n] = sum(p, where(index[p] == n, dy[p], 0))

    The selected axes are one while the sum is taken, in the place of the first of them."""
    first = layout.selected[0]
    sizes = tuple(shape[axis] for axis in layout.selected)
    before = [axis for axis in layout.aligned if axis < first]
    behind = sorted(axis for axis in layout.aligned if axis > first)
    count = values.shape[-1]
    flat = (*(shape[axis] for axis in sorted(before)), math.prod(sizes), *(shape[axis] for axis in behind))
    whole = (*flat, count)

    def spread(x: UOp) -> UOp:
        kept = tuple(size for axis, size in enumerate(x.shape) if axis == first or axis not in layout.selected)
        return build.expand(build.reshape(x, kept), whole)

    places = build.cast(build.axis_iota(whole, first), number.dtype)
    match = build.alu(Ops.CMPEQ, spread(number), places)
    summed = _sum_last(build.where(match, spread(values), build.const(values.dtype, 0)))
    apart = build.reshape(summed, (*flat[:first], *sizes, *flat[first + 1 :]))
    order = [*sorted(before), *layout.selected, *behind]
    return build.permute(apart, tuple(order.index(axis) for axis in range(len(shape))))

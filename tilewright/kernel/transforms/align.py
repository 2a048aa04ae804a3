"""ALIGN: an output loop is extended at both ends, so that its first iteration stores to an aligned address in every
row; the added iterations are masked off. In: a kernel, a loop that stores contiguous elements, an alignment in
elements. Out: the kernel over the longer loop, whose vectors do not cross cache lines.

    before: for r in 8: for i in 100: out[r*100 + i] = a[i]
    after:  for r in 8: for i in 128: if r*100%16 <= i < r*100%16 + 100:                          by 16
                out[r*100 + i - r*100%16] = a[i - r*100%16]"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import exchange_axis, size_of, toposort
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.axes import KernelView, is_counted, make_range, stride
from tilewright.kernel.masks import mask_axis
from tilewright.kernel.transforms.common import Transform


def check_align(view: KernelView, axis: UOp, multiple: int) -> str | None:
    position = view.axes.index(axis)
    if axis.arg.kind is not AxisType.LOOP or axis in view.reduce_axes or not is_counted(axis):
        return f"ALIGN needs an output loop of constant size, axis {position} is {axis.arg.kind.name}"
    if not isinstance(multiple, int) or multiple < 2:
        return f"ALIGN multiple {multiple} is less than 2"
    if has_effects(view) or view.sized_by(axis) or any(axis in node.ranges for node in view.reduces):
        return f"ALIGN needs a loop of stores alone, an effect, a reduction or a size depends on axis {position}"
    stores = [store for store in view.stores if axis in store.ranges]
    if not stores or any(stride(store, axis) != 1 for store in stores):
        return f"ALIGN needs stores of contiguous elements along axis {position}"
    shifts = {shift_of(store, axis, multiple) for store in stores}
    if len(shifts) > 1:
        return f"ALIGN: the stores along axis {position} begin at different positions"
    if any(node.op is Ops.MIN for shift in shifts for node in toposort(shift)):
        return f"ALIGN: the rows of axis {position} are blocks that overlap"
    if shifts == {index_const(0)}:
        return f"ALIGN {multiple}: every row of axis {position} begins at a multiple already"
    return None


def shift_of(store: UOp, axis: UOp, multiple: int) -> UOp:
    """The position at which a row begins, modulo `multiple`: the number of iterations added before it."""
    terms, constant = affine(store.src[1])
    position = index_const(constant % multiple)
    for atom, factor in terms.items():
        if atom is not axis and factor % multiple:
            position = position + atom * (factor % multiple)
    return simplify(position % multiple)


def aligned_size(axis: UOp, multiple: int) -> int:
    """The size of the extended loop: it holds a row for any position at which the row begins."""
    return -(-(size_of(axis) + multiple - 1) // multiple) * multiple


def apply_align(view: KernelView, axis: UOp, multiple: int) -> UOp:
    size = size_of(axis)
    shift = shift_of(next(store for store in view.stores if axis in store.ranges), axis, multiple)
    longer = make_range(aligned_size(axis, multiple), axis.arg.id, axis.arg.kind)
    inside = (shift < longer + 1) & (longer < shift + size)
    return mask_axis(exchange_axis(view.sink, axis, longer - shift), longer, inside)


def align_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    lanes = max(2, min((view.target.lanes(store.dtype) for store in view.stores), default=2))
    for axis in view.of_kind(AxisType.LOOP):
        if is_counted(axis) and size_of(axis) > lanes:
            yield axis, lanes


ALIGN = Transform(
    OptOps.ALIGN, check_align, apply_align, align_candidates, "the alignment of the first store of a row, in elements"
)

"""Which factors of a kernel are groups of terms. In: a kernel, and the place of a factor or a target record. Out: the
UNROLL axis that numbers the terms of a group, what a copy of them holds, and the instruction that the target has.

A target may add several products of narrow integers to a lane of a sum at once (graph/kernels/dot_products.py). Then
the sum is unrolled by as many terms, which a packed panel holds side by side: a group fills the bits of a sum."""

from __future__ import annotations

from tilewright.base.dtype import DType
from tilewright.graph.kernels.dot_products import DotFit, find_dots, group_dtype, narrow_factors
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, size_of


def product_dots(view: KernelView) -> list[DotFit]:
    """The ways in which the target computes the kernel's innermost sum as dot products; none where it has none."""
    factors = narrow_factors(view.reduces[0].src[0]) if view.target.dot_products else None
    if factors is None:
        return []
    return find_dots(factors[0].dtype, factors[1].dtype, view.reduces[0].dtype, view.target)


def term_axis(view: KernelView, place: UOp) -> UOp | None:
    """The axis whose elements, at a place that is loaded from, are the terms of a group. A work-group has none: its
    threads name each element."""
    for node in view.reduces if not view.of_kind(AxisType.LOCAL) else ():
        factors = narrow_factors(node.src[0]) if node.arg is Ops.ADD else None
        if factors is not None and any(factor.op is Ops.LOAD and factor.src[0] is place for factor in factors):
            unrolled = [a for a in node.src[1:] if a.arg.kind is AxisType.UNROLL and a in place.ranges]
            fitting = [a for a in unrolled if group_dtype(place.dtype, node.dtype, size_of(a)) is not None]
            return fitting[0] if fitting else None
    return None


def term_dtype(view: KernelView, place: UOp, total: DType) -> DType | None:
    """What a copy of a factor holds, where its elements are terms of groups."""
    axis = term_axis(view, place)
    return None if axis is None else group_dtype(place.dtype, total, size_of(axis))

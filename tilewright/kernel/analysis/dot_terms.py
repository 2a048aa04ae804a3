"""Groups of terms for dot-product instructions. In: a kernel for a target, and the access of a factor. Out: the UNROLL
axis whose iterations are the terms of a group, the dtype of a packed group, and the target's instructions.

A target may add several products of narrow integers to each lane of a sum with one instruction
(graph/kernels/dot_products.py). The sum is then unrolled by that many terms, and a packed panel holds the terms of a
group next to each other, as one element of the accumulator's width."""

from __future__ import annotations

from tilewright.base.dtype import DType
from tilewright.graph.kernels.dot_products import DotFit, find_dots, group_dtype, narrow_factors
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView


def product_dots(view: KernelView) -> list[DotFit]:
    """The target's instructions that compute the kernel's innermost sum as dot products, preferred ones first."""
    factors = narrow_factors(view.reduces[0].src[0]) if view.target.dot_products else None
    if factors is None:
        return []
    return find_dots(factors[0].dtype, factors[1].dtype, view.reduces[0].dtype, view.target)


def term_axis(view: KernelView, access: UOp) -> UOp | None:
    """The UNROLL axis of a factor's access whose iterations are the terms of a group; None in a work-group, whose
    threads address single elements."""
    for node in view.reduces if not view.of_kind(AxisType.LOCAL) else ():
        factors = narrow_factors(node.src[0]) if node.arg is Ops.ADD else None
        if factors is not None and any(factor.op is Ops.LOAD and factor.src[0] is access for factor in factors):
            unrolled = [a for a in node.src[1:] if a.arg.kind is AxisType.UNROLL and a in access.ranges]
            fitting = [a for a in unrolled if group_dtype(access.dtype, node.dtype, size_of(a)) is not None]
            return fitting[0] if fitting else None
    return None


def term_dtype(view: KernelView, access: UOp, total: DType) -> DType | None:
    """The dtype of a packed group of terms of a factor; None where it is not packed in groups."""
    axis = term_axis(view, access)
    return None if axis is None else group_dtype(access.dtype, total, size_of(axis))

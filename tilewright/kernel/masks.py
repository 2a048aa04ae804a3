"""Masks of an axis. In: a kernel, an axis and a condition. Out: the kernel whose accesses and reductions along the axis
are restricted to where the condition holds. Padding, aligning and splitting loops use it."""

from __future__ import annotations

from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph


def mask_axis(sink: UOp, axis: UOp, inside: UOp, *others: UOp) -> UOp:
    """Every access that depends on the axis and on all others given, and every reduction over the axis, restricted to
    where `inside` holds."""

    def depends(node: UOp) -> bool:
        return axis in node.ranges and node.ranges.issuperset(others)

    def masked(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Ops.INDEX and depends(node):
            return node.with_src(masked_index(src, inside))
        if node.op is Ops.CHECK and depends(node):
            return node.with_src((src[0], src[1] & inside))
        if node.op is Ops.STORE and depends(node) and not depends(node.src[0]):
            # The address is the same in every iteration, the stored value is not.
            return node.with_src((src[0].with_src(masked_index(src[0].src, inside)), src[1]))
        if node.op is Ops.REDUCE and axis in node.src[1:] and not (node.arg is Ops.ADD and _is_zero(src[0], inside)):
            identity = node.src[0].const_like(reduce_identity(node.arg, node.dtype))
            return node.with_src((inside.where(src[0], identity), *src[1:]))
        return None

    return map_graph(sink, masked)


def _is_zero(value: UOp, inside: UOp) -> bool:
    """Whether a value is 0 wherever `inside` does not hold: a masked load, or a product of such loads."""
    if value.op is Ops.MUL:
        return all(_is_zero(factor, inside) for factor in value.src)
    if value.op is Ops.CAST:
        return _is_zero(value.src[0], inside)
    masks = value.src[0].src[2:] if value.op is Ops.LOAD and len(value.src) == 1 else ()
    return any(_implies(mask, inside) for mask in masks)


def _implies(mask: UOp, inside: UOp) -> bool:
    return mask is inside or (mask.op is Ops.AND and any(_implies(part, inside) for part in mask.src))


def masked_index(src: tuple[UOp, ...], inside: UOp) -> tuple[UOp, ...]:
    """The sources of an INDEX with `inside` added to its mask."""
    return (*src[:2], src[2] & inside if len(src) == 3 else inside)

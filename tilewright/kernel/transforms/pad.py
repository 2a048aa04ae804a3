"""PADTO: an axis is padded to a multiple, with its extra iterations masked off. In: a kernel, an axis, a multiple. Out:
the kernel over the longer axis. Masked loads and stores touch no memory, and a reduction combines its identity there,
so no function is evaluated on a value that does not exist.

    before: for i in 10: out[i] = f(a[i])
    after:  for i in 16: if i < 10: out[i] = f(a[i] if i < 10 else 0)"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType, Ops, reduce_identity
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import exchange_axis, map_graph, size_of
from tilewright.kernel.axes import KernelView, is_counted, is_uniform, make_range, padded_size, quotient_of
from tilewright.kernel.transforms.common import Transform


def check_pad(view: KernelView, axis: UOp, multiple: int) -> str | None:
    position = view.axes.index(axis)
    if axis.arg.kind not in (AxisType.LOOP, AxisType.REDUCE, AxisType.GLOBAL):
        return f"PADTO needs a loop, axis {position} is {axis.arg.kind.name}"
    if not is_uniform(axis):
        return f"PADTO needs a loop of known size, the size of axis {position} is computed"
    if not isinstance(multiple, int) or multiple < 1:
        return f"PADTO multiple {multiple} is not positive"
    if quotient_of(axis, multiple) is not None:
        return f"PADTO {multiple}: size {size_of(axis)} of axis {position} is a multiple already"
    return None


def apply_pad(view: KernelView, axis: UOp, multiple: int) -> UOp:
    longer = make_range(padded_size(axis, multiple), axis.arg.id, axis.arg.kind)
    return mask_axis(exchange_axis(view.sink, axis, longer), longer, longer < axis.src[0])


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


def pad_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.LOOP, AxisType.REDUCE):
        for multiple in (8, 16, 32):
            if is_counted(axis) and size_of(axis) % multiple and size_of(axis) > multiple:
                yield axis, multiple


PADTO = Transform(OptOps.PADTO, check_pad, apply_pad, pad_candidates, "what the size becomes a multiple of")

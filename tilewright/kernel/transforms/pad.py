"""PADTO: an axis is lengthened to a multiple, its extra iterations masked off. In: a kernel, an axis, a multiple. Out:
the kernel over the longer axis; loads and stores past the end touch nothing, and a reduction takes in its identity
there, so no function is ever asked about a value that does not exist.

    before: for i in 10: out[i] = f(a[i])
    after:  for i in 16: if i < 10: out[i] = f(a[i] if i < 10 else 0)"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType, Ops, reduce_identity
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import exchange_axis, toposort
from tilewright.kernel.axes import KernelView, is_counted, make_range, size_of
from tilewright.kernel.transforms.common import Transform


def check_pad(view: KernelView, axis: UOp, multiple: int) -> str | None:
    position = view.axes.index(axis)
    if axis.arg.kind not in (AxisType.LOOP, AxisType.REDUCE, AxisType.GLOBAL):
        return f"PADTO needs a loop, axis {position} is {axis.arg.kind.name}"
    if not is_counted(axis):
        return f"PADTO needs a loop of known size, the size of axis {position} is computed"
    if not isinstance(multiple, int) or multiple < 1:
        return f"PADTO multiple {multiple} is not positive"
    if size_of(axis) % multiple == 0:
        return f"PADTO {multiple}: size {size_of(axis)} of axis {position} is a multiple already"
    return None


def apply_pad(view: KernelView, axis: UOp, multiple: int) -> UOp:
    size = size_of(axis)
    longer = make_range(-(-size // multiple) * multiple, axis.arg.id, axis.arg.kind)
    return mask_axis(exchange_axis(view.sink, axis, longer), longer, longer < size)


def mask_axis(sink: UOp, axis: UOp, inside: UOp) -> UOp:
    """Every access that depends on the axis, and every reduction over it, restricted to where `inside` holds."""
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        src = tuple(done[s] for s in node.src)
        if node.op is Ops.INDEX and axis in node.ranges:
            src = _masked(src, inside)
        elif node.op is Ops.CHECK and axis in node.ranges:
            src = (src[0], src[1] & inside)
        elif node.op is Ops.STORE and axis in node.ranges and axis not in node.src[0].ranges:
            # The place is the same in every iteration, what is stored there is not.
            src = (src[0].with_src(_masked(src[0].src, inside)), src[1])
        elif node.op is Ops.REDUCE and axis in node.src[1:] and not (node.arg is Ops.ADD and _is_zero(src[0], inside)):
            identity = node.src[0].const_like(reduce_identity(node.arg, node.dtype))
            src = (inside.where(src[0], identity), *src[1:])
        done[node] = node.with_src(src)
    return done[sink]


def _is_zero(value: UOp, inside: UOp) -> bool:
    """Whether a value is 0 wherever `inside` does not hold: what is loaded there, or a product of such."""
    if value.op is Ops.MUL:
        return all(_is_zero(factor, inside) for factor in value.src)
    if value.op is Ops.CAST:
        return _is_zero(value.src[0], inside)
    masks = value.src[0].src[2:] if value.op is Ops.LOAD and len(value.src) == 1 else ()
    return any(_implies(mask, inside) for mask in masks)


def _implies(mask: UOp, inside: UOp) -> bool:
    return mask is inside or (mask.op is Ops.AND and any(_implies(part, inside) for part in mask.src))


def _masked(place: tuple[UOp, ...], inside: UOp) -> tuple[UOp, ...]:
    """The sources of an INDEX that counts only where `inside` holds."""
    return (*place[:2], place[2] & inside if len(place) == 3 else inside)


def pad_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.LOOP, AxisType.REDUCE):
        for multiple in (8, 16, 32):
            if is_counted(axis) and size_of(axis) % multiple and size_of(axis) > multiple:
                yield axis, multiple


PADTO = Transform(OptOps.PADTO, check_pad, apply_pad, pad_candidates, "what the size becomes a multiple of")

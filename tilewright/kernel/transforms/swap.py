"""SWAP: two loops exchange their nesting order. In: a kernel, a loop, and the number of another. Out: the kernel with
the loops interchanged, which changes the locality of its accesses and nothing else.

    before: for i in 4: for j in 8: out[i*8 + j] = a[i*8 + j]
    after:  for j in 8: for i in 4: out[i*8 + j] = a[i*8 + j]       SWAP of 0 and 1"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import exchange_axis
from tilewright.kernel.analysis.dependence import check_order
from tilewright.kernel.axes import KernelView, is_uniform, make_range
from tilewright.kernel.transforms.common import Transform, prefixed

_BETWEEN = (-1,)  # an id that no axis has


def check_swap(view: KernelView, axis: UOp, other: int) -> str | None:
    position = view.axes.index(axis)
    if not isinstance(other, int) or not 0 <= other < len(view.axes):
        return f"SWAP takes the number of another axis, {other!r} is none of 0 to {len(view.axes) - 1}"
    partner = view.axes[other]
    if partner is axis:
        return f"SWAP needs two axes, axis {position} is one"
    if axis.arg.kind is not partner.arg.kind or axis.arg.kind not in (AxisType.LOOP, AxisType.REDUCE, AxisType.GLOBAL):
        kinds = f"axis {position} is {axis.arg.kind.name}, axis {other} is {partner.arg.kind.name}"
        return f"SWAP needs two loops of a kind: {kinds}"
    if view.closers(axis) != view.closers(partner):
        return f"SWAP needs loops that nest in each other, axis {position} and axis {other} are closed apart"
    for found in (axis, partner):
        if not is_uniform(found) or view.sized_by(found):
            return f"SWAP needs loops of known size, that of axis {view.axes.index(found)} or one inside it is computed"
    barriers = [node for node in view.nodes if node.op is Ops.BARRIER]
    if any((axis in node.ranges) is not (partner in node.ranges) for node in barriers):
        return f"SWAP: a barrier orders the iterations of axis {position} or axis {other}, not those of both"
    return prefixed("SWAP", check_order(view, axis) or check_order(view, partner))


def apply_swap(view: KernelView, axis: UOp, other: int) -> UOp:
    partner = view.axes[other]
    between = make_range(axis.src[0], _BETWEEN, axis.arg.kind)
    sink = exchange_axis(view.sink, axis, between)
    sink = exchange_axis(sink, partner, make_range(partner.src[0], axis.arg.id, partner.arg.kind))
    return exchange_axis(sink, between, make_range(axis.src[0], partner.arg.id, axis.arg.kind))


def swap_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for position, axis in enumerate(view.axes):
        for other in range(position + 1, len(view.axes)):
            if check_swap(view, axis, other) is None:
                yield axis, other


SWAP = Transform(OptOps.SWAP, check_swap, apply_swap, swap_candidates, "the number of the other axis")

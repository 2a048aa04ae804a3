"""The axes of a kernel. In: a kernel (SINK). Out: its RANGE nodes in order, what memory each walks, and splitting one.
Every transform is written with these."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtype import dtypes
from tilewright.graph.affine import affine
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import toposort

_KIND_ORDER = {
    kind: position
    for position, kind in enumerate(
        (
            AxisType.GLOBAL,
            AxisType.THREAD,
            AxisType.LOCAL,
            AxisType.LOOP,
            AxisType.GROUP,
            AxisType.REDUCE,
            AxisType.UPCAST,
            AxisType.UNROLL,
        )
    )
}


def size_of(axis: UOp) -> int:
    return int(axis.src[0].arg)


def make_range(size: int, identity: tuple[int, ...], kind: AxisType) -> UOp:
    return UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis(identity, kind))


@dataclass(frozen=True)
class KernelView:
    """A kernel with the facts that transforms and heuristics ask for."""

    sink: UOp
    nodes: tuple[UOp, ...]
    axes: tuple[UOp, ...]
    reduces: tuple[UOp, ...]
    accesses: tuple[UOp, ...]  # INDEX nodes
    stores: tuple[UOp, ...]  # INDEX nodes that are written

    @property
    def reduce_axes(self) -> frozenset[UOp]:
        """The axes that a reduction closes, whatever their kind."""
        return frozenset(axis for node in self.reduces for axis in node.src[1:])

    def of_kind(self, *kinds: AxisType) -> list[UOp]:
        return [axis for axis in self.axes if axis.arg.kind in kinds]

    def loop_accesses(self, axis: UOp) -> list[tuple[UOp, int | None]]:
        """Each access that depends on the axis or runs inside it, with how far one step of the axis moves it;
        None where the distance is not constant."""
        return [(access, stride(access, axis)) for access in self.accesses]


def view_kernel(sink: UOp) -> KernelView:
    nodes = tuple(toposort(sink))
    reduces = tuple(node for node in nodes if node.op is Ops.REDUCE)
    users = {axis: 0 for axis in nodes if axis.op is Ops.RANGE}
    for node in reduces:
        for axis in node.ranges:
            users[axis] += 1
    # Rows come first: a loop that more reductions depend on lies outside the loops they do not depend on.
    axes = tuple(sorted(users, key=lambda axis: (_KIND_ORDER[axis.arg.kind], -users[axis], axis.arg.id)))
    stores = tuple(store.src[0] for store in sink.src if store.op is Ops.STORE)
    accesses = tuple(node for node in nodes if node.op is Ops.INDEX)
    return KernelView(sink, nodes, axes, reduces, accesses, stores)


def stride(access: UOp, axis: UOp) -> int | None:
    """How many elements apart two neighbours along the axis lie in memory; None where that varies."""
    position = access.src[1]
    if axis not in position.ranges:
        return 0
    terms = affine(position).terms
    if any(axis in atom.ranges for atom in terms if atom is not axis):
        return None
    return terms.get(axis, 0)


def exchange_axis(sink: UOp, axis: UOp, replacement: UOp) -> UOp:
    """The kernel with `axis` written as `replacement`, an expression of new axes; a reduction over `axis` becomes one
    over the new axes."""
    done: dict[UOp, UOp] = {axis: replacement}
    new_axes = tuple(sorted(replacement.ranges, key=lambda made: made.arg.id))
    for node in toposort(sink):
        if node in done:
            continue
        if node.op is Ops.REDUCE and axis in node.src[1:]:
            kept = [made for old in node.src[1:] for made in (new_axes if old is axis else (done[old],))]
            done[node] = UOp(node.op, node.dtype, (done[node.src[0]], *kept), node.arg)
            continue
        src = tuple(done[s] for s in node.src)
        done[node] = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
    return done[sink]


def split_axis(sink: UOp, axis: UOp, amount: int, inner: AxisType, inner_is_outermost: bool = False) -> UOp:
    """
    before: for i in 128                   (amount=4)
    after:  for i0 in 32: for i1 in 4      i = i0*4 + i1, i1 of kind `inner`
            with inner_is_outermost:       i = i1*32 + i0
    """
    size = size_of(axis)
    if amount == size:
        return exchange_axis(sink, axis, make_range(size, axis.arg.id, inner))
    outer_axis = make_range(size // amount, (*axis.arg.id, 0), axis.arg.kind)
    inner_axis = make_range(amount, (*axis.arg.id, 1), inner)
    if inner_is_outermost:
        return exchange_axis(sink, axis, inner_axis * (size // amount) + outer_axis)
    return exchange_axis(sink, axis, outer_axis * amount + inner_axis)

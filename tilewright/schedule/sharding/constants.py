"""Values made of constants alone. In: a node without memory below it. Out: a slice of it, or the node on a device.
Such a value belongs to no device and is computed wherever it is used. When a graph is sharded, each device computes its
own: one node for all could be stored on one device and read by another."""

from __future__ import annotations

from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.slices import replace_axis, slice_axis
from tilewright.graph.spec import Kind
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph, substitute, toposort

_LEAVES = (Ops.CONST, Ops.SIZE, Ops.IOTA)


def narrow(node: UOp, axis: int, start: int, stop: int) -> UOp:
    """The elements `start` to `stop` of one axis. An EXPAND is narrowed and an IOTA gets an offset, so that a slice is
    as simple as the whole; anything else becomes a SHRINK."""
    if (start, stop) == (0, node.shape[axis]):
        return node

    def is_cut_here(part: UOp) -> bool:
        return not part.op.is_elementwise and (part.op is not Ops.EXPAND or part.src[0].shape[axis] == 1)

    def visit(part: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if not part.shape or part.op.is_elementwise:
            return None
        shape = replace_axis(part.shape, axis, stop - start)
        if part.op is Ops.EXPAND:
            return build.expand(src[0], shape)
        if build.stored_root(part).op is Ops.IOTA and part.shape[axis] == build.stored_root(part).arg[0]:
            counted = build.iota(stop - start, part.dtype)
            moved = build.alu(Ops.ADD, counted, build.const(part.dtype, start)) if start else counted
            return build.reshape(moved, shape)
        return slice_axis(part, axis, start, stop)

    return map_graph(node, visit, toposort(node, stop=lambda part: not part.shape or is_cut_here(part)))


def place_constants(node: UOp, device: str, is_operand: bool = False) -> UOp:
    """The value with its leaves on a device. An operand of a node on that device needs this only where it computes
    something: a broadcast constant has no memory."""
    order = toposort(node)
    if is_operand and all(part.op in _LEAVES or part.op.kind is Kind.MOVEMENT for part in order):
        return node
    return substitute(node, {leaf: build.placed(leaf, device) for leaf in order if leaf.op in _LEAVES})

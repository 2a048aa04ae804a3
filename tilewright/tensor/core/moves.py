"""How a view was made, kept as data. In: a node and moves (an op and its argument each). Out: the view; and, for an
assignment to the view, movements and bits that an ASSIGN can store. Below `core`: nothing here knows of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes

Move = tuple[Op, Any]

# Views through these address memory of their base, so an assignment to the view reaches the base.
# PAD occurs in views only where what it adds is cut away again. DETACH and BITCAST show the same bits.
INVERTIBLE = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.SHRINK, Ops.FLIP, Ops.PAD, Ops.DETACH, Ops.BITCAST})


def apply_moves(node: UOp, moves: Iterable[Move]) -> UOp:
    for op, arg in moves:
        if op is Ops.DETACH:
            node = marks.detach(node)
        elif op is Ops.BITCAST:
            node = nodes.bits_as(node, arg)
        else:
            node = build.movement(op, node, arg)
    return node


def without_bitcasts(node: UOp, moves: tuple[Move, ...], value: UOp) -> tuple[tuple[Move, ...], UOp]:
    """To store `value` in the view that `moves` makes of a node: movements alone, and the bits to store there. Behind a
    bitcast to another width the whole view is rebuilt with the value in it, and its bits are stored."""
    if not moves:
        return moves, value
    moves = tuple(move for move in moves if move[0] is not Ops.DETACH)
    first = next((number for number, (op, _) in enumerate(moves) if op is Ops.BITCAST), None)
    if first is None:
        return moves, value
    before, (_, dtype), after = moves[:first], moves[first], moves[first + 1 :]
    if dtype.bits == node.dtype.bits:
        after, value = without_bitcasts(build.bitcast(node, dtype), after, value)
        return before + after, build.bitcast(value, node.dtype)
    viewed = build.contiguous(nodes.bits_as(apply_moves(node, before), dtype))
    after, value = without_bitcasts(viewed, after, value)
    return before, nodes.bits_as(build.assign(viewed, apply_moves(viewed, after), value), node.dtype)

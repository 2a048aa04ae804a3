"""Removes clamps that a mask makes superfluous. In: a kernel, and a target whose addresses are as wide as any index.
Out: the same kernel, whose masked accesses compute no clamp.

    before: out[min(max(x, 0), 7) if min(max(x, 0), 7) == x] = v
    after:  out[x if unsigned(x) < 8] = v

SCATTER clamps the index of each term, so that it is provably inside its row while loops are made parallel. The clamp is
a quarter of the instructions of such a term, in one dependent chain."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.ops import Ops
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph, substitute, toposort

_UNSIGNED: dict[DType, DType] = {dtypes.int32: dtypes.uint32, dtypes.int64: dtypes.uint64}


class Clamp(NamedTuple):
    """An index, what it is clamped to, and the condition that says the same as their comparison."""

    position: UOp
    clamped: UOp
    is_inside: UOp


def drop_clamps(sink: UOp, target: Target) -> UOp:
    if target.has_local:
        return sink
    accesses = [node for node in toposort(sink) if node.op is Ops.INDEX]
    masked = [node for node in accesses if len(node.src) == 3]
    compared = {part for node in masked for part in parts_of(node.src[2], Ops.AND) if part.op is Ops.CMPEQ}
    found = {part: clamp for part in compared if (clamp := find_clamp(part)) is not None}
    if not found:
        return sink
    # An element that is first read without a mask needs the clamp, and the store shares its address.
    kept = set(toposort(*(node.src[1] for node in accesses if len(node.src) < 3)))
    clamps = {part: clamp for part, clamp in found.items() if clamp.clamped not in kept}

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.INDEX or len(node.src) != 3:
            return None
        position = src[1]
        for part in parts_of(node.src[2], Ops.AND):
            if part in clamps:
                position = substitute(position, {clamps[part].clamped: clamps[part].position})
        return node.with_src((src[0], position, src[2]))

    return substitute(map_graph(sink, visit), {part: clamp.is_inside for part, clamp in clamps.items()})


def find_clamp(part: UOp) -> Clamp | None:
    """The clamp of a comparison `min(max(x, 0), last) == x` of an index that is a number of 32 or 64 bits."""
    for clamped, index in (part.src, part.src[::-1]):
        if clamped.op is not Ops.MIN or not clamped.src[1].is_const or index.op is not Ops.CAST:
            continue
        low, number = clamped.src[0], index.src[0]
        is_low = low.op is Ops.MAX and low.src[0] is index and low.src[1].is_const and low.src[1].arg == 0
        if is_low and number.dtype in _UNSIGNED:
            unsigned = number.cast(_UNSIGNED[number.dtype])
            return Clamp(index, clamped, unsigned < int(clamped.src[1].arg) + 1)
    return None

"""Lengths of vectors. In: a kernel and a target. Out: the same kernel, in which a tile axis that becomes the lanes of
vectors is no longer than a register, or a power of two: others are two axes, of which the inner is.
A compiler holds a vector of 48 elements that a loop carries as 48 scalars, and three of 16 as three registers."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.graph.affine import coefficient
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import toposort

# What names axes, which stand there for themselves: the sources from this one on.
_NAMING = {Ops.REDUCE: 1, Ops.END: 1, Ops.AFTER: 1, Ops.BARRIER: 0}


def split_vectors(sink: UOp, target: Target) -> UOp:
    """
    before: for u in 48 (UPCAST): out[i*48 + u] = ...
    after:  for u0 in 3 (UPCAST): for u1 in 16 (UPCAST): out[i*48 + u0*16 + u1] = ...
    """
    if target.has_local:  # a thread of a work-group names each element
        return sink
    nodes = toposort(sink)
    axes = [node for node in nodes if node.op is Ops.RANGE and node.arg.kind is AxisType.UPCAST]
    places = [node for node in nodes if node.op is Ops.INDEX]
    parts: dict[UOp, tuple[UOp, UOp]] = {}
    for axis in axes:
        walked = [place for place in places if coefficient(place.src[1], axis) == 1]
        size = int(axis.src[0].arg)
        length = size & -size
        if length < size and any(size > target.lanes(place.dtype) for place in walked) and length > 1:
            parts[axis] = _range(axis, size // length, 0), _range(axis, length, 1)
    return _exchange(nodes, parts) if parts else sink


def _range(axis: UOp, size: int, number: int) -> UOp:
    return axis.replace(src=(index_const(size),), arg=Axis((*axis.arg.id, number), axis.arg.kind))


def _exchange(nodes: list[UOp], parts: dict[UOp, tuple[UOp, UOp]]) -> UOp:
    done: dict[UOp, UOp] = {}
    for node in nodes:
        if node in parts:
            outer, inner = parts[node]
            done[node] = UOp(Ops.ADD, node.dtype, (UOp(Ops.MUL, node.dtype, (outer, inner.src[0])), inner))
            continue
        first = _NAMING.get(node.op, len(node.src))
        src = [done[source] for source in node.src[:first]]
        for source in node.src[first:]:
            src.extend(parts.get(source, (done[source],)))
        done[node] = node.with_src(tuple(src))
    return done[nodes[-1]]

"""Lengths of vectors. In: a kernel and a target. Out: the same kernel, in which a tile axis that becomes the lanes of
vectors is no longer than a register, or a power of two: others are two axes, of which the inner is.
A compiler holds a vector of 48 elements that a loop carries as 48 scalars, and three of 16 as three registers."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.graph.affine import coefficient
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import exchange_axis, toposort


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
    for axis in axes:
        walked = [place for place in places if coefficient(place.src[1], axis) == 1]
        size = int(axis.src[0].arg)
        length = size & -size
        if length < size and any(size > target.lanes(place.dtype) for place in walked) and length > 1:
            sink = exchange_axis(sink, axis, _range(axis, size // length, 0) * length + _range(axis, length, 1))
    return sink


def _range(axis: UOp, size: int, number: int) -> UOp:
    return axis.replace(src=(index_const(size),), arg=Axis((*axis.arg.id, number), axis.arg.kind))

"""Addresses. In: a kernel whose positions are index maths. Out: the same kernel with each position written as
`base + tile`, the base free of tile axes, and every index an int32 or int64.
The emitter then computes a base once and adds constants for the elements of a tile."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes, wrap_int
from tilewright.graph.affine import Affine, affine, from_affine
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort


def split_addresses(sink: UOp) -> UOp:
    """
    before: a[(i*4 + u)*8 + j]     u a tile axis
    after:  a[(i*32 + j) + u*8]
    """
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        src = tuple(done[s] for s in node.src)
        if node.op is Ops.INDEX:
            src = (src[0], split_position(src[1]), *src[2:])
        done[node] = node.with_src(src)
    return done[sink]


def split_position(position: UOp) -> UOp:
    """`base + tile` where the position has constant steps along tile axes; unchanged elsewhere."""
    form = affine(position)
    tile = {atom: step for atom, step in form.terms.items() if atom.op is Ops.RANGE and atom.arg.kind.is_tile}
    if not tile:
        return position
    rest = {atom: step for atom, step in form.terms.items() if atom not in tile}
    base = from_affine(Affine(rest, form.constant))
    return UOp(Ops.ADD, dtypes.index, (base, from_affine(Affine(tile, 0))))


def index_dtype(sink: UOp) -> DType:
    """32 bits where every index, and every step on the way to it, fits; else 64."""
    limits = (int(dtypes.int32.min), int(dtypes.int32.max))
    for node in toposort(sink):
        if node.dtype is dtypes.index:
            low, high = node.bounds
            if low < limits[0] or high > limits[1] or (node.op is Ops.RANGE and high >= limits[1]):
                return dtypes.int64
    return dtypes.int32


def choose_index_width(sink: UOp) -> UOp:
    """Index maths in the chosen integer type."""
    dtype = index_dtype(sink)
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        src = tuple(done[s] for s in node.src)
        node_dtype = dtype if node.dtype is dtypes.index else node.dtype
        if node.op is Ops.CONST and node_dtype is not node.dtype:
            # A masked position may be computed from numbers that 64 bits do not hold; where it counts it wraps back.
            done[node] = UOp(node.op, node_dtype, (), wrap_int(node.arg, node_dtype))
        elif node.op is Ops.CAST and src[0].dtype is node_dtype and node.src[0].dtype is not node.dtype:
            done[node] = src[0]
        elif node_dtype is node.dtype:
            done[node] = node.with_src(src)
        else:
            done[node] = UOp(node.op, node_dtype, src, node.arg)
    return done[sink]

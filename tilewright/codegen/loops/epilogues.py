"""Loops over long epilogues. In: a kernel with tile axes. Out: the same kernel, in which a long computation on the sums
of a tile is a loop over the rows of the tile instead of being unrolled.

    before: for u in 6 (UPCAST): s = 0; for k in 96: s += a[u, k] * b[k]
            for u in 6 (UPCAST): out[u] = gelu(s)
    after:  for u in 6 (UPCAST): s = 0; for k in 96: s += a[u, k] * b[k]
            for u in 6 (UPCAST): local[u] = s
            for i in 6: out[i] = gelu(local[i])

The sums of a tile fill the registers. Where more instructions follow for each sum than there are registers, their
constants and intermediate values are spilled in any case. The loop adds a store and a load for each sum, and the
compiler generates the code of one row instead of all rows: a quarter of the compile time for gelu. Where a sum has so
many terms that the store and the load do not matter, a shorter epilogue is a loop as well."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph.affine import coefficient
from tilewright.graph.ops import ELEMENTWISE, Axis, AxisType, Ops, ParamArg
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import exchange_axis, map_nodes, size_of, substitute, toposort

# Instructions of the loop itself, for each row: an epilogue with no more of its own gets no shorter text.
LOOP_INSTRUCTIONS = 8
# The fewest terms of a sum beside which the loop takes 1 % of the time: it takes as long as 16 terms of each sum.
# Convolutions of single pixels with 128 to 512 terms take 3 % longer with the loop.
LONG_SUM = 1600
# The ops of an epilogue that may be a loop: none of them orders effects.
_ALLOWED = ELEMENTWISE | {Ops.CONST, Ops.PARAM, Ops.RANGE, Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.SINK, Ops.REDUCE}


def loop_epilogues(sink: UOp, target: Target) -> UOp:
    if target.has_local:  # a thread of a work-group would spill its sums to slow memory
        return sink
    nodes = _epilogue(sink)
    sums = [node for node in nodes if node.op is Ops.REDUCE]
    if not any(not axis.arg.kind.is_tile for node in sums for axis in node.src[1:]):
        return sink
    is_long = _terms(sums) >= LONG_SUM
    fewest = LOOP_INSTRUCTIONS if is_long else target.vector_registers
    if not all(node.op in _ALLOWED for node in nodes) or len(nodes) <= fewest:
        return sink
    axis = _row_axis(sink, nodes, sums)
    if axis is None:
        return sink
    # In a loop that is there for compile time alone, loads count too: each is an instruction for every row.
    loads = sum(node.op is Ops.LOAD and axis in node.ranges for node in nodes) if is_long else 0
    if loads + sum(_is_computed(node, axis) for node in nodes) <= fewest:
        return sink
    rows = _rows_of_iteration(axis, sums, target)
    if rows == size_of(axis):
        return sink
    if rows > 1:
        outer, inner = _range(axis, size_of(axis) // rows, 0), _range(axis, rows, 1)
        sink, axis = exchange_axis(sink, axis, outer * rows + inner), outer
    return _in_loop(sink, axis)


def _epilogue(sink: UOp) -> list[UOp]:
    """The nodes of a kernel outside of its reductions, and the reductions that they read."""
    return toposort(sink, stop=lambda node: node.op is Ops.REDUCE)


def _terms(sums: Sequence[UOp]) -> int:
    """The number of terms of the shortest sum."""
    nests = [{axis for node in toposort(total) if node.op is Ops.REDUCE for axis in node.src[1:]} for total in sums]
    return min(math.prod(map(size_of, nest)) for nest in nests)


def _is_computed(node: UOp, axis: UOp) -> bool:
    """Whether a node is an instruction for each row; index arithmetic does not count."""
    return node.op.is_elementwise and not node.dtype.is_int and axis in node.ranges


def _row_axis(sink: UOp, nodes: Sequence[UOp], sums: Sequence[UOp]) -> UOp | None:
    """The longest UPCAST axis that all sums and stores depend on and that no access walks as vector lanes."""
    stores = [node for node in nodes if node.op is Ops.STORE]
    shared = frozenset.intersection(*(frozenset(node.ranges) for node in (*sums, *stores)))
    lanes = {axis for index in toposort(sink) if index.op is Ops.INDEX for axis in shared if _walks(index, axis)}
    rows = [axis for axis in shared - lanes if axis.arg.kind is AxisType.UPCAST]
    return max(rows, key=lambda axis: (size_of(axis), axis.arg.id), default=None)


def _walks(index: UOp, axis: UOp) -> bool:
    """Whether adjacent elements along the axis are adjacent in memory."""
    return axis in index.ranges and coefficient(index.src[1], axis) == 1


def _rows_of_iteration(axis: UOp, sums: Sequence[UOp], target: Target) -> int:
    """How many rows an iteration computes: the fewest that have `independent_vectors` vectors together, which hide the
    latency of an instruction."""
    sizes = [math.prod(size_of(each) for each in node.ranges if each.arg.kind.is_tile) for node in sums]
    row_bytes = max(size * node.dtype.itemsize for size, node in zip(sizes, sums, strict=True)) // size_of(axis)
    wanted = target.independent_vectors * target.vector_bytes
    return next(
        (rows for rows in range(1, size_of(axis)) if size_of(axis) % rows == 0 and rows * row_bytes >= wanted),
        size_of(axis),
    )


def _range(axis: UOp, size: int, number: int, kind: AxisType = AxisType.UPCAST) -> UOp:
    return axis.replace(src=(index_const(size),), arg=Axis((*axis.arg.id, number), kind))


def _in_loop(sink: UOp, axis: UOp) -> UOp:
    """The kernel with its sums spilled to local memory, and a loop over the rows in place of the axis around the
    epilogue."""
    nodes, everything = _epilogue(sink), toposort(sink)
    slot = 1 + max((node.arg.slot for node in everything if node.op is Ops.DEFINE_LOCAL), default=-1)
    indices = [node for node in everything if node.op is Ops.INDEX]
    loop = _range(axis, size_of(axis), 0, AxisType.LOOP)
    exchanges = {axis: loop}
    for number, total in enumerate(node for node in nodes if node.op is Ops.REDUCE):
        exchanges[total] = _spilled(total, axis, loop, slot + number, indices)
    return map_nodes(nodes, lambda node, _: exchanges.get(node))[sink]


def _spilled(total: UOp, axis: UOp, loop: UOp, slot: int, indices: Sequence[UOp]) -> UOp:
    """Spills the sums of all rows to local memory; returns the load of the sum of one row."""
    around = sorted((each for each in total.ranges if not each.arg.kind.is_tile), key=lambda each: each.arg.id)
    tiles = [each for each in total.ranges if each.arg.kind.is_tile and each is not axis]
    tiles.sort(key=lambda each: (-sum(_walks(index, each) for index in indices), each.arg.id))
    position, size = index_const(0), 1
    for each in (*tiles, axis):
        position, size = position + each * size, size * size_of(each)
    memory = UOp(Ops.DEFINE_LOCAL, total.dtype, (), ParamArg(slot, size))
    begun = UOp(Ops.AFTER, total.dtype, (memory, *around)) if around else memory
    stored = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, total.dtype, (begun, position)), total))
    read = (UOp(Ops.AFTER, total.dtype, (memory, stored)), substitute(position, {axis: loop}))
    return UOp(Ops.LOAD, total.dtype, (UOp(Ops.INDEX, total.dtype, read),))

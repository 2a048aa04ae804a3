"""Scans (running reductions) as masked reductions, which fuse with their neighbours. In: a node and an axis. Out: nodes
that scan within blocks, and over the totals of the blocks."""

from __future__ import annotations

from tilewright.graph import build
from tilewright.graph.build import Pairs
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.spec import Op, Shape, max_count
from tilewright.graph.symbolic import capacity
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes

# Elements per block of a scan: an element combines those before it in its block, and a scan of the blocks' totals gives
# the rest. It is a vector's width: larger blocks do more arithmetic, smaller ones read and write more totals
# (bench/memory_rows.py).
SCAN_BLOCK = 16
# Up to this many totals are scanned without blocks: they are a sixteenth of the elements.
MAX_TOTALS = 64
# Up to this many combinations in total, one kernel without blocks takes less time than several launches.
_SMALL_SCAN = 1 << 16


def is_short_scan(shape: Shape, axis: int) -> bool:
    """Whether a scan needs no blocks."""
    size = capacity(shape[axis])
    return size <= SCAN_BLOCK or max_count(shape) * size <= _SMALL_SCAN


def scan_axis(node: UOp, op: Op, axis: int, longest: int = SCAN_BLOCK) -> UOp:
    """The scan along an axis, without moving the axis: elements that are adjacent in memory stay adjacent in every
    kernel.

    before: y[i] = op of x[0..i]
    after:  total[b] = op of block b; before[b] = op of total[0..b-1]; y[b, k] = op(before[b], op of x[b, 0..k])"""
    shape, size = node.shape, node.shape[axis]
    if capacity(size) <= longest or is_short_scan(shape, axis):
        return _scan_at_once(node, op, axis)
    identity = reduce_identity(op, node.dtype)
    count = -(-size // SCAN_BLOCK)
    padded = nodes.pad_with(node, _pairs(shape, axis, (0, count * SCAN_BLOCK - size)), identity)
    blocks = build.reshape(padded, nodes.replace_axis(shape, axis, count, SCAN_BLOCK))
    totals = build.reshape(build.reduce_axis(op, blocks, (axis + 1,)), nodes.replace_axis(shape, axis, count))
    running = nodes.slice_axis(scan_axis(build.contiguous(totals), op, axis, MAX_TOTALS), axis, 0, count - 1)
    before = build.contiguous(nodes.pad_with(running, _pairs(shape, axis, (1, 0)), identity))
    spread = build.expand(build.reshape(before, nodes.replace_axis(shape, axis, count, 1)), blocks.shape)
    whole = build.alu(op, spread, _scan_at_once(blocks, op, axis + 1))
    flat = build.reshape(whole, nodes.replace_axis(shape, axis, count * SCAN_BLOCK))
    return nodes.slice_axis(flat, axis, 0, size)


def _scan_at_once(node: UOp, op: Op, axis: int) -> UOp:
    """The scan as a masked reduction over length x length."""
    size = node.shape[axis]
    square = nodes.replace_axis(node.shape, axis, size, size)
    terms = build.expand(build.reshape(node, nodes.replace_axis(node.shape, axis, 1, size)), square)
    ends, numbers = build.axis_iota(square, axis), build.axis_iota(square, axis + 1)
    is_later = build.alu(Ops.CMPLT, ends, numbers)
    masked = build.where(is_later, build.const(node.dtype, reduce_identity(op, node.dtype)), terms)
    return build.reshape(build.reduce_axis(op, masked, (axis + 1,)), node.shape)


def _pairs(shape: Shape, axis: int, pair: tuple[int, int]) -> Pairs:
    """The pad argument for one axis."""
    return tuple(pair if k == axis else (0, 0) for k in range(len(shape)))

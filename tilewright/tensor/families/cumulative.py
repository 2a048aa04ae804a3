"""Cumulative maximum, minimum and logsumexp. In: a tensor and an axis. Out: tensors of its shape. `cumsum` and
`cumprod` are with the reductions; these also need the indices of the extremes, or a cumulative maximum. A long axis is
scanned in blocks, so that the work is not quadratic in its length."""

from __future__ import annotations

import math
from typing import Self

from tilewright.base.dtype import dtypes
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.core import nodes
from tilewright.tensor.core.checks import check_axis, check_plain_size
from tilewright.tensor.families.base import Family
from tilewright.tensor.primitives import functions
from tilewright.tensor.primitives.indexing import ValuesAndIndices
from tilewright.tensor.primitives.masked_scans import SCAN_BLOCK, is_short_scan, scan_axis
from tilewright.tensor.primitives.running import extremes_along

# The longest block of a logsumexp on CPU cores. A block of b elements takes b exponentials for each of them, and about
# three more add what is before it; its total is scanned again: (b + 3) * b / (b - 1) in all is least near 3 and 4.
_CORE_BLOCK = 4


class CumulativeMixin(Family):
    """cummax, cummin, logcumsumexp."""

    def cummax(self, axis: int = 0) -> ValuesAndIndices[Self]:
        """The cumulative maximum and its index, the last one of equal elements; NaN counts as the maximum."""
        return self._running_extreme("cummax", Ops.MAX, axis)

    def cummin(self, axis: int = 0) -> ValuesAndIndices[Self]:
        """The cumulative minimum and its index, the last one of equal elements; NaN counts as the minimum."""
        return self._running_extreme("cummin", Ops.MIN, axis)

    def _running_extreme(self, name: str, op: Op, axis: int) -> ValuesAndIndices[Self]:
        axis = check_axis(name, axis, self.ndim)
        check_plain_size(name, axis, self.shape)
        if self.ndim == 0:
            return ValuesAndIndices(self, self._new(build.const(dtypes.int64, 0)))
        if 0 in self.shape:
            return ValuesAndIndices(self, self._new(build.const(dtypes.int64, 0, self.shape)))
        walked = extremes_along(self.uop, op, axis, self.device)
        if walked is not None:
            return ValuesAndIndices(self._new(walked[0]), self._new(walked[1]))
        extreme = scan_axis(self.uop, op, axis)
        # An element equals the cumulative extreme exactly where it becomes the extreme.
        takes = build.alu(Ops.CMPEQ, self.uop, extreme)
        if self.dtype.is_float:
            takes = build.alu(Ops.OR, takes, build.alu(Ops.CMPNE, self.uop, self.uop))
        number = build.axis_iota(self.shape, axis)
        # Stored, so that the first scan is not recomputed for each block of the second.
        taken = build.contiguous(build.where(takes, number, build.const(number.dtype, -1)))
        # Stored, because a scan fused with the gather below has no unit-stride loop to vectorise.
        found = build.contiguous(scan_axis(taken, Ops.MAX, axis))
        indices = self._new(build.cast(found, dtypes.int64))
        # The value is read by index, so that its gradient goes to that one element.
        values = self.gather(axis, indices) if self.dtype.is_float else self._new(extreme)
        return ValuesAndIndices(values, indices)

    def logcumsumexp(self, axis: int = 0) -> Self:
        """The logarithm of the cumulative sum of exponentials, without overflow."""
        axis = check_axis("logcumsumexp", axis, self.ndim)
        self._check_float("logcumsumexp")
        if self.ndim == 0 or 0 in self.shape:
            return self

        def function(x: Self) -> Self:
            target = open_driver(x.device).target if isinstance(x.device, str) else None
            longest = _CORE_BLOCK if target is not None and target.has_threads else SCAN_BLOCK
            return x._new(nodes.move_from_last(running_logsumexp(nodes.move_to_last(x.uop, axis), longest), axis))

        return self._in_float32(function)


def running_logsumexp(node: UOp, longest: int) -> UOp:
    """Along the last axis, a long one in blocks of up to `longest` elements. The maximum of each sum's elements is
    subtracted from them."""
    outer, size = node.shape[:-1], node.shape[-1]
    if not is_short_scan(node.shape, len(outer)):
        return _logsumexp_of_blocks(node, longest)
    greatest = marks.detach(scan_axis(node, Ops.MAX, len(outer)))
    infinite = functions.absolute(greatest).eq(math.inf)
    safe = build.where(infinite, greatest.const_like(0.0), greatest)
    square = (*outer, size, size)
    ends = build.expand(build.reshape(safe, (*outer, size, 1)), square)
    terms = build.expand(build.reshape(node, (*outer, 1, size)), square)
    counted = nodes.triangle_mask(square, 0, upper=False)
    # Masked elements become minus infinity before the exponential, which might overflow otherwise.
    distance = build.where(counted, terms, node.const_like(-math.inf)) - ends
    total = build.reduce_axis(Ops.ADD, functions.exp(distance), (len(square) - 1,))
    return functions.log(build.reshape(total, node.shape)) + safe


def _logsumexp_of_blocks(node: UOp, longest: int) -> UOp:
    outer, size = node.shape[:-1], node.shape[-1]
    count = -(-size // longest)
    block = -(-size // count)  # blocks of equal length have the least padding
    count = -(-size // block)
    none = ((0, 0),) * len(outer)
    padded = nodes.pad_with(node, (*none, (0, count * block - size)), -math.inf)
    blocks = running_logsumexp(build.reshape(padded, (*outer, count, block)), longest)
    last = len(outer) + 1
    totals = build.reshape(nodes.slice_axis(blocks, last, block - 1, block), (*outer, count))
    running = nodes.slice_axis(running_logsumexp(build.contiguous(totals), longest), last - 1, 0, count - 1)
    before = build.contiguous(nodes.pad_with(running, (*none, (1, 0)), -math.inf))
    spread = build.expand(build.reshape(before, (*outer, count, 1)), blocks.shape)
    whole = build.reshape(functions.logaddexp(spread, blocks), (*outer, count * block))
    return nodes.slice_axis(whole, len(outer), 0, size)

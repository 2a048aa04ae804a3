"""Sums of squared distances from a mean in one pass. In: the graph for a device with work-groups. Out: each large sum
of squares of `values - mean of values` divided into parts that fit in a core's cache, each about its own mean.

    sum((w - m)**2) = sum over parts p of: sum((w - m_p)**2) + count_p * (m_p - m)**2

A kernel sums a part, then the squares about the part's mean m_p, so it reads the values from memory once. Squares about
the common mean m would wait for all values, and read them again. Distances from a part's mean are no larger than those
from the common mean, so neither is the rounding error."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tilewright.base.config import options
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import max_count
from tilewright.graph.uop import UOp
from tilewright.schedule.preparation.contiguous import contiguous_axis
from tilewright.schedule.preparation.reduction import FEW_RESULTS, LARGE_REDUCTION, merge_axes

# Elements of a part: enough for the threads of a work-group, and few enough that a core's cache holds the parts of
# several work-groups.
MIN_PART, MAX_PART = 1 << 10, 1 << 13
# Elements of the longest vector: parts that begin at multiples of it are read in vectors.
LANES = 8


class Deviation(NamedTuple):
    """`squares` sums the squares of `distance`, which is `values - mean`; `mean` is made of `total`, the sum of the
    values."""

    squares: UOp
    distance: UOp
    total: UOp


class Deviations:
    """The nodes of a graph whose sums are computed in parts."""

    def __init__(self, order: Sequence[UOp], target: Target) -> None:
        is_wanted = options.SPLIT_REDUCE and target.warp_size > 1
        found = [match for node in order if (match := match_deviation(node)) is not None] if is_wanted else []
        squares = {match.distance: match.squares.src[0] for match in found}
        read = {src for node in order for src in node.src if src in squares and squares[src] is not node}
        taken = [match for match in found if is_taken_in_parts(match, match.distance in read, target)]
        self.totals = frozenset(match.total for match in taken)
        self.squares = frozenset(match.squares for match in taken)

    def split(self, node: UOp, made: UOp) -> UOp | None:
        """The sum in parts; None for any other node. `made` is the node with its new sources."""
        if node in self.totals:
            parts = Parts(made.src[0], made.arg[1])
            return build.reshape(parts.summed(parts.totals), made.shape)
        if node not in self.squares:
            return None
        values, mean = made.src[0].src[0].src
        parts = Parts(values, made.arg[1])
        return build.reshape(parts.summed(parts.squares_about(mean.src[0])), made.shape)


def match_deviation(node: UOp) -> Deviation | None:
    if node.op is not Ops.REDUCE_AXIS or node.arg[0] is not Ops.ADD or node.src[0].op is not Ops.MUL:
        return None
    distance, other = node.src[0].src
    if distance is not other or distance.op is not Ops.SUB or distance.src[1].op is not Ops.EXPAND:
        return None
    values, mean = distance.src[0], distance.src[1].src[0]
    if mean.op not in (Ops.FDIV, Ops.MUL) or not mean.src[1].is_const:
        return None
    total = mean.src[0]
    is_sum = total.op is Ops.REDUCE_AXIS and total.arg == node.arg and total.src[0] is values
    return Deviation(node, distance, total) if is_sum and not is_symbolic(values.shape) else None


def is_taken_in_parts(match: Deviation, is_read_again: bool, target: Target) -> bool:
    """Whether to take the sum in parts: a large one over the last axes, along memory. Not where the distances of many
    rows are read again and the last-level cache holds a row for each core: one kernel then reads the values from that
    cache."""
    values, axes = match.distance.src[0], match.squares.arg[1]
    shape, first = values.shape, min(axes)
    if contiguous_axis(values) != len(shape) - 1:
        return False
    results = max_count(shape[:first])
    size = max_count(shape) // max(results, 1)
    is_cached = is_read_again and 2 * size * values.dtype.itemsize * target.cores <= target.cache_bytes
    is_large = size >= LARGE_REDUCTION and (results <= FEW_RESULTS or not is_cached)
    is_last = all(axis in axes or shape[axis] == 1 for axis in range(first, len(shape)))
    return is_last and is_large and _flat(values, axes) is not None


def _flat(values: UOp, axes: tuple[int, ...]) -> UOp | None:
    """The values with the axes from the first of `axes` on as one."""
    last = len(values.shape) - 1
    return merge_axes(values, min(axes), last, {}) if min(axes) < last else values


@functools.lru_cache(256)
def part_length(size: int) -> int:
    """A divisor of the size, if possible one whose parts begin at whole vectors; else a length with which the last part
    is shorter."""
    lengths = [length for length in range(MIN_PART, MAX_PART + 1) if size % length == 0]
    return max(lengths, key=lambda length: (length % LANES == 0, length), default=MAX_PART // 2)


class Parts:
    """The values as (results, parts, elements of a part)."""

    def __init__(self, values: UOp, axes: tuple[int, ...]) -> None:
        flat = _flat(values, axes)
        assert flat is not None  # checked by `is_taken_in_parts`
        *outer, self.size = flat.shape
        self.length = part_length(self.size)
        self.count = -(-self.size // self.length)
        self.axis = len(outer)
        self.outer = tuple(outer)
        padding = self.count * self.length - self.size
        self.is_padded = padding > 0
        filled = build.pad(flat, (*((0, 0),) * self.axis, (0, padding)))
        self.values = build.reshape(filled, (*outer, self.count, self.length))
        self.totals = build.reduce_axis(Ops.ADD, self.values, (self.axis + 1,))

    def summed(self, partial: UOp) -> UOp:
        return build.reduce_axis(Ops.ADD, partial, (self.axis,))

    def squares_about(self, mean: UOp) -> UOp:
        """For each part the sum of squared distances from `mean`."""
        counts = self._counts()
        means = build.alu(Ops.FDIV, self.totals, counts)
        distance = build.alu(Ops.SUB, self.values, build.expand(means, self.values.shape))
        squares = build.alu(Ops.MUL, distance, distance)
        if self.is_padded:
            number, index = (build.axis_iota(squares.shape, axis) for axis in (self.axis, self.axis + 1))
            is_last = number.eq(self.count - 1)
            is_outside = is_last & (index < self.size - (self.count - 1) * self.length).logical_not()
            squares = build.where(is_outside, build.const(squares.dtype, 0), squares)
        # Stored: fused, they would wait for the common mean, and the values would be read again.
        own = build.contiguous(build.reduce_axis(Ops.ADD, squares, (self.axis + 1,)))
        common = build.expand(build.reshape(mean, (*self.outer, 1, 1)), means.shape)
        away = build.alu(Ops.SUB, means, common)
        return build.alu(Ops.ADD, own, build.alu(Ops.MUL, build.alu(Ops.MUL, away, away), counts))

    def _counts(self) -> UOp:
        """The elements of each part, as floats."""
        dtype, shape = self.totals.dtype, self.totals.shape
        if not self.is_padded:
            return build.const(dtype, self.length, shape)
        is_last = build.axis_iota(shape, self.axis).eq(self.count - 1)
        left = self.size - (self.count - 1) * self.length
        return build.where(is_last, build.const(dtype, left, shape), build.const(dtype, self.length, shape))

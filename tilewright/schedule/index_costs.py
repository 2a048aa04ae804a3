"""Estimated clocks of a float sum by index on a device with work-groups. In: the sizes of the sum and a target. Out: an
estimate for each method of `segments.py`, which takes the least.

The clocks of one access were measured on an H200 (docs/measurements/h200.md); the number of accesses follows from the
sizes and the facts of the target."""

from __future__ import annotations

from tilewright.base.costs import memory_clocks
from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.kernels.radix import MAX_WIDTH, is_by_digits
from tilewright.graph.kernels.sorting import merge_clocks

# Clocks of a core for a term with two atomic updates: to addresses adjacent to those of its neighbours, or to random
# ones.
_ADJACENT_CLOCKS, _RANDOM_CLOCKS = 2.0, 5.5
# The fewest columns with the same index for which the atomic updates of a warp count as adjacent.
_MIN_ADJACENT = 8
# Bytes moved: for an output that is filled, updated and read again; for one that is only written, with its bounds; for
# a term that is gathered and summed; for an index in one pass of a sort.
_ATOMIC_BYTES, _WRITTEN_BYTES, _TERM_BYTES, _SORTED_BYTES = 28, 12, 16, 24
# Bytes of an output of a float sum that atomic operations update, bytes of a term that both kernels read, and the most
# parts of the outputs.
_CELL_BYTES, _READ_BYTES, _MAX_PARTS = 12, 16, 8
# Bytes moved for a result, and for an output's position, which is filled, updated and read.
_RESULT_BYTES, _NAMED_BYTES = 4, 12
# Dependent kernels of a float sum by atomic operations, and of one at positions; of each pass of a radix sort; and of
# the sums.
_ATOMIC_KERNELS, _COMPACT_KERNELS = 4, 6
_PASS_KERNELS, _SUM_KERNELS = 7, 4


class Sizes(NamedTuple):
    """`outer * inner` elements of each of `terms` rows are summed into `outputs` rows; `inner` of them are adjacent."""

    outer: int
    terms: int
    inner: int
    outputs: int
    is_spread: bool  # every column has its own indices

    @property
    def columns(self) -> int:
        return self.outer * self.inner


def cache_parts(sizes: Sizes, target: Target, dtype: DType = dtypes.float32) -> int:
    """The number of parts into which the outputs of a reduction by atomic operations are divided, so that each part
    fits half of the last-level cache. One part where adjacent terms go to adjacent outputs, which gains nothing from
    parts."""
    if _is_adjacent(sizes):
        return 1
    cell = dtype.itemsize if dtype.is_int else _CELL_BYTES
    return min(_MAX_PARTS, -(-2 * sizes.outputs * sizes.inner * cell // target.cache_bytes))


def _is_adjacent(sizes: Sizes) -> bool:
    return not sizes.is_spread and sizes.inner >= _MIN_ADJACENT


def atomic_clocks(sizes: Sizes, target: Target) -> float:
    cells, values = sizes.outputs * sizes.columns, sizes.terms * sizes.columns
    per_term = _ADJACENT_CLOCKS if _is_adjacent(sizes) else _RANDOM_CLOCKS
    moved = cells * _ATOMIC_BYTES + (cache_parts(sizes, target) - 1) * values * _READ_BYTES
    computed = values * per_term / target.cores
    return _ATOMIC_KERNELS * target.launch_clocks + computed + memory_clocks(moved, target)


def integer_clocks(sizes: Sizes, target: Target) -> float:
    """Integers have one atomic update in place of two, and an output has its word alone."""
    word = dtypes.int32
    cells, values = sizes.outputs * sizes.columns, sizes.terms * sizes.columns
    per_term = (_ADJACENT_CLOCKS if _is_adjacent(sizes) else _RANDOM_CLOCKS) / 2
    read = cells + cache_parts(sizes, target, word) * values
    return 2 * target.launch_clocks + values * per_term / target.cores + memory_clocks(read * word.itemsize, target)


def compact_clocks(sizes: Sizes, target: Target) -> float:
    """The method that first finds the largest position of each output, then sums at these positions."""
    cells, values = sizes.outputs * sizes.columns, sizes.terms * sizes.columns
    named = sizes.columns if sizes.is_spread else 1
    per_term = _ADJACENT_CLOCKS if _is_adjacent(sizes) else _RANDOM_CLOCKS
    computed = (values * per_term + sizes.terms * named * _RANDOM_CLOCKS) / target.cores
    moved = cells * _RESULT_BYTES + sizes.outputs * named * _NAMED_BYTES + values * _ATOMIC_BYTES
    return _COMPACT_KERNELS * target.launch_clocks + computed + memory_clocks(moved, target)


def segment_clocks(sizes: Sizes, target: Target, max_direct: int) -> float:
    cells, values = sizes.outputs * sizes.columns, sizes.terms * sizes.columns
    sorted_terms = values if sizes.is_spread else sizes.terms
    bits = (sizes.outputs * (sizes.columns if sizes.is_spread else 1)).bit_length()
    passes = -(-bits // MAX_WIDTH)
    launches = _SUM_KERNELS
    moved, sorting = cells * _WRITTEN_BYTES + values * _TERM_BYTES, 0.0
    if sizes.is_spread or sizes.terms > max_direct:
        if is_by_digits((1, sorted_terms), dtypes.int32, bits, target):
            launches += _PASS_KERNELS * passes
            moved += passes * sorted_terms * _SORTED_BYTES
        else:
            sorting = merge_clocks((1, sorted_terms), dtypes.int32, target)
    return launches * target.launch_clocks + sorting + memory_clocks(moved, target)


def local_clocks(clocks: float, target: Target) -> float:
    return clocks + target.launch_clocks


def partition_clocks(clocks: float, target: Target) -> float:
    """One kernel orders the terms, another sums them; others store the indices and read the results."""
    return clocks + 2 * target.launch_clocks


def transposed_clocks(sizes: Sizes, itemsize: int, target: Target) -> float:
    """A copy of the values with the terms of a column adjacent. Another kernel stores the indices, in any order, and
    another reads the results."""
    return target.launch_clocks + memory_clocks(2 * sizes.terms * sizes.columns * itemsize, target)

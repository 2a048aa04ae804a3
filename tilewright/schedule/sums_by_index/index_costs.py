"""Estimated clocks of a float sum by index on a device with work-groups. In: the sizes of the sum and a target. Out: an
estimate for each method of `segments.py`, which takes the least.

The clocks of one access were measured on an H200 (docs/measurements/h200.md); the number of accesses follows from the
sizes and the facts of the target."""

from __future__ import annotations

from tilewright.base.costs import memory_clocks
from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.kernels.sorting.radix import MAX_WIDTH, is_by_digits
from tilewright.graph.kernels.sorting.sorting import merge_clocks

# Clocks of a core for a term with two atomic updates: to addresses adjacent to those of its neighbours, or to random
# ones.
_ADJACENT_CLOCKS, _RANDOM_CLOCKS = 2.0, 5.5
# Clocks between two atomic updates of one address. With random ones of n addresses, n to the power of _SPREADING are
# done at a time.
_SERIAL_CLOCKS, _SPREADING = 3.5, 0.45
# The same in local memory, where fixed point takes several updates for a term: times of an update in memory.
_LOCAL_WAITING = 4.0
# The fewest columns with the same index for which the atomic updates of a warp count as adjacent.
_MIN_ADJACENT = 8
# Bytes moved: for an output that is filled, updated and read again; for one that is only written, with its bounds; for
# a term that is gathered and summed; for an index in one pass of a sort.
_ATOMIC_BYTES, _WRITTEN_BYTES, _TERM_BYTES, _SORTED_BYTES = 28, 12, 16, 24
# Bytes of an output of a float sum that atomic operations update, bytes of a term that both kernels read, and the most
# parts of the outputs.
FIXED_POINT_BYTES, _READ_BYTES, _MAX_PARTS = 12, 16, 8
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


def cache_parts(sizes: Sizes, target: Target, cell_bytes: int = FIXED_POINT_BYTES) -> int:
    """The number of parts into which the outputs of a reduction by atomic operations are divided, so that each part,
    with `cell_bytes` for an output, fits half of the last-level cache. One part where adjacent terms go to adjacent
    outputs, which gains nothing from parts."""
    if _is_adjacent(sizes):
        return 1
    return min(_MAX_PARTS, -(-2 * sizes.outputs * sizes.inner * cell_bytes // target.cache_bytes))


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
    read = cells + cache_parts(sizes, target, word.itemsize) * values
    return 2 * target.launch_clocks + values * per_term / target.cores + memory_clocks(read * word.itemsize, target)


def float_clocks(sizes: Sizes, target: Target) -> float:
    """One atomic addition for each term, in any order, after a kernel that writes what the outputs begin with."""
    word = dtypes.float32.itemsize
    cells, values = sizes.outputs * sizes.columns, sizes.terms * sizes.columns
    adjacent = 1 if sizes.is_spread else min(sizes.inner, _MIN_ADJACENT)
    per_term = max(_ADJACENT_CLOCKS, _RANDOM_CLOCKS / adjacent) / 2
    computed = max(values * per_term / target.cores, waiting_clocks(sizes, target))
    moved = 2 * cells * word + (cache_parts(sizes, target, word) - 1) * values * _READ_BYTES
    return 2 * target.launch_clocks + computed + memory_clocks(moved, target)


def waiting_clocks(sizes: Sizes, target: Target) -> float:
    """The clocks of one atomic update for each term where terms are many beside outputs, and updates wait for each
    other. Adjacent columns of a warp are updated together."""
    together = 1 if sizes.is_spread else min(sizes.inner, target.warp_size)
    updates = sizes.terms * sizes.columns / together
    at_once: float = (sizes.outputs * sizes.columns / together) ** _SPREADING
    return updates * _SERIAL_CLOCKS / at_once


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


def local_clocks(clocks: float, target: Target, waiting: float = 0.0) -> float:
    """`waiting` is that of one atomic update in memory for each term."""
    return max(clocks, _LOCAL_WAITING * waiting) + target.launch_clocks


def partition_clocks(clocks: float, target: Target) -> float:
    """One kernel orders the terms, another sums them; others store the indices and read the results."""
    return clocks + 2 * target.launch_clocks


def transposed_clocks(sizes: Sizes, itemsize: int, target: Target) -> float:
    """A copy of the values with the terms of a column adjacent. Another kernel stores the indices, in any order, and
    another reads the results."""
    return target.launch_clocks + memory_clocks(2 * sizes.terms * sizes.columns * itemsize, target)

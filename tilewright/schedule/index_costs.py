"""What a float sum by index costs on a device with work-groups, in clocks of all cores. In: the sizes of the sum and a
target. Out: estimates for the ways of `segments.py`, of which the least is taken.

The clocks of one access were measured on an H200 (docs/measurements/h200.md); what they are multiplied by follows from
the sizes and the facts of the target."""

from __future__ import annotations

from tilewright.base.costs import memory_clocks
from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.kernels.radix import MAX_WIDTH, is_by_digits
from tilewright.graph.kernels.sorting import merge_clocks

# Clocks of a core for a term that is combined atomically in memory, twice: beside its neighbours, or in any order.
_ADJACENT_CLOCKS, _RANDOM_CLOCKS = 2.0, 5.5
# Columns of a row that share an index from which on atomic operations of a warp are adjacent.
_MIN_ADJACENT = 8
# Bytes of an output that are filled, combined and read again; of one that is only written, with its bounds; of a term
# that is gathered and summed; of an index in one pass of a sort.
_ATOMIC_BYTES, _WRITTEN_BYTES, _TERM_BYTES, _SORTED_BYTES = 28, 12, 16, 24
# Bytes of an output that atomic operations combine, and of a term that both of their kernels read; the parts of the
# outputs at most.
_CELL_BYTES, _READ_BYTES, _MAX_PARTS = 12, 16, 8
# Bytes of a result; and of an output's position, which is filled, combined and read.
_RESULT_BYTES, _NAMED_BYTES = 4, 12
# Kernels of a float sum by atomic operations, and at positions, one after the other; of each pass of a sort by digits;
# of the sums.
_ATOMIC_KERNELS, _COMPACT_KERNELS = 4, 6
_PASS_KERNELS, _SUM_KERNELS = 7, 4


class Sizes(NamedTuple):
    """`outer * inner` elements of each of `terms` rows are summed into `outputs` rows; `inner` of them are adjacent."""

    outer: int
    terms: int
    inner: int
    outputs: int
    is_spread: bool  # every column has indices of its own

    @property
    def columns(self) -> int:
        return self.outer * self.inner


def cache_parts(sizes: Sizes, target: Target) -> int:
    """In how many parts the outputs of a sum by atomic operations are taken, so that half of the last-level cache holds
    each of them. Terms whose neighbours go to neighbouring outputs gain nothing by it."""
    if _is_adjacent(sizes):
        return 1
    return min(_MAX_PARTS, -(-2 * sizes.outputs * sizes.inner * _CELL_BYTES // target.cache_bytes))


def _is_adjacent(sizes: Sizes) -> bool:
    return not sizes.is_spread and sizes.inner >= _MIN_ADJACENT


def atomic_clocks(sizes: Sizes, target: Target) -> float:
    cells, values = sizes.outputs * sizes.columns, sizes.terms * sizes.columns
    per_term = _ADJACENT_CLOCKS if _is_adjacent(sizes) else _RANDOM_CLOCKS
    moved = cells * _ATOMIC_BYTES + (cache_parts(sizes, target) - 1) * values * _READ_BYTES
    computed = values * per_term / target.cores
    return _ATOMIC_KERNELS * target.launch_clocks + computed + memory_clocks(moved, target)


def compact_clocks(sizes: Sizes, target: Target) -> float:
    """The largest position of each output is found first, then all sums are made at positions."""
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


def transposed_clocks(sizes: Sizes, itemsize: int, target: Target) -> float:
    """A copy of the values with the terms of a column adjacent. Another kernel stores the indices, in any order, and
    another reads the results."""
    return target.launch_clocks + memory_clocks(2 * sizes.terms * sizes.columns * itemsize, target)

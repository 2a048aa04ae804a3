"""How long work takes. In: amounts of work, and a target. Out: clocks while all its cores work, or seconds, made from
the facts of the target. The scheduler decides by them what to store and what to split, and the kernel stage which plan
a kernel gets."""

from __future__ import annotations

from tilewright.base.target import Target

# The cost of storing a value and loading it again, in additions: through memory, and through a near cache. And of a
# factor of a contraction that is computed in the innermost loop: without a register tile it takes several times as long
# as its loads. Measured with elementwise chains on two cores with AVX-512.
MEMORY_ADDITIONS = 40.0
LOAD_ADDITIONS = MEMORY_ADDITIONS / 3  # of a load alone: a store reads the line that it changes, and writes it back
CACHE_ADDITIONS = 8.0
FACTOR_ADDITIONS = 4.0
# Clocks of a core to stage an element in parts that is loaded on its own, in place of a vector: while another
# work-group computes, and where there is none. Measured on an H200, relative to products of float32 by FMA.
SINGLE_PART_CLOCKS, LONE_PART_CLOCKS = 0.25, 0.4


def seconds_of(clocks: float, target: Target) -> float:
    return clocks / target.clock_hz


def memory_clocks(nbytes: float, target: Target, cores: int | None = None) -> float:
    """The clocks in which all cores together, or as many as are given, read or write this many bytes of memory."""
    return nbytes / ((cores or target.cores) * target.memory_bytes_per_clock)


def cache_clocks(nbytes: float, target: Target) -> float:
    """As `memory_clocks`, of the last-level cache."""
    return nbytes / (target.cores * target.core_bytes_per_clock)


def product_clocks(products: float, lanes: int, target: Target, cores: int | None = None) -> float:
    """The clocks in which all cores together, or as many as are given, do this many multiply-adds, in vectors of
    `lanes` elements."""
    return products / ((cores or target.cores) * lanes * target.products_per_clock)

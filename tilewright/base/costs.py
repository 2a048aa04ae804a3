"""How long work takes. In: amounts of work, and a target. Out: clocks while all its cores work, or seconds, made from
the facts of the target. What the scheduler stores or splits and which plan a kernel gets are decided by these."""

from __future__ import annotations

from tilewright.base.target import Target

# Additions that take as long as storing a value and loading it again: from memory, and from a near cache. A factor of a
# contraction that is computed in the innermost loop has no register tile, which takes several times as long as its
# loads. Measured with elementwise chains on two cores with AVX-512.
MEMORY_ADDITIONS = 40.0
CACHE_ADDITIONS = 8.0
FACTOR_ADDITIONS = 4.0


def seconds_of(clocks: float, target: Target) -> float:
    return clocks / target.clock_hz


def memory_clocks(nbytes: float, target: Target) -> float:
    """All cores read or write this many bytes of memory together."""
    return nbytes / (target.cores * target.memory_bytes_per_clock)


def cache_clocks(nbytes: float, target: Target) -> float:
    """The same of the last-level cache."""
    return nbytes / (target.cores * target.core_bytes_per_clock)


def product_clocks(products: float, lanes: int, target: Target) -> float:
    """All cores multiply and add vectors of `lanes` elements in registers."""
    return products / (target.cores * lanes * target.products_per_clock)

"""Rotary embeddings stretched to contexts longer than a model was trained on. In: the parameters of the stretching.
Out: a divisor for each frequency. Positions are not changed, so that all positions share one table."""

from __future__ import annotations

import math


def linear_factors(pairs: int, factor: float) -> tuple[float, ...]:
    """All frequencies divided by the same factor."""
    return (factor,) * pairs


def llama3_factors(
    base: float, pairs: int, factor: float, low: float, high: float, trained_context: int
) -> tuple[float, ...]:
    """Pairs that rotate less than `low` times in the trained context have their frequency divided by `factor`, those
    that rotate more than `high` times keep it, those between them are interpolated."""
    found = []
    for pair in range(pairs):
        turns = trained_context * base ** (-pair / pairs) / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0) if high != low else float(turns >= high)
        found.append(1 / ((1 - kept) / factor + kept))
    return tuple(found)


def yarn_factors(
    base: float, pairs: int, factor: float, fast: float, slow: float, trained_context: int, truncate: bool = True
) -> tuple[float, ...]:
    """As `llama3_factors`, with an interpolation that is linear in the number of the pair, between the pairs that
    rotate `fast` and `slow` times in the trained context."""

    def pair_of(turns: float) -> float:
        return pairs * math.log(trained_context / (turns * 2 * math.pi)) / math.log(base)

    first, last = pair_of(fast), pair_of(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = last - first or 0.001
    found = []
    for pair in range(pairs):
        divided = min(max((pair - first) / width, 0.0), 1.0)
        found.append(1 / (divided / factor + (1 - divided)))
    return tuple(found)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """The factor of queries and keys in YaRN."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

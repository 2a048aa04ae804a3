"""How exact functions of float32 are, in units in the last place: over numbers of all sizes, densely where they bend,
at both zeros and at the least numbers; and their slopes, which come from the same polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor

ERF = np.vectorize(math.erf, otypes=[np.float64])
# The function, its slope, and the greatest error in units in the last place.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], float]] = {
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2, 1.6),
    "erf": (ERF, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), 1.1),
    "atan": (np.arctan, lambda x: 1 / (1 + x * x), 1.35),
    "sin": (np.sin, np.cos, 1.6),
    "cos": (np.cos, lambda x: -np.sin(x), 1.6),
}


def numbers() -> Any:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 1 << 32, 40_000, dtype=np.uint32).view(np.float32)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-38, -1e-38, 3e38]
    edges = np.array([1.0, 0.625, 0.66, 2.414, 4.0, 20.0, 99.0], np.float32)
    beside = [np.nextafter(edges, np.float32(end)) for end in (0, math.inf)]
    dense = np.concatenate([rng.uniform(-5, 5, 60_000), rng.uniform(-200, 200, 20_000), special]).astype(np.float32)
    return np.concatenate([patterns, dense, *beside, *(-found for found in beside)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    reference, _, limit = FUNCTIONS[name]
    given = numbers()
    found = getattr(Tensor(given), name)().numpy()
    with np.errstate(invalid="ignore"):
        expected = reference(given.astype(np.float64))
    assert (np.isnan(found) == np.isnan(expected)).all()
    is_number = ~np.isnan(expected)
    given, found, expected = given[is_number], found[is_number], expected[is_number]
    unit = np.ldexp(1.0, np.maximum(np.frexp(expected)[1] - 1, -126) - 23)
    errors = np.abs(found - expected) / unit
    assert errors.max() <= limit, given[errors.argmax()]
    is_zero = expected == 0
    assert (np.signbit(found[is_zero]) == np.signbit(expected[is_zero])).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_slopes(name: str) -> None:
    given = np.linspace(-8, 8, 40_001).astype(np.float32)
    x = Tensor(given)
    (found,) = getattr(x, name)().sum().gradient(x)
    np.testing.assert_allclose(found.numpy(), FUNCTIONS[name][1](given.astype(np.float64)), rtol=0, atol=4e-7)

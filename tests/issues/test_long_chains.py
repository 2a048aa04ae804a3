"""Chains of more operations than Python has stack frames, with a reduction at their end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright import Tensor

LENGTH = 2500

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(),
    "rows": lambda x: x.sum(-1),
    "columns": lambda x: x.permute(1, 0, 2).sum((0, 1)),
    "variance": lambda x: x.var((0, 1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_after_a_long_chain(name: str) -> None:
    """The search for the axes that a reduction may merge was recursive: RecursionError."""
    array = np.random.default_rng(6).integers(-3, 4, (20, 50, 100)).astype(np.float32)
    given = Tensor(array)
    x = given
    for _ in range(LENGTH):
        x = x + given
    expected = REDUCTIONS[name](Tensor(array * (LENGTH + 1))).numpy()
    np.testing.assert_allclose(REDUCTIONS[name](x).numpy(), expected, rtol=1e-4, atol=1)

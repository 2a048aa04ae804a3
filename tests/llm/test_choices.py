"""The largest of few elements: as `topk` and `gather` have it, in one kernel on a card."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor
from tilewright.llm.network.choices import MAX_ROW, largest


@pytest.mark.parametrize(("size", "k"), [(1, 1), (5, 5), (64, 4), (MAX_ROW + 1, 2)])
def test_positions_numbers_and_gradients(size: int, k: int) -> None:
    """Ties, infinities, zeros of both signs, and NaN: every row has k positions, all different."""
    rng = np.random.default_rng(size)
    preference = rng.choice(np.array([-np.inf, -2, -1, 0, 1, np.inf], np.float32), (4, size))
    preference[3] = np.nan
    preference[2, ::3] = -0.0
    numbers = rng.standard_normal((4, size)).astype(np.float32)
    wanted = Tensor(preference).topk(k).indices.numpy()
    expected = np.take_along_axis(numbers, wanted, 1)
    slope = np.zeros_like(numbers)
    np.put_along_axis(slope, wanted, 2 * expected, 1)
    with emulated_card() as card:
        given = Tensor(numbers, device=NAME, requires_grad=True)
        positions, found = largest(Tensor(preference, device=NAME), given, k)
        (gradient,) = found.square().sum().gradient(given)
        np.testing.assert_array_equal(positions.numpy(), wanted)
        np.testing.assert_array_equal(found.numpy(), expected)
        np.testing.assert_array_equal(gradient.numpy(), slope)
        names = [program.name for program in card.programs]
        assert (size <= MAX_ROW) == any("pick_largest" in name for name in names), names

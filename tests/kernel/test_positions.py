"""The positions of true elements on a CPU: one serial loop, whose kernel does not depend on how many there are."""

from __future__ import annotations

import numpy as np
import pytest

from tests.issues.test_cpu_cliffs import kernels_of
from tilewright import GlobalCounters, Tensor
from tilewright.graph.kernels.scans.positions import BLOCK, positions
from tilewright.tensor.primitives.index_nodes import MIN_SERIAL


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
@pytest.mark.parametrize("size", [1, BLOCK, 2 * BLOCK + 5])
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_positions_come_in_order_then_the_length_and_the_count(size: int, density: float, device: str) -> None:
    mask = np.random.default_rng(size).random(size) < density
    found = Tensor._from_uop(positions(Tensor(mask, device=device).realize().uop), device).numpy()
    expected = np.flatnonzero(mask)
    np.testing.assert_array_equal(found[: len(expected)], expected)
    np.testing.assert_array_equal(found[len(expected) : size], size)
    assert found[size:].tolist() == [len(expected)]


def test_elements_of_a_long_row_are_selected_in_few_kernels() -> None:
    """A million elements took 17 kernels and three times as long as torch's: counts before each element in powers of
    16, and a search for each selected one."""
    values = np.random.default_rng(2).standard_normal((3, MIN_SERIAL)).astype(np.float32)
    x = Tensor(values).realize()
    before = GlobalCounters.kernel_count
    selected = x.masked_select(x > 1)
    assert len(kernels_of(selected)) == 1  # the positions are found and counted
    assert GlobalCounters.kernel_count == before + 2
    np.testing.assert_array_equal(selected.numpy(), values[values > 1])
    np.testing.assert_array_equal((x > 1).nonzero().numpy(), np.argwhere(values > 1))
    np.testing.assert_array_equal((x > 3).nonzero(size=200).numpy()[: (values > 3).sum()], np.argwhere(values > 3))

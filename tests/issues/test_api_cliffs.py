"""Operations outside the families of `bench/sweep.py` that took far longer than torch's on the CPU: what their kernels
look like, and their values beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import GlobalCounters, Tensor
from tilewright.graph.kernels.serial_sort import order_of_rows
from tilewright.tensor.families.statistics import MAX_COMPARED


def test_a_stored_constant_is_written_once() -> None:
    """`full(...).contiguous()` had been stored in a temporary and copied."""
    constant = Tensor.full((40, 25), 3.5).contiguous()
    before = GlobalCounters.kernel_count
    assert constant.tolist() == [[3.5] * 25] * 40
    assert GlobalCounters.kernel_count == before + 1


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
def test_rows_of_long_integers_are_sorted_by_both_halves(device: str) -> None:
    """Rows whose upper halves are all alike are sorted by the lower ones, rows of either kind in one tensor."""
    rng = np.random.default_rng(4)
    small, wide = rng.integers(-40, 40, 70), rng.integers(-(1 << 62), 1 << 62, 70)
    rows = np.stack([np.abs(small), small, wide, wide >> 40, np.full(70, 1 << 33), wide & 7 | 1 << 60])
    found = Tensor._from_uop(order_of_rows(Tensor(rows, device=device).realize().uop), device).numpy()
    np.testing.assert_array_equal(found, np.argsort(rows, axis=1, kind="stable"))


@pytest.mark.parametrize("count", [MAX_COMPARED, MAX_COMPARED + 1])
def test_many_elements_are_looked_for_in_a_sorted_row(count: int) -> None:
    rng = np.random.default_rng(count)
    x = rng.standard_normal((7, 9)).round(1).astype(np.float32)
    x[2] = np.nan
    elements = rng.standard_normal(count).round(1).astype(np.float32)
    elements[3] = np.nan
    np.testing.assert_array_equal(Tensor(x).isin(Tensor(elements)).numpy(), np.isin(x, elements))
    assert Tensor([1, 2]).isin(Tensor(np.arange(2, 2 + count))).tolist() == [False, True]

"""Sums of three integers, in vectors of four results: lanes are added up pairwise where they are a power of two."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Context, Tensor


@pytest.mark.parametrize("rows", [3, 5, 6, 7])
def test_sorted_columns_of_several_lengths(rows: int) -> None:
    """The third length has a kernel of any length, which takes four columns at a time."""
    for columns in (16, 32, 5, 7, 31, 9, 11):
        values = np.arange(rows * columns, dtype=np.int32)[::-1].reshape(rows, columns).copy()
        with Context(VERIFY_GRAPH=0, VERIFY=0):
            found = Tensor(values).sort(0)[0].numpy()
        assert np.array_equal(found, np.sort(values, 0)), columns

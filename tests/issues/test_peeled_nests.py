"""A reduction of the rows of a padded array, of which only the last reaches into the padding: its last row was peeled
off, with a second nest of the loop along the rows, for which no order of loops was found."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.dtype import dtypes


@pytest.mark.parametrize("padding", [1, 3, 5])
@pytest.mark.parametrize("columns", [32, 33])
def test_a_minimum_of_minima_of_padded_rows(columns: int, padding: int) -> None:
    given = np.random.default_rng(columns).standard_normal(8 * columns - padding).astype(np.float16)
    x = Tensor(given, device="CPU").realize()
    found = x.pad((0, padding), value=9).reshape(8, columns).min(1).min(0)
    assert found.dtype is dtypes.float16
    assert found.item() == given.min()

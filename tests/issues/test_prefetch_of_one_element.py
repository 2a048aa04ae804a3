"""A loop that reads one element of a large buffer again and again: no row of it is prefetched."""

from __future__ import annotations

import numpy as np

from tilewright import Tensor


def test_a_sum_of_elements_at_a_distance() -> None:
    values = np.ones((7, 76, 8191), np.float32)
    assert (Tensor(values).permute(2, 1, 0).sum(1).numpy() == 76).all()

"""Counted integers as floats, compared with numbers that no index represents: the constant wrapped to 0."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.dtype import dtypes


@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("constant", [3e38, -3e38, 2.0**64, -(2.0**64), 4.0, 3.0, 0.0, -1.0])
def test_an_arange_is_compared_with_any_float(compare: Callable[..., Tensor], constant: float) -> None:
    found = compare(Tensor.arange(4, device="CPU").cast(dtypes.float32), constant).numpy()
    np.testing.assert_array_equal(found, compare(np.arange(4, dtype=np.float32), np.float32(constant)))

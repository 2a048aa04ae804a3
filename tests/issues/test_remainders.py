"""Remainders of floats were x - trunc(x/y)*y: about 0 or less than 0 where the quotient is nearly whole
(`fmod(1.0, 0.1)`), and beyond the divisor where it is large (`1e9 % 0.1`). `1.0 // 0.1` was 10, and the floor of the
rounded quotient in general."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tilewright import Tensor

LARGE = np.array([1e20, 1e9, -1e15, 7.25], np.float32)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize(("dtype", "digits"), [("float16", 11), ("float32", 24), ("float64", 53)])
def test_remainders_and_quotients_are_exact(dtype: str, digits: int, device: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.uniform(0.1, 9, 200).round(1).astype(dtype)
    x = (y * rng.integers(-999, 999, 200)).astype(dtype)
    x[:100] = np.exp2(rng.uniform(0, 14, 100))
    y[:50] = -np.exp2(rng.uniform(-14, 0, 50))
    dividend, divisor = Tensor(x, device=device), Tensor(y, device=device)
    found = (dividend.fmod(divisor).tolist(), (dividend % divisor).tolist(), (dividend // divisor).tolist())
    for top, bottom, same_sign, remainder, quotient in zip(x.tolist(), y.tolist(), *found):
        exact = Fraction(top) / Fraction(bottom)
        assert same_sign == Fraction(top) - math.trunc(exact) * Fraction(bottom)
        assert remainder == np.dtype(dtype).type(Fraction(top) - math.floor(exact) * Fraction(bottom))
        if abs(exact) < 2**digits:
            assert quotient == np.dtype(dtype).type(math.floor(exact))


def test_special_values() -> None:
    x = Tensor([1.0, -1.0, -0.0, math.inf, 1.0, -4.0, 5.0])
    y = Tensor([-math.inf, math.inf, 3.0, 2.0, 0.0, 2.0, -2.5])
    np.testing.assert_array_equal((x // y).tolist(), [0, 0, 0, math.inf, math.inf, -2, -2])
    np.testing.assert_array_equal((x % y).tolist(), [-math.inf, math.inf, 0, math.nan, math.nan, 0, 0])
    np.testing.assert_array_equal(x.fmod(y).tolist(), [1, -1, 0, math.nan, math.nan, 0, 0])
    assert np.signbit(x.fmod(y).numpy()).tolist() == [False, True, True, False, False, True, False]
    assert np.signbit((x % y).numpy())[[2, 5, 6]].tolist() == [False, False, True]
    assert (Tensor(LARGE) % 0.3).tolist() == [float(each) for each in LARGE % np.float32(0.3)]
    assert (Tensor([1e30]) % 1e-30).isnan().item()
    assert (Tensor([1e38, -7.25]) % 0.5).tolist() == [0.0, 0.25]
    assert (Tensor([7.0, -7.0]) % -2.0).tolist() == [-1.0, -1.0]


def test_slopes() -> None:
    x, y = Tensor([7.0, -7.0, 6.0]), Tensor([2.5, 2.5, 3.0])
    assert [each.tolist() for each in (x % y).sum().gradient(x, y)] == [[1, 1, 1], [-2, 3, -2]]
    assert [each.tolist() for each in x.fmod(y).sum().gradient(x, y)] == [[1, 1, 1], [-2, 2, -2]]
    assert [each.tolist() for each in (x // y).sum().gradient(x, y)] == [[0, 0, 0], [0, 0, 0]]

"""Triangular matrices that are solved and factorised in halves, against NumPy and against one kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.tensor.matrices import launch

SIZES = [launch.MAX_WHOLE, launch.MAX_WHOLE + 1, 2 * launch.MAX_WHOLE + 1, 100]


def definite(size: int, batch: int = 2) -> np.ndarray:
    x = np.random.default_rng(size).standard_normal((batch, size, size))
    return x @ x.transpose(0, 2, 1) + size * np.eye(size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("upper", [False, True])
def test_factors_and_their_gradients_are_those_of_one_kernel(
    size: int, upper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, upstream = definite(size), np.random.default_rng(1).standard_normal((2, size, size))
    found = []
    for most in (launch.MAX_WHOLE, size):
        monkeypatch.setattr(launch, "MAX_WHOLE", most)
        x = Tensor(matrix, requires_grad=True)
        factor = x.cholesky(upper=upper)
        (gradient,) = (factor * Tensor(upstream)).sum().gradient(x)
        found.append((factor.numpy(), gradient.numpy()))
    expected = np.linalg.cholesky(matrix)
    np.testing.assert_allclose(found[0][0], expected.transpose(0, 2, 1) if upper else expected, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_solutions_and_their_gradients(size: int, upper: bool, unit: bool) -> None:
    """The other triangle is not read, nor the diagonal where it is 1."""
    random = np.random.default_rng(size)
    matrix = random.standard_normal((2, size, size)) / size + np.eye(size) * 2
    right = random.standard_normal((2, size, 3))
    plain = np.triu(matrix) if upper else np.tril(matrix)
    if unit:
        plain = plain - plain * np.eye(size) + np.eye(size)
        matrix = matrix * (1 - np.eye(size)) + np.where(np.eye(size), np.nan, 0)
    hidden = np.where(np.tri(size, k=-1).T if not upper else np.tri(size, k=-1), np.nan, matrix)
    x, y = Tensor(hidden, requires_grad=True), Tensor(right, requires_grad=True)
    found = x.solve_triangular(y, upper=upper, unitriangular=unit)
    np.testing.assert_allclose(found.numpy(), np.linalg.solve(plain, right), rtol=1e-10, atol=1e-10)
    upstream = random.standard_normal(right.shape)
    of_matrix, of_right = (found * Tensor(upstream)).sum().gradient(x, y)
    expected = np.linalg.solve(plain.transpose(0, 2, 1), upstream)
    np.testing.assert_allclose(of_right.numpy(), expected, rtol=1e-10, atol=1e-10)
    whole = -expected @ found.numpy().transpose(0, 2, 1)
    kept = np.triu(whole, int(unit)) if upper else np.tril(whole, -int(unit))
    np.testing.assert_allclose(of_matrix.numpy(), kept, rtol=1e-9, atol=1e-9)


def test_the_factor_is_nan_from_the_first_row_that_is_not_definite() -> None:
    size, wrong = 60, 40
    matrix = definite(size, 1)[0]
    matrix[wrong, wrong] = -1.0
    found = Tensor(matrix).cholesky().numpy()
    np.testing.assert_allclose(
        found[:wrong, :wrong], np.linalg.cholesky(matrix[:wrong, :wrong]), rtol=1e-11, atol=1e-11
    )
    assert np.isnan(np.diag(found)[wrong:]).all()
    assert (np.triu(found, 1)[:wrong] == 0).all()

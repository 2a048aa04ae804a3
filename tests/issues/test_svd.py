"""SVD of 200 x 200 took 6.2 s, in thousands of kernels, with an error of 5e-4. Now it is a handful of kernels with
serial loops inside; their number does not depend on the size of the matrix."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Tensor

SIZE = 200


def test_it_is_a_handful_of_kernels() -> None:
    counts = []
    for size in (20, SIZE):
        u, s, vt = Tensor(np.zeros((size, size), np.float32)).svd()
        counts.append(len(u.schedule(s, vt)))
    assert counts[0] == counts[1]
    assert counts[1] < 12


@pytest.mark.parametrize("seed", range(2))
def test_its_error_is_that_of_lapack(seed: int) -> None:
    matrix = np.random.default_rng(seed).standard_normal((SIZE, SIZE)).astype(np.float32)
    u, s, vt = (each.numpy() for each in Tensor(matrix).svd())
    assert np.abs((u * s) @ vt - matrix).max() < 2e-5
    assert np.abs(s - np.linalg.svd(matrix.astype(np.float64), compute_uv=False)).max() < 1e-4
    for factor in (u, vt):
        assert np.abs(factor @ factor.T - np.eye(SIZE)).max() < 1e-5


def test_the_step_of_one_matrix_does_not_depend_on_the_others() -> None:
    matrices = np.random.default_rng(3).standard_normal((5, 9, 9))
    together = Tensor(matrices).svdvals().numpy()
    alone = [Tensor(matrix).svdvals().numpy() for matrix in matrices]
    np.testing.assert_array_equal(together, alone)

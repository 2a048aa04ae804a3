"""Windows of pools: which of several NaN is taken, windows that are larger than the padded input or all padding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright import Tensor
from tilewright.base.errors import ShapeError

Array = NDArray[np.float32]


def chosen(x: Array, size: int) -> tuple[Array, NDArray[np.int64]]:
    """The maximum of each window of a square kernel, compared one element after another, and its flat position."""
    height, width = x.shape
    outputs = (height - size + 1, width - size + 1)
    values, positions = np.zeros(outputs, np.float32), np.zeros(outputs, np.int64)
    for row, column in itertools.product(*map(range, outputs)):
        best, position = -np.inf, row * width + column
        for i, j in itertools.product(range(row, row + size), range(column, column + size)):
            if x[i, j] > best or np.isnan(x[i, j]):
                best, position = x[i, j], i * width + j
        values[row, column], positions[row, column] = best, position
    return values, positions


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_the_last_of_several_nan_is_taken_in_windows_of_all_sizes(size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.integers(-3, 4, (9, 8)).astype(np.float32)
    x[rng.random(x.shape) < 0.15] = np.nan
    values, positions = chosen(x, size)
    tensor = Tensor(x.reshape(1, 1, 9, 8), requires_grad=True)
    found, indices = tensor.max_pool2d(size, 1, return_indices=True)
    np.testing.assert_array_equal(found.numpy()[0, 0], values)
    np.testing.assert_array_equal(indices.numpy()[0, 0], positions)
    upstream = np.arange(values.size, dtype=np.float32).reshape(1, 1, *values.shape) + 1
    gradient = tensor.max_pool2d(size, 1).gradient(tensor, gradient=Tensor(upstream))[0].numpy()
    expected = np.zeros(x.size, np.float32)
    np.add.at(expected, positions.ravel(), upstream.ravel())
    np.testing.assert_array_equal(gradient.ravel(), expected)


def test_a_window_that_ceil_mode_completes_may_be_larger_than_the_input() -> None:
    x = Tensor(np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2))
    assert x.max_pool2d(3, 2, ceil_mode=True).tolist() == [[[[3.0]]]]
    assert x.avg_pool2d(3, 2, ceil_mode=True).tolist() == [[[[1.5]]]]
    with pytest.raises(ShapeError, match="larger than the padded input of 2"):
        x.max_pool2d(3, 2)
    with pytest.raises(ShapeError, match="larger than the padded input of 2"):
        x.max_pool2d(4, 1, ceil_mode=True)  # the last window would start before the input


def test_a_window_of_padding_has_no_gradient() -> None:
    x = Tensor(np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3), requires_grad=True)
    found = x.max_pool2d(2, 1, dilation=4, padding=1)
    assert found.tolist() == [[[[-np.inf]]]]
    assert found.sum().gradient(x)[0].numpy().any() == np.False_


@pytest.mark.torch
def test_random_pools_beside_torch() -> None:
    import torch

    rng = np.random.default_rng(60)
    for _ in range(60):
        kernel, stride, dilation = ([int(n) for n in rng.integers(1, top, 2)] for top in (8, 5, 3))
        padding = [int(rng.integers(0, size // 2 + 1)) for size in kernel]
        ceil_mode = bool(rng.integers(2))
        x = rng.integers(-3, 4, (1, 2, *rng.integers(1, 14, 2))).astype(np.float32)
        x[rng.random(x.shape) < 0.15] = np.nan
        x[rng.random(x.shape) < 0.2] = -np.inf
        theirs, ours = torch.tensor(x, requires_grad=True), Tensor(x, requires_grad=True)
        settings = {"padding": padding, "dilation": dilation, "ceil_mode": ceil_mode, "return_indices": True}
        told = f"{x.shape} {kernel} {stride} {settings}"
        try:
            wanted, positions = torch.nn.functional.max_pool2d(theirs, kernel, stride, **settings)
        except RuntimeError:
            with pytest.raises(ShapeError):
                ours.max_pool2d(kernel, stride, **settings)
            continue
        found, indices = ours.max_pool2d(kernel, stride, **settings)
        np.testing.assert_array_equal(found.numpy(), wanted.detach().numpy(), told)
        zeros = torch.nn.functional.max_pool2d(torch.zeros_like(theirs), kernel, stride, **settings)[0]
        if bool(zeros.isinf().any()):
            continue  # a window of padding has no position, and torch may write its gradient outside of its memory
        np.testing.assert_array_equal(indices.numpy(), positions.numpy(), told)
        upstream = torch.arange(wanted.numel(), dtype=torch.float32).reshape(wanted.shape)
        wanted.backward(upstream)
        gradient = found.gradient(ours, gradient=Tensor(upstream.numpy()))[0].numpy()
        assert theirs.grad is not None
        np.testing.assert_array_equal(gradient, theirs.grad.numpy(), told)

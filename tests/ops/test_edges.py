"""Tensors without elements, 0-d tensors, axes of size 1 and axes counted from the end, for what loops and blocks are
made of; long axes, where blocks begin; and the new ops under jit.

The expected value is NumPy's wherever NumPy has the function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit
from tilewright.base.warning import JitWarning

EMPTY = np.zeros((2, 0, 3), np.float32)
ONE = np.array([[[2.0]]], np.float32)
NO_INDEX = np.zeros((2, 0, 3), np.int64)

# name -> (call on a tensor of shape (2, 0, 3), shape of the result)
WITHOUT_ELEMENTS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "sort": (lambda x: x.sort(1)[0], (2, 0, 3)),
    "sort another axis": (lambda x: x.sort(-1)[1], (2, 0, 3)),
    "argsort": (lambda x: x.argsort(), (2, 0, 3)),
    "topk": (lambda x: x.topk(2)[0], (2, 0, 2)),
    "cummax": (lambda x: x.cummax(1)[0], (2, 0, 3)),
    "cummin": (lambda x: x.cummin(-1)[1], (2, 0, 3)),
    "cumsum": (lambda x: x.cumsum(1), (2, 0, 3)),
    "logcumsumexp": (lambda x: x.logcumsumexp(2), (2, 0, 3)),
    "gather": (lambda x: x.gather(1, Tensor(NO_INDEX)), (2, 0, 3)),
    "scatter": (lambda x: x.scatter(1, Tensor(NO_INDEX), x), (2, 0, 3)),
    "scatter_reduce": (lambda x: x.scatter_reduce(0, Tensor(NO_INDEX), x, "sum"), (2, 0, 3)),
    "masked_select": (lambda x: x.masked_select(x > 0), (0,)),
    "nonzero": (lambda x: x.nonzero(), (0, 3)),
    "nonzero of a size": (lambda x: x.nonzero(size=2), (2, 3)),
    "mask": (lambda x: x[x > 0], (0,)),
    "einsum": (lambda x: Tensor.einsum("abc,abd->acd", x, x), (2, 3, 3)),
    "einsum of nothing": (lambda x: Tensor.einsum("abc->cb", x), (3, 0)),
    "rearrange": (lambda x: x.rearrange("a b c -> (a c) b"), (6, 0)),
    "conv2d": (lambda x: x.reshape(0, 2, 3).conv2d(Tensor.ones(4, 2, 2)), (0, 4, 2)),
    "conv_transpose2d": (lambda x: x.reshape(0, 2, 3).conv_transpose2d(Tensor.ones(2, 4, 2), stride=2), (0, 4, 6)),
    "max_pool2d": (lambda x: x.reshape(0, 2, 3).max_pool2d((2,), 1), (0, 2, 2)),
    "avg_pool2d": (lambda x: x.reshape(0, 2, 3).avg_pool2d((2,), 1), (0, 2, 2)),
    "interpolate": (lambda x: x.interpolate((5,)), (2, 0, 5)),
    "normalize": (lambda x: x.normalize(), (2, 0, 3)),
    "softmax": (lambda x: x.softmax(1), (2, 0, 3)),
    "log_softmax": (lambda x: x.log_softmax(-2), (2, 0, 3)),
    "diagonal beyond the corner": (lambda x: x.diagonal(5, 0, 2), (0, 0)),
    "qr": (lambda x: x.qr()[0], (2, 0, 0)),
    "svd": (lambda x: x.svd()[2], (2, 3, 3)),
    "diag": (lambda x: x.flatten().diag(), (0, 0)),
    "cross_entropy": (lambda x: x.reshape(0, 3).cross_entropy(Tensor(np.zeros(0, np.int64)), "none"), (0,)),
    "randperm": (lambda x: Tensor.randperm(0), (0,)),
}


@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
def test_without_elements(name: str) -> None:
    call, shape = WITHOUT_ELEMENTS[name]
    found = call(Tensor(EMPTY))
    assert found.shape == shape
    assert found.numpy().shape == shape


def test_sums_over_no_elements() -> None:
    x = Tensor(EMPTY)
    assert x.logsumexp(1).tolist() == [[-np.inf] * 3] * 2
    assert x.logsumexp().item() == -np.inf
    assert np.isnan(x.mean(1).numpy()).all()
    assert x.prod(1, keepdim=True).numpy().tolist() == [[[1.0] * 3]] * 2


# What a graph of constants would hide: these go past the tensor itself, whose elements all look alike.
@pytest.mark.parametrize(
    "function",
    [lambda x: x * 2, lambda x: x.exp().sum(1), lambda x: x.softmax(1), lambda x: x.flatten(), lambda x: x[:0]],
)
def test_gradients_without_elements(function: Callable[[Tensor], Tensor]) -> None:
    x = Tensor(EMPTY, requires_grad=True)
    function(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == EMPTY.shape
    (found,) = function(x).sum().gradient(x)
    assert (found.shape, found.numpy().size) == (EMPTY.shape, 0)


SINGLE: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "sort": (lambda x: x.sort(1)[0], ONE),
    "topk": (lambda x: x.topk(1, -3)[1], np.zeros((1, 1, 1), np.int64)),
    "cummax": (lambda x: x.cummax(-1)[0], ONE),
    "logcumsumexp": (lambda x: x.logcumsumexp(-2), ONE),
    "einsum": (lambda x: Tensor.einsum("abc,abc->", x, x), np.float32(4)),
    "max_pool2d": (lambda x: x.max_pool2d((1, 1)), ONE),
    "interpolate": (lambda x: x.interpolate((3,), align_corners=True), np.full((1, 1, 3), 2, np.float32)),
    "qr": (lambda x: x.qr()[1], ONE),
    "svd": (lambda x: x.svd()[1], ONE[0]),
    "scatter": (lambda x: x.scatter(-1, Tensor([[[0]]]), 5.0), np.full((1, 1, 1), 5, np.float32)),
    "nonzero": (lambda x: x.nonzero(), np.zeros((1, 3), np.int64)),
}


@pytest.mark.parametrize("name", SINGLE)
def test_one_element(name: str) -> None:
    call, expected = SINGLE[name]
    np.testing.assert_allclose(call(Tensor(ONE)).numpy(), expected, rtol=1e-6)


ZERO_D: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "sort": (lambda x: x.sort()[0], np.float32(3)),
    "argsort": (lambda x: x.argsort(0), np.int64(0)),
    "topk": (lambda x: x.topk(1)[0], np.float32(3)),
    "cummin": (lambda x: x.cummin(-1)[0], np.float32(3)),
    "logcumsumexp": (lambda x: x.logcumsumexp(), np.float32(3)),
    "mask": (lambda x: x[x > 1], np.array([3], np.float32)),
    "mask that is false": (lambda x: x[x < 1], np.zeros(0, np.float32)),
    "truth": (lambda x: x[True], np.array([3], np.float32)),
    "masked_select": (lambda x: x.masked_select(x > 1), np.array([3], np.float32)),
    "nonzero": (lambda x: x.nonzero(), np.zeros((1, 0), np.int64)),
    "einsum": (lambda x: Tensor.einsum(",->", x, x), np.float32(9)),
    "scatter": (lambda x: x.scatter(0, Tensor(0), Tensor(5.0)), np.float32(5)),
    "gather": (lambda x: x.gather(0, Tensor(0)), np.float32(3)),
    "unfold": (lambda x: x.unfold(0, 1, 1), np.array([3], np.float32)),
    "softmax": (lambda x: x.softmax(), np.float32(1)),
    "binary_crossentropy_logits": (lambda x: x.binary_crossentropy_logits(Tensor(1.0)), np.float32(0.04858735)),
}


@pytest.mark.parametrize("name", ZERO_D)
def test_zero_dimensions(name: str) -> None:
    call, expected = ZERO_D[name]
    found = call(Tensor(3.0)).numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_picking_from_a_long_mask() -> None:
    values = np.random.default_rng(0).standard_normal((70, 30)).astype(np.float32)
    tensor = Tensor(values)
    np.testing.assert_array_equal(tensor[tensor > 1].numpy(), values[values > 1])
    np.testing.assert_array_equal((tensor > 1).nonzero().numpy(), np.argwhere(values > 1))
    tensor[tensor > 1] = Tensor(np.arange((values > 1).sum(), dtype=np.float32))
    expected = values.copy()
    expected[values > 1] = np.arange((values > 1).sum())
    np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort()[0],
        lambda x: x.max_pool2d((2, 2), 1),
        lambda x: x.qr()[1],
        lambda x: Tensor.einsum("ij,kj->ik", x, x),
        lambda x: x.masked_select(x > 0, size=4),
        lambda x: x.interpolate((5, 7)),
        lambda x: x.cummax(0)[0],
    ],
)
def test_a_captured_function_sees_new_input(function: Callable[[Tensor], Tensor]) -> None:
    captured = jit(function)
    rng = np.random.default_rng(0)
    for _ in range(4):
        values = rng.standard_normal((4, 3)).astype(np.float32)
        found = captured(Tensor(values).realize()).numpy()
        np.testing.assert_allclose(found, function(Tensor(values)).numpy(), rtol=1e-5, atol=1e-6)


def test_a_size_that_depends_on_values_is_never_stale_under_jit() -> None:
    captured = jit(lambda x: x[x > 0])
    calls = ([1.0, -1.0, 2.0], [1.0, 2.0, 3.0], [-1.0, -2.0, 4.0], [5.0, -2.0, 4.0])
    with pytest.warns(JitWarning, match="reads the contents of a tensor"):
        found = [captured(Tensor(values).realize()).tolist() for values in calls]
    assert found == [[value for value in values if value > 0] for values in calls]

"""Reductions and what is made of them, against NumPy and SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from tilewright.tensor.tensor import Tensor

Check = Callable[..., None]
generator = np.random.default_rng(7)
X = generator.standard_normal((3, 5, 7)).astype(np.float32)
INTS = generator.integers(-50, 50, (4, 6)).astype(np.int32)
EMPTY = np.zeros((2, 0, 3), np.float32)
AXES: tuple[Any, ...] = (None, 0, 1, -1, (0, 2), (-1, -2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean", "prod", "any", "all", "var", "std"])
def test_reductions(name: str, axis: Any, keepdim: bool, check: Check) -> None:
    def reference(x: np.ndarray) -> Any:
        kwargs = {"ddof": 1} if name in ("var", "std") else {}
        return np.asarray(getattr(np, name)(x, axis=axis, keepdims=keepdim, **kwargs))

    check(lambda t: getattr(t, name)(axis, keepdim), reference, X, tolerance=1e-4)


def test_dtypes_of_sums(check: Check) -> None:
    small = np.array([100, 100, 100], np.int8)
    check(lambda t: t.sum(), lambda x: np.int64(300), small)
    check(lambda t: t.prod(), lambda x: np.int64(1000000), small)
    check(lambda t: t.sum(dtype="int8"), lambda x: np.int8(44), small)
    check(lambda t: t.sum(), lambda x: np.int64(2), np.array([True, False, True]))
    check(lambda t: t.sum(), lambda x: np.uint64(3), np.array([1, 2], np.uint64))
    check(lambda t: t.cumsum(), lambda x: np.array([100, 200, 300]), small)
    check(lambda t: t.max(), lambda x: x.max(), small)
    check(lambda t: t.max(0), lambda x: x.max(0), INTS)
    check(lambda t: t.min(1), lambda x: x.min(1), INTS)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_floats_are_summed_in_float32(dtype: Any, check: Check) -> None:
    ones = np.ones(70000, dtype)
    check(lambda t: t.mean(), lambda x: np.asarray(1, dtype), ones)
    check(
        lambda t: (t[:5000].sum() - 4990).float(),
        lambda x: np.float32(np.asarray(5000, dtype) - np.asarray(4990, dtype)),
        ones,
    )


def test_reductions_of_nothing(check: Check) -> None:
    check(lambda t: t.sum(1), lambda x: x.sum(1), EMPTY)
    check(lambda t: t.prod(1), lambda x: x.prod(1), EMPTY)
    check(lambda t: t.any(1), lambda x: x.any(1), EMPTY)
    check(lambda t: t.all(1), lambda x: x.all(1), EMPTY)
    check(lambda t: t.mean(1), lambda x: np.full((2, 3), np.nan, np.float32), EMPTY)
    check(lambda t: t.max(2), lambda x: x.max(2), EMPTY)
    check(lambda t: t.sum(0), lambda x: x.sum(0), EMPTY)


def test_reductions_of_a_scalar_and_of_size_one(check: Check) -> None:
    check(lambda t: t.sum(), lambda x: x, np.float32(3))
    check(lambda t: t.max(0), lambda x: x, np.float32(3))
    check(lambda t: t.sum(-1), lambda x: x.sum(-1), X[:, :, :1])


def test_special_values(check: Check) -> None:
    values = np.float32([[1, np.nan, 3], [np.inf, -np.inf, 0], [-np.inf, -np.inf, -5]])
    for name in ("max", "min", "sum"):
        check(lambda t, name=name: getattr(t, name)(1), lambda x, name=name: getattr(np, name)(x, axis=1), values)


def test_places_of_extremes(check: Check) -> None:
    for name in ("argmax", "argmin"):
        for axis in (None, 0, -1):
            check(lambda t: getattr(t, name)(axis), lambda x: np.asarray(getattr(np, name)(x, axis)), X)  # noqa: B023
    ties = np.int32([[1, 3, 3], [2, 2, 1]])
    check(lambda t: t.argmax(1), lambda x: x.argmax(1), ties)
    check(lambda t: t.argmin(0, keepdim=True), lambda x: x.argmin(0, keepdims=True), ties)
    check(lambda t: t.argmax(), lambda x: np.asarray(x.argmax()), np.float32([1, np.nan, 5, np.nan]))
    check(lambda t: t.argmax(0), lambda x: np.int64(0), np.float32(4))


def test_moments(check: Check) -> None:
    check(lambda t: t.var(1, correction=0), lambda x: x.var(1), X)
    check(lambda t: t.var_mean(1), lambda x: (x.var(1, ddof=1), x.mean(1)), X)
    check(
        lambda t: t.std_mean(0, keepdim=True), lambda x: (x.std(0, ddof=1, keepdims=True), x.mean(0, keepdims=True)), X
    )
    check(lambda t: t.var(), lambda x: np.float32(np.nan), X[0, 0, :1])
    large = X + np.float32(1000)
    check(lambda t: t.var(-1), lambda x: x.astype(np.float64).var(-1, ddof=1).astype(np.float32), large, tolerance=1e-3)


def layernorm(x: np.ndarray, axis: Any) -> np.ndarray:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + np.float32(1e-5))


def test_normalisation(check: Check) -> None:
    check(lambda t: t.layernorm(), lambda x: layernorm(x, -1), X, tolerance=1e-4)
    check(lambda t: t.layernorm((-1, -2)), lambda x: layernorm(x, (-1, -2)), X, tolerance=1e-4)


def test_softmax_family(check: Check) -> None:
    wide = X * np.float32(40)
    for axis in (-1, 0, 1):
        check(lambda t: t.softmax(axis), lambda x: special.softmax(x, axis), wide)  # noqa: B023
        check(lambda t: t.log_softmax(axis), lambda x: special.log_softmax(x, axis), wide)  # noqa: B023
        check(lambda t: t.logsumexp(axis), lambda x: special.logsumexp(x, axis), wide)  # noqa: B023
    check(lambda t: t.softmin(0), lambda x: special.softmax(-x, 0), wide)
    check(lambda t: t.logsumexp(), lambda x: np.float32(special.logsumexp(x)), wide)
    infinite = np.float32([-np.inf, -np.inf])
    check(lambda t: t.logsumexp(), lambda x: np.float32(-np.inf), infinite)
    check(lambda t: t.softmax(), lambda x: np.float32([0, 1]), np.float32([-np.inf, 3]))
    half = np.float16([1, 2, 3])
    check(lambda t: t.softmax(), lambda x: special.softmax(x.astype(np.float64)).astype(np.float16), half)
    check(lambda t: t.softmax(dtype="float32"), lambda x: special.softmax(x.astype(np.float32)), half)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 2, 33, 700, 1025])
def test_running_sums(size: int, check: Check, backend: str) -> None:
    if backend == "evaluate":
        size = min(size, 65)  # it walks the kernels of long rows element by element
    values = generator.integers(-9, 9, (2, size)).astype(np.int32)
    check(lambda t: t.cumsum(1), lambda x: x.cumsum(1, dtype=np.int64), values)
    check(lambda t: t.cumsum(0), lambda x: x.cumsum(0, dtype=np.int64), values)
    check(lambda t: t.cumsum(-1), lambda x: x.cumsum(-1), values.astype(np.float32))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running_sums_of_blocks(axis: int, check: Check, backend: str) -> None:
    """Axes long enough for blocks of blocks, with no whole number of them, in every place. The interpreter of graphs
    walks kernels element by element, and has no blocks of blocks."""
    shape = [3, 2, 5]
    shape[axis] = 37 if backend == "evaluate" else 16 * 16 * 9 + 5
    values = generator.integers(-3, 4, shape).astype(np.float32)
    check(lambda t: t.cumsum(axis), lambda x: x.cumsum(axis), values)
    check(lambda t: t.cumprod(axis), lambda x: x.cumprod(axis), np.float32(1) - 2 * (values > 2))
    check(lambda t: t.cummin(axis)[0], lambda x: np.minimum.accumulate(x, axis), values)
    weights = generator.integers(-3, 4, shape).astype(np.float32)
    leaf = Tensor(values, requires_grad=True)
    (leaf.cumsum(axis) * Tensor(weights)).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == np.flip(np.flip(weights, axis).cumsum(axis), axis).tolist()


def test_running_products(check: Check) -> None:
    check(lambda t: t.cumprod(1), lambda x: x.cumprod(1), X[:, :, 0])
    check(lambda t: t.cumsum(1), lambda x: x.cumsum(1), EMPTY)
    values = np.float32([1, np.inf, 2, np.nan, 3])
    check(lambda t: t.cumsum(), np.cumsum, values)


def test_allclose() -> None:
    left = Tensor([1.0, 2.0])
    assert left.allclose(Tensor([1.0, 2.000001]))
    assert not left.allclose(Tensor([1.0, 2.1]))
    assert not Tensor([math.nan]).allclose(Tensor([math.nan]))
    assert Tensor([math.nan]).allclose(Tensor([math.nan]), equal_nan=True)

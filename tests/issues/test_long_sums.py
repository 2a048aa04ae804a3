"""Long float sums are as accurate as a cascade of short ones, whichever loops they run over.

What went wrong: one accumulator took in all terms of a sum, and rounded each to the precision of the whole. The mean of
1e8 numbers near 1e4 was 10000.14 in place of 10000.50, `ones(2**34).sum()` was 2**32, and `full((16384, 4), .1).sum(0)`
was off by 1.5e-4. And the gradient of `max` over 70,000 equal float16 was 0: float16 does not hold their number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright import Tensor
from tilewright.base.config import Context
from tilewright.base.dtype import dtypes

Axes = int | tuple[int, ...] | None

EPSILON = 2.0**-24
# In units of half the last place. A correctly rounded sum has 1, one accumulator over these tables 40 to 10,000.
MAX_ERROR = 10
# A contraction has longer blocks, as those of BLAS libraries are.
MAX_CONTRACTION_ERROR = 25


def values(kind: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Values of one sign: none of the error is due to cancellation. Equal ones are all rounded to the same side."""
    if kind == "equal":
        return np.full(shape, 0.1, np.float32)
    uniform = np.random.default_rng(len(shape)).random(shape, dtype=np.float32)
    return uniform if kind == "uniform" else 1e4 + uniform


def relative_error(found: Tensor, exact: Any) -> float:
    return float(np.max(np.abs(found.numpy().astype(np.float64) - exact) / np.abs(exact)))


SUMS: list[tuple[tuple[int, ...], Axes]] = [
    ((1 << 21,), None),  # in two kernels
    ((1000003,), None),  # no divisor
    ((16384, 4), 0),  # few columns
    ((16384, 1), 0),
    ((16384, 300), 0),  # in registers
    ((4096, 4096), 0),  # held in memory
    ((10007, 1024), 0),  # the same, no divisor
    ((100003, 7), 0),
    ((4, 1 << 18), 1),  # rows
    ((100, 30001), 1),
    ((100, 4099), 1),
    ((8, 4096, 16), 1),  # a middle axis
    ((3, 50000, 5), 1),
    ((64, 128, 128), (0, 1)),  # several loops
    ((64, 128, 128), (0, 2)),
    ((128, 8, 32, 32), (0, 2, 3)),  # the statistics of a batch norm
    ((20, 20, 20, 20, 20), (0, 2, 4)),
    ((7, 11, 13, 17, 19), None),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", SUMS, ids=str)
def test_sums(case: tuple[tuple[int, ...], Axes]) -> None:
    shape, axes = case
    for kind in ("equal", "uniform", "large"):
        x = values(kind, shape)
        assert relative_error(Tensor(x).sum(axes), x.sum(axes, dtype=np.float64)) <= MAX_ERROR * EPSILON, kind


SMALL: list[tuple[tuple[int, ...], Axes]] = [((900, 3), 0), ((2, 1031), 1), ((30, 3, 50), (0, 2))]


@pytest.mark.parametrize("noopt", [0, 1])
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_sums_on_every_device(case: tuple[tuple[int, ...], Axes], device: str, noopt: int) -> None:
    shape, axes = case
    x = values("equal", shape)
    with Context(NOOPT=noopt):
        found = Tensor(x, device=device).sum(axes).realize()
    assert relative_error(found, x.sum(axes, dtype=np.float64)) <= MAX_ERROR * EPSILON


CONTRACTIONS: list[tuple[int, int, int]] = [
    (64, 4096, 64),
    (64, 1000, 128),
    (256, 8192, 128),  # held in memory between blocks
    (33, 100000, 17),
    (1, 65536, 100),
    (100, 65536, 1),
    (1, 1000000, 1),
    (4, 70001, 4),
]


@pytest.mark.parametrize("case", CONTRACTIONS, ids=str)
def test_products_with_a_long_sum(case: tuple[int, int, int]) -> None:
    rows, length, columns = case
    for kind in ("equal", "uniform"):
        a, b = values(kind, (rows, length)), values(kind, (length, columns))
        exact = a.astype(np.float64) @ b.astype(np.float64)
        assert relative_error(Tensor(a) @ Tensor(b), exact) <= MAX_CONTRACTION_ERROR * EPSILON, kind


@pytest.mark.torch
@pytest.mark.parametrize("case", SUMS[::2], ids=str)
def test_sums_are_as_accurate_as_torch(case: tuple[tuple[int, ...], Axes]) -> None:
    import torch

    shape, axes = case
    for kind in ("equal", "uniform", "large"):
        x = values(kind, shape)
        exact = x.sum(axes, dtype=np.float64)
        peer = torch.from_numpy(x).sum(tuple(range(x.ndim)) if axes is None else axes).numpy()
        theirs = float(np.max(np.abs(peer - exact) / np.abs(exact)))
        assert relative_error(Tensor(x).sum(axes), exact) <= max(2 * theirs, 8 * EPSILON), kind


# ---------------------------------------------------------------- what is made of sums


def near_10000(count: int) -> NDArray[np.float32]:
    return (1e4 + np.random.default_rng(7).random(count, dtype=np.float32)).astype(np.float32)


def test_moments_of_numbers_far_from_zero() -> None:
    x = near_10000(1 << 22)
    exact = x.astype(np.float64)
    assert relative_error(Tensor(x).mean(), exact.mean()) <= 2 * EPSILON
    assert relative_error(Tensor(x).var(), exact.var(ddof=1)) <= 1e-5
    assert relative_error(Tensor(x).std(), exact.std(ddof=1)) <= 1e-5


@pytest.mark.parametrize("axis", [0, 1])
def test_moments_along_an_axis(axis: int) -> None:
    x = near_10000(1 << 20).reshape((1 << 14, 64) if axis == 0 else (64, 1 << 14))
    exact = x.astype(np.float64)
    assert relative_error(Tensor(x).mean(axis), exact.mean(axis)) <= 4 * EPSILON
    assert relative_error(Tensor(x).var(axis), exact.var(axis, ddof=1)) <= 1e-4


@pytest.mark.parametrize("axis", [0, 1])
def test_exponentials_of_equal_numbers(axis: int) -> None:
    count = 1 << 16
    x = Tensor(np.full((count, 3) if axis == 0 else (3, count), 0.1, np.float32))
    assert relative_error(x.logsumexp(axis), 0.1 + math.log(count)) <= 4 * EPSILON
    assert relative_error(x.softmax(axis), 1 / count) <= 8 * EPSILON


@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums(axis: int) -> None:
    x = values("equal", (50000, 3) if axis == 0 else (3, 50000))
    assert relative_error(Tensor(x).cumsum(axis), x.astype(np.float64).cumsum(axis)) <= 2 * MAX_ERROR * EPSILON


def test_a_weight_gradient_sums_over_batch_and_positions() -> None:
    x, w = Tensor(np.full((64, 3, 40, 40), 0.1, np.float32)), Tensor(np.full((4, 3, 3, 3), 0.1, np.float32))
    w.requires_grad_()
    x.conv2d(w).sum().backward()
    assert w.grad is not None
    assert relative_error(w.grad, float(np.float32(0.1)) * 64 * 38 * 38) <= MAX_CONTRACTION_ERROR * EPSILON


def test_products_by_other_names() -> None:
    a, b = values("equal", (3, 20000, 4)), values("uniform", (3, 20000, 5))
    wide = a.astype(np.float64), b.astype(np.float64)
    for formula in ("bki,bkj->bij", "bki,bkj->ij", "bki,bkj->k", "bki,bkj->"):
        found = Tensor.einsum(formula, Tensor(a), Tensor(b))
        assert relative_error(found, np.einsum(formula, *wide)) <= MAX_CONTRACTION_ERROR * EPSILON, formula
    flat = Tensor(a).flatten()
    assert relative_error(flat.dot(flat), (wide[0] ** 2).sum()) <= MAX_ERROR * EPSILON
    assert relative_error(flat.square().sum().sqrt(), np.sqrt((wide[0] ** 2).sum())) <= MAX_ERROR * EPSILON


def test_windows_and_rows_chosen_by_index() -> None:
    x = values("equal", (1, 2, 400, 400))
    assert relative_error(Tensor(x).avg_pool2d((200, 200)), float(np.float32(0.1))) <= MAX_ERROR * EPSILON
    table = Tensor(np.zeros((4, 3), np.float32)).requires_grad_()
    (table[Tensor(np.arange(40000, dtype=np.int32) % 4)] * 0.1).sum().backward()
    assert table.grad is not None
    assert relative_error(table.grad, float(np.float32(0.1)) * 10000) <= MAX_ERROR * EPSILON


def test_float16_is_summed_in_float32() -> None:
    assert Tensor.full((60000,), 1.0, dtype="float16").contiguous().realize().sum().item() == 60000
    x = np.random.default_rng(0).random((70000, 2)).astype(np.float16)
    expected = x.sum(0, dtype=np.float64).astype(np.float16)
    np.testing.assert_array_equal(Tensor(x).sum(0).numpy(), expected)


# ---------------------------------------------------------------- constants


@pytest.mark.parametrize("count", [2**34, 2**34 + 4096, 10**10 + 7, 2**24 + 1])
@pytest.mark.parametrize("value", [1.0, 0.1, 3.0])
def test_sums_of_a_constant(count: int, value: float) -> None:
    """Blocks of the constant are exact products; their sums, 16 equal ones at a time, round the same way each time."""
    exact = float(np.float32(value)) * count
    assert relative_error(Tensor.full((count,), value).sum(), exact) <= 8 * EPSILON


def test_counts_past_what_float32_tells_apart() -> None:
    assert Tensor.ones(2**34).sum().item() == 2**34
    assert Tensor.ones(2**17, 2**17).sum(0)[:2].tolist() == [2.0**17] * 2
    assert Tensor.ones(2**34).mean().item() == 1.0
    is_small = Tensor.arange(2**33, dtype="int64") < 2**32 + 4096
    assert is_small.where(1.0, 0.0).sum().item() == 2**32 + 4096


# ---------------------------------------------------------------- counts in short floats


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32])
@pytest.mark.parametrize("count", [300, 5000, 70000])
@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_of_extremes_share_the_gradient(name: str, count: int, dtype: Any) -> None:
    for shape, axis in (((count,), None), ((2, count), 1), ((count, 2), 0)):
        x = Tensor(np.ones(shape, np.float32)).cast(dtype).realize().requires_grad_()
        getattr(x, name)(axis).sum().backward()
        assert x.grad is not None
        assert x.grad.dtype is dtype
        share = Tensor([1 / count]).cast(dtype).cast(dtypes.float32).item()
        np.testing.assert_array_equal(x.grad.cast(dtypes.float32).numpy(), np.full(shape, share, np.float32))


COUNTED = {
    "mean": lambda x: x.mean(),
    "variance": lambda x: x.var(),
    "deviation": lambda x: x.std(),
    "layernorm": lambda x: x.layernorm(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "average pool": lambda x: x.reshape(1, 1, 280, 250).avg_pool2d((280, 250)),
    "cross entropy": lambda x: x.reshape(35000, 2).cross_entropy(Tensor(np.zeros(35000, np.int32))),
    "label smoothing": lambda x: x.reshape(1, 70000).cross_entropy(Tensor([3]), label_smoothing=0.1),
    "mean square": lambda x: x.square().mean(),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COUNTED)
def test_means_over_more_elements_than_float16_counts(name: str) -> None:
    """The value and the gradient are those of float32, rounded."""
    x = np.random.default_rng(3).standard_normal(70000).astype(np.float16)
    results = []
    for dtype in (dtypes.float16, dtypes.float32):
        leaf = Tensor(x).cast(dtype).realize().requires_grad_()
        value = COUNTED[name](leaf)
        weights = np.random.default_rng(4).standard_normal(value.shape).astype(np.float32)
        (value.cast(dtypes.float32) * Tensor(weights)).sum().backward()
        assert leaf.grad is not None
        results.append((value.cast(dtypes.float32).numpy(), leaf.grad.cast(dtypes.float32).numpy()))
    for short, wide in zip(*results, strict=True):
        np.testing.assert_allclose(short, wide, atol=1e-2 * np.abs(wide).max())

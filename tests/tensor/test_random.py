"""Random numbers: distribution, reproducibility, and equality between devices."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from tilewright.graph.interpreter.scalar import ScalarMath
from tilewright.tensor.tensor import Tensor


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    Tensor.manual_seed(42)
    yield
    Tensor.manual_seed(0)


@pytest.fixture
def stats() -> ModuleType:
    """Imported here, because that takes each worker of pytest a second."""
    from scipy import stats

    return stats


def test_the_numbers_are_threefry(device: str) -> None:
    found = Tensor.rand(5, device=device).tolist()
    expected = [(ScalarMath.threefry(counter, 42) >> 40) * 2.0**-24 for counter in range(5)]
    assert found == expected
    found = Tensor.rand(2, device=device, dtype="float64").tolist()
    assert found == [(ScalarMath.threefry(counter, 42) >> 11) * 2.0**-53 for counter in (5, 6)]


def test_same_seed_same_numbers_on_every_device() -> None:
    drawn = []
    for device in ("CPU", "PYTHON"):
        Tensor.manual_seed(7)
        values = [Tensor.rand(3, device=device), Tensor.randn(2, 2, device=device), Tensor.randint(4, device=device)]
        drawn.append([value.numpy() for value in values])
    for left, right in zip(*drawn):
        np.testing.assert_allclose(left, right, rtol=1e-5)


def test_draws_differ_and_a_seed_starts_over(device: str) -> None:
    first, second = Tensor.rand(8, device=device), Tensor.rand(8, device=device)
    # Realised in the other order than drawn.
    second_values = second.tolist()
    first_values = first.tolist()
    assert set(first_values).isdisjoint(second_values)
    Tensor.manual_seed(42)
    assert Tensor.rand(8, device=device).tolist() == first_values
    assert Tensor.rand(8, device=device).tolist() == second_values
    Tensor.manual_seed(43)
    assert Tensor.rand(8, device=device).tolist() != first_values


def test_a_tensor_keeps_its_numbers(device: str) -> None:
    tensor = Tensor.rand(8, device=device)
    doubled = tensor * 2
    Tensor.rand(8, device=device).realize()
    Tensor.manual_seed(1)
    values = tensor.numpy()
    np.testing.assert_array_equal(doubled.numpy(), values * 2)
    np.testing.assert_array_equal(tensor.numpy(), values)


def test_uniform(stats: ModuleType) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        values = Tensor.rand(20000, dtype=dtype).numpy().astype(np.float64)
        assert values.min() >= 0
        assert values.max() < 1
        assert abs(values.mean() - 0.5) < 0.02
    values = Tensor.uniform(20000, low=-3, high=5).numpy()
    assert stats.kstest((values + 3) / 8, "uniform").pvalue > 1e-3


def test_normal(stats: ModuleType) -> None:
    values = Tensor.randn(20000).numpy()
    assert np.isfinite(values).all()
    assert stats.kstest(values, "norm").pvalue > 1e-3
    values = Tensor.normal(20000, mean=5, std=2).numpy()
    assert stats.kstest((values - 5) / 2, "norm").pvalue > 1e-3


def test_integers(stats: ModuleType) -> None:
    values = Tensor.randint(30000, low=-2, high=4).numpy()
    assert values.dtype == np.int32
    counts = [int((values == number).sum()) for number in range(-2, 4)]
    assert sum(counts) == 30000
    assert stats.chisquare(counts).pvalue > 1e-3
    assert Tensor.randint(2, 3, high=2**40, dtype="int64").shape == (2, 3)


@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_permutations(n: int, device: str) -> None:
    values = Tensor.randperm(n, device=device).tolist()
    assert sorted(values) == list(range(n))
    if n == 50:
        assert values != sorted(values)


def test_shapes_and_bounds_of_initialisers() -> None:
    for make, bound in (
        (Tensor.scaled_uniform, 24**-0.5),
        (Tensor.glorot_uniform, (6 / (4 + 6)) ** 0.5),
        (Tensor.kaiming_uniform, (6 / (1 + 0.01**2) / 6) ** 0.5),
    ):
        values = make(4, 6).numpy()
        assert values.shape == (4, 6)
        assert np.abs(values).max() <= bound
        assert np.abs(values).max() > bound * 0.5
    assert Tensor.kaiming_normal(4, 6).shape == (4, 6)
    assert Tensor.zeros(2, 3).rand_like().shape == (2, 3)
    assert Tensor.zeros(2, 3, dtype="float16").randn_like().dtype.name == "float16"
    assert Tensor.rand(0, 3).tolist() == []


def test_dropout(device: str) -> None:
    ones = Tensor.ones(10000, device=device)
    assert ones.dropout(0.5) is ones
    with Tensor.train():
        dropped = ones.dropout(0.25)
        assert ones.dropout(1.0).sum().item() == 0
    values = dropped.numpy()
    assert set(np.unique(values)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((values == 0).mean() - 0.25) < 0.02
    np.testing.assert_array_equal(dropped.numpy(), values)

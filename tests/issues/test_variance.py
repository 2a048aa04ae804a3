"""The variance of numbers that are large beside their deviation. The mean of float32 numbers near 1e6 is rounded to
1/16, which was 7 % of a variance along an axis. Elements are shifted by the first of them, so that a mean is about as
large as the deviation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices import Setting, settings
from tilewright import Tensor

SHAPES = [((40, 100), 1), ((100, 40), 0), ((3, 7, 11), (0, 2)), ((5000,), None), ((2, 70_000), -1), ((4, 5), (0, 1))]


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize(("centre", "deviation"), [(1e6, 1.0), (-1e6, 0.3), (1e8, 100.0), (0.0, 1.0), (1.0, 1e4)])
def test_variance_beside_float64(shape: tuple[int, ...], axis: int, centre: float, deviation: float) -> None:
    values = (np.random.default_rng(len(shape)).normal(size=shape) * deviation + centre).astype(np.float32)
    wanted = values.astype(np.float64).var(axis=axis, ddof=1)
    variance, mean = Tensor(values).var_mean(axis)
    np.testing.assert_allclose(variance.numpy(), wanted, rtol=2e-6)
    np.testing.assert_allclose(Tensor(values).std(axis).numpy(), np.sqrt(wanted), rtol=2e-6)
    np.testing.assert_allclose(
        mean.numpy(), values.astype(np.float64).mean(axis=axis), rtol=2e-7, atol=deviation * 1e-6
    )


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.label)
def test_on_every_device(setting: Setting) -> None:
    values = (np.arange(24).reshape(4, 6) % 7 + 1e6).astype(np.float32)
    with setting.options():
        got = Tensor(values, device=setting.device).var(1).numpy()
    np.testing.assert_allclose(got, values.astype(np.float64).var(axis=1, ddof=1), rtol=2e-6)


def test_an_outlier_in_front_changes_nothing() -> None:
    values = np.random.default_rng(0).normal(size=(3, 1000)).astype(np.float32)
    values[:, 0] = 1e6
    got = Tensor(values).var(1).numpy()
    np.testing.assert_allclose(got, values.astype(np.float64).var(axis=1, ddof=1), rtol=2e-6)


def test_infinities_and_nans_stay_what_they_were() -> None:
    for first in (np.inf, np.nan, 0.0):
        for last in (np.inf, np.nan):
            assert np.isnan(Tensor([first, 1.0, last]).var().item())
    assert np.isnan(Tensor(np.zeros((0,), np.float32)).var().item())
    assert Tensor.zeros(0, 3).var(1).shape == (0,)


def test_several_devices() -> None:
    values = np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32)
    for axis in (0, 1):
        sharded = Tensor(values).shard(("CPU:0", "CPU:1"), axis=0)
        np.testing.assert_allclose(sharded.var(axis).numpy(), values.var(axis=axis, ddof=1), rtol=1e-5)


def test_gradients_do_not_know_of_the_shift() -> None:
    values = np.random.default_rng(2).normal(size=(4, 9)) + 3
    x = Tensor(values.astype(np.float32), requires_grad=True)
    (x.var(1) * Tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad is not None
    wanted = 2 * (values - values.mean(axis=1, keepdims=True)) / 8 * np.arange(1, 5)[:, None]
    np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-4, atol=1e-5)
    mean = Tensor(values.astype(np.float32), requires_grad=True)
    mean.var_mean(1)[1].sum().backward()
    assert mean.grad is not None
    np.testing.assert_allclose(mean.grad.numpy(), np.full((4, 9), 1 / 9), rtol=1e-6)

"""Variances of many elements on a card: in parts about their own means, which a kernel reads from memory once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor
from tilewright.schedule.preparation.deviations import MAX_PART, MIN_PART, part_length

generator = np.random.default_rng(17)

Function = Callable[[Tensor], Tensor]
CASES: dict[str, tuple[tuple[int, ...], Function, Callable[[np.ndarray], np.ndarray]]] = {
    "all": ((400, 101), lambda x: x.var(), lambda x: x.var(ddof=1)),
    "a prime number of elements": ((50021,), lambda x: x.std(), lambda x: x.std(ddof=1)),
    "few rows": ((3, 40, 1024), lambda x: x.var((1, 2)), lambda x: x.var((1, 2), ddof=1)),
    "many long rows": ((66, 33000), lambda x: x.var(1), lambda x: x.var(1, ddof=1)),
    "not corrected": ((1, 65536), lambda x: x.var(1, correction=0), lambda x: x.var(1)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("name", CASES)
def test_variances_read_what_they_are_taken_of_once(name: str, offset: float) -> None:
    shape, ours, theirs = CASES[name]
    x = (generator.standard_normal(shape) + offset).astype(np.float32)
    x.reshape(-1)[0] += 50  # the element that is subtracted from all is far from the mean
    with emulated_card() as card:
        found = ours(Tensor(x, device=NAME)).numpy()
        np.testing.assert_allclose(found, theirs(x.astype(np.float64)), rtol=2e-6)
        reading = [program for program in card.programs if any(param.size == x.size for param in program.params)]
        assert len(reading) == 1


def test_a_mean_beside_the_variance_is_that_of_the_parts() -> None:
    x = generator.standard_normal((300, 257)).astype(np.float32) + 3
    with emulated_card() as card:
        variance, mean = Tensor(x, device=NAME).var_mean()
        Tensor.realize(variance, mean)
        assert sum(any(param.size == x.size for param in program.params) for program in card.programs) == 1
        np.testing.assert_allclose(mean.numpy(), x.mean(dtype=np.float64), rtol=1e-6)
        np.testing.assert_allclose(variance.numpy(), x.var(ddof=1, dtype=np.float64), rtol=1e-6)


def test_a_layer_norm_of_all_elements() -> None:
    x = generator.standard_normal((65, 1024)).astype(np.float32)
    with emulated_card():
        found = Tensor(x, device=NAME).layernorm((0, 1)).numpy()
    np.testing.assert_allclose(found, (x - x.mean()) / np.sqrt(x.var() + 1e-5), rtol=1e-4, atol=1e-5)


def test_many_rows_that_are_normalised_stay_in_the_cache() -> None:
    x = generator.standard_normal((66, 33000)).astype(np.float32)
    with emulated_card() as card:
        found = Tensor(x, device=NAME).layernorm().numpy()
        assert len(card.programs) == 1
    centred = x - x.mean(1, keepdims=True)
    np.testing.assert_allclose(found, centred / np.sqrt(x.var(1, keepdims=True) + 1e-5), rtol=1e-4, atol=1e-5)


def test_infinite_and_missing_elements_stay() -> None:
    for wrong in (np.inf, np.nan):
        x = generator.standard_normal(40000).astype(np.float32)
        x[30001] = wrong
        with emulated_card():
            assert np.isnan(Tensor(x, device=NAME).var().numpy())


def test_a_gradient_is_that_of_the_variance() -> None:
    x = generator.standard_normal((40, 1000)).astype(np.float32)
    with emulated_card():
        source = Tensor(x, device=NAME)
        (found,) = source.var().gradient(source)
        np.testing.assert_allclose(found.numpy(), 2 * (x - x.mean()) / (x.size - 1), rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("size", [4000 * 4097, 1 << 24, 50021, 3 * 65537])
def test_parts_fit_a_cache(size: int) -> None:
    length = part_length(size)
    assert MIN_PART <= length <= MAX_PART
    assert size % length == 0 or all(size % each for each in range(MIN_PART, MAX_PART + 1))


def test_the_variance_of_rows_is_one_kernel() -> None:
    """A work-group reduces a row, so the second sum over it finds it in the cache."""
    x = generator.standard_normal((300, 999)).astype(np.float32)
    with emulated_card() as card:
        np.testing.assert_allclose(Tensor(x, device=NAME).var(1).numpy(), x.var(1, ddof=1), rtol=1e-5)
        assert len(card.programs) == 1

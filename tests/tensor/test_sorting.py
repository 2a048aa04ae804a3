"""Rows of several blocks, merged two by two: lengths around those of blocks and of the places that are found first.
Many elements are equal: their order shows whether merging is stable."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Tensor

SHAPES = [(255,), (256,), (257,), (512,), (3, 700), (2, 2, 513)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_order_of_equal_elements(shape: tuple[int, ...], descending: bool) -> None:
    few = np.random.default_rng(len(shape)).integers(-3, 4, shape).astype(np.float32)
    values, places = Tensor(few).sort(-1, descending=descending)
    wanted = np.argsort(-few if descending else few, -1, kind="stable")
    np.testing.assert_array_equal(places.numpy(), wanted)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(few, wanted, -1))


def test_a_half_that_goes_before_the_other() -> None:
    rising = np.arange(1024, dtype=np.int32)
    for values in (rising, rising[::-1].copy(), np.roll(rising, 512), np.zeros_like(rising)):
        assert Tensor(values).argsort().numpy().tolist() == np.argsort(values, kind="stable").tolist()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "k"), [((300,), 18), ((3, 700), 5), ((40000,), 1), ((2, 700), 40)], ids=str)
@pytest.mark.parametrize("largest", [False, True])
def test_the_first_of_long_rows(shape: tuple[int, ...], k: int, largest: bool) -> None:
    generator = np.random.default_rng(k)
    given = generator.integers(-3, 4, shape).astype(np.int8) if largest else generator.standard_normal(shape)
    values, places = Tensor(given).topk(k, largest=largest)
    wanted = np.argsort(-given if largest else given, -1, kind="stable")[..., :k]
    np.testing.assert_array_equal(places.numpy(), wanted)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(given, wanted, -1))


def test_nan_is_the_greatest_of_a_long_row() -> None:
    given = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    given[[70, 2900]] = np.nan, np.inf
    assert Tensor(given).topk(2)[1].tolist() == [70, 2900]
    assert Tensor(given).topk(1, largest=False)[1].tolist() == [int(np.nanargmin(given))]

"""Rows sorted by digits on the CPU: against NumPy for every dtype of keys, with ties, NaN and both zeros, and against
the emulator, which runs the same kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Context, Tensor, Variable, dtypes
from tilewright.base.events import subscribe
from tilewright.graph import build
from tilewright.graph.kernels.sorting.serial_sort import order_of_rows
from tilewright.tensor.families.sorting import order_of_last_axis

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")


def extremes(name: str, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Random keys of the whole range, few values with many ties, and the ends of the range."""
    random = np.random.default_rng(seed)
    info = np.iinfo(name)
    array = random.integers(info.min, info.max, shape, dtype=name, endpoint=True)
    array[:, ::3] = random.integers(0, 4, array[:, ::3].shape)
    array[0, :4] = info.min, info.max, info.min, info.max
    return array


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(1, 97), (3, 128), (40, 1000)], ids=str)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, shape: tuple[int, int]) -> None:
    array = extremes(name, shape, seed=len(name) + shape[1])
    values, indices = Tensor(array, device="CPU").sort(1)
    expected = np.argsort(array, 1, kind="stable")
    np.testing.assert_array_equal(indices.numpy(), expected)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(array, expected, 1))


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    """NaN is last, and the zeros are equal: their order is that of the row."""
    array = np.random.default_rng(5).standard_normal((7, 333)).astype(name)
    array[:, 10:60:3], array[:, 11:60:3], array[2, 100:120] = 0.0, -0.0, np.nan
    array[3, 5:9] = np.inf, -np.inf, np.inf, -np.inf
    indices = Tensor(array, device="CPU").argsort(1).numpy()
    np.testing.assert_array_equal(indices, np.argsort(array, 1, kind="stable"))
    largest = Tensor(array[:2], device="CPU").sort(1, descending=True)[0].numpy()
    np.testing.assert_array_equal(largest, -np.sort(-array[:2], 1))


def test_another_axis_and_the_first_few() -> None:
    array = np.random.default_rng(6).integers(0, 50, (211, 3, 5)).astype(np.int32)
    x = Tensor(array, device="CPU")
    np.testing.assert_array_equal(x.argsort(0).numpy(), np.argsort(array, 0, kind="stable"))
    np.testing.assert_array_equal(x.topk(4, 0, largest=False)[0].numpy(), np.sort(array, 0)[:4])


@pytest.mark.parametrize("name", ["uint8", "int16", "float32", "int64"])
def test_the_emulator_agrees(name: str) -> None:
    array = np.random.default_rng(7).integers(0, 100, (2, 60)).astype(name)
    with Context(VERIFY=1):
        Tensor(array, device="CPU").argsort(1).realize()


def test_rows_keep_to_themselves_when_cores_share_them() -> None:
    array = extremes("int32", (64, 1024), seed=3)
    keys = Tensor(array, device="CPU").realize()
    order = Tensor._from_uop(order_of_rows(keys.uop), "CPU").numpy()
    merged = Tensor._from_uop(build.cast(order_of_last_axis(keys.uop), dtypes.int32), "CPU").numpy()
    np.testing.assert_array_equal(order, merged)


def test_a_long_row_takes_few_kernels() -> None:
    compiled: list[object] = []
    x = Tensor(np.random.default_rng(8).standard_normal(30011).astype(np.float32), device="CPU").realize()
    with Context(CACHE=0), subscribe(compiled.append, kinds=("kernel-compiled",)):
        x.argsort(0).realize()
    assert 1 <= len(compiled) <= 3


def test_rows_whose_number_or_length_is_symbolic() -> None:
    array = np.random.default_rng(9).integers(0, 9, (6, 100)).astype(np.int32)
    few = Tensor(array, device="CPU")[: Variable("n", 1, 6).bind(3)]
    np.testing.assert_array_equal(few.sort(1)[1].numpy(), np.argsort(array[:3], 1, kind="stable"))
    np.testing.assert_array_equal(few.topk(50, 1)[0].numpy(), -np.sort(-array[:3], 1)[:, :50])
    short = Tensor(array, device="CPU")[:, : Variable("m", 1, 100).bind(50)]
    np.testing.assert_array_equal(short.argsort(1).numpy(), np.argsort(array[:, :50], 1, kind="stable"))

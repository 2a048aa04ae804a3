"""Running reductions down columns on a card, run by the emulator (graph/kernels/scans/columns.py)."""

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor
from tilewright.tensor.primitives import running

generator = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that the emulator runs count as large."""
    monkeypatch.setattr(running, "MIN_THREADS", 16)
    monkeypatch.setattr(running, "DIVIDED_THREADS", 48)
    monkeypatch.setattr(running, "MIN_PART", 2)
    monkeypatch.setattr(running, "MAX_MASKED_STEPS", 0)


def given(array: np.ndarray, dtype: str = "float32") -> Tensor:
    return Tensor(array, device=NAME).cast(dtype).realize()


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize(
    ("shape", "axis", "launches"),
    [
        ((2, 21, 300), 1, 1),  # a tile of columns that is not full
        ((6, 9, 8), 1, 1),  # narrow rows
        ((1, 24, 12), 1, 3),  # divided columns
        ((3, 10, 2, 5), 1, 1),
        ((35, 11), 0, 3),
    ],
)
def test_running_sums_and_products(name: str, shape: tuple[int, ...], axis: int, launches: int) -> None:
    x = generator.choice([-2.0, -1.0, 0.5, 1.0, 2.0], shape).astype(np.float32)
    with emulated_card(cores=1) as card:
        found = getattr(given(x), name)(axis).numpy()
        names = [program.name for program in card.programs]
    np.testing.assert_array_equal(found, getattr(np, name)(x.astype(np.float64), axis).astype(np.float32))
    assert sum("of_columns" in each for each in names) == (1 if launches == 1 else 2), names
    assert len(names) <= launches + 1


@pytest.mark.parametrize("shape", [(3, 17, 20), (1, 36, 10)], ids=["whole", "divided"])
def test_gradients_of_running_sums(shape: tuple[int, ...]) -> None:
    x, slope = (generator.integers(-4, 5, shape).astype(np.float32) for _ in range(2))
    with emulated_card(cores=1) as card:
        source = given(x)
        found = (source.cumsum(1) * given(slope)).sum().gradient(source)[0].numpy()
        assert any("of_columns" in program.name for program in card.programs)
    np.testing.assert_array_equal(found, slope[:, ::-1].cumsum(1)[:, ::-1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes(name: str, dtype: str) -> None:
    x = generator.integers(0, 9, (2, 23, 17))
    with emulated_card(cores=1) as card:
        values, indices = getattr(given(x, dtype), name)(1)
        values, indices = values.cast("int32").numpy(), indices.numpy()
        names = [program.name for program in card.programs]
    assert any("of_columns" in each for each in names)
    extreme = np.maximum if name == "cummax" else np.minimum
    np.testing.assert_array_equal(values, extreme.accumulate(x, 1))
    np.testing.assert_array_equal(np.take_along_axis(x, indices, 1), values)
    last = np.zeros((2, 17), int)
    for row in range(23):
        last = np.where(x[:, row] == values[:, row], row, last)
        np.testing.assert_array_equal(indices[:, row], last)  # of equals the last


def test_a_nan_is_the_extreme_from_there_on() -> None:
    x = generator.standard_normal((9, 20)).astype(np.float32)
    x[4, 3] = x[6, 3] = np.nan
    with emulated_card(cores=1):
        values, indices = given(x).cummax(0)
        values, indices = values.numpy(), indices.numpy()
    np.testing.assert_array_equal(np.isnan(values[:, 3]), np.arange(9) >= 4)
    assert list(indices[4:, 3]) == [4, 4, 6, 6, 6]
    np.testing.assert_array_equal(values[:, 4:], np.maximum.accumulate(x[:, 4:], 0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_short_dtypes_are_read_as_they_are(dtype: str) -> None:
    x = generator.integers(-3, 4, (19, 24))
    with emulated_card(cores=1) as card:
        source = given(x, dtype)
        count = len(card.programs)
        found = source.cumsum(0).cast("int32").numpy()
        made = [program.name for program in card.programs][count:]
    np.testing.assert_array_equal(found, x.cumsum(0))
    assert made[0] == "running_add_of_columns"

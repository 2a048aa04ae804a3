"""Sums by an index that rises with the position are sums over windows on a card (schedule/sums_by_index/windows.py)."""

import math
import random

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.uop import UOp
from tilewright.schedule.sums_by_index.windows import find_steps, first_position, widest_window


def random_index(chooser: random.Random, positions: int) -> UOp:
    node = build.iota(positions, chooser.choice((dtypes.int32, dtypes.int64)))
    for _ in range(chooser.randint(0, 5)):
        amount = chooser.randint(-6, 12)
        ways = (node + amount, node - amount, node.maximum(amount), node.minimum(3 * amount))
        node = chooser.choice((*ways, node * max(1, amount), node // max(1, amount)))
    return build.reshape(build.cast(node, dtypes.int32), (1, positions, 1))


@pytest.mark.parametrize("seed", range(60))
def test_a_window_is_the_positions_that_have_its_number(seed: int) -> None:
    chooser = random.Random(seed)
    positions, outputs = chooser.randint(1, 40), chooser.randint(1, 30)
    index = random_index(chooser, positions)
    steps = find_steps(index)
    assert steps is not None
    numbers = np.asarray(evaluate(index)).reshape(-1)
    first, behind = (np.asarray(evaluate(first_position(steps, positions, outputs, offset))) for offset in (0, 1))
    for number in range(outputs):
        named = np.flatnonzero(numbers == number)
        assert list(range(first[number], behind[number])) == list(named), number
    inside = numbers[(numbers >= 0) & (numbers < outputs)]
    assert (widest_window(steps, positions, outputs) or 0) == max(np.bincount(inside), default=0)


def test_an_index_that_is_computed_otherwise_has_no_windows() -> None:
    count = build.iota(10, dtypes.int32)
    for index in (count * -1, count % 3, count * count, 9 - count, count // -2):
        assert find_steps(build.reshape(index, (10, 1))) is None
    grown = build.iota(10, dtypes.int32) * 300_000_000
    assert widest_window(find_steps(grown) or [], 10, 10) is None  # it wraps


@pytest.mark.parametrize(
    ("shape", "size", "mode", "corners"),
    [
        ((2, 3, 5, 7), (10, 14), "bilinear", False),
        ((1, 2, 4, 6), (9, 8), "bilinear", True),
        ((1, 2, 6, 5), (15, 11), "bicubic", False),
        ((2, 9), (13,), "nearest-exact", False),
        ((1, 2, 8, 9), (4, 5), "bilinear", False),
    ],
)
def test_the_gradient_of_resampling_compares_nothing(
    shape: tuple[int, ...], size: tuple[int, ...], mode: str, corners: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.schedule.sums_by_index.segments.MIN_PASSES", 0)
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    slope = np.random.default_rng(4).standard_normal((*shape[: len(shape) - len(size)], *size)).astype(np.float32)

    def gradient(x: Tensor, slope: Tensor) -> np.ndarray:
        return (x.interpolate(size, mode, corners) * slope).sum().gradient(x)[0].numpy()

    want = gradient(Tensor(x, device="CPU"), Tensor(slope, device="CPU"))
    with emulated_card(cores=1) as card:
        np.testing.assert_allclose(
            gradient(Tensor(x, device=NAME), Tensor(slope, device=NAME)), want, rtol=1e-5, atol=1e-5
        )
        assert not any("index" in program.name or "segments" in program.name for program in card.programs)
    assert math.prod(want.shape) == math.prod(shape)

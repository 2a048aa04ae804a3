"""Reductions over leading axes on a device with work-groups: threads share a column where columns are few, also where
one reduction needs the result of another. What the heuristic chooses by the facts of a card, and values on the
emulator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.emulated_card import CARD, NAME, CardDriver, emulated_card
from tests.kernel.kernels import leaf
from tests.kernel.properties import chosen_for
from tilewright import Tensor
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import stride
from tilewright.kernel.templates.group_memory import threads_for_columns
from tilewright.schedule.preparation.reduction import split_reduction


def most_threads(card: CardDriver) -> int:
    return max(math.prod(a.vmax + 1 for a in (*p.local_ranges, *p.global_ranges)) for p in card.programs)


PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "argmax": (lambda x: x.argmax(0), lambda x: x.argmax(0)),
    "argmin": (lambda x: x.argmin(0), lambda x: x.argmin(0)),
    "max with its index": (lambda x: x.max(0) + x.argmax(0), lambda x: x.max(0) + x.argmax(0)),
    "logsumexp": (lambda x: x.logsumexp(0), lambda x: np.log(np.exp(x.astype(np.float64)).sum(0))),
    "softmax": (lambda x: x.softmax(0), lambda x: np.exp(x) / np.exp(x).sum(0)),
    "centred": (lambda x: x - x.mean(0, keepdim=True), lambda x: x - x.mean(0, keepdims=True)),
    "std": (lambda x: x.std(0), lambda x: x.std(0, ddof=1)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(700, 33), (512, 70), (331, 3), (97, 129), (64, 64)], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_threads_share_columns(name: str, shape: tuple[int, int]) -> None:
    """As many threads as a column has elements are too many, one for each column is too few."""
    ours, numpys = PAIRS[name]
    x = np.random.default_rng(5).integers(-4, 5, shape).astype(np.float32)
    with emulated_card() as card:
        found = ours(Tensor(x, device=NAME)).numpy()
        assert most_threads(card) >= 4 * shape[1]
    np.testing.assert_allclose(found, numpys(x), rtol=3e-6, atol=3e-6)


def test_a_nan_is_the_largest_and_the_first_of_equals_counts() -> None:
    x = np.tile(np.arange(300, dtype=np.float32) % 7, (40, 1)).T.copy()
    x[100:, 3] = np.nan
    with emulated_card():
        found = Tensor(x, device=NAME).argmax(0).numpy()
    np.testing.assert_array_equal(found, [6] * 3 + [100] + [6] * 36)


@pytest.mark.parametrize("shape", [(395, 8192, 3), (1 << 20, 2), (79, 101, 997, 5)], ids=str)
def test_short_last_axes_fill_the_card(shape: tuple[int, ...]) -> None:
    """The results are few, so that all leading axes together are divided, and threads share each part."""
    split = split_reduction(build.reduce_axis(Ops.ADD, leaf(0, *shape), tuple(range(len(shape) - 1))), CARD)
    assert split is not None
    made = chosen_for(next(node for node in toposort(split) if node.op is Ops.REDUCE_AXIS), CARD)
    groups = math.prod(size_of(axis) for axis in made.view.of_kind(AxisType.LOOP))
    assert made.threads * groups >= CARD.cores * CARD.threads_per_core // 4


def test_columns_of_a_few_results_are_divided() -> None:
    """A column of 29512 elements is no large reduction, but 32 of them are one work-group."""
    split = split_reduction(build.reduce_axis(Ops.MAX, leaf(0, 29512, 32), (0,)), CARD)
    assert split is not None
    made = chosen_for(next(node for node in toposort(split) if node.op is Ops.REDUCE_AXIS), CARD)
    assert math.prod(size_of(axis) for axis in made.view.of_kind(AxisType.LOOP)) >= CARD.cores


def test_results_along_memory_have_threads_of_their_own() -> None:
    """What each row adds to its elements is a short sum, which every work-group may repeat: its partial sums have the
    rows in front, but the results do not."""
    partials = build.reduce_axis(Ops.ADD, leaf(0, 64, 414), (0,))
    mean = build.expand(build.reshape(partials, (414, 1)), (414, 17432))
    made = chosen_for(build.alu(Ops.SUB, leaf(1, 414, 17432), mean), CARD)
    (store,) = made.view.stores
    assert any(stride(store, axis) == 1 for axis in made.view.of_kind(AxisType.LOCAL))
    assert math.prod(size_of(axis) for axis in made.view.of_kind(AxisType.LOOP)) >= CARD.cores


def test_rows_beside_one_another_are_no_windows() -> None:
    """Threads share the images as well: a thread for each of 237 results would walk 263484 elements."""
    made = chosen_for(build.reduce_axis(Ops.MAX, leaf(0, 2252, 3, 9, 79, 13), (0, 2, 4)), CARD)
    assert made.threads == 1024
    assert math.prod(size_of(axis) for axis in made.view.of_kind(AxisType.LOOP)) >= CARD.cores


@pytest.mark.parametrize("size", [5, 79, 256, 10_000])
def test_as_many_threads_as_shorten_the_longest_path(size: int) -> None:
    """One thread combines what the others found, so that it does not help to have one for each element."""
    found = threads_for_columns(size, 1024)
    assert found & (found - 1) == 0
    assert 1 < found <= size
    assert threads_for_columns(size, 1) == 1

"""Issue 12, C: what a program costs to start may grow with its length, but not the number of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit
from tilewright.base.events import subscribe
from tilewright.graph.records import Schedule


@contextmanager
def schedules() -> Iterator[list[Schedule]]:
    """The schedules that are made inside the block."""
    found: list[Any] = []
    with subscribe(lambda event: found.append(event["plan"]), ["schedule"]):
        yield found


def distinct_kernels(program: Callable[[], object]) -> int:
    with schedules() as found:
        program()
    return len({item.ast for plan in found for item in plan.items if item.ast is not None})


# ---------------------------------------------------------------- the same step on another slice


def products_of_slices(count: int) -> list[Tensor]:
    x = Tensor.rand(8, count, 12).realize()
    w = Tensor.rand(12, 5).realize()
    return [(x[:, step] @ w).contiguous() for step in range(count)]


def test_the_same_step_on_another_slice_is_the_same_kernel() -> None:
    assert distinct_kernels(lambda: Tensor.realize(*products_of_slices(7))) == distinct_kernels(
        lambda: Tensor.realize(*products_of_slices(3))
    )


def test_slices_have_their_own_values(device: str) -> None:
    data = np.arange(5 * 9 * 7, dtype=np.float32).reshape(5, 9, 7)
    x = Tensor(data, device=device).realize()
    for step in range(9):
        np.testing.assert_array_equal((x[:, step] * 2).numpy(), data[:, step] * 2)
        np.testing.assert_array_equal(
            (x[1:, step, 2:5] + x[:-1, step, 1:4]).numpy(), data[1:, step, 2:5] + data[:-1, step, 1:4]
        )
        np.testing.assert_array_equal((x[:, :step].flip(1).sum(1)).numpy(), data[:, :step].sum(1))


@pytest.mark.parametrize("kind", ["uint8", "int16", "float32"])
def test_updates_of_slices_touch_nothing_else(device: str, kind: str) -> None:
    expected = np.zeros((6, 11), kind)
    x = Tensor(expected.copy(), device=device)
    for step in range(11):
        x[1:5, step] = step + 1
        expected[1:5, step] = step + 1
        x[step % 6, 3:8] += 1
        expected[step % 6, 3:8] += 1
        np.testing.assert_array_equal(x.numpy(), expected)


def test_an_update_at_another_position_is_the_same_kernel() -> None:
    cache = Tensor.zeros(4, 32, 8).contiguous().realize()
    row = Tensor.rand(4, 1, 8).realize()

    def fill(count: int) -> None:
        for position in range(count):
            cache[:, position : position + 1] = row
            cache.realize()

    assert distinct_kernels(lambda: fill(1)) == distinct_kernels(lambda: fill(9)) == 1


def test_a_replay_has_its_slices_at_the_right_place() -> None:
    """Arguments and results are other memory at every call; a part of them begins at the same byte of it."""

    @jit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x[2:4] * y[1:3]).contiguous(), y[3:] + 1

    for call in range(5):
        x, y = np.random.default_rng(call).random((2, 5, 3), np.float32)
        first, second = step(Tensor(x), Tensor(y))
        np.testing.assert_allclose(first.numpy(), x[2:4] * y[1:3], rtol=1e-6)
        np.testing.assert_allclose(second.numpy(), y[3:] + 1, rtol=1e-6)

"""A view is read and its tensor is updated there: equal views are one node of the graph. Once the old elements had been
computed for the reader, the update that was still to come stored to their memory (`IndexError: tuple index out of
range`). It stores to the memory of the tensor, and the reader keeps the elements it was made of.

A target of `gradient` that a result depends on without a slope (a comparison, a sign bit, an index) has a gradient of
zeros; it was refused as unrelated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit
from tilewright.base.errors import UnsupportedError

Array = np.ndarray[Any, Any]
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)

VIEWS: dict[str, Callable[[Any], Any]] = {
    "row": lambda x: x[1],
    "rows": lambda x: x[1:3],
    "rows of rows": lambda x: x[1:][:2],
    "every other": lambda x: x[::2],
    "transposed": lambda x: x.T,
    "column": lambda x: x.T[2],
    "block": lambda x: x[1:3, 2:5],
    "reshaped": lambda x: x.reshape(2, 12)[:, 3:7],
    "reversed": lambda x: x[::-1],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("order", ["update, read", "read, update", "read, update, read"])
def test_an_update_behind_a_view_that_was_read(name: str, order: str) -> None:
    view = VIEWS[name]
    x, expected = Tensor(VALUES).clone().realize(), VALUES.copy()
    reader, equal = view(x), view(x)
    if order.startswith("read"):
        np.testing.assert_array_equal(reader.numpy(), view(VALUES))
    view(x).assign(view(x) * 2 + 1)
    view(expected)[...] = view(expected) * 2 + 1
    if order.endswith("read"):
        np.testing.assert_array_equal(equal.numpy(), view(VALUES))
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(reader.numpy(), view(VALUES))
    np.testing.assert_array_equal(equal.numpy(), view(VALUES))
    np.testing.assert_array_equal(view(x).numpy(), view(expected))


def test_two_updates_with_reads_between() -> None:
    x = Tensor(VALUES).clone().realize()
    first = x[0]
    x[0] = x[1]
    assert first.tolist() == VALUES[0].tolist()
    second = x[0]
    x[0] = x[0] + 1
    x[2] = first
    assert second.tolist() == VALUES[1].tolist()
    np.testing.assert_array_equal(x.numpy(), np.stack([VALUES[1] + 1, VALUES[1], VALUES[0], VALUES[3]]))


def test_in_a_jitted_step() -> None:
    x, expected = Tensor(VALUES).clone().realize(), VALUES.copy()

    def step(y: Tensor) -> Tensor:
        old = x[1].realize()
        x[1] = y
        return old + x[2]

    replayed = jit(step)
    for number in range(5):
        y = np.full(6, number, np.float32)
        found = replayed(Tensor(y))
        np.testing.assert_array_equal(found.numpy(), expected[1] + expected[2])
        expected[1] = y
        np.testing.assert_array_equal(x.numpy(), expected)


DEPENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sign": lambda x: Tensor([2.0, 2.0, 2.0]).copysign(x),
    "comparison": lambda x: (x > 0).float(),
    "whole numbers": lambda x: x.int().float(),
    "selection": lambda x: (x > 0).where(2.0, 3.0),
    "index": lambda x: Tensor([5.0, 6.0, 7.0])[x.abs().int()],
    "a view": lambda x: (x[1:] > 0).float(),
}


@pytest.mark.parametrize("name", DEPENDS)
def test_a_target_without_a_slope_has_a_gradient_of_zeros(name: str) -> None:
    x = Tensor([1.0, -2.0, 0.5])
    result = DEPENDS[name](x)
    (found,) = result.sum().gradient(x)
    assert found.tolist() == [0.0, 0.0, 0.0]
    (found,) = (result.sum() + (3 * x).sum()).gradient(x)
    assert found.tolist() == [3.0, 3.0, 3.0]


def test_a_target_that_was_not_read_is_refused() -> None:
    x, y = Tensor([1.0, -2.0]), Tensor([3.0, 4.0])
    with pytest.raises(UnsupportedError, match="no part"):
        (x > 0).float().sum().gradient(y)
    with pytest.raises(UnsupportedError, match="no part"):
        (x.detach() > 0).float().sum().gradient(x)

"""Updates of a jitted function's arguments while other tensors read them: what a program without jit gives, every call.
Each was lost or misplaced once, without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit

CALLS = 6


def fresh(count: int = 6) -> Tensor:
    return Tensor(np.arange(count, dtype=np.float32)).realize()


def add_one(a: Tensor) -> Tensor:
    a.assign(a + 1)
    return (a * 2).realize()


def replace_whole(a: Tensor) -> Tensor:
    a.replace(a + 1)
    return (a * 2).realize()


def write_part(a: Tensor) -> Tensor:
    a[1:3] = 7
    return (a * 2).realize()


READERS: dict[str, Callable[[Tensor], Any]] = {
    "nobody": lambda a: None,
    "detached": lambda a: a.detach(),
    "view": lambda a: a.reshape(2, 3),
    "expression": lambda a: a * 3,
}


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")  # calls that are not replayed say so
@pytest.mark.parametrize("body", [add_one, replace_whole, write_part], ids=lambda body: body.__name__)
@pytest.mark.parametrize("reader", READERS)
def test_an_update_with_readers_of_the_old_contents(body: Callable[[Tensor], Tensor], reader: str) -> None:
    """Calls with a reader first, then without: the argument is updated in all of them."""
    jitted = jit(body)
    for call in range(CALLS):
        plain, given = fresh(), fresh()
        keep = READERS["nobody" if call >= CALLS - 2 else reader]
        kept, kept_plain = keep(given), keep(plain)
        np.testing.assert_array_equal(jitted(given).numpy(), body(plain).numpy())
        np.testing.assert_array_equal(given.numpy(), plain.numpy())
        if kept is not None:
            np.testing.assert_array_equal(kept.numpy(), kept_plain.numpy())


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_an_argument_that_is_a_part_of_another_tensor() -> None:
    jitted = jit(add_one)
    for _ in range(3):
        jitted(fresh(4))
    table = Tensor(np.zeros((3, 4), np.float32)).realize()
    for call in range(3):
        row = table[1]
        np.testing.assert_array_equal(jitted(row).numpy(), np.full(4, 2.0 * (call + 1)))
        np.testing.assert_array_equal(table.numpy()[1], np.full(4, call + 1.0))
    np.testing.assert_array_equal(table.numpy()[[0, 2]], 0)


def test_one_tensor_given_twice_is_not_two_in_one_memory() -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        a[1] = b[0]
        return (a * 1).realize()

    jitted = jit(body)
    for _ in range(4):
        both = fresh()
        jitted(both, both)
    given, plain = fresh(), fresh()
    old, old_plain = given.detach(), plain.detach()
    jitted(given, old)
    body(plain, old_plain)
    np.testing.assert_array_equal(given.numpy(), plain.numpy())
    np.testing.assert_array_equal(old.numpy(), old_plain.numpy())


@pytest.mark.parametrize("reader", ["detached", "view", "expression"])
def test_updates_that_wait_for_one_another_keep_what_others_read(reader: str) -> None:
    """Realising x needs the update of y, whose old contents somebody reads."""
    x, y = Tensor(np.zeros(6, np.float32)).realize(), fresh()
    kept = READERS[reader](y)
    want = {"detached": np.arange(6), "view": np.arange(6).reshape(2, 3), "expression": 3 * np.arange(6)}[reader]
    y.assign(y + x + 1)
    x.assign(x + 1)
    x.realize()
    np.testing.assert_array_equal(kept.numpy(), want)
    np.testing.assert_array_equal(y.numpy(), np.arange(6) + 1)
    np.testing.assert_array_equal(x.numpy(), 1)

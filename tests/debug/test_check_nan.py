"""CHECK_NAN=1 names the operation, the index and the user's line at which a value first was not finite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright import Context, Tensor, Variable, jit
from tilewright.base import events
from tilewright.base.errors import NonFiniteError


def logarithm(x: Tensor) -> Tensor:
    y = x * 2
    z = y.log()  # the line: +2
    return (z * 3 + 1).sum()


def check(run: Callable[[], object], operation: str, index: tuple[int, ...], line: int) -> None:
    with Context(CHECK_NAN=1), pytest.raises(NonFiniteError) as caught:
        run()
    assert caught.value.operation == operation
    assert f"at index {index}" in caught.value.message
    assert caught.value.location == (__file__, line)


LINE = logarithm.__code__.co_firstlineno + 2
DATA = [[1.0, 2.0, 3.0], [4.0, 0.0, 6.0]]


def test_first_operation_and_line() -> None:
    check(lambda: logarithm(Tensor(DATA)).realize(), "LOG2", (1, 1), LINE)


def test_inside_jit() -> None:
    step = jit(lambda x: logarithm(x).realize())
    good = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).realize()
    for _ in range(3):
        step(good)
    assert step.last_reason == ""
    bad = Tensor(DATA).realize()
    check(lambda: step(bad), "LOG2", (1, 1), LINE)
    step(bad)  # off again: replayed, and not looked at
    assert step.last_reason == ""
    assert not events.listeners


def test_recorded_while_it_is_on() -> None:
    step = jit(lambda x: logarithm(x).realize())
    with Context(CHECK_NAN=1):
        for _ in range(3):
            step(Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).realize())
    check(lambda: step(Tensor(DATA).realize()), "LOG2", (1, 1), LINE)


def test_inside_sharding() -> None:
    x = Tensor(DATA).shard(("CPU:0", "CPU:1"), 0)
    check(lambda: logarithm(x).realize(), "LOG2", (0, 1), LINE)


def test_symbolic_sizes() -> None:
    rows = Variable("rows", 1, 2)
    x = Tensor(DATA).realize()
    step = jit(lambda x, n: logarithm(x[:n]).realize())
    with Context(CHECK_NAN=1):
        step(Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).realize(), rows.bind(1))
    check(lambda: step(x, rows.bind(2)), "LOG2", (1, 1), LINE)
    check(lambda: step(x.flip(0).contiguous().realize(), rows.bind(1)), "LOG2", (0, 1), LINE)


def test_updates() -> None:
    x = Tensor([1.0, 0.0]).realize()

    def run() -> None:
        x.assign(x / x)
        x.realize()

    check(run, "FDIV", (1,), run.__code__.co_firstlineno + 1)
    assert str(x.tolist()) == "[1.0, nan]"


def test_infinities_that_the_user_wrote() -> None:
    with Context(CHECK_NAN=1):
        scores = Tensor([[1.0, 2.0], [3.0, 4.0]])
        masked = (Tensor([[0, 1], [1, 1]]) > 0).where(scores, float("-inf")).realize()
        assert masked.softmax(1).tolist()[0] == [0.0, 1.0]
        assert Tensor([float("inf"), 1.0]).realize().exp().tolist()[0] == float("inf")


def test_nan_of_infinities() -> None:
    x = Tensor([float("inf"), 1.0]).realize()

    def run() -> None:
        (x - x).realize()

    check(run, "SUB", (0,), run.__code__.co_firstlineno + 1)

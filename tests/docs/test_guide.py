"""docs/guide.md: each row of its table of what jit takes has a check."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.docs.examples import DOCS, first_column
from tilewright import Tensor, jit, nn
from tilewright.base.errors import JitError, TilewrightError, UnsupportedError
from tilewright.base.warning import JitWarning

# ---------------------------------------------------------------- what jit takes

CALLS = 6


def results_of(function: Callable[..., Any], *more: Any) -> tuple[list[Any], bool]:
    """What calls with 0, 1, 2, ... give, and whether the last was a replay."""
    jitted = jit(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [jitted(Tensor([float(number)]), *more) for number in range(CALLS)]
    return results, jitted.last_reason == ""


def returns_containers() -> None:
    results, was_replayed = results_of(lambda x: {"sum": [x + 1], "name": "a"})
    assert was_replayed
    assert [result["sum"][0].item() for result in results] == [number + 1 for number in range(CALLS)]


def updates_in_place() -> None:
    weight = Tensor([0.0])
    optimizer = nn.optim.SGD([weight], lr=1.0)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
        return weight + 0

    results, was_replayed = results_of(step)
    assert was_replayed
    assert results[-1].item() == -sum(range(CALLS))
    gradient: Any = weight.grad
    assert gradient.item() == CALLS - 1


def draws_random_numbers() -> None:
    results, was_replayed = results_of(lambda x: x * 0 + Tensor.rand(1))
    assert was_replayed
    assert len({result.item() for result in results}) == CALLS


def takes_values() -> None:
    jitted = jit(lambda x, factor: x * factor)
    for _ in range(3):
        assert [jitted(Tensor([2.0]), factor).item() for factor in (1, 3)] == [2.0, 6.0]
    assert len(jitted.entries) == 2
    assert jitted.last_reason == ""


def has_effects() -> None:
    log: list[int] = []

    def function(x: Tensor) -> Tensor:
        log.append(1)
        return x + 1

    results, _ = results_of(function)
    assert results[-1].item() == CALLS
    assert len(log) == 2


def reads_the_host() -> None:
    readers: list[Callable[[Tensor], Any]] = [
        lambda x: x * x.sum().item(),
        lambda x: x * float(x.numpy()[0]),
        lambda x: x[x > -1] * x,
    ]
    for reader in readers:
        results, was_replayed = results_of(reader)
        assert not was_replayed
        assert results[-1].item() == (CALLS - 1) ** 2
    for unknown in (time.time, random.random):
        assert not results_of(lambda x, read=unknown: x * read())[1]
    assert not results_of(lambda x: x * len(Path(__file__).read_text()))[1]


def returns_without_a_graph() -> None:
    w = Tensor([3.0], requires_grad=True)
    doubled, detached = jit(lambda x: x * w), jit(lambda x: (x * w).detach())
    for _ in range(4):
        result, cut = doubled(Tensor([1.0])), detached(Tensor([1.0]))
    with pytest.raises(UnsupportedError, match="jitted"):
        (result * w).backward()
    assert (cut * w).gradient(w)[0].item() == 3.0


def passes_gradients_through_an_argument() -> None:
    w = Tensor([3.0], requires_grad=True)
    through, beside = jit(lambda x: (x * w).backward()), jit(lambda x: (x.detach() * w).backward())
    with warnings.catch_warnings(category=JitWarning, action="ignore"):
        for factor in (1.0, 1.0, 2.0, 1.0):
            for call, gradient in ((through, 6.0 * factor), (beside, 3.0 * factor)):
                w.grad = None
                call(w * factor)
                assert w.grad.item() == gradient
    assert through.last_reason
    assert not beside.last_reason


def makes_tensors() -> None:
    array = np.ones(1, np.float32)
    for function in (
        lambda x: x + Tensor([1.0]),
        lambda x: x + Tensor(array),
        lambda x: x[[0]] + np.ones(1, np.float32),
    ):
        results, was_replayed = results_of(function)
        assert was_replayed
        assert results[-1].item() == CALLS


def shares_memory() -> None:
    array = np.ones(1, np.float32)
    for function in (lambda x: x + Tensor(array, copy=False), lambda x: Tensor.from_dlpack(array) + x):
        results, was_replayed = results_of(function)
        assert not was_replayed
        assert results[-1].item() == CALLS


def keeps_a_tensor() -> None:
    def function(x: Tensor) -> Tensor:
        global last
        last = x * 2
        return x + 1

    assert results_of(function)[1]
    with pytest.raises(TilewrightError, match="made inside a jitted function"):
        last.tolist()


def is_a_generator() -> None:
    def function(x: Tensor) -> Iterator[Tensor]:
        yield x

    with pytest.raises(JitError, match="generator"):
        jit(function)


last = Tensor([0.0])
JIT_ROWS: dict[str, Callable[[], None]] = {
    "returns tensors, or": returns_containers,
    "updates tensors in place": updates_in_place,
    "returns a tensor that a gradient": returns_without_a_graph,
    "calls `backward` through an argument": passes_gradients_through_an_argument,
    "draws random numbers": draws_random_numbers,
    "takes numbers": takes_values,
    "has other side effects in Python": has_effects,
    "reads a tensor on the host": reads_the_host,
    "makes a tensor from a list": makes_tensors,
    "makes a tensor that shares memory": shares_memory,
    "stores a tensor in a place": keeps_a_tensor,
    "is a generator": is_a_generator,
}


def test_every_row_on_jit_is_checked() -> None:
    rows = first_column(DOCS / "guide.md", "## jit")
    assert len(rows) == len(JIT_ROWS)
    assert all(row.startswith(start) for row, start in zip(rows, JIT_ROWS))


@pytest.mark.parametrize("row", JIT_ROWS)
def test_what_jit_takes(row: str) -> None:
    JIT_ROWS[row]()

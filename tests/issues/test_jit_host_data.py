"""A jitted function that makes tensors of lists and arrays was traced at every call: a filter written as a list took 30
times as long as its kernels. What it makes of host data is the same at the next call unless something has changed that
jit compares, as with numbers, so a replay has a copy of it; what jit cannot compare is traced as before."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.devices import Setting, settings
from tilewright import Tensor, jit

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")

Function = Callable[[Tensor], Tensor]


def calls(function: Function, change: Callable[[int], Any] = lambda _: None, count: int = 9) -> list[list[float]]:
    """The results of calls, before the later of which something changes."""
    x, found = Tensor([1.0, 2.0]).realize(), []
    for number in range(count):
        change(max(0, number - 5))
        found.append(function(x).tolist())
    return found


CONSTANT: dict[str, Function] = {
    "a list": lambda x: x + Tensor([3.0, 4.0]),
    "a filter": lambda x: x @ x.new_tensor([[1.0, 2.0], [3.0, 4.0]]),
    "an array": lambda x: x + Tensor(np.arange(2, dtype=np.float32)),
    "an array as an operand": lambda x: x * np.array([2.0, 5.0], np.float32),
    "indices": lambda x: x[[1, 0]],
    "bytes": lambda x: x + Tensor(b"\x01\x02", dtype="uint8").float(),
    "one list twice": lambda x: (x + Tensor([1.0, 2.0])).realize() * Tensor([1.0, 2.0]),
    "no elements": lambda x: x + Tensor(np.zeros((0, 2), np.float32)).sum(0),
    "a large table": lambda x: x + Tensor(np.ones((300000, 2), np.float32)).sum(0),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_a_constant_of_host_data_is_replayed(name: str) -> None:
    call = jit(CONSTANT[name])
    assert calls(call) == calls(CONSTANT[name])
    assert call.last_reason == ""


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.label)
def test_on_every_device(setting: Setting) -> None:
    with setting.options():
        call = jit(lambda x: (x * Tensor([2.0, 3.0], device=setting.device)).realize())
        x = Tensor([1.0, 2.0], device=setting.device)
        assert [call(x).tolist() for _ in range(5)] == [[2.0, 6.0]] * 5
    assert call.last_reason == ""


class Holder:
    def __init__(self) -> None:
        self.array = np.zeros(2, np.float32)
        self.lists = {"k": [0.0, 0.0]}
        self.number = 0.0


def changing() -> dict[str, tuple[Function, Callable[[int], Any]]]:
    """Functions of host data that something outside of them changes, and what does."""
    array, holder, octets = np.zeros(2, np.float32), Holder(), bytearray(2)
    view = array[:]

    def change(value: int) -> None:
        array[:] = holder.array[:] = holder.number = value
        holder.lists["k"][0] = float(value)
        octets[0] = value
        os.environ["TILEWRIGHT_TEST_VALUE"] = str(value)

    return {
        "an array": (lambda x: x + Tensor(array), change),
        "a view of it": (lambda x: x + Tensor(view), change),
        "its memory": (lambda x: x + Tensor(array, copy=False), change),
        "an attribute": (lambda x: x + Tensor(holder.array), change),
        "a list in a dict": (lambda x: x + Tensor(holder.lists["k"]), change),
        "a number in a list": (lambda x: x + Tensor([holder.number, 1.0]), change),
        "bytes": (lambda x: x + Tensor(octets, dtype="uint8").float(), change),
        "the environment": (lambda x: x + Tensor([float(os.environ["TILEWRIGHT_TEST_VALUE"])]), change),
    }


@pytest.mark.parametrize("name", changing())
def test_host_data_that_changes_is_never_stale(name: str) -> None:
    expected, found = (
        calls(make(function), change)
        for make, (function, change) in ((list_of, changing()[name]), (jit, changing()[name]))
    )
    assert found == expected
    assert found[5] != found[8]


def list_of(function: Function) -> Function:
    return function


def test_files_and_addresses_are_read_at_every_call(tmp_path: Path) -> None:
    path, memory = tmp_path / "numbers", (ctypes.c_float * 2)()

    def change(value: int) -> None:
        np.full(2, value, np.float32).tofile(path)
        np.save(f"{path}.npy", np.full(2, value, np.float32))
        memory[:] = [value, value]

    functions: list[Function] = [
        lambda x: x + Tensor(np.fromfile(path, np.float32)),
        lambda x: x + Tensor(np.load(f"{path}.npy")),
        lambda x: x + Tensor(np.memmap(path, np.float32, "r")),
        lambda x: x + Tensor(np.frombuffer(memory, np.float32)),
        lambda x: x + Tensor.from_blob(ctypes.addressof(memory), (2,)),
    ]
    for function in functions:
        assert calls(jit(function), change)[5:] == [[1.0 + k, 2.0 + k] for k in range(4)]


def test_random_numbers_and_iterators_go_on() -> None:
    random, numbers = np.random.default_rng(3), iter(range(100))
    for function in (
        lambda x: x + Tensor(random.standard_normal(2).astype(np.float32)),
        lambda x: x + Tensor([float(next(numbers)), 0.0]),
    ):
        found = calls(jit(function))
        assert len({tuple(each) for each in found}) == len(found)


# ---------------------------------------------------------------- what is written to, returned or kept


def updated(x: Tensor) -> Tensor:
    sums = Tensor([0.0, 0.0])
    sums += x
    return sums * 2


def set_in_place(x: Tensor) -> Tensor:
    made = Tensor([5.0, 6.0]).realize()
    made[0] = x[1]
    return made + x


def returned(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, Tensor([3.0, 4.0])


def test_host_data_that_is_written_to_begins_anew() -> None:
    for function in (updated, set_in_place):
        assert calls(jit(function)) == calls(function)


def test_a_result_of_host_data_may_be_written_to() -> None:
    call, x = jit(returned), Tensor([1.0, 2.0]).realize()
    for _ in range(6):
        _, made = call(x)
        assert made.tolist() == [3.0, 4.0]
        made += 1
        made.realize()


def test_a_tensor_that_is_kept_may_be_written_to() -> None:
    kept: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        table = Tensor([3.0, 4.0])
        kept[:] = [table]
        return (x + table).realize()

    call, x = jit(function), Tensor([1.0, 2.0]).realize()
    for _ in range(6):
        assert call(x).tolist() == [4.0, 6.0]
        kept[0] += 1
        kept[0].realize()


def test_state_is_updated_by_host_data() -> None:
    def make() -> Function:
        state = Tensor([0.0, 0.0]).realize()

        def function(x: Tensor) -> Tensor:
            state.assign(state + Tensor([1.0, 2.0]))
            return x + state

        return function

    call = jit(make())
    assert calls(call) == calls(make())
    assert call.last_reason == ""


def test_an_argument_whose_array_changes_is_seen() -> None:
    call, x, array = (
        jit(lambda x, a: (x + Tensor(a)[:2]).realize()),
        Tensor([1.0, 2.0]).realize(),
        np.zeros(3000, np.float32),
    )
    for value in (0, 0, 0, 0, 1, 1, 2, 3, 3, 3):
        array[:] = value
        assert call(x, array).tolist() == [1.0 + value, 2.0 + value]


def test_memory_of_the_recorded_calls_is_released() -> None:
    import tracemalloc

    call, x = (
        jit(lambda x: (x + Tensor(np.ones((1 << 20, 2), np.float32)).sum(0)).realize()),
        Tensor([1.0, 2.0]).realize(),
    )
    tracemalloc.start()
    try:
        for _ in range(6):
            call(x)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert call.last_reason == ""
    assert kept < 1 << 23, "the copy of a replay is memory of the device; the bytes it was made of are dropped"

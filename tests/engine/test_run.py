"""A schedule that was run before is one list of launches, given other memory at every run: it never gives a run the
memory of another, holds none of it, and comes to no harm where a run fails or runs inside another."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from tilewright import GlobalCounters, Tensor
from tilewright.base.config import Context
from tilewright.base.errors import OutOfMemoryError
from tilewright.base.events import subscribe
from tilewright.engine.planning import plan
from tilewright.engine.planning.launches import LaunchList
from tilewright.runtime import buffer


def added(values: list[float], number: float = 1.0) -> Tensor:
    return (Tensor(values) + number).realize()


def test_runs_of_one_schedule_have_memory_of_their_own() -> None:
    results = [added([float(step), 1.0]) for step in range(20)]
    assert [result.tolist() for result in results] == [[step + 1.0, 2.0] for step in range(20)]


def test_what_is_alike_but_not_the_same_is_another_schedule() -> None:
    for _ in range(3):
        assert (Tensor([1.0, 2.0]) + 1).realize().tolist() == [2.0, 3.0]
        assert (Tensor([1, 2]) + 1).realize().tolist() == [2, 3]
        assert (Tensor([[1.0], [2.0]]) + 1).realize().tolist() == [[2.0], [3.0]]
        assert (Tensor([1.0, 2.0], device="CPU:1") + 1).realize().tolist() == [2.0, 3.0]
        x = Tensor([1.0, 2.0]).realize()
        assert (x + x).realize().tolist() == [2.0, 4.0]
        assert (x + Tensor([5.0, 6.0])).realize().tolist() == [6.0, 8.0]
        assert (x.flip(0) + Tensor([5.0, 6.0])).realize().tolist() == [7.0, 7.0]


def test_an_update_in_place_writes_to_the_tensor_of_this_run() -> None:
    tensors = [Tensor([float(step)]).contiguous().realize() for step in range(6)]
    for tensor in tensors:
        tensor.assign(tensor + 10).realize()
    assert [tensor.item() for tensor in tensors] == [step + 10.0 for step in range(6)]


def test_a_prepared_list_holds_no_memory_and_is_counted() -> None:
    x = Tensor([1.0] * 1000).realize()
    (x + 1).realize()
    level, count = GlobalCounters.mem_used, GlobalCounters.kernel_count
    for _ in range(3):
        (x + 1).realize()
    assert GlobalCounters.mem_used == level
    assert GlobalCounters.kernel_count == count + 3


def with_temporary_memory(x: Tensor) -> Tensor:
    return (x.contiguous() + 1).sum(0, keepdim=True).contiguous() * x


def with_copies(x: Tensor) -> Tensor:
    return ((x + 1).to("CPU:1") * 2).to("CPU") + (x - 1).contiguous().sum()


@pytest.mark.parametrize("function", [with_temporary_memory, with_copies])
def test_any_schedule_is_one_list_that_holds_no_memory(
    function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [[1.0, 2.0, 3.0], [4.0, -5.0, 6.0], [0.5, 0.25, 8.0]]
    expected = [function(Tensor(row, dtype="float64")).numpy().tolist() for row in values]
    function(Tensor(values[0])).realize()
    made: list[LaunchList] = []
    monkeypatch.setattr(LaunchList, "__init__", lambda self, parts, slots=(): made.append(self))
    level = GlobalCounters.mem_used
    held = [function(Tensor(row)).realize() for row in values]
    assert made == []
    assert [tensor.tolist() for tensor in held] == expected
    del held
    assert GlobalCounters.mem_used == level


def test_a_run_without_memory_fails_and_the_next_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    added([1.0, 2.0])
    x = Tensor([3.0, 4.0]).realize()

    def refuse(device: str, nbytes: int) -> None:
        raise OutOfMemoryError("allocate", "none left")

    with monkeypatch.context() as patch:
        patch.setattr(buffer, "allocate", refuse)
        with pytest.raises(OutOfMemoryError):
            (x + 1).realize()
    lists = [known.launches for known in plan._plans.values() if known.launches is not None]
    assert lists
    assert not any(launches.is_running for launches in lists)
    assert (x + 1).realize().tolist() == [4.0, 5.0]


def test_a_run_inside_a_run_takes_a_list_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a destructor that computes something would."""
    added([1.0, 2.0])
    seen: list[list[float]] = []
    ensure = buffer.Buffer.ensure

    def ensure_and_compute(self: buffer.Buffer) -> object:
        if not seen:
            seen.append([])
            seen[0] = added([10.0, 20.0]).tolist()
        return ensure(self)

    monkeypatch.setattr(buffer.Buffer, "ensure", ensure_and_compute)
    assert added([5.0, 6.0]).tolist() == [6.0, 7.0]
    assert seen == [[11.0, 21.0]]


def test_threads_realise_at_once() -> None:
    wrong: list[list[float]] = []

    def compute(first: float) -> None:
        for step in range(100):
            found = added([first, float(step)]).tolist()
            if found != [first + 1, step + 1.0]:
                wrong.append(found)

    threads = [threading.Thread(target=compute, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def count_lists() -> int:
    gc.collect()
    return sum(isinstance(value, LaunchList) for value in gc.get_objects())


def test_lists_that_are_not_seen_again_do_not_pile_up() -> None:
    before = count_lists()
    with Context(PLAN_CACHE=4), subscribe(lambda event: None, kinds=("pass-end",)):
        for step in range(12):
            assert added([float(step)]).item() == step + 1.0
    assert count_lists() <= before

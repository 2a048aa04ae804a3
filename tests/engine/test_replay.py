"""A replay is one native call for all kernels of a device; its results are tensors like any other, whose node is made
when it is first asked for, and nobody writes to their memory while they are held."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tilewright import GlobalCounters, Tensor, UOp, jit
from tilewright.base.errors import OutOfMemoryError, ShapeError
from tilewright.engine.jit.jit import Jit
from tilewright.engine.jit.replay import Replay


def replay_of(function: Jit[Any, Any]) -> Replay:
    (entry,) = function.entries.values()
    assert entry.ready is not None
    return entry.ready.replay


def three_kernels(x: Tensor) -> Tensor:
    return ((x + 1).contiguous().sum(0, keepdim=True).contiguous() * x).realize()


def test_kernels_of_one_device_are_one_call() -> None:
    function = jit(three_kernels)
    for step in range(4):
        x = Tensor([1.0, 2.0, float(step)])
        assert function(x).tolist() == [(6.0 + step) * value for value in (1.0, 2.0, float(step))]
    replay = replay_of(function)
    assert replay.work[0] == 3
    assert len(replay.steps) == 1


def test_a_copy_between_devices_parts_the_calls() -> None:
    function = jit(lambda x: ((x + 1).to("CPU:1") * 2).to("CPU").sub(1).realize())
    for step in range(4):
        assert function(Tensor([1.0, float(step)])).tolist() == [3.0, 2.0 * step + 1.0]
    replay = replay_of(function)
    assert len(replay.steps) == 5  # kernel, copy, kernel, copy, kernel


def test_runs_of_one_replay_share_their_temporary_memory() -> None:
    """Two runs with temps of different sizes: what is recorded keeps none of it, and the replay has the larger."""

    def two_runs(x: Tensor) -> Tensor:
        first = ((x + 1).contiguous().sum(0, keepdim=True).contiguous() * x).realize()
        wide = first.reshape(1, 3).expand(400, 3).contiguous() * 2
        return (wide.contiguous().sum(0).contiguous() + first).realize()

    function = jit(two_runs)
    x = Tensor([1.0, 2.0, 3.0]).realize()
    expected = [(9.0 * value) * 801.0 for value in (1.0, 2.0, 3.0)]
    assert function(x).tolist() == expected
    (entry,) = function.entries.values()
    assert entry.record is not None
    assert [execution.arenas for execution in entry.record.executions] == [{}, {}]
    for _ in range(4):
        assert function(x).tolist() == expected
    first, second = replay_of(function).executions
    assert first.arenas is second.arenas
    sizes = [dict(execution.schedule.arenas)["CPU"] for execution in (first, second)]
    assert sizes[0] != sizes[1]
    assert first.arenas["CPU"].nbytes == max(sizes)


def test_replays_are_counted() -> None:
    function = jit(three_kernels)
    x = Tensor([1.0, 2.0, 3.0]).realize()
    for _ in range(3):
        function(x)
    before, level = GlobalCounters.kernel_count, GlobalCounters.mem_used
    held = [function(x) for _ in range(10)]
    assert GlobalCounters.kernel_count == before + 30
    assert GlobalCounters.mem_used == level + 9 * 3 * 4  # one was kept for the next call
    del held
    assert GlobalCounters.mem_used == level + 3 * 4  # and one for who keeps the last result


def test_a_result_that_finds_no_memory_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    function = jit(lambda x: ((x + 1).realize(), (x.reshape(3, 1) * x).realize()))
    x = Tensor([1.0, 2.0, 3.0]).realize()
    for _ in range(3):
        function(x)
    assert function.last_reason == ""
    replay = replay_of(function)
    replay.kept[:] = [None, None]
    level = GlobalCounters.mem_used

    def refuse(nbytes: int) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(replay, "results", [replay.results[0], (refuse, *replay.results[1][1:])])
    with pytest.raises(OutOfMemoryError, match="CPU has no 36 bytes left"):
        function(x)
    replay.kept[0] = None  # the first result found its memory
    assert GlobalCounters.mem_used == level


def replayed(values: list[float]) -> tuple[Jit[Any, Any], Tensor]:
    """A function that doubles, ready to be replayed, and the result of a replay."""
    function = jit(lambda x: (x * 2).realize())
    for _ in range(3):
        result = function(Tensor(values))
    assert function.last_reason == ""
    assert "uop" not in vars(result)
    return function, result


def test_results_are_kept_apart_before_they_have_a_node() -> None:
    function, first = replayed([1.0, 2.0])
    others = [function(Tensor([float(step), 0.0])) for step in range(20)]
    assert first.tolist() == [2.0, 4.0]
    assert [other.tolist() for other in others] == [[2.0 * step, 0.0] for step in range(20)]


HOLD: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda result: result,
    "node": lambda result: result.uop,
    "array": lambda result: result.numpy(),
    "bytes": lambda result: result._buffer().view(),
    "expression": lambda result: result + 0,
}


@pytest.mark.parametrize("how", list(HOLD))
def test_the_memory_of_a_small_result_is_used_again_once_nobody_holds_it(how: str) -> None:
    function, _ = replayed([1.0, 2.0])

    def address(result: Tensor) -> int:
        return int(result._memory[0].memory.address)

    first = address(function(Tensor([3.0, 4.0])))
    assert address(function(Tensor([5.0, 6.0]))) == first
    result = function(Tensor([7.0, 8.0]))
    assert address(result) == first
    held = HOLD[how](result)
    del result
    other = function(Tensor([0.0, 1.0]))
    assert how == "array" or address(other) != first  # an array is a copy
    found = Tensor(held) if isinstance(held, UOp) else held
    if isinstance(held, memoryview):
        assert held.cast("f").tolist() == [14.0, 16.0]
    else:
        assert found.tolist() == [14.0, 16.0]


def test_a_large_result_is_not_kept() -> None:
    function = jit(lambda x: (x + 1).realize())
    x = Tensor.zeros(1 << 16).contiguous().realize()
    for _ in range(4):
        function(x)
    level = GlobalCounters.mem_used
    result = function(x)
    assert GlobalCounters.mem_used == level + 4 * (1 << 16)
    del result
    assert GlobalCounters.mem_used == level


def test_a_result_is_fed_back() -> None:
    function, value = replayed([1.0, 3.0])
    for _ in range(5):
        given, value = value, function(value)
        assert "uop" not in vars(given)
    assert value.tolist() == [64.0, 192.0]


def test_a_result_that_became_another_tensor_is_given_as_that() -> None:
    function, value = replayed([1.0, 3.0])
    value.replace(Tensor([5.0, 6.0]))
    assert function(value).tolist() == [10.0, 12.0]


@pytest.mark.parametrize("how", ["assign", "setitem", "view", "replace"])
def test_a_result_is_updated_in_place(how: str) -> None:
    function, result = replayed([1.0, 2.0])
    again = function(Tensor([1.0, 2.0]))
    if how == "assign":
        result.assign(Tensor([7.0, 8.0]))
    elif how == "setitem":
        result[0] = 7.0
        result[1] = 8.0
    elif how == "view":
        result.reshape(2, 1)[:, 0].assign(Tensor([7.0, 8.0]))
    else:
        result.replace(Tensor([7.0, 8.0]))
    assert result.tolist() == [7.0, 8.0]
    assert again.tolist() == [2.0, 4.0]


def test_state_that_is_returned_is_the_tensor_itself() -> None:
    total = Tensor([0.0]).contiguous().realize()

    @jit
    def add(x: Tensor) -> Tensor:
        total.assign(total + x)
        return total.realize()

    seen = [add(Tensor([1.0])) for _ in range(6)]
    assert total.item() == 6.0
    assert all(value is total for value in seen)  # as without jit, in traced calls and in replays
    assert add.last_reason == ""


@pytest.mark.parametrize("how", ["twice", "argument", "state", "handed on"])
def test_a_result_that_shares_its_memory_is_not_overwritten_through_the_other(how: str) -> None:
    """Results are entered among the tensors that are alive when somebody else can come to write to their memory."""
    held = Tensor([2.0, 4.0]).contiguous().realize()

    def double(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2).realize()
        views = {"argument": (x.detach(), x.detach()), "state": (held.detach(), held.detach())}
        return {**views, "twice": (y, y), "handed on": (y, (x + 5).realize())}[how]

    function, step = jit(double), jit(lambda x: x.assign(x + 100).realize())
    for _ in range(4):
        step(Tensor([0.0, 0.0]).contiguous().realize())
        x = Tensor([2.0, 4.0] if how == "argument" else [1.0, 2.0]).contiguous().realize()
        first, second = function(x)
    assert function.last_reason == ""
    if how == "handed on":
        assert "uop" not in vars(first)
        second = jit_identity(first)
    step(second)
    assert first.tolist() == [2.0, 4.0]
    step(first)
    assert first.tolist() == [102.0, 104.0]
    assert second.tolist() == [102.0, 104.0]


def jit_identity(x: Tensor) -> Any:
    """A replay that gives another tensor of its argument's memory."""
    function = jit(lambda x: (x.detach(), (x + 1).realize()))
    for given in (Tensor([0.0, 1.0]).realize(), Tensor([0.0, 1.0]).realize(), x):
        result = function(given)[0]
    assert function.last_reason == ""
    assert result is not x
    return result


def test_signatures_in_turn_are_told_apart() -> None:
    """The last signature is compared before any is looked up."""
    function = jit(lambda x, y: (x + y).realize())
    one, two = Tensor([1.0, 2.0]).realize(), Tensor([[3.0], [4.0]]).realize()
    whole = Tensor([5, 6]).realize()
    other = Tensor([7.0, 8.0], device="CPU:1").realize()
    learned = Tensor([9.0, 10.0], requires_grad=True).realize()
    cases: list[tuple[tuple[Tensor, Tensor], list[Any]]] = [
        ((one, one), [2.0, 4.0]),
        ((one, two), [[4.0, 5.0], [5.0, 6.0]]),
        ((whole, whole), [10, 12]),
        ((one, whole), [6.0, 8.0]),
        ((other, other), [14.0, 16.0]),
        ((one, learned), [10.0, 12.0]),
        ((learned, one), [10.0, 12.0]),
    ]
    for _ in range(4):
        for (x, y), expected in cases:
            result = function(x, y)
            assert result.tolist() == expected
            assert result.device == x.device
            assert result.dtype is (x + y).dtype
            with Tensor.no_grad():
                assert function(x, y).tolist() == expected
    assert len(function.entries) == 2 * len(cases)
    function.reset()
    function(learned, one)
    assert function.last_reason == "the call was traced to record it"


def test_threads_with_signatures_of_their_own_get_their_own_results() -> None:
    function = jit(lambda x: (x * 2 + 1).realize())
    wrong: list[object] = []
    start = threading.Barrier(4)

    def call(size: int) -> None:
        x = Tensor([float(size)] * size).realize()
        start.wait()
        for _ in range(200):
            result = function(x)
            if result.shape != (size,) or result.tolist() != [2.0 * size + 1.0] * size:
                wrong.append(result)

    threads = [threading.Thread(target=call, args=(size,)) for size in (2, 3, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_zero_of_the_other_sign_is_another_number(zero: float) -> None:
    scale = [zero]
    given, reached = jit(lambda x, by: (x / by).realize()), jit(lambda x: (x / scale[0]).realize())
    x = Tensor([1.0]).realize()
    for _ in range(3):
        given(x, zero)
        reached(x)
    assert reached.last_reason == given.last_reason == ""
    scale[0] = -zero
    for result in (given(x, -zero), reached(x)):
        assert math.copysign(1.0, result.item()) == math.copysign(1.0, -zero)


def test_an_error_inside_leaves_the_function_to_be_called_again() -> None:
    function = jit(lambda x, wrong: (x + 1).realize() if not wrong else x.reshape(7))
    x = Tensor([1.0, 2.0]).realize()
    for _ in range(3):
        assert function(x, False).tolist() == [2.0, 3.0]
        with pytest.raises(ShapeError):
            function(x, True)
    assert function(x, False).tolist() == [2.0, 3.0]
    assert function.last_reason == ""


def test_threads_that_ask_for_a_node_get_the_same() -> None:
    _, result = replayed([1.0, 2.0])
    start, nodes = threading.Barrier(8), []

    def ask() -> None:
        start.wait()
        nodes.append(result.uop)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(nodes) == 8
    assert len(set(nodes)) == 1


def test_a_result_says_where_it_was_computed() -> None:
    _, result = replayed([1.0, 2.0])
    assert result.uop.line is not None
    assert result.uop.line[0] == __file__

"""Events reach those who listen and nobody else; counters and stage times add up."""

from __future__ import annotations

import threading
import time

import pytest

from tilewright.base import events
from tilewright.base.errors import InternalError
from tilewright.base.events import Event, GlobalCounters, emit, stage_timer, stage_times, subscribe


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    """Start each test from zero, and with nobody listening."""
    assert events.listeners == {}
    GlobalCounters.reset()
    events.stage_times.clear()
    events.pass_times.clear()


def test_events_reach_the_listener_with_their_fields() -> None:
    seen: list[Event] = []
    before = time.perf_counter_ns()
    with subscribe(seen.append, kinds=("rule-fired",)):
        emit("rule-fired", rule="add-zero", before="x + 0", after="x")
        emit("copy", bytes=4)
    emit("rule-fired", rule="add-zero")
    (event,) = seen
    assert event.kind == "rule-fired"
    assert event["rule"] == "add-zero"
    assert event.fields == {"rule": "add-zero", "before": "x + 0", "after": "x"}
    assert before <= event.time_ns <= time.perf_counter_ns()


def test_all_kinds_without_a_choice() -> None:
    seen: list[Event] = []
    with subscribe(seen.append):
        for kind in events.KINDS:
            emit(kind)
    assert [event.kind for event in seen] == list(events.KINDS)


def test_listeners_shows_only_what_is_listened_to() -> None:
    with subscribe(print, kinds=("copy",)), subscribe(print, kinds="schedule"):
        assert set(events.listeners) == {"copy", "schedule"}
        assert "rule-fired" not in events.listeners
    assert not events.listeners


def test_listeners_are_called_in_order_and_leave_alone() -> None:
    order: list[str] = []
    first = subscribe(lambda event: order.append("first"), kinds=("copy",))
    second = subscribe(lambda event: order.append("second"), kinds=("copy", "copy"))
    emit("copy")
    first.close()
    first.close()
    emit("copy")
    second.close()
    emit("copy")
    assert order == ["first", "second", "second"]


def test_a_listener_may_leave_while_it_is_called() -> None:
    seen: list[str] = []
    once = subscribe(lambda event: (seen.append("once"), once.close()), kinds=("copy",))
    with subscribe(lambda event: seen.append("always"), kinds=("copy",)):
        emit("copy")
        emit("copy")
    assert seen == ["once", "always", "always"]


def test_what_a_listener_raises_stops_the_emitter() -> None:
    def refuse(event: Event) -> None:
        raise KeyError(event.kind)

    with pytest.raises(KeyError, match="copy"), subscribe(refuse, kinds=("copy",)):
        emit("copy")
    emit("copy")


def test_unknown_kinds_are_refused_on_both_sides() -> None:
    with pytest.raises(InternalError, match="rule-fried"):
        emit("rule-fried")
    with pytest.raises(InternalError, match="rule-fried"):
        subscribe(print, kinds=("copy", "rule-fried"))
    assert not events.listeners


def test_counters_add_up_and_reset() -> None:
    GlobalCounters.add_note((1, 10, 100, 0.5))
    GlobalCounters.add_note((3, 1, 2, 0.25))
    GlobalCounters.compile_time_s += 1.5
    assert (GlobalCounters.kernel_count, GlobalCounters.global_ops, GlobalCounters.global_mem) == (4, 11, 102)
    assert (GlobalCounters.time_sum_s, GlobalCounters.compile_time_s) == (0.75, 1.5)
    GlobalCounters.reset()
    assert (GlobalCounters.kernel_count, GlobalCounters.global_ops, GlobalCounters.global_mem) == (0, 0, 0)
    assert (GlobalCounters.time_sum_s, GlobalCounters.compile_time_s) == (0.0, 0.0)


def test_memory_is_a_level_that_reset_keeps() -> None:
    before = GlobalCounters.mem_used
    GlobalCounters.add_memory(64, "CPU")
    GlobalCounters.reset()
    assert GlobalCounters.mem_used == before + 64
    GlobalCounters.add_memory(-64, "CPU")
    assert GlobalCounters.mem_used == before


def test_counters_lose_nothing_between_threads() -> None:
    def work() -> None:
        for _ in range(2000):
            GlobalCounters.add_note((1, 2, 0, 0.0))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (GlobalCounters.kernel_count, GlobalCounters.global_ops) == (8000, 16000)


class Clock:
    """A clock that moves only when told, so that times can be compared exactly."""

    def __init__(self) -> None:
        self.now = 1000

    def perf_counter_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(events, "time", clock)
    return clock


def test_time_inside_an_inner_timer_counts_once(clock: Clock) -> None:
    with stage_timer("compile") as outer:
        clock.now += 5
        with stage_timer("lower"):
            clock.now += 70
            with stage_timer("render"):
                clock.now += 300
        clock.now += 20
        with stage_timer("lower"):
            clock.now += 1000
    assert stage_times == {"compile": 25, "lower": 1070, "render": 300}
    assert outer.total_ns == 1395
    assert GlobalCounters.compile_time_s == pytest.approx(1395e-9)


def test_timer_counts_also_when_the_block_raises(clock: Clock) -> None:
    def fail_after(nanoseconds: int) -> None:
        with stage_timer("schedule"):
            clock.now += nanoseconds
            raise KeyError

    with pytest.raises(KeyError):
        fail_after(40)
    with stage_timer("schedule"):
        clock.now += 2
    assert stage_times == {"schedule": 42}


def test_timers_of_another_thread_are_not_inner(clock: Clock) -> None:
    def work() -> None:
        with stage_timer("render"):
            clock.now += 7

    with stage_timer("compile"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        clock.now += 1
    assert stage_times == {"render": 7, "compile": 8}


def test_counters_add_up_past_the_length_of_their_queues() -> None:
    level = GlobalCounters.mem_used
    for _ in range(3 * GlobalCounters.MAX_NOTES):
        GlobalCounters.add_note((1, 2, 0, 0.0))
        GlobalCounters.add_memory(5, "CPU")
        GlobalCounters.free_memory(("CPU", -5))
    assert (GlobalCounters.kernel_count, GlobalCounters.global_ops) == (
        3 * GlobalCounters.MAX_NOTES,
        6 * GlobalCounters.MAX_NOTES,
    )
    assert GlobalCounters.mem_used == level

"""Kernels are compiled beside the making of their texts, each once, on as many threads as the device allows."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from tilewright import Context, Tensor, jit
from tilewright.backends.cpu.device import CpuDriver
from tilewright.base.config import options
from tilewright.base.errors import CompileError
from tilewright.engine.compilation import compile as compile_module
from tilewright.engine.compilation import workers
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.compilation.workers import Workers
from tilewright.engine.planning.plan import Plan
from tilewright.graph.records import Program


def living_workers() -> int:
    """Not all threads: one that another test has left may end at any time."""
    return sum(thread.name == "tilewright-worker" for thread in threading.enumerate())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_call_runs_once_and_sees_the_options(count: int) -> None:
    done: list[tuple[int, int]] = []
    with Context(DEBUG=0, SEED=5), Workers(count) as workers:
        for number in range(20):
            workers.give(lambda number=number: done.append((number, options.SEED)))  # type: ignore[misc]
        workers.finish()
        assert sorted(done) == [(number, 5) for number in range(20)]
    assert living_workers() == 0


def test_a_thread_that_ran_out_of_calls_takes_those_given_later() -> None:
    with Workers(1) as workers:
        for _ in range(3):
            is_done = threading.Event()
            workers.give(is_done.set)
            assert is_done.wait(600)
        workers.finish()


def test_the_longest_of_those_that_wait_comes_first() -> None:
    done: list[int] = []
    with Workers(0) as workers:
        for size in (2, 5, 3, 5):
            workers.give(lambda size=size: done.append(size), size)  # type: ignore[misc]
        workers.finish()
    assert done == [5, 5, 3, 2]


def test_the_earliest_failure_is_raised_and_the_others_still_run() -> None:
    done = []

    def work(number: int) -> None:
        time.sleep(0.001 * (10 - number))
        if number in (3, 6):
            raise ValueError(number)
        done.append(number)

    def run() -> None:
        with Workers(3) as workers:
            for number in range(10):
                workers.give(lambda number=number: work(number))  # type: ignore[misc]
            workers.finish()

    with pytest.raises(ValueError, match="3"):
        run()
    assert sorted(done) == [0, 1, 2, 4, 5, 7, 8, 9]


def test_an_error_of_the_caller_leaves_no_thread() -> None:

    def run() -> None:
        with Workers(2) as workers:
            for _ in range(5):
                workers.give(lambda: time.sleep(0.01))
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert living_workers() == 0


def network() -> Tensor:
    x = Tensor([[float(row + column) for column in range(12)] for row in range(8)])
    for size in (3, 5, 7):
        x = (x * size).sum(0, keepdim=True).contiguous() + x.exp().contiguous()
    return x


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_values_do_not_depend_on_the_threads_that_compile(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = network().numpy().tobytes()
    monkeypatch.setattr(CpuDriver, "compile_threads", threads)
    with Context(CACHE=0):
        forget_kernels()
        assert network().numpy().tobytes() == expected


def test_the_compiler_is_loaded_beside_the_schedule_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    monkeypatch.setattr(compile_module, "_ready", set())
    monkeypatch.setattr(CpuDriver, "compile_threads", 2)
    monkeypatch.setattr(CpuDriver, "load_compiler", lambda self: loads.append(threading.current_thread().name))
    for factor in (2.25, 2.75):
        (Tensor([1.0, 2.0]) * factor).realize()
    assert loads == ["tilewright-worker"]
    assert living_workers() == 0


def test_garbage_is_collected_again_after_a_plan_whatever_becomes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def refuse(self: CpuDriver, program: Program) -> str:
        seen.append(gc.isenabled())
        raise CompileError("no", source="")

    monkeypatch.setattr(CpuDriver, "render", refuse)
    forget_kernels()
    with Context(CACHE=0), pytest.raises(CompileError):
        (Tensor([1.0, 2.0]) * 1.375).realize()
    assert seen == [False]
    assert gc.isenabled()


def test_garbage_is_not_collected_while_a_call_is_traced() -> None:
    seen: list[bool] = []

    def call(x: Tensor, fails: bool) -> Tensor:
        seen.append(gc.isenabled())
        if fails:
            raise LookupError
        return (x * 1.4375).realize()

    traced = jit(call)
    assert traced(Tensor([1.0, 2.0]), False).tolist() == [1.4375, 2.875]
    assert gc.isenabled()
    with pytest.raises(LookupError):
        traced(Tensor([1.0, 2.0]), True)
    assert gc.isenabled()
    assert seen == [False, False]


def test_what_a_plan_holds_is_no_longer_young_and_what_a_program_has_frozen_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen = gc.get_freeze_count()  # by the tests themselves
    with Context(CACHE=0):
        (Tensor([1.0, 2.0]) * 1.5625).realize()
    assert gc.get_freeze_count() > frozen // 2 > 0
    gc.unfreeze()
    monkeypatch.setattr(workers, "_has_frozen", False)
    try:
        with Context(CACHE=0):
            (Tensor([1.0, 2.0]) * 1.6875).realize()
        young = [*gc.get_objects(generation=0), *gc.get_objects(generation=1)]
    finally:
        gc.freeze()
    assert not any(isinstance(each, Plan) for each in young)


def test_frozen_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count walks all of them: with the objects of this suite every plan took 10 ms more."""
    counts: list[int] = []
    monkeypatch.setattr(workers, "_has_frozen", False)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(1) or 5)
    for _ in range(3):
        workers.skip_young_generations()
    assert len(counts) == 1


def test_equal_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    original = CpuDriver.compile

    def compile_noted(self: CpuDriver, source: str) -> bytes:
        compiled.append(source)
        return original(self, source)

    monkeypatch.setattr(CpuDriver, "compile", compile_noted)
    with Context(CACHE=0):
        forget_kernels()
        first = [Tensor([float(number)] * 5).contiguous().realize() for number in range(4)]
        Tensor.realize(*[(x * 3.5).contiguous() for x in first])  # four equal kernels of one schedule
        assert len(compiled) == len(set(compiled)) > 0
        seen = len(compiled)
        (first[0] * 3.5).contiguous().realize()  # and of another
        assert len(compiled) == seen


def test_what_the_compiler_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDriver, "render", lambda self, program: "define void @kernel( {")
    forget_kernels()
    with Context(CACHE=0), pytest.raises(CompileError, match="parse"):
        (Tensor([1.0, 2.0]) * 1.75).realize()
    assert living_workers() == 0

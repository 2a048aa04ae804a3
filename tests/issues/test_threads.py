"""Several threads at once: a reader of a tensor that others update sees one of its states and never a mix of two, no
update is lost, and what each thread computes by itself is right. Threads change places as often as Python lets them."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tilewright import Context, Tensor, jit, nn
from tilewright.base.config import options
from tilewright.engine.execution import realize as realize_module
from tilewright.engine.execution import traces
from tilewright.graph.uop import UOp
from tilewright.nn.optim import SGD
from tilewright.nn.state import safe_load, safe_save
from tilewright.runtime.access import Reader, begin_read, end_read, overwriting
from tilewright.runtime.buffer import Buffer
from tilewright.tensor.core import storage

SIZE = 1031
# Equal expressions of two threads are one node: a trace that finds its value there is tried again, and may say so.
pytestmark = pytest.mark.filterwarnings("ignore:jit:tilewright.base.warning.JitWarning")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
Work = Callable[[int], None]


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_together(*works: tuple[Work, int]) -> None:
    """Each work so many times, in a thread of its own; the first error of any ends all."""
    failures: list[str] = []

    def repeat(work: Work, count: int) -> None:
        try:
            for turn in range(count):
                if not failures:
                    work(turn)
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=repeat, args=pair, daemon=True) for pair in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "threads wait for one another"
    assert not failures, failures[0]


def even(values: np.ndarray) -> float:
    """The one number that all elements are."""
    assert (values == values.flat[0]).all(), np.unique(values)
    return float(values.flat[0])


# ---------------------------------------------------------------- one tensor, readers and writers


def memory(size: int = SIZE) -> Tensor:
    return Tensor.zeros(size).contiguous().realize()


def assign_number(w: Tensor) -> Work:
    def work(turn: int) -> None:
        w.assign(Tensor.full((SIZE,), float(turn)).contiguous())
        if turn % 3 == 0:
            w.realize()

    return work


def add_one(w: Tensor) -> Work:
    return lambda turn: (w.assign(w + 1).realize(), None)[1]


def replace(w: Tensor) -> Work:
    return lambda turn: (w.replace(Tensor.full((SIZE,), float(turn)).contiguous()), None)[1]


READERS: dict[str, Callable[[Tensor], object]] = {
    "numpy": lambda w: even(w.numpy()),
    "tolist": lambda w: even(np.array(w.tolist())),
    "expression": lambda w: even((w * 2 + 1).numpy()),
    "sum": lambda w: (w + 0).sum().item(),
    "view": lambda w: even(w[5:100].reshape(5, 19).numpy()),
    "lazy": lambda w: [even(t.numpy()) for t in [w + number for number in range(3)]],
    "pickle": lambda w: even(np.frombuffer(w.__reduce_ex__(4)[1][1], dtype=np.float32)),
    "item": lambda w: w[3].item(),
}


@pytest.mark.parametrize("write", [assign_number, add_one, replace])
def test_readers_beside_a_writer(write: Callable[[Tensor], Work]) -> None:
    w = memory()
    works = [(lambda turn, read=read: read(w), 30) for read in READERS.values()]
    run_together((write(w), 30), *works)  # type: ignore[arg-type]
    even(w.numpy())


def test_a_tensor_that_is_replaced_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Tensor.full((SIZE,), 1.0).contiguous()
    real = realize_module.realize

    def replaced_first(nodes: list[UOp], device: str) -> list[UOp]:
        monkeypatch.undo()
        reader = w * 2 + 1
        w.replace(Tensor.full((SIZE,), 5.0).contiguous())
        assert even(reader.numpy()) == 3
        return real(nodes, device)

    monkeypatch.setattr(storage, "_realizer", lambda: replaced_first)
    assert even(w.numpy()) == 5


def test_several_writers_and_readers() -> None:
    w = memory()
    works = [(lambda turn, read=read: read(w), 30) for read in READERS.values()]
    run_together((assign_number(w), 30), (add_one(w), 30), *works)  # type: ignore[arg-type]
    even(w.numpy())


def test_no_update_of_a_part_is_lost() -> None:
    w = memory(8 * 25)

    def writer(number: int) -> Work:
        def work(turn: int) -> None:
            w[number * 25 + turn] = float(turn + 1)
            if turn % 7 == number % 7:
                w.realize()

        return work

    run_together(*((writer(number), 25) for number in range(8)))
    np.testing.assert_array_equal(w.numpy().reshape(8, 25), np.tile(np.arange(1, 26, dtype=np.float32), (8, 1)))


def test_no_gradient_is_lost() -> None:
    w = Tensor.ones(SIZE).contiguous().realize().requires_grad_()
    run_together(*((lambda turn: (w * 2).sum().backward(), 15) for _ in range(4)))
    assert w.grad is not None
    assert even(w.grad.numpy()) == 4 * 15 * 2


def test_no_two_threads_draw_the_same_numbers() -> None:
    drawn: list[np.ndarray] = []
    run_together(*((lambda turn: drawn.append(Tensor.rand(64).numpy()), 15) for _ in range(4)))
    assert len({values.tobytes() for values in drawn}) == 60


def test_one_lazy_tensor_realised_by_all() -> None:
    for _ in range(10):
        constant = Tensor.full((SIZE,), 3.0)
        computed = (Tensor.ones(SIZE).contiguous() * 2 + 1).contiguous()
        found: list[float] = []
        run_together(*((lambda turn: found.append(even(constant.numpy()) + even(computed.numpy())), 1),) * 6)  # noqa: B023
        assert found == [6.0] * 6


def test_weights_are_saved_while_another_thread_trains_them(tmp_path: Path) -> None:
    weights = {f"w{number}": memory() for number in range(3)}
    weights["empty"] = Tensor.zeros(0)

    def save(turn: int) -> None:
        safe_save(weights, tmp_path / f"weights{turn % 2}")
        for name, value in safe_load(tmp_path / f"weights{turn % 2}").items():
            assert name == "empty" or even(value.numpy()) >= 0

    run_together((save, 20), *((add_one(weights[f"w{number}"]), 30) for number in range(3)))


# ---------------------------------------------------------------- who has a node in a variable


def test_only_what_somebody_may_still_read_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[object] = []
    monkeypatch.setattr(_thread, "_count", lambda: 1)
    monkeypatch.setattr(realize_module, "keep_contents", copied.append)
    w = memory()
    for _ in range(3):
        w.assign(w + 1).realize()
        w[3:9] = 5
        w.realize()
        w.assign(w * 2)
        w.assign(w + 1)
        w.realize()
        w.reshape(SIZE, 1).assign(Tensor.ones(SIZE, 1)).realize()
        Tensor.rand(5).realize()
        Tensor.zeros(4).realize()
    model = nn.Linear(4, 3)
    optimiser = SGD([model.weight, model.bias], lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(Tensor.ones(2, 4)).sum().backward()
        optimiser.step()
    assert copied == []


@pytest.mark.parametrize("build", [lambda w: w, lambda w: w * 2, lambda w: w.reshape(SIZE, 1), lambda w: w[2:5] + w[1]])
def test_an_operation_that_has_read_a_node_finds_its_contents(
    build: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_thread, "_count", lambda: 1)
    w = memory()
    expected = build(w).numpy()
    node = build(w).uop  # as an operation of another thread has it before it enters its result
    for number in range(3):
        w.assign(w + 1 + number).realize()
        w[1:4] = 9
    w.realize()
    np.testing.assert_array_equal(Tensor._from_uop(node, "CPU").numpy(), expected)


# ---------------------------------------------------------------- who reads memory while it is overwritten


def test_who_overwrites_waits_for_readers_and_they_for_it() -> None:
    buffer, other = (Buffer("CPU", Tensor([1.0]).dtype, 1) for _ in range(2))
    state = {"readers": 0, "writers": 0}
    reader_of_both = [Reader((other,)), Reader(), Reader()]

    def read(number: int) -> Work:
        def work(turn: int) -> None:
            begin_read(reader_of_both[number], (buffer,))
            state["readers"] += 1
            assert state["writers"] == 0
            state["readers"] -= 1
            end_read(reader_of_both[number])

        return work

    exclusive = threading.Lock()

    def write(turn: int) -> None:
        with exclusive, overwriting([buffer if turn % 2 else other]):
            state["writers"] += turn % 2
            assert not (turn % 2 and state["readers"])
            state["writers"] -= turn % 2

    run_together((read(0), 2000), (read(1), 2000), (read(2), 2000), (write, 2000), (write, 2000))


# ---------------------------------------------------------------- jit


def adding_step(w: Tensor) -> Callable[[Tensor], Tensor]:
    @jit
    def step(x: Tensor) -> Tensor:
        w.assign(w + x)
        return x * 2

    return step


@pytest.mark.parametrize("name", list(READERS))
def test_readers_beside_a_jitted_step(name: str) -> None:
    """The step is traced and then replayed while the other thread reads what it updates."""
    w, one = memory(), Tensor([1.0]).realize()
    step = adding_step(w)
    seen: list[float] = []

    def check(turn: int) -> None:
        assert step(one).item() == 2.0

    def read(turn: int) -> None:
        READERS[name](w)
        seen.append(w[7].item())

    run_together((check, 150), (read, 60))
    assert even(w.numpy()) == 150  # none was lost, and none done twice
    assert seen == sorted(seen)


def test_a_jitted_function_that_reads_beside_one_that_updates() -> None:
    w, one = memory(), Tensor([1.0]).realize()
    step = adding_step(w)
    read = jit(lambda x: (w * 2 + x, x + 1))

    def check(turn: int) -> None:
        twice, more = read(one)
        assert (even(twice.numpy()) - 1) % 2 == 0
        assert more.item() == 2.0

    run_together((lambda turn: (step(one), None)[1], 150), (check, 80))
    assert even(w.numpy()) == 150


def test_jitted_steps_of_several_threads_on_the_same_tensor() -> None:
    w, one = memory(), Tensor([1.0]).realize()
    step = adding_step(w)
    others = [adding_step(memory()) for _ in range(2)]
    works = [(lambda turn, step=step: (step(one), None)[1], 60) for step in (step, step, *others)]
    run_together(*works)  # type: ignore[arg-type]
    assert even(w.numpy()) == 120


def test_jit_leaves_lazy_tensors_of_other_threads_alone() -> None:
    """They were made while another thread traced, and are no part of what it recorded."""

    def build_and_wait(turn: int) -> None:
        x = Tensor(np.arange(50, dtype=np.float32))
        lazy = [x * number + turn for number in range(5)]
        Tensor.ones(3).realize()
        for number, tensor in enumerate(lazy):
            np.testing.assert_array_equal(tensor.numpy(), np.arange(50) * number + turn)

    def trace_and_replay(turn: int) -> None:
        function = jit(lambda x: (x * (turn + 2)).sum())
        for value in (1.0, 2.0, 3.0, 4.0):
            assert function(Tensor([value, value])).item() == 2 * value * (turn + 2)

    run_together((build_and_wait, 12), (build_and_wait, 12), (trace_and_replay, 6))


def test_a_trace_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traced function may wait for a thread that reads what it updates: the record is not used."""
    monkeypatch.setattr(traces, "MAX_WAIT_SECONDS", 0.05)
    w = memory()
    seen: list[float] = []
    spoiled: list[str] = []
    with traces.tracing(spoiled.append, lambda execution: None):
        w.assign(w + 1)
        thread = threading.Thread(target=lambda: seen.append(even(w.numpy())))
        thread.start()
        thread.join()
    assert seen == [1.0]
    assert spoiled == ["another thread has computed a tensor that the call updates"]


@needs_fork
def test_a_fork_while_another_thread_traces() -> None:
    w, one = memory(), Tensor([1.0]).realize()
    is_inside, go_on = threading.Event(), threading.Event()

    @jit
    def step(x: Tensor) -> Tensor:
        w.assign(w + x)
        is_inside.set()
        go_on.wait(20)
        return x * 2

    thread = threading.Thread(target=lambda: step(one), daemon=True)
    thread.start()
    is_inside.wait(20)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if even(w.numpy()) == 1 else 1)
    status = os.waitpid(pid, 0)[1]
    go_on.set()
    thread.join()
    assert status == 0


# ---------------------------------------------------------------- work of one's own beside all of it


def compute(turn: int) -> None:
    x = np.arange(97, dtype=np.float32) + turn % 5
    y = Tensor(x) * 3
    z = (y + 1).realize()
    np.testing.assert_array_equal((z * y).numpy(), (x * 3 + 1) * (x * 3))


def train(turn: int) -> None:
    model = nn.Linear(4, 3)
    optimiser = SGD([model.weight, model.bias], lr=0.5)
    weight = model.weight.numpy()
    x = np.random.default_rng(turn).random((8, 4), dtype=np.float32)
    model(Tensor(x)).sum().backward()
    optimiser.step()
    np.testing.assert_allclose(model.weight.numpy(), weight - 0.5 * np.tile(x.sum(0), (3, 1)), atol=1e-5)


def draw_with_options(turn: int) -> None:
    with Context(NOOPT=turn % 2, SEED=turn):
        values = Tensor.rand(33).numpy()
        assert (options.NOOPT, options.SEED) == (turn % 2, turn)
    assert ((0 <= values) & (values < 1)).all()
    assert len(set(values.tolist())) > 30


def test_eight_threads_of_everything() -> None:
    w = memory()
    run_together(
        (compute, 40),
        (compute, 40),
        (train, 8),
        (draw_with_options, 20),
        (assign_number(w), 30),
        (add_one(w), 30),
        (lambda turn: (even(w.numpy()), None)[1], 100),
        (lambda turn: (even((w * 3).numpy()), None)[1], 30),
    )


def test_eight_threads_of_everything_with_jit() -> None:
    w, v, one = memory(), memory(), Tensor([1.0]).realize()
    step, pure = adding_step(w), jit(lambda x: (v * 2 + x).sum())
    run_together(
        (compute, 30),
        (train, 5),
        (draw_with_options, 15),
        (lambda turn: (step(one), None)[1], 80),
        (lambda turn: (pure(one).item(), None)[1], 60),
        (add_one(v), 30),
        (lambda turn: (even(w.numpy()), None)[1], 80),
        (lambda turn: (even((v * 3).numpy()), None)[1], 25),
    )
    assert even(w.numpy()) == 80
    assert even(v.numpy()) == 30


def test_calls_of_one_function_that_are_recorded_apart_take_turns() -> None:
    """The argument lies in memory that the function reaches by itself, which is known after the first call only: calls
    before and after have records of their own, and both update `w`."""
    w, one = memory(), Tensor([1.0]).realize()

    @jit
    def step(x: Tensor) -> None:
        w.assign(w + x * one).realize()

    run_together(*[(lambda turn: step(one), 60)] * 4)
    assert even(w.numpy()) == 240

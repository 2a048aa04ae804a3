"""A process may be forked while other threads compute, and interrupted at any moment. The child computes what is known
and what is new; after Ctrl-C the same expressions give the same values, and nothing is left locked or changed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.base.forks import call_in_child, held_lock, renewed_lock, whole
from tilewright.base.interrupts import shielded
from tilewright.engine.compilation.workers import Workers, tuned_interpreter

ROOT = Path(__file__).resolve().parents[2]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def run_script(text: str, *arguments: str, **environment: str) -> str:
    """What a program of its own prints; it may take long on a busy machine, but not for ever."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "VERIFY_GRAPH": "0", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---------------------------------------------------------------- forks

FORKS = """
import gc, multiprocessing, os, random, sys, threading, time
import numpy as np
from tilewright import Context, Tensor, jit

chance = random.Random(int(sys.argv[1]))
is_over = False
w = Tensor.zeros(1000).contiguous().realize()
one = Tensor([1.0]).realize()

@jit
def replayed(x):
    return x * 3 + 1

def churn(number):
    turn = 0
    while not is_over:
        turn += 1
        x = Tensor(np.arange(100 + number + turn % 50, dtype=np.float32))
        (x * (turn + number) + turn).exp().sum().item()  # compiled anew
        w.assign(w + 1).realize()
        replayed(one).item()
        Tensor.rand(10).numpy()

def child(number):
    assert (Tensor([1.0, 2.0]) * 2).tolist() == [2.0, 4.0]
    x = np.arange(64 + number, dtype=np.float32)
    found = ((Tensor(x) * (1.5 + number)).cos() + number).numpy()
    np.testing.assert_allclose(found, np.cos(x * (1.5 + number)) + number, atol=1e-3)
    assert len(set(w.numpy().tolist())) == 1
    assert len(set(w.assign(w + 1).numpy().tolist())) == 1
    assert replayed(one).item() == 4
    big = Tensor.ones(256, 256).contiguous()
    assert (big @ big).sum().item() == 256**3  # on the threads of the pool
    assert sys.getswitchinterval() == interval and gc.isenabled()

def fork(number):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child(number)
            status = 0
        finally:
            os._exit(status)
    return lambda: os.waitpid(pid, 0)[1]

def start(number):
    process = multiprocessing.get_context("fork").Process(target=child, args=(number,))
    process.start()
    return lambda: (process.join(), process.exitcode)[1]

interval = sys.getswitchinterval()
threads = [threading.Thread(target=churn, args=(number,), daemon=True) for number in range(3)]
for thread in threads:
    thread.start()
for number in range(int(sys.argv[2])):
    time.sleep(chance.random() * 0.05)
    status = (fork if number % 2 else start)(number)()
    assert status == 0, (number, status)
is_over = True
for thread in threads:
    thread.join()
# The parent goes on.
assert (Tensor([1.0, 2.0]) * 2.5).tolist() == [2.5, 5.0]
print("done")
"""


@needs_fork
@pytest.mark.parametrize(("seed", "count"), [(1, "6"), pytest.param(2, "60", marks=pytest.mark.slow)])
def test_children_of_a_process_whose_threads_compute(seed: int, count: str, tmp_path: Path) -> None:
    assert run_script(FORKS, str(seed), count, TILEWRIGHT_CACHE_DIR=str(tmp_path / "cache")) == "done\n"


def in_child(check: object) -> bool:
    """Whether a function is true in a child of this process."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if check() else 1)  # type: ignore[operator]
    return os.waitpid(pid, 0)[1] == 0


@needs_fork
def test_locks_of_other_threads_are_free_in_the_child() -> None:
    waited_for, left = held_lock(2), renewed_lock()
    is_held, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def hold() -> None:
        with left, waited_for, whole():
            is_held.set()
            go_on.wait(0.2)
            order.append("released")

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    assert in_child(lambda: order == ["released"] and left.acquire(False) and waited_for.acquire(False))
    thread.join()
    assert waited_for.acquire(False)
    waited_for.release()


@needs_fork
def test_a_lock_of_the_thread_that_forks_stays_its_own() -> None:
    lock, other = renewed_lock(), held_lock(3)
    calls: list[int] = []
    call_in_child(lambda: calls.append(1))

    def check() -> bool:
        lock.release()
        other.release()
        return calls == [1]

    with lock, other, whole():
        assert in_child(check)
    assert calls == []


# ---------------------------------------------------------------- interrupts

INTERRUPTS = """
import gc, os, random, signal, sys, threading, time
import numpy as np
from tilewright import Tensor, jit, nn
from tilewright.nn.optim import Adam

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore SIGINT
chance = random.Random(int(sys.argv[1]))
number = 0
w = Tensor.zeros(100).contiguous().realize()
one = Tensor([1.0, 2.0]).realize()

@jit
def replayed(x):
    return (x * 2).sum()

def compile_new():
    x = Tensor(np.arange(50 + number, dtype=np.float32))
    ((x * (number + 0.5)).cos().sum() + (x + number).exp().max()).realize()

def compute_chain():
    x = Tensor(np.arange(20 + number, dtype=np.float32))
    for step in range(150):
        x = x * 1.0001 + step % 7
    x.realize()

def update():
    w.assign(w + 1)
    w.realize()

def train():
    model = nn.Linear(5 + number % 40, 3)
    optimiser = Adam([model.weight, model.bias])
    (model(Tensor.ones(4, 5 + number % 40)) ** 2).mean().backward()
    optimiser.step()

def interrupt_after(seconds):
    def interrupt():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread

interval = sys.getswitchinterval()
works = [compile_new, compute_chain, update, train, lambda: replayed(one).item()]
thread = None
for turn in range(int(sys.argv[2])):
    work = works[turn % len(works)]
    try:
        thread = interrupt_after(0.02 + chance.random() * 0.15)
        while True:
            number += 1
            work()
    except KeyboardInterrupt:
        thread.join()
    assert sys.getswitchinterval() == interval and gc.isenabled(), work
    # An update has happened or not, for all elements alike, and is not repeated.
    first, second = w.numpy(), w.numpy()
    assert len(set(first.tolist())) == 1 and (first == second).all(), (first, second)
    number += 1
    work()
    x = np.arange(30 + number, dtype=np.float32)
    np.testing.assert_allclose((Tensor(x) * number + 1).numpy(), x * number + 1, rtol=1e-6)
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be sent to a process alone")
@pytest.mark.parametrize(
    ("seed", "count", "threads"),
    [
        (1, "10", "0"),
        (2, "5", "1"),
        pytest.param(3, "60", "0", marks=pytest.mark.slow),
        pytest.param(4, "60", "1", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_at_any_moment(seed: int, count: str, threads: str) -> None:
    """It is a KeyboardInterrupt wherever it arrives, else the work would never end, and leaves everything as it was."""
    assert run_script(INTERRUPTS, str(seed), count, CACHE="0", TILEWRIGHT_THREADS=threads) == "done\n"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_an_interrupted_caller_does_not_wait_for_its_workers(kind: type[BaseException]) -> None:
    go_on = threading.Event()
    threads: list[int] = []

    def work() -> None:
        go_on.wait(10)

    def run() -> None:
        with tuned_interpreter(), Workers(1) as workers:
            workers.give(work)
            threads.append(len(workers._started))
            if kind is not KeyboardInterrupt:
                go_on.set()
            raise kind

    before = sys.getswitchinterval()
    with pytest.raises(kind):
        run()
    assert threads == [1]
    assert go_on.is_set() == (kind is not KeyboardInterrupt)  # an error waits until no thread is left
    go_on.set()
    assert sys.getswitchinterval() == before
    assert gc.isenabled()


def test_a_call_that_is_interrupted_is_no_failure_of_that_call() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    done: list[int] = []

    def run() -> None:
        with Workers(0) as workers:
            workers.give(interrupt, size=2)
            workers.give(lambda: done.append(1), size=1)
            workers.finish()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == []


@pytest.fixture
def default_handler() -> Iterator[None]:
    """A process that a shell started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_handler")
def test_an_interrupt_waits_for_a_shielded_block() -> None:
    seen: list[str] = []

    def run() -> None:
        with shielded():
            signal.raise_signal(signal.SIGINT)
            seen.append("inside")
            with shielded():
                signal.raise_signal(signal.SIGINT)
            seen.append("after the inner block")
        seen.append("never")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert seen == ["inside", "after the inner block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_shielded_block_of_another_thread_changes_nothing() -> None:
    def run() -> None:
        with shielded():
            seen.append(signal.getsignal(signal.SIGINT))

    seen: list[object] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_blocks_that_tune_the_interpreter_nest_and_overlap() -> None:
    before = sys.getswitchinterval()
    entered, go_on = threading.Event(), threading.Event()

    def beside() -> None:
        with tuned_interpreter():
            entered.set()
            go_on.wait(10)

    thread = threading.Thread(target=beside)
    with tuned_interpreter():
        thread.start()
        entered.wait()
        with tuned_interpreter():
            assert not gc.isenabled()
        assert not gc.isenabled()
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before
    assert gc.isenabled()
    go_on.set()
    thread.join()
    time.sleep(0)
    assert sys.getswitchinterval() == before
    assert gc.isenabled()

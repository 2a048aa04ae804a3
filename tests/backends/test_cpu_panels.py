"""Panels: memory of threads that kernels pack operands into. It is there before a kernel runs, no two tasks use one at
a time, and every one is given back."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from tests.kernel.test_products import matrices
from tilewright import Tensor
from tilewright.backends.cpu.host import panels as module
from tilewright.backends.cpu.host.memory import HostMemory
from tilewright.backends.cpu.host.panels import SLOT_BYTES, Panels, panel_offsets, panels
from tilewright.base.errors import OutOfMemoryError
from tilewright.engine.compilation.compile import compile_kernel
from tilewright.graph.records import KernelInfo
from tilewright.kernel.templates import packed_products, products


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(packed_products, "MIN_SHARED", 1)


def states(found: Panels) -> list[int]:
    memory, count, stride = found.made[-1]
    lines = range(memory.address + SLOT_BYTES, memory.address + SLOT_BYTES + count * stride, stride)
    return [ctypes.c_int32.from_address(line).value for line in lines]


def test_placeholders_beyond_the_stack_lie_apart_in_one_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STACK_BYTES", 1 << 12)  # a panel of narrow registers is small
    program = compile_kernel(matrices(32, 1100, 256, (1100, 1, 256, 1)).replace(arg=KernelInfo("panel")), "CPU").program
    places, nbytes = panel_offsets(program)
    assert len(places) == 1
    (node,) = places
    size = node.arg.size * node.dtype.itemsize
    assert size > 1 << 12
    assert (places[node], nbytes) == (0, -(-size // SLOT_BYTES) * SLOT_BYTES)
    assert panels.nbytes >= nbytes


def test_many_threads_launch_one_kernel_at_once() -> None:
    """More than there are panels, so that some wait."""
    left, right = (np.random.default_rng(k).integers(-4, 5, (1100, 1100)).astype(np.float32) for k in range(2))
    expected = left @ right
    given = Tensor(left).realize(), Tensor(right).realize()
    (given[0] @ given[1]).realize()
    wrong: list[int] = []

    def launch(number: int) -> None:
        for _ in range(3):
            if not np.array_equal((given[0] @ given[1]).numpy(), expected):
                wrong.append(number)

    threads = [threading.Thread(target=launch, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not panels.made or set(states(panels)) == {0}


def test_larger_panels_take_the_place_of_smaller_ones() -> None:
    made = Panels()
    word = ctypes.c_void_p.from_address(made.word.address)
    made.ensure(0)
    assert made.made == []
    made.ensure(1 << 12)
    first = word.value
    made.ensure(1 << 10)
    assert word.value == first
    made.ensure(1 << 16)
    assert word.value == made.made[-1][0].address != first
    assert len(made.made) == 2  # a kernel may still use the first
    assert set(states(made)) == {0}


def test_too_little_memory_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Panels()

    def refuse(nbytes: int) -> HostMemory:
        raise MemoryError("none left")

    monkeypatch.setattr(module, "allocate", refuse)
    with pytest.raises(OutOfMemoryError, match="CPU has no"):
        made.ensure(1 << 20)
    assert made.made == []


def test_the_child_of_a_fork_finds_every_panel_free() -> None:
    made = Panels()
    made.ensure(1 << 12)
    memory, _, _ = made.made[-1]
    ctypes.c_int32.from_address(memory.address + SLOT_BYTES).value = 1
    assert 1 in states(made)
    made.renew()
    assert set(states(made)) == {0}

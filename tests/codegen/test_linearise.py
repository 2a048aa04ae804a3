"""Order in programs. Kernels that say in which order effects happen come out as the text that says the same in lines; a
program shown as text is easy to compare, and that it is right is proved by running it on the emulator and the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.kernels import (
    ORDERED,
    after,
    axis,
    barrier,
    contents,
    end,
    expected,
    group,
    kernel,
    load,
    local,
    param,
    register,
    sink,
    store,
    summed,
)
from tilewright.backends.python.device import python_target
from tilewright.backends.python.emulator import run_program
from tilewright.base.config import Context
from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.engine.compilation.compile import compile_kernel
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.text.parse import parse
from tilewright.graph.text.show import show, show_program
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_kernel, verify_program
from tilewright.runtime.device import open_driver

PLAIN = Target("PLAIN", native_ops=python_target().native_ops)


def text_of(ast: UOp) -> str:
    """The program of a kernel, without opts and without the grid, as lines."""
    verify_kernel(ast)
    program = lower(ast, PLAIN)
    verify_program(program)
    return "\n".join(line[2:] for line in show_program(program).splitlines()[1:])


def check(ast: UOp) -> None:
    """On the emulator and compiled, the kernel leaves what the interpreter says."""
    data = contents(ast)
    want = expected(ast, data)
    with Context(VERIFY_GRAPH=1, CACHE=0, BEAM=0):
        for device in ("PYTHON", "CPU"):
            compiled = compile_kernel(ast, device)
            driver = open_driver(device)
            memories = {}
            for node, values in data.items():
                memory = memories[node.arg.slot] = driver.allocate(values.nbytes)
                driver.copy_in(memory, 0, memoryview(values).cast("B"))
            places = [(memories[slot], 0) for slot in sorted(memories)]
            driver.prepare([(compiled.handle, places)]).run()
            driver.synchronize()
            for slot, values in want.items():
                got = np.empty_like(values)
                driver.copy_out(memories[slot], 0, memoryview(got).cast("B"))
                np.testing.assert_array_equal(got, values, err_msg=f"{device} buffer {slot}")


@pytest.mark.parametrize("name", ORDERED)
def test_effects_happen_in_the_order_the_kernel_states(name: str) -> None:
    check(kernel(name))


@pytest.mark.parametrize("name", ORDERED)
def test_the_text_of_a_kernel_parses_back(name: str) -> None:
    assert parse(show(kernel(name))) is kernel(name)


def test_two_loads_of_a_place_before_and_after_a_store_are_two_values() -> None:
    assert (
        text_of(kernel("scan"))
        == """\
reg0: float32[1]
reg0[0] = 0.0
for L0 in 0..8:
  v0: float32 = reg0[0]
  v1: float32 = p2[L0]
  v2: float32 = v0 + v1
  reg0[0] = v2
  p0[L0] = v0
  v3: float32 = reg0[0]
  p1[L0] = v3"""
    )


def test_an_effect_lies_in_the_loops_it_depends_on_and_what_follows_it_behind_them() -> None:
    assert (
        text_of(kernel("polynomial"))
        == """\
reg0: float32[1]
for L0 in 0..4:
  reg0[0] = 0.0
  v0: int32 = L0*6
  for R1 in 0..6:
    v1: float32 = reg0[0]
    v2: float32 = v1*2.0
    v3: int32 = v0 + R1
    v4: float32 = p1[v3]
    v5: float32 = v2 + v4
    reg0[0] = v5
  v6: float32 = reg0[0]
  p0[L0] = v6"""
    )


def test_a_loop_counts_up_to_what_was_computed_before_it() -> None:
    assert (
        text_of(kernel("triangle"))
        == """\
for L0 in 0..5:
  acc0: float32 = 0.0
  v0: int32 = L0*6
  for R1 in 0..L0:
    v1: int32 = v0 + R1
    v2: float32 = p1[v1]
    acc0 = add(acc0, v2)
  v3: float32 = combine(acc0, Ops.ADD)
  p0[L0] = v3"""
    )


def test_loops_closed_together_nest_by_what_is_stored_in_them() -> None:
    """The row is filled once, though the loop that reads it has the smaller id."""
    second, row, first = axis(6, 0), axis(4, 1), axis(6, 2)
    out, x, held = param(0, 24), param(1, 24), local(0, 6)
    filled = end(store(after(held, row), first, load(x, row * 6 + first)), first)
    ast = sink(end(store(out, row * 6 + second, load(after(held, filled), second)), second, row))
    lines = text_of(ast).splitlines()
    assert [line for line in lines if "for" in line] == ["for L1 in 0..4:", "  for L2 in 0..6:", "  for L0 in 0..6:"]
    check(ast)


def test_a_load_comes_before_the_store_that_overwrites_it_though_neither_needs_the_other() -> None:
    """Both outputs see x as it was, whatever order they stand in."""
    step = axis(6, 0)
    x, out = param(0, 6), param(1, 6)
    old = load(x, step)
    for effects in ((store(x, step, 5.0), store(out, step, old)), (store(out, step, old), store(x, step, 5.0))):
        ast = sink(*(end(effect, step) for effect in effects))
        lines = [line.strip() for line in text_of(ast).splitlines()]
        assert lines.index("v0: float32 = p0[L0]") < lines.index("p0[L0] = 5.0")
        check(ast)


def test_a_load_of_the_first_version_comes_before_stores_to_later_ones() -> None:
    """The barrier is not a store: what is behind it is still the memory as it was."""
    x, out = param(0, 1), param(1, 1)
    old = load(x, 0)
    ast = sink(store(after(x, barrier(store(register(0, 1), 0, 1.0))), 0, 9.0), store(out, 0, old))
    lines = text_of(ast).splitlines()
    assert lines.index("v0: float32 = p0[0]") < lines.index("p0[0] = 9.0")
    assert lines.index("barrier") < lines.index("p0[0] = 9.0")


def test_a_barrier_that_names_a_loop_is_met_in_every_iteration() -> None:
    row = axis(3, 0)
    out, held = param(0, 3), local(0, 1)
    filled = store(after(held, barrier(row)), 0, 2.0)
    ast = sink(end(store(out, row, load(after(held, barrier(filled, number=1)), 0)), row))
    assert (
        text_of(ast)
        == """\
local0: float32[1]
for L0 in 0..3:
  barrier
  local0[0] = 2.0
  barrier
  v0: float32 = local0[0]
  p0[L0] = v0"""
    )


def test_the_end_of_launch_ranges_closes_nothing() -> None:
    thread, part = axis(4, 0, AxisType.LOCAL), axis(4, 1, AxisType.REDUCE)
    out, x, held = param(0, 1), param(1, 4), local(0, 4)
    met = barrier(end(store(held, thread, load(x, thread)), thread))
    ast = sink(store(out, 0, summed(load(after(held, met), part), part)))
    program = lower(ast, python_target())
    verify_program(program)
    assert [node.arg.id for node in program.local_ranges] == [(0,)]
    got, data = np.full(1, 77.0, np.float32), np.arange(4, dtype=np.float32)
    run_program(program, [got, data])
    assert got[0] == 6.0


def test_what_follows_a_loop_cannot_lie_in_it() -> None:
    step = axis(6, 0)
    tmp, out = param(0, 6), param(1, 6)
    filled = end(store(tmp, step, 1.0), step)
    with pytest.raises(InternalError, match="needs a range of its own"):
        lower(sink(end(store(out, step, load(after(tmp, filled), step)), step)), PLAIN)


def test_an_order_that_does_not_exist_is_an_error() -> None:
    """Each of two loads must come before the store that the other one needs."""
    one, other = register(0, 2), register(1, 2)
    in_one = load(after(one, store(one, 1, 1.0)), 1).cast(dtypes.index)
    in_other = load(after(other, store(other, 1, 1.0)), 1).cast(dtypes.index)
    with pytest.raises(InternalError, match="no order satisfies"):
        lower(sink(group(store(one, 0, load(other, in_one)), store(other, 0, load(one, in_other)))), PLAIN)


def test_params_are_found_behind_versions() -> None:
    step = axis(4, 0)
    x, y = param(0, 4), param(1, 4)
    first = store(x, step, load(y, step))
    ast = sink(end(store(y, step, load(after(x, first), step)), step))
    used = {found.slot: (found.is_read, found.is_written) for found in lower(ast, PLAIN).params}
    assert used == {0: (True, True), 1: (True, True)}
    assert Ops.AFTER not in {node.op for node in lower(ast, PLAIN).body}

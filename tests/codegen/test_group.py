"""Grouped reductions and the threads of a work-group: what lowering writes, that it is right with warps and without,
and that the emulator catches a program from which a barrier was dropped or in which two reductions share a slot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.faults import barrier_count, drop_barrier, share_slot
from tests.kernel.kernels import after, axis, barrier, contents, expected, kernel, load, local, param, sink, store
from tilewright.backends.python.device import python_target
from tilewright.backends.python.emulator import run_program
from tilewright.base.errors import EmulatorError, KernelOptError
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.graph.kernels.threads import local_bytes, threads_of
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo, Opt, OptOps, Program
from tilewright.graph.text.show import show_program
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_kernel, verify_program
from tilewright.kernel.optimise import optimise

GROUP, GROUPTOP, LOCAL, UPCAST = OptOps.GROUP, OptOps.GROUPTOP, OptOps.LOCAL, OptOps.UPCAST
PLAIN = python_target()
WARPS = replace(PLAIN, warp_size=4)
SOFTMAX = (Opt(GROUP, 2, 4), Opt(GROUP, 4, 4), Opt(LOCAL, 1, 4))


def program_of(name: str, opts: tuple[Opt, ...], target: Target = PLAIN) -> Program:
    optimised = optimise(kernel(name).replace(arg=KernelInfo("t", opts)), target)
    verify_kernel(optimised)
    program = lower(optimised, target)
    verify_program(program)
    return program


def run(name: str, program: Program) -> None:
    """The program leaves what the kernel without opts leaves, and breaks no rule."""
    data = contents(kernel(name))
    want = expected(kernel(name), data)
    by_slot = {node.arg.slot: values.copy() for node, values in data.items()}
    run_program(program, [by_slot[p.slot] for p in program.params], [p.is_read for p in program.params])
    for slot, values in want.items():
        np.testing.assert_array_equal(by_slot[slot], values)


def text_of(program: Program) -> str:
    return "\n".join(line[2:] for line in show_program(program).splitlines()[1:])


# ---------------------------------------------------------------- texts


def test_each_thread_adds_up_its_share_and_all_meet() -> None:
    program = program_of("whole_sum", (Opt(GROUP, 0, 4),))
    assert (
        text_of(program)
        == """\
local l0_1 in 0..4
acc0: float32 = 0.0
acc1: float32 = 0.0
v0: bool = l0_1 == 0
local0: float32[4]
v1: int32[r2097152:4] = 0 + r2097152
for R0_0 in 0..24:
  v2: int32 = R0_0*4
  v3: int32 = v2 + l0_1
  v4: float32 = p1[v3]
  acc0 = add(acc0, v4)
v5: float32 = combine(acc0, Ops.ADD)
local0[l0_1] = v5
barrier
v6: float32[r2097152:4] = local0[v1]
acc1 = add(acc1, v6)  # [r2097152:4]
v7: float32 = combine(acc1, Ops.ADD)
p0[0 if v0] = v7"""
    )
    run("whole_sum", program)


def test_neighbours_in_a_warp_need_no_memory() -> None:
    program = program_of("whole_sum", (Opt(GROUP, 0, 4),), WARPS)
    assert barrier_count(program) == 0
    assert not any(node.op is Ops.DEFINE_LOCAL for node in program.body)
    (fold,) = (node for node in program.body if node.op is Ops.WARP_FOLD)
    assert fold.arg == (Ops.ADD, 4)
    run("whole_sum", program)


def test_warps_meet_in_local_memory_and_fold_again() -> None:
    program = program_of("whole_sum", (Opt(GROUP, 0, 16),), WARPS)
    folds = [node for node in program.body if node.op is Ops.WARP_FOLD]
    (memory,) = (node for node in program.body if node.op is Ops.DEFINE_LOCAL)
    assert ([fold.arg for fold in folds], memory.arg.size) == ([(Ops.ADD, 4), (Ops.ADD, 4)], 4)
    run("whole_sum", program)


def test_a_reduction_in_a_loop_waits_before_it_stores_again() -> None:
    """The reduction over the inner axis is done anew in each iteration of the outer one, in the same slot."""
    program = program_of("sum_of_greatest", (Opt(GROUP, 2, 4),))
    lines = [line.strip() for line in text_of(program).splitlines()]
    first, second = (number for number, line in enumerate(lines) if line == "barrier")
    (stored,) = (number for number, line in enumerate(lines) if line.startswith("local0["))
    assert lines.index("for R1 in 0..6:") < first < stored < second
    run("sum_of_greatest", program)


# ---------------------------------------------------------------- threads


def test_the_reductions_and_the_output_of_a_row_share_their_threads() -> None:
    program = program_of("rows_less_their_greatest", SOFTMAX)
    assert [int(axis.src[0].arg) for axis in program.local_ranges] == [4]
    run("rows_less_their_greatest", program)


def test_axes_of_different_sizes_do_not_share() -> None:
    program = program_of("rows_less_their_greatest", (Opt(GROUP, 2, 4), Opt(GROUP, 4, 4), Opt(LOCAL, 1, 3)))
    assert sorted(int(axis.src[0].arg) for axis in program.local_ranges) == [3, 4]
    run("rows_less_their_greatest", program)


def test_axes_that_one_value_depends_on_do_not_share() -> None:
    program = program_of("square_product", (Opt(LOCAL, 0, 4), Opt(LOCAL, 2, 4), Opt(GROUP, 4, 4)))
    assert [int(axis.src[0].arg) for axis in program.local_ranges] == [4, 4, 4]
    run("square_product", program)


def test_the_fastest_thread_axis_takes_the_shortest_steps() -> None:
    program = program_of("square_product", (Opt(LOCAL, 1, 4), Opt(LOCAL, 1, 8)))
    assert [axis.arg.id[0] for axis in program.local_ranges] == [0, 1]
    columns = program_of("column_sums", (Opt(LOCAL, 0, 4), Opt(GROUP, 2, 4)), WARPS)
    assert [axis.arg.id[0] for axis in columns.local_ranges] == [1, 0]
    # Neighbours are along the columns: nothing of one column lies in one warp.
    assert not any(node.op is Ops.WARP_FOLD for node in columns.body)
    run("column_sums", columns)


def test_what_all_threads_compute_one_of_them_stores() -> None:
    program = program_of("sums_and_scaled", (Opt(LOCAL, 1, 4),))
    stores = {node.src[0].src[0].arg.slot: node.src[0] for node in program.body if node.op is Ops.STORE}
    assert (len(stores[0].src), len(stores[1].src)) == (3, 2)
    run("sums_and_scaled", program)


def test_what_is_read_is_not_overwritten_before_all_threads_have_read_it() -> None:
    program = program_of("running_sums", (Opt(GROUP, 1, 4),), WARPS)
    assert barrier_count(program) == 1
    run("running_sums", program)
    with pytest.raises(EmulatorError):
        run("running_sums", drop_barrier(program, 0))


def test_a_slot_is_none_that_a_placeholder_has() -> None:
    program = program_of("register_sum", (Opt(GROUP, 1, 4),))
    run("register_sum", program)
    optimised = optimise(kernel("rows_less_their_greatest").replace(arg=KernelInfo("t", SOFTMAX)), PLAIN)
    (written,) = optimised.src
    ast = optimised.replace(src=(written, store(local(5, 4), 0, 1.0)))
    slots = {node.arg.slot for node in lower(ast, PLAIN).body if node.op is Ops.DEFINE_LOCAL}
    assert slots == {5, 6, 7}


# ---------------------------------------------------------------- limits


def test_local_memory_and_threads_are_counted_before_anything_is_lowered() -> None:
    for target, opts in ((PLAIN, SOFTMAX), (WARPS, SOFTMAX), (PLAIN, (Opt(UPCAST, 0, 2), Opt(GROUPTOP, 2, 6)))):
        optimised = optimise(kernel("rows_less_their_greatest").replace(arg=KernelInfo("t", opts)), target)
        program = lower(optimised, target)
        taken = sum(n.arg.size * n.dtype.itemsize for n in program.body if n.op is Ops.DEFINE_LOCAL)
        assert local_bytes(optimised, target.warp_size) == taken
        assert threads_of(optimised).count == np.prod([int(axis.src[0].arg) for axis in program.local_ranges])


def test_more_local_memory_than_there_is_is_refused_with_the_sizes() -> None:
    small = replace(PLAIN, max_local_bytes=60)
    with pytest.raises(KernelOptError, match="64 bytes of local memory are more than 60"):
        program_of("whole_sum", (Opt(GROUP, 0, 16),), small)


def test_placeholders_count_as_well() -> None:
    ast = sink(store(param(0, 1), 0, load(after(local(0, 20000), barrier()), 0)))
    with pytest.raises(KernelOptError, match="ordered: 80000 bytes of local memory are more than 49152"):
        optimise(ast, PLAIN)


def test_the_fold_of_a_warp_is_known_to_its_neighbours_and_to_nobody_else() -> None:
    out, x = param(0, 8), param(1, 8)
    thread = axis(8, 0, AxisType.LOCAL)
    folded = UOp(Ops.WARP_FOLD, x.dtype, (load(x, thread),), (Ops.ADD, 4))
    got, data = np.full(8, 77.0, np.float32), np.arange(8, dtype=np.float32)
    run_program(lower(sink(store(out, thread, folded)), PLAIN), [got, data])
    np.testing.assert_array_equal(got, [6.0] * 4 + [22.0] * 4)
    few = axis(6, 0, AxisType.LOCAL)
    folded = UOp(Ops.WARP_FOLD, x.dtype, (load(x, few),), (Ops.ADD, 4))
    with pytest.raises(EmulatorError, match="do not divide"):
        run_program(lower(sink(store(out, few, folded)), PLAIN), [got, data])


# ---------------------------------------------------------------- programs broken on purpose


@pytest.mark.parametrize("opts", [SOFTMAX, (Opt(GROUP, 2, 4),), (Opt(GROUPTOP, 3, 6), Opt(UPCAST, 0, 2))])
def test_every_barrier_is_needed(opts: tuple[Opt, ...]) -> None:
    program = program_of("rows_less_their_greatest", opts)
    assert barrier_count(program) > 0
    for which in range(barrier_count(program)):
        with pytest.raises(EmulatorError):
            run("rows_less_their_greatest", drop_barrier(program, which))


def test_every_barrier_around_a_copied_tile_is_needed() -> None:
    opts = (Opt(LOCAL, 0, 4), Opt(LOCAL, 2, 4), Opt(OptOps.UNROLL, 4, 4), Opt(OptOps.STAGE, 4, 0))
    program = program_of("square_product", opts)
    assert barrier_count(program) == 2
    run("square_product", program)
    for which in range(2):
        with pytest.raises(EmulatorError):
            run("square_product", drop_barrier(program, which))


def test_a_slot_that_two_reductions_share_is_caught() -> None:
    program = program_of("rows_less_their_greatest", SOFTMAX)
    with pytest.raises(EmulatorError):
        run("rows_less_their_greatest", share_slot(program, Ops.DEFINE_LOCAL, 0, 1))


def test_no_group_axis_is_left() -> None:
    for target in (PLAIN, WARPS):
        program = program_of("rows_less_their_greatest", SOFTMAX, target)
        assert {axis.arg.kind for axis in program.local_ranges} == {AxisType.LOCAL}

"""The emulator on programs written by hand: what right programs compute, and that each kind of wrong one is refused.

`Draft` writes a body: it puts a value's sources before it and keeps loops apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.faults import barrier_count, drop_barrier, drop_masks, share_slot
from tilewright.backends.python import emulator
from tilewright.backends.python.device import python_target
from tilewright.backends.python.emulator import run_program
from tilewright.backends.python.launch import Launch
from tilewright.backends.python.memory import Shadow
from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import EmulatorError, InternalError, OutOfBoundsError, RaceError, UninitialisedReadError
from tilewright.graph.interpreter.numpy_math import cast_array, numpy_dtype
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import toposort

Array = np.ndarray[Any, Any]
f32 = dtypes.float32


def axis(number: int, size: int | UOp, kind: AxisType, dtype: DType = dtypes.int32) -> UOp:
    return UOp(Ops.RANGE, dtype, (size if isinstance(size, UOp) else const(dtype, size),), Axis((number,), kind))


def memory(op: Op, slot: int, size: int, dtype: DType = f32) -> UOp:
    return UOp(op, dtype, (), ParamArg(slot, size))


def param(slot: int, size: int, dtype: DType = f32) -> UOp:
    return memory(Ops.PARAM, slot, size, dtype)


class Draft:
    """A body in the making. Reads and writes of PARAMs become the program's parameters."""

    def __init__(self, grid: tuple[UOp, ...] = (), local: tuple[UOp, ...] = ()) -> None:
        self.grid = grid
        self.local = local
        self.body: list[UOp] = []
        self.scopes: list[set[UOp]] = [set()]  # what is computed, per open loop

    def add(self, node: UOp) -> UOp:
        leaves = (Ops.CONST, Ops.PARAM, Ops.RANGE, Ops.VARIABLE)
        for found in toposort(node, stop=lambda found: found is not node and found.dtype is dtypes.void):
            known = any(found in scope for scope in self.scopes)
            # A void source states an order; it stands in the body already.
            if not known and (found is node or (found.op not in leaves and found.dtype is not dtypes.void)):
                self.body.append(found)
                self.scopes[-1].add(found)
        return node

    def load(self, buffer: UOp, index: UOp, valid: UOp | None = None, otherwise: UOp | None = None) -> UOp:
        # A barrier before it keeps the LOAD apart from an equal one above the barrier, as codegen does.
        barriers = tuple(node for node in self.body if node.op is Ops.BARRIER)
        place = UOp(Ops.INDEX, buffer.dtype, (buffer, index) if valid is None else (buffer, index, valid))
        src = (place, *barriers[-1:]) if otherwise is None else (place, otherwise, *barriers[-1:])
        return self.add(UOp(Ops.LOAD, buffer.dtype, src))

    def store(self, buffer: UOp, index: UOp, value: UOp, valid: UOp | None = None) -> UOp:
        place = UOp(Ops.INDEX, buffer.dtype, (buffer, index) if valid is None else (buffer, index, valid))
        return self.add(UOp(Ops.STORE, dtypes.void, (place, value)))

    def barrier(self) -> None:
        done = tuple(node for node in self.body if node.op in (Ops.STORE, Ops.BARRIER))
        self.body.append(UOp(Ops.BARRIER, dtypes.void, done))

    def loop(self, opened: UOp) -> None:
        self.body.append(opened)
        self.scopes.append({opened})

    def end(self, opened: UOp) -> None:
        self.body.append(UOp(Ops.END, dtypes.void, (opened,)))
        self.scopes.pop()

    def program(self, name: str = "draft") -> Program:
        used: dict[UOp, list[bool]] = {}
        for node in self.body:
            if node.op in (Ops.LOAD, Ops.STORE) and node.src[0].src[0].op is Ops.PARAM:
                flags = used.setdefault(node.src[0].src[0], [False, False])
                flags[node.op is Ops.STORE] = True
        params = [Param(node.arg.slot, node.dtype, node.arg.size, *flags) for node, flags in used.items()]
        params.sort(key=lambda found: found.slot)
        return Program(name, tuple(self.body), tuple(params), self.grid, self.local, python_target())


def run(program: Program, *arrays: Array, **options: Any) -> Array:
    """Run into a new array for parameter 0 and give it back."""
    output = np.zeros(program.params[0].size, numpy_dtype(program.params[0].dtype))
    run_program(program, [output, *arrays], **options)
    return output


def ramp(size: int, dtype: DType = f32) -> Array:
    return cast_array(np.arange(size) % 7 - 3, dtype)


# ---------------------------------------------------------------- right programs


@pytest.mark.parametrize("batch_elements", [1, 20, 1 << 20])
@pytest.mark.parametrize("index_dtype", [dtypes.int32, dtypes.int64, dtypes.index])
def test_elementwise_over_grid_local_and_tile(index_dtype: DType, batch_elements: int) -> None:
    grid = axis(0, 3, AxisType.GLOBAL, index_dtype)
    thread = axis(1, 2, AxisType.THREAD, index_dtype)
    local = axis(2, 4, AxisType.LOCAL, index_dtype)
    tile = axis(3, 5, AxisType.UPCAST, index_dtype)
    draft = Draft((grid, thread), (local,))
    index = ((grid * 2 + thread) * 4 + local) * 5 + tile
    loaded = draft.load(param(1, 120), index)
    draft.store(param(0, 120), index, loaded * 2.0 + local.cast(f32))
    inputs = ramp(120)
    expected = inputs * 2 + np.arange(120, dtype=np.float32) // 5 % 4
    np.testing.assert_array_equal(run(draft.program(), inputs, batch_elements=batch_elements), expected)


def test_launch_ranges_may_stand_in_the_body() -> None:
    grid = axis(0, 4, AxisType.GLOBAL)
    draft = Draft((grid,))
    draft.body.append(grid)
    draft.store(param(0, 4, dtypes.int32), grid, grid * 3)
    assert run(draft.program()).tolist() == [0, 3, 6, 9]


def test_unbound_sizes_come_from_variables() -> None:
    size = UOp(Ops.VARIABLE, dtypes.int32, (), ("n", 1, 8))
    grid = axis(0, size, AxisType.GLOBAL)
    step = axis(1, size + 1, AxisType.REDUCE)
    draft = Draft((grid,))
    total = draft.add(UOp(Ops.ACC, dtypes.int32, (const(dtypes.int32, 0),), 0))
    draft.add(size + 1)
    draft.loop(step)
    draft.add(UOp(Ops.ACCUMULATE, dtypes.void, (total, draft.add(step * size)), Ops.ADD))
    draft.end(step)
    draft.store(param(0, 8, dtypes.int32), grid, draft.add(UOp(Ops.COMBINE, dtypes.int32, (total,), Ops.ADD)))
    assert run(draft.program(), variables={"n": 3}).tolist() == [18, 18, 18, 0, 0, 0, 0, 0]
    with pytest.raises(InternalError, match="'n'"):
        run(draft.program())


def reduction(op: Op, dtype: DType, identity: float) -> Program:
    """out[row, column] = reduce over k, split in loop x unroll x upcast, of a[row, k] * b[k, column]."""
    row = axis(0, 3, AxisType.GLOBAL)
    column = axis(1, 4, AxisType.UPCAST)
    outer = axis(2, 2, AxisType.REDUCE)
    unrolled = axis(3, 3, AxisType.UNROLL)
    lanes = axis(4, 2, AxisType.UPCAST)
    k = (outer * 3 + unrolled) * 2 + lanes
    draft = Draft((row,))
    total = draft.add(UOp(Ops.ACC, dtype, (const(dtype, identity), column, lanes), 0))
    draft.loop(outer)
    product = draft.load(param(1, 36, dtype), row * 12 + k) * draft.load(param(2, 48, dtype), k * 4 + column)
    draft.add(product)
    draft.add(UOp(Ops.ACCUMULATE, dtypes.void, (total, product), op))
    draft.end(outer)
    combined = draft.add(UOp(Ops.COMBINE, dtype, (total, lanes), op))
    draft.store(param(0, 12, dtype), row * 4 + column, combined)
    return draft.program()


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.float32, dtypes.float64, dtypes.uint8])
@pytest.mark.parametrize(("op", "fold"), [(Ops.ADD, np.sum), (Ops.MAX, np.max), (Ops.MIN, np.min), (Ops.MUL, np.prod)])
def test_reduction_with_loop_unroll_and_upcast(op: Op, fold: Any, dtype: DType) -> None:
    identity = {Ops.ADD: 0, Ops.MUL: 1, Ops.MAX: dtype.min, Ops.MIN: dtype.max}[op]
    left = cast_array(np.arange(36) % 5 + 1, dtype)
    right = cast_array(np.arange(48) % 3 + 1, dtype)
    with np.errstate(over="ignore"):
        products = left.reshape(3, 12, 1) * right.reshape(1, 12, 4)
        expected = fold(products, axis=1).astype(left.dtype)
    actual = run(reduction(op, dtype, identity), left, right)
    np.testing.assert_array_equal(actual.reshape(3, 4), expected)


def test_unroll_folds_element_after_element() -> None:
    """In float16 an order shows: 2048 + 1 + 1 stays 2048, one unit after the other, but 1 + 1 + 2048 is 2050."""
    half = dtypes.float16
    unrolled = axis(0, 3, AxisType.UNROLL)
    draft = Draft()
    total = draft.add(UOp(Ops.ACC, half, (const(half, 0),), 0))
    loaded = draft.load(param(1, 3, half), unrolled)
    draft.add(UOp(Ops.ACCUMULATE, dtypes.void, (total, loaded), Ops.ADD))
    draft.store(param(0, 1, half), const(dtypes.int32, 0), draft.add(UOp(Ops.COMBINE, half, (total,), Ops.ADD)))
    assert run(draft.program(), np.array([2048, 1, 1], np.float16)).tolist() == [2048]
    assert run(draft.program(), np.array([1, 1, 2048], np.float16)).tolist() == [2050]


def test_nested_loops_restart_the_accumulator() -> None:
    """out[i] = sum over k of (a[i] + k): a[i] is computed in the outer loop and used in the inner one."""
    outer = axis(0, 3, AxisType.LOOP)
    inner = axis(1, 4, AxisType.REDUCE)
    draft = Draft()
    draft.loop(outer)
    total = draft.add(UOp(Ops.ACC, f32, (const(f32, 0),), 0))
    base = draft.load(param(1, 3), outer)
    draft.add(base * 10.0)
    draft.loop(inner)
    term = draft.add(base * 10.0 + inner.cast(f32))
    draft.add(UOp(Ops.ACCUMULATE, dtypes.void, (total, term), Ops.ADD))
    draft.end(inner)
    draft.store(param(0, 3), outer, draft.add(UOp(Ops.COMBINE, f32, (total,), Ops.ADD)))
    draft.end(outer)
    assert run(draft.program(), np.array([1, 2, 3], np.float32)).tolist() == [46, 86, 126]


COUNTED = 12


def counted_loops(count_of: str) -> Program:
    """out[i] = the sum of 1, 2, ... count, where the count is computed from i, read, or computed in a loop."""
    grid, outer = axis(0, COUNTED, AxisType.GLOBAL), axis(1, 2, AxisType.LOOP)
    draft = Draft((grid,))
    counts = {"grid": grid % 3, "memory": param(1, COUNTED, dtypes.int32), "loop": grid % 3 + outer - 1}
    total = draft.add(UOp(Ops.ACC, dtypes.int32, (const(dtypes.int32, 0),), 0))
    if count_of == "loop":
        draft.loop(outer)
    count = draft.load(counts["memory"], grid) if count_of == "memory" else draft.add(counts[count_of])
    inner = axis(2, count, AxisType.REDUCE)
    draft.loop(inner)
    draft.add(UOp(Ops.ACCUMULATE, dtypes.void, (total, draft.add(inner + 1)), Ops.ADD))
    draft.end(inner)
    if count_of == "loop":
        draft.end(outer)
    draft.store(param(0, COUNTED, dtypes.int32), grid, draft.add(UOp(Ops.COMBINE, dtypes.int32, (total,), Ops.ADD)))
    return draft.program()


@pytest.mark.parametrize(("count_of", "batches"), [("grid", 3), ("memory", COUNTED), ("loop", COUNTED)])
def test_work_groups_go_round_a_loop_together_that_are_known_to_go_as_often(
    count_of: str, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[int]] = []
    begin = emulator._Run._begin_batch
    monkeypatch.setattr(
        emulator._Run, "_begin_batch", lambda self, groups: (begun.append(groups.tolist()), begin(self, groups))
    )
    counts = np.arange(COUNTED, dtype=np.int32) % 3
    sums = counts * (counts + 1) // 2
    if count_of == "loop":
        sums += np.maximum(counts - 1, 0) * counts // 2
    inputs = [counts] if count_of == "memory" else []
    np.testing.assert_array_equal(run(counted_loops(count_of), *inputs), sums)
    assert sorted(number for groups in begun for number in groups) == list(range(COUNTED))
    assert len(begun) == batches


def uneven_loop(meets: bool) -> Program:
    """Thread n stores the number of its iteration n + 1 times."""
    local = axis(0, 4, AxisType.LOCAL)
    draft = Draft((), (local,))
    inner = axis(1, draft.add(local + 1), AxisType.LOOP)
    draft.loop(inner)
    if meets:
        draft.barrier()
    draft.store(param(0, 4), local, draft.add(inner.cast(f32)))
    draft.end(inner)
    return draft.program()


def test_threads_go_round_a_loop_as_often_as_each_has_to() -> None:
    np.testing.assert_array_equal(run(uneven_loop(meets=False)), [0, 1, 2, 3])


def test_threads_that_meet_in_a_loop_go_round_it_equally_often() -> None:
    with pytest.raises(EmulatorError, match="trip count that differs between threads"):
        run(uneven_loop(meets=True))


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_every_dtype_in_every_memory(dtype: DType) -> None:
    """PARAM -> LOCAL -> (barrier, neighbour) -> REG -> PARAM, with a cast on the way."""
    local = axis(0, 8, AxisType.LOCAL)
    tile = axis(1, 2, AxisType.UPCAST)
    grid = axis(2, 3, AxisType.GLOBAL)
    shared = memory(Ops.DEFINE_LOCAL, 0, 16, dtype)
    register = memory(Ops.DEFINE_REG, 0, 2, dtype)
    draft = Draft((grid,), (local,))
    draft.store(shared, local * 2 + tile, draft.load(param(1, 48, dtype), grid * 16 + local * 2 + tile))
    draft.barrier()
    draft.store(register, tile, draft.load(shared, (local * 2 + tile + 1) % 16))
    loaded = draft.load(register, tile)
    draft.store(param(0, 48, dtype), grid * 16 + local * 2 + tile, loaded + loaded)
    inputs = ramp(48, dtype)
    with np.errstate(all="ignore"):
        rolled = np.roll(inputs.reshape(3, 16), -1, axis=1).reshape(-1)
        expected = rolled | rolled if dtype.is_bool else rolled + rolled
    actual = run(draft.program(), inputs)
    assert actual.dtype == inputs.dtype
    np.testing.assert_array_equal(actual.view(np.uint8), expected.view(np.uint8))


def test_masked_load_gives_its_alternative_and_masked_store_nothing() -> None:
    grid = axis(0, 8, AxisType.GLOBAL)
    draft = Draft((grid,))
    inside = grid < 5
    padded = draft.load(param(1, 5, dtypes.int32), grid, inside, const(dtypes.int32, -1))
    zero = draft.load(param(1, 5, dtypes.int32), grid + 3, grid < 2)
    draft.store(param(0, 8, dtypes.int32), grid, padded * 10 + zero, grid < 7)
    output = np.full(8, 77, np.int32)
    run_program(draft.program(), [output, np.arange(5, dtype=np.int32)])
    assert output.tolist() == [3, 14, 20, 30, 40, -10, -10, 77]
    with pytest.raises(OutOfBoundsError):
        run(drop_masks(draft.program()), np.arange(5, dtype=np.int32))


def grouped_sum() -> Program:
    """Each of 4 threads sums its share, all combine, thread 0 stores; two rows in turn use the same local slot."""
    grid = axis(0, 2, AxisType.GLOBAL)
    group = axis(1, 4, AxisType.GROUP)
    row = axis(2, 2, AxisType.LOOP)
    step = axis(3, 3, AxisType.REDUCE)
    last = axis(4, 4, AxisType.REDUCE)
    shared = memory(Ops.DEFINE_LOCAL, 0, 4)
    draft = Draft((grid,), (group,))
    draft.add(shared)
    draft.loop(row)
    share = draft.add(UOp(Ops.ACC, f32, (const(f32, 0),), 0))
    draft.loop(step)
    loaded = draft.load(param(1, 48), ((grid * 2 + row) * 4 + group) * 3 + step)
    draft.add(UOp(Ops.ACCUMULATE, dtypes.void, (share, loaded), Ops.ADD))
    draft.end(step)
    draft.store(shared, group, draft.add(UOp(Ops.COMBINE, f32, (share,), Ops.ADD)))
    draft.barrier()
    total = draft.add(UOp(Ops.ACC, f32, (const(f32, 0),), 1))
    draft.loop(last)
    draft.add(UOp(Ops.ACCUMULATE, dtypes.void, (total, draft.load(shared, last)), Ops.ADD))
    draft.end(last)
    draft.store(param(0, 4), grid * 2 + row, draft.add(UOp(Ops.COMBINE, f32, (total,), Ops.ADD)), group.eq(0))
    draft.barrier()
    draft.end(row)
    return draft.program("grouped_sum")


@pytest.mark.parametrize("batch_elements", [1, 1 << 20])
def test_grouped_reduction(batch_elements: int) -> None:
    inputs = ramp(48)
    actual = run(grouped_sum(), inputs, batch_elements=batch_elements)
    np.testing.assert_array_equal(actual, inputs.reshape(4, 12).sum(axis=1))


@pytest.mark.parametrize("which", [0, 1])
def test_each_dropped_barrier_is_a_race(which: int) -> None:
    program = grouped_sum()
    assert barrier_count(program) == 2
    with pytest.raises(RaceError) as caught:
        run(drop_barrier(program, which), ramp(48))
    assert "grouped_sum" in str(caught.value)
    assert "DEFINE_LOCAL 0 (float32, 4 elements)" in str(caught.value)
    assert "several threads of grid (0,)" in str(caught.value)
    assert "thread grid (0,) local (0,)" in str(caught.value)
    # Lock-step gives the right sum all the same: only the check can see this fault.
    np.testing.assert_array_equal(
        run(drop_barrier(program, which), ramp(48), check=False), ramp(48).reshape(4, 12).sum(axis=1)
    )


# ---------------------------------------------------------------- faults


def two_slots() -> Program:
    """Each thread writes to two local buffers of different dtypes and reads its own element of both."""
    local = axis(0, 4, AxisType.LOCAL)
    first = memory(Ops.DEFINE_LOCAL, 0, 4, dtypes.int32)
    second = memory(Ops.DEFINE_LOCAL, 1, 8, dtypes.int16)
    draft = Draft((), (local,))
    draft.store(first, local, local * 65537)
    draft.store(second, local, local.cast(dtypes.int16))
    draft.store(
        param(0, 4, dtypes.int32), local, draft.load(first, local) + draft.load(second, local).cast(dtypes.int32)
    )
    return draft.program("two_slots")


def test_a_reused_local_slot_is_a_race_across_dtypes() -> None:
    assert run(two_slots()).tolist() == [0, 65538, 131076, 196614]
    with pytest.raises(RaceError, match="DEFINE_LOCAL 0"):
        run(share_slot(two_slots(), Ops.DEFINE_LOCAL, kept=0, taken=1))


def test_a_reused_register_or_accumulator_slot_is_seen() -> None:
    draft = Draft()
    zero = const(dtypes.int32, 0)
    first = draft.add(memory(Ops.DEFINE_REG, 0, 1))
    draft.store(first, zero, const(f32, 1))
    second = draft.add(memory(Ops.DEFINE_REG, 1, 2))
    draft.store(second, zero + 1, const(f32, 2))
    draft.store(param(0, 1), zero, draft.load(first, zero) + draft.load(second, zero + 1))
    assert run(draft.program()).tolist() == [3]
    with pytest.raises(UninitialisedReadError, match="DEFINE_REG 0"):
        run(share_slot(draft.program(), Ops.DEFINE_REG, kept=0, taken=1))

    draft = Draft()
    totals = [draft.add(UOp(Ops.ACC, f32, (const(f32, slot),), slot)) for slot in range(2)]
    sums = [UOp(Ops.COMBINE, f32, (total,), Ops.ADD) for total in totals]
    draft.store(param(0, 1), zero, sums[0] + sums[1])
    assert run(draft.program()).tolist() == [1]
    with pytest.raises(EmulatorError, match="another accumulator took its slot"):
        run(share_slot(draft.program(), Ops.ACC, kept=0, taken=1))


@pytest.mark.parametrize("is_store", [False, True])
@pytest.mark.parametrize("shift", [-1, 1])
def test_out_of_bounds_names_everything(shift: int, is_store: bool) -> None:
    grid = axis(0, 2, AxisType.GLOBAL)
    local = axis(1, 4, AxisType.LOCAL)
    draft = Draft((grid,), (local,))
    index = grid * 4 + local
    loaded = draft.load(param(1, 8), index if is_store else index + shift)
    stored = draft.store(param(0, 8), index + shift if is_store else index, loaded)
    (stored if is_store else loaded).line = ("model.py", 42)
    with pytest.raises(OutOfBoundsError) as caught:
        run(draft.program("shifted"), ramp(8), check=False)
    text = str(caught.value)
    assert caught.value.operation == "shifted"
    assert f"index {-1 if shift < 0 else 8} is outside" in text
    assert ("STORE of PARAM 0" if is_store else "LOAD of PARAM 1") in text
    assert ("grid (0,) local (0,)" if shift < 0 else "grid (1,) local (3,)") in text
    assert caught.value.location == ("model.py", 42)


def test_reading_what_nobody_wrote() -> None:
    grid = axis(0, 4, AxisType.GLOBAL)
    draft = Draft((grid,))
    draft.store(param(0, 4), grid, draft.load(param(0, 4), grid) + 1.0)
    program = draft.program()
    with pytest.raises(UninitialisedReadError, match=r"PARAM 0 .* index 0"):
        run(program)
    assert run(program, initialised=[True]).tolist() == [1, 1, 1, 1]
    known = np.array([True, True, False, True])
    with pytest.raises(UninitialisedReadError, match="index 2"):
        run(program, initialised=[known])


def test_initialised_arrays_learn_what_was_written() -> None:
    grid = axis(0, 4, AxisType.GLOBAL)
    draft = Draft((grid,))
    draft.store(param(0, 4), grid, const(f32, 1), grid < 2)
    known = np.zeros(4, np.bool_)
    run(draft.program(), initialised=[known])
    assert known.tolist() == [True, True, False, False]


@pytest.mark.parametrize("op", [Ops.DEFINE_LOCAL, Ops.DEFINE_REG])
def test_local_memory_and_registers_start_undefined(op: Op) -> None:
    """Only group 0 writes; group 1 must not see what group 0 left, also where both use the same storage in turn."""
    grid = axis(0, 2, AxisType.GLOBAL)
    draft = Draft((grid,))
    zero = const(dtypes.int32, 0)
    slot = memory(op, 0, 1)
    draft.store(slot, zero, const(f32, 5), grid.eq(0))
    draft.store(param(0, 2), grid, draft.load(slot, zero))
    for batch_elements in (1, 100):
        with pytest.raises(UninitialisedReadError, match=r"grid \(1,\)"):
            run(draft.program(), batch_elements=batch_elements)


def test_a_register_is_fresh_each_time_it_is_reached() -> None:
    step = axis(0, 2, AxisType.LOOP)
    zero = const(dtypes.int32, 0)
    register = memory(Ops.DEFINE_REG, 0, 1)
    draft = Draft()
    draft.loop(step)
    draft.add(register)
    draft.store(register, zero, const(f32, 5), step.eq(0))
    draft.store(param(0, 2), step, draft.load(register, zero))
    draft.end(step)
    with pytest.raises(UninitialisedReadError):
        run(draft.program())


@pytest.mark.parametrize("batch_elements", [1, 3, 1 << 20])
@pytest.mark.parametrize("kind", ["write-write", "same-value", "read-write", "write-read", "all-read-one-writes"])
def test_work_groups_are_not_ordered(kind: str, batch_elements: int) -> None:
    """Not even by a barrier, and not by being in different batches."""
    grid = axis(0, 4, AxisType.GLOBAL)
    draft = Draft((grid,))
    value = const(f32, 1) if kind == "same-value" else grid.cast(f32)
    if kind in ("write-write", "same-value"):
        draft.store(param(0, 4), grid // 2, value)
    elif kind == "write-read":
        draft.store(param(0, 4), grid, value)
        draft.barrier()
        draft.store(param(1, 4), grid, draft.load(param(0, 4), (grid + 1) % 4))
    elif kind == "read-write":
        loaded = draft.load(param(0, 4), (grid + 1) % 4)
        draft.barrier()
        draft.store(param(0, 4), grid, loaded)
    else:
        loaded = draft.load(param(0, 4), const(dtypes.int32, 2))
        draft.barrier()
        draft.store(param(0, 4), grid, loaded, grid.eq(2))
    buffers = [np.zeros(4, np.float32) for _ in draft.program().params]
    with pytest.raises(RaceError):
        run_program(draft.program(), buffers, [True] * len(buffers), batch_elements=batch_elements)


def test_threads_of_a_group_are_ordered_by_a_barrier_in_global_memory_too() -> None:
    grid = axis(0, 2, AxisType.GLOBAL)
    local = axis(1, 4, AxisType.LOCAL)
    draft = Draft((grid,), (local,))
    draft.store(param(0, 8), grid * 4 + local, local.cast(f32))
    draft.barrier()
    neighbour = draft.load(param(0, 8), grid * 4 + (local + 1) % 4)
    draft.barrier()
    draft.store(param(0, 8), grid * 4 + local, neighbour)
    program = draft.program()
    assert run(program).tolist() == [1, 2, 3, 0] * 2
    for which in range(2):
        with pytest.raises(RaceError):
            run(drop_barrier(program, which))


def test_threads_that_all_write_one_address() -> None:
    local = axis(0, 4, AxisType.LOCAL)
    draft = Draft((), (local,))
    draft.store(param(0, 1), const(dtypes.int32, 0), const(f32, 1))
    with pytest.raises(RaceError, match=r"local \(0,\)|local \(3,\)"):
        run(draft.program())


@pytest.mark.parametrize("case", ["address lacks the axis", "addresses collide", "equal values", "one is masked in"])
def test_tile_elements_with_one_address(case: str) -> None:
    tile = axis(0, 4, AxisType.UPCAST)
    zero = const(dtypes.int32, 0)
    draft = Draft()
    if case == "address lacks the axis":
        draft.store(param(0, 4), zero, tile.cast(f32))
    elif case == "addresses collide":
        draft.store(param(0, 4), tile // 2, tile.cast(f32))
    elif case == "equal values":
        draft.store(param(0, 4), tile // 2, (tile // 2).cast(f32))
    else:
        draft.store(param(0, 4), zero, tile.cast(f32), tile.eq(3))
    if case in ("equal values", "one is masked in"):
        assert run(draft.program()).tolist() == ([0, 1, 0, 0] if case == "equal values" else [3, 0, 0, 0])
        return
    with pytest.raises(RaceError, match="tile"):
        run(draft.program())


def test_buffers_that_share_memory_share_their_state() -> None:
    """Shifting through two parameters that are views of one array is a race; through two arrays it is none."""
    grid = axis(0, 4, AxisType.GLOBAL)
    draft = Draft((grid,))
    draft.store(param(0, 4), grid, draft.load(param(1, 4), grid))
    whole = np.arange(5, dtype=np.float32)
    with pytest.raises(RaceError):
        run_program(draft.program(), [whole[1:], whole[:4]])
    assert run(draft.program(), whole[:4]).tolist() == [0, 1, 2, 3]


def test_an_access_beyond_the_declared_ones() -> None:
    grid = axis(0, 4, AxisType.GLOBAL)
    draft = Draft((grid,))
    draft.store(param(0, 4), grid, const(f32, 1))
    program = draft.program()
    undeclared = Program("sly", program.body, (Param(0, f32, 4, True, False),), (grid,), (), program.target)
    with pytest.raises(EmulatorError, match="is_written"):
        run(undeclared)


def test_upcast_axes_need_registers_of_their_own() -> None:
    tile = axis(0, 4, AxisType.UPCAST)
    draft = Draft()
    total = draft.add(UOp(Ops.ACC, f32, (const(f32, 0),), 0))
    draft.add(tile.cast(f32))
    draft.add(UOp(Ops.ACCUMULATE, dtypes.void, (total, tile.cast(f32)), Ops.ADD))
    with pytest.raises(EmulatorError, match="UPCAST"):
        run_program(draft.program(), [])


@pytest.mark.parametrize("fault", ["unclosed", "crossed", "escapes", "missing", "late"])
def test_malformed_bodies_are_refused(fault: str) -> None:
    outer = axis(0, 2, AxisType.LOOP)
    inner = axis(1, 2, AxisType.LOOP)
    draft = Draft()
    draft.loop(outer)
    if fault == "unclosed":
        message = "never closed"
    elif fault == "crossed":
        draft.loop(inner)
        draft.end(outer)
        message = "innermost"
    elif fault == "escapes":
        value = draft.add(outer + 1)
        draft.end(outer)
        draft.scopes[-1].add(value)
        draft.store(param(0, 4, dtypes.int32), const(dtypes.int32, 0), value)
        message = "outside of the loop"
    elif fault == "missing":
        draft.add(inner + 1)
        draft.end(outer)
        message = "not computed yet"
    else:
        draft.body.append(UOp(Ops.ADD, f32, (const(f32, 1) * 2.0, const(f32, 1))))
        draft.add(const(f32, 1) * 2.0)
        draft.end(outer)
        message = "not computed yet"
    with pytest.raises(InternalError, match=message):
        run_program(draft.program(), [np.zeros(param_.size, np.int32) for param_ in draft.program().params])


def test_buffers_must_fit_the_parameters() -> None:
    grid = axis(0, 4, AxisType.GLOBAL)
    draft = Draft((grid,))
    draft.store(param(0, 4), grid, const(f32, 1))
    for wrong in ([np.zeros(3, np.float32)], [np.zeros(4)], [np.zeros(8, np.float32)[::2]], []):
        with pytest.raises(InternalError, match="draft"):
            run_program(draft.program(), wrong)


# ---------------------------------------------------------------- the shadow against the plain definition

THREADS = [(group, local) for group in range(2) for local in range(3)]
ACCESSES = st.lists(
    st.one_of(
        st.none(),
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(st.integers(0, 1), st.sampled_from(THREADS)), min_size=1, max_size=3),
        ),
    ),
    max_size=8,
)


def conflicts(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Two accesses (epoch, is_write, cell, thread) that nothing orders."""
    same_place = bool(one[2] == other[2] and (one[1] or other[1]) and one[3] != other[3])
    return same_place and bool(one[3][0] != other[3][0] or one[0] == other[0])


# A second reader must not be forgotten when the first or the last of them writes.
@pytest.mark.parametrize("is_own", [False, True])
@settings(max_examples=150, deadline=None)
@given(ACCESSES)
@example([(False, [(0, (0, 0)), (0, (0, 1))]), (True, [(0, (0, 0))])])
@example([(False, [(0, (0, 0)), (0, (0, 1))]), (True, [(0, (0, 1))])])
@example([(False, [(0, (0, 0))]), (False, [(0, (0, 1))]), (True, [(0, (0, 1))])])
@example([(False, [(0, (0, 0))]), None, (False, [(0, (0, 1))]), (True, [(0, (0, 1))])])
@example([(False, [(0, (0, 0))]), None, (False, [(0, (1, 1))]), None, (True, [(0, (1, 1))])])
def test_shadow_agrees_with_the_definition_of_a_race(is_own: bool, steps: list[Any]) -> None:
    grid = axis(0, 2, AxisType.GLOBAL)
    local = axis(1, 3, AxisType.LOCAL)
    program = Program("shadow", (), (), (grid,), (local,), python_target())
    launch = Launch(program, (), lambda node: int(node.src[0].arg))
    shadow = Shadow(2, launch, is_written=True, is_own=is_own)
    history: list[tuple[Any, ...]] = []
    epoch = 1
    for step in steps:
        if step is None:
            epoch += 1
            continue
        is_write, elements = step
        if is_own:  # a cell for each work-group
            elements = [(cell, (cell, number)) for cell, (_, number) in elements]
        cells = np.array([cell for cell, _ in elements])
        codes = np.array([group * launch.codes_per_group + number for _, (group, number) in elements])
        found = (shadow.write if is_write else shadow.read)(cells, codes, epoch)
        new = [(epoch, is_write, cell, thread) for cell, thread in elements]
        expected = any(conflicts(one, other) for one in new for other in history + new)
        assert (found is not None) == expected
        if expected:
            return
        history += new

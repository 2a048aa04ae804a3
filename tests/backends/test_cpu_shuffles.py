"""Values that lie along one axis and are needed along another, or apart in memory: the shuffles that the CPU renderer
writes, read back by a small interpreter, and whole kernels compiled with them. The targets are made up where a rule
asks for memory that no cache holds, so that a small kernel shows it."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernel.kernels import add, kernel_of, leaf, matrix_product
from tests.machines import target_of
from tilewright import Tensor, Variable
from tilewright.backends.cpu.code import llvm
from tilewright.backends.cpu.device import cpu_target
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.backends.cpu.rendering.shuffles import (
    MAX_STRIDE,
    across,
    fold_rows,
    interleave_any,
    load_strided,
    transpose,
)
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.debug import explain
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, const
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import optimise, prepare_kernel
from tilewright.kernel.templates.choose import choose_opts

SHUFFLE = re.compile(r"shufflevector <(\d+) x T> (\S+), <\1 x T> (\S+), <(\d+) x i32> <(.*)>")
LOAD = re.compile(r"load <(\d+) x T>, ptr (\d+), align 4")
ADD = re.compile(r"add <\d+ x T> (\S+), (\S+)")
Lanes = list[Any]


class Interpreter:
    """Runs shuffles, loads and additions. The element at address n is n; a lane that is poison is None."""

    def __init__(self) -> None:
        self.values: dict[str, Lanes] = {}
        self.touched: set[int] = set()

    def __call__(self, text: str) -> str:
        name = f"%{len(self.values)}"
        load = LOAD.fullmatch(text)
        if load is not None:
            first = int(load[2])
            self.touched.update(range(first, first + int(load[1])))
            self.values[name] = list(range(first, first + int(load[1])))
            return name
        added = ADD.fullmatch(text)
        if added is not None:
            self.values[name] = [a + b for a, b in zip(self.values[added[1]], self.values[added[2]], strict=True)]
            return name
        shuffle = SHUFFLE.fullmatch(text)
        assert shuffle is not None, text
        lanes: Lanes = []
        for operand in shuffle[2], shuffle[3]:
            lanes += [None] * int(shuffle[1]) if operand == "poison" else self.values[operand]
        order = [word.removeprefix("i32 ") for word in shuffle[5].split(", ")]
        assert len(order) == int(shuffle[4])
        self.values[name] = [None if lane == "poison" else lanes[int(lane)] for lane in order]
        return name


@pytest.mark.parametrize("register_bytes", [16, 32, 64])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_a_matrix_of_vectors_is_transposed(itemsize: int, register_bytes: int) -> None:
    for count in (1, 2, 3, 4, 6, 8, 14, 16, 32):
        for lanes in (1, 2, 3, 4, 8, 12, 16, 32):
            run = Interpreter()
            run.values.update({f"%row{row}": [(row, lane) for lane in range(lanes)] for row in range(count)})
            rows = [f"%row{row}" for row in range(count)]
            columns = transpose(run, "T", itemsize, rows, lanes, register_bytes // itemsize)
            assert [run.values[name] for name in columns] == [[(r, c) for r in range(count)] for c in range(lanes)]


def test_fences_stand_between_the_rounds_and_not_behind_the_last() -> None:
    run, fenced = Interpreter(), []
    run.values.update({f"%row{row}": [(row, lane) for lane in range(16)] for row in range(6)})

    def fence(lanes: int, name: str) -> str:
        fenced.append(name)
        run.values[f"{name}f"] = run.values[name]
        assert lanes == len(run.values[name])
        return f"{name}f"

    columns = transpose(run, "T", 4, [f"%row{row}" for row in range(6)], 16, 16, fence)
    assert [run.values[name] for name in columns] == [[(row, lane) for row in range(6)] for lane in range(16)]
    assert fenced
    assert not any(name.endswith("f") for name in columns)


def test_a_square_in_registers_takes_one_shuffle_a_round_and_vector() -> None:
    run = Interpreter()
    run.values.update({f"%row{row}": [None] * 16 for row in range(16)})
    transpose(run, "T", 4, [f"%row{row}" for row in range(16)], 16, 16)
    assert len(run.values) - 16 == 16 * 4


@pytest.mark.parametrize("length", [1, 2, 4])
def test_short_rows_become_long_columns(length: int) -> None:
    """Rows are joined first: the shuffles that follow are of whole registers."""
    for count in (4, 8, 16):
        run = Interpreter()
        run.values.update({f"%row{row}": [(row, lane) for lane in range(length)] for row in range(count)})
        columns = across(run, "T", [f"%row{row}" for row in range(count)], length)
        assert [run.values[name] for name in columns] == [[(r, c) for r in range(count)] for c in range(length)]
        rounds = length.bit_length() - 1
        assert len(run.values) - count == count - length + length * rounds


@pytest.mark.parametrize(("count", "lanes"), [(4, 4), (8, 4), (16, 4), (2, 2), (8, 8)])
def test_sums_of_rows_are_the_lanes_of_one_vector(count: int, lanes: int) -> None:
    """A round adds neighbours of two rows: each result but the last is a whole register."""
    run = Interpreter()
    run.values.update({f"%row{row}": [Counter({(row, lane): 1}) for lane in range(lanes)] for row in range(count)})
    total = fold_rows(run, "T", [f"%row{row}" for row in range(count)], lanes)
    assert run.values[total] == [Counter((row, lane) for lane in range(lanes)) for row in range(count)]


@pytest.mark.parametrize("step", range(2, MAX_STRIDE + 1))
@pytest.mark.parametrize("lanes", [2, 3, 4, 8, 14, 16, 64])
def test_elements_apart_are_picked_and_none_after_the_last_is_touched(lanes: int, step: int) -> None:
    run = Interpreter()
    name = load_strided(run, lambda start: run(f"load <{lanes} x T>, ptr {start}, align 4"), "T", lanes, step)
    assert run.values[name] == [lane * step for lane in range(lanes)]
    assert max(run.touched) == (lanes - 1) * step
    assert len(run.values) == 2 * step - 1


@pytest.mark.parametrize("count", [3, 5, 6, 7])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_rows_become_groups_of_one_element_of_each(lanes: int, count: int) -> None:
    run = Interpreter()
    run.values.update({f"%row{row}": [(row, lane) for lane in range(lanes)] for row in range(count)})
    name = interleave_any(run, "T", [f"%row{row}" for row in range(count)], lanes)
    assert run.values[name] == [(row, lane) for lane in range(lanes) for row in range(count)]


# ---------------------------------------------------------------- whole kernels


def text_of(graph: UOp, target: Target) -> tuple[str, int]:
    """The program of a graph's one kernel, and the iterations of its outermost loop."""
    sink = prepare_kernel(kernel_of(graph))
    for opt in choose_opts(view_kernel(sink, target)):
        sink = apply_opt(sink, opt, target)
    program = lower(sink, target)
    return render(program, "kernel"), max((int(axis.src[0].arg) for axis in program.global_ranges), default=1)


def run_at(text: str, extent: int, output: int, source: int) -> None:
    code = llvm.load_object(llvm.compile_ir(text), "kernel")
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(code.address)
    kernel((ctypes.c_void_p * 2)(output, source), 0, extent)


def transposed(rows: int, columns: int) -> UOp:
    return add(build.permute(leaf(0, rows, columns), (1, 0)), const(leaf(0, 1).dtype, 1.0))


STREAMING = replace(cpu_target(), cache_bytes=1, cores=1, prefetched_streams=64)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("offset", [0, 4, 32])
@pytest.mark.parametrize("shape", [(64, 96), (64, 4096), (33, 50), (8, 24)])
@pytest.mark.parametrize(("vector_bytes", "registers"), [(16, 32), (32, 16), (64, 32)])
def test_a_transposition_wherever_the_memory_lies(
    vector_bytes: int, registers: int, shape: tuple[int, int], offset: int
) -> None:
    """Rows of 4096 floats lie as many elements apart as prefetching looks bytes ahead."""
    target = replace(STREAMING, vector_bytes=vector_bytes, vector_registers=registers)
    text, extent = text_of(transposed(*shape), target)
    count = shape[0] * shape[1]
    memory = np.zeros(2 * count + 64, np.float32)
    start = -memory.ctypes.data % 64
    source = np.arange(count, dtype=np.float32)
    run_at(text, extent, memory.ctypes.data + start + offset, source.ctypes.data)
    first = (start + offset) // 4
    np.testing.assert_array_equal(memory[first : first + count], (source.reshape(shape).T + 1).ravel())
    assert not memory[:first].any()
    assert not memory[first + count :].any()


@pytest.mark.parametrize(
    ("shape", "cache_bytes", "is_past_caches"),
    [
        ((256, 256), 1, True),
        ((256, 256), 1 << 24, False),  # a cache holds the result
        ((256, 240), 1, True),
        ((250, 256), 1, False),  # lines of the result do not start where lines of memory do
    ],
)
def test_lines_far_apart_are_written_past_the_caches(
    shape: tuple[int, int], cache_bytes: int, is_past_caches: bool
) -> None:
    text, _ = text_of(transposed(*shape), replace(cpu_target(), vector_bytes=64, cache_bytes=cache_bytes))
    assert ("!nontemporal" in text) == is_past_caches
    # What was written so is in order with nothing that follows.
    assert ("fence seq_cst\n  ret void" in text) == is_past_caches


def test_neighbouring_lines_stay_in_the_caches() -> None:
    text, _ = text_of(build.alu(Ops.NEG, leaf(0, 1 << 16)), STREAMING)
    assert "!nontemporal" not in text
    assert "llvm.prefetch" in text


def test_streams_side_by_side_are_left_to_a_processor_that_prefetches_them_better() -> None:
    few = replace(STREAMING, prefetched_streams=1)
    alone, beside = build.alu(Ops.NEG, leaf(0, 1 << 16)), add(leaf(0, 1 << 16), leaf(1, 1 << 16))
    assert "llvm.prefetch" in text_of(alone, few)[0]
    assert "llvm.prefetch" not in text_of(beside, few)[0]
    text, _ = text_of(beside, STREAMING)
    loaded = sum(int(lanes) for lanes in re.findall(r"load <(\d+) x float>", text)) * 4
    assert text.count("call void @llvm.prefetch") == loaded // STREAMING.line_bytes >= 2
    assert "llvm.prefetch" not in text_of(transposed(4096, 4096), few)[0]
    # Parts of several rows at a time: 64 rows of 100000 took 1.81 ms with the next rows prefetched, 1.48 without.
    assert "llvm.prefetch" not in text_of(build.reduce_axis(Ops.ADD, leaf(0, 64, 100000), (0,)), few)[0]


def test_a_stream_is_left_to_a_processor_that_prefetches_better() -> None:
    alone = replace(STREAMING, prefetch_bytes=0)
    text, _ = text_of(build.alu(Ops.NEG, leaf(0, 1 << 16)), alone)
    assert "llvm.prefetch" not in text
    # No processor knows which part of the next row a loop over columns reads.
    text, _ = text_of(build.reduce_axis(Ops.ADD, leaf(0, 960, 4096), (0,)), replace(alone, cores=4))
    assert "llvm.prefetch" in text


@pytest.mark.parametrize("has_masks", [False, True])
@pytest.mark.parametrize(("depth", "columns", "lines"), [(24576, 240, 1), (25045, 240, 1), (24576, 233, 2)])
def test_rows_are_prefetched_where_their_copy_is_masked(depth: int, columns: int, lines: int, has_masks: bool) -> None:
    """24x24576x240 took 12.2 ms, with 25045 terms 19.0 and with 233 columns 18.2: 16 columns of each row are packed, of
    which nothing else knows that they come next. Rows of 233 floats do not start where lines do."""
    sizes = (4, 8) if has_masks else ()
    text, _ = text_of(matrix_product(24, depth, columns), target_of("neoverse-n1", cores=1, masked_itemsizes=sizes))
    assert text.count("call void @llvm.prefetch") == lines


@pytest.mark.parametrize(("columns", "asking"), [(1024, 1), (512, 1), (8192, 2)])
def test_of_the_loops_that_walk_a_short_row_the_last_asks_for_the_next(columns: int, asking: int) -> None:
    """Where a row is long, each of them asks for what it reaches itself."""
    x = leaf(0, 64, columns)
    greatest = build.expand(build.reduce_axis(Ops.MAX, x, (1,)), x.shape)
    terms = build.alu(Ops.MUL, build.alu(Ops.SUB, x, greatest), x)
    text, _ = text_of(build.reduce_axis(Ops.ADD, terms, (1,)), STREAMING)
    loops = [part for part in re.split(r"\n\w+:\n", text) if " load <" in part]
    assert len(loops) == 2
    assert ["llvm.prefetch" in part for part in loops] == [asking == 2, True]


@pytest.mark.parametrize("columns", [5, 16, 1001, 1003])
@pytest.mark.parametrize("masked_itemsizes", [(), (4, 8)])
def test_where_no_vector_has_a_mask_whole_ones_need_none(masked_itemsizes: tuple[int, ...], columns: int) -> None:
    """Rows with zeros in front and behind: their first and last vectors are partial, on both sides of the store. Where
    masks are not free, the loop is cut into parts without them."""
    target = replace(cpu_target(), vector_bytes=16, vector_registers=32, cores=1, masked_itemsizes=masked_itemsizes)
    padded = build.pad(leaf(0, 8, columns), ((0, 0), (3, 2)))
    text, extent = text_of(build.alu(Ops.NEG, padded), target)
    if columns > 16:
        assert ("llvm.masked.load" in text) == (masked_itemsizes != ())
        assert "whole:" not in text
    source = np.arange(1, 8 * columns + 1, dtype=np.float32)
    memory = np.full(8 * (columns + 5) + 64, 7, np.float32)
    run_at(text, extent, memory.ctypes.data, source.ctypes.data)
    expected = -np.pad(source.reshape(8, columns), ((0, 0), (3, 2))).ravel()
    np.testing.assert_array_equal(memory[: len(expected)], expected)
    assert (memory[len(expected) :] == 7).all()


def test_memory_of_a_size_that_is_an_argument_is_not_read_past_its_end() -> None:
    """The kernel of all sizes knows the greatest one; the memory of a small tensor ends before."""
    length = Variable("length", 1, 4096).bind(17)
    x = Tensor(np.arange(4096, dtype=np.float32), device="CPU").realize()
    shown = explain(x[:length] * 2)
    assert not any("icmp ule" in kernel.source for kernel in shown.kernels)


@pytest.mark.parametrize("times", [2, 3, 4])
def test_phases_are_stored_as_one_vector(times: int) -> None:
    """Elements of three phases were stored one by one."""
    x = Tensor(np.arange(70 * 48, dtype=np.float32).reshape(70, 48)).realize()
    repeated = x.repeat_interleave(times, 1)
    (item,) = repeated.schedule()
    assert item.ast is not None
    target = replace(cpu_target(), cores=1)
    text = render(lower(optimise(item.ast, target), target), "kernel")
    assert "masked.scatter" not in text
    np.testing.assert_array_equal(repeated.numpy(), np.repeat(x.numpy(), times, 1))

"""What the heuristic chooses for kernels that memory bounds, on targets without work-groups: by their registers, cores
and caches alone. That the choice is right is tested in test_transforms.py, that it is fast in bench/memory_rows.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernel.kernels import Builder, kernel_of, leaf, matrix_product, mul
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.kernel.apply import apply_opt, describe_axes
from tilewright.kernel.axes import KernelView, size_of, view_kernel
from tilewright.kernel.heuristics.default import choose_opts
from tilewright.kernel.optimise import prepare_kernel

WIDE = Target("wide", vector_bytes=64, vector_registers=32, cores=2, has_threads=True, cache_bytes=16 << 20)
NARROW = replace(WIDE, vector_bytes=16)
FEW = replace(WIDE, vector_bytes=32, vector_registers=16)


def transposed(*shape: int) -> UOp:
    return build.alu(Ops.NEG, build.permute(leaf(0, *shape), (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)))


def column_sums(rows: int, columns: int) -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, rows, columns), (0,))


def vector_times_matrix(rows: int, columns: int) -> UOp:
    vector = build.expand(build.reshape(leaf(0, rows), (rows, 1)), (rows, columns))
    return build.reduce_axis(Ops.ADD, mul(vector, leaf(1, rows, columns)), (0,))


def channel_sums(images: int, channels: int, places: int) -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, images, channels, places), (0, 2))


def every_second(rows: int, columns: int) -> UOp:
    pairs = build.reshape(leaf(0, rows, columns * 2), (rows, columns, 2))
    return build.alu(Ops.NEG, build.shrink(pairs, ((0, rows), (0, columns), (0, 1))))


def chosen(graph: UOp, target: Target) -> KernelView:
    sink = prepare_kernel(kernel_of(graph))
    for opt in choose_opts(view_kernel(sink, target)):
        sink = apply_opt(sink, opt, target)
    return view_kernel(sink)


def held(number: int, levels: int, size: int) -> str:
    """The loops that clear the sums of each level, and that add to them."""
    return ", ".join(f"{n}:LOOP({size})" for n in range(number, number + 2 * levels))


CASES: dict[str, tuple[Builder, Target, str]] = {
    "a transposition in squares of a line": (
        lambda: transposed(4096, 2048),
        WIDE,
        "0:THREAD(256), 1:LOOP(128), 2:UPCAST(16), 3:UPCAST(16)",
    ),
    "with few registers, half a line is read at a time": (
        lambda: transposed(4096, 2048),
        FEW,
        "0:THREAD(256), 1:LOOP(256), 2:UPCAST(16), 3:UPCAST(8)",
    ),
    "of many matrices, the cores share the matrices": (
        lambda: transposed(64, 128, 32),
        WIDE,
        "0:THREAD(64), 1:LOOP(8), 2:LOOP(2), 3:UPCAST(16), 4:UPCAST(16)",
    ),
    "large rows are summed four at once, their sums held": (
        lambda: column_sums(4096, 4096),
        WIDE,
        "0:THREAD(4), 1:LOOP(64), 2:REDUCE(4), 3:REDUCE(16), 4:REDUCE(16), 5:UPCAST(16), 6:UNROLL(4), "
        + held(7, 3, 64),
    ),
    "a line of each at a time": (
        lambda: column_sums(4096, 4096),
        NARROW,
        "0:THREAD(4), 1:LOOP(64), 2:REDUCE(4), 3:REDUCE(16), 4:REDUCE(16), 5:UPCAST(16), 6:UNROLL(4), "
        + held(7, 3, 64),
    ),
    "parts of them are narrower where cores would be idle": (
        lambda: vector_times_matrix(4096, 4096),
        replace(WIDE, cores=8),
        "0:THREAD(16), 1:LOOP(16), 2:REDUCE(4), 3:REDUCE(256), 4:UPCAST(16), 5:UNROLL(4), " + held(6, 2, 16),
    ),
    "rows of whole halves of registers": (
        lambda: column_sums(8192, 1000),
        WIDE,
        "0:THREAD(5), 1:LOOP(25), 2:REDUCE(8), 3:REDUCE(16), 4:REDUCE(16), 5:UPCAST(8), 6:UNROLL(4), " + held(7, 3, 25),
    ),
    "rows that no number of streams divides are summed one by one": (
        lambda: column_sums(4099, 4096),
        WIDE,
        "0:THREAD(4), 1:LOOP(64), 2:REDUCE(17), 3:REDUCE(computed), 4:REDUCE(computed), 5:UPCAST(16), "
        + held(6, 3, 64),
    ),
    "few results of many rows are held in registers": (
        lambda: column_sums(65536, 256),
        WIDE,
        "0:THREAD(4), 1:REDUCE(65536), 2:UPCAST(64)",
    ),
    "sums of rows take one of each quarter": (
        lambda: build.reduce_axis(Ops.ADD, leaf(0, 4096, 4096), (1,)),
        WIDE,
        "0:THREAD(1024), 1:REDUCE(64), 2:UPCAST(4), 3:UPCAST(64)",
    ),
    "of each half where registers are few": (
        lambda: build.reduce_axis(Ops.ADD, leaf(0, 4096, 4096), (1,)),
        FEW,
        "0:THREAD(2048), 1:REDUCE(128), 2:UPCAST(2), 3:UPCAST(32)",
    ),
    "a few rows of a product share what is read once": (
        lambda: matrix_product(4, 4096, 4096),
        WIDE,
        "0:THREAD(64), 1:REDUCE(4096), 2:UPCAST(4), 3:UPCAST(64)",
    ),
    "rows that a cache holds are not": (
        lambda: column_sums(256, 4096),
        WIDE,
        "0:THREAD(64), 1:REDUCE(256), 2:UPCAST(64)",
    ),
    "a short vector axis is helped by another": (
        lambda: channel_sums(64, 32, 32),
        WIDE,
        "0:THREAD(32), 1:REDUCE(32), 2:UPCAST(2), 3:UPCAST(32)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_axes_of_a_kernel(name: str) -> None:
    graph, target, axes = CASES[name]
    assert describe_axes(chosen(graph(), target)) == axes


def test_small_steps_are_vectors_and_large_ones_single() -> None:
    tile = [size_of(axis) for axis in chosen(every_second(64, 1024), WIDE).of_kind(AxisType.UPCAST)]
    assert tile == [64]


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_the_order_of_a_sum_does_not_follow_the_cores(cores: int) -> None:
    """Columns are divided among cores as they may be; each is summed four rows at a time."""
    view = chosen(column_sums(4096, 4096), replace(WIDE, cores=cores))
    (node,) = view.reduces
    assert [(axis.arg.kind, size_of(axis)) for axis in node.src[1:]] == [(AxisType.UNROLL, 4)]
    assert [size_of(axis) for axis in view.of_kind(AxisType.REDUCE)] == [4, 16, 16]

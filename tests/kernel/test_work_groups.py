"""What the heuristic chooses on a target with work-groups, by the facts of the target alone: properties for each kind
of kernel. That the choice is right is tested in test_transforms.py, that it is fast in bench/gpu.py."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.kernel.kernels import Builder, add, kernel, kernel_of, leaf, matrix_product, mul, row_sums
from tests.kernel.properties import (
    adjacent_threads_read_adjacent_elements,
    chosen_for,
    fills_a_group,
    loads_vectors,
    packs,
    reuses_its_loads,
    stores_vectors,
)
from tilewright.backends.python.device import python_target
from tilewright.base.config import Context
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.kernels.threads import local_bytes, threads_of
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel import optimise as optimise_module
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.prepare.accumulators import recognise_accumulators
from tilewright.kernel.templates.choose import choose_opts

LARGE = replace(python_target(), cores=132, warp_size=32, max_local_bytes=1 << 17)
SMALL = replace(python_target(), cores=1, max_group_size=64)


def softmax(rows: int, columns: int) -> UOp:
    shape = (rows, columns)
    x = leaf(0, *shape)
    powers = build.alu(Ops.EXP2, build.alu(Ops.SUB, x, build.expand(build.reduce_axis(Ops.MAX, x, (1,)), shape)))
    return build.alu(Ops.FDIV, powers, build.expand(build.reduce_axis(Ops.ADD, powers, (1,)), shape))


def matrix_times_vector(rows: int, columns: int) -> UOp:
    matrix, vector = leaf(0, rows, columns, dtype=dtypes.float16), leaf(1, columns, dtype=dtypes.float16)
    spread = build.expand(build.reshape(vector, (1, columns)), (rows, columns))
    return build.reduce_axis(Ops.ADD, mul(matrix, spread), (1,))


TARGETS = {"many cores": LARGE, "few cores": replace(LARGE, cores=16), "no warps": replace(LARGE, warp_size=1)}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("size", [1 << 20, 100003, 4096, 999])
def test_elementwise_kernels_have_full_groups_of_adjacent_threads(size: int, target: Target) -> None:
    made = chosen_for(add(leaf(0, size), leaf(1, size)), target)
    fills_a_group(made)
    adjacent_threads_read_adjacent_elements(made)
    if size % 4 == 0:
        stores_vectors(made)


def test_few_elements_have_few_threads() -> None:
    assert chosen_for(add(leaf(0, 3), leaf(1, 3)), LARGE).threads == 3


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("shape", [(16384, 8192), (256, 1 << 20), (16384, 256), (1000, 3000)], ids=str)
def test_threads_share_rows(shape: tuple[int, int], target: Target) -> None:
    """Each row is summed by adjacent threads that read vectors; short rows come several to a group."""
    made = chosen_for(row_sums(*shape), target)
    assert made.count(AxisType.GROUP) > 1
    loads_vectors(made)
    adjacent_threads_read_adjacent_elements(made)
    assert made.threads >= 64


def test_few_rows_have_more_threads_each() -> None:
    few, many = (chosen_for(row_sums(rows, 1 << 20), LARGE).count(AxisType.GROUP) for rows in (256, 1 << 16))
    assert few > many


def test_all_reductions_of_a_row_and_its_results_are_on_the_same_threads() -> None:
    for rows, columns in ((16384, 8192), (512, 1000), (64, 4096)):
        made = chosen_for(softmax(rows, columns), LARGE)
        sharing = made.sizes(AxisType.GROUP)
        assert len(sharing) == 2
        assert len(set(sharing)) == 1
        assert made.threads in (sharing[0], math.prod(made.sizes(AxisType.LOCAL)))


def test_half_precision_is_read_in_vectors_of_16_bytes() -> None:
    made = chosen_for(matrix_times_vector(28672, 8192), LARGE)
    widths = {size_of(a) for a in made.view.of_kind(AxisType.UPCAST) for load in made.buffers if stride(load, a) == 1}
    assert widths == {16 // dtypes.float16.itemsize}


@pytest.mark.parametrize("columns", [8192, 1000, 64])
def test_columns_are_summed_by_threads_along_memory(columns: int) -> None:
    """They share the reduction, as columns alone are fewer than the threads that run at once. A thread has several
    vectors on their way at a time."""
    made = chosen_for(build.reduce_axis(Ops.ADD, leaf(0, 8192, columns), (0,)), LARGE)
    (load,) = made.buffers
    assert {size_of(axis) for axis in made.view.of_kind(AxisType.UPCAST) if stride(load, axis) == 1} == {4}
    assert any(stride(load, axis) == 4 for axis in made.view.of_kind(AxisType.LOCAL))
    assert made.count(AxisType.UNROLL) == LARGE.independent_vectors
    assert made.count(AxisType.GROUP) > 1


@pytest.mark.parametrize("size", [2048, 512, 384])
def test_a_product_has_tiles_of_threads_of_registers_and_of_local_memory(size: int) -> None:
    made = chosen_for(matrix_product(size, size, size), LARGE)
    assert len(made.sizes(AxisType.LOCAL)) == 2
    assert made.threads >= 64
    assert packs(made) == 2
    reuses_its_loads(made, least=1.0)
    assert made.tile >= 16


def test_operands_of_a_product_are_copied_and_only_those() -> None:
    sink = prepare_kernel(kernel_of(matrix_product(256, 256, 256)))
    staged = [opt for opt in choose_opts(view_kernel(sink, LARGE)) if opt.op is OptOps.STAGE]
    assert len(staged) == 2
    rows = prepare_kernel(kernel_of(softmax(64, 256)))
    assert not any(opt.op is OptOps.STAGE for opt in choose_opts(view_kernel(rows, LARGE)))


def test_the_limits_of_the_target_are_kept() -> None:
    tight = replace(SMALL, max_local_bytes=4096)
    for graph in (matrix_product(128, 128, 128), softmax(64, 4096), leaf(0, 4096)):
        sink = prepare_kernel(kernel_of(build.alu(Ops.NEG, graph)))
        for opt in choose_opts(view_kernel(sink, tight)):
            sink = apply_opt(sink, opt)
        assert threads_of(sink).count <= 64
        assert local_bytes(sink, tight.warp_size) <= 4096


def test_an_accumulator_is_no_load() -> None:
    """A running update keeps its register and its loop; threads take the rows."""
    sink = recognise_accumulators(kernel("polynomial"))
    view = view_kernel(sink, LARGE)
    assert len(view.accesses) == 2
    chosen = choose_opts(view)
    assert all(opt.op is OptOps.LOCAL and opt.axis == 0 for opt in chosen)


@pytest.mark.parametrize("target", [LARGE, replace(python_target(), has_local=False, cores=2, vector_bytes=64)])
@pytest.mark.parametrize("make", [lambda: softmax(64, 256), lambda: matrix_product(96, 128, 64)])
def test_what_was_chosen_is_applied_once_and_where_graphs_are_verified_again(
    make: Builder, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[Opt] = []
    monkeypatch.setattr(optimise_module, "apply_opt", lambda *given: applied.append(given[1]) or apply_opt(*given))
    with Context(VERIFY_GRAPH=0):
        made = optimise_module.optimise(kernel_of(make()), target)
    assert not applied
    with Context(VERIFY_GRAPH=1):
        assert optimise_module.optimise(kernel_of(make()), target) is made
    assert tuple(applied) == made.arg.applied != ()

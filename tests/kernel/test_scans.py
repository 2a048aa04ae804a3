"""Scans and sorts of rows on CPU cores: a template gives their rows to one core or to all of them, by its estimate, and
makes no tile of loops whose iterations run in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kernel.kernels import after, axis, end, group, load, param, register, sink, store
from tilewright.base.dtype import dtypes
from tilewright.base.records import replace
from tilewright.base.target import Target
from tilewright.graph.kernels.scans.running import extremes_kernel, running_kernel
from tilewright.graph.kernels.sorting.serial_sort import sort_kernel
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates.choose import choose_plan
from tilewright.kernel.templates.opt_builder import OptBuilder
from tilewright.kernel.templates.template import Choice

CPU = Target("CPU", cores=2, has_threads=True, max_local_bytes=1 << 20)
F32 = dtypes.float32


def chosen(kernel: UOp, target: Target = CPU) -> Choice:
    return choose_plan(view_kernel(prepare_kernel(kernel), target))


def sums(*shape: int) -> UOp:
    return running_kernel(Ops.ADD, F32, F32, F32, shape, False)


@pytest.mark.parametrize(
    "kernel",
    [
        *(lambda inner=inner: sums(64, 1000, inner) for inner in (1, 2, 3, 5, 7)),
        *(lambda inner=inner: extremes_kernel(Ops.MAX, F32, (64, 1000, inner)) for inner in (1, 2, 5, 7)),
        *(lambda dtype=dtype: sort_kernel(dtype, 64, 1000) for dtype in (dtypes.uint8, dtypes.int32, dtypes.int64)),
    ],
)
def test_long_rows_are_shared_by_all_cores_and_nothing_else_is_done(kernel: Callable[[], UOp]) -> None:
    choice = chosen(kernel())
    assert (choice.template, choice.plan.name) == ("scan", "all cores")
    assert choice.opts == (Opt(OptOps.THREAD, 0, 64),)
    assert all(each.seconds is not None for each in choice.considered)


@pytest.mark.parametrize("shape", [(2, 100, 1), (1, 100000, 1), (1, 1000, 3)], ids=str)
def test_few_elements_and_one_row_stay_on_one_core(shape: tuple[int, int, int]) -> None:
    """Columns of adjacent memory are not shared either: cores would store to the same lines."""
    choice = chosen(sums(*shape))
    assert (choice.template, choice.plan.name, choice.opts) == ("scan", "one core", ())


def test_the_clocks_of_a_launch_decide() -> None:
    assert chosen(sums(64, 1000, 1), replace(CPU, launch_clocks=1e9)).plan.name == "one core"


def test_a_loop_that_may_be_vectors_is_left_to_other_templates() -> None:
    """A register of each column carries its sum from row to row: columns are vectors."""
    row, column, first = axis(32, 0), axis(64, 1), axis(64, 2)
    totals = register(0, 64)
    begun = after(totals, end(store(totals, first, 0.0), first))
    value = load(after(begun, row), column) + load(param(1, 2048), row * 64 + column)
    effects = group(store(after(begun, row), column, value), store(param(0, 2048), row * 64 + column, value))
    assert chosen(sink(end(effects, column, row))).template != "scan"


def test_a_loop_that_may_not_be_a_tile_is_not_padded_for_one() -> None:
    view = view_kernel(prepare_kernel(sums(1, 7, 1)), CPU)
    builder = OptBuilder(view)
    for loop in view.axes:
        builder.vectorise(loop, 4, 4)
    assert not [opt for opt in builder.opts if opt.op is OptOps.PADTO]

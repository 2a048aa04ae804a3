"""ALIGN: rows whose first element is anywhere in a line of the cache are stored in vectors that begin with a line."""

from __future__ import annotations

import pytest

from tests.kernel.kernels import axis, kernel, load, param, refusal_of, store
from tests.kernel.test_transforms import check
from tilewright.backends.cpu.device import cpu_target
from tilewright.base.dtype import dtypes
from tilewright.base.records import replace
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise

ALIGN, UPCAST, THREAD = OptOps.ALIGN, OptOps.UPCAST, OptOps.THREAD


def reversed_rows(rows: int, columns: int) -> UOp:
    """Rows in another order, with one number of each column added."""
    r, c = axis(rows, 0), axis(columns, 1)
    value = load(param(1, rows * columns), (r * -1 + (rows - 1)) * columns + c) + load(param(2, columns), c)
    return UOp(Ops.SINK, dtypes.void, (store(param(0, rows * columns), r * columns + c, value),), KernelInfo("rows"))


@pytest.mark.parametrize("columns", [9, 16, 37, 64, 65])
@pytest.mark.parametrize("multiple", [4, 16])
def test_every_element_is_stored_once(columns: int, multiple: int) -> None:
    ast = reversed_rows(5, columns)
    if columns % multiple == 0:
        assert "begins at a multiple already" in refusal_of(ast, (Opt(ALIGN, 1, multiple),))
        return
    for opts in ((), (Opt(UPCAST, 1, multiple),), (Opt(UPCAST, 1, multiple), Opt(THREAD, 0, 5))):
        check(ast, (Opt(ALIGN, 1, multiple), *opts), ("PYTHON", "CPU"))


def test_nothing_is_stored_beside_a_row() -> None:
    """Rows are updated in place: a vector that stored its masked elements would double some of the row before."""
    r, c = axis(4, 0), axis(11, 1)
    rows = param(0, 44)
    ast = UOp(Ops.SINK, dtypes.void, (store(rows, r * 11 + c, load(rows, r * 11 + c) * 2),), KernelInfo("rows"))
    check(ast, (Opt(ALIGN, 1, 8), Opt(UPCAST, 1, 8)), ("PYTHON", "CPU"))


@pytest.mark.parametrize(
    ("name", "opts", "reason"),
    [
        ("row_sums", (Opt(ALIGN, 0, 8),), "an effect, a reduction or a size depends on axis 0"),
        ("row_sums", (Opt(ALIGN, 1, 8),), "needs an output loop"),
        ("elementwise", (Opt(ALIGN, 0, 8),), "needs stores of contiguous elements"),
        ("elementwise", (Opt(ALIGN, 1, 1),), "is less than 2"),
        ("elementwise", (Opt(UPCAST, 1, 5), Opt(ALIGN, 2, 8)), "axis 2 is UPCAST"),
        ("elementwise", (Opt(UPCAST, 0, 3), Opt(OptOps.STAGE, 1, 1), Opt(ALIGN, 1, 4)), "an effect"),
        ("elementwise", (Opt(OptOps.BLOCK, 1, 3), Opt(ALIGN, 2, 4)), "blocks that overlap"),
    ],
)
def test_why_it_is_refused(name: str, opts: tuple[Opt, ...], reason: str) -> None:
    assert reason in refusal_of(kernel(name), opts)


# ---------------------------------------------------------------- the templates

LINES = replace(cpu_target(), vector_bytes=64, vector_registers=32, line_bytes=64, masked_itemsizes=(4, 8), cores=2)


@pytest.mark.parametrize(("columns", "is_aligned"), [(1001, True), (1024, False), (1000, False), (40, False)])
def test_rows_that_begin_anywhere_are_aligned_where_a_vector_is_a_line(columns: int, is_aligned: bool) -> None:
    """1024 elements are whole lines, 1000 whole halves of one, which cross none; 40 are too few to repay a mask."""
    ast = reversed_rows(64, columns)
    assert (ALIGN in {opt.op for opt in optimise(ast, LINES).arg.applied}) is is_aligned
    for fact in ({"vector_bytes": 16}, {"masked_itemsizes": ()}):
        assert ALIGN not in {opt.op for opt in optimise(ast, replace(LINES, **fact)).arg.applied}


def test_aligned_rows_are_shared_by_cores() -> None:
    applied = optimise(reversed_rows(64, 1001), LINES).arg.applied
    assert [opt.arg for opt in applied if opt.op is THREAD] == [64]

"""SPILL: sums held in memory, row after row, are those that a loop for each of them gives; what cannot be held is
refused. The heuristic holds the sums of large rows."""

from __future__ import annotations

import pytest

from tests.kernel.kernels import kernel, kernel_of, leaf, mul, refusal_of
from tests.kernel.test_transforms import check
from tilewright.backends.cpu.device import cpu_target
from tilewright.base.dtype import dtypes
from tilewright.base.errors import KernelOptError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.optimise import optimise

SPILL, UPCAST, UNROLL, THREAD, BLOCK, PADTO, SWAP = (
    OptOps.SPILL,
    OptOps.UPCAST,
    OptOps.UNROLL,
    OptOps.THREAD,
    OptOps.BLOCK,
    OptOps.PADTO,
    OptOps.SWAP,
)


def column_results(op: Ops, dtype=dtypes.float32) -> UOp:
    """Of three matrices of 12 x 10, a result for each column, and something made of it."""
    made = build.reduce_axis(op, leaf(0, 3, 12, 10, dtype=dtype), (1,))
    return mul(made, leaf(1, 3, 1, 10, dtype=dtype))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.MAX])
@pytest.mark.parametrize(
    "opts",
    [
        (Opt(SPILL, 1),),
        (Opt(UPCAST, 1, 5), Opt(SPILL, 1)),
        (Opt(UPCAST, 0, 3), Opt(UPCAST, 0, 5), Opt(SPILL, 0)),
        (Opt(UNROLL, 2, 4), Opt(SPILL, 1)),
        (Opt(BLOCK, 2, 3), Opt(UNROLL, 2, 4), Opt(SPILL, 1)),
        (Opt(UPCAST, 2, 4), Opt(SPILL, 1)),
        (Opt(THREAD, 0, 3), Opt(SPILL, 1)),
        (Opt(BLOCK, 1, 5), Opt(THREAD, 1, 2), Opt(SPILL, 2)),
        (Opt(PADTO, 1, 4), Opt(UPCAST, 1, 4), Opt(PADTO, 2, 5), Opt(UNROLL, 2, 5), Opt(SPILL, 1)),
        (Opt(SWAP, 0, 1), Opt(SPILL, 1)),
        (Opt(SPILL, 0),),
        (Opt(BLOCK, 1, 5), Opt(UPCAST, 2, 5), Opt(SPILL, 0)),
        (Opt(BLOCK, 2, 4), Opt(SPILL, 0, 1)),
        (Opt(BLOCK, 2, 3), Opt(SPILL, 1, 1)),
        (Opt(BLOCK, 2, 6), Opt(UNROLL, 3, 2), Opt(UPCAST, 1, 5), Opt(SPILL, 1, 1)),
        (Opt(BLOCK, 2, 6), Opt(BLOCK, 3, 3), Opt(THREAD, 0, 3), Opt(SPILL, 1, 2)),
    ],
    ids=str,
)
def test_what_is_held_is_what_was_reduced(opts: tuple[Opt, ...], op: Ops) -> None:
    ast = kernel_of(column_results(op))
    made = ast
    for opt in opts:
        made = apply_opt(made, opt)
    assert sum(node.op is Ops.DEFINE_LOCAL for node in toposort(made)) == 1
    check(ast, opts, ("CPU", "PYTHON"))


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.int8, dtypes.uint8, dtypes.float64], ids=str)
def test_other_dtypes(dtype) -> None:
    check(kernel_of(column_results(Ops.ADD, dtype)), (Opt(UPCAST, 1, 5), Opt(SPILL, 1)), ("CPU", "PYTHON"))


@pytest.mark.parametrize(
    ("ast", "opts", "words"),
    [
        (column_results(Ops.ADD), (Opt(SPILL, 1, 4),), ("how many loops", "4 is none of 1 to 1")),
        (column_results(Ops.ADD), (Opt(SPILL, 2),), ("output loop", "axis 2", "REDUCE")),
        (column_results(Ops.ADD), (Opt(THREAD, 1, 10), Opt(SPILL, 0)), ("output loop", "THREAD")),
        (column_results(Ops.ADD), (Opt(SPILL, 1), Opt(SPILL, 1)), ("states an order",)),
        (column_results(Ops.ADD), (Opt(UNROLL, 2, 12), Opt(SPILL, 1)), ("loop of its own", "there are 0")),
        (column_results(Ops.ADD), (Opt(OptOps.LOCAL, 0, 3), Opt(SPILL, 1)), ("share the sums",)),
        (column_results(Ops.MAX, dtypes.float16), (Opt(SPILL, 1),), ("round", "float16")),
    ],
    ids=str,
)
def test_what_cannot_be_held_is_refused(ast: UOp, opts: tuple[Opt, ...], words: tuple[str, ...]) -> None:
    reason = refusal_of(kernel_of(ast), opts)
    assert all(word in reason for word in words), reason


def test_two_reductions_over_one_loop_are_not_held() -> None:
    with pytest.raises(KernelOptError, match="SPILL"):
        apply_opt(kernel("rows_less_their_greatest"), Opt(SPILL, 0))


def test_the_heuristic_holds_sums_of_large_rows_alone() -> None:
    def holds(rows: int, columns: int) -> bool:
        graph = build.reduce_axis(Ops.ADD, leaf(0, rows, columns), (0,))
        return any(opt.op is SPILL for opt in optimise(kernel_of(graph), cpu_target()).arg.applied)

    rows = cpu_target().core_cache_bytes // 4 // 4096
    assert holds(rows + 64, 4096)
    assert not holds(rows // 2 - 1, 4096)

"""MEMOISE: a value that a reduction and a later loop share is computed once and right; anything else is refused. The
heuristic memoises expensive values only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernel.kernels import kernel, kernel_of, leaf, refusal_of
from tests.kernel.test_transforms import check
from tests.kernel.test_work_groups import softmax
from tilewright import Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import optimise

MEMOISE, UPCAST, UNROLL, THREAD, LOCAL, PADTO = (
    OptOps.MEMOISE,
    OptOps.UPCAST,
    OptOps.UNROLL,
    OptOps.THREAD,
    OptOps.LOCAL,
    OptOps.PADTO,
)
ROWS = "rows_less_their_greatest"


def operations(sink: UOp, op: object) -> int:
    return sum(node.op is op for node in toposort(sink))


@pytest.mark.parametrize(
    "opts",
    [
        (Opt(MEMOISE, 3),),
        (Opt(THREAD, 0, 8), Opt(MEMOISE, 3)),
        (Opt(MEMOISE, 3), Opt(THREAD, 0, 8)),
        (Opt(UPCAST, 1, 4), Opt(UPCAST, 3, 4), Opt(MEMOISE, 3)),
        (Opt(PADTO, 1, 8), Opt(PADTO, 3, 8), Opt(MEMOISE, 3)),
        (Opt(UPCAST, 0, 2), Opt(MEMOISE, 3)),
        (Opt(MEMOISE, 3), Opt(UPCAST, 1, 6)),
        (Opt(MEMOISE, 3), Opt(THREAD, 1, 12)),
    ],
    ids=str,
)
def test_what_is_kept_is_what_was_computed(opts: tuple[Opt, ...]) -> None:
    ast = kernel(ROWS)
    made = ast
    for opt in opts:
        made = apply_opt(made, opt)
    assert operations(made, Ops.DEFINE_LOCAL) == 1
    assert operations(made, Ops.SUB) == operations(ast, Ops.SUB) - 1
    check(ast, opts, ("CPU", "PYTHON"))


@pytest.mark.parametrize(
    ("opts", "words"),
    [
        ((Opt(MEMOISE, 0),), ("loop of a reduction", "axis 0", "LOOP")),
        ((Opt(MEMOISE, 2),), ("axis 2 of size 12", "no later loop")),
        ((Opt(MEMOISE, 3, 4),), ("no argument", "4")),
        ((Opt(UPCAST, 1, 4), Opt(MEMOISE, 3)), ("axis 3", "no later loop")),
        ((Opt(LOCAL, 0, 4), Opt(MEMOISE, 4)), ("4 threads", "axis 0")),
        ((Opt(MEMOISE, 3), Opt(LOCAL, 0, 4)), ("LOCAL", "local placeholder 0", "same address")),
        ((Opt(MEMOISE, 3), Opt(UNROLL, 3, 4)), ("UNROLL", "stores")),
        ((Opt(MEMOISE, 3), Opt(UPCAST, 0, 2)), ("UPCAST", "local placeholder 0", "same address")),
        ((Opt(MEMOISE, 3), Opt(MEMOISE, 3)), ("axis 3", "no later loop")),
        ((Opt(THREAD, 1, 12), Opt(MEMOISE, 3)), ("axis 3", "no later loop")),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused(opts: tuple[Opt, ...], words: tuple[str, ...]) -> None:
    reason = refusal_of(kernel(ROWS), opts)
    assert all(word in reason for word in words), reason


def test_a_loop_that_comes_before_is_no_later_loop() -> None:
    """The loop that copies an operand asks for the same places as the sum that reads the copy."""
    for operand in (0, 1):  # one of them is the same in all iterations of the loop, and is copied before it
        opts = (Opt(PADTO, 2, 5), Opt(OptOps.STAGE, 1, operand), Opt(MEMOISE, 2))
        assert "no later loop" in refusal_of(kernel("narrow_product"), opts)


def keeps(graph: UOp, **facts: Any) -> bool:
    target = replace(cpu_target(), **facts)
    return any(opt.op is MEMOISE for opt in optimise(kernel_of(graph), target).arg.applied)


def test_dear_values_are_kept_and_cheap_ones_computed_again() -> None:
    assert keeps(softmax(64, 512))
    assert not keeps(softmax(64, 512), core_cache_bytes=2048)
    assert not keeps(softmax(64, 512), max_local_bytes=2047)
    x = leaf(0, 64, 512)
    squares = build.alu(Ops.MUL, x, x)
    assert not keeps(build.alu(Ops.SUB, squares, build.expand(build.reduce_axis(Ops.ADD, squares, (1,)), x.shape)))


@pytest.mark.parametrize("columns", [129, 276, 500, 4097])
def test_rows_that_begin_anywhere_are_kept_too(columns: int) -> None:
    """With masked vectors as long as a line, the last loop began at a line: it was unlike the sum's, and each
    exponential was computed twice."""
    lines: dict[str, Any] = {"vector_bytes": 64, "line_bytes": 64, "vector_registers": 32, "masked_itemsizes": (4, 8)}
    assert keeps(softmax(64, columns), **lines)


@pytest.mark.parametrize("shape", [(3, 64), (64, 1000), (5, 77), (2, 3, 400), (1, 5000), (7, 2)])
def test_softmax_of_many_widths(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(7).normal(size=shape).astype(np.float32)
    values[0, ..., 0] = -np.inf
    values[-1, ..., -1] = 80
    powers = np.exp(values.astype(np.float64) - values.max(-1, keepdims=True))
    np.testing.assert_allclose(Tensor(values).softmax(-1).numpy(), powers / powers.sum(-1, keepdims=True), atol=2e-7)


def test_the_view_finds_the_loops_of_the_kernel() -> None:
    """The numbers that the tests above name."""
    assert [axis.arg.kind.name for axis in view_kernel(kernel(ROWS)).axes] == ["LOOP", "LOOP", "REDUCE", "REDUCE"]

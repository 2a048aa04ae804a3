"""Reductions whose results repeat are taken once, and products that a kernel would repeat are stored."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.graphs import Graph
from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.preparation.repeated import Repeats, kept_axes


def leaf(slot: int, *shape: int) -> UOp:
    return build.reshape(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(slot, int(np.prod(shape)))), shape)


def spread_out(node: UOp, *shape: int) -> UOp:
    return build.expand(node, shape)


X, Y = leaf(0, 4, 1, 6), leaf(1, 1, 1, 6)
WIDE = spread_out(X, 4, 3, 6)
BOTH = build.alu(Ops.MUL, WIDE, spread_out(Y, 4, 3, 6))
TURNED = build.permute(build.reshape(WIDE, (2, 2, 3, 6)), (3, 2, 0, 1))
CASES = [
    (WIDE, (2,), (4, 1, 1)),
    (BOTH, (2,), (4, 1, 1)),
    (build.alu(Ops.MUL, WIDE, spread_out(leaf(1, 4, 3, 1), 4, 3, 6)), (2,), None),  # the other factor differs
    (WIDE, (1, 2), None),  # the repeated axis is summed
    (spread_out(Y, 4, 3, 6), (2,), (1, 1, 1)),
    (TURNED, (0,), (1, 1, 2, 2)),
    (build.alu(Ops.EXP2, build.alu(Ops.ADD, TURNED, build.const(dtypes.float32, 2.0))), (0,), (1, 1, 2, 2)),
    (build.reshape(WIDE, (12, 6)), (1,), None),  # rows that repeat are merged with rows that differ
    (build.reshape(spread_out(Y, 4, 3, 6), (12, 6)), (1,), None),
]


@pytest.mark.parametrize(("value", "axes", "shape"), CASES)
@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
def test_repeated_results_are_taken_once(value: UOp, axes: tuple[int, ...], shape: Shape | None, op: Ops) -> None:
    node = build.reduce_axis(op, value, axes)
    made = Repeats().reduced_once(node)
    assert (None if made is None else made.shape) == shape
    if made is not None:
        rng = np.random.default_rng(0)
        sizes = {p: p.arg.size for p in toposort(node) if p.op is Ops.PARAM}
        given = {p: rng.standard_normal(size).astype(np.float32) for p, size in sizes.items()}
        found, wanted = evaluate_all((build.expand(made, node.shape), node), given)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ((4, 3, 6), (4, 1, 3, 6), [(0, 0), (1, 2), (2, 3)]),
        ((4, 3, 6), (2, 2, 3, 6), [(1, 2), (2, 3)]),
        ((4, 3, 6), (12, 6), [(2, 1)]),
        ((4, 6), (6, 4), []),
    ],
)
def test_axes_that_a_reshape_keeps(old: Shape, new: Shape, kept: list[tuple[int, int]]) -> None:
    assert list(kept_axes(old, new)) == kept


def test_the_gradient_of_a_mean_is_multiplied_once() -> None:
    graph = Graph()
    hidden, weight = graph.tensor(4, 9, 512), graph.tensor(512, 64)
    upstream = graph.tensor(4, 64, requires_grad=False)
    plan = graph.plan(((((hidden * hidden) @ weight).mean(1)) * upstream).sum().gradient(hidden)[0])
    kernels = [item.ast.arg.name for item in plan.items if item.ast is not None]
    assert [name for name in kernels if name.startswith("reduce")] == [kernels[1]]
    assert kernels[1].startswith("reduce_4_512_64")


@pytest.mark.parametrize(("rows", "kernels"), [(64, 2), (2, 1)])
def test_a_product_is_stored_before_a_kernel_that_repeats_it(rows: int, kernels: int) -> None:
    """64x256x96, repeated 50 times: 1.05 ms in one kernel, 0.19 in two."""
    graph = Graph()
    x, w, scale = graph.tensor(rows, 64), graph.tensor(64, 96), graph.tensor(rows, 96, 50)
    assert len(graph.plan((x @ w).unsqueeze(-1) * scale).items) == kernels


def test_a_sum_of_rows_is_fused_with_the_kernel_that_repeats_it() -> None:
    x = Tensor.arange(64 * 96 * 50, dtype=dtypes.float32).reshape(64, 96, 50).contiguous().realize()
    assert len((x / x.sum(-1, keepdim=True)).schedule().items) == 1

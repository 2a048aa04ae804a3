"""Products of two factors with stride 1 along their results: the longer axis is the columns."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.uop import UOp
from tilewright.schedule.preparation.result_order import order_results

CPU = Target("CPU", has_threads=True)
CARD = Target("card", has_threads=True, has_local=True)


def leaf(slot: int, *shape: int) -> UOp:
    return build.reshape(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(slot, int(np.prod(shape)))), shape)


def product(left: UOp, right: UOp) -> UOp:
    """`left` is by rows and the sum, `right` by the sum and columns."""
    (rows, depth), columns = left.shape, right.shape[1]
    shape = (rows, columns, depth)
    first = build.expand(build.reshape(left, (rows, 1, depth)), shape)
    second = build.expand(build.reshape(build.permute(right, (1, 0)), (1, columns, depth)), shape)
    return build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, first, second), (2,))


def transposed(*shape: int) -> UOp:
    return build.permute(leaf(0, *shape), (1, 0))


@pytest.mark.parametrize(("rows", "depth", "columns"), [(49, 2048, 3), (35, 16384, 4), (128, 4096, 32)])
def test_few_columns_are_the_rows(rows: int, depth: int, columns: int) -> None:
    """49x2048x3 took 379 us, with the results by columns 74 (torch 102)."""
    node = product(transposed(depth, rows), leaf(1, depth, columns))
    made = order_results(node, CPU)
    assert made is not None
    assert made.shape == node.shape
    assert made.op is Ops.PERMUTE
    assert made.src[0].shape[:2] == (columns, rows)
    assert order_results(node, CARD) is None


@pytest.mark.parametrize(
    "node",
    [
        product(leaf(0, 49, 2048), leaf(1, 2048, 3)),  # rows along the sum
        product(transposed(2048, 49), build.permute(leaf(1, 3, 2048), (1, 0))),  # columns along the sum
        product(transposed(2048, 49), leaf(1, 2048, 48)),  # as many columns
        product(transposed(40, 49), leaf(1, 40, 3)),  # a short sum
        product(build.alu(Ops.EXP2, transposed(2048, 49)), leaf(1, 2048, 3)),  # computed
    ],
)
def test_others_are_as_they_are(node: UOp) -> None:
    assert order_results(node, CPU) is None


@pytest.mark.parametrize("shape", [(49, 2048, 3), (14, 6993, 4), (300, 301, 20), (1000, 1003, 7)], ids=str)
def test_values(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    random = np.random.default_rng(3)
    a, b = (random.integers(-4, 5, (depth, size)).astype(np.float32) for size in (rows, columns))
    assert np.array_equal((Tensor(a).T @ Tensor(b)).numpy(), a.T @ b)
    assert np.array_equal(((Tensor(a).T @ Tensor(b)) * 2 + 1).sum(0).numpy(), (a.T @ b * 2 + 1).sum(0))
    stacked = Tensor(np.stack([a, a])).transpose(1, 2) @ Tensor(np.stack([b, 2 * b]))
    assert np.array_equal(stacked.numpy(), np.stack([a.T @ b, 2 * (a.T @ b)]))

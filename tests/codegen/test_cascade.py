"""Long float sums in levels: what the loops become, what stays as it is, and that the kernel computes the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import Tensor
from tilewright.base.config import Context
from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.loops.cascade import cascade_sums
from tilewright.graph.kernels.levels import TERMS, is_contraction, plan_levels
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.verification.verify import verify_kernel
from tilewright.graph.walk import toposort


def axis(number: int, size: int, kind: AxisType = AxisType.REDUCE) -> UOp:
    return UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((number,), kind))


def load(slot: int, position: UOp, dtype: DType = dtypes.float32) -> UOp:
    memory = UOp(Ops.PARAM, dtype, (), ParamArg(slot, int(position.vmax) + 1))
    return UOp(Ops.LOAD, dtype, (UOp(Ops.INDEX, dtype, (memory, position)),))


def reduced(value: UOp, *axes: UOp, op: Op = Ops.ADD) -> UOp:
    return UOp(Ops.REDUCE, value.dtype, (value, *axes), op)


def kernel(total: UOp) -> UOp:
    position = sum((loop for loop in total.ranges), index_const(0))
    memory = UOp(Ops.PARAM, total.dtype, (), ParamArg(0, int(position.vmax) + 1))
    store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, total.dtype, (memory, position)), total))
    return UOp(Ops.SINK, dtypes.void, (store,))


def levels(sink: UOp) -> list[list[str]]:
    """The sizes of the loops of each reduction, the innermost first, by what the text says of them."""
    found = [node for node in toposort(sink) if node.op is Ops.REDUCE]
    return [[str(a.src[0].arg) if a.src[0].is_const else "computed" for a in node.src[1:]] for node in found]


def cascaded(total: UOp) -> list[list[str]]:
    sink = cascade_sums(kernel(total))
    verify_kernel(sink)
    return levels(sink)


def test_a_long_sum_is_one_of_sums_of_blocks() -> None:
    k = axis(1, 4096)
    assert cascaded(reduced(load(1, k), k)) == [["16"], ["16"], ["16"]]


def test_a_short_sum_stays() -> None:
    k = axis(1, 2 * TERMS)
    assert cascaded(reduced(load(1, k), k)) == [["32"]]


def test_blocks_that_do_not_fill_the_loop_end_with_a_shorter_one() -> None:
    k = axis(1, 1009)
    assert cascaded(reduced(load(1, k), k)) == [["computed"], ["16"], ["4"]]


@pytest.mark.parametrize(
    ("op", "dtype"), [(Ops.MAX, dtypes.float32), (Ops.ADD, dtypes.int32), (Ops.MUL, dtypes.float32)]
)
def test_other_reductions_stay(op: Op, dtype: DType) -> None:
    k = axis(1, 4096)
    assert cascaded(reduced(load(1, k, dtype), k, op=op)) == [["4096"]]


def test_short_loops_are_levels_together() -> None:
    y, x = axis(1, 7), axis(2, 5)
    assert cascaded(reduced(load(1, y * 5 + x), y, x)) == [["5"], ["7"]]
    y, x = axis(1, 40), axis(2, 4)
    assert cascaded(reduced(load(1, y * 4 + x), y, x)) == [["4", "4"], ["10"]]


def test_unrolled_terms_are_in_the_innermost_level_and_a_tile_in_all() -> None:
    k, u, v = axis(1, 64), axis(2, 4, AxisType.UNROLL), axis(3, 8, AxisType.UPCAST)
    assert cascaded(reduced(load(1, (k * 4 + u) * 8 + v), k, u, v)) == [["4", "4"], ["16", "8"]]


def test_reductions_of_one_loop_keep_sharing_it() -> None:
    k = axis(1, 256)
    x = load(1, k)
    sink = cascade_sums(kernel(reduced(x, k) + reduced(x, k, op=Ops.MAX)))
    inner = {node.src[1] for node in toposort(sink) if node.op is Ops.REDUCE and node.src[0].op is Ops.LOAD}
    assert len(inner) == 1
    assert levels(sink) == [["16"]] * 4


def test_a_contraction_has_longer_blocks() -> None:
    i, j, k = axis(0, 8, AxisType.LOOP), axis(1, 4, AxisType.LOOP), axis(2, 1024)
    product = reduced(load(1, i * 1024 + k) * load(2, k * 4 + j), k)
    assert is_contraction(product)
    assert cascaded(product) == [["256"], ["4"]]
    assert not is_contraction(reduced(load(1, k) * load(2, k), k))
    assert not is_contraction(reduced(load(1, i * 1024 + k) * 0.5, k))


@given(st.lists(st.integers(1, 400), min_size=1, max_size=3), st.integers(1, 8))
def test_levels_hold_every_iteration_once(sizes: list[int], terms: int) -> None:
    """Each old index is written over new loops, which run through all of its values in order; none is long."""
    loops = [axis(number, size) for number, size in enumerate(sizes)]
    total = reduced(load(1, sum(loops, index_const(0))), *loops)
    plan = plan_levels(total, loops, terms)
    if plan is None:
        assert terms * math.prod(sizes) <= 2 * TERMS
        return
    for loop, index in plan.exchanges.items():
        places: list[dict[UOp, int]] = [{}]
        for piece in sorted(index.ranges, key=lambda each: each.arg.id):
            places = [{**at, piece: step} for at in places for step in range(_value(piece.src[0], at))]
        assert [_value(index, at) for at in places] == list(range(int(loop.src[0].arg)))
    longest = [math.prod(int(piece.vmax) + 1 for piece in level) for level in plan.loops]
    assert max(terms * longest[0], *longest[1:]) <= 2 * TERMS


def _value(node: UOp, at: dict[UOp, int]) -> int:
    if node in at:
        return at[node]
    if node.is_const:
        return int(node.arg)
    left, right = (_value(source, at) for source in node.src)
    compute = {
        Ops.ADD: left + right,
        Ops.SUB: left - right,
        Ops.MUL: left * right,
        Ops.MIN: min(left, right),
        Ops.IDIV: left // right if right else 0,
    }
    return compute[node.op]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("noopt", [0, 1])
@pytest.mark.parametrize("size", [33, 100, 211])
def test_sums_of_integers_are_exact_in_any_order(size: int, noopt: int, device: str) -> None:
    x = np.random.default_rng(size).integers(-50, 50, (3, size, 2)).astype(np.float32)
    with Context(NOOPT=noopt, VERIFY_GRAPH=1):
        for axes in ((1,), (0, 1), (1, 2), (0, 1, 2)):
            np.testing.assert_array_equal(Tensor(x, device=device).sum(axes).numpy(), x.sum(axes))

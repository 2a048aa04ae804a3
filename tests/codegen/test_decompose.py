"""Decomposed ops against their meaning: the graph before and after, evaluated on edge values and at random."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.codegen.emulation.decompose import BUILDERS, decompose
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import toposort

BARE = Target("bare")
WITH_MAX = Target("max", native_ops=frozenset({"MAX"}))
INTEGERS = dtypes.ints


def parameter(dtype: DType, size: int, slot: int = 0) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, size))


def edge_values(dtype: DType) -> list[int]:
    low, high = int(dtype.min), int(dtype.max)
    near = [-9, -8, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 9, 31, 32, 33, 63, 64, 65]
    return [n for n in dict.fromkeys([low, low + 1, low // 2, high // 2, high - 1, high, *near]) if low <= n <= high]


def all_pairs(dtype: DType) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    low, high = int(dtype.min), int(dtype.max)
    numbers = np.array(edge_values(dtype), dtype=dtype.name)
    numbers = np.concatenate([numbers, rng.integers(low, high, 100, dtype=dtype.name, endpoint=True)])
    left, right = np.meshgrid(numbers, numbers)
    return np.ascontiguousarray(left).reshape(-1), np.ascontiguousarray(right).reshape(-1)


def check_same(root: UOp, target: Target, arrays: dict[UOp, Any]) -> UOp:
    """Decompose, check the promises, compare with the graph before. NaN equals NaN, zeros are equal with their sign."""
    result = decompose(root, target)
    check_promises(result, target)
    found, expected = evaluate(result, arrays), evaluate(root, arrays)
    assert found.dtype == expected.dtype
    if root.dtype.is_float:
        is_same = (found == expected) & (np.signbit(found) == np.signbit(expected))
        is_same |= np.isnan(found) & np.isnan(expected)
    else:
        is_same = found == expected
    where = np.flatnonzero(~np.broadcast_to(is_same, found.shape))[:5]
    assert is_same.all(), [(*(a[where].tolist() for a in arrays.values()), found[where], expected[where])]
    return result


def check_promises(result: UOp, target: Target) -> None:
    for node in toposort(result):
        if node.op in BUILDERS and node.op is not Ops.CAST and node.op.name not in target.native_ops:
            assert node.op in (Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR), node
        if node.op in (Ops.IDIV, Ops.MOD):
            assert node.src[0].vmin >= 0
            assert node.src[1].vmin > 0 or "MAX" not in target.native_ops
        if node.op in (Ops.SHL, Ops.SHR):
            assert node.src[1].vmin >= 0
            assert node.src[1].vmax < node.dtype.bits


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
@pytest.mark.parametrize("op", [Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR, Ops.MAX, Ops.MIN], ids=lambda o: o.name)
@pytest.mark.parametrize("target", [BARE, WITH_MAX], ids=lambda t: t.name)
def test_integer_pairs(dtype: DType, op: Op, target: Target) -> None:
    left, right = all_pairs(dtype)
    x, y = parameter(dtype, left.size), parameter(dtype, left.size, 1)
    check_same(x.alu(op, y), target, {x: left, y: right})


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
@pytest.mark.parametrize("op", [Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR], ids=lambda o: o.name)
def test_constant_operand(dtype: DType, op: Op) -> None:
    left, _ = all_pairs(dtype)
    x = parameter(dtype, left.size)
    for value in edge_values(dtype):
        check_same(x.alu(op, value), WITH_MAX, {x: left})


def test_a_power_of_two_costs_one_op() -> None:
    x = parameter(dtypes.int32, 4)
    assert decompose(x // 8, BARE) is x >> 3
    assert decompose(x % 8, BARE) is x & 7


def test_positive_divisor_needs_no_guard() -> None:
    left, right = all_pairs(dtypes.int32)
    x, y = parameter(dtypes.int32, left.size), parameter(dtypes.int32, left.size, 1)
    for op in (Ops.IDIV, Ops.MOD):
        result = check_same(
            x.alu(op, (y.cast(dtypes.uint32) & 0xFFFF).cast(dtypes.int32) + 1), BARE, {x: left, y: right}
        )
        assert not any(node.op is Ops.WHERE for node in toposort(result))


@given(st.integers(-50, 50), st.integers(1, 40), st.integers(1, 12), st.sampled_from([Ops.IDIV, Ops.MOD]))
def test_index_maths_keeps_its_bounds(start: int, size: int, divisor: int, op: Op) -> None:
    """(i + start) // divisor stays linear: a division of a non-negative index, with bounds no wider than before."""
    axis = UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((0,), AxisType.LOOP))
    root = (axis + start).alu(op, divisor)
    result = decompose(root, BARE)
    check_promises(result, BARE)
    assert {node.dtype for node in toposort(result)} == {dtypes.index}
    assert result.vmin >= min(root.vmin, -1)
    assert result.vmax <= max(root.vmax, divisor)
    assert np.array_equal(evaluate(result), evaluate(root))


def test_unbounded_index_is_divided_as_64_bits() -> None:
    left = np.array([-(1 << 61), -7, -1, 0, 1, 7, 1 << 61])
    x = parameter(dtypes.int64, left.size).cast(dtypes.index)
    for op in (Ops.IDIV, Ops.MOD):
        check_same(x.alu(op, 7), WITH_MAX, {x.src[0]: left})


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("op", [Ops.MAX, Ops.MIN], ids=lambda o: o.name)
def test_extrema_of_floats(dtype: DType, op: Op) -> None:
    numbers = np.array([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 6e-8], dtype=numpy_dtype(dtype))
    left, right = (np.ascontiguousarray(a).reshape(-1) for a in np.meshgrid(numbers, numbers))
    x, y = parameter(dtype, left.size), parameter(dtype, left.size, 1)
    check_same(x.alu(op, y), BARE, {x: left, y: right})


FLOATS = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    0.999,
    -0.999,
    1.0,
    -1.0,
    2.5,
    127.0,
    127.5,
    128.0,
    -128.0,
    -128.9,
    -129.0,
    255.9,
    256.0,
]
FLOATS += [
    sign * 2.0**k * f for sign in (1, -1) for k in (15, 16, 23, 24, 31, 32, 52, 53, 63, 64) for f in (1, 1 - 2**-11)
]
FLOATS += [sign * float(np.nextafter(np.float32(2.0**k), np.float32(0))) for sign in (1, -1) for k in (31, 32, 63, 64)]
FLOATS += [1e30, -1e30, 3.4e38, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("target", INTEGERS, ids=lambda d: d.name)
def test_cast_saturates(dtype: DType, target: DType) -> None:
    with np.errstate(over="ignore"):
        numbers = np.array(FLOATS).astype(numpy_dtype(dtype))
    x = parameter(dtype, numbers.size)
    result = check_same(x.cast(target), BARE, {x: numbers})
    # The conversion itself is asked for numbers in range only.
    (cast,) = [node for node in toposort(result) if node.op is Ops.CAST and node.dtype is target]
    inside = evaluate(cast.src[0], {x: numbers}).astype(np.float64)
    assert all(int(target.min) <= int(value) <= int(target.max) for value in inside)
    native = Target("native", native_ops=frozenset({"SATURATING_CAST"}))
    assert decompose(x.cast(target), native) is x.cast(target)


@pytest.mark.parametrize("op", [Ops.TRUNC, Ops.ROUND], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16], ids=lambda d: d.name)
def test_whole_numbers(dtype: DType, op: Op) -> None:
    with np.errstate(over="ignore"):
        numbers = np.array([*FLOATS, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -0.25, 8388607.5]).astype(numpy_dtype(dtype))
    x = parameter(dtype, numbers.size)
    check_same(x.alu(op), Target("t", native_ops=frozenset({"SATURATING_CAST"})), {x: numbers})


def test_threefry() -> None:
    rng = np.random.default_rng(3)
    counters = np.concatenate([np.arange(1000), rng.integers(0, 1 << 63, 1000)]).astype(np.uint64)
    keys = rng.integers(0, 1 << 64, 2000, dtype=np.uint64)
    x, y = parameter(dtypes.uint64, 2000), parameter(dtypes.uint64, 2000, 1)
    check_same(x.alu(Ops.THREEFRY, y), BARE, {x: counters, y: keys})


def test_native_ops_are_left_alone() -> None:
    x, y = parameter(dtypes.float32, 4), parameter(dtypes.int32, 4, 1)
    native = Target("native", native_ops=frozenset(op.name for op in BUILDERS) | {"SATURATING_CAST"})
    roots = [y // y, y % y, y << y, x.maximum(x), x.alu(Ops.EXP2), x.alu(Ops.LOG2) * math.log(2), x.cast(dtypes.int32)]
    for root in roots:
        assert decompose(root, native) is root


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_exp_and_log_are_recognised(dtype: DType) -> None:
    """At 80 the product with log2(e), once rounded, costs dozens of units in the last place; recognised, one."""
    reach = 80 if dtype.bits > 16 else 9
    numbers = np.linspace(-reach, reach, 999).astype(numpy_dtype(dtype))
    x = parameter(dtype, numbers.size)
    log2_e, ln_2 = const(dtype, math.log2(math.e)), const(dtype, math.log(2))
    reference = np.exp(numbers.astype(np.longdouble))
    unit = 2.0**-dtype.mantissa_bits
    for product, expected in ((x * log2_e, reference), (log2_e * x, reference), (x * -log2_e.arg, 1 / reference)):
        found = evaluate(decompose(product.alu(Ops.EXP2), BARE), {x: numbers})
        assert (np.abs(found.astype(np.longdouble) / expected - 1) < 1.2 * unit).all()
    positive = np.exp2(numbers.astype(np.float64) / 8).astype(numpy_dtype(dtype))
    expected = np.log(positive.astype(np.longdouble))
    for root in (x.alu(Ops.LOG2) * ln_2, ln_2 * x.alu(Ops.LOG2)):
        found = evaluate(decompose(root, BARE), {x: positive}).astype(np.longdouble)
        assert (np.abs(found - expected) <= 1.3 * unit * np.abs(expected)).all()


def test_the_users_line_is_kept() -> None:
    x, y = parameter(dtypes.int32, 4), parameter(dtypes.int32, 4, 1)
    root = x // (y + 12345)
    root.line = ("model.py", 7)
    assert decompose(root, BARE).line == ("model.py", 7)

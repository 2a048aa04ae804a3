"""Emulated small floats against NumPy and ml_dtypes: every bit pattern of a conversion, every op that rounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tilewright.base import target as target_facts
from tilewright.base.dtype import DType, cast_scalar, dtypes
from tilewright.base.target import Target
from tilewright.codegen.emulation.emulate_dtype import emulate_dtypes, encode, storage_dtype
from tilewright.graph.interpreter.evaluate import evaluate, evaluate_kernel
from tilewright.graph.interpreter.numpy_math import bitcast_array, cast_array, numpy_dtype
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import toposort

# In one order in every process, which tests are named by.
SMALL_FLOATS = tuple(dtype for dtype in dtypes.floats if dtype in target_facts.SMALL_FLOATS)
TARGET = Target("test", native=frozenset(dtypes.all) - frozenset(SMALL_FLOATS))


@pytest.fixture(autouse=True)
def _silent_numpy() -> Any:
    """NumPy warns when it casts a signalling NaN, which every exhaustive test does."""
    with np.errstate(all="ignore"):
        yield


def parameter(dtype: DType, size: int, slot: int = 0) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, size))


def run(root: UOp, *arrays: Any) -> Any:
    """The value of `root` after emulation; PARAM k is bound to array k, given in its own dtype."""
    result = emulate_dtypes(root, TARGET)
    assert not any(node.dtype in SMALL_FLOATS for node in toposort(result))
    bindings = {}
    for node in toposort(result):
        if node.op is Ops.PARAM:
            array = arrays[node.arg.slot]
            bindings[node] = array if array.dtype == numpy_dtype(node.dtype) else bitcast_array(array, node.dtype)
    value = evaluate(result, bindings)
    return bitcast_array(value, root.dtype) if root.dtype in SMALL_FLOATS else value


def assert_same(found: Any, expected: Any) -> None:
    """Equal as bits, any NaN for any NaN."""
    assert found.dtype == expected.dtype
    one, other = found.astype(np.float64), expected.astype(np.float64)
    is_same = ((one == other) & (np.signbit(one) == np.signbit(other))) | (np.isnan(one) & np.isnan(other))
    assert is_same.all(), (one[~is_same][:5], other[~is_same][:5])


def all_values(dtype: DType) -> Any:
    storage = storage_dtype(dtype)
    return bitcast_array(np.arange(1 << storage.bits).astype(numpy_dtype(storage)), dtype)


def near_every_value(dtype: DType, wide: DType) -> Any:
    """Wide floats on, half way between and just beside the half ways of all values of a small float."""
    values = np.unique(all_values(dtype).astype(np.float64))
    values = np.sort(values[np.isfinite(values)])
    last = values[-1]
    values = np.concatenate([values, [last + (last - values[-2]), -last - (last - values[-2])]])
    values.sort()
    middles = ((values[1:] + values[:-1]) / 2).astype(numpy_dtype(wide))
    around = [middles, np.nextafter(middles, -np.inf), np.nextafter(middles, np.inf)]
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e300, 3e38, 3.4e38, 1e-45, -1e-320]).astype(wide.name)
    with np.errstate(over="ignore"):
        return np.concatenate([values.astype(wide.name), *around, special])


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("wide", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_every_value_widens_and_comes_back(dtype: DType, wide: DType) -> None:
    values = all_values(dtype)
    small = parameter(dtype, values.size)
    assert_same(run(small.cast(wide), values), cast_array(values, wide))
    assert_same(run(small.cast(wide).cast(dtype), values), values)
    assert_same(run(UOp(Ops.NEG, dtype, (small,)), values), -values)


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("wide", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_narrowing_rounds_once_to_nearest_even(dtype: DType, wide: DType) -> None:
    values = near_every_value(dtype, wide)
    rng = np.random.default_rng(0)
    unsigned = dtypes.uint32 if wide is dtypes.float32 else dtypes.uint64
    patterns = rng.integers(0, 1 << unsigned.bits, 300_000, dtype=unsigned.name).view(wide.name)
    values = np.concatenate([values, patterns, (rng.normal(size=100_000) * 100).astype(wide.name)])
    found = run(parameter(wide, values.size).cast(dtype), values)
    assert_same(found, cast_array(values, dtype))
    for value, result in zip(values[::9973].tolist(), found[::9973].astype(np.float64).tolist(), strict=True):
        expected = cast_scalar(value, dtype)
        assert result == expected or (math.isnan(result) and math.isnan(expected))


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("integer", [dtypes.bool, *dtypes.ints], ids=lambda d: d.name)
def test_integers_round_once(dtype: DType, integer: DType) -> None:
    # Next to the half way between two bfloat16, where a first rounding to float32 would hide the last bit.
    middles = [sign * (0x101 << k) + d for k in range(55) for d in (-1, 0, 1) for sign in (1, -1)]
    middles += [sign * (0x803 << k) + d for k in range(52) for d in (-1, 0, 1) for sign in (1, -1)]
    low, high = int(integer.min), int(integer.max)
    numbers = [n for n in middles if low <= n <= high] + [low, high, 0, min(2**24 + 1, high), min(65519, high)]
    numbers += [max(low, -65519), min(65520, high), min(464, high), min(465, high)]
    random = np.random.default_rng(1).integers(low, high, 50_000, dtype=numpy_dtype(integer), endpoint=True)
    values = np.concatenate([np.array(numbers).astype(numpy_dtype(integer)), random])
    found = run(parameter(integer, values.size).cast(dtype), values)
    for value, result in zip(values[:800].tolist(), found[:800].astype(np.float64).tolist(), strict=True):
        expected = cast_scalar(value, dtype)
        assert result == expected or (math.isnan(result) and math.isnan(expected)), value
    assert_same(found, cast_array(values, dtype))


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("target", [dtypes.int32, dtypes.bool, dtypes.uint8, dtypes.int64], ids=lambda d: d.name)
def test_small_floats_to_integers(dtype: DType, target: DType) -> None:
    values = all_values(dtype)
    found = run(parameter(dtype, values.size).cast(target), values)
    assert np.array_equal(found, cast_array(values, target))


@pytest.mark.parametrize("source", SMALL_FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("target", SMALL_FLOATS, ids=lambda d: d.name)
def test_small_to_small(source: DType, target: DType) -> None:
    values = all_values(source)
    assert_same(run(parameter(source, values.size).cast(target), values), cast_array(values, target))
    if source.bits == target.bits:
        bits = run(parameter(source, values.size).bitcast(target), values)
        assert np.array_equal(bits.view(f"u{source.itemsize}"), values.view(f"u{source.itemsize}"))


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("op", [Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.MIN], ids=lambda o: o.name)
def test_each_op_is_rounded(dtype: DType, op: Op) -> None:
    rng = np.random.default_rng(2)
    values = all_values(dtype)
    left, right = rng.choice(values, 100_000), rng.choice(values, 100_000)
    with np.errstate(all="ignore"):
        wide = op.value(_NumpyWide, left.astype(np.float32), right.astype(np.float32))
        expected = cast_array(np.asarray(wide), dtype)
    node = parameter(dtype, left.size).alu(op, parameter(dtype, left.size, 1))
    assert_same(run(node, left, right), expected)


class _NumpyWide:
    divide = staticmethod(np.divide)
    multiply = staticmethod(np.multiply)

    @staticmethod
    def maximum(left: Any, right: Any) -> Any:
        return np.where((left == 0) & (right == 0), left + right, np.maximum(left, right))

    @staticmethod
    def minimum(left: Any, right: Any) -> Any:
        return np.where((left == 0) & (right == 0), -(-left - right), np.minimum(left, right))


def test_a_chain_keeps_every_rounding() -> None:
    values = np.linspace(1, 2, 4096).astype(np.float16)
    x = parameter(dtypes.float16, values.size)
    third = const(dtypes.float16, 1 / 3)
    expected = (values * np.float16(1 / 3)).astype(np.float16) + np.float16(0.1)
    assert_same(run(x * third + 0.1, values), expected.astype(np.float16))
    chosen = (x < 1.5).where(x, third)
    assert_same(run(chosen, values), np.where(values < 1.5, values, np.float16(1 / 3)).astype(np.float16))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)
def test_exp_does_not_round_its_product(dtype: DType) -> None:
    values = all_values(dtype)
    x = parameter(dtype, values.size)
    found = run((x * math.log2(math.e)).alu(Ops.EXP2), values).astype(np.float64)
    with np.errstate(all="ignore"):
        expected = cast_array(np.exp(values.astype(np.float64)), dtype).astype(np.float64)
    finite = np.isfinite(expected) & (expected > 0)
    assert (np.abs(found[finite] / expected[finite] - 1) < 2.0 ** -(dtype.mantissa_bits - 1)).all()


def test_memory_and_reduction() -> None:
    """A float16 sum of 4096 ones is 4096: in float16 it would stop at 2048."""
    source, target = parameter(dtypes.float16, 4096, 1), parameter(dtypes.float16, 1, 0)
    axis = UOp(Ops.RANGE, dtypes.index, (index_const(4096),), Axis((0,), AxisType.REDUCE))
    load = UOp(Ops.LOAD, dtypes.float16, (UOp(Ops.INDEX, dtypes.float16, (source, axis)),))
    total = UOp(Ops.REDUCE, dtypes.float16, (load, axis), Ops.ADD)
    place = UOp(Ops.INDEX, dtypes.float16, (target, index_const(0)))
    sink = UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (place, total)),))
    result = emulate_dtypes(sink, TARGET)
    nodes = toposort(result)
    assert {node.dtype for node in nodes if node.op is Ops.PARAM} == {dtypes.uint16}
    (reduce,) = [node for node in nodes if node.op is Ops.REDUCE]
    assert reduce.dtype is dtypes.float32
    params = {node.arg.slot: node for node in nodes if node.op is Ops.PARAM}
    ones = np.ones(4096, np.float16).view(np.uint16)
    (written,) = evaluate_kernel(result, {params[0]: np.zeros(1, np.uint16), params[1]: ones})
    assert written.view(np.float16)[0] == 4096


def test_native_dtypes_are_left_alone() -> None:
    x = parameter(dtypes.float16, 4)
    root = x + x
    assert emulate_dtypes(root, Target("test")) is root
    only_float16 = Target("test", native=TARGET.native | {dtypes.float16})
    assert emulate_dtypes(root, only_float16) is root
    mixed = emulate_dtypes(parameter(dtypes.bfloat16, 4).cast(dtypes.float16), only_float16)
    assert mixed.dtype is dtypes.float16


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=lambda d: d.name)
def test_encode_gives_the_bits(dtype: DType) -> None:
    values = all_values(dtype)
    bits = values.view(f"u{dtype.itemsize}")
    for value, expected in list(zip(values.astype(np.float64).tolist(), bits.tolist(), strict=True))[::37]:
        if not math.isnan(value):
            assert encode(value, dtype) == expected
    assert math.isnan(float(bitcast_array(np.array([encode(math.nan, dtype)]).astype(bits.dtype), dtype)[0]))

"""The graph interpreter: each op against the scalar maths and NumPy, and whole kernels against plain loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtype import DType, Scalar, cast_scalar, dtypes
from tilewright.base.errors import InternalError, OutOfBoundsError
from tilewright.graph.interpreter.evaluate import evaluate, evaluate_all, evaluate_kernel
from tilewright.graph.interpreter.numpy_math import Array, cast_array, numpy_dtype
from tilewright.graph.interpreter.scalar import ScalarMath
from tilewright.graph.ops import ALL_OPS, REDUCTIONS, Axis, AxisType, BufferArg, Ops, ParamArg
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Kind, Op
from tilewright.graph.uop import UOp, const, index_const

# What CHECK computes depends on its argument: tests/issues/test_index_range.py has it.
VALUE_OPS = [op for op in ALL_OPS if op.value is not None and op is not Ops.CHECK]
FLOAT_ONLY = {Ops.SQRT, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.TRUNC, Ops.ROUND, Ops.FDIV}
INTEGER_ONLY = {Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR}
BITS_ONLY = {Ops.AND, Ops.OR, Ops.XOR}

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-7, 7e-46, 1e38, -3e38, 65504.0, 448.0, math.inf, -math.inf, math.nan]
INTEGERS = [0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 63, 64, 100, 127, 128, 255]


def suits(op: Op, dtype: DType) -> bool:
    if op is Ops.THREEFRY:
        return dtype is dtypes.uint64
    if op in FLOAT_ONLY:
        return dtype.is_float
    if op in INTEGER_ONLY:
        return dtype.is_int
    return not (op in BITS_ONLY and dtype.is_float)


def edges(dtype: DType) -> list[Scalar]:
    if dtype.is_bool:
        return [False, True]
    if dtype.is_float:
        return [cast_scalar(value, dtype) for value in FLOATS]
    limits = [int(dtype.min), int(dtype.min) + 1, int(dtype.max), int(dtype.max) - 1]
    found = [*limits, *INTEGERS, *(-value for value in INTEGERS)]
    return list(dict.fromkeys(cast_scalar(value, dtype) for value in found))


def buffer(dtype: DType, size: int, uid: int = 0) -> UOp:
    return UOp(Ops.BUFFER, dtype, (), BufferArg(uid, size, "PYTHON"))


def param(slot: int, dtype: DType, size: int) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, size))


def loop(number: int, size: int | UOp, kind: AxisType = AxisType.LOOP) -> UOp:
    count = index_const(size) if isinstance(size, int) else size
    return UOp(Ops.RANGE, dtypes.index, (count,), Axis((number,), kind))


def load(source: UOp, index: UOp, *others: UOp) -> UOp:
    valid = others[:1]
    otherwise = others[1:]
    return UOp(Ops.LOAD, source.dtype, (UOp(Ops.INDEX, source.dtype, (source, index, *valid)), *otherwise))


def store(target: UOp, index: UOp, value: UOp, *valid: UOp) -> UOp:
    return UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, target.dtype, (target, index, *valid)), value))


def sink(*stores: UOp) -> UOp:
    return UOp(Ops.SINK, dtypes.void, stores, KernelInfo("test"))


def same(left: Scalar, right: Scalar) -> bool:
    return repr(left) == repr(right)


def as_python(x: Array, dtype: DType) -> list[Scalar]:
    values: list[Scalar] = (cast_array(x, dtypes.float64) if dtype.is_float else x).tolist()
    return values


# ---------------------------------------------------------------- elementwise


def operand_lists(op: Op, dtype: DType) -> list[tuple[list[Scalar], DType]]:
    """The operands of every combination of edge values, one list per source."""
    values = edges(dtype)
    kinds = [dtypes.bool, dtype, dtype] if op is Ops.WHERE else [dtype] * op.arity[0]
    choices: list[list[Scalar]] = [[False, True] if kind is dtypes.bool else values for kind in kinds]
    columns = zip(*itertools.product(*choices))
    return [(list(column), kind) for column, kind in zip(columns, kinds)]


@pytest.mark.parametrize("op", VALUE_OPS, ids=lambda op: op.name)
def test_arrays_compute_what_scalars_do(op: Op) -> None:
    assert op.value is not None
    for dtype in dtypes.all:
        if not suits(op, dtype):
            continue
        columns = operand_lists(op, dtype)
        leaves = [buffer(kind, len(column), uid) for uid, (column, kind) in enumerate(columns)]
        arrays = {leaf: np.array(column, numpy_dtype(leaf.dtype)) for leaf, (column, _) in zip(leaves, columns)}
        node = UOp(op, op.dtype(tuple(leaves)) or dtype, tuple(leaves))
        result = evaluate(node, arrays)
        assert result.dtype == numpy_dtype(node.dtype)
        rows = list(zip(*(column for column, _ in columns)))
        expected = [cast_scalar(op.value(ScalarMath, *row), node.dtype) for row in rows]
        # Library functions in double may differ in the last bit; after rounding to 32 bits or less they do not.
        is_inexact = dtype is dtypes.float64 and op in {Ops.EXP2, Ops.LOG2, Ops.SIN}
        for row, here, there in zip(rows, expected, as_python(result, node.dtype)):
            if is_inexact and math.isfinite(here):
                assert there == pytest.approx(here, rel=1e-15), (dtype, row)
            else:
                assert same(here, there), (dtype, row)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # The known answers of the Random123 library, first word low.
        (0, 0, 0x99BA4EFE_6B200159),
        ((1 << 64) - 1, (1 << 64) - 1, 0xBB002BE7_1CB996FC),
        (0x85A308D3_243F6A88, 0x03707344_13198A2E, 0x483DF7A0_C4923A9C),
    ],
)
def test_threefry_known_answers(counter: int, key: int, expected: int) -> None:
    node = const(dtypes.uint64, counter).alu(Ops.THREEFRY, const(dtypes.uint64, key))
    assert int(evaluate(node)) == expected
    assert ScalarMath.threefry(counter, key) == expected


def test_a_scalar_source_stands_for_any_shape() -> None:
    x = buffer(dtypes.float32, 3)
    node = UOp(Ops.ADD, dtypes.float32, (const(dtypes.float32, 1.0), x))
    assert evaluate(node, {x: np.array([1, 2, 3], np.float32)}).tolist() == [2.0, 3.0, 4.0]


def test_half_precision_is_rounded_after_every_op() -> None:
    x = const(dtypes.float16, 2048.0)
    node = (x + const(dtypes.float16, 1.0)) - x
    assert float(evaluate(node)) == 0.0
    assert float(evaluate(x.cast(dtypes.float32) + const(dtypes.float32, 1.0))) == 2049.0


def test_a_cast_is_performed_both_ways() -> None:
    node = const(dtypes.float32, 1.0 + 2.0**-20).cast(dtypes.bfloat16).cast(dtypes.float32)
    assert float(evaluate(node)) == 1.0


# ---------------------------------------------------------------- tensors


def counting(*shape: int) -> tuple[UOp, Array, dict[UOp, Array]]:
    """A reshaped buffer of 0, 1, 2, ..., the array it is, and its binding."""
    size = math.prod(shape)
    leaf = buffer(dtypes.int32, size)
    data = np.arange(size, dtype=np.int32)
    return UOp(Ops.RESHAPE, dtypes.int32, (leaf,), shape), data.reshape(shape), {leaf: data}


def test_movement_is_that_of_numpy() -> None:
    x, data, bindings = counting(2, 3, 4)
    cases: list[tuple[Op, Any, Array]] = [
        (Ops.RESHAPE, (4, 6), data.reshape(4, 6)),
        (Ops.PERMUTE, (2, 0, 1), data.transpose(2, 0, 1)),
        (Ops.PAD, ((1, 0), (0, 2), (3, 1)), np.pad(data, ((1, 0), (0, 2), (3, 1)))),
        (Ops.SHRINK, ((1, 2), (0, 2), (2, 2)), data[1:2, 0:2, 2:2]),
        (Ops.SHRINK, ((0, 2), (1, 3), (1, 3)), data[:, 1:3, 1:3]),
        (Ops.FLIP, (0, 2), data[::-1, :, ::-1]),
        (Ops.FLIP, (), data),
    ]
    for op, argument, expected in cases:
        node = UOp(op, dtypes.int32, (x,), argument)
        result = evaluate(node, bindings)
        assert result.shape == node.shape == expected.shape
        assert (result == expected).all(), op
    row = UOp(Ops.SHRINK, dtypes.int32, (x,), ((0, 1), (0, 3), (0, 4)))
    wide = UOp(Ops.EXPAND, dtypes.int32, (row,), (5, 3, 4))
    assert (evaluate(wide, bindings) == np.broadcast_to(data[:1], (5, 3, 4))).all()


def test_pad_holds_zeros_of_every_dtype() -> None:
    for dtype in dtypes.all:
        node = UOp(Ops.PAD, dtype, (UOp(Ops.RESHAPE, dtype, (const(dtype, 1),), (1,)),), ((1, 1),))
        assert as_python(evaluate(node), dtype) == [0, 1, 0]


@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.int64, dtypes.float32, dtypes.bfloat16], ids=lambda d: d.name)
def test_iota_counts_and_wraps(dtype: DType) -> None:
    result = as_python(evaluate(UOp(Ops.IOTA, dtype, (), (300,))), dtype)
    assert result == [cast_scalar(number, dtype) for number in range(300)]


def test_gather_gives_zero_outside() -> None:
    x, data, bindings = counting(3, 4)
    rows, columns = buffer(dtypes.int32, 5, 1), buffer(dtypes.int64, 5, 2)
    row_values, column_values = np.array([0, 2, 3, -1, 1], np.int32), np.array([3, 0, 0, 1, 4], np.int64)
    node = UOp(Ops.GATHER, dtypes.int32, (x, rows, columns))
    result = evaluate(node, {**bindings, rows: row_values, columns: column_values})
    assert result.tolist() == [data[0, 3], data[2, 0], 0, 0, 0]


def test_reduce_axis_keeps_axes_and_wraps() -> None:
    x, data, bindings = counting(2, 3, 4)
    for op, function in ((Ops.ADD, np.add), (Ops.MUL, np.multiply), (Ops.MAX, np.maximum), (Ops.MIN, np.minimum)):
        for axes in ((), (0,), (0, 2), (0, 1, 2)):
            node = UOp(Ops.REDUCE_AXIS, dtypes.int32, (x,), (op, axes))
            expected = function.reduce(data, axis=axes, keepdims=True, dtype=np.int32)
            result = evaluate(node, bindings)
            assert result.shape == node.shape
            assert (result == expected).all(), (op, axes)
    leaf = buffer(dtypes.int8, 3)
    total = UOp(Ops.REDUCE_AXIS, dtypes.int8, (leaf,), (Ops.ADD, (0,)))
    assert evaluate(total, {leaf: np.array([100, 100, 100], np.int8)}).tolist() == [44]


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_reductions_over_nothing_give_the_identity(dtype: DType) -> None:
    leaf = buffer(dtype, 0)
    expected = {Ops.ADD: 0, Ops.MUL: 1, Ops.MAX: dtype.min, Ops.MIN: dtype.max}
    for op in REDUCTIONS:
        node = UOp(Ops.REDUCE_AXIS, dtype, (leaf,), (op, (0,)))
        result = evaluate(node, {leaf: np.zeros(0, numpy_dtype(dtype))})
        assert as_python(result, dtype) == [cast_scalar(expected[op], dtype)]


@pytest.mark.parametrize("dtype", dtypes.floats, ids=lambda dtype: dtype.name)
def test_nan_passes_through_max_and_min(dtype: DType) -> None:
    leaf = buffer(dtype, 3)
    data = np.array([1.0, math.nan, 2.0], numpy_dtype(dtype))
    for op in (Ops.MAX, Ops.MIN, Ops.ADD):
        assert math.isnan(float(evaluate(UOp(Ops.REDUCE_AXIS, dtype, (leaf,), (op, (0,))), {leaf: data})[0]))


def test_identity_ops_and_bindings_of_inner_nodes() -> None:
    x, data, bindings = counting(2, 2)
    node = UOp(Ops.DETACH, dtypes.int32, (UOp(Ops.COPY, dtypes.int32, (x,), "CPU"),))
    node = UOp(Ops.CONTIGUOUS, dtypes.int32, (node,))
    assert (evaluate(node, bindings) == data).all()
    # A bound node hides what is below it.
    assert evaluate(node + 1, {node: np.array([[5]], np.int32)}).tolist() == [[6]]


def test_assign_stores_into_what_the_view_selects() -> None:
    x, data, bindings = counting(4, 6)
    view = UOp(Ops.SHRINK, dtypes.int32, (x,), ((1, 4), (2, 6)))
    view = UOp(Ops.PERMUTE, dtypes.int32, (view,), (1, 0))
    view = UOp(Ops.FLIP, dtypes.int32, (view,), (0,))
    view = UOp(Ops.RESHAPE, dtypes.int32, (view,), (2, 6))
    value = buffer(dtypes.int32, 12, 1)
    stored = np.arange(100, 112, dtype=np.int32)
    shaped = UOp(Ops.RESHAPE, dtypes.int32, (value,), (2, 6))
    result = evaluate(UOp(Ops.ASSIGN, dtypes.int32, (x, view, shaped)), {**bindings, value: stored})
    expected = data.copy()
    expected[1:4, 2:6].T[::-1] = stored.reshape(4, 3)
    assert (result == expected).all()
    assert (data == np.arange(24).reshape(4, 6)).all(), "the array that was bound is left alone"


def test_assign_of_a_number_and_through_padding() -> None:
    x, _, bindings = counting(4)
    whole = UOp(Ops.ASSIGN, dtypes.int32, (x, x, const(dtypes.int32, 7)))
    assert evaluate(whole, bindings).tolist() == [7, 7, 7, 7]
    padded = UOp(Ops.PAD, dtypes.int32, (UOp(Ops.SHRINK, dtypes.int32, (x,), ((1, 3),)),), ((1, 1),))
    partly = UOp(Ops.ASSIGN, dtypes.int32, (x, padded, const(dtypes.int32, 9)))
    assert evaluate(partly, bindings).tolist() == [0, 9, 9, 3]
    broken = UOp(Ops.ASSIGN, dtypes.int32, (x, x + 1, const(dtypes.int32, 9)))
    with pytest.raises(InternalError, match="goes through Ops"):
        evaluate(broken, bindings)


# ---------------------------------------------------------------- kernels


def test_matmul_kernel() -> None:
    m, n, k = 3, 4, 5
    out, left, right = (param(slot, dtypes.float32, size) for slot, size in enumerate((m * n, m * k, k * n)))
    row, column, inner = loop(0, m, AxisType.GLOBAL), loop(1, n, AxisType.UPCAST), loop(2, k, AxisType.REDUCE)
    product = load(left, row * k + inner) * load(right, inner * n + column)
    total = UOp(Ops.REDUCE, dtypes.float32, (product, inner), Ops.ADD)
    kernel = sink(store(out, row * n + column, total))
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-4, 5, size).astype(np.float32) for size in (m * k, k * n))
    c = np.full(m * n, -1.0, np.float32)
    (result,) = evaluate_kernel(kernel, {out: c, left: a, right: b})
    assert result is c
    assert (c.reshape(m, n) == a.reshape(m, k) @ b.reshape(k, n)).all()
    assert evaluate(kernel, {out: c, left: a, right: b}) is c


def test_split_axes_of_every_kind_are_just_ranges() -> None:
    out, source = param(0, dtypes.int32, 24), param(1, dtypes.int32, 24)
    for kinds in itertools.permutations(list(AxisType), 3):
        axes = [loop(number, size, kind) for number, (size, kind) in enumerate(zip((2, 3, 4), kinds))]
        position = axes[0] * 12 + axes[1] * 4 + axes[2]
        kernel = sink(store(out, position, load(source, index_const(23) - position) * 2))
        written = np.zeros(24, np.int32)
        evaluate_kernel(kernel, {out: written, source: np.arange(24, dtype=np.int32)})
        assert (written == 2 * np.arange(24)[::-1]).all()


def test_masked_loads_and_stores_touch_nothing() -> None:
    out, source = param(0, dtypes.float32, 6), param(1, dtypes.float32, 4)
    i = loop(0, 6)
    inside = i < 4
    kernel = sink(store(out, i - 1, load(source, i, inside, const(dtypes.float32, 9.0)), i > 0))
    written = np.full(6, -1.0, np.float32)
    evaluate_kernel(kernel, {out: written, source: np.arange(4, dtype=np.float32)})
    assert written.tolist() == [1.0, 2.0, 3.0, 9.0, 9.0, -1.0]
    assert evaluate(load(source, i, inside), {source: np.arange(4, dtype=np.float32)}).tolist() == [0, 1, 2, 3, 0, 0]
    empty = param(1, dtypes.float32, 0)
    assert evaluate(load(empty, i, i < 0), {empty: np.zeros(0, np.float32)}).tolist() == [0.0] * 6


def test_a_load_out_of_bounds_is_refused_by_the_kernels_name() -> None:
    out, source = param(0, dtypes.float32, 6), param(1, dtypes.float32, 4)
    i = loop(0, 6)
    bindings = {out: np.zeros(6, np.float32), source: np.zeros(4, np.float32)}
    with pytest.raises(OutOfBoundsError, match="test: LOAD at 4 of a buffer of 4"):
        evaluate_kernel(sink(store(out, i, load(source, i))), bindings)
    with pytest.raises(OutOfBoundsError, match="STORE at -1"):
        evaluate_kernel(sink(store(out, i - 1, load(source, i % 4))), bindings)


def test_a_reduction_counts_ranges_its_value_does_not_depend_on() -> None:
    i, j = loop(0, 3), loop(1, 4, AxisType.REDUCE)
    value = i.cast(dtypes.int32)
    node = UOp(Ops.REDUCE, dtypes.int32, (value, j), Ops.ADD)
    assert evaluate(node).reshape(-1).tolist() == [0, 4, 8]
    nothing = loop(1, 0, AxisType.REDUCE)
    assert evaluate(UOp(Ops.REDUCE, dtypes.int32, (value, nothing), Ops.ADD)).reshape(-1).tolist() == [0, 0, 0]
    assert evaluate(UOp(Ops.REDUCE, dtypes.int32, (value, nothing), Ops.MUL)).reshape(-1).tolist() == [1, 1, 1]


def test_nested_reductions_with_a_size_that_is_bound() -> None:
    size = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 8))
    source, out = param(1, dtypes.int32, 12), param(0, dtypes.int32, 1)
    i, j = loop(0, size, AxisType.REDUCE), loop(1, 3, AxisType.REDUCE)
    largest = UOp(Ops.REDUCE, dtypes.int32, (load(source, i * 3 + j), j), Ops.MAX)
    kernel = sink(store(out, index_const(0), UOp(Ops.REDUCE, dtypes.int32, (largest, i), Ops.ADD)))
    data, written = np.array([1, 5, 2, 0, -3, -1, 9, 9, 8, 7, 7, 7], np.int32), np.zeros(1, np.int32)
    for count, expected in ((1, 5), (3, 14), (4, 21)):
        evaluate_kernel(kernel, {source: data, out: written, size: count})
        assert written[0] == expected
    with pytest.raises(InternalError, match="outside of its bounds"):
        evaluate_kernel(kernel, {source: data, out: written, size: 9})


def test_stores_happen_after_all_loads() -> None:
    left, right = param(0, dtypes.int32, 3), param(1, dtypes.int32, 3)
    i = loop(0, 3)
    kernel = sink(store(left, i, load(right, i)), store(right, i, load(left, index_const(2) - i)))
    a, b = np.array([1, 2, 3], np.int32), np.array([4, 5, 6], np.int32)
    results = evaluate_kernel(kernel, {left: a, right: b})
    assert results[0] is a
    assert results[1] is b
    assert (a.tolist(), b.tolist()) == ([4, 5, 6], [3, 2, 1])


def test_free_ranges_become_axes() -> None:
    i, j = loop(0, 2), loop(1, 3)
    assert evaluate(i * 3 + j).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert evaluate(i * 3 + j, {i: 1}).tolist() == [3, 4, 5]


# ---------------------------------------------------------------- refusals and scale


@pytest.mark.parametrize("op", [op for op in ALL_OPS if op.kind in (Kind.CONTROL, Kind.MEMORY)], ids=lambda op: op.name)
def test_an_op_without_meaning_is_named(op: Op) -> None:
    known = {Ops.RANGE, Ops.REDUCE, Ops.SINK, Ops.INDEX, Ops.LOAD, Ops.STORE}
    if op in known:
        return
    with pytest.raises(InternalError, match=f"Ops.{op.name}$|Ops.{op.name}\n"):
        evaluate(UOp(op, dtypes.float32, ()))


def test_leaves_must_be_bound_to_fitting_arrays() -> None:
    leaf = buffer(dtypes.float32, 4)
    with pytest.raises(InternalError, match="not bound"):
        evaluate(leaf)
    with pytest.raises(InternalError, match="float64"):
        evaluate(leaf, {leaf: np.zeros(4)})
    with pytest.raises(InternalError, match="4 contiguous"):
        evaluate(leaf, {leaf: np.zeros(3, np.float32)})
    with pytest.raises(InternalError, match="4 contiguous"):
        evaluate(leaf, {leaf: np.zeros(8, np.float32)[::2]})
    with pytest.raises(InternalError, match="STORE of int32"):
        evaluate_kernel(sink(store(leaf, index_const(0), const(dtypes.int32, 1))), {leaf: np.zeros(4, np.float32)})


def test_a_hundred_thousand_levels() -> None:
    x = buffer(dtypes.int32, 4)
    node = x
    for _ in range(100_000):
        node = UOp(Ops.ADD, dtypes.int32, (node, const(dtypes.int32, 1)))
    assert evaluate(node, {x: np.zeros(4, np.int32)}).tolist() == [100_000] * 4


def test_several_roots_share_their_work() -> None:
    x = buffer(dtypes.int32, 2)
    first = x + 1
    values = evaluate_all((first, first * 2, x), {x: np.array([1, 2], np.int32)})
    assert [value.tolist() for value in values] == [[2, 3], [4, 6], [1, 2]]
    outputs = evaluate_kernel(UOp(Ops.SINK, dtypes.void, (first, x)), {x: np.array([1, 2], np.int32)})
    assert [value.tolist() for value in outputs] == [[2, 3], [1, 2]]

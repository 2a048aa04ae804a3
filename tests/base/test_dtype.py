"""The element types: what a cast gives, by three independent accounts, and what two types promote to."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.dtype import (
    DType,
    Scalar,
    cast_scalar,
    dtype_of_scalar,
    dtypes,
    promote,
    promote_with_scalar,
    to_dtype,
)
from tilewright.base.errors import DTypeError
from tilewright.graph.interpreter.numpy_math import Array, bitcast_array, cast_array, dtype_of_array, numpy_dtype

SMALL_FLOATS = tuple(dtype for dtype in dtypes.floats if dtype.bits <= 16)
INTEGERS = dtypes.ints


def all_values(dtype: DType) -> Array:
    """Every value of a type of at most 16 bits, in the order of its bits."""
    bits = np.arange(1 << dtype.bits, dtype=np.uint32).astype(np.uint8 if dtype.bits == 8 else np.uint16)
    return bits.view(numpy_dtype(dtype))


def as_python(x: Array) -> list[Scalar]:
    """The elements as Python numbers; every float goes to a double exactly."""
    with np.errstate(all="ignore"):
        values: list[Scalar] = (x.astype(np.float64) if dtype_of_array(x).is_float else x).tolist()
    return values


def float_edges() -> list[float]:
    """The ends of every type, and the points half-way between neighbours of the small floats, with their neighbours."""
    edges = [0.0, 0.9, 1.0, 1.5, 2.5, math.inf, math.nan, 5e-324, 1e-45, 2.0**-126, 2.0**-149, 2.0**-150, 1e38, 1e308]
    edges += [float(np.finfo(np.float32).max), 2.0**128 - 2.0**103, 2.0**128, 2.0**53, 2.0**53 - 1.0, 2.0**127 * 1.9999]
    for exponent in (7, 8, 15, 16, 31, 32, 63, 64):
        edges += [2.0**exponent, math.nextafter(2.0**exponent, 0.0), 2.0**exponent - 0.5, 2.0**exponent + 1.0]
    for dtype in SMALL_FLOATS:
        finite = np.array([value for value in as_python(all_values(dtype)) if math.isfinite(value) and value >= 0.0])
        finite = np.unique(finite)
        middles = (finite[1:] + finite[:-1]) / 2.0
        # All of the 8-bit ones; of the 16-bit ones the subnormal start, the overflowing end and a sample between.
        if dtype.bits == 16:
            middles = np.concatenate([middles[:20], middles[::211], middles[-20:]])
        over = finite[-1] + (finite[-1] - finite[-2]) / 2.0
        for middle in (*middles.tolist(), float(over)):
            edges += [middle, math.nextafter(middle, math.inf), math.nextafter(middle, 0.0)]
    return edges + [-edge for edge in edges]


def integer_edges(dtype: DType) -> list[int]:
    """Powers of two, and integers just beside the half-way points of each float's precision."""
    edges = {0, 1, -1}
    for exponent in range(65):
        edges |= {(1 << exponent) + step for step in (-1, 0, 1)}
        for precision in (3, 4, 8, 11, 24, 53):
            if exponent > precision:
                middle = (1 << exponent) + (1 << (exponent - precision))
                last_bit = 1 << (exponent - precision + 1)
                edges |= {middle + odd * last_bit + step for odd in (0, 1) for step in (-1, 0, 1)}
    edges |= {-edge for edge in edges}
    return sorted(edge for edge in edges if int(dtype.min) <= edge <= int(dtype.max))


def edge_array(dtype: DType) -> Array:
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_int:
        return np.array(integer_edges(dtype), dtype=numpy_dtype(dtype))
    if dtype.bits <= 16:
        return all_values(dtype)
    with np.errstate(all="ignore"):
        return np.array(float_edges()).astype(numpy_dtype(dtype))


def same(left: Scalar, right: Scalar) -> bool:
    """Equal in type and value; NaN equals NaN, 0.0 does not equal -0.0."""
    return repr(left) == repr(right)


def differences(values: list[Scalar], left: list[Scalar], right: list[Scalar], dtype: DType) -> list[Any]:
    """The values on which two lists of results disagree, as `same` sees it, but fast enough for millions."""
    if not dtype.is_float:
        return [row for row in zip(values, left, right) if row[1] != row[2]]
    one, other = np.array(left, np.float64), np.array(right, np.float64)
    agree = (np.isnan(one) & np.isnan(other)) | ((one == other) & (np.signbit(one) == np.signbit(other)))
    return [(values[place], left[place], right[place]) for place in np.flatnonzero(~agree)]


# ---------------------------------------------------------------- casts


# Of the values of 16-bit floats every seventh, which meets all exponents; all of them in the slow tests.
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("source", dtypes.all, ids=lambda dtype: dtype.name)
def test_cast_scalar_and_cast_array_agree(source: DType, step: int) -> None:
    edges = edge_array(source)[:: step if source in SMALL_FLOATS and source.bits == 16 else 1]
    values = as_python(edges)
    for target in dtypes.all:
        expected = [cast_scalar(value, target) for value in values]
        found = cast_array(edges, target)
        assert found.dtype == numpy_dtype(target)
        wrong = differences(values, expected, as_python(found), target)
        assert wrong == [], f"{source.name} to {target.name}: (value, cast_scalar, cast_array)"


@functools.cache
def grid_of(dtype: DType) -> list[float]:
    """The values of a small float from 0.0 up; one more step at the end stands for everything too large."""
    finite = [held for held in as_python(all_values(dtype)) if math.isfinite(held) and math.copysign(1.0, held) > 0.0]
    grid = sorted(float(held) for held in set(finite))
    return [*grid, 2.0 * grid[-1] - grid[-2]]


def nearest_by_fractions(value: Fraction, dtype: DType) -> float:
    """The nearest value of a small float, found among all of them with exact arithmetic; ties to even bits."""
    ordered = grid_of(dtype)
    magnitude = abs(value)
    place = bisect.bisect_left(ordered, magnitude)
    if place == len(ordered):
        return math.inf
    if place == 0:
        return ordered[0]
    below, above = Fraction(ordered[place - 1]), Fraction(ordered[place])
    # Positive values are ordered as their bits are, so the place of a value has the parity of its last bit.
    if magnitude - below != above - magnitude:
        place = place - 1 if magnitude - below < above - magnitude else place
    else:
        place = place - 1 if (place - 1) % 2 == 0 else place
    return ordered[place] if place < len(ordered) - 1 else math.inf


@pytest.mark.parametrize("target", SMALL_FLOATS, ids=lambda dtype: dtype.name)
def test_rounding_is_the_nearest_value_by_exact_arithmetic(target: DType) -> None:
    values: list[Scalar] = [edge for edge in float_edges() if math.isfinite(edge) and edge != 0.0]
    values += [edge for edge in integer_edges(dtypes.int64) + integer_edges(dtypes.uint64) if edge]
    for value in values:
        expected = math.copysign(nearest_by_fractions(Fraction(value), target), value)
        if math.isinf(expected) and target is dtypes.float8_e4m3:
            expected = math.nan
        assert same(cast_scalar(value, target), expected), value


@pytest.mark.parametrize("target", [dtypes.float16, dtypes.float32, dtypes.float64], ids=lambda dtype: dtype.name)
def test_numpy_rounds_doubles_the_same_way(target: DType) -> None:
    edges = np.array(float_edges())
    with np.errstate(all="ignore"):
        expected = as_python(edges.astype(numpy_dtype(target)))
    assert all(map(same, [cast_scalar(value, target) for value in edges.tolist()], expected))


@pytest.mark.parametrize("target", [dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.bfloat16], ids=lambda d: d.name)
def test_ml_dtypes_rounds_floats_the_same_way(target: DType) -> None:
    with np.errstate(all="ignore"):
        edges = np.array(float_edges()).astype(np.float32)
        expected = as_python(edges.astype(numpy_dtype(target)))
    assert all(map(same, [cast_scalar(value, target) for value in edges.tolist()], expected))


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (300, dtypes.uint8, 44),
        (200, dtypes.int8, -56),
        (-1, dtypes.uint64, (1 << 64) - 1),
        (1 << 63, dtypes.int64, -(1 << 63)),
        (-1.9, dtypes.int32, -1),
        (-0.9, dtypes.uint8, 0),
        (300.0, dtypes.int8, 127),
        (-300.0, dtypes.int8, -128),
        (-1.0, dtypes.uint32, 0),
        (math.nan, dtypes.int16, 0),
        (math.inf, dtypes.uint64, (1 << 64) - 1),
        (-math.inf, dtypes.int64, -(1 << 63)),
        (2.0**63, dtypes.int64, (1 << 63) - 1),
        (math.nan, dtypes.bool, True),
        (-0.0, dtypes.bool, False),
        (5e-324, dtypes.bool, True),
        (True, dtypes.float32, 1.0),
        (448.0, dtypes.float8_e4m3, 448.0),
        (464.0, dtypes.float8_e4m3, 448.0),
        (464.0000001, dtypes.float8_e4m3, math.nan),
        (-math.inf, dtypes.float8_e4m3, math.nan),
        (61439.0, dtypes.float8_e5m2, 57344.0),
        (61440.0, dtypes.float8_e5m2, math.inf),
        (-1e-30, dtypes.float16, -0.0),
        # Through float32 these would meet a tie that is not there.
        (1.0 + 2.0**-8 + 2.0**-40, dtypes.bfloat16, 1.0 + 2.0**-7),
        (1.0 + 2.0**-11 + 2.0**-40, dtypes.float16, 1.0 + 2.0**-10),
        # Through a double so would these.
        ((1 << 60) + (1 << 36) + 1, dtypes.float32, float((1 << 60) + (1 << 37))),
        (-((1 << 60) + (1 << 36) + 1), dtypes.float32, -float((1 << 60) + (1 << 37))),
        ((1 << 62) + (1 << 54) + 1, dtypes.bfloat16, float((1 << 62) + (1 << 55))),
        (10**400, dtypes.float32, math.inf),
        (-(10**400), dtypes.float64, -math.inf),
        (1 << 70, dtypes.index, 1 << 70),
    ],
)
def test_cast_scalar(value: Scalar, target: DType, expected: Scalar) -> None:
    assert same(cast_scalar(value, target), expected)


@given(st.floats() | st.integers(-(1 << 70), 1 << 70), st.sampled_from(dtypes.all))
def test_a_cast_value_stays_as_it_is(value: Scalar, target: DType) -> None:
    once = cast_scalar(value, target)
    assert same(cast_scalar(once, target), once)
    if target.is_int:
        assert target.min <= once <= target.max


def test_bitcast_keeps_the_bits() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    for target in (dtypes.float16, dtypes.bfloat16, dtypes.int16):
        there = bitcast_array(halves, target)
        assert there.dtype == numpy_dtype(target)
        assert (bitcast_array(there, dtypes.uint16) == halves).all()
    assert bitcast_array(np.array(1.0, np.float32), dtypes.uint32) == 0x3F800000
    assert bitcast_array(np.array([0, 1, 2], np.uint8), dtypes.bool).tolist() == [False, True, True]


# ---------------------------------------------------------------- promotion

# Written by hand from torch.promote_types; each row is one type, each column the other, in the order of the row names.
TORCH_TYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
TORCH_TABLE = """
bool     uint8    int8     int16    int32    int64    float16  bfloat16 float32  float64
uint8    uint8    int16    int16    int32    int64    float16  bfloat16 float32  float64
int8     int16    int8     int16    int32    int64    float16  bfloat16 float32  float64
int16    int16    int16    int16    int32    int64    float16  bfloat16 float32  float64
int32    int32    int32    int32    int32    int64    float16  bfloat16 float32  float64
int64    int64    int64    int64    int64    int64    float16  bfloat16 float32  float64
float16  float16  float16  float16  float16  float16  float16  float32  float32  float64
bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 float32  bfloat16 float32  float64
float32  float32  float32  float32  float32  float32  float32  float32  float32  float64
float64  float64  float64  float64  float64  float64  float64  float64  float64  float64
"""


def test_promotion_is_that_of_torch() -> None:
    rows = [line.split() for line in TORCH_TABLE.strip().splitlines()]
    for row_name, row in zip(TORCH_TYPES, rows, strict=True):
        for column_name, expected in zip(TORCH_TYPES, row, strict=True):
            assert promote(to_dtype(row_name), to_dtype(column_name)).name == expected, (row_name, column_name)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("uint16", "int16", "int32"),
        ("uint16", "uint8", "uint16"),
        ("uint32", "int8", "int64"),
        ("uint32", "int32", "int64"),
        ("uint64", "uint8", "uint64"),
        ("uint64", "int8", "float64"),
        ("uint64", "int64", "float64"),
        ("uint64", "float16", "float16"),
        ("bool", "uint64", "uint64"),
        ("float8_e4m3", "float8_e5m2", "float16"),
        ("float8_e4m3", "bfloat16", "bfloat16"),
        ("float8_e5m2", "int64", "float8_e5m2"),
        ("float8_e5m2", "float32", "float32"),
        ("index", "int32", "int32"),
        ("index", "float32", "float32"),
    ],
)
def test_promotion_where_torch_has_no_answer(left: str, right: str, expected: str) -> None:
    assert promote(to_dtype(left), to_dtype(right)).name == expected


def test_promotion_does_not_depend_on_order() -> None:
    for left, right in itertools.product(dtypes.all, repeat=2):
        assert promote(left, right) is promote(right, left)
        assert promote(left, left) is left
        assert promote(dtypes.bool, left) is left


def test_promotion_groups_freely_where_the_page_says_so() -> None:
    """docs/dtypes.md claims two exceptions, so there must be these and no others."""
    for trio in itertools.product(dtypes.all, repeat=3):
        first, second, third = trio
        groups_freely = promote(promote(first, second), third) is promote(first, promote(second, third))
        has_signed = any(dtype.kind == "int" for dtype in trio)
        is_exception = (dtypes.uint64 in trio and has_signed) or (
            set(trio) == {dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.bfloat16}
        )
        assert groups_freely or is_exception, trio


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("int8", 1, "int8"),
        ("bool", True, "bool"),
        ("bool", 1, "int32"),
        ("bool", 1.5, "float32"),
        ("uint8", 1.5, "float32"),
        ("int64", 1.5, "float32"),
        ("float16", 1.5, "float16"),
        ("float64", 1, "float64"),
        ("uint8", True, "uint8"),
    ],
)
def test_python_numbers_are_weak(dtype: str, value: Scalar, expected: str) -> None:
    assert promote_with_scalar(to_dtype(dtype), value).name == expected


def test_dtype_of_scalar() -> None:
    assert [dtype_of_scalar(value).name for value in (True, 1, 1.0)] == ["bool", "int32", "float32"]


# ---------------------------------------------------------------- the types themselves


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_limits_and_sizes_are_those_of_numpy(dtype: DType) -> None:
    held = numpy_dtype(dtype)
    assert held.itemsize == dtype.itemsize
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert to_dtype(dtype.name) is dtype
    if dtype.is_int:
        assert (int(np.iinfo(held).min), int(np.iinfo(held).max)) == (dtype.min, dtype.max)
    if dtype in SMALL_FLOATS:
        values = [value for value in as_python(all_values(dtype)) if not math.isnan(value)]
        assert (min(values), max(values)) == (dtype.min, dtype.max)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DTypeError, match="bfloat16"):
        to_dtype("float31")

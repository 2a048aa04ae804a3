"""Maths on NumPy arrays with the meaning of the op specs. In: arrays. Out: arrays, and CAST and BITCAST exactly as
`base/dtype.cast_scalar` defines them for one number. `NumpyMath` has the names of `scalar.ScalarMath`; the graph
interpreter and the emulator compute with it, so every device is compared with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import InternalError
from tilewright.graph.interpreter.scalar import threefry_words
from tilewright.graph.spec import Op

Array = NDArray[Any]

_NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    **{dtype: np.dtype(dtype.name) for dtype in (dtypes.bool, *dtypes.ints)},
    dtypes.float8_e4m3: np.dtype(ml_dtypes.float8_e4m3fn),
    dtypes.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    dtypes.float16: np.dtype(np.float16),
    dtypes.bfloat16: np.dtype(ml_dtypes.bfloat16),
    dtypes.float32: np.dtype(np.float32),
    dtypes.float64: np.dtype(np.float64),
    # Index maths is unbounded in theory; bounds rules keep it within 64 bits.
    dtypes.index: np.dtype(np.int64),
}
_DTYPES: dict[np.dtype[Any], DType] = {
    numpy: dtype for dtype, numpy in _NUMPY_DTYPES.items() if dtype is not dtypes.index
}


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype for values of `dtype`."""
    found = _NUMPY_DTYPES.get(dtype)
    if found is None:
        raise InternalError(f"{dtype} holds no values, so NumPy has no dtype for it")
    return found


def dtype_of_array(x: Array) -> DType:
    """The dtype of an array; int64 for both int64 and index."""
    found = _DTYPES.get(x.dtype)
    if found is None:
        raise InternalError(f"NumPy's {x.dtype} is not one of the dtypes")
    return found


# ---------------------------------------------------------------- CAST and BITCAST


def cast_array(x: Array, dtype: DType) -> Array:
    """Each element cast to `dtype` by the rules of `cast_scalar`."""
    x = np.asarray(x)
    target = numpy_dtype(dtype)
    source = dtype_of_array(x)
    if x.dtype == target:
        return x
    with np.errstate(all="ignore"):
        if dtype.is_bool:
            return np.asarray(x.astype(np.float64) != 0 if source.is_float else x != 0)
        if dtype.is_float:
            return _to_float(x, source, dtype)
        if source.is_float:
            return _float_to_int(x.astype(np.float64), dtype)
        return x.astype(target)


def _to_float(x: Array, source: DType, dtype: DType) -> Array:
    """One rounding, directly from the source's value."""
    target = numpy_dtype(dtype)
    if dtype.bits >= 32 or (source.is_float and source.bits <= 32):
        # NumPy and ml_dtypes round these once. They convert other sources through float32, which would round twice.
        return x.astype(target)
    if source.is_float:
        return _round_to_small_float(x, dtype).astype(target)
    wide = x if source.bits < 64 else np.where(_exceeds_double(x), _round_to_odd(x), x)
    return _round_to_small_float(wide.astype(np.float64), dtype).astype(target)


def _exceeds_double(x: Array) -> Array:
    limit = 1 << 53
    return np.asarray(x > limit if x.dtype == np.uint64 else (x > limit) | (x < -limit))


def _round_to_odd(x: Array) -> Array:
    """64-bit integers rounded to odd: the 11 bits that do not fit in a double are ORed into the last bit, so that a
    later rounding to fewer bits gives the result of rounding the integer itself."""
    unit = x.dtype.type(1 << 11)
    rest = x.dtype.type((1 << 11) - 1)
    return np.asarray((x & ~rest) | np.where((x & rest) != 0, unit, x.dtype.type(0)))


def _round_to_small_float(x: Array, dtype: DType) -> Array:
    """Doubles rounded to the nearest value of a float type of at most 16 bits, ties to even; still doubles."""
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    _, exponent = np.frexp(x)
    unit = np.ldexp(1.0, np.maximum(exponent - 1, 1 - bias) - dtype.mantissa_bits)
    rounded = np.where(np.isfinite(x), np.copysign(np.rint(x / unit) * unit, x), x)
    if dtype is dtypes.float8_e4m3:
        return np.where(np.abs(rounded) > 448.0, np.nan, rounded)
    largest = np.ldexp(2.0 - np.ldexp(1.0, -dtype.mantissa_bits), bias)
    return np.where(np.abs(rounded) > largest, np.copysign(np.inf, x), rounded)


def _float_to_int(x: Array, dtype: DType) -> Array:
    """Doubles truncated towards zero and saturated to the integer dtype; NaN gives 0."""
    target = numpy_dtype(dtype)
    whole = np.trunc(x)
    # The largest 64-bit integers are not doubles; the power of two above them is.
    above = whole >= float(int(dtype.max) + 1)
    below = whole < float(dtype.min)
    result = np.where(above | below | np.isnan(x), 0.0, whole).astype(target)
    result = np.where(above, target.type(int(dtype.max)), result)
    return np.where(below, target.type(int(dtype.min)), result)


def bitcast_array(x: Array, dtype: DType) -> Array:
    """The same bits as a dtype of the same width; a byte as bool is True where it is not zero."""
    x = np.asarray(x)
    target = numpy_dtype(dtype)
    if x.dtype.itemsize != target.itemsize:
        raise InternalError(f"BITCAST from {x.dtype} to {dtype.name}: the widths differ")
    if dtype.is_bool:
        return np.asarray(np.ascontiguousarray(x).reshape(x.shape).view(np.uint8) != 0)
    # ascontiguousarray makes a 0-d array 1-d.
    return np.ascontiguousarray(x).reshape(x.shape).view(target)


# ---------------------------------------------------------------- the namespace of an op's `value`


def _through_double(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function computed in double and rounded once, as in ScalarMath, so that constant folding changes no bit."""

    def apply(x: Array) -> Array:
        x = np.asarray(x)
        with np.errstate(all="ignore"):
            result = np.asarray(function(x.astype(np.float64)))
        return cast_array(result, dtype_of_array(x))

    return apply


class NumpyMath:
    """The array namespace `xp`. All functions are total: no input raises or warns."""

    sqrt = staticmethod(_through_double(np.sqrt))
    exp2 = staticmethod(_through_double(np.exp2))
    log2 = staticmethod(_through_double(np.log2))
    sin = staticmethod(_through_double(np.sin))
    trunc = staticmethod(_through_double(np.trunc))
    rint = staticmethod(_through_double(np.rint))

    @staticmethod
    def where(condition: Array, yes: Array, no: Array) -> Array:
        return np.where(condition, yes, no)

    @staticmethod
    def maximum(left: Array, right: Array) -> Array:
        with np.errstate(all="ignore"):
            result = np.maximum(left, right)
            if not _is_float(result):
                return result
            # IEEE does not define the sign of max(0.0, -0.0); here it is +0.0, which the sum gives.
            return np.where(_both_zero(left, right), left + right, result)

    @staticmethod
    def minimum(left: Array, right: Array) -> Array:
        with np.errstate(all="ignore"):
            result = np.minimum(left, right)
            if not _is_float(result):
                return result
            return np.where(_both_zero(left, right), -(-left - right), result)

    @staticmethod
    def floor_divide(left: Array, right: Array) -> Array:
        with np.errstate(all="ignore"):
            zero = right == 0
            return np.where(zero, left.dtype.type(0), np.floor_divide(left, np.where(zero, right.dtype.type(1), right)))

    @staticmethod
    def floor_modulo(left: Array, right: Array) -> Array:
        with np.errstate(all="ignore"):
            zero = right == 0
            return np.where(zero, left.dtype.type(0), np.remainder(left, np.where(zero, right.dtype.type(1), right)))

    @staticmethod
    def divide(left: Array, right: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.true_divide(left, right))

    @staticmethod
    def multiply(left: Array, right: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.multiply(left, right)

    @staticmethod
    def shift_left(value: Array, amount: Array) -> Array:
        inside, amount = _shift_amount(value, amount)
        return np.where(inside, np.left_shift(value, amount), value.dtype.type(0))

    @staticmethod
    def shift_right(value: Array, amount: Array) -> Array:
        inside, amount = _shift_amount(value, amount)
        shifted_out = np.where(value < 0, value.dtype.type(-1), value.dtype.type(0)) if _is_signed(value) else 0
        return np.where(inside, np.right_shift(value, amount), np.asarray(shifted_out).astype(value.dtype))

    @staticmethod
    def threefry(counter: Array, key: Array) -> Array:
        """The 32-bit words are stored in 64 bits and masked."""
        mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        first, second = threefry_words(
            (counter & mask, counter >> half), (key & mask, key >> half), lambda word: word & mask
        )
        return np.asarray(first | second << half)


_COMBINE = {"ADD": np.add, "MAX": np.maximum, "MIN": np.minimum}


def put(op: Op | None, data: Array, positions: Array, values: Array) -> None:
    """A STORE of values at flat positions; with an `op`, values for one position are combined by it."""
    if op is None:
        data[positions] = values
    else:
        _COMBINE[op.name].at(data, positions, values)


def _is_float(x: Array) -> bool:
    return dtype_of_array(x).is_float


def _is_signed(x: Array) -> bool:
    return dtype_of_array(x).kind == "int"


def _both_zero(left: Array, right: Array) -> Array:
    # ml_dtypes does not compare with Python's numbers.
    return np.asarray((left == left.dtype.type(0)) & (right == right.dtype.type(0)))


def _shift_amount(value: Array, amount: Array) -> tuple[Array, Array]:
    """Where the amount is less than the width, and the amount there; 0 elsewhere, since NumPy's shift is undefined
    there."""
    inside = amount < value.dtype.itemsize * 8
    if _is_signed(amount):
        inside = inside & (amount >= 0)
    return np.asarray(inside), np.where(inside, amount, amount.dtype.type(0)).astype(value.dtype)

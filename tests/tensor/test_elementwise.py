"""Elementwise operations against NumPy and SciPy, special values included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from tilewright.base.dtype import dtypes
from tilewright.tensor.tensor import Tensor

Check = Callable[..., None]

INF, NAN = math.inf, math.nan
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, INF, -INF, NAN, 1e-30, -1e30], np.float32)
REAL = np.concatenate([np.linspace(-9.7, 9.3, 41), [0.0, 1e-6, -1e-6, 1e-3]]).astype(np.float32)
POSITIVE = np.concatenate([np.linspace(0.01, 9.3, 29), [0.0, 1e-30, 1e30, INF]]).astype(np.float32)
UNIT = np.concatenate([np.linspace(-1, 1, 31), [1e-6, -1e-6, 0.999999, 1.5, -INF]]).astype(np.float32)
INTS = np.array([-128, -7, -1, 0, 1, 2, 5, 127], np.int8)


def as32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reference in double precision, rounded to the dtype of its first argument."""
    return lambda *arrays: np.asarray(function(*(x.astype(np.float64) for x in arrays))).astype(arrays[0].dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return special.expit(x)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


UNARY = {
    "neg": (lambda t: -t, lambda x: -x, SPECIAL),
    "abs": (lambda t: t.abs(), np.abs, SPECIAL),
    "sign": (lambda t: t.sign(), np.sign, SPECIAL),
    "trunc": (lambda t: t.trunc(), np.trunc, SPECIAL),
    "floor": (lambda t: t.floor(), np.floor, SPECIAL),
    "ceil": (lambda t: t.ceil(), np.ceil, SPECIAL),
    "round": (lambda t: t.round(), np.round, np.append(SPECIAL, REAL)),
    "square": (lambda t: t.square(), np.square, SPECIAL),
    "relu": (lambda t: t.relu(), lambda x: np.maximum(x, np.float32(0)), SPECIAL),
    "isnan": (lambda t: t.isnan(), np.isnan, SPECIAL),
    "isinf": (lambda t: t.isinf(), np.isinf, SPECIAL),
    "isfinite": (lambda t: t.isfinite(), np.isfinite, SPECIAL),
    "logical_not": (lambda t: t.logical_not(), np.logical_not, SPECIAL),
    "leaky_relu": (lambda t: t.leaky_relu(0.25), lambda x: np.where(x < 0, x * np.float32(0.25), x), SPECIAL),
}

FUNCTIONS = {
    "reciprocal": (lambda t: t.reciprocal(), lambda x: 1 / x, REAL),
    "sqrt": (lambda t: t.sqrt(), np.sqrt, POSITIVE),
    "rsqrt": (lambda t: t.rsqrt(), lambda x: 1 / np.sqrt(x), POSITIVE),
    "exp": (lambda t: t.exp(), np.exp, REAL),
    "exp2": (lambda t: t.exp2(), np.exp2, REAL),
    "log": (lambda t: t.log(), np.log, POSITIVE),
    "log2": (lambda t: t.log2(), np.log2, POSITIVE),
    "log10": (lambda t: t.log10(), np.log10, POSITIVE),
    "sin": (lambda t: t.sin(), np.sin, REAL),
    "cos": (lambda t: t.cos(), np.cos, np.append(REAL, np.float32([1000.5, -54321.0]))),
    "tan": (lambda t: t.tan(), np.tan, UNIT),
    "asin": (lambda t: t.asin(), np.arcsin, UNIT),
    "acos": (lambda t: t.acos(), np.arccos, UNIT),
    "atan": (lambda t: t.atan(), np.arctan, np.append(REAL, np.float32([INF, -INF, 1e30]))),
    "sinh": (lambda t: t.sinh(), np.sinh, REAL),
    "cosh": (lambda t: t.cosh(), np.cosh, REAL),
    "tanh": (lambda t: t.tanh(), np.tanh, np.append(REAL, np.float32([INF, -INF, 1e30]))),
    "asinh": (lambda t: t.asinh(), np.arcsinh, np.append(REAL, np.float32([INF, -INF, 1e30]))),
    "acosh": (lambda t: t.acosh(), np.arccosh, np.float32([1, 1.0001, 2, 1e10, 1e30, INF, 0.5, -1, -1e4, -1e30])),
    "atanh": (lambda t: t.atanh(), np.arctanh, UNIT),
    "erf": (lambda t: t.erf(), special.erf, np.append(REAL, np.float32([INF, -INF, 1e30, 0.99999, 1.00001]))),
    "sigmoid": (lambda t: t.sigmoid(), sigmoid, np.append(REAL, np.float32([INF, -INF, 200, -200]))),
    "logsigmoid": (lambda t: t.logsigmoid(), lambda x: -softplus(-x), np.append(REAL, np.float32([200, -200]))),
    "silu": (lambda t: t.silu(), lambda x: x * sigmoid(x), REAL),
    "swish": (lambda t: t.swish(), lambda x: x * sigmoid(x), REAL),
    "softplus": (lambda t: t.softplus(), softplus, np.append(REAL, np.float32([200, -200]))),
    "softplus beta": (lambda t: t.softplus(2.0), lambda x: softplus(2 * x) / 2, REAL),
    "mish": (lambda t: t.mish(), lambda x: x * np.tanh(softplus(x)), REAL),
    "elu": (lambda t: t.elu(1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(x)), np.append(REAL, np.float32([200]))),
    "celu": (lambda t: t.celu(2.0), lambda x: np.where(x > 0, x, 2 * np.expm1(x / 2)), REAL),
    "selu": (lambda t: t.selu(), lambda x: 1.0507 * np.where(x > 0, x, 1.67326 * np.expm1(x)), REAL),
    "quick_gelu": (lambda t: t.quick_gelu(), lambda x: x * sigmoid(1.702 * x), REAL),
    "gelu tanh": (
        lambda t: t.gelu(),
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        REAL,
    ),
    "gelu erf": (lambda t: t.gelu("none"), lambda x: 0.5 * x * (1 + special.erf(x / math.sqrt(2))), REAL),
    "relu6": (lambda t: t.relu6(), lambda x: np.clip(x, 0, 6), REAL),
    "hardtanh": (lambda t: t.hardtanh(), lambda x: np.clip(x, -1, 1), REAL),
    "hardsigmoid": (lambda t: t.hardsigmoid(), lambda x: np.clip(x / 6 + 0.5, 0, 1), REAL),
    "hardswish": (lambda t: t.hardswish(), lambda x: x * np.clip(x + 3, 0, 6) / 6, REAL),
    "softsign": (lambda t: t.softsign(), lambda x: x / (1 + np.abs(x)), REAL),
}


@pytest.mark.parametrize("name", UNARY)
def test_exact_functions(name: str, check: Check) -> None:
    operation, reference, values = UNARY[name]
    check(operation, reference, values, tolerance=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, check: Check) -> None:
    operation, reference, values = FUNCTIONS[name]
    check(operation, as32(reference), values, tolerance=4e-6)


@pytest.mark.parametrize("name", ["tanh", "sinh", "atan", "asin", "erf", "asinh", "atanh", "sigmoid", "elu", "log"])
def test_functions_of_double(name: str, check: Check) -> None:
    operation, reference, values = FUNCTIONS[name]
    check(operation, reference, values.astype(np.float64), tolerance=2e-14)


@pytest.mark.parametrize("name", ["exp", "tanh", "gelu erf", "cos", "sigmoid", "softplus"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_functions_of_short_floats_round_once(name: str, dtype: Any, check: Check) -> None:
    operation, reference, _ = FUNCTIONS[name]
    values = np.linspace(-7, 7, 23).astype(dtype)
    check(operation, as32(reference), values, tolerance=1.01 * float(ml_dtypes.finfo(dtype).eps))


def test_small_arguments_keep_their_digits(check: Check) -> None:
    values = np.float32([1e-7, -1e-7, 1e-12, 1e-25])
    for name in ("tanh", "sinh", "atan", "asin", "asinh", "atanh"):
        check(FUNCTIONS[name][0], lambda x: x, values, tolerance=1e-6)


def test_gelu_keeps_its_digits_far_below_zero(check: Check) -> None:
    def reference(x: np.ndarray) -> np.ndarray:
        return x * special.expit(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))

    check(lambda x: x.gelu(), as32(reference), np.linspace(-9, -2, 29).astype(np.float32), tolerance=2e-5)
    check(lambda x: x.gelu(), as32(reference), np.float32([-0.0, 0.0, INF, NAN, -1e4, 1e30]), tolerance=1e-6)


def maximum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """NumPy's, with +0.0 above -0.0."""
    if not np.issubdtype(left.dtype, np.floating):
        return np.maximum(left, right)
    positive = np.where((left == 0) & (right == 0) & np.signbit(left), right, left)
    return np.where((left == 0) & (right == 0), positive, np.maximum(left, right))


def minimum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.minimum(left, right) if not np.issubdtype(left.dtype, np.floating) else -maximum(-left, -right)


BINARY = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "maximum": (lambda a, b: a.maximum(b), maximum),
    "minimum": (lambda a, b: a.minimum(b), minimum),
    "lt": (lambda a, b: a < b, np.less),
    "le": (lambda a, b: a <= b, np.less_equal),
    "gt": (lambda a, b: a > b, np.greater),
    "ge": (lambda a, b: a >= b, np.greater_equal),
    "eq": (lambda a, b: a == b, np.equal),
    "ne": (lambda a, b: a != b, np.not_equal),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_on_special_values(name: str, check: Check) -> None:
    check(*BINARY[name], SPECIAL[:, None], SPECIAL[None, :], tolerance=0)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64, np.float64])
def test_binary_operators_on_dtypes(name: str, dtype: Any, check: Check) -> None:
    values = INTS.astype(dtype)
    check(*BINARY[name], values[:, None], values[None, :], tolerance=0)


def test_division(check: Check) -> None:
    check(lambda a, b: a / b, np.divide, SPECIAL[:, None], SPECIAL[None, :], tolerance=1e-7)
    values = INTS.astype(np.int32)
    nonzero = values[values != 0]
    check(lambda a, b: a / b, lambda a, b: (a / b).astype(np.float32), values[:, None], nonzero)
    check(lambda a, b: a // b, np.floor_divide, values[:, None], nonzero)
    check(lambda a, b: a % b, np.mod, values[:, None], nonzero)
    check(lambda a, b: a.fmod(b), np.fmod, values[:, None], nonzero)
    truncated = lambda a, b: np.trunc(a / b).astype(np.int32)  # noqa: E731
    check(lambda a, b: a.div(b, rounding_mode="trunc"), truncated, values[:, None], nonzero)


def test_float_remainders(check: Check) -> None:
    left, right = np.float32([7.5, -7.5, 3, -3, 0, INF, NAN])[:, None], np.float32([2, -2, 0.75, INF, -INF])
    check(lambda a, b: a % b, np.mod, left, right, tolerance=1e-6)
    check(lambda a, b: a.fmod(b), np.fmod, left, right, tolerance=1e-6)
    check(lambda a, b: a // b, lambda a, b: np.floor(a / b), left, right, tolerance=1e-6)


def test_bits_and_shifts(check: Check) -> None:
    left, right = INTS.astype(np.int32)[:, None], INTS.astype(np.int32)[None, :]
    check(lambda a, b: a & b, np.bitwise_and, left, right)
    check(lambda a, b: a | b, np.bitwise_or, left, right)
    check(lambda a, b: a ^ b, np.bitwise_xor, left, right)
    check(lambda a: ~a, np.bitwise_not, left)
    amounts = np.array([0, 1, 7, 31], np.int32)
    check(lambda a, b: a << b, np.left_shift, left, amounts)
    check(lambda a, b: a >> b, np.right_shift, left, amounts)


def test_bool_arithmetic_is_logic(check: Check) -> None:
    left, right = np.array([[True], [False]]), np.array([True, False])
    check(lambda a, b: a + b, np.logical_or, left, right)
    check(lambda a, b: a * b, np.logical_and, left, right)
    check(lambda a, b: a ^ b, np.logical_xor, left, right)
    check(lambda a, b: a.maximum(b), np.logical_or, left, right)
    check(lambda a: ~a, np.logical_not, left)


def test_reflected_operators(check: Check) -> None:
    x = np.array([1, 2, 4, 5], np.int32)
    check(lambda t: 7 - t, lambda x: 7 - x, x)
    check(lambda t: 7 // t, lambda x: 7 // x, x)
    check(lambda t: 7 % t, lambda x: 7 % x, x)
    check(lambda t: 1 << t, lambda x: 1 << x, x)
    check(lambda t: 6 & t, lambda x: 6 & x, x)
    check(lambda t: 7 / t, lambda x: (7 / x).astype(np.float32), x)
    check(lambda t: 2.0**t, lambda x: (2.0**x).astype(np.float32), x)
    check(lambda t: np.float32([1, 2, 3, 4]) - t, lambda x: (np.float32([1, 2, 3, 4]) - x).astype(np.float32), x)


@pytest.mark.parametrize(
    "exponent", [0, 1, 2, 3, 7, -1, -2, 0.5, -0.5, 1.5, -1.5, 2.0, 100.0, 1 / 3], ids=lambda e: f"{e:.2f}"
)
def test_power_of_numbers(exponent: float, check: Check) -> None:
    values = np.concatenate([np.linspace(0.1, 3, 13), [0.0, 1.0, INF, NAN]]).astype(np.float32)
    check(lambda t: t**exponent, as32(lambda x: np.power(x, exponent)), values, tolerance=2e-5)


def test_power_of_tensors(check: Check) -> None:
    base = np.float32([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, INF, -INF, NAN])[:, None]
    power = np.float32([0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, INF, -INF, NAN])
    check(lambda a, b: a**b, as32(np.power), base, power, tolerance=2e-6)
    whole = np.array([-3, -2, -1, 0, 1, 2, 3], np.int32)
    check(lambda a, b: a**b, np.power, whole[:, None], np.array([0, 1, 2, 5, 13], np.int32))
    check(lambda a, b: a**b, np.power, whole.astype(np.uint8)[:, None], np.array([0, 1, 2, 9], np.uint8))
    check(lambda t: 3**t, lambda x: 3**x, np.array([0, 1, 5], np.int32))
    check(lambda t: (-2.0) ** t, as32(lambda x: (-2.0) ** x), np.float32([0, 1, 2, 3, -1]))
    check(lambda t: t**5, lambda x: x**5, whole)


def test_selection(check: Check) -> None:
    condition = np.array([[True, False, True]])
    left, right = np.float32([[1], [2]]), np.float32([NAN, -0.0, 3])
    check(lambda c, a, b: c.where(a, b), np.where, condition, left, right, tolerance=0)
    check(lambda c: c.where(1, 0), lambda c: np.where(c, 1, 0).astype(np.int32), condition)
    check(lambda c: c.where(1.5, 0), lambda c: np.where(c, 1.5, 0).astype(np.float32), condition)
    check(lambda c, b: c.where(-INF, b), lambda c, b: np.where(c, np.float32(-INF), b), condition, right, tolerance=0)
    check(lambda t: t.clamp(-1, 1), lambda x: np.clip(x, -1, 1), SPECIAL, tolerance=0)
    check(lambda t: t.clamp(max_=0.5), lambda x: np.minimum(x, np.float32(0.5)), SPECIAL, tolerance=0)
    check(lambda a, m: a.masked_fill(m, 9), lambda a, m: np.where(m, np.float32(9), a), left, condition)


def test_copysign_lerp_logaddexp(check: Check) -> None:
    check(lambda a, b: a.copysign(b), np.copysign, SPECIAL[:, None], SPECIAL, tolerance=0)
    left, right = np.float32([1, 2, -5]), np.float32([10, 0.1, 5])
    check(lambda a, b: a.lerp(b, 0.3), lambda a, b: (a + 0.3 * (b - a)).astype(np.float32), left, right)
    check(lambda a, b: a.lerp(b, 1.0), lambda a, b: b, left, right, tolerance=0)
    values = np.float32([0, 1, -50, 300, INF, -INF])
    check(lambda a, b: a.logaddexp(b), as32(np.logaddexp), values[:, None], values)


def test_isclose(check: Check) -> None:
    left, right = np.float32([1, 1, INF, INF, NAN, 0]), np.float32([1.000001, 1.1, INF, -INF, NAN, 1e-9])
    check(lambda a, b: a.isclose(b), np.isclose, left, right)
    nan_is_close = lambda a, b: np.isclose(a, b, equal_nan=True)  # noqa: E731
    check(lambda a, b: a.isclose(b, equal_nan=True), nan_is_close, left, right)


def test_comparison_with_a_number_outside_of_the_dtype(check: Check) -> None:
    values = np.array([0, 100, 255], np.uint8)
    check(lambda t: t < 300, lambda x: x < 300, values)
    check(lambda t: t > -1, lambda x: x > -1, values)
    check(lambda t: t == 256, lambda x: x == 256, values)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("float16", np.float32(2.5), "float16"),
        ("int8", np.float64(2.5), "float32"),
        ("int8", 2, "int8"),
        ("int8", 2.5, "float32"),
        ("bool", True, "bool"),
        ("bool", 3, "int32"),
        ("float16", 2.5, "float16"),
        ("bfloat16", 1, "bfloat16"),
        ("float64", 1.5, "float64"),
        ("int8", "uint8", "int16"),
        ("float16", "bfloat16", "float32"),
        ("int64", "float16", "float16"),
        ("uint64", "int8", "float64"),
    ],
)
def test_promotion(left: str, right: Any, expected: str) -> None:
    tensor = Tensor([1], dtype=left)
    other = Tensor([1], dtype=right) if isinstance(right, str) else right
    assert (tensor + other).dtype.name == expected
    assert (other + tensor).dtype.name == expected
    assert (tensor < other).dtype is dtypes.bool


def test_empty_and_scalar_operands(check: Check) -> None:
    check(lambda a, b: a + b, np.add, np.zeros((0, 3), np.float32), np.ones(3, np.float32))
    check(lambda a, b: a * b, np.multiply, np.float32(3.0), np.float32([1, 2]))
    check(lambda a, b: (a * b).exp(), lambda a, b: np.exp(a * b), np.float32(3.0), np.float32(0.5))


def test_casts_saturate_truncate_and_wrap(check: Check) -> None:
    values = np.float32([1.9, -1.9, 300, -300, INF, -INF, NAN])
    check(lambda t: t.cast("int8"), lambda _: np.int8([1, -1, 127, -128, 127, -128, 0]), values)
    check(lambda t: t.cast("uint8"), lambda _: np.uint8([1, 0, 255, 0, 255, 0, 0]), values)
    check(lambda t: t.bool(), lambda x: x != 0, SPECIAL)
    check(lambda t: t.cast("int8"), lambda x: x.astype(np.int8), np.array([300, -300, 127], np.int32))
    check(lambda t: t.half().float(), lambda x: x.astype(np.float16).astype(np.float32), REAL, tolerance=0)


def test_bitcast(check: Check) -> None:
    check(lambda t: t.bitcast("int32"), lambda x: x.view(np.int32), SPECIAL)
    words = np.array([[0x01020304, 0x05060708]], np.uint32)
    check(lambda t: t.bitcast("uint8"), lambda x: x.view(np.uint8), words)
    check(lambda t: t.bitcast("uint64"), lambda x: x.view(np.uint64), words)
    check(lambda t: t.bitcast("float16"), lambda x: x.view(np.float16), np.float32([[1.5, -2.0]]))

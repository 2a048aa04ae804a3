"""Rows of the op table: functions of one element, arithmetic, comparison, activations, casts."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from tests.ops.rows import ALL, BOOL, FLOATS, INTS, NUMBERS, SIGNED, WIDE_FLOATS, Input, Row, binary, unary

# References take float64; integers are given as float64 where the op gives floats.
SPREAD = (Input((3, 5), -3, 3),)
SPECIAL = Input(values=[0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 100.0, -100.0, 0.5])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return special.expit(x)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


def elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def activation(op, reference, torch=None, **more):
    torch = torch or (lambda t, x: getattr(t.nn.functional, op)(x))
    return Row(op, lambda x: getattr(x, op)(), reference, SPREAD, FLOATS, torch=torch, **more)


UNARY = [
    unary("abs", np.abs, dtypes=ALL, result="same"),
    unary("neg", np.negative, dtypes=NUMBERS, result="same"),
    unary("square", np.square, dtypes=NUMBERS, result="same"),
    unary("sign", np.sign, dtypes=NUMBERS, result="same"),
    unary("ceil", np.ceil, dtypes=NUMBERS, result="same"),
    unary("floor", np.floor, dtypes=NUMBERS, result="same"),
    unary("trunc", np.trunc, dtypes=NUMBERS, result="same"),
    unary("round", np.round, dtypes=NUMBERS, result="same"),
    Row(
        "round",
        lambda x: x.round(),
        np.round,
        (Input(values=[0.5, 1.5, 2.5, -0.5, -1.5]),),
        gradient=False,
        label="halves",
    ),
    unary("sqrt", np.sqrt, 1, 4),
    unary("rsqrt", lambda x: 1 / np.sqrt(x), 1, 4, dtypes=NUMBERS),
    unary("reciprocal", lambda x: 1 / x, 1, 4, dtypes=NUMBERS),
    unary("exp", np.exp),
    unary("exp2", np.exp2),
    unary("log", np.log, 1, 4, dtypes=NUMBERS),
    unary("log2", np.log2, 1, 4, dtypes=NUMBERS),
    unary("log10", np.log10, 1, 4, dtypes=NUMBERS),
    unary("sin", np.sin),
    unary("cos", np.cos),
    unary("tan", np.tan, -1.2, 1.2),
    unary("asin", np.arcsin, -0.9, 0.9),
    unary("acos", np.arccos, -0.9, 0.9),
    unary("atan", np.arctan),
    unary("sinh", np.sinh),
    unary("cosh", np.cosh),
    unary("tanh", np.tanh),
    unary("asinh", np.arcsinh),
    unary("acosh", np.arccosh, 1.2, 4, dtypes=FLOATS + INTS),
    unary("atanh", np.arctanh, -0.8, 0.8),
    unary("erf", special.erf),
    unary("sigmoid", sigmoid),
    unary("isnan", np.isnan, result="bool", gradient=False),
    unary("isinf", np.isinf, result="bool", gradient=False),
    unary("isfinite", np.isfinite, result="bool", gradient=False),
    unary("logical_not", np.logical_not, result="bool", gradient=False),
    unary("bitwise_not", np.invert, dtypes=BOOL + INTS, result="same", gradient=False),
    Row("isnan", lambda x: x.isnan(), np.isnan, (SPECIAL,), FLOATS, False, "bool", "special"),
    Row("isinf", lambda x: x.isinf(), np.isinf, (SPECIAL,), WIDE_FLOATS, False, "bool", "special"),
    Row(
        "isinf",
        lambda x: x.isinf(detect_negative=False),
        np.isposinf,
        (SPECIAL,),
        WIDE_FLOATS,
        False,
        "bool",
        "positive",
        lambda t, x: t.isposinf(x),
    ),
    Row("isfinite", lambda x: x.isfinite(), np.isfinite, (SPECIAL,), WIDE_FLOATS, False, "bool", "special"),
    Row("exp", lambda x: x.exp(), np.exp, (SPECIAL,), WIDE_FLOATS, False, label="special"),
    Row("log", lambda x: x.log(), np.log, (SPECIAL,), WIDE_FLOATS, False, label="special"),
    Row("tanh", lambda x: x.tanh(), np.tanh, (SPECIAL,), WIDE_FLOATS, False, label="special"),
    Row("sigmoid", lambda x: x.sigmoid(), sigmoid, (SPECIAL,), WIDE_FLOATS, False, label="special"),
    Row("sin", lambda x: x.sin(), np.sin, (Input((), 0, 1),), WIDE_FLOATS, label="0-d"),
    Row("sin", lambda x: x.sin(), np.sin, (Input((0, 3)),), WIDE_FLOATS, False, label="empty"),
]

ARITHMETIC = [
    binary("add", np.add, ALL),
    binary("sub", np.subtract),
    binary("mul", np.multiply, ALL),
    binary("div", np.divide, result="float"),
    binary(
        "div",
        lambda x, y: np.trunc(x / y),
        call=lambda x, y: x.div(y, rounding_mode="trunc"),
        label="trunc",
        gradient=False,
    ),
    binary("div", np.floor_divide, call=lambda x, y: x.div(y, rounding_mode="floor"), label="floor", gradient=False),
    binary(
        "div",
        lambda x: 6 / x,
        result="float",
        inputs=(Input((3, 4), 1, 3),),
        call=lambda x: x.div(6, reverse=True),
        label="reverse",
        torch=lambda t, x: 6 / x,
    ),
    binary("mod", np.mod, torch=lambda t, x, y: t.remainder(x, y)),
    binary("fmod", np.fmod),
    binary("pow", np.power, inputs=(Input((3, 4), 1, 3), Input((4,), 0, 2)), dtypes=NUMBERS),
    binary("pow", lambda x: x**3, call=lambda x: x.pow(3), inputs=(Input((3, 4), -2, 2),), label="whole"),
    binary(
        "pow",
        lambda x: 2.0**x,
        dtypes=FLOATS,
        call=lambda x: x.pow(2.0, reverse=True),
        inputs=SPREAD,
        label="reverse",
        torch=lambda t, x: 2.0**x,
    ),
    binary(
        "pow", lambda x: x**-1.5, dtypes=FLOATS, call=lambda x: x.pow(-1.5), inputs=(Input((3, 4), 1, 3),), label="real"
    ),
    binary("maximum", np.maximum, ALL),
    binary("minimum", np.minimum, ALL),
    binary("logaddexp", np.logaddexp, FLOATS),
    binary(
        "logaddexp",
        np.logaddexp,
        WIDE_FLOATS,
        label="special",
        gradient=False,
        inputs=(Input(values=[1000.0, -math.inf, math.inf, 0.0]), Input(values=[1000.0, -math.inf, 0.0, -math.inf])),
    ),
    binary("copysign", np.copysign, FLOATS, inputs=(Input((3, 4), 0.5, 2), Input((4,), -2, 2, constant=True))),
    binary(
        "copysign",
        lambda x, y: np.copysign(x, y),
        WIDE_FLOATS,
        inputs=(Input(values=[1.0, 2.0, 3.0]), Input(values=[-0.0, 0.0, -5.0])),
        gradient=False,
        label="zeros",
    ),
    Row(
        "lerp",
        lambda x, y, w: x.lerp(y, w),
        lambda x, y, w: x + (y - x) * w,
        (Input(), Input(), Input((3, 4), 0, 1)),
        FLOATS,
    ),
    Row(
        "lerp",
        lambda x, y: x.lerp(y, 0.25),
        lambda x, y: x + (y - x) * 0.25,
        (Input(), Input()),
        FLOATS,
        label="number",
    ),
    binary("bitwise_and", np.bitwise_and, BOOL + INTS, gradient=False),
    binary("bitwise_or", np.bitwise_or, BOOL + INTS, gradient=False),
    binary("bitwise_xor", np.bitwise_xor, BOOL + INTS, gradient=False),
    binary("lshift", np.left_shift, INTS, gradient=False, torch=lambda t, x, y: x << y),
    binary("rshift", np.right_shift, INTS, gradient=False, torch=lambda t, x, y: x >> y),
    binary("eq", np.equal, ALL, gradient=False, result="bool"),
    binary("ne", np.not_equal, ALL, gradient=False, result="bool"),
    Row(
        "where",
        lambda c, x, y: c.where(x, y),
        np.where,
        (Input(dtype="bool"), Input(), Input((4,))),
        ALL,
        torch=lambda t, c, x, y: t.where(c, x, y),
    ),
    Row(
        "masked_fill",
        lambda x, m: x.masked_fill(m, 2),
        lambda x, m: np.where(m, x.dtype.type(2), x),
        (Input(), Input(dtype="bool")),
        NUMBERS,
    ),
    Row("clamp", lambda x: x.clamp(-1, 1), lambda x: np.clip(x, -1, 1), SPREAD, SIGNED + FLOATS),
    Row(
        "clip",
        lambda x: x.clip(max_=1),
        lambda x: np.minimum(x, x.dtype.type(1)),
        SPREAD,
        NUMBERS,
        torch=lambda t, x: x.clip(max=1),
    ),
    Row(
        "isclose",
        lambda x, y: x.isclose(y),
        np.isclose,
        (Input(values=[1.0, 2.0, math.inf, math.nan]), Input(values=[1.0, 2.5, math.inf, math.nan])),
        WIDE_FLOATS,
        False,
        "bool",
    ),
    Row(
        "isclose",
        lambda x, y: x.isclose(y, rtol=0.5, atol=0.1, equal_nan=True),
        lambda x, y: np.isclose(x, y, 0.5, 0.1, equal_nan=True),
        (Input(values=[1.0, 2.0, math.inf, math.nan]), Input(values=[1.9, 3.0, -math.inf, math.nan])),
        WIDE_FLOATS,
        False,
        "bool",
        "options",
    ),
]

OPERATORS = [
    Row(
        "operators",
        lambda x, y: (x + y, x - y, x * y),
        lambda x, y: (x + y, x - y, x * y),
        (Input(), Input((4,))),
        NUMBERS,
        result=("same",) * 3,
        label="plain",
    ),
    Row(
        "operators",
        lambda x: (3 + x, 3 - x, 3 * x),
        lambda x: (3 + x, 3 - x, 3 * x),
        (Input(),),
        NUMBERS,
        result=("same",) * 3,
        label="reflected",
    ),
    Row(
        "operators",
        lambda x: (6 / x, 7 // x, 7 % x),
        lambda x: (6 / x, 7 // x, 7 % x),
        (Input((3, 4), 1, 3),),
        SIGNED + WIDE_FLOATS,
        result=("float", "same", "same"),
        label="reflected division",
        gradient=False,
    ),
    Row(
        "operators",
        lambda x: (x < 1, x <= 1, x > 1, x >= 1, x == 1, x != 1),
        lambda x: (x < 1, x <= 1, x > 1, x >= 1, x == 1, x != 1),
        (Input(),),
        NUMBERS,
        False,
        ("bool",) * 6,
        "compare",
    ),
    Row(
        "operators",
        lambda x: (x & 3, 3 | x, x ^ 1, x << 1, x >> 1, ~x),
        lambda x: (x & 3, 3 | x, x ^ 1, x << 1, x >> 1, ~x),
        (Input((3, 4), 0, 9),),
        INTS,
        False,
        ("same",) * 6,
        "bits",
    ),
    Row(
        "operators",
        lambda x: (-x, +x, abs(x), x**2),
        lambda x: (-x, +x, abs(x), x**2),
        (Input(),),
        NUMBERS,
        result=("same",) * 4,
        label="one operand",
    ),
    Row(
        "operators",
        lambda x, y: (x @ y, x.T @ x),
        lambda x, y: (x @ y, x.T @ x),
        (Input((3, 4)), Input((4, 2))),
        WIDE_FLOATS,
        result=("same",) * 2,
        label="matmul",
    ),
    Row(
        "operators",
        lambda x: divmod(x, 2),
        lambda x: divmod(x, 2),
        (Input((3, 4), -5, 5),),
        SIGNED + WIDE_FLOATS,
        False,
        ("same",) * 2,
        "divmod",
        None,
    ),
]

ACTIVATIONS = [
    activation("relu", lambda x: np.maximum(x, 0)),
    activation("relu6", lambda x: np.clip(x, 0, 6)),
    activation("leaky_relu", lambda x: np.where(x < 0, 0.01 * x, x)),
    activation("hardtanh", lambda x: np.clip(x, -1, 1)),
    activation("hardsigmoid", lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    activation("hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6),
    activation("softsign", lambda x: x / (1 + np.abs(x))),
    activation("logsigmoid", lambda x: -softplus(-x)),
    activation("silu", lambda x: x * sigmoid(x)),
    activation("swish", lambda x: x * sigmoid(x), lambda t, x: t.nn.functional.silu(x)),
    activation("quick_gelu", lambda x: x * sigmoid(1.702 * x), lambda t, x: x * t.sigmoid(1.702 * x)),
    activation("softplus", softplus),
    activation("mish", lambda x: x * np.tanh(softplus(x))),
    activation("elu", elu),
    activation("celu", elu),
    activation(
        "selu",
        lambda x: 1.0507 * elu(x, 1.67326),
        lambda t, x: 1.0507 * t.where(x > 0, x, 1.67326 * t.expm1(x)),
    ),
    activation(
        "gelu",
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
    ),
    Row(
        "gelu",
        lambda x: x.gelu("none"),
        lambda x: 0.5 * x * (1 + special.erf(x / math.sqrt(2))),
        SPREAD,
        FLOATS,
        label="erf",
        torch=lambda t, x: t.nn.functional.gelu(x),
    ),
    Row(
        "celu",
        lambda x: x.celu(2.0),
        lambda x: np.where(x > 0, x, 2 * np.expm1(np.minimum(x, 0) / 2)),
        SPREAD,
        FLOATS,
        label="alpha",
        torch=lambda t, x: t.celu(x, 2.0),
    ),
    Row(
        "softplus",
        lambda x: x.softplus(2.0),
        lambda x: softplus(2 * x) / 2,
        SPREAD,
        FLOATS,
        label="beta",
        torch=lambda t, x: t.nn.functional.softplus(x, 2.0),
    ),
]


def cast(dtype: str, op: str) -> Row:
    method = (lambda x: getattr(x, op)()) if op != "cast" else (lambda x: x.cast(dtype))
    # Values of 0..2 are whole in every integer dtype that they are cast to.
    return Row(op, method, np.array, (Input((3, 4), 0, 2.9),), ALL, False, dtype, label=dtype if op == "cast" else "")


CASTS = [
    cast("float16", "half"),
    cast("bfloat16", "bfloat16"),
    cast("float32", "float"),
    cast("float64", "double"),
    cast("int16", "short"),
    cast("int32", "int"),
    cast("int64", "long"),
    cast("bool", "bool"),
    Row(
        "cast",
        lambda x: x.cast("float64"),
        np.array,
        (Input(),),
        WIDE_FLOATS,
        result="float64",
        torch=lambda t, x: x.double(),
    ),
    Row(
        "cast",
        lambda x: x.cast("uint8"),
        lambda x: x.astype(np.uint8),
        (Input((3, 4), -300, 300),),
        ("int16", "int32", "int64"),
        False,
        "uint8",
        "wraps",
        None,
    ),
    Row(
        "bitcast",
        lambda x: x.bitcast("int32"),
        lambda x: x.astype(np.float32).view(np.int32),
        (Input(),),
        ("float32",),
        False,
        "int32",
        torch=None,
    ),
    Row(
        "bitcast",
        lambda x: x.bitcast("uint8"),
        lambda x: x.view(np.uint8),
        (Input((2, 4)),),
        ("int32", "int16"),
        False,
        "uint8",
        "narrower",
        None,
    ),
    Row(
        "bitcast",
        lambda x: x.bitcast("int64"),
        lambda x: x.view(np.int64),
        (Input((2, 4)),),
        ("int32", "uint16"),
        False,
        "int64",
        "wider",
        None,
    ),
]

ROWS = UNARY + ARITHMETIC + OPERATORS + ACTIVATIONS + CASTS

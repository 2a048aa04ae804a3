"""exp2, exp, log2, log, sin and cos against double or extended precision, in units in the last place of what is right.

Each graph is evaluated as it stands, and once more with every product that feeds an addition left unrounded, which is
what contraction to FMA does. A sweep over all 2**32 arguments is `SWEEP=1 pytest tests/codegen/test_transcendental.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.emulation import sine, transcendental
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.interpreter.numpy_math import NumpyMath, bitcast_array, cast_array, numpy_dtype
from tilewright.graph.kernels.slow_path import find_slow_paths
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

FUNCTIONS: dict[str, tuple[Callable[[UOp], UOp], Any]] = {
    "exp2": (transcendental.exp2, np.exp2),
    "exp": (transcendental.exp, np.exp),
    "log2": (transcendental.log2, np.log2),
    "log": (transcendental.log, np.log),
    "sin": (sine.sin, np.sin),
    "cos": (sine.cos, np.cos),
    "sin without near angles": (lambda x: sine.sin(x, has_slow_paths=False), np.sin),
    "sin in words": (lambda x: sine.sin(x, has_double=False, has_slow_paths=False), np.sin),
    "cos in words": (lambda x: sine.cos(x, has_double=False, has_slow_paths=False), np.cos),
}
# The greatest error allowed: (plain, contracted).
LIMITS = {"exp2": (1.2, 0.95), "exp": (1.1, 1.1), "log2": (1.4, 1.1), "log": (1.05, 1.0), "sin": (1.6, 1.6)}
LIMITS |= {name: LIMITS["sin"] for name in FUNCTIONS if name.startswith(("sin", "cos"))}
LIMITS["cos in words"] = (1.65, 1.65)
EXTENDED = np.finfo(np.longdouble).nmant >= 63
WIDER = {dtypes.float32: np.float64, dtypes.float64: np.longdouble}


def parameter(dtype: DType, size: int) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(0, size))


def evaluate_contracted(root: UOp, bindings: dict[UOp, Any]) -> Any:
    """The value of a scalar graph where `a * b + c` rounds once: the product is kept in the wider type."""
    values: dict[UOp, Any] = dict(bindings)
    exact: dict[UOp, Any] = {}
    with np.errstate(all="ignore"):
        for node in toposort(root):
            if node in values:
                continue
            src = [values[source] for source in node.src]
            wide = WIDER.get(node.dtype)
            if node.op is Ops.CONST:
                values[node] = np.asarray(node.arg, numpy_dtype(node.dtype))
            elif node.op is Ops.CAST:
                values[node] = cast_array(src[0], node.dtype)
            elif node.op is Ops.BITCAST:
                values[node] = bitcast_array(src[0], node.dtype)
            elif wide is not None and node.op in (Ops.ADD, Ops.SUB) and any(source in exact for source in node.src):
                left, right = (exact.get(source, values[source].astype(wide)) for source in node.src)
                values[node] = (left + right if node.op is Ops.ADD else left - right).astype(numpy_dtype(node.dtype))
            else:
                assert node.op.value is not None
                values[node] = np.asarray(node.op.value(NumpyMath, *src)).astype(numpy_dtype(node.dtype))
                if node.op is Ops.MUL and wide is not None:
                    exact[node] = src[0].astype(wide) * src[1].astype(wide)
    return values[root]


def errors(found: Any, expected: Any, dtype: DType) -> Any:
    """|found - expected| in units in the last place of `expected`; infinite where one is NaN or infinite alone."""
    least = 2 - (1 << (dtype.exponent_bits - 1))
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.abs(expected))
        unit = np.ldexp(expected.dtype.type(1), np.maximum(exponent - 1, least) - dtype.mantissa_bits)
        rounded = expected.astype(found.dtype)
        result = np.abs(found.astype(expected.dtype) - expected) / unit
        is_same = (found == rounded) & (np.signbit(found) == np.signbit(rounded)) | np.isnan(found) & np.isnan(expected)
        return np.where(
            is_same, np.where(np.isfinite(rounded), result, 0), np.where(np.isfinite(result), result, np.inf)
        )


def greatest_error(name: str, dtype: DType, numbers: Any, contracted: bool) -> tuple[float, float]:
    """(error, argument)"""
    build, reference = FUNCTIONS[name]
    x = parameter(dtype, numbers.size)
    compute = evaluate_contracted if contracted else evaluate
    found = compute(build(x), {x: numbers})
    with np.errstate(all="ignore"):
        error = errors(found, reference(numbers.astype(WIDER[dtype])), dtype)
    worst = int(error.argmax())
    return float(error[worst]), float(numbers[worst])


def arguments(name: str, dtype: DType, count: int) -> Any:
    """Bit patterns of all sizes and signs, numbers where the function is not trivial, and the edges of its pieces."""
    rng = np.random.default_rng(len(name))
    unsigned = dtypes.uint32 if dtype is dtypes.float32 else dtypes.uint64
    info = np.finfo(dtype.name)
    patterns = rng.integers(0, 1 << dtype.bits, count, dtype=unsigned.name).view(dtype.name)
    largest = math.log2(info.max) if name == "exp2" else math.log(info.max)
    if name.startswith("exp"):
        dense = np.concatenate([rng.uniform(-1.2 * largest, 1.01 * largest, count), rng.uniform(-1, 1, count)])
        edges = np.concatenate([np.arange(-1080, 1026), np.arange(-1080, 1026) + 0.5, np.arange(-1080, 1026) / 1.4427])
    elif name.startswith("log"):
        dense = np.concatenate([rng.uniform(0.5, 2, count), 1 + rng.uniform(-1, 1, count) * 1e-3])
        edges = np.concatenate([2.0 ** np.arange(-149, 127) * f for f in (1, math.sqrt(0.5), 1.5, 1 + info.eps)])
    else:
        dense = np.concatenate([rng.uniform(-100, 100, count), rng.uniform(-1e5, 1e5, count)])
        edges = np.concatenate(
            [np.arange(20_000) * (math.pi / 2), 2.0 ** np.arange(-149, 127), 2.0 ** np.arange(1, 127) / 3]
        )
    tiny = info.smallest_subnormal * np.arange(1, 1000)
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, info.max, info.min, info.tiny, -info.tiny]
    with np.errstate(all="ignore"):
        numbers = np.concatenate([dense, edges, -edges, special]).astype(dtype.name)
        around = [np.nextafter(numbers[-4000:], numbers.dtype.type(end)) for end in (math.inf, -math.inf)]
        return np.concatenate([patterns, numbers, *around, tiny.astype(dtype.name)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("contracted", [False, True], ids=["plain", "contracted"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32(name: str, contracted: bool) -> None:
    error, argument = greatest_error(name, dtypes.float32, arguments(name, dtypes.float32, 150_000), contracted)
    assert error <= LIMITS[name][contracted], argument


@pytest.mark.sampled(2)
@pytest.mark.skipif(not EXTENDED, reason="NumPy has no float wider than float64 on this machine")
@pytest.mark.parametrize("contracted", [False, True], ids=["plain", "contracted"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64(name: str, contracted: bool) -> None:
    error, argument = greatest_error(name, dtypes.float64, arguments(name, dtypes.float64, 15_000), contracted)
    assert error <= LIMITS[name][contracted], argument


@pytest.mark.skipif("SWEEP" not in os.environ, reason="takes an hour; SWEEP=1 runs it")
@pytest.mark.parametrize("contracted", [False, True], ids=["plain", "contracted"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_float32(name: str, contracted: bool) -> None:
    for start in range(0, 1 << 32, 1 << 22):
        numbers = np.arange(start, start + (1 << 22), dtype=np.uint32).view(np.float32)
        error, argument = greatest_error(name, dtypes.float32, numbers, contracted)
        assert error <= LIMITS[name][contracted], argument


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("exp2", math.inf, math.inf),
        ("exp2", -math.inf, 0.0),
        ("exp2", math.nan, math.nan),
        ("exp2", -0.0, 1.0),
        ("exp2", 1024.0, math.inf),
        ("exp2", -5.0, 2.0**-5),
        ("exp", 710.0, math.inf),
        ("exp", -1e30, 0.0),
        ("exp", 0.0, 1.0),
        ("exp", math.nan, math.nan),
        ("log2", 0.0, -math.inf),
        ("log2", -0.0, -math.inf),
        ("log2", -1.0, math.nan),
        ("log2", -math.inf, math.nan),
        ("log2", math.inf, math.inf),
        ("log2", math.nan, math.nan),
        ("log2", 1.0, 0.0),
        ("log2", 2.0**-126, -126.0),
        ("log2", 2.0**-140, -140.0),
        ("log", 1.0, 0.0),
        ("log", -1e-40, math.nan),
        ("log", math.inf, math.inf),
        ("sin", 0.0, 0.0),
        ("sin", -0.0, -0.0),
        ("sin", math.inf, math.nan),
        ("sin", -math.inf, math.nan),
        ("sin", math.nan, math.nan),
        ("cos", -0.0, 1.0),
        ("cos", math.inf, math.nan),
        ("cos", math.nan, math.nan),
        ("sin in words", -0.0, -0.0),
        ("sin in words", math.inf, math.nan),
    ],
)
def test_special_values(name: str, argument: float, value: float, dtype: DType) -> None:
    x = parameter(dtype, 1)
    numbers = np.array([argument], dtype.name)
    for compute in (evaluate, evaluate_contracted):
        (found,) = compute(FUNCTIONS[name][0](x), {x: numbers}).tolist()
        assert (
            math.isnan(found)
            if math.isnan(value)
            else (found, math.copysign(1, found)) == (value, math.copysign(1, value))
        )


def test_subnormal_results_are_rounded_once() -> None:
    numbers = np.linspace(-150.5, -125, 200_001).astype(np.float32)
    x = parameter(dtypes.float32, numbers.size)
    found = evaluate(transcendental.exp2(x), {x: numbers})
    expected = np.exp2(numbers.astype(np.float64))
    # Below 2**-130 fewer bits are left than the polynomial is wrong by: nearly every result is the nearest one.
    small = expected < 2.0**-130
    with np.errstate(under="ignore"):
        nearest = expected[small].astype(np.float32)
    assert (found[small] == nearest).mean() > 0.99
    assert (np.abs(found[small].astype(np.float64) - expected[small]) <= 0.6 * 2.0**-149).all()


HARD_SINES = [
    # Doubles and floats that lie uncommonly near a multiple of pi/2; the values were computed with 1,300 bits.
    (dtypes.float64, 6381956970095103.0 * 2.0**797, 1.0),
    (dtypes.float64, 1e22, -0.8522008497671888),
    (dtypes.float64, 1.7976931348623157e308, 0.004961954789184062),
    (dtypes.float64, math.pi, 1.2246467991473532e-16),
    (dtypes.float64, 1523.6724369910496, 1.1268607494065412e-13),
    (dtypes.float32, 16367173.0 * 2.0**72, 1.0),
    (dtypes.float32, 3.4028234663852886e38, -0.5218765),
    (dtypes.float32, math.pi, -8.742278e-08),
]


@pytest.mark.parametrize(("dtype", "argument", "value"), HARD_SINES)
def test_hard_sines(dtype: DType, argument: float, value: float) -> None:
    x = parameter(dtype, 1)
    for has_double, has_slow_paths in ((True, True), (True, False), (False, True), (False, False)):
        found = evaluate(sine.sin(x, has_double, has_slow_paths), {x: np.array([argument], dtype.name)})
        assert abs(float(found[0]) / value - 1) <= 2.0 * 2.0**-dtype.mantissa_bits


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_small_floats_go_through_float32(name: str, dtype: DType) -> None:
    values = bitcast_array(np.arange(1 << 16).astype(np.uint16), dtype)
    build, reference = FUNCTIONS[name]
    x = parameter(dtype, values.size)
    with np.errstate(all="ignore"):
        found = evaluate(build(x), {x: values}).astype(np.float64)
        expected = cast_array(reference(values.astype(np.float64)), dtype).astype(np.float64)
        assert (np.isnan(found) == np.isnan(expected)).all()
        is_near = (found == expected) | np.isnan(found) | (np.abs(found / expected - 1) < 2.0**-dtype.mantissa_bits)
        assert is_near.all()
        assert ((found == expected) | np.isnan(found)).mean() > 0.999


def test_expressions_stay_small() -> None:
    """Arithmetic nodes per function: bitcasts and constants cost nothing, and what few elements need is jumped over. A
    larger number is a slower hot loop."""
    free = (Ops.CONST, Ops.PARAM, Ops.BITCAST)
    counts = {}
    for dtype in (dtypes.float32, dtypes.float64):
        for name, (build, _) in FUNCTIONS.items():
            nodes = toposort(build(parameter(dtype, 4)))
            seldom = {node for found in find_slow_paths(nodes).values() for node in found}
            counts[name, dtype.bits] = sum(node.op not in free and node not in seldom for node in nodes)
    expected = {"exp2": (26, 36), "exp": (29, 39), "log2": (39, 61), "log": (41, 63)}
    expected |= {"sin": (35, 50), "cos": (36, 51), "sin without near angles": (53, 167)}
    expected |= {"sin in words": (130, 167), "cos in words": (131, 168)}
    assert counts == {(name, bits): pair[k] for k, bits in ((0, 32), (1, 64)) for name, pair in expected.items()}

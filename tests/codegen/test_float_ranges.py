"""Ranges of floats, and what the exponential leaves out because of them: values and special numbers stay the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.emulation import transcendental
from tilewright.codegen.emulation.float_range import ROUNDED, UNKNOWN, Range, float_range
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import toposort


def number(dtype: DType = dtypes.float32, size: int = 1) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(0, size))


def limited(x: UOp, low: float, high: float) -> UOp:
    x = (x < low).where(x.const_like(low), x)
    return (x > high).where(x.const_like(high), x)


X = number()
MINUS_SIZE = (X < 0.0).where(X, -X)
CASES: dict[str, tuple[UOp, Range]] = {
    "anything": (X, UNKNOWN),
    "a constant": (X.const_like(2.5), (2.5, 2.5)),
    "NaN": (X.const_like(math.nan), UNKNOWN),
    "a limit below": ((X < -3.0).where(X.const_like(-3.0), X), (-3.0, math.inf)),
    "limits": (limited(X, -3.0, 5.0), (-3.0, 5.0)),
    "a negated one": (-limited(X, -3.0, 5.0), (-5.0, 3.0)),
    "twice": (limited(X, -3.0, 5.0) * 2.0, (-6.0, 10.0)),
    "times a negative number": (limited(X, -3.0, 5.0) * -2.0, (-10.0, 6.0)),
    "a square around zero": (limited(X, -3.0, 5.0) * limited(X, -3.0, 5.0), (0.0, 25.0)),
    "a square above zero": (limited(X, 2.0, 5.0) * limited(X, 2.0, 5.0), (4.0, 25.0)),
    "a sum": (limited(X, -3.0, 5.0) + 1.0, (-2.0 - 2.0 * ROUNDED, 6.0 + 6.0 * ROUNDED)),
    "a difference": (1.0 - limited(X, -3.0, 5.0), (-4.0 - 4.0 * ROUNDED, 4.0 + 4.0 * ROUNDED)),
    "infinity less itself": (MINUS_SIZE - MINUS_SIZE * 2.0, UNKNOWN),
    "the bits of a size": (
        build.bitcast(build.bitcast(X, dtypes.uint32) & 0x7FFFFFFF, dtypes.float32),
        (0.0, math.inf),
    ),
    "any bits": (build.bitcast(build.bitcast(X, dtypes.uint32) & 0xFFFFFFFE, dtypes.float32), UNKNOWN),
    "minus the size": (MINUS_SIZE, (-math.inf, 0.0)),
    "its product with zero": (MINUS_SIZE * 0.0, UNKNOWN),
    "the other side's value": ((X < 1.0).where(X.const_like(7.0), X), (1.0, math.inf)),
    "at most what may be NaN": ((limited(number(size=2), -3.0, 5.0) < X).where(X.const_like(0.0), X), UNKNOWN),
    "less than what is limited": (
        (X < limited(number(size=2), -3.0, 5.0)).where(X, X.const_like(0.0)),
        (-math.inf, 5.0),
    ),
    "a choice by something else": ((number(size=2) < 1.0).where(X, X.const_like(0.0)), UNKNOWN),
}


def loop(number: int, size: int, kind: AxisType = AxisType.REDUCE) -> UOp:
    return UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((number,), kind))


def loaded(position: UOp, *mask: UOp, slot: int = 0) -> UOp:
    memory = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(slot, 1 << 20))
    return UOp(Ops.LOAD, dtypes.float32, (UOp(Ops.INDEX, dtypes.float32, (memory, position, *mask)),))


def maximum(value: UOp, *axes: UOp) -> UOp:
    return UOp(Ops.REDUCE, value.dtype, (value, *axes), Ops.MAX)


ROW, FIRST, SECOND = loop(0, 64, AxisType.LOOP), loop(1, 100), loop(2, 100)
OUTER, INNER = loop(3, 25), loop(4, 4)
WHOLE = maximum(loaded(ROW * 100 + FIRST), FIRST)
IN_TILES = maximum(loaded(ROW * 100 + OUTER * 4 + INNER), OUTER, INNER)
BELOW: dict[str, tuple[UOp, UOp]] = {
    "a value of the row": (loaded(ROW * 100 + SECOND), WHOLE),
    "of tiles": (loaded(ROW * 100 + SECOND), IN_TILES),
    "in tiles": (loaded(ROW * 100 + OUTER * 4 + INNER), WHOLE),
    "of products": (loaded(ROW * 100 + SECOND) * 0.125, maximum(loaded(ROW * 100 + FIRST) * 0.125, FIRST)),
    "the row's last value": (loaded(ROW * 100 + 99), WHOLE),
}
ANYWHERE: dict[str, tuple[UOp, UOp]] = {
    "the next row": (loaded(ROW * 100 + SECOND + 100), WHOLE),
    "one value too far": (loaded(ROW * 100 + SECOND + 1), WHOLE),
    "one value too early": (loaded(ROW * 100 + SECOND - 1), WHOLE),
    "other memory": (loaded(ROW * 100 + SECOND, slot=1), WHOLE),
    "a masked value": (loaded(ROW * 100 + SECOND, SECOND < 7), WHOLE),
    "every other value": (loaded(ROW * 100 + SECOND), maximum(loaded(ROW * 100 + FIRST * 2), FIRST)),
    "tiles with gaps": (loaded(ROW * 200 + SECOND), maximum(loaded(ROW * 200 + OUTER * 8 + INNER), OUTER, INNER)),
    "a loop twice": (loaded(ROW * 200 + SECOND), maximum(loaded(ROW * 200 + FIRST + FIRST // 2), FIRST)),
    "another product": (loaded(ROW * 100 + SECOND) * 0.25, maximum(loaded(ROW * 100 + FIRST) * 0.125, FIRST)),
    "a factor of the maximum's own loop": (
        loaded(ROW * 100 + SECOND) * loaded(FIRST, slot=1),
        maximum(loaded(ROW * 100 + FIRST) * loaded(FIRST, slot=1), FIRST),
    ),
    "a sum of other terms": (
        UOp(Ops.REDUCE, dtypes.float32, (loaded(OUTER * 100 + (SECOND + OUTER) % 100), OUTER), Ops.ADD),
        maximum(UOp(Ops.REDUCE, dtypes.float32, (loaded(OUTER * 100 + FIRST), OUTER), Ops.ADD), FIRST),
    ),
    "a sum": (loaded(ROW * 100 + SECOND), UOp(Ops.REDUCE, dtypes.float32, (loaded(ROW * 100 + FIRST), FIRST), Ops.ADD)),
}


@pytest.mark.parametrize("name", BELOW)
def test_a_value_is_at_most_the_maximum_of_its_row(name: str) -> None:
    value, largest = BELOW[name]
    assert float_range(value - largest) == (-math.inf, 0.0)


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_value_is_not_compared_with_the_maximum_of_others(name: str) -> None:
    value, largest = ANYWHERE[name]
    assert float_range(value - largest) == UNKNOWN


@pytest.mark.parametrize("name", CASES)
def test_ranges(name: str) -> None:
    node, expected = CASES[name]
    assert float_range(node) == expected


def test_a_long_chain_is_not_followed_to_its_end() -> None:
    node = limited(X, 1.0, 2.0)
    for _ in range(40):
        node = (node < 1e9).where(node, node * 1.5)
    assert float_range(node)[1] == math.inf


FUNCTIONS: dict[str, tuple[Callable[[UOp], UOp], Callable[..., np.ndarray]]] = {
    "exp": (transcendental.exp, np.exp),
    "exp2": (transcendental.exp2, np.exp2),
}


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_exponentials_of_a_range(name: str, dtype: DType) -> None:
    """NaNs of every payload stay NaN; the limits may lie close to the ends of the type."""
    build, reference = FUNCTIONS[name]
    unit = 1.0 if name == "exp2" else math.log(2)
    bias = 127 if dtype is dtypes.float32 else 1023
    for low, high in ((-40.0, 0.0), (-1.0, 30.0), (math.ceil((2.5 - bias) * unit), math.floor((bias - 1.5) * unit))):
        patterns = np.random.default_rng(0).integers(0, 1 << 63, 20_000, dtype=np.uint64).view(dtype.name)
        quiet = np.array([math.nan], dtype.name).view(f"u{dtype.itemsize}") + np.arange(
            2000, dtype=f"u{dtype.itemsize}"
        )
        numbers = np.concatenate([np.linspace(1.1 * low - 1, 1.1 * high + 1, 20_001).astype(dtype.name), patterns])
        numbers = np.concatenate([numbers, quiet.view(dtype.name)])
        x = number(dtype, numbers.size)
        with np.errstate(all="ignore"):
            expected = reference(np.clip(numbers.astype(np.longdouble), low, high)).astype(dtype.name)
        found = evaluate(build(limited(x, low, high)), {x: numbers})
        np.testing.assert_allclose(found, expected, rtol=2.5 * 2.0**-dtype.mantissa_bits)


def test_a_known_range_takes_fewer_steps() -> None:
    def steps(x: UOp) -> int:
        free = (Ops.CONST, Ops.PARAM, Ops.BITCAST)
        return sum(node.op not in free for node in set(toposort(transcendental.exp(x))) - set(toposort(x)))

    # In between are a limit each, and the second factor.
    assert [steps(X), steps(MINUS_SIZE), steps(limited(X, -9.0, 9.0))] == [29, 27, 21]

"""Simplification: each rule where it must fire and where it must not, random expressions, proofs, and reductions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import count_calls
from tilewright.base.dtype import DType, Scalar, cast_scalar, dtypes
from tilewright.graph.affine import order_key
from tilewright.graph.interpreter.scalar import ScalarMath
from tilewright.graph.ops import Axis, AxisType, CheckArg, Ops, ParamArg
from tilewright.graph.pattern import Rule
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify import (
    KERNEL_RULES,
    SCALAR_RULES,
    fold_reductions,
    simplify,
)
from tilewright.graph.spec import Kind
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import toposort

# ---------------------------------------------------------------- a tiny evaluator, from the ops' own meaning

Point = dict[UOp, Scalar]
Memory = dict[UOp, list[Scalar]]


def evaluate(root: UOp, point: Point, memory: Memory | None = None) -> Scalar:
    """The value of a node. A REDUCE runs its ranges; a LOAD reads `memory` and must stay inside of it."""
    values: Point = {}
    for node in toposort(root, stop=lambda each: each.op in (Ops.REDUCE, Ops.INDEX, Ops.RANGE)):
        if node in point:
            values[node] = point[node]
        elif node.op is Ops.CONST:
            values[node] = node.arg
        elif node.op is Ops.CAST:
            values[node] = cast_scalar(values[node.src[0]], node.dtype)
        elif node.op is Ops.REDUCE:
            values[node] = _evaluate_reduce(node, point, memory)
        elif node.op is Ops.LOAD:
            values[node] = _evaluate_load(node, point, values, memory or {})
        elif node.op is not Ops.INDEX:
            assert node.op.value is not None, node
            values[node] = cast_scalar(node.op.value(ScalarMath, *[values[src] for src in node.src]), node.dtype)
    return values[root]


def _evaluate_load(node: UOp, point: Point, values: Point, memory: Memory) -> Scalar:
    place = node.src[0]
    if len(place.src) == 3 and not evaluate(place.src[2], point, memory):
        return values[node.src[1]] if len(node.src) > 1 else cast_scalar(0, node.dtype)
    index = evaluate(place.src[1], point, memory)
    cells = memory[place.src[0]]
    assert 0 <= index < len(cells), f"load of element {index} of {len(cells)}"
    return cells[int(index)]


def _evaluate_reduce(node: UOp, point: Point, memory: Memory | None) -> Scalar:
    start = {Ops.ADD: 0, Ops.MUL: 1, Ops.MAX: node.dtype.min, Ops.MIN: node.dtype.max}[node.arg]
    total = cast_scalar(start, node.dtype)
    points: list[Point] = [dict(point)]
    for axis in node.src[1:]:
        size = int(evaluate(axis.src[0], point, memory))
        points = [{**each, axis: step} for each in points for step in range(size)]
    for each in points:
        value = evaluate(node.src[0], each, memory)
        total = cast_scalar(node.arg.value(ScalarMath, total, value), node.dtype)
    return total


def same(left: Scalar, right: Scalar) -> bool:
    """Equal to the bit; one NaN is as good as another."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        both_nan = left != left and right != right
        return both_nan or (left == right and math.copysign(1.0, left) == math.copysign(1.0, right))
    return left == right


# ---------------------------------------------------------------- nodes to write cases with


def variable(name: str, low: int = 0, high: int = 9, dtype: DType = dtypes.index) -> UOp:
    return UOp(Ops.VARIABLE, dtype, (), (name, low, high))


def full(name: str, dtype: DType) -> UOp:
    """A variable that may be any value of its dtype."""
    return variable(name, int(dtype.min), int(dtype.max), dtype)


def axis(number: int, size: int | UOp, kind: AxisType = AxisType.LOOP) -> UOp:
    length = size if isinstance(size, UOp) else index_const(size)
    return UOp(Ops.RANGE, dtypes.index, (length,), Axis((number,), kind))


def floating(name: str, dtype: DType = dtypes.float32) -> UOp:
    return UOp(Ops.VARIABLE, dtype, (), (name, 0, 0))


def condition(name: str) -> UOp:
    return variable(name, 0, 1, dtypes.bool)


def index(buffer: UOp, *src: UOp) -> UOp:
    return UOp(Ops.INDEX, buffer.dtype, (buffer, *src))


def load(buffer: UOp, *src: UOp) -> UOp:
    return UOp(Ops.LOAD, buffer.dtype, (index(buffer, *src),))


def reduce(value: UOp, *ranges: UOp, by: Any = Ops.ADD) -> UOp:
    return UOp(Ops.REDUCE, value.dtype, (value, *ranges), by)


def one(dtype: DType) -> UOp:
    return const(dtype, 1)


X, Y, Z = variable("x", -100, 100), variable("y", 0, 3), variable("z", -7, 50)
N = variable("n", 1, 64)
WIDE = variable("wide", -(1 << 20), 1 << 20)
A, B, C = condition("a"), condition("b"), condition("c")
F, G, H = floating("f"), floating("g"), floating("h")
I32, J32 = full("i", dtypes.int32), full("j", dtypes.int32)
I8, U8, V8 = full("i8", dtypes.int8), full("u8", dtypes.uint8), full("v8", dtypes.uint8)
SMALL = variable("small", 0, 9, dtypes.int32)
R, S = axis(0, 8), axis(1, 4)
RN = axis(2, N)
K, L = axis(10, 20, AxisType.REDUCE), axis(11, 5, AxisType.REDUCE)
K1 = axis(12, 1, AxisType.REDUCE)


def check(value: UOp, size: int, valid: UOp) -> UOp:
    return UOp(Ops.CHECK, value.dtype, (value, valid), CheckArg(size))


W = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, 100))
P = UOp(Ops.PARAM, dtypes.int32, (), ParamArg(1, 8))
Q8 = UOp(Ops.PARAM, dtypes.uint8, (), ParamArg(2, 8))
T = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(3, 24))
MEMORY: Memory = {
    W: [math.sin(step) * 8 for step in range(100)],
    P: [3, -1, 19, 20, 0, 7, 300, -(2**31)],
    Q8: [0, 19, 20, 255, 4, 4, 7, 1],
}
TRUE, FALSE = const(dtypes.bool, True), const(dtypes.bool, False)


def zero(dtype: DType) -> UOp:
    return const(dtype, 0)


def ordered(op: Any, *operands: UOp) -> UOp:
    return UOp(op, operands[0].dtype, tuple(sorted(operands, key=order_key)))


def disordered(op: Any, *operands: UOp) -> UOp:
    return UOp(op, operands[0].dtype, tuple(sorted(operands, key=order_key, reverse=True)))


# rule -> (where it must fire, where it must not)
CASES: dict[str, tuple[UOp, UOp]] = {
    "fold-unary": (-index_const(3), -X),
    "fold-binary": (index_const(7) // index_const(-2), X // index_const(-2)),
    "fold-cast": (const(dtypes.float32, 3.7).cast(dtypes.int8), F.cast(dtypes.int8)),
    "one-value": (Y // 4, Y // 3),
    "constant-on-the-right": (index_const(2) + X, index_const(2) - X),
    "fold-into-select": (A.where(index_const(1), 2) + 3, A.where(X, 2) + 3),
    "and-false": (A & False, A & B),
    "and-true": (A & True, I32 & 1),
    "or-true": (A | True, A | B),
    "or-false": (A | False, I32 | 0),
    "xor-false": (A ^ False, A ^ B),
    "and-itself": (A & A, A & B),
    "xor-itself": (I32 ^ I32, I32 ^ J32),
    "not-not": (A.logical_not().logical_not(), (X < 3).logical_not()),
    "not-of-parts": ((A.logical_not() & X.eq(3)).logical_not(), ((X < 3) & A).logical_not()),
    "and-of-parts": ((X < 3) & (X < 7), ordered(Ops.AND, X < 3, Z < 7)),
    "or-of-parts": ((X < 3) | (X < 7), I32 | J32),
    "bool-product": (A * B, I32 * J32),
    "bool-difference": (A - B, I32 - J32),
    "bool-negated": (-A, -I32),
    "bool-sum": (A + B, I32 + J32),
    "and-zero": (I32 & 0, I32 & 1),
    "or-zero": (I32 ^ 0, I32 & 0),
    "and-all-ones": (U8 & 255, I32 & 255),
    "or-all-ones": (I32 | -1, U8 | 127),
    "and-keeps-all": (SMALL & 15, SMALL & 7),
    "mask-index": (X & 7, X & 6),
    "shift-index-down": (X >> 2, I32 >> 2),
    "join-masks": ((I32 & 12) & 10, (I32 & 12) | 10),
    "order-operands": (disordered(Ops.MAX, X, Z), ordered(Ops.MAX, X, Z)),
    "order-bools": (disordered(Ops.XOR, A, B), ordered(Ops.XOR, A, B)),
    "subtract-itself": (I32 - I32, F - F),
    "add-zero": (I32 + 0, F + 0.0),
    "subtract-zero": (I32 - 0, F - 0.0),
    "cancel-difference": ((U8 + 5) - (U8 + 3), (U8 + 5) - (V8 + 3)),
    "order-sum": (X - Y, ordered(Ops.ADD, X, Y)),
    "add-negative-zero": (F + -0.0, F + 0.0),
    "subtract-positive-zero": (F - 0.0, F - -0.0),
    "negate-twice": ((-F).alu(Ops.NEG), -F),
    "add-negated": (F + -G, F + G),
    "subtract-negated": (F - -G, F - G),
    "multiply-by-zero": (I32 * 0, F * 0.0),
    "multiply-by-one": (I32 * 1, F * 1.0),
    "scale-sum": ((X + Y) * 3, (I32 + J32) * 3),
    "order-product": ((I32 * 3) * J32, F * G),
    "shift-index": (X << 3, I32 << 3),
    "shift-by-zero": (I32 << 0, I32 << 1),
    "multiply-by-one-float": (F * 1.0, F * -1.0),
    "divide-by-one-float": (F / 1.0, F / -1.0),
    "divide-by-power-of-two": (F / 8.0, F / 10.0),
    "multiply-cast-bool": (A.cast(dtypes.float32) * 3.0, A.cast(dtypes.float32) * F),
    "multiply-negated": (-F * -G, -F * G),
    "divide-by-zero": (X // 0, X // 1),
    "remainder-by-zero": (X % 0, X % 1),
    "divide-by-one": (X // 1, X // -1),
    "remainder-by-one": (X % 1, X % 2),
    "remainder-by-itself": (X % X, X % Y),
    "divide-by-itself": (N // N, X // X),
    "divide-sum": ((X * 4 + Y) // 4, X // 4),
    "remainder-of-sum": ((X * 4 + Y) % 4, X % 4),
    "divide-by-negative": (X // -3, I32 // -3),
    "remainder-by-negative": (X % -3, I32 % -3),
    "divide-range-by-its-size": (RN // N, R // N),
    "remainder-of-range-by-its-size": (RN % N, R % N),
    "divide-by-variable": ((X * N + Y) // N, (X * Z + Y) // Z),
    "remainder-by-variable": ((X * N + Y) % N, (I32 * J32) % J32),
    "cast-to-itself": (UOp(Ops.CAST, dtypes.int8, (I8,)), I8.cast(dtypes.int32)),
    "cast-twice": (I8.cast(dtypes.int32).cast(dtypes.int8), I32.cast(dtypes.float32).cast(dtypes.int32)),
    "cast-integer-to-bool": (I32.cast(dtypes.bool), F.cast(dtypes.bool)),
    "cast-of-constants": (A.where(index_const(300), 2).cast(dtypes.uint8), A.where(X, 2).cast(dtypes.uint8)),
    "index-of-whole-op": ((SMALL * 4 + 1).cast(dtypes.index), (I32 + 1).cast(dtypes.index)),
    "index-of-select": (A.where(I32, SMALL).cast(dtypes.index), A.where(I32, SMALL).cast(dtypes.int64)),
    "compare-casts": (
        R.cast(dtypes.int32) < S.cast(dtypes.int32),
        I32.cast(dtypes.float32) < J32.cast(dtypes.float32),
    ),
    "compare-cast-with-constant": (R.cast(dtypes.float32) < 2.5, I32.cast(dtypes.int8) < 5),
    "compare-constant-with-cast": (R.cast(dtypes.float32) > 2.5, I32.cast(dtypes.int8) > 5),
    "bitcast-to-itself": (UOp(Ops.BITCAST, dtypes.int32, (I32,)), I32.bitcast(dtypes.uint32)),
    "bitcast-twice": (I32.bitcast(dtypes.uint32).bitcast(dtypes.int32), I32.bitcast(dtypes.uint32)),
    "less-than-itself": (F < F, F < G),
    "equal-to-itself": (I32.eq(I32), F.eq(F)),
    "unequal-to-itself": (I32.ne(I32), F.ne(F)),
    "range-below-its-size": (RN < N, R < N),
    "quotient-below": (X // 4 < 3, X // -4 < 3),
    "compare-less": (X + 3 < 10, I32 + 3 < 10),
    "compare-equal": ((X * 2).eq(Z * 2 + 1), (I32 * 2 + 1).eq(J32 * 2)),
    "compare-bool": (A.eq(False), A.eq(B)),
    "bool-unequal": (A.ne(B), I32.ne(J32)),
    "bool-equal": (A.eq(B), I32.eq(J32)),
    "bool-less": (A < B, X < Z),
    "select-true": (TRUE.where(X, Y), A.where(X, Y)),
    "select-false": (FALSE.where(X, Y), A.where(X, Y)),
    "select-decided": ((Y < 4).where(X, Z), (Y < 3).where(X, Z)),
    "select-never": ((Y < 0).where(X, Z), (Y < 1).where(X, Z)),
    "select-same": (A.where(F, F), A.where(F, G)),
    "select-of-not": (A.logical_not().where(X, Y), (A ^ B).where(X, Y)),
    "select-of-unequal": (X.ne(Z).where(F, G), X.eq(Z).where(F, G)),
    "select-condition": (A.where(TRUE, False), A.where(index_const(1), 0)),
    "select-opposite": (A.where(FALSE, True), A.where(index_const(0), 1)),
    "select-bool-and": (A.where(B, False), A.where(X, 0)),
    "select-bool-or": (A.where(TRUE, B), A.where(index_const(1), X)),
    "select-bool-and-not": (A.where(FALSE, B), A.where(index_const(0), X)),
    "select-bool-or-not": (A.where(B, True), A.where(X, 1)),
    "select-inside-yes": (A.where(A.where(F, G), H), A.where(B.where(F, G), H)),
    "select-inside-no": (A.where(F, A.where(G, H)), A.where(F, B.where(G, H))),
    "select-join-and": (A.where(B.where(F, G), G), A.where(B.where(F, G), F)),
    "select-join-or": (A.where(F, B.where(F, G)), A.where(G, B.where(F, G))),
    "select-masked-load": (A.where(load(W, R, A), 0.0), A.where(load(W, R, A), 1.0)),
    "select-masked-load-not": (A.where(zero(dtypes.float32), load(W, R, A.logical_not())), A.where(F, load(W, R, A))),
    "extreme-of-itself": (F.maximum(F), F.maximum(G)),
    "extreme-by-bounds": (Y.maximum(-1), Y.maximum(1)),
    "join-extremes": (X.maximum(1).maximum(5), X.maximum(1).minimum(5)),
    "check-that-holds": (check(Y, 4, A), check(Y, 3, A)),
    "index-always-valid": (index(W, R, TRUE), index(W, R, A)),
    "load-never-valid": (load(W, R, FALSE), load(W, R, A)),
    "reduce-nothing": (reduce(X), reduce(K, K)),
    "reduce-single-range": (reduce(K1 + X, K1), reduce(K + X, K)),
    "reduce-unused-ranges": (reduce(F, K), reduce(F, K, by=Ops.MUL)),
    "reduce-one-hot": (reduce(K.eq(X).where(load(W, K), 0.0), K), reduce(K.eq(X).cast(dtypes.float32) * load(W, K), K)),
    "reduce-count": (reduce((K < X).cast(dtypes.int32), K), reduce((K < X).where(load(W, K), 0.0), K)),
    "reduce-two-values": (
        reduce(K.eq(X).where(const(dtypes.float32, 5.0), 3.0), K),
        reduce(K.eq(X).where(F, load(W, K)), K),
    ),
    "reduce-parts": (
        reduce((L < X).cast(dtypes.int32) + load(P, L), L),
        reduce(load(P, L) + load(P, L + 2), L),
    ),
}

RULES: dict[str, Rule] = {rule.name: rule for rule in KERNEL_RULES}


def test_every_rule_has_its_cases() -> None:
    assert sorted(CASES) == sorted(RULES)
    assert len(RULES) == len(KERNEL_RULES), "two rules have one name"


@pytest.mark.parametrize("name", CASES)
def test_rule_fires(name: str) -> None:
    node, _ = CASES[name]
    found = RuleSet("alone", [RULES[name]]).match(node)
    assert found is not None, f"{name} does not fire"
    result = found[0]
    assert result.dtype is node.dtype
    assert result.shape == node.shape
    if any(
        each.op.kind in (Kind.MOVEMENT, Kind.TENSOR, Kind.MEMORY) or each.op is Ops.BITCAST for each in (node, result)
    ):
        return
    check_equal(node, result, random.Random(name))


@pytest.mark.parametrize("name", CASES)
def test_rule_does_not_fire(name: str) -> None:
    _, node = CASES[name]
    assert RuleSet("alone", [RULES[name]]).match(node) is None


# ---------------------------------------------------------------- points


def value_for(node: UOp, draw: random.Random) -> Scalar:
    """A value that a variable or range may have, often one at an edge."""
    if node.dtype.is_float:
        edges = (0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 3.0, 1e-40, 6e4, 1e38, draw.uniform(-9, 9))
        return cast_scalar(draw.choice(edges), node.dtype)
    low, high = (int(bound) for bound in node.bounds)
    value = draw.choice((low, high, draw.randint(low, high)))
    return bool(value) if node.dtype.is_bool else value


def points(nodes: Sequence[UOp], draw: random.Random, count: int) -> Iterator[Point]:
    """Points that agree with themselves: a range stays below its size."""
    for _ in range(count):
        point = {node: value_for(node, draw) for node in nodes if node.op is Ops.VARIABLE}
        for node in nodes:
            if node.op is Ops.RANGE:
                size = int(evaluate(node.src[0], point))
                point[node] = draw.choice((0, size - 1, draw.randrange(size)))
        yield point


def free_of(*roots: UOp) -> list[UOp]:
    found = [node for node in toposort(*roots) if node.op in (Ops.VARIABLE, Ops.RANGE)]
    return sorted(found, key=order_key)


def check_equal(before: UOp, after: UOp, draw: random.Random, count: int = 20) -> None:
    """Both nodes have one value at every point tried, and their bounds hold it."""
    assert after.dtype is before.dtype
    for point in points(free_of(before, after), draw, count):
        expected, actual = evaluate(before, point, MEMORY), evaluate(after, point, MEMORY)
        assert same(expected, actual), f"{expected} became {actual} at {point}"
        if not before.dtype.is_float:
            assert before.bounds[0] <= expected <= before.bounds[1]
            assert after.bounds[0] <= expected <= after.bounds[1]


# ---------------------------------------------------------------- what expressions become

BECOMES: list[tuple[UOp, UOp]] = [
    ((X * 4 + Y) // 4, X),
    ((X * 4 + Y) % 4, Y),
    ((X // 3) // 5, X // 15),
    ((X % 12) % 4, X % 4),
    ((X // 4) * 4 + X % 4, X),
    ((X // 32) * 32 + ((X // 4) % 8) * 4 + X % 4, X),
    (Z * 3 + (X // 8) * 16 + (X % 8) * 2 - Z * 3, X * 2),
    ((Z + 1000) % 2000, Z + 1000),
    ((R * 64 + S * 16 + Y) // 16, R * 4 + S),
    ((R * 64 + S * 16 + Y) % 64 // 16, S),
    ((X * 6 + Z * 2 + 4) // 8, simplify((X * 3 + Z + 2) // 4)),
    ((X * 4 + Y) // 12, X // 3),
    ((X * 4 + Y) % 12, simplify(X % 3 * 4 + Y)),
    ((R % 8) // 2 % 4, R // 2),
    ((X // 4 + 3) // 2, (X + 12) // 8 if simplify((X + 12) // 8) is (X + 12) // 8 else simplify((X + 12) // 8)),
    ((X % 8 + Y) % 8, simplify((X + Y) % 8)),
    (X - X, index_const(0)),
    (X + 3 < 10, X < 7),
    (X * 4 + Y < 16, X < 4),
    (X * 3 < Z * 3 + 7, X < Z + 3),
    (X * 2 < 7, X < 4),
    ((X * 2).eq(Z * 2 + 1), FALSE),
    (R < 8, TRUE),
    (R >= 0, TRUE),
    ((R >= 0) & (R < 5), R < 5),
    ((X < 3) & (X < 7) & (X < 5), X < 3),
    ((X < 3) & (X >= 3), FALSE),
    ((X < 4) & (X >= 3), X.eq(3)),
    ((X < 3) | (X >= 3), TRUE),
    ((R < 2) & (R * 2 + S < 20), R < 2),
    (A & B & A, simplify(A & B)),
    ((A | B) & A, A),
    (A & A.logical_not(), FALSE),
    (A.where(A.where(F, G), H), A.where(F, H)),
    ((X < 5).where(X, X), X),
    (R.maximum(0).minimum(7), R),
    (X.maximum(X + 1), X + 1),
    (R.cast(dtypes.int32).cast(dtypes.index) + 1, R + 1),
    (A.cast(dtypes.int32).cast(dtypes.bool), A),
    (A.cast(dtypes.float32).ne(0.0), A),
    (R.cast(dtypes.float32) < 2.5, R < 3),
    ((R.cast(dtypes.int32) * 4 + 1).cast(dtypes.index), R * 4 + 1),
    ((axis(0, 2) + 1) // 2, axis(0, 2)),
    ((axis(0, 2) * 3 + 4) % 5, axis(0, 2) * -2 + 4),
    ((axis(0, 3) + 1) // 2, (axis(0, 3) + 1) // 2),
    (I32 + J32 - I32, J32),
    (U8 * 255 + U8, const(dtypes.uint8, 0)),
    (I8 // 0, const(dtypes.int8, 0)),
    (I8 % 0, const(dtypes.int8, 0)),
    (const(dtypes.int8, 127) + 1, const(dtypes.int8, -128)),
    (const(dtypes.float16, 0.1) * 3.0, const(dtypes.float16, 0.2998046875)),
]


@pytest.mark.parametrize(("before", "after"), BECOMES)
def test_becomes(before: UOp, after: UOp) -> None:
    assert simplify(before) is after
    assert simplify(after) is after


STAYS: list[UOp] = [
    F + 0.0,
    F * 0.0,
    F - F,
    F / F,
    F.eq(F),
    F * 2.0 / 3.0,
    (F + G) + H,
    F / 3.0,
    F - -0.0,
    I32.cast(dtypes.float32).cast(dtypes.int32),
    I32.cast(dtypes.int8).cast(dtypes.int32),
    F.cast(dtypes.float16).cast(dtypes.float32),
    full("short", dtypes.int16).cast(dtypes.float32).cast(dtypes.int8),
    I32 + 1 < 5,
    (I32 + 1) // 2,
    X % 7,
    X // X,
    load(W, R, A),
]


@pytest.mark.parametrize("node", STAYS)
def test_stays(node: UOp) -> None:
    assert simplify(node) is node


def test_equal_sums_become_one_node() -> None:
    parts = [R * 12, S * 3, Y, X * -2, index_const(5)]
    made = set()
    for seed in range(30):
        shuffled = random.Random(seed).sample(parts, len(parts))
        total = shuffled[0]
        for part in shuffled[1:]:
            total = total + part
        made.add(simplify(total))
    assert len(made) == 1


def test_a_deep_sum_is_simplified_without_recursion() -> None:
    node = X
    for _ in range(20_000):
        node = node + 1
    assert simplify(node) is X + 20_000


# Quotient and remainder by a variable that is at least 1, as a merged loop of symbolic size has them.
FLAT = axis(14, N * 8)
JOINED: dict[str, tuple[UOp, UOp]] = {
    "of a range": (FLAT // N * N + FLAT % N, FLAT),
    "of any number": (X // N * N + X % N, X),
    "the remainder first": (X % N + N * (X // N), X),
    "a factor": (X // N * N * 1024 + X % N * 1024, X * 1024),
    "a factor inside": (X // N * (N * 12) + X % N * 12, X * 12),
    "a negative factor": (Z - X // N * N * 3 - X % N * 3, Z - X * 3),
    "a further term": ((FLAT // N * N + FLAT % N) * 16 + R * 2 + 3, FLAT * 16 + R * 2 + 3),
    "a further product": (X // N * N * 4 + Z + X % N * 4 + Z // N * N, X * 4 + Z + Z // N * N),
    "of a sum": ((X + Z) // N * N + (X + Z) % N, X + Z),
    "by an expression": (X // (N * 2 + 1) * (N * 2 + 1) + X % (N * 2 + 1), X),
    "two of them": (X // N * N + X % N + (Z // N * N + Z % N) * 5, X + Z * 5),
}


@pytest.mark.parametrize("name", JOINED)
def test_quotient_and_remainder_by_a_variable_join(name: str) -> None:
    node, wanted = JOINED[name]
    assert simplify(node) is simplify(wanted)
    check_equal(node, wanted, random.Random(name))


FROM_ZERO, ANY_SIGN = variable("from_zero", 0, 64), variable("any_sign", -3, 64)
APART: dict[str, UOp] = {
    "a divisor that may be 0": X // FROM_ZERO * FROM_ZERO + X % FROM_ZERO,
    "a divisor that may be negative": X // ANY_SIGN * ANY_SIGN + X % ANY_SIGN,
    "other factors": X // N * N * 2 + X % N,
    "other dividends": X // N * N + Z % N,
    "other divisors": X // N * N + X % (N + 1),
    "another multiple of the quotient": X // N * (N + 1) + X % N,
    "a difference": X // N * N - X % N,
}


@pytest.mark.parametrize("name", APART)
def test_other_quotients_and_remainders_by_a_variable_stay(name: str) -> None:
    found = simplify(APART[name])
    assert {Ops.IDIV, Ops.MOD} <= {node.op for node in toposort(found)}
    check_equal(APART[name], found, random.Random(name))


# ---------------------------------------------------------------- random expressions

INTEGERS = (dtypes.index, dtypes.index, dtypes.int32, dtypes.uint8)
FLOATS = (dtypes.float32, dtypes.float16)
LEAVES: dict[DType, tuple[UOp, ...]] = {
    dtypes.index: (X, Y, Z, N, R, S, WIDE),
    dtypes.int32: (I32, J32, SMALL),
    dtypes.uint8: (U8, V8, variable("tiny", 0, 3, dtypes.uint8)),
    dtypes.bool: (A, B),
    dtypes.float32: (F, G),
    dtypes.float16: (floating("f16", dtypes.float16), floating("g16", dtypes.float16)),
}
NUMBERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 100, 255, -1, -2, -3)
FLOAT_NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.1, 1e30, math.inf, -math.inf, math.nan)
BINARY: dict[str, tuple[Any, ...]] = {
    "integer": (Ops.ADD, Ops.ADD, Ops.SUB, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR),
    "float": (Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.MIN),
    "bool": (Ops.AND, Ops.OR, Ops.XOR),
}


@st.composite
def expressions(draw: st.DrawFn, dtype: DType, depth: int) -> UOp:
    """A random expression of a dtype, heavy in what index maths is made of."""
    if depth == 0 or draw(st.integers(0, 8)) == 0:
        return draw(st.sampled_from(LEAVES[dtype])) if draw(st.integers(0, 2)) else draw(numbers(dtype))
    kind = "float" if dtype.is_float else "bool" if dtype.is_bool else "integer"
    choice = draw(st.sampled_from(("binary", "binary", "binary", "constant", "constant", "where", "cast", "unary")))
    if dtype.is_bool and choice in ("constant", "binary"):
        operands = draw(st.sampled_from((*INTEGERS, *INTEGERS, dtypes.float32, dtypes.bool)))
        op = draw(st.sampled_from((Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE)))
        if operands.is_bool:
            op = draw(st.sampled_from((Ops.AND, Ops.OR, Ops.XOR)))
        return draw(expressions(operands, depth - 1)).alu(op, draw(expressions(operands, depth - 1)))
    if choice == "binary":
        op = draw(st.sampled_from(BINARY[kind]))
        return draw(expressions(dtype, depth - 1)).alu(op, draw(expressions(dtype, depth - 1)))
    if choice == "constant":
        op = draw(st.sampled_from(BINARY[kind]))
        return draw(expressions(dtype, depth - 1)).alu(op, draw(numbers(dtype)))
    if choice == "where":
        yes, no = draw(expressions(dtype, depth - 1)), draw(expressions(dtype, depth - 1))
        return draw(expressions(dtypes.bool, depth - 1)).where(yes, no)
    if choice == "cast":
        source = draw(st.sampled_from((*INTEGERS, dtypes.bool, dtypes.float32)))
        return draw(expressions(source, depth - 1)).cast(dtype)
    operand = draw(expressions(dtype, depth - 1))
    return operand.logical_not() if dtype.is_bool else -operand


def numbers(dtype: DType) -> st.SearchStrategy[UOp]:
    if dtype.is_bool:
        return st.sampled_from((TRUE, FALSE))
    return st.sampled_from(FLOAT_NUMBERS if dtype.is_float else NUMBERS).map(lambda value: const(dtype, value))


def any_expression(*kinds: DType) -> st.SearchStrategy[UOp]:
    return st.sampled_from(kinds).flatmap(lambda dtype: expressions(dtype, 4))


@settings(max_examples=350, deadline=None)
@given(any_expression(*INTEGERS, dtypes.bool))
def test_random_integers(node: UOp) -> None:
    simplified = simplify(node)
    assert simplify(simplified) is simplified
    check_equal(node, simplified, random.Random(1), count=8)


@settings(max_examples=120, deadline=None)
@given(any_expression(*FLOATS))
def test_random_floats_keep_every_bit(node: UOp) -> None:
    check_equal(node, simplify(node), random.Random(2), count=10)


@settings(max_examples=120, deadline=None)
@given(any_expression(dtypes.index))
def test_bounds_hold_inside_too(node: UOp) -> None:
    for point in points(free_of(node), random.Random(3), 4):
        for part in toposort(node):
            if not part.dtype.is_float:
                assert part.bounds[0] <= evaluate(part, point) <= part.bounds[1]


# ---------------------------------------------------------------- proofs over all integers

# Of the solver, which counts them: a limit in seconds would depend on the machine. The longest proof takes 20,000.
MAX_STEPS = 5_000_000


class Proof:
    """Translates integer and bool nodes to z3. A variable with bounds is held to them; one without is any integer."""

    def __init__(self) -> None:
        self.limits: list[Any] = []
        self.known: dict[UOp, Any] = {}

    def term(self, node: UOp) -> Any:
        if node not in self.known:
            self.known[node] = self._make(node)
        return self.known[node]

    def _make(self, node: UOp) -> Any:
        if node.op is Ops.CONST:
            return z3.BoolVal(node.arg) if node.dtype.is_bool else z3.IntVal(node.arg)
        if node.op is Ops.VARIABLE and node.dtype.is_bool:
            return z3.Bool(node.arg[0])
        if node.op in (Ops.VARIABLE, Ops.RANGE):
            made = z3.Int(str(node.arg))
            if abs(int(node.bounds[0])) < 1 << 100:
                self.limits += [made >= int(node.bounds[0]), made <= int(node.bounds[1])]
            return made
        src = [self.term(each) for each in node.src]
        table: dict[Any, Callable[..., Any]] = {
            Ops.ADD: lambda a, b: a + b,
            Ops.SUB: lambda a, b: a - b,
            Ops.MUL: lambda a, b: a * b,
            Ops.NEG: lambda a: -a,
            Ops.IDIV: floor_divide,
            Ops.MOD: lambda a, b: z3.If(b == 0, 0, a - b * floor_divide(a, b)),
            Ops.MAX: lambda a, b: z3.If(a > b, a, b),
            Ops.MIN: lambda a, b: z3.If(a < b, a, b),
            Ops.CMPLT: lambda a, b: a < b,
            Ops.CMPEQ: lambda a, b: a == b,
            Ops.CMPNE: lambda a, b: a != b,
            Ops.AND: z3.And,
            Ops.OR: z3.Or,
            Ops.XOR: z3.Xor,
            Ops.WHERE: z3.If,
        }
        return table[node.op](*src)

    def holds(self, before: UOp, after: UOp) -> bool:
        left, right = self.term(before), self.term(after)
        solver = z3.Solver()
        solver.set("rlimit", MAX_STEPS)
        solver.add(*self.limits, left != right)
        return bool(solver.check() == z3.unsat)


def floor_divide(left: Any, right: Any) -> Any:
    """z3 rounds so that the remainder is not negative, which is down for a positive divisor alone."""
    return z3.If(right == 0, 0, z3.If(right > 0, left / right, (-left) / (-right)))


ANY = variable("any", -(1 << 127), 1 << 127)
ALSO = variable("also", -(1 << 127), 1 << 127)
DIVIDENDS = [
    ANY,
    ANY + 5,
    ANY - 1,
    -ANY,
    7 - ANY * 2,
    ANY * 4 + Y,
    ANY * 6 + ALSO * 4 + 3,
    ANY * 12 + R * 3 + 1,
    ANY * 5 + Y,
    ANY // 3 + 2,
    ANY % 12,
    ANY % 12 * 2 + ALSO,
    ANY * 8 + Y * 2 + 9,
    R * 64 + S * 16 + Y,
    Y - R * 4,
]
DIVISORS = (2, 3, 4, 6, 12, 16, -4)
PROVED: list[tuple[str, UOp]] = [
    *[(f"{number} // {divisor}", each // divisor) for number, each in enumerate(DIVIDENDS) for divisor in DIVISORS],
    *[(f"{number} % {divisor}", each % divisor) for number, each in enumerate(DIVIDENDS) for divisor in DIVISORS],
    *[(f"{number} < {limit}", each < limit) for number, each in enumerate(DIVIDENDS) for limit in (-3, 0, 7, 16)],
    *[(f"{number} == {limit}", each.eq(limit)) for number, each in enumerate(DIVIDENDS) for limit in (0, 7)],
    ("rejoined", (ANY // 12) * 12 + ((ANY // 3) % 4) * 3 + ANY % 3),
    ("scaled", (ANY // 4) * 8 + (ANY % 4) * 2 + ALSO),
    ("both sides", ANY * 6 + ALSO * 2 < ALSO * 8 + 13),
    ("both sides, shifted", ANY * 4 + Y < ALSO * 4 + 10),
    ("equal, scaled", (ANY * 6 + 4).eq(ALSO * 4)),
    ("extremes", ANY.maximum(ANY + 1).minimum(ANY + 3)),
    ("interval", (ANY < 9) & (ANY >= 3) & (ANY < 12) & ANY.ne(40)),
    ("union", (ANY < 3) | (ANY < 9) | (ANY >= 12)),
    ("implied", (R < 2) & (R * 2 + S < 9) & (ALSO < 4)),
    ("contradiction", (ANY < 3) & (ANY >= 5)),
    ("nested choice", A.where(B.where(ANY, ALSO), ALSO)),
    ("negated", ((ANY < 3) & A).logical_not() | A.logical_not()),
]


@pytest.mark.parametrize(("name", "node"), PROVED, ids=lambda part: part if isinstance(part, str) else "")
def test_proved(name: str, node: UOp) -> None:
    simplified = simplify(node)
    assert Proof().holds(node, simplified), name


def test_a_wrong_claim_is_not_proved() -> None:
    assert not Proof().holds((ANY // 4) * 4, ANY)
    assert not Proof().holds((ANY * 4 + ALSO) // 4, ANY)
    assert not Proof().holds(ANY * 3 < ALSO * 3 + 7, ANY < ALSO + 2)


def test_division_and_remainder_simplify_as_far_as_hoped() -> None:
    """How many of the divisions above are gone: a rule that stops firing shows here."""
    left = sum(any(part.op in (Ops.IDIV, Ops.MOD) for part in toposort(simplify(node))) for _, node in PROVED)
    assert left <= 203


# ---------------------------------------------------------------- reductions

E = load(P, R)
WIDE_ROW = axis(13, 5, AxisType.REDUCE)
MATRIX = load(W, K * 5 + WIDE_ROW)
REDUCTIONS: dict[str, tuple[UOp, int]] = {
    # name -> (the graph, how many loops are left)
    "one-hot with an index of another dtype": (reduce(K.cast(dtypes.int32).eq(E).where(MATRIX, 0.0), K), 0),
    "one-hot, unsigned": (reduce(K.cast(dtypes.uint8).eq(load(Q8, R)).where(MATRIX, 0.0), K), 0),
    "one-hot by unequal": (reduce(K.cast(dtypes.int32).ne(E).where(zero(dtypes.float32), MATRIX), K), 0),
    "one-hot, moved": (reduce((K + 3).eq(R * 4).where(MATRIX, 0.0), K), 0),
    "one-hot, scaled": (reduce((K * 2).eq(R + S).where(MATRIX, 0.0), K), 0),
    "one-hot, negative": (reduce((R * 3 - K).eq(2).where(MATRIX, 0.0), K), 0),
    "one-hot and more": (reduce((K.eq(R * 3) & (K < 9) & (WIDE_ROW < 3)).where(MATRIX, 0.0), K), 0),
    "one-hot of one of two ranges": (reduce(K.eq(R).where(MATRIX, 0.0), K, WIDE_ROW), 1),
    "one-hot times an integer": (
        reduce(K.cast(dtypes.int32).eq(E).cast(dtypes.int32) * (K * 3).cast(dtypes.int32), K),
        0,
    ),
    # 0 * inf is NaN, so a float product is a loop.
    "one-hot times a float": (reduce(K.cast(dtypes.int32).eq(E).cast(dtypes.float32) * MATRIX, K), 1),
    "one-hot, not solvable": (reduce((K * K).eq(R).where(MATRIX, 0.0), K), 1),
    "one-hot of a maximum": (reduce(K.eq(R).where(MATRIX, 0.0), K, by=Ops.MAX), 1),
    "count below": (reduce((K < R).cast(dtypes.int32), K), 0),
    "count from": (reduce((K >= R * 5).where(one(dtypes.int32), 0), K), 0),
    "count, scaled": (reduce((K * 3 + 2 < R * 5).where(const(dtypes.int8, 50), 0), K), 0),
    "count, float": (reduce((K <= R).where(const(dtypes.float32, 0.5), 0.0), K), 0),
    "count between": (reduce(((K >= S) & (K < R * 2)).where(one(dtypes.int32), 0), K), 0),
    "count with another dtype": (reduce((K.cast(dtypes.int32) < E).where(one(dtypes.int32), 0), K), 0),
    "count of a loaded value": (reduce((K < R).where(load(W, R), 0.0), K), 0),
    "count under a condition": (reduce(((K < R) & (S < 2)).cast(dtypes.int32), K), 0),
    "count inside an expression": (reduce((K < R).cast(dtypes.int32), K) * 3 + 7, 0),
    "count, not linear": (reduce((K * K < R).cast(dtypes.int32), K), 1),
    "two values": (reduce(K.cast(dtypes.int32).eq(E).where(load(W, R), load(W, R + 1)) * 2.0 - load(W, S), K), 0),
    "two values, scaled": (reduce((K * 2).eq(R * 3).where(load(W, R), load(W, R + 1)), K), 0),
    "two values, integers": (reduce(K.eq(R * 3).where(E, E * 2 + 7), K), 0),
    "two values of a row times its one-hot": (
        reduce(K.cast(dtypes.int32).eq(E).cast(dtypes.float32) * load(W, R), K),
        0,
    ),
    "three values": (reduce(K.eq(R).where(load(W, R), K.eq(S).where(load(W, S), load(W, R + 1))), K), 1),
    "two values beside a load": (reduce(K.eq(R).where(load(W, R), 2.0) + MATRIX, K), 1),
    "sum of what does not depend": (reduce(load(P, R), K), 0),
    "sum over two unused ranges": (reduce(R.cast(dtypes.int8), K, L), 0),
    "maximum of what does not depend": (reduce(load(W, R), K, by=Ops.MAX), 0),
    "product of what does not depend": (reduce(SMALL, L, by=Ops.MUL), 1),
    "a range of one": (reduce(load(W, K1 + R), K1), 0),
    "two parts, one folds": (reduce((K < R).cast(dtypes.int32) + (K * K).cast(dtypes.int32), K), 1),
    "three parts, two fold": (
        reduce((K < R).cast(dtypes.int32) * 3 + (K * K).cast(dtypes.int32) + (K >= S).cast(dtypes.int32), K),
        1,
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    node, loops = REDUCTIONS[name]
    folded = fold_reductions(node)
    assert sum(part.op is Ops.REDUCE for part in toposort(folded)) == loops
    assert fold_reductions(folded) is folded
    for point in points(free_of(node), random.Random(name), 12):
        expected, actual = evaluate(node, point, MEMORY), evaluate(folded, point, MEMORY)
        if node.dtype.is_float:
            assert actual == pytest.approx(expected, rel=1e-6), point
        else:
            assert same(expected, actual), point


def test_a_float_that_is_counted_no_times_is_zero() -> None:
    """inf * 0 is NaN; the loop gives 0."""
    node = reduce((K < Y).where(F, 0.0), K)
    folded = fold_reductions(node)
    assert folded.op is not Ops.REDUCE
    assert same(evaluate(folded, {Y: 0, F: math.inf}), 0.0)
    assert same(evaluate(folded, {Y: 2, F: math.inf}), math.inf)


def test_infinite_values_of_two_stay_what_they_are() -> None:
    node = reduce(K.eq(Y).where(F, 1.0), K)
    folded = fold_reductions(node)
    assert folded.op is not Ops.REDUCE
    for place in range(4):
        assert same(evaluate(folded, {Y: place, F: math.inf}), math.inf)
        assert same(evaluate(folded, {Y: place, F: 3.0}), float(K.src[0].arg) + 2)
    outside = fold_reductions(reduce(K.eq(Y * 100 - 1).where(F, 1.0), K))
    assert same(evaluate(outside, {Y: 0, F: math.inf}), float(K.src[0].arg))
    everywhere = fold_reductions(reduce(K.eq(Y).where(zero(dtypes.float32), F), K))
    assert same(evaluate(everywhere, {Y: 0, F: -math.inf}), -math.inf)


def test_a_count_that_the_dtype_cannot_hold_stays_a_loop() -> None:
    long = axis(20, 5000, AxisType.REDUCE)
    half = floating("half", dtypes.float16)
    assert fold_reductions(reduce(half, long)).op is Ops.REDUCE
    assert fold_reductions(reduce(F, long)) is F * 5000.0 + 0.0  # of -0.0 a sum is 0.0


def test_scalar_rules_are_pure_and_named_apart() -> None:
    assert SCALAR_RULES.pure
    assert KERNEL_RULES.pure
    assert SCALAR_RULES.name != KERNEL_RULES.name


# ---------------------------------------------------------------- speed


def convolution_indices(seed: int) -> UOp:
    """Index maths of a padded convolution through a reshape and a permutation: what the scheduler asks for all day."""

    def loop(position: int, size: int) -> UOp:
        return UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((seed, position), AxisType.LOOP))

    batch, out, row, column, channel, down, right = map(loop, range(7), (8, 16, 14, 14, 16, 3, 3))
    y, x = row * 2 + down - 1, column * 2 + right - 1
    flat = ((batch * 16 + channel) * 28 + y) * 28 + x
    valid = (y >= 0) & (y < 28) & (x >= 0) & (x < 28)
    rest = flat // 28
    transposed = ((flat % 28 * 28 + rest % 28) * 16 + rest // 28 % 16) * 8 + rest // 28 // 16
    weight = ((out * 16 + channel) * 3 + down) * 3 + right
    place = batch * 3136 + out * 196 + row * 14 + column
    parts = [transposed, valid.where(flat, 0), weight, weight // 9, weight % 9 // 3]
    parts += [place // step % step for step in (7, 49, 14, 196, 3136)]
    parts.append(((place < 20000) & (place % 14 < 12) & (place // 14 % 14 < 13)).where(place, place + 1))
    return UOp(Ops.SINK, dtypes.void, tuple(parts))


def test_simplifying_costs_a_few_times_what_building_costs() -> None:
    """Eight times as many calls, which are about 8 times as many microseconds."""
    simplify(convolution_indices(0))
    building, graph = count_calls(lambda: convolution_indices(100))
    simplifying, simple = count_calls(lambda: simplify(graph))
    assert simplifying < 12 * building
    again, found = count_calls(lambda: simplify(graph))
    assert found is simple
    assert again < 20, "what was simplified before is found on the node"

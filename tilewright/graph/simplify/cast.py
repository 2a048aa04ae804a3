"""Casts. In: CAST and BITCAST, and comparisons of casts. Out: without a cast where the value is proven to pass through
it unchanged. A cast that may round, wrap or saturate is performed, so int32 -> float32 -> int32 stays."""

from __future__ import annotations

import math

from tilewright.base.dtype import DType, cast_scalar, dtypes
from tilewright.graph.interpreter.scalar import ScalarMath
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, const, op, var, where
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.common import holds, number, opposite, select, truth
from tilewright.graph.uop import UOp

COMPARISONS = (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE)
# Ops that give the same integer in index maths as in a fixed width where they do not wrap.
WHOLE_OPS = (Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN)


def keeps_value(x: UOp, dtype: DType) -> bool:
    """Whether the dtype represents every possible value of x."""
    source = x.dtype
    if source is dtype:
        return True
    if source.is_float:
        wider = dtype.exponent_bits >= source.exponent_bits and dtype.mantissa_bits >= source.mantissa_bits
        return dtype.is_float and wider
    if dtype.is_bool:
        return False
    low, high = int(x.bounds[0]), int(x.bounds[1])
    if dtype.is_float:
        limit = 1 << (dtype.mantissa_bits + 1)
        return -limit <= low and high <= limit
    return holds(dtype, low) and holds(dtype, high)


def cast_twice(node: UOp, inner: UOp, x: UOp) -> UOp | None:
    """x -> inner -> node without the inner cast."""
    middle, target = inner.dtype, node.dtype
    if keeps_value(x, middle):
        # A cast from float to integer saturates and one from integer to integer wraps, so both casts must be of one
        # kind.
        if not x.dtype.is_float and middle.is_float and target.is_int and not keeps_value(x, target):
            return None
        return x.cast(target)
    # Truncating to fewer bits in two steps equals truncating at once.
    whole = not x.dtype.is_float and middle.is_int and target.is_int and target is not dtypes.index
    return x.cast(target) if whole and target.bits <= middle.bits else None


def compare_casts(node: UOp, left: UOp, right: UOp, x: UOp, y: UOp) -> UOp | None:
    """Compares the operands of the casts, where both casts preserve the value."""
    if x.dtype is not y.dtype or not keeps_value(x, left.dtype) or not keeps_value(y, right.dtype):
        return None
    return UOp(node.op, dtypes.bool, (x, y))


def compare_cast_with_constant(node: UOp, left: UOp, right: UOp) -> UOp | None:
    """cast(x) < c, and so on, as a comparison of an integer x."""
    cast, constant = (left, right) if right.op is Ops.CONST else (right, left)
    x = cast.src[0]
    if x.dtype.is_float or not keeps_value(x, cast.dtype):
        return None
    if x.dtype.is_bool:
        return _compare_bool(node, x, constant, cast is left)
    value = constant.arg
    if isinstance(value, float):
        if not math.isfinite(value):
            return truth(_outcome(node, 0.0, value, cast is left))
        whole = math.ceil(value) if cast is left else math.floor(value)
        if node.op is not Ops.CMPLT and whole != value:
            return truth(node.op is Ops.CMPNE)
        value = whole
    low, high = int(x.bounds[0]), int(x.bounds[1])
    if not low <= value <= high:  # among them those that no integer of the dtype, or of an index, represents
        return truth(_outcome(node, low, value, cast is left))
    bound = number(x.dtype, value)
    return UOp(node.op, dtypes.bool, (x, bound) if cast is left else (bound, x))


def _outcome(node: UOp, value: float, constant: float, value_first: bool) -> bool:
    assert node.op.value is not None
    pair = (value, constant) if value_first else (constant, value)
    return bool(node.op.value(ScalarMath, *pair))


def _compare_bool(node: UOp, x: UOp, constant: UOp, value_first: bool) -> UOp:
    """The comparison of a cast bool with a constant: true, false, the bool, or its negation."""
    no = _outcome(node, 0, constant.arg, value_first)
    yes = _outcome(node, 1, constant.arg, value_first)
    if no == yes:
        return truth(yes)
    return x if yes else opposite(x)


def push_into_whole_op(node: UOp, inner: UOp) -> UOp | None:
    """index(a + b) is index(a) + index(b) where the fixed-width sum cannot wrap: so that it becomes part of index
    maths."""
    rule = inner.op.bounds
    assert rule is not None
    low, high = rule(inner)
    if not inner.dtype.is_int or not inner.dtype.min <= low <= high <= inner.dtype.max:
        return None
    # An index of a program is a signed 64-bit integer: a value that only uint64 can represent is not moved.
    if max(high, *(src.bounds[1] for src in inner.src)) > dtypes.int64.max:
        return None
    return UOp(inner.op, node.dtype, tuple([src.cast(node.dtype) for src in inner.src]))


def push_into_select(condition: UOp, x: UOp, y: UOp, node: UOp) -> UOp:
    return select(condition, x.cast(node.dtype), y.cast(node.dtype))


def select_constants(condition: UOp, a: UOp, b: UOp, node: UOp) -> UOp:
    yes, no = cast_scalar(a.arg, node.dtype), cast_scalar(b.arg, node.dtype)
    return select(condition, number(node.dtype, yes), number(node.dtype, no))


a, b, condition = const("a"), const("b"), var("condition")
x, y = var("x"), var("y")
FIXED = "fixed"

CAST_RULES = RuleSet(
    "cast",
    [
        Rule("cast-to-itself", op(Ops.CAST, x, name="node"), x, when=lambda node, x: node.dtype is x.dtype),
        Rule("cast-twice", op(Ops.CAST, op(Ops.CAST, x, name="inner"), name="node"), cast_twice),
        Rule(
            "cast-integer-to-bool",
            op(Ops.CAST, var("x", "integer"), dtype=dtypes.bool),
            lambda x: UOp(Ops.CMPNE, dtypes.bool, (x, number(x.dtype, 0))),
        ),
        Rule("cast-of-constants", op(Ops.CAST, where(condition, a, b), name="node"), select_constants),
        Rule(
            "index-of-whole-op",
            op(Ops.CAST, op(WHOLE_OPS, name="inner", dtype=FIXED), name="node", dtype=dtypes.index),
            push_into_whole_op,
        ),
        Rule(
            "index-of-select",
            op(Ops.CAST, op(Ops.WHERE, condition, x, y, dtype=FIXED), name="node", dtype=dtypes.index),
            push_into_select,
        ),
        Rule(
            "compare-casts",
            op(COMPARISONS, op(Ops.CAST, x, name="left"), op(Ops.CAST, y, name="right"), name="node", ordered=True),
            compare_casts,
        ),
        Rule(
            "compare-cast-with-constant",
            op(COMPARISONS, op(Ops.CAST, name="left"), const("right"), name="node", ordered=True),
            compare_cast_with_constant,
        ),
        Rule(
            "compare-constant-with-cast",
            op(COMPARISONS, const("left"), op(Ops.CAST, name="right"), name="node", ordered=True),
            compare_cast_with_constant,
        ),
        Rule("bitcast-to-itself", op(Ops.BITCAST, x, name="node"), x, when=lambda node, x: node.dtype is x.dtype),
        Rule(
            "bitcast-twice",
            op(Ops.BITCAST, op(Ops.BITCAST, x, name="inner"), name="node"),
            lambda node, x, inner: x.bitcast(node.dtype),
            # Any nonzero bits are True, and True has one bit pattern: a bool loses the others.
            when=lambda node, x, inner: not inner.dtype.is_bool,
        ),
    ],
)

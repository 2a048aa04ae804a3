"""Helpers of the rule files. In: nodes and numbers. Out: constants and predicates on dtypes and bounds. Every file of
this folder imports it; it has no rules."""

from __future__ import annotations

from tilewright.base.dtype import DType, Scalar, cast_scalar, dtypes
from tilewright.graph.affine import Affine, fits, from_affine
from tilewright.graph.interpreter.scalar import ScalarMath
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

FALSE = UOp(Ops.CONST, dtypes.bool, (), False)
TRUE = UOp(Ops.CONST, dtypes.bool, (), True)


def number(dtype: DType, value: Scalar) -> UOp:
    """A constant, converted to the dtype."""
    return UOp(Ops.CONST, dtype, (), cast_scalar(value, dtype))


def truth(value: bool) -> UOp:
    return TRUE if value else FALSE


def opposite(condition: UOp) -> UOp:
    """The negation of a bool. A double negation cancels; == and != are each other's negation, also for NaN."""
    if condition.op is Ops.XOR and condition.src[1] is TRUE:
        return condition.src[0]
    if condition.op is Ops.CMPEQ:
        return UOp(Ops.CMPNE, dtypes.bool, condition.src)
    if condition.op is Ops.CMPNE:
        return UOp(Ops.CMPEQ, dtypes.bool, condition.src)
    return UOp(Ops.XOR, dtypes.bool, (condition, TRUE))


def both(left: UOp, right: UOp) -> UOp:
    return UOp(Ops.AND, dtypes.bool, (left, right))


def either(left: UOp, right: UOp) -> UOp:
    return UOp(Ops.OR, dtypes.bool, (left, right))


def select(condition: UOp, yes: UOp, no: UOp) -> UOp:
    return UOp(Ops.WHERE, yes.dtype, (condition, yes, no))


def exactly(form: Affine, dtype: DType) -> UOp | None:
    """The node of an affine form; None where it may wrap."""
    return from_affine(form, dtype) if fits(form, dtype) else None


def holds(dtype: DType, value: int) -> bool:
    """Whether the dtype can represent the integer."""
    return dtype is dtypes.index or dtype.min <= value <= dtype.max


def join_constants(node: UOp, x: UOp, c: UOp, d: UOp) -> UOp:
    """(x & c) & d is x & (c & d); likewise for |, ^ and extremes of integers."""
    assert node.op.value is not None
    return UOp(node.op, node.dtype, (x, number(node.dtype, node.op.value(ScalarMath, c.arg, d.arg))))

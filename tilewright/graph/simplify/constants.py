"""Constants. In: an op on constants, or one whose bounds admit one value. Out: the constant, rounded or wrapped to the
dtype. First of the rule files: the others may assume that a constant is on the right."""

from __future__ import annotations

from tilewright.graph.bounds import bounds_of
from tilewright.graph.interpreter.scalar import ScalarMath
from tilewright.graph.ops import ALL_OPS, Ops
from tilewright.graph.pattern import Rule, const, op, var, where
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.common import number
from tilewright.graph.spec import Kind, Op
from tilewright.graph.uop import UOp

UNARY_OPS: tuple[Op, ...] = tuple(each for each in ALL_OPS if each.kind is Kind.UNARY)
# A CHECK of constants is kept unless it is proven to hold (`select.py`).
BINARY_OPS: tuple[Op, ...] = tuple(each for each in ALL_OPS if each.kind is Kind.BINARY and each is not Ops.CHECK)
COMMUTATIVE_OPS: tuple[Op, ...] = tuple(each for each in BINARY_OPS if each.commutative)
# Ops whose result may be constant though an operand is not. A sum is constant only if its operands are.
BOUNDED_OPS: tuple[Op, ...] = tuple(
    each
    for each in ALL_OPS
    if each.is_elementwise and each.bounds is not None and each not in (Ops.ADD, Ops.SUB, Ops.NEG, Ops.CAST, Ops.CHECK)
)


def fold(node: UOp) -> UOp:
    """The value of an op on constants."""
    value = node.op.value
    assert value is not None
    return number(node.dtype, value(ScalarMath, *[src.arg for src in node.src]))


def fold_select(node: UOp, condition: UOp, a: UOp, b: UOp, c: UOp) -> UOp:
    """op(where(condition, a, b), c): both results are constants, which saves one op."""
    value = node.op.value
    assert value is not None
    yes = number(node.dtype, value(ScalarMath, a.arg, c.arg))
    no = number(node.dtype, value(ScalarMath, b.arg, c.arg))
    return UOp(Ops.WHERE, node.dtype, (condition, yes, no))


def only_value(node: UOp) -> UOp | None:
    """The constant value of an integer or bool node whose bounds are equal."""
    bounds = node._bounds
    if bounds is None:
        # As the property, without its search for sources that have no bounds: those were visited before.
        bounds = node._bounds = bounds_of(node)
    low, high = bounds
    if low != high:
        return None
    return number(node.dtype, int(low))


a, b, c = const("a"), const("b"), const("c")
x, condition = var("x"), var("condition")

CONSTANT_RULES = RuleSet(
    "constants",
    [
        Rule("fold-unary", op(UNARY_OPS, a, name="node"), fold),
        Rule("fold-binary", op(BINARY_OPS, a, b, name="node", ordered=True), fold),
        Rule("fold-cast", op(Ops.CAST, a, name="node"), lambda node, a: number(node.dtype, a.arg)),
        Rule(
            "one-value",
            op(BOUNDED_OPS, name="node", dtype="integer or bool"),
            only_value,
        ),
        Rule(
            "constant-on-the-right",
            op(COMMUTATIVE_OPS, a, x, name="node", ordered=True),
            lambda node, a, x: UOp(node.op, node.dtype, (x, a)),
            when=lambda x: x.op is not Ops.CONST,
        ),
        Rule("fold-into-select", op(BINARY_OPS, where(condition, a, b), c, name="node", ordered=True), fold_select),
    ],
)

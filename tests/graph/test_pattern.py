"""Patterns and rules: what matches, what is bound, what is refused when a rule is made."""

from __future__ import annotations

import pytest

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import InternalError
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Pattern, Rule, const, op, var, where
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.uop import UOp
from tilewright.graph.uop import const as number


def variable(name: str, dtype: DType = dtypes.index) -> UOp:
    return UOp(Ops.VARIABLE, dtype, (), (name, 0, 9))


X, Y, Z = variable("x"), variable("y"), variable("z")
B = variable("b", dtypes.bool)
F = variable("f", dtypes.float32)
I32 = variable("i", dtypes.int32)

x, y, c, d = var("x"), var("y"), const("c"), const("d")


def bound(pattern: Pattern, node: UOp) -> dict[str, UOp] | None:
    """What a pattern binds on a node, through a rule that only looks."""
    names = pattern.names()
    seen: dict[str, UOp] = {}

    def look(*values: UOp) -> UOp:
        seen.update(zip(names, values, strict=True))
        return node.const_like(0) if node.dtype.is_bool else number(dtypes.index, 12345)

    text = f"lambda {', '.join(names)}: look({', '.join(names)})"
    rules = RuleSet("probe", [Rule("probe", pattern, eval(text, {"look": look}))])
    return seen if rules.match(node) is not None else None


@pytest.mark.parametrize(
    ("pattern", "node", "expected"),
    [
        (x + y, X + Y, {"x": X, "y": Y}),
        (x + y, X * Y, None),
        (x + 0, X + 0, {"x": X}),
        (x + 0, X + 1, None),
        # A commutative op matches in both orders, also deep inside.
        (x + 0, X.const_like(0) + X, {"x": X}),
        ((x * c) + y, Y + (X.const_like(3) * X), {"x": X, "y": Y, "c": X.const_like(3)}),
        (x - 0, X.const_like(0) - X, None),
        (x // c, X // 4, {"x": X, "c": X.const_like(4)}),
        (x // c, X // Y, None),
        ((x // c) // d, (X // 3) // 5, {"x": X, "c": X.const_like(3), "d": X.const_like(5)}),
        # The same variable twice is the identical node.
        (x + x, X + X, {"x": X}),
        (x + x, X + Y, None),
        ((x // c) * c + x % c, (X // 4) * 4 + X % 4, {"x": X, "c": X.const_like(4)}),
        ((x // c) * c + x % c, (X % 4) + (X // 4) * 4, {"x": X, "c": X.const_like(4)}),
        ((x // c) * c + x % c, (X // 4) * 5 + X % 4, None),
        ((x // c) * c + x % c, (X // 4) * 4 + Y % 4, None),
        (x < c, X < 4, {"x": X, "c": X.const_like(4)}),
        (x > c, X > 4, {"x": X, "c": X.const_like(4)}),
        (~x, B.logical_not(), {"x": B}),
        (where(var("p"), x, y), B.where(X, Y), {"p": B, "x": X, "y": Y}),
        (where(var("p"), x, 0), B.where(X, 0), {"p": B, "x": X}),
        (where(var("p"), x, x), B.where(X, Y), None),
        # A literal matches by type and value: 0, 0.0, -0.0 and False are four things.
        (x + 0, F + 0.0, None),
        (x + 0.0, F + 0.0, {"x": F}),
        (x + 0.0, F + -0.0, None),
        (x + -0.0, F + -0.0, {"x": F}),
        (x & False, B & False, {"x": B}),
        (x & 0, B & False, None),
        (x.maximum(float("-inf")), F.maximum(float("-inf")), {"x": F}),
        # Dtypes: by kind, by type, by function.
        (var("x", "integer") + y, X + Y, {"x": X, "y": Y}),
        (var("x", "integer") + y, F + F, None),
        (var("x", "fixed") + y, X + Y, None),
        (var("x", "fixed") + y, I32 + I32, {"x": I32, "y": I32}),
        (var("x", dtypes.int32) + y, I32 + I32, {"x": I32, "y": I32}),
        (var("x", lambda dtype: dtype.is_float) + y, F + F, {"x": F, "y": F}),
        (op(Ops.CAST, x, dtype=dtypes.float32), X.cast(dtypes.float32), {"x": X}),
        (op(Ops.CAST, x, dtype=dtypes.float32), X.cast(dtypes.float64), None),
        # Ops: several, ordered, with an argument, with any sources, with a number of sources.
        (op((Ops.MAX, Ops.MIN), x, y, name="node"), X.minimum(Y), {"node": X.minimum(Y), "x": X, "y": Y}),
        (op((Ops.MAX, Ops.MIN), x, y, name="node"), X + Y, None),
        (op(Ops.ADD, c, x, ordered=True), X + 1, None),
        (op(Ops.ADD, x, c, ordered=True), X + 1, {"x": X, "c": X.const_like(1)}),
        (op(Ops.VARIABLE, name="v", arg=("x", 0, 9)), X, {"v": X}),
        (op(Ops.VARIABLE, name="v", arg=("x", 0, 9)), Y, None),
        (op(Ops.VARIABLE, name="v", arg=lambda arg: arg[0] == "y"), Y, {"v": Y}),
        (op(Ops.SINK, name="s"), UOp(Ops.SINK, dtypes.void, (X, Y)), {"s": UOp(Ops.SINK, dtypes.void, (X, Y))}),
        (op(Ops.SINK, x), UOp(Ops.SINK, dtypes.void, (X, Y)), None),
        (op(Ops.SINK, x), UOp(Ops.SINK, dtypes.void, (X,)), {"x": X}),
    ],
)
def test_binding(pattern: Pattern, node: UOp, expected: dict[str, UOp] | None) -> None:
    assert bound(pattern, node) == expected


@pytest.mark.parametrize(
    ("pattern", "result", "node", "expected"),
    [
        (x + 0, x, X + 0, X),
        (x * 2, x + x, X * 2, X + X),
        (x - y, x + y * -1, X - Y, X + Y * -1),
        (x < c, ~(x.eq(c)), X < 3, X.eq(3).logical_not()),
        (x & x, x, X & X, X),
        (x ^ x, 0, X ^ X, X.const_like(0)),
        (where(var("p"), x, x), x, B.where(X, X), X),
        (-x, x * -1, -I32, I32 * -1),
    ],
)
def test_result_patterns(pattern: Pattern, result: Pattern, node: UOp, expected: UOp) -> None:
    found = RuleSet("probe", [Rule("probe", pattern, result)]).match(node)
    assert found is not None
    assert found[0] is expected


def test_unbound_names_are_refused_by_name() -> None:
    with pytest.raises(InternalError, match=r"rule 'add-zero': its result uses 'z', which the pattern does not bind"):
        Rule("add-zero", x + 0, lambda x, z: x)
    with pytest.raises(InternalError, match=r"'mistake': its condition uses 'e'.*bound are: x, c"):
        Rule("mistake", x + c, x, when=lambda e: True)
    with pytest.raises(InternalError, match=r"'swap': its result uses 'y'"):
        Rule("swap", x + 0, y + x)
    with pytest.raises(InternalError, match=r"'anything': the root of a pattern names its op"):
        Rule("anything", x, x)
    with pytest.raises(InternalError, match="NaN"):
        x + float("nan")


def test_rules_are_tried_in_order_and_may_decline() -> None:
    rules = RuleSet(
        "order",
        [
            Rule("declines", x + c, lambda x, c: None),
            Rule("not-here", x + c, x, when=lambda c: c.arg == 7),
            Rule("itself", op(Ops.ADD, x, c, name="node"), lambda node: node),
            Rule("takes", x + c, lambda x, c: x * c.arg),
            Rule("late", x + c, x),
        ],
    )
    found = rules.match(X + 3)
    assert found is not None
    assert (found[0], found[1].name) == (X * 3, "takes")
    found = rules.match(X + 7)
    assert found is not None
    assert found[1].name == "not-here"
    assert rules.match(X * 3) is None


def test_condition_sees_both_orders() -> None:
    rules = RuleSet("order", [Rule("later", x + y, x, when=lambda x: x.arg[0] == "y")])
    found = rules.match(X + Y)
    assert found is not None
    assert found[0] is Y


def test_context_reaches_result_and_condition() -> None:
    rules = RuleSet("ctx", [Rule("use", x + 0, lambda x, ctx: x + ctx, when=lambda ctx: ctx is not None)])
    assert rules.match(X + 0) is None
    found = rules.match(X + 0, 5)
    assert found is not None
    assert found[0] is X + 5


def test_rules_that_begin_alike_share_their_tests() -> None:
    rules = RuleSet("shared", [Rule("a", x + 0, x), Rule("b", x + 1, x), Rule("c", op(Ops.ADD, x, 2, ordered=True), x)])
    source = rules.source(Ops.ADD)
    assert source.count("n.src") == 1
    # Matchers are made when an op is first asked for, one each.
    assert dict(rules.matchers) == {}
    assert rules.match(X * 2) is None
    assert rules.matchers == {Ops.MUL: None}

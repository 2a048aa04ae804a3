"""Comparisons. In: CMPLT, CMPEQ and CMPNE. Out: true or false where bounds decide; else both sides as affine sums with
common terms cancelled, common factors divided out and the constant on the right. The canonical form of `x >= c` is
not(x < c)."""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes
from tilewright.graph.affine import Affine, affine, order_key
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, const, op, var
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.common import FALSE, TRUE, exactly, holds, number, opposite, truth
from tilewright.graph.simplify.divmod import is_size_of, same_multiple
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp


def sides(difference: Affine) -> tuple[Affine, Affine]:
    """left and right of `difference < 0` or `== 0`, each with positive coefficients, the constant on the right."""
    left = {atom: count for atom, count in difference.terms.items() if count > 0}
    right = {atom: -count for atom, count in difference.terms.items() if count < 0}
    return Affine(left, 0), Affine(right, -difference.constant)


def compare(op: Op, left: Affine, right: Affine, like: UOp) -> UOp | None:
    """The node of a comparison; None where a side may wrap."""
    left_node = exactly(left, like.dtype)
    right_node = exactly(right, like.dtype)
    if left_node is None or right_node is None:
        return None
    return UOp(op, dtypes.bool, (left_node, right_node))


def compare_less(x: UOp, y: UOp) -> UOp | None:
    """x < y as a canonical comparison."""
    if not _may_improve(x, y):
        return None
    difference = affine(x).plus(affine(y), -1)
    low, high = difference.bounds
    if high < 0 or low >= 0:
        return truth(high < 0)
    difference = drop_small_terms(divide_out(difference))
    left, right = sides(difference)
    if left.terms:
        return compare(Ops.CMPLT, left, right, x)
    # k < right is not(right < k + 1); the constant stays on the right.
    reverse = compare(Ops.CMPLT, Affine(right.terms, 0), Affine({}, 1 - right.constant), x)
    return None if reverse is None else opposite(reverse)


def _may_improve(x: UOp, y: UOp) -> bool:
    """Whether the affine form can shorten a comparison: an atom compared with a constant is already minimal."""
    return y.op is not Ops.CONST or x.op in (Ops.ADD, Ops.MUL, Ops.SUB, Ops.NEG)


def divide_out(difference: Affine) -> Affine:
    """`difference < 0` divided by the common factor of its terms; for integers the constant is rounded down."""
    factor = math.gcd(*difference.terms.values())
    if factor == 1:
        return difference
    terms = {atom: count // factor for atom, count in difference.terms.items()}
    return Affine(terms, difference.constant // factor)


def drop_small_terms(difference: Affine) -> Affine:
    """4x + y < 16 is x < 4 where 0 <= y < 4: terms that cannot carry into the next multiple are dropped."""
    if len(difference.terms) < 2:
        return difference
    factors = {abs(count) for count in difference.terms.values()}
    for factor in sorted(factors, reverse=True):
        if factor == 1:
            break
        big = {atom: count // factor for atom, count in difference.terms.items() if count % factor == 0}
        small = {atom: count for atom, count in difference.terms.items() if count % factor}
        if not small:
            continue
        # factor * big + small + constant < 0 with small + constant in [m * factor, (m + 1) * factor): big < -m.
        multiple = same_multiple(Affine(small, difference.constant), factor)
        if multiple is not None:
            return Affine(big, multiple)
    return difference


def compare_equal(node: UOp, x: UOp, y: UOp) -> UOp | None:
    """x == y and x != y as canonical comparisons."""
    equal = node.op is Ops.CMPEQ
    if not _may_improve(x, y):
        return None
    difference = affine(x).plus(affine(y), -1)
    low, high = difference.bounds
    if low > 0 or high < 0:
        return truth(not equal)
    if not difference.terms:
        return truth((difference.constant == 0) is equal)
    factor = math.gcd(*difference.terms.values())
    if difference.constant % factor:
        return truth(not equal)
    first = min(difference.terms, key=order_key) if len(difference.terms) > 1 else next(iter(difference.terms))
    if difference.terms[first] < 0:
        factor = -factor
    terms = {atom: count // factor for atom, count in difference.terms.items()}
    left, right = sides(Affine(terms, difference.constant // factor))
    return compare(node.op, left, right, x)


def compare_quotient(x: UOp, d: UOp, c: UOp) -> UOp | None:
    """x // d < c is x < c * d for a positive d."""
    bound = c.arg * d.arg
    return UOp(Ops.CMPLT, dtypes.bool, (x, number(x.dtype, bound))) if holds(x.dtype, bound) else None


def compare_bool(node: UOp, x: UOp, c: UOp) -> UOp:
    """A bool compared with a constant is itself or its negation."""
    return x if c.arg is (node.op is Ops.CMPEQ) else opposite(x)


x, y, c, d = var("x", "integer"), var("y", "integer"), const("c"), const("d")
p, q = var("x", "bool"), var("y", "bool")
same = var("x")

COMPARE_RULES = RuleSet(
    "compare",
    [
        # Also for floats: NaN is not less than itself. It is not equal to itself either, so == of floats is not folded.
        Rule("less-than-itself", same < same, lambda: FALSE),
        Rule("equal-to-itself", op(Ops.CMPEQ, x, x), lambda: TRUE),
        Rule("unequal-to-itself", op(Ops.CMPNE, x, x), lambda: FALSE),
        Rule("range-below-its-size", op(Ops.RANGE, name="x") < var("d"), lambda: TRUE, when=is_size_of),
        Rule("quotient-below", (x // d) < c, compare_quotient, when=lambda d: d.arg > 0),
        Rule("compare-less", x < y, compare_less),
        Rule("compare-equal", op((Ops.CMPEQ, Ops.CMPNE), x, y, name="node", ordered=True), compare_equal),
        Rule("compare-bool", op((Ops.CMPEQ, Ops.CMPNE), p, c, name="node"), compare_bool),
        Rule("bool-unequal", p.ne(q), p ^ q),
        Rule("bool-equal", p.eq(q), lambda x, y: opposite(UOp(Ops.XOR, dtypes.bool, (x, y)))),
        Rule("bool-less", p < q, lambda x, y: UOp(Ops.AND, dtypes.bool, (opposite(x), y))),
    ],
)

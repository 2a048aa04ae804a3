"""Sums. In: ADD, SUB and NEG. Out: integers as canonical affine sums, so equal sums are one node; floats are changed
only where every bit of the result stays the same. Runs before divmod, which reads these sums."""

from __future__ import annotations

from tilewright.graph.affine import Affine, from_affine, order_key, ring_form
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, const, op, var
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.common import holds, number
from tilewright.graph.uop import UOp

_SPLIT = (Ops.MOD, Ops.IDIV)
_NOT_CANONICAL = (Ops.SUB, Ops.NEG, Ops.SHL)


def order_sum(node: UOp) -> UOp | None:
    """An integer sum in canonical form; the rewriter ignores a result that is the node itself."""
    if node.op is Ops.ADD and appends_in_order(node):
        return None
    form = ring_form(node)
    if node in form.terms:
        return None
    joined = join_quotient_and_remainder(form)
    return from_affine(joined if joined is not None else form, node.dtype)


def appends_in_order(node: UOp) -> bool:
    """Whether the node appends one term, or the constant, to a sum that is already canonical: the common case. Sources
    are simplified before the node, so the last term of the left one decides, and the affine form is not computed."""
    left, right = node.src
    last = left.src[1] if left.op is Ops.ADD else left
    if last.op is Ops.CONST or left.op in _NOT_CANONICAL:
        return False
    if right.op is Ops.CONST:
        return bool(right.arg != 0)
    if right.op is Ops.ADD or right.op in _NOT_CANONICAL:
        return False
    atom = _atom_of(right)
    if atom.op in _SPLIT:
        return False
    return order_key(_atom_of(last)) < order_key(atom)


def _atom_of(term: UOp) -> UOp:
    return term.src[0] if term.op is Ops.MUL and term.src[1].op is Ops.CONST else term


def join_quotient_and_remainder(form: Affine) -> Affine | None:
    """(x // c) * c * k + (x % c) * k is x * k."""
    for atom, coefficient in form.terms.items():
        if atom.op is not Ops.MOD or atom.src[1].bounds[0] <= 0:
            continue
        dividend, divisor = atom.src
        quotient = UOp(Ops.IDIV, atom.dtype, (dividend, divisor))
        if not divisor.is_const:
            joined = _join_by_variable(form, atom, quotient, coefficient)
            if joined is not None:
                return joined
            continue
        if dividend.op is Ops.IDIV and dividend.src[1].is_const and quotient not in form.terms:
            # The canonical form of (y // a) // c is y // (a * c).
            product = dividend.src[1].arg * divisor.arg
            if product <= 0 or not holds(atom.dtype, product):
                continue
            quotient = UOp(Ops.IDIV, atom.dtype, (dividend.src[0], number(atom.dtype, product)))
        if form.terms.get(quotient) != coefficient * divisor.arg:
            continue
        rest = {kept: count for kept, count in form.terms.items() if kept is not atom and kept is not quotient}
        return Affine(rest, form.constant).plus(ring_form(dividend), coefficient)
    return None


def _join_by_variable(form: Affine, remainder: UOp, quotient: UOp, coefficient: int) -> Affine | None:
    """The same with a divisor that is an expression: the quotient times it is one atom."""
    dividend, divisor = remainder.src
    for product, count in form.terms.items():
        if product.op is Ops.MUL and count == coefficient and product.src in ((quotient, divisor), (divisor, quotient)):
            rest = {kept: count for kept, count in form.terms.items() if kept is not remainder and kept is not product}
            return Affine(rest, form.constant).plus(ring_form(dividend), coefficient)
    return None


def cancel_difference(x: UOp, y: UOp) -> UOp | None:
    """x - y of unsigned integers, where only constants differ: they have no canonical affine form."""
    left, right = ring_form(x), ring_form(y)
    if left.terms != right.terms:
        return None
    return number(x.dtype, left.constant - right.constant)


x, y, c = var("x"), var("y"), const("c")
u, v = var("x", "integer"), var("y", "integer")
f = var("x", "float")

ADD_RULES = RuleSet(
    "add",
    [
        Rule("subtract-itself", u - u, lambda x: number(x.dtype, 0)),
        Rule("add-zero", u + 0, u),
        Rule("subtract-zero", u - 0, u),
        Rule("cancel-difference", u - v, cancel_difference, when=lambda x: x.dtype.is_unsigned),
        Rule("order-sum", op((Ops.ADD, Ops.SUB, Ops.NEG), name="node", dtype="integer"), order_sum),
        # x + 0.0 is not x where x is -0.0.
        Rule("add-negative-zero", f + -0.0, f),
        Rule("subtract-positive-zero", f - 0.0, f),
        Rule("negate-twice", op(Ops.NEG, -f), f),
        Rule("add-negated", f + -var("y"), lambda x, y: UOp(Ops.SUB, x.dtype, (x, y))),
        Rule("subtract-negated", f - -var("y"), lambda x, y: UOp(Ops.ADD, x.dtype, (x, y))),
    ],
)

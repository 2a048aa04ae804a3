"""Products. In: MUL, FDIV and SHL. Out: integer products with one constant, last; floats are changed only where every
bit stays the same. Multiples of a sum of indices are distributed here, so that an address is one affine sum."""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes, wrap_int
from tilewright.graph.affine import from_affine, order_key, ring_form
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, const, op, var
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.common import number, select
from tilewright.graph.uop import UOp

_LINEAR = (Ops.ADD, Ops.MUL, Ops.SUB, Ops.NEG, Ops.SHL)


def scale_sum(node: UOp) -> UOp | None:
    """c * (a * x + b * y + d) of indices, and (a * x) * c of any integer."""
    if node.src[0].op not in _LINEAR:
        return None
    form = ring_form(node)
    return None if node in form.terms else from_affine(form, node.dtype)


def order_product(x: UOp, y: UOp) -> UOp | None:
    """Constant factors are moved outwards, where sums collect them; the other two factors are put in canonical
    order."""
    dtype = x.dtype
    scale = 1
    if x.op is Ops.MUL and x.src[1].is_const:
        scale *= x.src[1].arg
        x = x.src[0]
    if y.op is Ops.MUL and y.src[1].is_const:
        scale *= y.src[1].arg
        y = y.src[0]
    if order_key(y) < order_key(x):
        x, y = y, x
    product = UOp(Ops.MUL, dtype, (x, y))
    scale = wrap_int(scale, dtype)
    return product if scale == 1 else UOp(Ops.MUL, dtype, (product, number(dtype, scale)))


def multiply_by_reciprocal(x: UOp, c: UOp) -> UOp | None:
    """x / c where 1 / c is exact: both round the same real number. Only powers of two, and not into subnormals."""
    mantissa, exponent = math.frexp(abs(c.arg))
    if mantissa != 0.5:
        return None
    limit = (1 << (x.dtype.exponent_bits - 1)) - 2
    if not -limit <= exponent - 1 <= limit:
        return None
    return UOp(Ops.MUL, x.dtype, (x, number(x.dtype, 1.0 / c.arg)))


def scale_condition(inner: UOp, x: UOp, c: UOp) -> UOp:
    """cast(condition) * c is where(condition, c, 0 * c); 0 * c may be NaN or -0.0 and is kept."""
    return select(x, c, number(inner.dtype, 0 * c.arg))


def shift_to_multiple(x: UOp, c: UOp) -> UOp:
    return UOp(Ops.MUL, x.dtype, (x, number(x.dtype, 1 << c.arg if 0 <= c.arg < 64 else 0)))


x, y, c = var("x"), var("y"), const("c")
u, v = var("x", "integer"), var("y", "integer")
f = var("x", "float")

MUL_RULES = RuleSet(
    "mul",
    [
        Rule("multiply-by-zero", u * 0, lambda x: number(x.dtype, 0)),
        Rule("multiply-by-one", u * 1, u),
        Rule("scale-sum", op(Ops.MUL, u, c, name="node", ordered=True), scale_sum),
        Rule(
            "order-product",
            op(Ops.MUL, u, v, ordered=True),
            order_product,
            when=lambda x, y: x.op is not Ops.CONST and y.op is not Ops.CONST,
        ),
        Rule("shift-index", var("x", dtypes.index) << c, shift_to_multiple),
        Rule("shift-by-zero", op((Ops.SHL, Ops.SHR), u, 0), u),
        Rule("multiply-by-one-float", f * 1.0, f),
        Rule("divide-by-one-float", f / 1.0, f),
        Rule("divide-by-power-of-two", f / c, multiply_by_reciprocal),
        Rule("multiply-cast-bool", op(Ops.CAST, var("x", "bool"), name="inner") * c, scale_condition),
        Rule("multiply-negated", op(Ops.MUL, -f, -y, ordered=True), lambda x, y: UOp(Ops.MUL, x.dtype, (x, y))),
    ],
)

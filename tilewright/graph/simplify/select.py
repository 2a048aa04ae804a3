"""Selection. In: WHERE, MAX, MIN, CHECK and masked loads. Out: the selected branch where it is known, one condition for
nested WHEREs, and the condition itself where the branches are true and false."""

from __future__ import annotations

from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, const, op, var, where
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.common import both, either, join_constants, number, opposite, select
from tilewright.graph.uop import UOp


def choose_extreme(node: UOp, x: UOp, y: UOp) -> UOp | None:
    """The larger or smaller of two integers where the sign of their difference is known."""
    low, high = x.bounds[0] - y.bounds[1], x.bounds[1] - y.bounds[0]
    if low < 0 < high:
        if y.op is Ops.CONST and x.op not in (Ops.ADD, Ops.MUL):
            return None
        low, high = affine(x).plus(affine(y), -1).bounds
    if low >= 0:
        return x if node.op is Ops.MAX else y
    if high <= 0:
        return y if node.op is Ops.MAX else x
    return None


def drop_valid(node: UOp) -> UOp | None:
    """An index that is always valid needs no mask."""
    if len(node.src) != 3 or not node.src[2].is_const or not node.src[2].arg:
        return None
    return UOp(Ops.INDEX, node.dtype, node.src[:2], node.arg)


def drop_load(node: UOp) -> UOp | None:
    """A load that is never valid is its alternative value."""
    place = node.src[0]
    if place.op is not Ops.INDEX or len(place.src) != 3 or not place.src[2].is_const or place.src[2].arg:
        return None
    return node.src[1] if len(node.src) > 1 else number(node.dtype, 0)


def drop_mask(condition: UOp, load: UOp, otherwise: UOp) -> UOp | None:
    """where(c, load masked by c, 0) is the load: where c is false, the load gives 0 or its alternative value."""
    if len(load.src[0].src) != 3 or load.src[0].src[2] is not condition:
        return None
    if len(load.src) > 1:
        return load if load.src[1] is otherwise else None
    return load if otherwise is number(load.dtype, 0) else None


def drop_check(node: UOp) -> UOp | None:
    """An index that is in range by its bounds, or is never valid, needs no check."""
    value, valid = node.src
    is_inside = 0 <= value.vmin and value.vmax < node.arg.size
    return value if is_inside or valid.vmax == 0 else None


a, b, c, d = var("a"), var("b"), const("c"), const("d")
x, y, z = var("x"), var("y"), var("z")
u, v = var("x", "integer"), var("y", "integer")
EXTREMES = (Ops.MAX, Ops.MIN)

SELECT_RULES = RuleSet(
    "select",
    [
        Rule("select-true", where(True, x, y), x),
        Rule("select-false", where(False, x, y), y),
        Rule("select-decided", where(a, x, y), x, when=lambda a: a.bounds[0] == 1),
        Rule("select-never", where(a, x, y), y, when=lambda a: a.bounds[1] == 0),
        Rule("select-same", where(a, x, x), x),
        Rule("select-of-not", where(~a, x, y), lambda a, x, y: select(a, y, x)),
        Rule("select-of-unequal", where(x.ne(y), a, b), lambda x, y, a, b: select(x.alu(Ops.CMPEQ, y), b, a)),
        Rule("select-condition", where(a, True, False), a),
        Rule("select-opposite", where(a, False, True), lambda a: opposite(a)),
        Rule("select-bool-and", where(a, var("x", "bool"), False), lambda a, x: both(a, x)),
        Rule("select-bool-or", where(a, True, var("x", "bool")), lambda a, x: either(a, x)),
        Rule("select-bool-and-not", where(a, False, var("x", "bool")), lambda a, x: both(opposite(a), x)),
        Rule("select-bool-or-not", where(a, var("x", "bool"), True), lambda a, x: either(opposite(a), x)),
        Rule("select-inside-yes", where(a, where(a, x, y), z), lambda a, x, z: select(a, x, z)),
        Rule("select-inside-no", where(a, x, where(a, y, z)), lambda a, x, z: select(a, x, z)),
        Rule("select-join-and", where(a, where(b, x, y), y), lambda a, b, x, y: select(both(a, b), x, y)),
        Rule("select-join-or", where(a, x, where(b, x, y)), lambda a, b, x, y: select(either(a, b), x, y)),
        Rule(
            "select-masked-load",
            where(a, op(Ops.LOAD, name="x"), c),
            lambda a, x, c: drop_mask(a, x, c),
        ),
        Rule(
            "select-masked-load-not",
            where(a, c, op(Ops.LOAD, name="x")),
            lambda a, x, c: drop_mask(opposite(a), x, c),
        ),
        Rule("extreme-of-itself", op(EXTREMES, x, x), x),
        Rule("extreme-by-bounds", op(EXTREMES, u, v, name="node", ordered=True), choose_extreme),
        Rule(
            "join-extremes",
            op(EXTREMES, op(EXTREMES, u, c, name="inner"), d, name="node"),
            join_constants,
            when=lambda node, inner: node.op is inner.op,
        ),
        Rule("check-that-holds", op(Ops.CHECK, name="node"), drop_check),
        Rule("index-always-valid", op(Ops.INDEX, name="node"), drop_valid),
        Rule("load-never-valid", op(Ops.LOAD, name="node"), drop_load),
    ],
)

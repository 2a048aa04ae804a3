"""Logic. In: AND, OR, XOR and SHR of bools and integers. Out: conjunctions without repeats or implied parts, ordered,
so that equal masks are one node; comparisons of one value with constants become one interval."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes
from tilewright.graph.affine import affine, order_key
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, const, op, var
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.common import FALSE, TRUE, both, either, join_constants, number, opposite
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp

# A longer chain is not changed, so that the cost of a node does not grow with the length of the chain.
PART_LIMIT = 16

Interval = tuple[int | None, int | None]


def parts_of(node: UOp, joined_by: Op) -> list[UOp]:
    """The operands of a chain of AND or of OR, from left to right, each once."""
    found: dict[UOp, None] = {}
    stack = [node]
    while stack:
        top = stack.pop()
        if top.op is joined_by and len(found) + len(stack) < PART_LIMIT:
            stack.extend(reversed(top.src))
        else:
            found[top] = None
    return list(found)


def is_cut_short(parts: list[UOp], joined_by: Op) -> bool:
    """Whether a chain is longer than the limit: after sorting, the next call would cut it elsewhere."""
    return any(part.op is joined_by for part in parts)


def interval_of(part: UOp) -> tuple[UOp, Interval] | None:
    """The interval that a comparison with a constant implies for a value."""
    low_side = part.op is Ops.XOR and part.src[1] is TRUE
    comparison = part.src[0] if low_side else part
    if comparison.op not in (Ops.CMPLT, Ops.CMPEQ) or not comparison.src[0].dtype.is_int:
        return None
    value, constant = comparison.src
    if constant.op is not Ops.CONST:
        return None
    if comparison.op is Ops.CMPEQ:
        return None if low_side else (value, (constant.arg, constant.arg))
    return (value, (constant.arg, None)) if low_side else (value, (None, constant.arg - 1))


def part_of_interval(value: UOp, interval: Interval) -> list[UOp]:
    """The comparisons that state that a value is in an interval."""
    low, high = interval
    if low is not None and low == high:
        return [UOp(Ops.CMPEQ, dtypes.bool, (value, number(value.dtype, low)))]
    parts = []
    if low is not None:
        parts.append(opposite(UOp(Ops.CMPLT, dtypes.bool, (value, number(value.dtype, low)))))
    if high is not None:
        parts.append(UOp(Ops.CMPLT, dtypes.bool, (value, number(value.dtype, high + 1))))
    return parts


def conjoin(parts: list[UOp]) -> list[UOp] | None:
    """The parts of a conjunction without those that others imply; None where they contradict each other."""
    intervals: dict[UOp, Interval] = {}
    others: dict[UOp, None] = {}
    for part in parts:
        if part is FALSE or opposite(part) in others:
            return None
        found = interval_of(part)
        if found is None:
            if part is not TRUE:
                others[part] = None
            continue
        value, interval = found
        narrowed = _narrow(intervals.get(value, (None, None)), interval)
        if narrowed[0] is not None and narrowed[1] is not None and narrowed[0] > narrowed[1]:
            return None
        intervals[value] = narrowed
    kept = _drop_implied(intervals)
    if kept is None:
        return None
    result = [part for value, interval in kept.items() for part in part_of_interval(value, interval)]
    result += [part for part in others if not _holds_one_of(part, others)]
    return result


def _narrow(first: Interval, second: Interval) -> Interval:
    lows = [low for low in (first[0], second[0]) if low is not None]
    highs = [high for high in (first[1], second[1]) if high is not None]
    return (max(lows) if lows else None, min(highs) if highs else None)


def _drop_implied(intervals: dict[UOp, Interval]) -> dict[UOp, Interval] | None:
    """Drops parts that the other intervals imply: x < 4 makes 2x + y < 20 true for a small y."""
    if len(intervals) < 2:
        return intervals
    kept = dict(intervals)
    for value, (low, high) in intervals.items():
        form = affine(value)
        if len(form.terms) < 2:
            continue
        least = greatest = form.constant
        for atom, count in form.terms.items():
            atom_low, atom_high = _bounds_within(atom, kept)
            least += count * (atom_low if count > 0 else atom_high)
            greatest += count * (atom_high if count > 0 else atom_low)
        if low is not None and least >= low:
            low = None
        if high is not None and greatest <= high:
            high = None
        if (low is not None and greatest < low) or (high is not None and least > high):
            return None
        if low is None and high is None:
            del kept[value]
        else:
            kept[value] = (low, high)
    return kept


def _bounds_within(atom: UOp, intervals: dict[UOp, Interval]) -> tuple[int, int]:
    low, high = int(atom.bounds[0]), int(atom.bounds[1])
    if atom in intervals:
        known_low, known_high = intervals[atom]
        low = low if known_low is None else max(low, known_low)
        high = high if known_high is None else min(high, known_high)
    return low, high


def _holds_one_of(part: UOp, parts: dict[UOp, None]) -> bool:
    """a | b adds nothing to a."""
    return part.op is Ops.OR and any(each in parts for each in parts_of(part, Ops.OR))


def join_parts(parts: list[UOp], joined_by: Op) -> UOp:
    """The chain of the parts, in canonical order."""
    ordered = sorted(dict.fromkeys(parts), key=order_key)
    total = ordered[0]
    for part in ordered[1:]:
        total = UOp(joined_by, dtypes.bool, (total, part))
    return total


def simplify_and(node: UOp) -> UOp | None:
    parts = parts_of(node, Ops.AND)
    if is_cut_short(parts, Ops.AND):
        return None
    kept = conjoin(parts)
    if kept is None:
        return FALSE
    return join_parts(kept, Ops.AND) if kept else TRUE


def simplify_or(node: UOp) -> UOp | None:
    """a | b is not(not a & not b)."""
    parts = parts_of(node, Ops.OR)
    if is_cut_short(parts, Ops.OR):
        return None
    kept = conjoin([opposite(part) for part in parts])
    if kept is None:
        return TRUE
    return join_parts([opposite(part) for part in kept], Ops.OR) if kept else FALSE


def negate_inside(node: UOp, x: UOp) -> UOp:
    """not(not a & b == c) is a | b != c, where the negation of every part is free."""
    negated = [opposite(part) for part in x.src]
    return UOp(Ops.OR if x.op is Ops.AND else Ops.AND, dtypes.bool, tuple(negated))


def negates_freely(x: UOp) -> bool:
    return all(part.op in (Ops.CMPEQ, Ops.CMPNE) or (part.op is Ops.XOR and part.src[1] is TRUE) for part in x.src)


def order_operands(node: UOp, x: UOp, y: UOp) -> UOp | None:
    """The operands of a commutative op in canonical order."""
    if y.op is Ops.CONST or order_key(x) <= order_key(y):
        return None
    return UOp(node.op, node.dtype, (y, x))


def all_ones(dtype: DType) -> int:
    return int(dtype.max) if dtype.is_unsigned else -1


def mask_keeps_all(x: UOp, c: UOp) -> bool:
    """Whether x & c is x: x is below a power of two, and the mask has every bit below that."""
    return is_low_mask(c) and bool(0 <= x.bounds[0] and x.bounds[1] <= c.arg)


def is_low_mask(c: UOp) -> bool:
    value: int = c.arg
    return value > 0 and value & (value + 1) == 0


x, y, c, d = var("x"), var("y"), const("c"), const("d")
u, v = var("x", "integer"), var("y", "integer")
p, q = var("x", "bool"), var("y", "bool")
i = var("x", dtypes.index)
BITWISE = (Ops.AND, Ops.OR, Ops.XOR)

LOGIC_RULES = RuleSet(
    "logic",
    [
        Rule("and-false", p & False, lambda: FALSE),
        Rule("and-true", p & True, p),
        Rule("or-true", p | True, lambda: TRUE),
        Rule("or-false", p | False, p),
        Rule("xor-false", p ^ False, p),
        Rule("and-itself", op((Ops.AND, Ops.OR), x, x), x),
        Rule("xor-itself", x ^ x, lambda x: number(x.dtype, 0)),
        Rule("not-not", op(Ops.XOR, p, True), lambda x: opposite(x)),
        Rule(
            "not-of-parts",
            op(Ops.XOR, op((Ops.AND, Ops.OR), name="x"), True, name="node"),
            negate_inside,
            when=negates_freely,
        ),
        Rule("and-of-parts", op(Ops.AND, p, q, name="node", ordered=True), lambda node: simplify_and(node)),
        Rule("or-of-parts", op(Ops.OR, p, q, name="node", ordered=True), lambda node: simplify_or(node)),
        Rule("bool-product", op((Ops.MUL, Ops.MIN), p, q, ordered=True), lambda x, y: both(x, y)),
        Rule("bool-difference", op(Ops.SUB, p, q), lambda x, y: x ^ y),
        Rule("bool-negated", op(Ops.NEG, p), p),
        Rule("bool-sum", op((Ops.ADD, Ops.MAX), p, q, ordered=True), lambda x, y: either(x, y)),
        Rule("and-zero", u & 0, lambda x: number(x.dtype, 0)),
        Rule("or-zero", op((Ops.OR, Ops.XOR), u, 0), u),
        Rule("and-all-ones", u & c, u, when=lambda x, c: c.arg == all_ones(x.dtype)),
        Rule("or-all-ones", u | c, c, when=lambda x, c: c.arg == all_ones(x.dtype)),
        Rule("and-keeps-all", u & c, u, when=mask_keeps_all),
        Rule("mask-index", i & c, lambda x, c: x % (c.arg + 1), when=is_low_mask),
        Rule("shift-index-down", i >> c, lambda x, c: x // (1 << c.arg), when=lambda c: 0 <= c.arg < 64),
        Rule(
            "join-masks",
            op(BITWISE, op(BITWISE, u, c, name="inner"), d, name="node"),
            join_constants,
            when=lambda node, inner: node.op is inner.op,
        ),
        Rule(
            "order-operands",
            op((*BITWISE, Ops.MAX, Ops.MIN), u, y, name="node", ordered=True),
            order_operands,
        ),
        Rule("order-bools", op(Ops.XOR, p, y, name="node", ordered=True), order_operands),
    ],
)

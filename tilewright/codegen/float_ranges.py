"""Between which numbers a float lies. In: a float node of a kernel. Out: (least, greatest), NaN aside, never too narrow
but for the rounding of a product; what is not known is infinite. `transcendental` leaves out what no argument needs.

Ranges are read off the ways in which arguments are limited: choices by a comparison, signs, squares, constant factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

Range = tuple[float, float]
UNKNOWN: Range = (-math.inf, math.inf)
# A limit lies close to the function that needs it; a choice has two sides to look at.
DEPTH = 6


def float_range(x: UOp, known: Mapping[UOp, Range] | None = None, depth: int = DEPTH) -> Range:
    """`known` are the ranges of nodes inside a choice."""
    found = (known or {}).get(x)
    if found is not None:
        return found
    if x.is_const:
        return UNKNOWN if math.isnan(x.arg) else (float(x.arg), float(x.arg))
    if depth == 0:
        return UNKNOWN
    if x.op is Ops.WHERE and x.src[0].op is Ops.CMPLT:
        return _choice_range(x, known or {}, depth)
    if x.op is Ops.NEG:
        low, high = float_range(x.src[0], known, depth - 1)
        return (-high, -low)
    if x.op is Ops.MUL:
        left, right = (float_range(source, known, depth - 1) for source in x.src)
        return _product_range(left, right, x.src[0] is x.src[1])
    return UNKNOWN


def _choice_range(x: UOp, known: Mapping[UOp, Range], depth: int) -> Range:
    """Each side is looked at with what the comparison says of its operands there. On the second side that is nothing
    where the other operand may be NaN, which is no less and no greater than any number."""
    condition, yes, no = x.src
    smaller, larger = condition.src
    (low, high), (other_low, other_high) = (float_range(source, known, depth - 1) for source in condition.src)
    if_less = {smaller: (low, min(high, other_high)), larger: (max(low, other_low), other_high)}
    if_not = {}
    if _is_number(larger):
        if_not[smaller] = (max(low, other_low), high)
    if _is_number(smaller):
        if_not[larger] = (other_low, min(high, other_high))
    sides = [float_range(side, {**known, **facts}, depth - 1) for side, facts in ((yes, if_less), (no, if_not))]
    return (min(side[0] for side in sides), max(side[1] for side in sides))


def _is_number(x: UOp) -> bool:
    return x.is_const and not math.isnan(x.arg)


def _product_range(left: Range, right: Range, is_square: bool) -> Range:
    if is_square:
        most = max(abs(left[0]), abs(left[1]))
        least = 0.0 if left[0] <= 0.0 <= left[1] else min(abs(left[0]), abs(left[1]))
        return (least * least, most * most)
    corners = [x * y for x in left for y in right]
    return UNKNOWN if any(map(math.isnan, corners)) else (min(corners), max(corners))

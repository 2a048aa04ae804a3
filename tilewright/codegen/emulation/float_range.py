"""Ranges of float values. In: a node of a kernel graph. Out: the least and the greatest number it may be, NaN aside.
The decompositions of functions leave out what a known range makes needless."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import size_of, substitute

Range = tuple[float, float]
UNKNOWN: Range = (-math.inf, math.inf)
# How deep to look: a limit is close to the function that needs it, and each choice doubles the work.
DEPTH = 8
# The most that a sum may be rounded up or down by, as a share of it: half a unit of float32 or float64, and more.
ROUNDED = 2.0**-20


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
    if x.op is Ops.SUB and is_maximum_of(x.src[1], x.src[0]):
        return (-math.inf, 0.0)
    if x.op is Ops.BITCAST and x.src[0].dtype.is_int and 0 <= x.src[0].vmin <= x.src[0].vmax < 1 << (x.dtype.bits - 1):
        return (0.0, math.inf)
    if x.op in (Ops.MUL, Ops.ADD, Ops.SUB):
        # Constants take no time, so that the terms of a long polynomial are seen.
        inside = depth if any(source.is_const for source in x.src) else depth - 1
        left, right = (float_range(source, known, inside) for source in x.src)
        if x.op is Ops.MUL:
            return _product_range(left, right, x.src[0] is x.src[1])
        return _sum_range(left, right if x.op is Ops.ADD else (-right[1], -right[0]))
    return UNKNOWN


def _choice_range(x: UOp, known: Mapping[UOp, Range], depth: int) -> Range:
    """The range of each side, given what the comparison implies for its operands there. On the second side it implies
    nothing where the other operand may be NaN, since comparisons with NaN are false."""
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
        greatest = max(abs(left[0]), abs(left[1]))
        least = 0.0 if left[0] <= 0.0 <= left[1] else min(abs(left[0]), abs(left[1]))
        return (least * least, greatest * greatest)
    corners = [x * y for x in left for y in right]
    return UNKNOWN if any(map(math.isnan, corners)) else (min(corners), max(corners))


def _sum_range(left: Range, right: Range) -> Range:
    low, high = left[0] + right[0], left[1] + right[1]
    if math.isnan(low) or math.isnan(high):
        return UNKNOWN
    return (low - abs(low) * ROUNDED, high + abs(high) * ROUNDED)


# ---------------------------------------------------------------- a maximum and what it is taken of


def is_maximum_of(maximum: UOp, value: UOp) -> bool:
    """Whether `value` is one of the values that a MAX reduction takes, as in x - max(x): the same expression of a load,
    from a position that the reduction covers."""
    if maximum.op is not Ops.REDUCE or maximum.arg is not Ops.MAX:
        return False
    reduced, axes = maximum.src[0], maximum.src[1:]
    while reduced.op is value.op and reduced.op is not Ops.INDEX:
        differing = [pair for pair in zip(reduced.src, value.src, strict=False) if pair[0] is not pair[1]]
        is_alike = reduced.arg == value.arg and reduced.dtype is value.dtype and len(reduced.src) == len(value.src)
        if not is_alike or len(differing) != 1 or reduced.op is Ops.REDUCE:
            return False  # the terms of a sum may come from several positions of the maximum
        if any(one is other and not one.ranges.isdisjoint(axes) for one, other in zip(reduced.src, value.src)):
            return False  # outside of the maximum, a loop of it is another one
        ((reduced, value),) = differing
    if not (reduced.op is value.op is Ops.INDEX and reduced.src[0] is value.src[0]):
        return False
    return len(reduced.src) == len(value.src) == 2 and _covers(reduced.src[1], axes, value.src[1])


def _covers(positions: UOp, axes: tuple[UOp, ...], position: UOp) -> bool:
    """Whether `position` is one that `positions` takes in the loops of `axes`. They must fill a contiguous interval."""
    terms = affine(positions).terms
    if any(term not in axes and not term.ranges.isdisjoint(axes) for term in terms):
        return False
    if not all(axis.src[0].is_const for axis in axes):
        return False
    length = 1
    for step, size in sorted((terms.get(axis, 0), size_of(axis)) for axis in axes):
        if not 0 < step <= length:
            return False
        length += step * (size - 1)
    start = substitute(positions, {axis: index_const(0) for axis in axes})
    offset = simplify(position - start)
    return bool(offset.vmin >= 0 and offset.vmax < length)

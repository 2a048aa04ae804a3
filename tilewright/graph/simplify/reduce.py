"""Reductions that need no loop. In: REDUCE(value, ranges) of a kernel. Out: the same value with fewer ranges: unused
ranges are removed, one-hot sums become a load, and counts a closed form. Used by the scheduler through
`fold_reductions`, together with the scalar rules.

A reduction may be reassociated, so a float v added n times may become v * n where n is exact in v's dtype, or where
that is float32 or wider: n is then rounded once, which is less error than any order of additions. No fold turns a NaN
into 0 or back: 0 * inf is NaN, so `cast(r == e) * v` stays a loop for a float v. A sum starts from 0.0 and so is never
-0.0: a float that replaces a sum is added to 0.0."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.affine import Affine, affine, from_affine
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, op
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.common import TRUE, both, number, opposite, select
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.simplify.scalar import simplify
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph, substitute, toposort

# ---------------------------------------------------------------- parts


class Masked(NamedTuple):
    """A value that is 0 unless all conditions hold."""

    conditions: tuple[UOp, ...]
    value: UOp


def is_zero(node: UOp) -> bool:
    return node.op is Ops.CONST and node.arg == 0


def masked(value: UOp) -> Masked | None:
    """The value as a `Masked`, if it has that form. A product with a cast condition has it only for integers: 0 * inf
    is not 0."""
    if value.op is Ops.WHERE:
        condition, yes, no = value.src
        if is_zero(no):
            found = Masked(tuple(parts_of(condition, Ops.AND)), yes)
        elif is_zero(yes):
            found = Masked(tuple([opposite(part) for part in parts_of(condition, Ops.OR)]), no)
        else:
            return None
        inner = masked(found.value)
        return found if inner is None else Masked((*found.conditions, *inner.conditions), inner.value)
    if value.op is Ops.CAST:
        source = value.src[0]
        if source.dtype.is_bool:
            return Masked(tuple(parts_of(source, Ops.AND)), number(value.dtype, 1))
        inner = masked(source)
        return None if inner is None else Masked(inner.conditions, inner.value.cast(value.dtype))
    if value.op is Ops.NEG:  # -0.0 adds nothing to a sum, which starts from 0.0
        inner = masked(value.src[0])
        return None if inner is None else Masked(inner.conditions, -inner.value)
    if value.op is Ops.MUL and value.dtype.is_int:
        for one, other in (value.src, value.src[::-1]):
            inner = masked(one)
            if inner is not None:
                return Masked(inner.conditions, inner.value * other)
    return None


def without_range(node: UOp, range_: UOp, value: UOp) -> UOp:
    """The reduction over the other ranges."""
    left = tuple([each for each in node.src[1:] if each is not range_])
    return UOp(Ops.REDUCE, node.dtype, (value, *left), node.arg) if left else value


def never_negative_zero(total: UOp) -> UOp:
    """A float that replaces a sum, with -0.0 turned into 0.0."""
    is_sum_still = total.op is Ops.REDUCE
    return total if is_sum_still or not total.dtype.is_float else total + number(total.dtype, 0.0)


def difference_in_index(comparison: UOp) -> Affine | None:
    """left - right of an integer comparison as index maths; None where a value may be one that only uint64 represents,
    since an index of a program is a signed 64-bit integer."""
    left, right = comparison.src
    if not left.dtype.is_int or max(left.bounds[1], right.bounds[1]) > dtypes.int64.max:
        return None
    return _index_form(left).plus(_index_form(right), -1)


def _index_form(node: UOp) -> Affine:
    return affine(simplify(node.cast(dtypes.index)))


def split_range(form: Affine, range_: UOp) -> tuple[int, Affine] | None:
    """form = k * range + rest, with a nonzero k and a rest that does not depend on the range."""
    scale = form.terms.get(range_, 0)
    rest = {atom: count for atom, count in form.terms.items() if atom is not range_}
    if not scale or any(range_ in atom.ranges for atom in rest):
        return None
    return scale, Affine(rest, form.constant)


def as_dtype(count: UOp, dtype: DType) -> UOp | None:
    """An index as a number of the dtype. A float shorter than float32 must represent every integer up to the maximum
    exactly: its sums are accumulated in float32 and rounded once."""
    if dtype.is_float and dtype.bits < 32 and not int(count.bounds[1]) <= 1 << (dtype.mantissa_bits + 1):
        return None
    return count.cast(dtype)


# ---------------------------------------------------------------- one range at a time


def drop_unused_ranges(node: UOp) -> UOp | None:
    """A value that does not depend on a range is multiplied by its size for ADD, and taken once for MAX and MIN."""
    value = node.src[0]
    unused = [each for each in node.src[1:] if each not in value.ranges and each.src[0].bounds[0] >= 1]
    if not unused or node.arg is Ops.MUL:
        return None
    if node.arg is Ops.ADD and not value.dtype.is_bool:
        size = unused[0].src[0]
        for other in unused[1:]:
            size = size * other.src[0]
        times = as_dtype(size, value.dtype)
        if times is None:
            return None
        value = value * times
    used = tuple([each for each in node.src[1:] if each not in unused])
    if not used and node.arg is Ops.ADD:
        return never_negative_zero(value)
    return UOp(Ops.REDUCE, node.dtype, (value, *used), node.arg)


def drop_single_range(node: UOp) -> UOp | None:
    """A range of size 1 is the index 0."""
    for range_ in node.src[1:]:
        size = range_.src[0]
        if size.op is Ops.CONST and size.arg == 1:
            zero = number(range_.dtype, 0)
            return without_range(node, range_, substitute(node.src[0], {range_: zero}))
    return None


def fold_one_hot(node: UOp) -> UOp | None:
    """sum over r of where(r == e, v, 0) is where(0 <= e < n, v at r = e, 0)."""
    return _fold_any_range(node, one_hot)


def _fold_any_range(node: UOp, fold: Callable[[UOp, UOp], UOp | None]) -> UOp | None:
    """The sum with the first range removed that `fold` gives a closed form for."""
    for range_ in node.src[1:]:
        folded = fold(node.src[0], range_)
        if folded is not None:
            return never_negative_zero(without_range(node, range_, folded))
    return None


def one_hot(value: UOp, range_: UOp) -> UOp | None:
    """The sum over one range of a value that is 0 except at one index."""
    found = masked(value)
    if found is None:
        return None
    for chosen in found.conditions:
        if chosen.op is not Ops.CMPEQ or range_ not in chosen.ranges:
            continue
        difference = difference_in_index(chosen)
        split = None if difference is None else split_range(difference, range_)
        if split is None:
            continue
        place, inside = place_of(*split, range_)
        for other in found.conditions:
            if other is not chosen:
                inside = both(inside, at_place(other, range_, place, inside))
        return select(inside, at_place(found.value, range_, place, inside), number(value.dtype, 0))
    return None


def place_of(scale: int, rest: Affine, range_: UOp) -> tuple[UOp, UOp]:
    """The index at which scale * range + rest is 0, and whether the range has it."""
    place = from_affine(rest.scaled(-1) if scale > 0 else rest)
    inside = TRUE
    if abs(scale) != 1:
        inside = (place % abs(scale)).eq(0)
        place = place // abs(scale)
    return place, both(inside, both(opposite(place < 0), place < range_.src[0]))


def fold_two_values(node: UOp) -> UOp | None:
    """sum over r of v, which is `yes` where r == e and `no` elsewhere, is yes + no * (n - 1) where 0 <= e < n, else
    no * n: the slope of a row of scores whose class has a share of its own."""
    return _fold_any_range(node, two_values)


def two_values(value: UOp, range_: UOp) -> UOp | None:
    size = range_.src[0]
    chosen = only_condition(value, range_)
    difference = None if chosen is None else difference_in_index(chosen)
    split = None if difference is None else split_range(difference, range_)
    if chosen is None or split is None or not size.is_const or size.arg < 2:
        return None
    times, others = as_dtype(size, value.dtype), as_dtype(number(size.dtype, size.arg - 1), value.dtype)
    if times is None or others is None or value.dtype.is_bool:
        return None
    yes, no = (substitute(value, {chosen: number(dtypes.bool, holds)}) for holds in (True, False))
    _, inside = place_of(*split, range_)
    return select(inside, yes + no * others, no * times)


def only_condition(value: UOp, range_: UOp) -> UOp | None:
    """The one comparison for equality through which alone a value depends on a range."""
    found: UOp | None = None
    stack, seen = [value], {value}
    while stack:
        node = stack.pop()
        if range_ not in node.ranges:
            continue
        if node.op is Ops.CMPEQ:
            if found is not None:
                return None
            found = node
        elif node.op.is_elementwise:
            stack += [source for source in node.src if source not in seen]
            seen.update(node.src)
        else:
            return None
    return found


def at_place(value: UOp, range_: UOp, place: UOp, inside: UOp) -> UOp:
    """The value with the range replaced by that index. Both branches of a WHERE are computed, so loads at the index are
    masked where it is out of range."""
    if range_ not in value.ranges:
        return value

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node is range_:
            return place
        if node.op is Ops.INDEX and range_ in node.ranges:
            return node.with_src((*src[:2], inside if len(src) == 2 else both(inside, src[2])))
        return None

    return map_graph(value, visit, toposort(value, stop=lambda each: range_ not in each.ranges))


def fold_count(node: UOp) -> UOp | None:
    """sum over r of where(a <= r < b, v, 0) is v * max(min(b, n) - max(a, 0), 0) for a v that does not depend on r."""
    return _fold_any_range(node, count)


def count(value: UOp, range_: UOp) -> UOp | None:
    """The sum over one range of a value masked to an interval of the range."""
    found = masked(value)
    if found is None or range_ in found.value.ranges:
        return None
    low, high = number(dtypes.index, 0), range_.src[0]
    outer = TRUE
    for condition in found.conditions:
        if range_ not in condition.ranges:
            outer = both(outer, condition)
            continue
        limit = limit_of(condition, range_)
        if limit is None:
            return None
        is_upper, bound = limit
        if is_upper:
            high = high.minimum(bound)
        else:
            low = low.maximum(bound)
    number_of = (high - low).maximum(0)
    times = as_dtype(number_of.minimum(range_.src[0]), value.dtype)
    if times is None:
        return None
    total = found.value * times
    if value.dtype.is_float and not (found.value.op is Ops.CONST and math.isfinite(found.value.arg)):
        # inf added zero times is 0, but inf * 0 is NaN.
        outer = both(outer, opposite(number_of < 1))
    return total if outer is TRUE else select(outer, total, number(value.dtype, 0))


def limit_of(condition: UOp, range_: UOp) -> tuple[bool, UOp] | None:
    """(True, b) for a condition range < b; (False, a) for range >= a."""
    negated = condition.op is Ops.XOR and condition.src[1] is TRUE
    comparison = condition.src[0] if negated else condition
    if comparison.op is not Ops.CMPLT:
        return None
    difference = difference_in_index(comparison)
    split = None if difference is None else split_range(difference, range_)
    if split is None:
        return None
    scale, rest = split
    if scale > 0:
        # k * r + rest < 0 is r < -(rest // k): division rounds down, so its negation rounds up.
        quotient = from_affine(rest) // scale
        return not negated, -quotient
    # rest < k * r is r >= rest // k + 1.
    return negated, from_affine(rest) // -scale + 1


def fold_parts(node: UOp) -> UOp | None:
    """sum(a + b) is sum(a) + sum(b) where one of the two folds over some range."""
    value = node.src[0]
    for one, other in (value.src, value.src[::-1]):
        for range_ in node.src[1:]:
            folded = one_hot(one, range_) or count(one, range_)
            if folded is None and _folds_further(one, range_):
                folded = UOp(Ops.REDUCE, node.dtype, (one, range_), Ops.ADD)
            if folded is not None:
                rest = UOp(Ops.REDUCE, node.dtype, (other, *node.src[1:]), node.arg)
                return without_range(node, range_, folded) + rest
    return None


def _folds_further(value: UOp, range_: UOp) -> bool:
    """Whether a part of a longer sum folds."""
    stack = [value]
    while stack:
        top = stack.pop()
        if top.op is not Ops.ADD:
            continue
        for part in top.src:
            if one_hot(part, range_) is not None or count(part, range_) is not None:
                return True
            stack.append(part)
    return False


def is_sum(arg: object) -> bool:
    return arg is Ops.ADD


ANY_REDUCE = op(Ops.REDUCE, name="node")
SUM = op(Ops.REDUCE, name="node", arg=is_sum)

REDUCE_RULES = RuleSet(
    "reduce",
    [
        Rule("reduce-nothing", ANY_REDUCE, lambda node: node.src[0] if len(node.src) == 1 else None),
        Rule("reduce-single-range", ANY_REDUCE, drop_single_range),
        Rule("reduce-unused-ranges", ANY_REDUCE, drop_unused_ranges),
        Rule("reduce-one-hot", SUM, fold_one_hot),
        Rule("reduce-count", SUM, fold_count),
        Rule("reduce-two-values", SUM, fold_two_values),
        Rule(
            "reduce-parts",
            SUM,
            fold_parts,
            # For floats each a + b is rounded: in separate sums, a large a and a large b would no longer cancel.
            when=lambda node: node.src[0].op is Ops.ADD and not node.dtype.is_float,
        ),
    ],
)

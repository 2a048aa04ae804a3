"""Division and remainder. In: IDIV and MOD of sums. Out: fewer and smaller divisions, by divisibility and bounds. Both
round down, a divisor of 0 gives 0, and a fixed-width dividend is split only where it cannot wrap."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.dtype import DType
from tilewright.graph.affine import Affine, affine, from_affine, ring_form
from tilewright.graph.bounds import mul_bounds
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, const, op, var
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.common import exactly, holds, number
from tilewright.graph.uop import UOp


def quotient_of(dividend: Affine, divisor: int, dtype: DType) -> UOp | None:
    """The node of dividend // divisor; None where the dividend may wrap."""
    node = exactly(dividend, dtype)
    return None if node is None else UOp(Ops.IDIV, dtype, (node, number(dtype, divisor)))


def remainder_of(dividend: Affine, divisor: int, dtype: DType) -> UOp | None:
    node = exactly(dividend, dtype)
    return None if node is None else UOp(Ops.MOD, dtype, (node, number(dtype, divisor)))


def same_multiple(form: Affine, divisor: int) -> int | None:
    """The m for which the form always lies in [m * divisor, (m + 1) * divisor)."""
    low, high = form.bounds
    multiple = low // divisor
    return multiple if multiple == high // divisor else None


def scaled_down(form: Affine, divisor: int) -> Affine:
    """form / divisor of a form whose terms it divides; the constant is rounded down."""
    return Affine({atom: count // divisor for atom, count in form.terms.items()}, form.constant // divisor)


def common_factor(form: Affine, divisor: int) -> int:
    return math.gcd(divisor, *form.terms.values())


def split_small(form: Affine, divisor: int) -> tuple[int, Affine, Affine] | None:
    """form = big + small, where a factor g of the divisor divides big and small stays in one [m * g, (m + 1) * g).
    Gives g, big / g + m and small - m * g, the remainder modulo g."""
    factors = {math.gcd(count, divisor) for count in form.terms.values()}
    for factor in sorted(factors, reverse=True):
        if factor == 1:
            return None
        big = {atom: count for atom, count in form.terms.items() if count % factor == 0}
        small = {atom: count for atom, count in form.terms.items() if count % factor}
        low_part = Affine(small, form.constant % factor)
        multiple = same_multiple(low_part, factor)
        if multiple is None:
            continue
        high_part = Affine({atom: count // factor for atom, count in big.items()}, form.constant // factor + multiple)
        return factor, high_part, Affine(small, low_part.constant - multiple * factor)
    return None


def residues(form: Affine, divisor: int) -> Affine:
    """The form with every number taken modulo the divisor."""
    terms = {atom: count % divisor for atom, count in form.terms.items() if count % divisor}
    return Affine(terms, form.constant % divisor)


def _line_through(form: Affine, dtype: DType, function: Callable[[int], int]) -> UOp | None:
    """A function of an atom with two values is affine: (x + 1) // 2 is x, and (x + 1) % 2 is 1 - x, where x is 0 or
    1."""
    if len(form.terms) != 1:
        return None
    ((atom, count),) = form.terms.items()
    low, high = (int(end) for end in atom.bounds)
    if high - low != 1:
        return None
    first, last = (function(count * value + form.constant) for value in (low, high))
    terms = {atom: last - first} if last != first else {}
    return exactly(Affine(terms, first - (last - first) * low), dtype)


# ---------------------------------------------------------------- division by a positive constant


def divide_sum(x: UOp, d: UOp) -> UOp | None:
    """One step towards the smallest division. The result may have another division, which is simplified in turn."""
    divisor = d.arg
    dtype = x.dtype
    form = affine(x)
    whole = {atom: count // divisor for atom, count in form.terms.items() if count % divisor == 0}
    rest = Affine(
        {atom: count for atom, count in form.terms.items() if count % divisor},
        form.constant % divisor,
    )
    outside = Affine(whole, form.constant // divisor)
    multiple = same_multiple(rest, divisor)
    if multiple is not None:
        return from_affine(Affine(whole, outside.constant + multiple), dtype)
    if whole or outside.constant:
        inner = quotient_of(rest, divisor, dtype)
        return None if inner is None else from_affine(outside.plus(ring_form(inner)), dtype)
    return (
        _divide_negative(form, divisor, dtype)
        or _divide_residues(form, divisor, dtype)
        or _divide_by_factor(form, divisor, dtype)
        or _divide_nested(form, divisor, dtype)
        or _line_through(form, dtype, lambda value: value // divisor)
    )


def _divide_negative(form: Affine, divisor: int, dtype: DType) -> UOp | None:
    """(k - x) // d is -((x + d - 1 - k) // d): rounding down a negative number is rounding up a positive one."""
    if any(count > 0 for count in form.terms.values()):
        return None
    positive = quotient_of(form.scaled(-1).plus(Affine({}, divisor - 1)), divisor, dtype)
    return None if positive is None else from_affine(ring_form(positive).scaled(-1), dtype)


def _divide_residues(form: Affine, divisor: int, dtype: DType) -> UOp | None:
    """(5x + y) // 4 is x where x + y stays below 4. Used only where no division remains."""
    if all(0 <= count < divisor for count in form.terms.values()):
        return None
    small = residues(form, divisor)
    multiple = same_multiple(small, divisor)
    if multiple is None:
        return None
    big = scaled_down(form.plus(small, -1), divisor)
    return from_affine(Affine(big.terms, big.constant + multiple), dtype)


def _divide_by_factor(form: Affine, divisor: int, dtype: DType) -> UOp | None:
    """(4x + k) // 12 is (x + k // 4) // 3, and (4x + y) // 12 is x // 3 where 0 <= y < 4."""
    factor = common_factor(form, divisor)
    if factor > 1:
        return quotient_of(scaled_down(form, factor), divisor // factor, dtype)
    split = split_small(form, divisor)
    if split is None:
        return None
    factor, high, _ = split
    return quotient_of(high, divisor // factor, dtype)


def _divide_nested(form: Affine, divisor: int, dtype: DType) -> UOp | None:
    """(y // a + k) // b is (y + k * a) // (a * b); (y % (a * b)) // a is (y // a) % b."""
    if len(form.terms) != 1:
        return None
    ((atom, count),) = form.terms.items()
    if count != 1 or atom.op not in (Ops.IDIV, Ops.MOD) or not atom.src[1].is_const:
        return None
    inner, inner_divisor = atom.src[0], atom.src[1].arg
    if inner_divisor <= 0:
        return None
    if atom.op is Ops.IDIV:
        if not holds(dtype, inner_divisor * divisor):
            return None
        dividend = affine(inner).plus(Affine({}, form.constant * inner_divisor))
        return quotient_of(dividend, inner_divisor * divisor, dtype)
    if form.constant or inner_divisor % divisor:
        return None
    quotient = UOp(Ops.IDIV, dtype, (inner, number(dtype, divisor)))
    return UOp(Ops.MOD, dtype, (quotient, number(dtype, inner_divisor // divisor)))


# ---------------------------------------------------------------- remainder by a positive constant


def remainder_of_sum(x: UOp, d: UOp) -> UOp | None:
    """One step towards the smallest remainder."""
    divisor = d.arg
    dtype = x.dtype
    form = affine(x)
    multiple = same_multiple(form, divisor)
    if multiple is not None:
        return from_affine(Affine(form.terms, form.constant - multiple * divisor), dtype)
    small = _drop_multiples(form, divisor)
    multiple = same_multiple(small, divisor)
    if multiple is not None:
        return from_affine(Affine(small.terms, small.constant - multiple * divisor), dtype)
    positive = residues(small, divisor)
    multiple = same_multiple(positive, divisor)
    if multiple is not None:
        return from_affine(Affine(positive.terms, positive.constant - multiple * divisor), dtype)
    if small != form:
        return remainder_of(small, divisor, dtype)
    return (
        _remainder_of_negative(form, divisor, dtype)
        or _remainder_by_factor(form, divisor, dtype)
        or _line_through(form, dtype, lambda value: value % divisor)
    )


def _remainder_of_negative(form: Affine, divisor: int, dtype: DType) -> UOp | None:
    """(k - x) % d is d - 1 - (x - k - 1) % d."""
    if any(count > 0 for count in form.terms.values()):
        return None
    positive = remainder_of(form.scaled(-1).plus(Affine({}, divisor - 1)), divisor, dtype)
    return None if positive is None else from_affine(Affine({}, divisor - 1).plus(ring_form(positive), -1), dtype)


def _drop_multiples(form: Affine, divisor: int) -> Affine:
    """Every coefficient reduced modulo the divisor, keeping its sign; and x in place of x % n where n times its
    coefficient is a multiple of the divisor."""
    terms: dict[UOp, int] = {}
    constant = form.constant
    for atom, count in form.terms.items():
        kept = count % divisor if count > 0 else -(-count % divisor)
        if kept:
            terms[atom] = kept
    small = Affine(terms, constant % divisor)
    for atom, count in terms.items():
        if atom.op is Ops.MOD and atom.src[1].is_const and atom.src[1].arg and count * atom.src[1].arg % divisor == 0:
            rest = {other: number for other, number in terms.items() if other is not atom}
            return Affine(rest, small.constant).plus(affine(atom.src[0]), count)
    return small


def _remainder_by_factor(form: Affine, divisor: int, dtype: DType) -> UOp | None:
    """(4x + k) % 12 is (x + k // 4) % 3 * 4 + k % 4, and (4x + y) % 12 is x % 3 * 4 + y where 0 <= y < 4."""
    factor = common_factor(form, divisor)
    if factor > 1:
        high, low = scaled_down(form, factor), Affine({}, form.constant % factor)
    else:
        split = split_small(form, divisor)
        if split is None:
            return None
        factor, high, low = split
    inner = remainder_of(high, divisor // factor, dtype)
    return None if inner is None else from_affine(low.plus(ring_form(inner), factor), dtype)


# ---------------------------------------------------------------- division by a non-constant


def may_wrap(product: UOp) -> bool:
    low, high = mul_bounds(product)
    return not (holds(product.dtype, int(low)) and holds(product.dtype, int(high)))


def split_by_divisor(form: Affine, d: UOp) -> tuple[Affine, Affine] | None:
    """form = d * whole + rest, where the terms of `whole` have d as a factor."""
    whole: dict[UOp, int] = {}
    rest: dict[UOp, int] = {}
    constant = 0
    for atom, count in form.terms.items():
        if atom is d:
            constant += count
        elif atom.op is Ops.MUL and d in atom.src and not may_wrap(atom):
            whole[atom.src[1] if atom.src[0] is d else atom.src[0]] = count
        else:
            rest[atom] = count
    if not whole and not constant:
        return None
    return Affine(whole, constant), Affine(rest, form.constant)


def divide_by_variable(x: UOp, d: UOp) -> UOp | None:
    """(y * n + r) // n is y + r // n where n is not 0."""
    low, high = d.bounds
    if low <= 0 <= high:
        return None
    parts = split_by_divisor(affine(x), d)
    if parts is None:
        return None
    whole, rest = parts
    inner = exactly(rest, x.dtype)
    if inner is None:
        return None
    return from_affine(whole.plus(ring_form(UOp(Ops.IDIV, x.dtype, (inner, d)))), x.dtype)


def remainder_by_variable(x: UOp, d: UOp) -> UOp | None:
    """(y * n + r) % n is r % n; x % n is x where 0 <= x < n."""
    if 0 <= x.bounds[0] and x.bounds[1] < d.bounds[0]:
        return x
    parts = split_by_divisor(affine(x), d)
    if parts is None:
        return None
    rest = exactly(parts[1], x.dtype)
    return None if rest is None else UOp(Ops.MOD, x.dtype, (rest, d))


def negate_dividend(x: UOp, d: UOp) -> UOp | None:
    """x // -c is -x // c."""
    return quotient_of(affine(x).scaled(-1), -d.arg, x.dtype) if holds(x.dtype, -d.arg) else None


def negate_remainder(x: UOp, d: UOp) -> UOp | None:
    """x % -c is -(-x % c)."""
    if not holds(x.dtype, -d.arg):
        return None
    positive = remainder_of(affine(x).scaled(-1), -d.arg, x.dtype)
    return None if positive is None else from_affine(ring_form(positive).scaled(-1), x.dtype)


def is_size_of(x: UOp, d: UOp) -> bool:
    return x.op is Ops.RANGE and x.src[0] is d


x, d = var("x", "integer"), const("d")
n = var("d")
r = op(Ops.RANGE, name="x")

DIVMOD_RULES = RuleSet(
    "divmod",
    [
        Rule("divide-by-zero", x // 0, lambda x: number(x.dtype, 0)),
        Rule("remainder-by-zero", x % 0, lambda x: number(x.dtype, 0)),
        Rule("divide-by-one", x // 1, x),
        Rule("remainder-by-one", x % 1, lambda x: number(x.dtype, 0)),
        Rule("remainder-by-itself", x % x, lambda x: number(x.dtype, 0)),
        Rule(
            "divide-by-itself",
            x // x,
            lambda x: number(x.dtype, 1),
            when=lambda x: not x.bounds[0] <= 0 <= x.bounds[1],
        ),
        Rule("divide-sum", x // d, divide_sum, when=lambda d: d.arg > 1),
        Rule("remainder-of-sum", x % d, remainder_of_sum, when=lambda d: d.arg > 1),
        Rule("divide-by-negative", x // d, negate_dividend, when=lambda d: d.arg < 0),
        Rule("remainder-by-negative", x % d, negate_remainder, when=lambda d: d.arg < 0),
        Rule("divide-range-by-its-size", r // n, lambda x: number(x.dtype, 0), when=is_size_of),
        Rule("remainder-of-range-by-its-size", r % n, r, when=is_size_of),
        Rule("divide-by-variable", x // n, divide_by_variable, when=lambda d: d.op is not Ops.CONST),
        Rule("remainder-by-variable", x % n, remainder_by_variable, when=lambda d: d.op is not Ops.CONST),
    ],
)

"""How far a right answer may lie from `evaluate`'s. In: a tensor graph and the values of its leaves. Out: for every
node its reference value and, element by element, the interval in which every right implementation's value must lie.

Devices may differ from the interpreter in three ways only, and each has its place here:
  - a product may be contracted with the addition that uses it (FMA): `Bound.wide` keeps the product before rounding,
    and only additions look at it; a value that is stored has been rounded. So 0 - x*x is -0.0 or 0.0 where x*x is too
    small for the dtype, and 0.0 where x is zero;
  - a float reduction may be reassociated: the classical bound n*u*sum|x|, or no room at all where every order is exact
    (small integers, powers of two), which is found out from the bits of the summands;
  - EXP2, LOG2 and SIN may be wrong by `TRANSCENDENTAL_ULPS`.
Everything else is one rounding of exact inputs and must agree to the bit: signed zeros too, NaNs up to their payload.

From those three sources intervals are carried through the graph. Monotone ops map them; a discontinuous consumer (a
comparison, a cast to an integer, TRUNC, a gather's index) gives one value where the interval leaves no doubt and makes
the element `free` where it does. So no generator has to avoid amplification: an element is compared exactly, within an
interval, or not at all, and `count` says how many of each there were."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtype import DType, dtypes
from tilewright.graph.interpreter import evaluate as interpreter
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.interpreter.numpy_math import cast_array
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Kind, Op
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

Array = NDArray[Any]

# How far EXP2, LOG2 and SIN may lie from the interpreter's, in units in the last place. The interpreter's own value of
# a double is not correctly rounded. Small floats are computed in float32 and rounded once more.
TRANSCENDENTAL_ULPS: dict[DType, float] = {dtypes.float32: 2.0, dtypes.float64: 3.0}
SMALL_FLOAT_RELATIVE = 2.0**-21
# Arithmetic on these is emulated with a rounding after every op, so nothing is contracted.
CONTRACTED = (dtypes.float32, dtypes.float64)


@dataclass
class Bound:
    """`free` elements may be anything. Floats that are not free lie within least..greatest, two doubles that are equal
    (NaN both, or of one sign) where there is no room; a value of another kind that is not free is the reference's."""

    free: Array
    least: Array | None = None
    greatest: Array | None = None
    wide: tuple[Array, Array] | None = None  # the same as an addition sees it; None where it sees the same

    @property
    def exact(self) -> Array:
        if self.least is None or self.greatest is None:
            return ~self.free
        return ~self.free & is_point(self.least, self.greatest)

    def as_seen_by_addition(self) -> Bound:
        return self if self.wide is None else Bound(self.free, *self.wide)


def is_point(least: Array, greatest: Array) -> Array:
    same = (least == greatest) & (np.signbit(least) == np.signbit(greatest))
    return np.asarray(same | (np.isnan(least) & np.isnan(greatest)))


def evaluate_bounds(roots: tuple[UOp, ...], bindings: dict[UOp, Array]) -> dict[UOp, tuple[Array, Bound]]:
    """The reference value and the bound of every node."""
    order = toposort(*roots)
    values = dict(zip(order, evaluate_all(tuple(order), bindings), strict=True))
    bounds: dict[UOp, Bound] = {}
    with np.errstate(all="ignore"):
        for node in order:
            value = np.asarray(values[node])
            bounds[node] = _bound(node, value, [values[s] for s in node.src], [bounds[s] for s in node.src])
    return {node: (values[node], bounds[node]) for node in order}


def mismatches(got: Array, value: Array, bound: Bound, dtype: DType) -> Array:
    """Where `got` is not a right value."""
    if not dtype.is_float:
        return np.asarray(~bound.free & (got != value))
    assert bound.least is not None
    assert bound.greatest is not None
    least, greatest = bound.least, bound.greatest
    with np.errstate(all="ignore"):
        found = got.astype(np.float64)
        inside = (found >= least) & (found <= greatest)
        both_nan = np.isnan(found) & np.isnan(least) & np.isnan(greatest)
        # A point that is zero has a sign; an interval around zero has not.
        wrong_sign = is_point(least, greatest) & (np.signbit(found) != np.signbit(least))
    return np.asarray(~bound.free & ~both_nan & (~inside | wrong_sign))


def count(bound: Bound) -> tuple[int, int, int]:
    """Elements that are compared to the bit, within an interval, and not at all."""
    exact, free = int(bound.exact.sum()), int(bound.free.sum())
    return exact, bound.free.size - exact - free, free


# ---------------------------------------------------------------- one node


def _bound(node: UOp, value: Array, sources: list[Array], bounds: list[Bound]) -> Bound:
    if not node.src:
        return _exactly(node, value, np.zeros(value.shape, np.bool_))
    if node.op.kind is Kind.MOVEMENT:
        return _mapped(lambda arrays: interpreter._move(node, arrays[0]), bounds)
    if node.op is Ops.DETACH:
        return bounds[0]
    if node.op in (Ops.CONTIGUOUS, Ops.COPY):
        return Bound(bounds[0].free, bounds[0].least, bounds[0].greatest)
    if node.op is Ops.ASSIGN:
        return _assign(node, bounds)
    if node.op is Ops.GATHER:
        return _gather(node, sources, bounds)
    if node.op is Ops.REDUCE_AXIS:
        return _reduce(node, value, bounds[0])
    return _elementwise(node, value, sources, bounds)


def _exactly(node: UOp, value: Array, free: Array) -> Bound:
    """The value itself, where it is not free."""
    if not node.dtype.is_float:
        return Bound(free)
    point = value.astype(np.float64)
    return Bound(free, point, point)


def _mapped(move: Callable[[list[Array]], Array], bounds: list[Bound]) -> Bound:
    """A rearrangement of elements, done to all that is known of them."""
    free = move([b.free for b in bounds])
    if bounds[0].least is None:
        return Bound(free)
    least, greatest = move([b.least for b in bounds]), move([b.greatest for b in bounds])  # type: ignore[misc]
    if all(b.wide is None for b in bounds):
        return Bound(free, least, greatest)
    seen = [b.as_seen_by_addition() for b in bounds]
    wide = (move([b.least for b in seen]), move([b.greatest for b in seen]))  # type: ignore[misc]
    return Bound(free, least, greatest, wide)


def _assign(node: UOp, bounds: list[Bound]) -> Bound:
    stored = [Bound(b.free, b.least, b.greatest) for b in bounds]
    return _mapped(lambda arrays: interpreter._assign(None, node, arrays), stored)  # type: ignore[arg-type]


def _gather(node: UOp, sources: list[Array], bounds: list[Bound]) -> Bound:
    found = _mapped(lambda arrays: interpreter._gather(None, node, [arrays[0], *sources[1:]]), bounds[:1])  # type: ignore[arg-type]
    for index in bounds[1:]:
        found.free = found.free | index.free
    return found


def _spread(x: Array | None, shape: tuple[int, ...]) -> Array:
    assert x is not None
    return np.broadcast_to(x, shape)


def _elementwise(node: UOp, value: Array, sources: list[Array], bounds: list[Bound]) -> Bound:
    shape = value.shape
    seen = [b.as_seen_by_addition() for b in bounds] if node.op in (Ops.ADD, Ops.SUB) else bounds
    inexact = np.zeros(shape, np.bool_)
    for b in seen:
        inexact = inexact | ~b.exact
    result = _exactly(node, value, inexact)
    if node.op is Ops.BITCAST and node.src[0].dtype.is_float:
        # The payload of a NaN is nobody's promise.
        result.free = result.free | np.isnan(sources[0].astype(np.float64))
    elif node.op in _TRANSCENDENTAL:
        result = _transcendental(node, value, bounds[0])
    elif inexact.any():
        rule = _INTERVAL_RULES.get(node.op)
        if rule is not None:
            rule(node, sources, [_broadcast(b, shape) for b in seen], result)
    if node.op is Ops.MUL and node.dtype in CONTRACTED:
        result.wide = _unrounded_product(node, bounds, result)
    elif node.op in (Ops.NEG, Ops.WHERE) and node.dtype.is_float:
        result.wide = _passed_on(node, sources, bounds, result)
    elif node.op in (Ops.MIN, Ops.MAX) and node.src[0] is node.src[1]:
        result.wide = bounds[0].wide  # the same value, by another name
    return result


def _broadcast(bound: Bound, shape: tuple[int, ...]) -> Bound:
    if bound.least is None:
        return Bound(_spread(bound.free, shape))
    return Bound(_spread(bound.free, shape), _spread(bound.least, shape), _spread(bound.greatest, shape))


# ---------------------------------------------------------------- intervals

IntervalRule = Callable[[UOp, list[Array], list[Bound], Bound], None]


def _settle(node: UOp, result: Bound, least: Array, greatest: Array, known: Array, is_rounded: bool = True) -> None:
    """Writes the interval where the result is free so far and `known` holds. The ends are rounded as the value is."""
    if is_rounded:
        least = _rounded(np.nextafter(least, -np.inf), node.dtype)
        greatest = _rounded(np.nextafter(greatest, np.inf), node.dtype)
    assert result.least is not None
    assert result.greatest is not None
    # NaN is certain only where both ends and the reference are NaN.
    known = known & (np.isnan(least) == np.isnan(result.least)) & (np.isnan(greatest) == np.isnan(result.least))
    least, greatest = lesser(least, result.least), -lesser(-greatest, -result.greatest)
    certain = known & ((np.isfinite(least) & np.isfinite(greatest)) | is_point(least, greatest))
    change = result.free & certain
    result.least = np.where(change, least, result.least)
    result.greatest = np.where(change, greatest, result.greatest)
    result.free = result.free & ~change


def lesser(x: Array, y: Array) -> Array:
    """The lesser of two, where -0.0 is less than 0.0: a sum that is contracted with a product which by itself is
    rounded to zero has the sign of the product."""
    return np.where(x == y, np.where(np.signbit(x), x, y), np.minimum(x, y))


def _rounded(x: Array, dtype: DType) -> Array:
    return x if dtype is dtypes.float64 else cast_array(x, dtype).astype(np.float64)


def _not_free(sources: list[Bound]) -> Array:
    known = ~sources[0].free
    for source in sources[1:]:
        known = known & ~source.free
    return known


def _corners(calculate: Callable[[Array, Array], Array]) -> IntervalRule:
    def rule(node: UOp, _sources: list[Array], bounds: list[Bound], result: Bound) -> None:
        if not node.dtype.is_float:
            return
        x, y = bounds
        known = _not_free(bounds)
        if node.op is Ops.FDIV:
            known = known & ((y.least > 0) | (y.greatest < 0))
        ends = np.stack([calculate(a, b) for a in (x.least, x.greatest) for b in (y.least, y.greatest)])  # type: ignore[arg-type]
        known = known & (np.isnan(ends).any(axis=0) == np.isnan(ends).all(axis=0))
        is_rounded = node.op not in (Ops.MAX, Ops.MIN)
        _settle(node, result, ends.min(axis=0), ends.max(axis=0), known, is_rounded)

    return rule


def _monotone(calculate: Callable[[Array], Array], is_rounded: bool, is_falling: bool = False) -> IntervalRule:
    def rule(node: UOp, _sources: list[Array], bounds: list[Bound], result: Bound) -> None:
        if not node.dtype.is_float:
            return
        ends = [calculate(bounds[0].least), calculate(bounds[0].greatest)]  # type: ignore[arg-type]
        if is_falling:
            ends.reverse()
        _settle(node, result, ends[0], ends[1], ~bounds[0].free, is_rounded)

    return rule


def _compare(node: UOp, _sources: list[Array], bounds: list[Bound], result: Bound) -> None:
    x, y = bounds
    if x.least is None or y.least is None:
        return
    apart = (x.greatest < y.least) | (y.greatest < x.least)
    if node.op is Ops.CMPLT:
        apart = apart | (y.greatest <= x.least)
    result.free = result.free & ~(_not_free(bounds) & apart)


def _where(node: UOp, sources: list[Array], bounds: list[Bound], result: Bound) -> None:
    condition, yes, no = bounds
    taken = np.broadcast_to(sources[0], result.free.shape)
    may_take_yes, may_take_no = condition.free | taken, condition.free | ~taken
    known = ~((may_take_yes & yes.free) | (may_take_no & no.free))
    if node.dtype.is_float:
        known = known & ~(condition.free & (np.isnan(yes.least) | np.isnan(no.least)))  # type: ignore[arg-type]
        least = np.minimum(np.where(may_take_yes, yes.least, np.inf), np.where(may_take_no, no.least, np.inf))
        greatest = np.maximum(
            np.where(may_take_yes, yes.greatest, -np.inf), np.where(may_take_no, no.greatest, -np.inf)
        )
        _settle(node, result, least, greatest, known, is_rounded=False)
    else:
        same = ~condition.free | (np.broadcast_to(sources[1] == sources[2], known.shape))
        result.free = result.free & ~(known & same)


def _cast(node: UOp, _sources: list[Array], bounds: list[Bound], result: Bound) -> None:
    source = bounds[0]
    if node.src[0].dtype.is_bool and node.dtype.is_float:
        _settle(node, result, np.zeros(result.free.shape), np.ones(result.free.shape), result.free, is_rounded=False)
    if source.least is None or source.greatest is None:
        return
    if node.dtype.is_float:
        ends = _rounded(source.least, node.dtype), _rounded(source.greatest, node.dtype)
        _settle(node, result, *ends, ~source.free, is_rounded=False)
    elif node.dtype.is_bool:
        result.free = result.free & ~(~source.free & ((source.least > 0) | (source.greatest < 0)))
    else:
        # The interval may be an exact NaN on one side only where the element is free.
        one_value = cast_array(source.least, node.dtype) == cast_array(source.greatest, node.dtype)
        result.free = result.free & ~(~source.free & one_value)


_INTERVAL_RULES: dict[Op, IntervalRule] = {
    Ops.ADD: _corners(operator.add),
    Ops.SUB: _corners(operator.sub),
    Ops.MUL: _corners(operator.mul),
    Ops.FDIV: _corners(operator.truediv),
    Ops.MAX: _corners(np.maximum),
    Ops.MIN: _corners(np.minimum),
    Ops.NEG: _monotone(operator.neg, is_rounded=False, is_falling=True),
    Ops.SQRT: _monotone(np.sqrt, is_rounded=True),
    Ops.TRUNC: _monotone(np.trunc, is_rounded=False),
    Ops.ROUND: _monotone(np.rint, is_rounded=False),
    Ops.CMPLT: _compare,
    Ops.CMPEQ: _compare,
    Ops.CMPNE: _compare,
    Ops.WHERE: _where,
    Ops.CAST: _cast,
}


def _unrounded_product(node: UOp, bounds: list[Bound], result: Bound) -> tuple[Array, Array] | None:
    """The interval of the product before it is rounded: an addition may take that instead."""
    x, y = (_broadcast(b, result.free.shape) for b in bounds)
    ends = np.stack([a * b for a in (x.least, x.greatest) for b in (y.least, y.greatest)])  # type: ignore[operator]
    least, greatest = ends.min(axis=0), ends.max(axis=0)
    if node.dtype is dtypes.float64:
        is_whole = (odd_width(x.least) + odd_width(y.least) <= 53) & x.exact & y.exact
        is_whole &= (np.abs(least) > 1e-290) | (x.least == 0) | (y.least == 0)
        is_whole &= np.isfinite(least) | np.isinf(x.least) | np.isinf(y.least)  # type: ignore[arg-type]
        least = np.where(is_whole, least, np.nextafter(least, -np.inf))
        greatest = np.where(is_whole, greatest, np.nextafter(greatest, np.inf))
    least = np.where(np.isnan(result.least), result.least, np.minimum(least, result.least))
    greatest = np.where(np.isnan(result.least), result.greatest, np.maximum(greatest, result.greatest))
    if is_point(least, greatest).all():
        return None
    return least, greatest


def _passed_on(node: UOp, sources: list[Array], bounds: list[Bound], result: Bound) -> tuple[Array, Array] | None:
    """A sign or a choice between a product and its addition does not stop a compiler from contracting them."""
    if all(b.wide is None for b in bounds):
        return None
    shape = result.free.shape
    seen = [_broadcast(b.as_seen_by_addition(), shape) for b in bounds]
    if node.op is Ops.NEG:
        return -seen[0].greatest, -seen[0].least  # type: ignore[operator]
    taken = np.broadcast_to(sources[0], shape)
    least = np.where(taken, seen[1].least, seen[2].least)  # type: ignore[arg-type]
    greatest = np.where(taken, seen[1].greatest, seen[2].greatest)  # type: ignore[arg-type]
    return np.fmin(least, result.least), np.fmax(greatest, result.greatest)  # type: ignore[arg-type]


# ---------------------------------------------------------------- functions with an error of their own

_TRANSCENDENTAL: dict[Op, Callable[[Array], Array]] = {Ops.EXP2: np.exp2, Ops.LOG2: np.log2, Ops.SIN: np.sin}


def _transcendental(node: UOp, value: Array, source: Bound) -> Bound:
    function = _TRANSCENDENTAL[node.op]
    result = _exactly(node, value, np.ones(value.shape, np.bool_))
    assert source.least is not None
    assert source.greatest is not None
    if node.op is Ops.SIN:
        room = source.greatest - source.least
        least, greatest = result.least - room, result.greatest + room  # type: ignore[operator]
    else:
        least, greatest = function(source.least), function(source.greatest)
    ulps = TRANSCENDENTAL_ULPS.get(node.dtype)
    if ulps is None:
        least = least - np.abs(least) * SMALL_FLOAT_RELATIVE
        greatest = greatest + np.abs(greatest) * SMALL_FLOAT_RELATIVE
    else:
        least, greatest = least - ulps * ulp(least, node.dtype), greatest + ulps * ulp(greatest, node.dtype)
    if node.op is Ops.SIN:
        least, greatest = np.maximum(least, -1.0), np.minimum(greatest, 1.0)
    known = ~source.free
    if node.op is Ops.LOG2:
        known = known & (source.least > 0)
    _settle(node, result, least, greatest, known)
    # Infinity, NaN, the logarithm of what is not positive and the sine of zero have answers without error.
    exactly = value.astype(np.float64)
    special = source.exact & ~np.isfinite(source.least)
    if node.op is Ops.LOG2:
        special = special | (source.exact & ~np.isfinite(exactly))
    elif node.op is Ops.SIN:
        special = special | (source.exact & (source.least == 0))
    result.least = np.where(special, exactly, result.least)  # type: ignore[arg-type]
    result.greatest = np.where(special, exactly, result.greatest)  # type: ignore[arg-type]
    result.free = result.free & ~special
    return result


def ulp(x: Array, dtype: DType) -> Array:
    """The distance to the next value of the type, as a double."""
    lowest = 2 - (1 << (dtype.exponent_bits - 1)) - dtype.mantissa_bits
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    return np.ldexp(1.0, np.maximum(exponent - 1 - dtype.mantissa_bits, lowest))


# ---------------------------------------------------------------- reductions


def _reduce(node: UOp, value: Array, source: Bound) -> Bound:
    op, axes = node.arg

    def over(function: Callable[..., Any], x: Array) -> Array:
        return np.asarray(function(x, axis=axes, keepdims=True))

    if not node.dtype.is_float:
        return Bound(over(np.any, source.free))
    seen = source.as_seen_by_addition() if op is Ops.ADD else source
    exact = over(np.all, seen.exact)
    elements = int(np.prod([node.src[0].shape[axis] for axis in axes]))
    result = _exactly(node, value, np.ones(value.shape, np.bool_))
    if op in (Ops.MAX, Ops.MIN):
        reducer = np.max if op is Ops.MAX else np.min
        if elements:
            least, greatest = over(reducer, seen.least), over(reducer, seen.greatest)  # type: ignore[arg-type]
            _settle(node, result, least, greatest, ~over(np.any, seen.free), is_rounded=False)
        result.free = result.free & ~exact
    elif op is Ops.ADD:
        _sum(node, over, seen, exact, elements, result)
    else:
        _product(node, over, seen, exact, elements, result)
    # A NaN that is certain makes every reduction NaN.
    sure_nan = over(np.any, seen.exact & np.isnan(seen.least))  # type: ignore[arg-type]
    result.free = result.free & ~sure_nan
    result.least = np.where(sure_nan, np.nan, result.least)  # type: ignore[arg-type]
    result.greatest = np.where(sure_nan, np.nan, result.greatest)  # type: ignore[arg-type]
    return result


def _unit(dtype: DType) -> float:
    return float(2.0 ** -(dtype.mantissa_bits + 1))


def _largest(dtype: DType) -> float:
    if dtype is dtypes.float8_e4m3:
        return 448.0
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    return float(np.ldexp(2.0 - np.ldexp(1.0, -dtype.mantissa_bits), bias))


Over = Callable[[Callable[..., Any], Array], Array]


def _sum(node: UOp, over: Over, seen: Bound, exact: Array, elements: int, result: Bound) -> None:
    least, greatest = seen.least, seen.greatest
    assert least is not None
    assert greatest is not None
    magnitude = np.maximum(np.abs(least), np.abs(greatest))
    total = over(np.sum, magnitude)
    has_room = total * (1 + elements * _unit(node.dtype)) < _largest(node.dtype)
    # Every partial sum is a multiple of the smallest bit set in any summand; one of few enough bits is not rounded.
    bits = node.dtype.mantissa_bits + 1
    smallest = over(np.min, np.where(magnitude > 0, lowest_bit(least), np.inf)) if elements else np.ones(total.shape)
    every_order = exact & has_room & (total <= np.ldexp(smallest, bits))
    if elements <= 2:
        every_order = every_order | exact
    # Infinities of one sign win over any finite partial sum.
    infinite = np.isinf(least) & seen.exact
    finite_total = over(np.sum, np.where(infinite, 0.0, magnitude))
    certain_inf = (
        exact & over(np.any, infinite) & (finite_total * (1 + elements * _unit(node.dtype)) < _largest(node.dtype))
    )
    every_order = every_order | certain_inf
    result.free = result.free & ~every_order
    room = elements * _unit(node.dtype)
    if room < 0.25:
        room = room / (1 - room) * 1.01
        ends = over(np.sum, least) - room * total, over(np.sum, greatest) + room * total
        _settle(node, result, *ends, ~over(np.any, seen.free) & has_room)


def _product(node: UOp, over: Over, seen: Bound, exact: Array, elements: int, result: Bound) -> None:
    least, greatest = seen.least, seen.greatest
    assert least is not None
    assert greatest is not None
    if elements <= 2:
        result.free = result.free & ~exact
    small, large = np.minimum(np.abs(least), np.abs(greatest)), np.maximum(np.abs(least), np.abs(greatest))
    is_zero = (least == 0) & (greatest == 0)
    exponents = np.where(is_zero, 0.0, np.log2(large)), np.where(is_zero, 0.0, np.log2(small))
    highest = (1 << (node.dtype.exponent_bits - 1)) - 2
    fits_above = over(np.sum, np.maximum(exponents[0], 0)) < highest
    fits_below = over(np.sum, np.minimum(exponents[1], 0)) > 1 - highest
    width = np.where(is_zero, 0, odd_width(least))
    short = over(np.sum, width) <= node.dtype.mantissa_bits + 1
    has_zero = over(np.any, is_zero)
    result.free = result.free & ~(exact & fits_above & ((short & fits_below) | has_zero))
    straddles = (least <= 0) & (greatest >= 0)
    known = ~over(np.any, seen.free) & fits_above & fits_below & ~over(np.any, straddles)
    room = elements * _unit(node.dtype)
    if room < 0.25:
        room = room / (1 - room) * 1.01
        ends = over(np.prod, small) * (1 - room), over(np.prod, large) * (1 + room)
        is_negative = over(np.sum, least < 0) % 2 == 1
        signed = np.where(is_negative, -ends[1], ends[0]), np.where(is_negative, -ends[0], ends[1])
        _settle(node, result, *signed, known)


def lowest_bit(x: Array) -> Array:
    """The value of the last bit set in a double; 0 of 0."""
    fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    whole = np.abs(fraction * 2.0**53).astype(np.int64)
    return np.ldexp((whole & -whole).astype(np.float64), exponent - 53)


def odd_width(x: Array | None) -> Array:
    """Bits from the first to the last that is set; 0 of 0."""
    assert x is not None
    fraction, _ = np.frexp(np.where(np.isfinite(x), x, 0.0))
    whole = np.abs(fraction * 2.0**53).astype(np.int64)
    low = (whole & -whole).astype(np.float64)
    return np.where(whole == 0, 0, 53 - np.log2(np.where(low > 0, low, 1.0))).astype(np.int64)

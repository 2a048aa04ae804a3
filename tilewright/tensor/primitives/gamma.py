"""The logarithm of the gamma function and its derivative, on nodes. In: a float node of 32 bits at least. Out: a node
of the same shape and dtype. Between 1 and 3 a polynomial (tools/minimax.py), for large arguments Stirling's series, the
recurrence between them, and the reflection formula below 0."""

from __future__ import annotations

import math

from tilewright.graph import marks
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.tensor.primitives.functions import absolute, is_single, log, polynomial, reciprocal

# lgamma(2 + t) = t * (1 + t) * p(t) for t in -1..1, the highest power first.
_SINGLE = (
    1.4728212590853218e-05,
    -3.757300510187633e-05,
    3.468678187346086e-05,
    -5.5798165703890845e-05,
    0.00017843724344857037,
    -0.0004219137190375477,
    0.0009203987428918481,
    -0.00210385350510478,
    0.0049968077801167965,
    -0.012384593486785889,
    0.03296523913741112,
    -0.10031729936599731,
    0.42278432846069336,
)
_DOUBLE = (
    1.5857920137491608e-09,
    -3.0600532357525892e-09,
    -4.384603617028697e-09,
    7.64030623071621e-09,
    1.6400902248967505e-08,
    -2.994530397370703e-08,
    5.566229631100153e-09,
    -1.8749882127266867e-08,
    1.0457425823264172e-07,
    -2.1201387896332903e-07,
    3.9562573969437226e-07,
    -8.415088363883103e-07,
    1.8115241128672757e-06,
    -3.851755978863907e-06,
    8.22118910593745e-06,
    -1.76605100119835e-05,
    3.816908690978151e-05,
    -8.309532844568295e-05,
    0.00018255261389114614,
    -0.00040570737573261657,
    0.0009153769241694249,
    -0.002108130835274062,
    0.0049986411646212444,
    -0.012384192193334193,
    0.032965000621157016,
    -0.10031730167435424,
    0.42278433509846713,
)
# Stirling's series begins here, where the terms below are as precise as a float64.
_STIRLING = 8
_STEPS_TO_THREE = _STIRLING - 3
# B(2k) / (2k * (2k - 1)), and B(2k) / 2k: what follows the logarithm in the series of lgamma and of digamma.
_LGAMMA_TERMS = (-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_DIGAMMA_TERMS = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


def lgamma(x: UOp) -> UOp:
    """log|gamma(x)|, infinite at 0 and below it at whole numbers."""
    is_below = x < 0
    found = _lgamma_above_zero(is_below.where(1 - x, x))
    sine = absolute((_past_whole(x) * math.pi).alu(Ops.SIN))
    mirrored = x.eq(-math.inf).where(x.const_like(math.inf), math.log(math.pi) - log(sine) - found)
    return marks.with_slopes(is_below.where(mirrored, found), _lgamma_slope, x)


def _lgamma_slope(_: UOp, x: UOp) -> tuple[UOp]:
    return (digamma(x),)


def _lgamma_above_zero(x: UOp) -> UOp:
    is_large = x >= _STIRLING
    limited = is_large.where(x.const_like(2.0), x)
    is_below_one = limited < 1
    moved, product = limited, x.const_like(1.0)
    for _ in range(_STEPS_TO_THREE):
        is_above = moved >= 3
        moved = is_above.where(moved - 1, moved)
        product = is_above.where(product * moved, product)
    # lgamma(x) = lgamma(x + 1) - log(x) below 1. Both factors are exact, so that the zeros at 1 and 2 are.
    first = is_below_one.where(limited, moved - 1)
    second = is_below_one.where(limited - 1, moved - 2)
    logarithm = log(is_below_one.where(limited, product))
    near = first * second * polynomial(second, _SINGLE if is_single(x) else _DOUBLE)
    large = is_large.where(x, float(_STIRLING))
    inverse = reciprocal(large)
    far = (large - 0.5) * (log(large) - 1) + (math.log(2 * math.pi) - 1) / 2
    far = far + inverse * polynomial(inverse * inverse, _LGAMMA_TERMS)
    return is_large.where(far, near + is_below_one.where(-logarithm, logarithm))


def digamma(x: UOp) -> UOp:
    """The derivative of lgamma; NaN below 0 at whole numbers, where it changes from one infinity to the other."""
    is_below = x < 0
    positive = is_below.where(1 - x, x)
    start = 6 if is_single(x) else 10
    is_small = positive < start
    limited = is_small.where(positive, 1.0)
    total = reciprocal(limited)
    for step in range(1, start):
        total = total + reciprocal(limited + float(step))
    moved = is_small.where(positive + float(start), positive)
    inverse = reciprocal(moved)
    square = inverse * inverse
    series = log(moved) - inverse * 0.5 - square * polynomial(square, _DIGAMMA_TERMS)
    found = is_small.where(series - total, series)
    rest = _past_whole(x)
    is_whole = rest.eq(0)
    angle = (is_below & is_whole.ne(True)).where(rest, 0.25) * math.pi
    cotangent = (angle + math.pi / 2).alu(Ops.SIN) / angle.alu(Ops.SIN)
    mirrored = is_whole.where(x.const_like(math.nan), found - cotangent * math.pi)
    return is_below.where(mirrored, found)


def _past_whole(x: UOp) -> UOp:
    """The distance from the nearest whole number, exact, with the gradient of x."""
    return x - marks.detach(x.alu(Ops.ROUND))

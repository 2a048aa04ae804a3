"""Takes the source of an EXP2 or LOG2. Gives its value in adds, multiplications, bit operations and WHERE alone.

`decompose` calls this for the targets that lack these ops. There are no branches and no table lookups, so that a value
may be emitted as a vector. SIN is in `sine.py`, which uses the `Format` of this file.

Products that feed an addition are exact wherever a rounding error would matter, so that the results stay within the
stated errors whether or not the compiler contracts to FMA. Greatest errors found, in units in the last place, with
contraction / without it:

    float32  exp2 0.85 / 1.08   exp 1.04 / 0.99   log2 0.98 / 1.36   log 0.86 / 0.91
    float64  exp2 0.94 / 1.20   exp 1.03 / 0.98   log2 1.04 / 1.32   log 0.94 / 0.98

The tables come from `tools/minimax.py`. Small floats are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.dtype import DType, cast_scalar, dtypes
from tilewright.base.records import record
from tilewright.codegen.emulation.float_range import float_range
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@record
class Format:
    """Constants of a float type. `ln2_high` times a whole exponent is exact, so is `half_pi_high` times an integer of
    half the type's width, and so are the first two `half_pi_parts` times the quarter turns in `largest_near`. The
    tables hold the coefficients of polynomials p, lowest power first."""

    mantissa: int
    bias: int
    unsigned: DType
    signed: DType
    half_signed: DType
    half_pi_high: float
    half_pi_low: float
    half_pi_parts: tuple[float, float, float]
    largest_near: float  # the angles below are reduced with `half_pi_parts`
    root_half_bits: int  # the bits of sqrt(1/2), where mantissas are divided
    largest_exp: float  # the largest number whose exp is finite
    ln2_high: float
    ln2_low: float
    exp2: tuple[float, ...]  # 2**r = p(r), |r| <= 1/2
    exp: tuple[float, ...]  # exp(r) = p(r), |r| <= ln(2)/2
    log2: tuple[float, ...]  # log2(1 + f) = f + f*p(f)
    log: tuple[float, ...]  # log(1 + f) = f + f*p(f)
    sin: tuple[float, ...]  # sin(r) = r + r*p(r*r), |r| <= pi/4
    cos: tuple[float, ...]  # cos(r) = p(r*r), |r| <= pi/4

    @property
    def largest_exp2(self) -> float:
        """The largest number whose exp2 is finite: the one below bias + 1."""
        return (self.bias + 1) * (1.0 - 2.0 ** -(self.mantissa + 1))


# fmt: off
SINGLE = Format(
    mantissa=23,
    bias=127,
    unsigned=dtypes.uint32,
    signed=dtypes.int32,
    half_signed=dtypes.int16,
    half_pi_high=1.5703125,
    half_pi_low=0.00048382679466158152,
    half_pi_parts=(1.5707931518554688, 3.1749368645250797e-06, 2.5633440682570896e-12),
    largest_near=99.0,
    root_half_bits=0x3F3504F3,
    largest_exp=88.72283172607422,
    ln2_high=0.693145751953125,
    ln2_low=1.4286068203094172e-06,
    exp2=(
        1.0, 0.6931471824645996, 0.24022647738456726, 0.05550359562039375, 0.009618501178920269,
        0.0013390975072979927, 0.00015329077723436058,
    ),
    exp=(
        1.0, 1.0, 0.4999999403953552, 0.1666652113199234, 0.04166826233267784, 0.008368665352463722,
        0.001382168265990913,
    ),
    log2=(
        0.4426950514316559, -0.7213475108146667, 0.4808967113494873, -0.36068394780158997, 0.28861233592033386,
        -0.23990888893604279, 0.20419374108314514, -0.1886231154203415, 0.18701210618019104, -0.1159086748957634,
    ),
    log=(
        0.0, -0.49999988079071045, 0.33333325386047363, -0.2500159740447998, 0.20001953840255737,
        -0.16608799993991852, 0.14182522892951965, -0.1324591487646103, 0.128994882106781, -0.07607945054769516,
    ),
    sin=(0.0, -0.16666655242443085, 0.008332190103828907, -0.00019518630870152265),
    cos=(1.0, -0.5, 0.04166664555668831, -0.0013887310633435845, 2.4432569261989556e-05),
)

DOUBLE = Format(
    mantissa=52,
    bias=1023,
    unsigned=dtypes.uint64,
    signed=dtypes.int64,
    half_signed=dtypes.int32,
    half_pi_high=1.570796012878418,
    half_pi_low=3.139164786504813e-07,
    half_pi_parts=(1.5707963267948344, 6.223372171894969e-14, 1.6446256936324258e-26),
    largest_near=1607.0,
    root_half_bits=0x3FE6A09E667F3BCD,
    largest_exp=709.782712893384,
    ln2_high=0.6931471803691238,
    ln2_low=1.9082149292705877e-10,
    exp2=(
        1.0, 0.6931471805599453, 0.2402265069591013, 0.05550410866482008, 0.009618129107594067,
        0.0013333558146775765, 0.00015403530457169858, 1.5252733492175913e-05, 1.3215435257048663e-06,
        1.0178199924802991e-07, 7.073787139775054e-09, 4.434722996984308e-10,
    ),
    exp=(
        1.0, 1.0, 0.5000000000000011, 0.16666666666666413, 0.04166666666653022, 0.008333333333494407,
        0.0013888888943609213, 0.00019841269506719607, 2.4801493124953545e-05, 2.75575862549658e-06,
        2.76302376053413e-07, 2.500009072901832e-08,
    ),
    log2=(
        0.4426950408889634, -0.7213475204444824, 0.48089834696298184, -0.36067376022184866, 0.28853900817922307,
        -0.24044917355265474, 0.20609929145655265, -0.18033687420459643, 0.16029944907147237, -0.1442697693224421,
        0.1311543589338593, -0.12021769590748542, 0.11096382650424311, -0.10315311137056493, 0.09645965064135795,
        -0.08935830776423372, 0.08162495214130325, -0.08193272852494508, 0.09425658925445286, -0.08666828655869083,
        0.03773870780474285,
    ),
    log=(
        0.0, -0.5000000000000003, 0.33333333333333026, -0.2499999999997492, 0.20000000000085297, -0.1666666667135537,
        0.1428571427960961, -0.12499999604514274, 0.11111111099596262, -0.10000017938785723, 0.09090927423915192,
        -0.0833286406400776, 0.07691433527795279, -0.07149938296446517, 0.06685930184960096, -0.06194353276612399,
        0.05658994685394441, -0.05678196820391641, 0.06529513011976566, -0.06005860413703902, 0.026172033819180318,
    ),
    sin=(
        0.0, -0.16666666666666666, 0.008333333333333134, -0.00019841269841099735, 2.7557319155034353e-06,
        -2.5052093410097045e-08, 1.6057253358532285e-10, -7.53598186110985e-13,
    ),
    cos=(
        1.0, -0.5, 0.041666666666666595, -0.001388888888887306, 2.4801587288853727e-05, -2.755731417984953e-07,
        2.0875700911588745e-09, -1.1358539818209496e-11,
    ),
)
# fmt: on

# The least number of coefficients that are added in pairs, which takes one more multiplication.
MIN_PAIRED = 5
FORMATS = {dtypes.float32: SINGLE, dtypes.float64: DOUBLE}


def exp2(x: UOp, has_maximum: bool = False) -> UOp:
    """2**x: subnormal results are rounded once, beyond the range it gives 0 or infinity. `has_maximum` says that MAX,
    which keeps NaN, is one instruction."""
    return through_float32(lambda y: _exp2(y, has_maximum), x)


def exp(x: UOp, has_maximum: bool = False) -> UOp:
    """e**x with the argument reduced by a two-part ln 2; exp2(x * log2(e)) would multiply the product's error by x."""
    return through_float32(lambda y: _exp(y, has_maximum), x)


def log2(x: UOp) -> UOp:
    """The base 2 logarithm: minus infinity for both zeros, NaN below."""
    return through_float32(lambda y: _logarithm(y, FORMATS[y.dtype].log2, 1.0, 0.0), x)


def log(x: UOp) -> UOp:
    """The natural logarithm, as `log2`."""

    def natural(y: UOp) -> UOp:
        form = FORMATS[y.dtype]
        return _logarithm(y, form.log, form.ln2_high, form.ln2_low)

    return through_float32(natural, x)


def through_float32(function: Callable[[UOp], UOp], x: UOp) -> UOp:
    return function(x) if x.dtype in FORMATS else function(x.cast(dtypes.float32)).cast(x.dtype)


# ---------------------------------------------------------------- recognising exp and log


def exp2_of(x: UOp, has_maximum: bool = False) -> UOp:
    """EXP2(x). Where x is y * log2(e), as `exp` is spelt in a graph, the value is that of exp(y)."""
    for factor, other in (x.src, x.src[::-1]) if x.op is Ops.MUL else ():
        if other.is_const and abs(other.arg) == cast_scalar(LOG2_E, x.dtype):
            return exp(factor if other.arg > 0 else -factor, has_maximum)
    return exp2(x, has_maximum)


def is_natural_log(product: UOp) -> bool:
    """Whether the node is LOG2(x) * ln(2) or ln(2) * LOG2(x), as `log` is spelt in a graph."""
    if product.op is not Ops.MUL:
        return False
    logarithm, factor = product.src if product.src[1].is_const else product.src[::-1]
    return logarithm.op is Ops.LOG2 and factor.is_const and factor.arg == cast_scalar(LN_2, factor.dtype)


# ---------------------------------------------------------------- parts


def polynomial(x: UOp, coefficients: tuple[float, ...]) -> UOp:
    """Lowest power first. The lowest two coefficients, which decide the rounding, are added last, each with one
    rounding; a lowest one of 0 costs no addition."""
    value = x * (x * _paired(x, coefficients[2:]) + coefficients[1])
    return value + coefficients[0] if coefficients[0] != 0.0 else value


def _paired(x: UOp, coefficients: tuple[float, ...]) -> UOp:
    """Horner's scheme; in powers of x*x, with pairs c + d*x as coefficients, where there are many. An FMA that adds to
    its register needs a copy of each constant that it adds, and a pair is no constant. The chain is half as long."""
    if len(coefficients) < MIN_PAIRED:
        step, terms = x, [x.const_like(c) for c in coefficients]
    else:
        step, (evens, odds) = x * x, (coefficients[0::2], coefficients[1::2])
        terms = [x * odd + even for even, odd in zip(evens, odds, strict=False)]
        terms += [x.const_like(even) for even in evens[len(odds) :]]
    value = terms[-1]
    for term in reversed(terms[:-1]):
        value = value * step + term
    return value


def _bounded(x: UOp, low: float, high: float, beyond: float, has_maximum: bool) -> UOp:
    """x clamped to at least `low`, and `beyond` above `high`; NaN stays NaN. Comparisons that the range of x decides
    are omitted."""
    least, greatest = float_range(x)
    if least < low:
        x = x.maximum(low) if has_maximum else (x < low).where(x.const_like(low), x)
    return (x > high).where(x.const_like(beyond), x) if greatest > high else x


def _is_tame(x: UOp, form: Format, unit: float) -> bool:
    """Whether 2**(x / unit) is finite and normal for every x."""
    low, high = float_range(x)
    return low > (2 - form.bias) * unit and high < (form.bias - 1) * unit


def _shifter(form: Format, is_tame: bool) -> float:
    """The constant whose addition rounds to an integer n; subtracting it again gives n. The low bits of the sum are the
    biased exponent of 2**n where that is normal, else n + 2*bias."""
    return 1.5 * 2.0**form.mantissa + (form.bias if is_tame else 2 * form.bias)


def _times_power(value: UOp, shifted: UOp, is_tame: bool) -> UOp:
    """`value` * 2**n with one rounding, for `shifted` = n + `_shifter`.

    Where a factor could leave the range of the type n goes in two halves: half of n + 2*bias is the biased exponent
    of one factor, and what is left that of the other."""
    form = FORMATS[value.dtype]
    bits = shifted.bitcast(form.unsigned)
    if is_tame:
        return value * (bits << form.mantissa).bitcast(value.dtype)
    half = (bits << (form.mantissa - 1)) & -(1 << form.mantissa)
    rest = (bits << form.mantissa) - half
    return value * rest.bitcast(value.dtype) * half.bitcast(value.dtype)


def _exp2(x: UOp, has_maximum: bool) -> UOp:
    form = FORMATS[x.dtype]
    is_tame = _is_tame(x, form, 1.0)
    # At the lower end both factors of `_times_power` are 0, so that a masked-out -inf does not take the time of an
    # underflow. Past the upper end both are infinite: a product that overflows only by rounding might be contracted to
    # FMA first.
    x = _bounded(x, -2.0 * form.bias, form.largest_exp2, 2.0 * form.bias + 2.0, has_maximum)
    shifted = x + _shifter(form, is_tame)
    return _times_power(polynomial(x - (shifted - _shifter(form, is_tame)), form.exp2), shifted, is_tame)


def _exp(x: UOp, has_maximum: bool) -> UOp:
    form = FORMATS[x.dtype]
    is_tame = _is_tame(x, form, LN_2)
    x = _bounded(x, -2.0 * form.bias * LN_2, form.largest_exp, (2.0 * form.bias + 2.0) * LN_2, has_maximum)
    shifted = x * LOG2_E + _shifter(form, is_tame)
    whole = shifted - _shifter(form, is_tame)
    rest = (x - whole * form.ln2_high) - whole * form.ln2_low
    # 1 + (rest + rest**2 * ...): the first two coefficients are 1.
    series = rest * rest * _paired(rest, form.exp[2:]) + rest + 1.0
    return _times_power(series, shifted, is_tame)


def _logarithm(x: UOp, table: tuple[float, ...], unit_high: float, unit_low: float) -> UOp:
    """log(x) = e * unit + log(m) with x = 2**e * m and m between the square roots of 1/2 and 2.

    e = 0 all around 1, so nothing cancels there; elsewhere e * unit_high is exact and outweighs log(m)."""
    form = FORMATS[x.dtype]
    lift = form.mantissa + 1
    is_subnormal = x < 2.0 ** (1 - form.bias)
    bits = is_subnormal.where(x * 2.0**lift, x).bitcast(form.unsigned)
    # An offset keeps the exponent positive, because vector units lack a signed 64-bit shift.
    offset = form.bias + lift + 2
    cut = bits.const_like(form.root_half_bits - (offset << form.mantissa))
    cut_subnormal = bits.const_like(form.root_half_bits - ((offset - lift) << form.mantissa))
    position = bits - is_subnormal.where(cut_subnormal, cut)
    fraction = ((position & ((1 << form.mantissa) - 1)) + form.root_half_bits).bitcast(x.dtype) - 1.0
    # The bits of 2**mantissa with a small integer in them are 2**mantissa + that integer: a conversion for two ops.
    holder = (form.bias + form.mantissa) << form.mantissa
    exponent = ((position >> form.mantissa) | holder).bitcast(x.dtype) - (2.0**form.mantissa + offset)
    correction = fraction * polynomial(fraction, table)
    if unit_low:
        # Added to a small number, the low part causes no rounding error that matters.
        correction = correction + exponent * unit_low
        exponent = exponent * unit_high
    value = exponent + (fraction + correction)
    return _logarithm_of_special(x, value)


def _logarithm_of_special(x: UOp, value: UOp) -> UOp:
    at_most_zero = x.eq(0.0).where(x.const_like(-math.inf), math.nan)
    return (x > 0.0).where((x < math.inf).where(value, x), at_most_zero)

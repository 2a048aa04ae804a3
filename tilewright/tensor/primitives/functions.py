"""Functions of real numbers on nodes. In: a float node (of any shape: constants are 0-d and stand for every shape).
Out: a node of the same shape and dtype. None of the branches of a selection makes an infinity that the gradient of the
other could meet, and functions that are smooth at 0 have the gradient of one side there, not the mean of two."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dtype import dtypes
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

# Rational approximations of Cephes (S. L. Moshier), good to double precision; highest power first.
_TANH_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
_SINH_P = (-7.89474443963537015605e-1, -1.63725857525983828727e2, -1.15614435765005216044e4, -3.51754964808151394800e5)
_SINH_Q = (1.0, -2.77711081420602794433e2, 3.61578279834431989373e4, -2.11052978884890840399e6)
_ATAN_P = (
    -8.750608600031904122785e-1,
    -1.615753718733365076637e1,
    -7.500855792314704667340e1,
    -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)
_ATAN_Q = (
    1.0,
    2.485846490142306297962e1,
    1.650270098316988542046e2,
    4.328810604912902668951e2,
    4.853903996359136964868e2,
    1.945506571482613964425e2,
)
_ASIN_P = (
    4.253011369004428248960e-3,
    -6.019598008014123785661e-1,
    5.444622390564711410273e0,
    -1.626247967210700244449e1,
    1.956261983317594739197e1,
    -8.198089802484824371615e0,
)
_ASIN_Q = (
    1.0,
    -1.474091372988853791896e1,
    7.049610280856842141659e1,
    -1.471791292232726029859e2,
    1.395105614657485689735e2,
    -4.918853881490881290097e1,
)
# erf is x*T(x^2)/U(x^2) up to 1, and 1 - exp(-x^2)*P(x)/Q(x) above.
_ERF_T = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_ERF_U = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
ERFC_P = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687e0,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
ERFC_Q = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)
# The same in float32, by polynomials (tools/minimax.py): no division, and few terms. tanh and atan are x + x^3*p(x^2),
# erf is x + x*p(x^2), and 1 - exp(-x^2)*p(|x| - 2) above.
_SINGLE_TANH = (
    0.0021533591207116842,
    -0.008190588094294071,
    0.02170705795288086,
    -0.05394819378852844,
    0.13333220779895782,
    -0.3333333134651184,
)
_SINGLE_ATAN = (
    -0.017863230779767036,
    0.051696572452783585,
    -0.0830998569726944,
    0.10969892144203186,
    -0.14271651208400726,
    0.19999326765537262,
    -0.33333322405815125,
)
_SINGLE_ERF = (
    7.820617611287162e-05,
    -0.0008000920643098652,
    0.005187397822737694,
    -0.026853419840335846,
    0.11283579468727112,
    -0.3761262595653534,
    0.12837916612625122,
)
_SINGLE_ERFC = (
    2.9929944957984844e-06,
    -2.0066197976120748e-05,
    6.394259253283963e-05,
    -0.0001803972845664248,
    0.0005808148998767138,
    -0.0018356043146923184,
    0.005447108298540115,
    -0.01545829139649868,
    0.04180191829800606,
    -0.1067967563867569,
    0.25539568066596985,
)


# ---------------------------------------------------------------- pieces


def polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """By Horner's rule, the highest power first; a leading 1 costs nothing."""
    result = x + coefficients[1] if coefficients[0] == 1.0 else x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result = result * x + coefficient
    return result


def is_single(x: UOp) -> bool:
    """Whether float32 is all the precision that is wanted; smaller floats are computed in it."""
    return x.dtype.bits <= 32


def minus_abs(x: UOp) -> UOp:
    """-|x| with the gradient of one side at 0."""
    return (x < 0).where(x, -x)


def with_sign_of(x: UOp, size: UOp) -> UOp:
    return (x < 0).where(-size, size)


def absolute(x: UOp) -> UOp:
    return x.maximum(-x)


def reciprocal(x: UOp) -> UOp:
    return x.const_like(1.0) / x


def sqrt(x: UOp) -> UOp:
    return x.alu(Ops.SQRT)


def rsqrt(x: UOp) -> UOp:
    return reciprocal(sqrt(x))


def sign_bit(x: UOp) -> UOp:
    """Whether a float's sign bit is set, that of -0.0 and NaN too."""
    integer = {8: dtypes.int8, 16: dtypes.int16, 32: dtypes.int32, 64: dtypes.int64}[x.dtype.bits]
    return build.bitcast(x, integer) < 0


def round_to_even(x: UOp) -> UOp:
    """To the nearest whole number, halves to the even one."""
    whole = x.alu(Ops.TRUNC)
    rest = absolute(x - whole)
    half = whole * 0.5
    away = (rest > 0.5) | (rest.eq(0.5) & half.ne(half.alu(Ops.TRUNC)))
    return away.where(whole + (x < 0).where(x.const_like(-1.0), 1.0), whole)


# ---------------------------------------------------------------- exponentials and logarithms


def exp(x: UOp) -> UOp:
    # codegen knows this form and does not lose the bits that the product rounds away.
    return (x * (1 / math.log(2))).alu(Ops.EXP2)


def log(x: UOp) -> UOp:
    return x.alu(Ops.LOG2) * math.log(2)


def log10(x: UOp) -> UOp:
    return x.alu(Ops.LOG2) * math.log10(2)


def log1p(x: UOp) -> UOp:
    """log(1 + x) for x >= -1; the rounding of 1 + x is undone by the quotient (W. Kahan). What it adds has a slope that
    is all rounding error, so gradients do not go through it. At infinity the slope is 1, so that atanh has an infinite
    one at 1."""
    moved = x + 1
    exact = moved.eq(1) | moved.eq(math.inf)
    safe = exact.where(x.const_like(2.0), moved)
    rounded = log(safe)
    lost = moved.eq(0).where(x.const_like(0.0), rounded * (x / (safe - 1) - 1))
    return exact.where(x, rounded + build.detach(lost))


def expm1_below_zero(x: UOp) -> UOp:
    """exp(x) - 1 where x <= 0, accurate near 0; 0 above."""
    half = tanh((x > 0).where(x.const_like(0.0), x) * 0.5)
    return 2 * half / (1 - half)


def logaddexp(x: UOp, y: UOp) -> UOp:
    """log(exp(x) + exp(y)); equal infinities have no difference."""
    difference = x.eq(y).where(x.const_like(0.0), x - y)
    return x.maximum(y) + log1p(exp(minus_abs(difference)))


def sigmoid(x: UOp) -> UOp:
    shrunk = exp(minus_abs(x))  # at most 1, so nothing overflows on either side
    return build.with_slopes((x < 0).where(shrunk, 1.0) / (1 + shrunk), _sigmoid_slope, x)


def _sigmoid_slope(value: UOp, _: UOp) -> tuple[UOp]:
    return (value * (1 - value),)


def softplus(x: UOp) -> UOp:
    return build.with_slopes((x < 0).where(x.const_like(0.0), x) + log1p(exp(minus_abs(x))), _softplus_slope, x)


def _softplus_slope(_: UOp, x: UOp) -> tuple[UOp]:
    return (sigmoid(x),)


# ---------------------------------------------------------------- powers

_MAX_MULTIPLIED = 64  # the greatest whole power that is made of multiplications


def power(x: UOp, y: UOp) -> UOp:
    """x to the power y with the special cases of C's pow. The gradients are y * x**(y-1) and x**y * log(x): a special
    case has the slope of a power again, and not that of the expression it is selected from."""
    exponent = float(y.arg) if y.op is Ops.CONST else math.nan
    value = _whole_power(x, int(exponent)) if exponent.is_integer() and abs(exponent) <= _MAX_MULTIPLIED else None
    if value is not None and exponent > 0:
        return value  # products have the slopes of the power
    if value is None:
        value = _root_power(x, exponent) if abs(exponent) == 0.5 else _real_power(x, y)
    return build.with_slopes(value, _power_slopes, x, y)


def _power_slopes(value: UOp, x: UOp, y: UOp) -> tuple[UOp, UOp | None]:
    zero = x.const_like(0.0)
    below = y.const_like(y.arg - 1.0) if y.op is Ops.CONST else y - 1
    if y.op is Ops.CONST:
        return (zero if y.arg == 0 else y * power(x, below)), None
    flat = x.eq(0) & (y.eq(0) | (y > 0))  # a NaN is neither
    return y.eq(0).where(zero, y * power(x, below)), flat.where(zero, value * log(x))


def _whole_power(x: UOp, exponent: int) -> UOp:
    """By repeated squaring. The power 0 is 1 for every x, NaN too, but lies where x does: it is computed from x."""
    if exponent < 0:
        return reciprocal(_whole_power(x, -exponent))
    if exponent == 0:
        return build.cast((x < -math.inf).logical_not(), x.dtype)
    result: UOp | None = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        square = square * square if exponent else square
    assert result is not None
    return result


def _root_power(x: UOp, exponent: float) -> UOp:
    """x**0.5 or x**-0.5: roots but for -0.0, whose power has no sign, and -inf."""
    root = x.eq(-math.inf).where(x.const_like(math.inf), sqrt(x + 0.0))
    return root if exponent > 0 else reciprocal(root)


def _real_power(x: UOp, y: UOp) -> UOp:
    """2**(y*log2|x|) with the signs and special cases of C's pow."""
    size = absolute(x)
    result = (y * size.alu(Ops.LOG2)).alu(Ops.EXP2)
    whole = y.eq(y.alu(Ops.TRUNC))
    half = y * 0.5
    is_odd = whole & half.ne(half.alu(Ops.TRUNC))
    result = (sign_bit(x) & is_odd).where(-result, result)
    undefined = (x < 0) & (size < math.inf) & whole.logical_not()
    result = undefined.where(x.const_like(math.nan), result)
    is_one = y.eq(0) | x.eq(1) | (x.eq(-1) & absolute(y).eq(math.inf))
    return is_one.where(x.const_like(1.0), result)


# ---------------------------------------------------------------- trigonometry


def sin(x: UOp) -> UOp:
    return x.alu(Ops.SIN)


def cos(x: UOp) -> UOp:
    # Halving is exact, where adding pi/2 would lose the low bits of a large angle.
    half = sin(x * 0.5)
    return 1 - 2 * (half * half)


def tan(x: UOp) -> UOp:
    return sin(x) / cos(x)


def _asin_of_half(x: UOp) -> tuple[UOp, UOp]:
    """Whether |x| <= 1/2, and asin(x) there; elsewhere asin(sqrt((1 - |x|)/2)), half of acos(|x|). The root is what
    makes the slope infinite at 1 and -1."""
    minus_size = minus_abs(x)
    is_small = minus_size >= -0.5
    root = sqrt((1 + is_small.where(x.const_like(0.0), minus_size)) * 0.5)
    return is_small, _near_zero(is_small.where(x, root), _ASIN_P, _ASIN_Q)


def asin(x: UOp) -> UOp:
    is_small, angle = _asin_of_half(x)
    return is_small.where(angle, with_sign_of(x, math.pi / 2 - 2 * angle))


def acos(x: UOp) -> UOp:
    is_small, angle = _asin_of_half(x)
    return is_small.where(math.pi / 2 - angle, (x < 0).where(math.pi - 2 * angle, 2 * angle))


def atan(x: UOp) -> UOp:
    size = -minus_abs(x)
    large, middle = size > 2.414213562373095, size > 0.66
    one = x.const_like(1.0)
    # -1/size, (size - 1)/(size + 1) or size itself, by one division.
    upper = large.where(-one, middle.where(size - 1, size))
    reduced = upper / large.where(size, middle.where(size + 1, one))
    square = reduced * reduced
    if is_single(x):
        slope = square * polynomial(square, _SINGLE_ATAN)
    else:
        slope = square * polynomial(square, _ATAN_P) / polynomial(square, _ATAN_Q)
    start = large.where(x.const_like(math.pi / 2), middle.where(x.const_like(math.pi / 4), 0.0))
    angle = start + (reduced * slope + reduced)
    return (x < 0).where(-angle, x.eq(0).where(x, angle))


# ---------------------------------------------------------------- hyperbolic functions


def _near_zero(x: UOp, numerator: Sequence[float], denominator: Sequence[float]) -> UOp:
    """x + x^3*P(x^2)/Q(x^2)."""
    square = x * x
    return x + x * square * polynomial(square, numerator) / polynomial(square, denominator)


def tanh(x: UOp) -> UOp:
    minus_size = minus_abs(x)
    is_small = minus_size > -0.625
    # Beyond 20 the result is 1 in every dtype; the limit keeps the exponential where it takes least steps.
    shrunk = exp((minus_size < -20).where(x.const_like(-20.0), minus_size) * 2)
    near = is_small.where(x, 0.0)
    square = near * near
    if is_single(x):
        small = near + near * square * polynomial(square, _SINGLE_TANH)
        ratio = (1 - shrunk) / (1 + shrunk)
    else:
        # One division for both sides: it takes as long as half of all else.
        numerator = is_small.where(near * square * polynomial(square, _TANH_P), 1 - shrunk)
        ratio = numerator / is_small.where(polynomial(square, _TANH_Q), 1 + shrunk)
        small = near + ratio
    # The sum of zeros of unlike sign would lose that of x.
    return build.with_slopes(is_small.where(near.eq(0).where(near, small), with_sign_of(x, ratio)), _tanh_slope, x)


def _tanh_slope(value: UOp, _: UOp) -> tuple[UOp]:
    return (1 - value * value,)


def sinh(x: UOp) -> UOp:
    size = -minus_abs(x)
    is_small = size < 1
    root = exp(size * 0.5)  # exp(x) may overflow where half of it does not
    large = root * 0.5 * root - reciprocal(root) * 0.5 / root
    return is_small.where(_near_zero(is_small.where(x, 0.0), _SINH_P, _SINH_Q), with_sign_of(x, large))


def cosh(x: UOp) -> UOp:
    root = exp(minus_abs(x) * -0.5)
    return root * 0.5 * root + reciprocal(root) * 0.5 / root


def asinh(x: UOp) -> UOp:
    size = -minus_abs(x)
    is_large = size > 1e8  # the square has no room for the 1
    safe = is_large.where(x.const_like(1.0), size)
    square = safe * safe
    small = log1p(safe + square / (1 + sqrt(square + 1)))
    large = log(is_large.where(size, 1.0)) + math.log(2)
    return x.eq(0).where(x, with_sign_of(x, is_large.where(large, small)))


def acosh(x: UOp) -> UOp:
    is_large = x > 1e8
    above = is_large.where(x.const_like(1.0), x - 1)
    # Two roots: the root of the product would be that of a positive number below -1, and without slope at 1.
    return is_large.where(log(x) + math.log(2), log1p(above + sqrt(above) * sqrt(above + 2)))


def atanh(x: UOp) -> UOp:
    size = -minus_abs(x)
    return with_sign_of(x, log1p(2 * size / (1 - size)) * 0.5)


# ---------------------------------------------------------------- the normal distribution


def erf(x: UOp) -> UOp:
    size = -minus_abs(x)
    is_small = size < 1
    near_zero = is_small.where(x, 0.0)
    square = near_zero * near_zero
    # Beyond the limit the result is 1; it keeps the powers finite.
    limit = 4.0 if is_single(x) else 6.0
    limited = is_small.where(size.const_like(1.0), (size > limit).where(size.const_like(limit), size))
    shrunk = exp(-(limited * limited))
    if is_single(x):
        small = near_zero + near_zero * polynomial(square, _SINGLE_ERF)
        tail = shrunk * polynomial(limited - 2, _SINGLE_ERFC)
    else:
        small = near_zero * polynomial(square, _ERF_T) / polynomial(square, _ERF_U)
        tail = shrunk * polynomial(limited, ERFC_P) / polynomial(limited, ERFC_Q)
    return build.with_slopes(is_small.where(small, with_sign_of(x, 1 - tail)), _erf_slope, x)


def _erf_slope(_: UOp, x: UOp) -> tuple[UOp]:
    return (exp(-(x * x)) * (2 / math.sqrt(math.pi)),)

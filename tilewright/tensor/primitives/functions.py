"""Functions of real numbers on nodes. In: a float node of any shape (constants are 0-d and broadcast). Out: a node of
the same shape and dtype. No branch of a WHERE becomes infinite where the other is taken, since its gradient would be
NaN there. Functions that are smooth at 0 take the gradient of one side at 0, not the mean of the two."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dtype import dtypes
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.tensor.primitives import coefficients

# ---------------------------------------------------------------- pieces


def polynomial(x: UOp, factors: Sequence[float]) -> UOp:
    """By Horner's rule, the highest power first; a leading coefficient of 1 needs no multiplication."""
    result = x + factors[1] if factors[0] == 1.0 else x * factors[0] + factors[1]
    for factor in factors[2:]:
        result = result * x + factor
    return result


def is_single(x: UOp) -> bool:
    """Whether float32 precision suffices: for float32 itself, and for shorter floats, which are computed in it."""
    return x.dtype.bits <= 32


def minus_abs(x: UOp) -> UOp:
    """-|x|, with the gradient of one side at 0."""
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
    """Whether a float's sign bit is set, also for -0.0 and NaN."""
    integer = {8: dtypes.int8, 16: dtypes.int16, 32: dtypes.int32, 64: dtypes.int64}[x.dtype.bits]
    return build.bitcast(x, integer) < 0


# ---------------------------------------------------------------- exponentials and logarithms


def exp(x: UOp) -> UOp:
    # codegen recognises this form and computes it without the rounding error of the product.
    return (x * (1 / math.log(2))).alu(Ops.EXP2)


def log(x: UOp) -> UOp:
    return x.alu(Ops.LOG2) * math.log(2)


def log10(x: UOp) -> UOp:
    return x.alu(Ops.LOG2) * math.log10(2)


def log1p(x: UOp) -> UOp:
    """log(1 + x) for x >= -1; the rounding error of 1 + x is corrected by a quotient (W. Kahan). The derivative of that
    correction is nothing but rounding error, so it is detached. At infinity the derivative is 1, so that the derivative
    of atanh at 1 is infinite."""
    moved = x + 1
    exact = moved.eq(1) | moved.eq(math.inf)
    safe = exact.where(x.const_like(2.0), moved)
    rounded = log(safe)
    lost = moved.eq(0).where(x.const_like(0.0), rounded * (x / (safe - 1) - 1))
    return exact.where(x, rounded + marks.detach(lost))


def expm1_below_zero(x: UOp) -> UOp:
    """exp(x) - 1 where x <= 0, accurate near 0; 0 above."""
    half = tanh((x > 0).where(x.const_like(0.0), x) * 0.5)
    return marks.with_slopes(2 * half / (1 - half), _expm1_below_zero_slope, x)


def _expm1_below_zero_slope(_: UOp, x: UOp) -> tuple[UOp]:
    is_above = x > 0
    return (is_above.where(x.const_like(0.0), exp(is_above.where(x.const_like(0.0), x))),)


def logaddexp(x: UOp, y: UOp) -> UOp:
    """log(exp(x) + exp(y)); the difference of equal infinities is taken as 0."""
    difference = x.eq(y).where(x.const_like(0.0), x - y)
    return x.maximum(y) + log1p(exp(minus_abs(difference)))


def sigmoid(x: UOp) -> UOp:
    shrunk = exp(minus_abs(x))  # at most 1, so neither branch overflows
    return marks.with_slopes((x < 0).where(shrunk, 1.0) / (1 + shrunk), _sigmoid_slope, x)


def _sigmoid_slope(value: UOp, _: UOp) -> tuple[UOp]:
    return (value * (1 - value),)


def softplus(x: UOp) -> UOp:
    return marks.with_slopes((x < 0).where(x.const_like(0.0), x) + log1p(exp(minus_abs(x))), _softplus_slope, x)


def _softplus_slope(_: UOp, x: UOp) -> tuple[UOp]:
    return (sigmoid(x),)


# ---------------------------------------------------------------- powers

_MAX_MULTIPLIED = 64  # the largest integer power that is computed by multiplication


def power(x: UOp, y: UOp) -> UOp:
    """x to the power y with the special cases of C's pow. The gradients are y * x**(y-1) and x**y * log(x), also in
    special cases, where the gradient of the selected expression would differ."""
    exponent = float(y.arg) if y.op is Ops.CONST else math.nan
    value = _whole_power(x, int(exponent)) if exponent.is_integer() and abs(exponent) <= _MAX_MULTIPLIED else None
    if value is not None and exponent > 0:
        return value  # the gradient of the products is already right
    if value is None:
        value = _root_power(x, exponent) if abs(exponent) == 0.5 else _real_power(x, y)
    return marks.with_slopes(value, _power_slopes, x, y)


def _power_slopes(value: UOp, x: UOp, y: UOp) -> tuple[UOp, UOp | None]:
    zero = x.const_like(0.0)
    below = y.const_like(y.arg - 1.0) if y.op is Ops.CONST else y - 1
    if y.op is Ops.CONST:
        return (zero if y.arg == 0 else y * power(x, below)), None
    flat = x.eq(0) & (y.eq(0) | (y > 0))  # false for NaN
    return y.eq(0).where(zero, y * power(x, below)), flat.where(zero, value * log(x))


def _whole_power(x: UOp, exponent: int) -> UOp:
    """By repeated squaring. The power 0 is 1 for every x, also NaN; it is computed from x so that it is on the device
    of x."""
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
    """x**0.5 or x**-0.5: sqrt or rsqrt, except for -0.0, whose power is positive, and -inf."""
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
    # Halving is exact; adding pi/2 would lose the low bits of a large angle.
    half = sin(x * 0.5)
    return 1 - 2 * (half * half)


def tan(x: UOp) -> UOp:
    return sin(x) / cos(x)


def _asin_of_half(x: UOp) -> tuple[UOp, UOp]:
    """Whether |x| <= 1/2, and asin(x) there; elsewhere asin(sqrt((1 - |x|)/2)), half of acos(|x|). The root makes the
    derivative infinite at 1 and -1."""
    minus_size = minus_abs(x)
    is_small = minus_size >= -0.5
    root = sqrt((1 + is_small.where(x.const_like(0.0), minus_size)) * 0.5)
    return is_small, _near_zero(is_small.where(x, root), coefficients.ASIN_P, coefficients.ASIN_Q)


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
        slope = square * polynomial(square, coefficients.SINGLE_ATAN)
    else:
        slope = square * polynomial(square, coefficients.ATAN_P) / polynomial(square, coefficients.ATAN_Q)
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
    # Beyond 20 the result is 1 in every dtype; with the limit the exponential stays on its fast path.
    shrunk = exp((minus_size < -20).where(x.const_like(-20.0), minus_size) * 2)
    near = is_small.where(x, 0.0)
    square = near * near
    if is_single(x):
        small = near + near * square * polynomial(square, coefficients.SINGLE_TANH)
        ratio = (1 - shrunk) / (1 + shrunk)
    else:
        # One division for both branches: a division takes half as long as all the other operations together.
        numerator = is_small.where(near * square * polynomial(square, coefficients.TANH_P), 1 - shrunk)
        ratio = numerator / is_small.where(polynomial(square, coefficients.TANH_Q), 1 + shrunk)
        small = near + ratio
    # The sum of zeros of opposite sign would lose the sign of x.
    return marks.with_slopes(is_small.where(near.eq(0).where(near, small), with_sign_of(x, ratio)), _tanh_slope, x)


def _tanh_slope(value: UOp, _: UOp) -> tuple[UOp]:
    return (1 - value * value,)


def sinh(x: UOp) -> UOp:
    size = -minus_abs(x)
    is_small = size < 1
    root = exp(size * 0.5)  # exp(x) may overflow where half of it does not
    large = root * 0.5 * root - reciprocal(root) * 0.5 / root
    return is_small.where(
        _near_zero(is_small.where(x, 0.0), coefficients.SINH_P, coefficients.SINH_Q), with_sign_of(x, large)
    )


def cosh(x: UOp) -> UOp:
    root = exp(minus_abs(x) * -0.5)
    return root * 0.5 * root + reciprocal(root) * 0.5 / root


def asinh(x: UOp) -> UOp:
    size = -minus_abs(x)
    is_large = size > 1e8  # x*x + 1 rounds to x*x
    safe = is_large.where(x.const_like(1.0), size)
    square = safe * safe
    small = log1p(safe + square / (1 + sqrt(square + 1)))
    large = log(is_large.where(size, 1.0)) + math.log(2)
    return x.eq(0).where(x, with_sign_of(x, is_large.where(large, small)))


def acosh(x: UOp) -> UOp:
    is_large = x > 1e8
    above = is_large.where(x.const_like(1.0), x - 1)
    # Two roots: the product is positive for x < -1, where the result must be NaN, and its root would have no derivative
    # at 1.
    return is_large.where(log(x) + math.log(2), log1p(above + sqrt(above) * sqrt(above + 2)))


def atanh(x: UOp) -> UOp:
    size = -minus_abs(x)
    return with_sign_of(x, log1p(2 * size / (1 - size)) * 0.5)


# ---------------------------------------------------------------- the normal distribution


def erf(x: UOp) -> UOp:
    return marks.with_slopes(_single_erf(x) if is_single(x) else _double_erf(x), _erf_slope, x)


def _single_erf(x: UOp) -> UOp:
    """A polynomial near 0; elsewhere 1 - erfc(|x|), whose logarithm is a polynomial. Beyond the limit erfc is less than
    half a unit in the last place of 1."""
    limit, sign = 4.0, 1 << 31
    bits = build.bitcast(x, dtypes.uint32)
    size = build.bitcast(bits & (sign - 1), x.dtype)
    limited = (size > limit).where(size.const_like(limit), size)
    far = 1 - exp(polynomial(limited - 1, coefficients.SINGLE_LOG_ERFC))
    signed = build.bitcast(build.bitcast(far, dtypes.uint32) | (bits & sign), x.dtype)
    return (size < 1).where(x + x * polynomial(x * x, coefficients.SINGLE_ERF), signed)


def _double_erf(x: UOp) -> UOp:
    size = -minus_abs(x)
    is_small = size < 1
    near_zero = is_small.where(x, 0.0)
    square = near_zero * near_zero
    # Beyond the limit the result is 1; the limit keeps the powers finite.
    limit = 6.0
    limited = is_small.where(size.const_like(1.0), (size > limit).where(size.const_like(limit), size))
    small = near_zero * polynomial(square, coefficients.ERF_T) / polynomial(square, coefficients.ERF_U)
    shrunk = exp(-(limited * limited))
    tail = shrunk * polynomial(limited, coefficients.ERFC_P) / polynomial(limited, coefficients.ERFC_Q)
    return is_small.where(small, with_sign_of(x, 1 - tail))


def _erf_slope(_: UOp, x: UOp) -> tuple[UOp]:
    return (exp(-(x * x)) * (2 / math.sqrt(math.pi)),)

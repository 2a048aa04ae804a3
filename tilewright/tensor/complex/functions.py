"""Functions of one complex number. In: a complex tensor. Out: another. Each is computed from real functions of the
parts such that intermediate values do not overflow where the result does not; branch cuts are those of C99, and signs
of zero count. `tensor.py` makes them methods."""

from __future__ import annotations

import math
from typing import Any

# The functions of this module that are methods of complex tensors.
FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh") + (
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "sign",
    "sqrt",
    "square",
)


def divide(left: Any, right: Any) -> Any:
    """Both are scaled by the larger part of the divisor, so that its square stays in range."""
    scale = right.real.abs().maximum(right.imag.abs())
    is_plain = (scale > 0) & scale.isfinite()
    safe = is_plain.where(scale, 1.0)
    c, d = right.real / safe, right.imag / safe
    a, b = left.real / safe, left.imag / safe
    below = c * c + d * d
    return type(left)((a * c + b * d) / below, (b * c - a * d) / below)


def reciprocal(z: Any) -> Any:
    return divide(type(z)(z.real.ones_like(), z.imag.zeros_like()), z)


def power(base: Any, exponent: Any) -> Any:
    """exp(exponent * log(base)); anything to the power 0 is 1."""
    result = exp(log(base) * exponent)
    is_zero = exponent.eq(0)
    from_zero = base.eq(0) & (exponent.real > 0)
    real = is_zero.where(1.0, from_zero.where(0.0, result.real))
    return type(base)(real, (is_zero | from_zero).where(0.0, result.imag))


def square(z: Any) -> Any:
    return type(z)((z.real - z.imag) * (z.real + z.imag), 2 * z.real * z.imag)


def sign(z: Any) -> Any:
    """z / |z|, 0 for 0."""
    size = z.abs()
    is_zero = size.eq(0)
    safe = is_zero.where(1.0, size)
    return type(z)(is_zero.where(0.0, z.real / safe), is_zero.where(0.0, z.imag / safe))


def exp(z: Any) -> Any:
    size, is_gone = z.real.exp(), z.real.eq(-math.inf)
    is_real = z.imag.eq(0)
    # The imaginary part of a real number stays 0, also where the magnitude is infinite.
    real = is_real.where(size, is_gone.where(0.0, size * z.imag.cos()))
    imag = is_real.where(z.imag, is_gone.where(0.0, size * z.imag.sin()))
    return type(z)(_without_angle(z).where(math.inf, real), imag)


def _without_angle(z: Any) -> Any:
    """Where the real part is +infinity and the imaginary part is infinite or NaN: the magnitude is infinite, its
    direction unknown."""
    return z.real.eq(math.inf) & z.imag.isfinite().logical_not()


def expm1(z: Any) -> Any:
    """exp(x) cos(y) - 1 = expm1(x) cos(y) - 2 sin(y/2)^2."""
    half = (z.imag * 0.5).sin()
    real = z.real.expm1() * z.imag.cos() - 2 * half.square()
    is_real = z.imag.eq(0)
    size, is_gone = z.real.exp(), z.real.eq(-math.inf)
    real = is_real.where(z.real.eq(0).where(0.0, z.real.expm1()), is_gone.where(-1.0, real))
    imag = is_real.where(z.imag, is_gone.where(0.0, size * z.imag.sin()))
    return type(z)(_without_angle(z).where(math.inf, real), imag)


def log(z: Any) -> Any:
    return type(z)(_log_of_size(z), z.angle())


def _log_of_size(z: Any) -> Any:
    """log|z|; near 1 from |z|^2 - 1, which loses no precision."""
    x, y = z.real.abs(), z.imag.abs()
    greatest, least = x.maximum(y), x.minimum(y)
    is_near = (greatest > 0.5) & (greatest < 2) & (least < 2)
    safe = is_near.where(greatest, 1.0)
    near = ((safe - 1) * (safe + 1) + is_near.where(least, 0.0).square()).log1p() * 0.5
    return is_near.where(near, z.abs().log())


def log1p(z: Any) -> Any:
    """log of 1 + z; |1 + z|^2 - 1 = x(2 + x) + y^2."""
    x, y = z.real, z.imag
    is_near = (x.abs() < 0.5) & (y.abs() < 0.5)
    safe_x, safe_y = is_near.where(x, 0.0), is_near.where(y, 0.0)
    near = (safe_x * (2 + safe_x) + safe_y * safe_y).log1p() * 0.5
    moved = type(z)(x + 1, y)
    return type(z)(is_near.where(near, _log_of_size(moved)), moved.angle())


def log2(z: Any) -> Any:
    return _scaled(log(z), 1 / math.log(2))


def log10(z: Any) -> Any:
    return _scaled(log(z), 1 / math.log(10))


def _scaled(z: Any, factor: float) -> Any:
    return type(z)(z.real * factor, z.imag * factor)


def sqrt(z: Any) -> Any:
    """The root of (|x| + |z|)/2 is one part, and y over twice of it the other; scaled, so that |z| stays in range."""
    x, y = z.real, z.imag
    scale = x.abs().maximum(y.abs())
    is_plain = (scale > 0) & scale.isfinite()
    safe = is_plain.where(scale, 1.0)
    unit_x, unit_y = x / safe, y / safe
    size = (unit_x.square() + unit_y.square()).sqrt()
    large = ((unit_x.abs() + size) * 0.5).sqrt()
    root = safe.sqrt()
    divisor = is_plain.where(large * 2, 1.0)
    small = unit_y.abs() / divisor * root
    large = is_plain.where(large * root, x.abs().sqrt())
    is_right = x >= 0
    real = is_right.where(large, small)
    imag = is_right.where(small, large).copysign(y)
    is_infinite, is_far = y.isinf(), x.eq(math.inf) & y.isfinite()
    is_unknown = x.isfinite() & y.isnan()
    real = is_unknown.where(math.nan, is_far.where(math.inf, real))
    imag = is_unknown.where(math.nan, is_far.where((y * 0).copysign(y), imag))
    return type(z)(is_infinite.where(math.inf, real), is_infinite.where(y, imag))


def sinh(z: Any) -> Any:
    is_real = z.imag.eq(0)
    imag = is_real.where(z.imag, z.real.cosh() * z.imag.sin())
    real = z.real.eq(0).where(z.real, z.real.sinh() * z.imag.cos())
    return type(z)(_without_angle(z).where(math.inf, real), imag)


def cosh(z: Any) -> Any:
    is_real = z.imag.eq(0) | z.real.eq(0)
    real = _without_angle(z).where(math.inf, z.real.cosh() * z.imag.cos())
    return type(z)(real, is_real.where(0.0, z.real.sinh() * z.imag.sin()))


def tanh(z: Any) -> Any:
    """sinh(2x) + i sin(2y) over cosh(2x) + cos(2y), divided by cosh(x)^2 where that is large."""
    x, y = z.real, z.imag
    is_large = x.abs() > 20
    near = is_large.where(0.0, x)
    tangent, hyperbolic = y.tan(), near.tanh()
    below = 1 + (hyperbolic * tangent).square()
    real = is_large.where(x.sign(), hyperbolic * (1 + tangent.square()) / below)
    far = (2 * y).sin() * 2 * (x.abs() * -2).exp()
    imag = is_large.where(x.isinf().where(0.0, far), tangent * (1 - hyperbolic.square()) / below)
    no_angle = y.isfinite().logical_not()
    real = (x.eq(0) & no_angle).where(x, (x.isfinite() & no_angle).where(math.nan, real))
    return type(z)(real, (x.isnan() & y.eq(0)).where(y, imag))


def _times_i(z: Any) -> Any:
    """i z."""
    return type(z)(-z.imag, z.real)


def _times_minus_i(z: Any) -> Any:
    """-i z."""
    return type(z)(z.imag, -z.real)


def sin(z: Any) -> Any:
    return _times_minus_i(sinh(_times_i(z)))


def cos(z: Any) -> Any:
    return cosh(_times_i(z))


def tan(z: Any) -> Any:
    return _times_minus_i(tanh(_times_i(z)))


def asinh(z: Any) -> Any:
    """By the roots of 1 + iz and 1 - iz (W. Kahan)."""
    first = sqrt(type(z)(1 + z.imag, -z.real))
    second = sqrt(type(z)(1 - z.imag, z.real))
    real = (first.real * second.imag - first.imag * second.real).asinh()
    imag = z.imag.atan2((first.real * second.real) - (first.imag * second.imag))
    far = z.abs() > 1e8
    large = log(type(z)(z.real.abs() * 2, z.imag * 2))
    imag = far.where(large.imag, (z.real.isnan() & z.imag.eq(0)).where(z.imag, imag))
    return type(z)(far.where(large.real.copysign(z.real), real), imag)


def asin(z: Any) -> Any:
    return _times_minus_i(asinh(_times_i(z)))


def acos(z: Any) -> Any:
    """By the roots of 1 - z and 1 + z (W. Kahan)."""
    first = sqrt(type(z)(1 - z.real, -z.imag))
    second = sqrt(type(z)(1 + z.real, z.imag))
    real = 2 * first.real.atan2(second.real)
    imag = (second.real * first.imag - second.imag * first.real).asinh()
    far = z.abs() > 1e8
    large = _log_of_size(type(z)(z.real * 2, z.imag * 2))
    x, y = z.real, z.imag
    is_unknown = (x.isfinite() & x.ne(0) & y.isnan()) | (x.isnan() & y.isfinite())
    real = far.where(y.abs().atan2(x), (x.eq(0) & y.isnan()).where(math.pi / 2, real))
    imag = far.where(large.copysign(-y), imag)
    return type(z)(is_unknown.where(math.nan, real), is_unknown.where(math.nan, imag))


def acosh(z: Any) -> Any:
    """By the roots of z - 1 and z + 1 (W. Kahan)."""
    first = sqrt(type(z)(z.real - 1, z.imag))
    second = sqrt(type(z)(z.real + 1, z.imag))
    real = (first.real * second.real + first.imag * second.imag).asinh()
    imag = 2 * first.imag.atan2(second.real)
    far = z.abs() > 1e8
    large = log(type(z)(z.real * 2, z.imag * 2))
    imag = far.where(large.imag, (z.real.eq(0) & z.imag.isnan()).where(math.pi / 2, imag))
    return type(z)(far.where(large.real, real), imag)


def atanh(z: Any) -> Any:
    """Real part log(((1+x)^2 + y^2)/((1-x)^2 + y^2))/4, which is log1p(4x/((1-x)^2 + y^2))/4."""
    x, y = z.real, z.imag
    size = z.abs()
    far = size > 1e8
    near_x, near_y = far.where(0.0, x.abs()), far.where(0.0, y)
    below = (1 - near_x).square() + near_y.square()
    real = (4 * near_x / below).log1p() * 0.25
    # 1/z, as its real part |x|/|z|^2.
    unit = far.where(size, 1.0)
    distant = far.where(x.abs(), 0.0) / unit / unit
    imag = (2 * near_y).atan2((1 - near_x) * (1 + near_x) - near_y.square()) * 0.5
    is_infinite = x.isinf() | y.isinf()
    quarter = (y.isnan()).where(math.nan, math.pi / 2).cast(y.dtype).copysign(y)
    real = (is_infinite | (x.eq(0) & y.isnan())).where(0.0, far.where(distant, real)).copysign(x)
    return type(z)(real, (far | is_infinite).where(quarter, imag))


def atan(z: Any) -> Any:
    return _times_minus_i(atanh(_times_i(z)))

"""Further functions of single elements: log1p, atan2, logical_and, nan_to_num, ... In: tensors and numbers that
broadcast. Out: a tensor of the broadcast shape. The formulas are those of functions.py; 8- and 16-bit floats are
computed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from tilewright.base.dtype import Scalar, dtypes
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build, marks
from tilewright.graph.uop import UOp
from tilewright.tensor.core.base import TensorBase
from tilewright.tensor.core.checks import check_axis
from tilewright.tensor.families.networks.activation import ActivationMixin
from tilewright.tensor.primitives import coefficients, functions, gamma

_BITS = {8: dtypes.int8, 16: dtypes.int16, 32: dtypes.int32, 64: dtypes.int64}


class PointwiseMixin(ActivationMixin):
    """log1p, expm1, atan2, hypot, logical_and, lt, nan_to_num, ..."""

    def _function_of_two(self, name: str, other: Self | Scalar, function: Callable[[UOp, UOp], UOp]) -> Self:
        """A function of two real numbers, computed at least in float32 and rounded once."""
        left, right, others = self._promoted_real(name, other)
        shape = left.shape or right.shape
        wide = left.dtype if left.dtype.bits >= 32 else dtypes.float32
        result = function(build.broadcast_to(build.cast(left, wide), shape), build.cast(right, wide))
        return self._new(build.cast(result, left.dtype), *others)

    # ------------------------------------------------------------ functions of one number

    def log1p(self) -> Self:
        """log(1 + x), accurate near 0."""
        return self._function(log1p)

    def expm1(self) -> Self:
        """exp(x) - 1, accurate near 0."""
        return self._function(expm1)

    def erfc(self) -> Self:
        """1 - erf(x), accurate where erf is close to 1."""
        return self._function(erfc)

    def erfinv(self) -> Self:
        """The inverse of erf."""
        wide = self._as_float().cast(dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32)
        sign = (wide < 0).where(-1.0, 1.0).cast(wide.dtype)
        size = wide * sign
        is_inside = size < 1
        fixed = is_inside.where(size, 0.0).detach()
        # A closed form with an error of at most 0.4 % (Winitzki), then Halley's method, which triples the correct
        # digits per step.
        log = (1 - fixed).log() + fixed.log1p()
        half = 2 / (math.pi * 0.147) + log / 2
        found = ((half.square() - log / 0.147).sqrt() - half).sqrt()
        for _ in range(2):
            # Near 1, 1 - x is exact and 1 - erf(y) is not, so erfc is compared instead.
            distance = (fixed > 0.5).where((1 - size) - found.erfc(), found.erf() - size)
            error = distance * (found.square().exp() * (math.sqrt(math.pi) / 2))
            found = found - error / (1 + found * error)
        edge = (size.detach() > 1).where(math.nan, size.detach() * math.inf)
        value = is_inside.where(found, edge) * sign
        return self._new(marks.with_slopes(value.uop, _erfinv_slopes, wide.uop)).cast(self._as_float().dtype)

    def lgamma(self) -> Self:
        """log|gamma(x)|: log((n - 1)!) of a whole number n."""
        return self._function(gamma.lgamma)

    def digamma(self) -> Self:
        """The derivative of `lgamma`."""
        return self._function(gamma.digamma)

    def logit(self, eps: float | None = None) -> Self:
        """log(x / (1 - x)); with `eps`, x is clamped to eps..1-eps first."""
        clamped = self if eps is None else self.clamp(eps, 1 - eps)
        return clamped._function(lambda x: functions.log(x) - functions.log1p(-x))

    def sinc(self) -> Self:
        """sin(pi x) / (pi x), 1 at 0."""
        return self._function(sinc)

    def deg2rad(self) -> Self:
        """Converts degrees to radians."""
        return self._as_float() * (math.pi / 180)

    def rad2deg(self) -> Self:
        """Converts radians to degrees."""
        return self._as_float() * (180 / math.pi)

    def frac(self) -> Self:
        """x - trunc(x)."""
        return self - self.trunc()

    def positive(self) -> Self:
        """+x."""
        return self

    # ------------------------------------------------------------ functions of two numbers

    def atan2(self, other: Self | Scalar) -> Self:
        """The angle of the point (x=other, y=self), in -pi..pi."""
        return self._function_of_two("atan2", other, atan2)

    def hypot(self, other: Self | Scalar) -> Self:
        """sqrt(x^2 + y^2) without overflow."""
        return self._function_of_two("hypot", other, hypot)

    def xlogy(self, other: Self | Scalar) -> Self:
        """x log(y), 0 where x is 0 (unless y is NaN)."""

        def function(x: UOp, y: UOp) -> UOp:
            is_zero = x.eq(0) & y.eq(y)
            return is_zero.where(x.const_like(0.0), x * functions.log(is_zero.where(x.const_like(1.0), y)))

        return self._function_of_two("xlogy", other, function)

    def heaviside(self, values: Self | Scalar) -> Self:
        """0 below 0, 1 above, `values` at 0."""
        return self.eq(0).where(values, (self > 0).where(1, self.ne(self).where(self, 0))).cast(self.dtype)

    def fmax(self, other: Self | Scalar) -> Self:
        """The elementwise maximum; where one element is NaN, the other one."""
        return self._without_nan(other, self.maximum(other))

    def fmin(self, other: Self | Scalar) -> Self:
        """The elementwise minimum; where one element is NaN, the other one."""
        return self._without_nan(other, self.minimum(other))

    def _without_nan(self, other: Self | Scalar, result: Self) -> Self:
        rest = result.ne(result).where(self, result)  # self where either is NaN
        return self.ne(self).where(other, rest).cast(result.dtype)

    def nextafter(self, other: Self | Scalar) -> Self:
        """The next float after this one towards the other."""
        left, right, others = self._promoted("nextafter", other)
        if not left.dtype.is_float:
            raise DTypeError("nextafter", f"{left.dtype.name} has no next float", "cast to a float dtype first")
        shape = left.shape or right.shape
        return self._new(next_after(build.broadcast_to(left, shape), build.broadcast_to(right, shape)), *others)

    def addcmul(self, tensor1: Self, tensor2: Self, value: Scalar = 1) -> Self:
        """x + value * tensor1 * tensor2."""
        return self + tensor1 * tensor2 * value

    def addcdiv(self, tensor1: Self, tensor2: Self, value: Scalar = 1) -> Self:
        """x + value * tensor1 / tensor2."""
        return self + tensor1 / tensor2 * value

    def float_power(self, exponent: Self | Scalar) -> Self:
        """x ** exponent in float64."""
        return self.cast(dtypes.float64).pow(exponent)

    # ------------------------------------------------------------ tests

    def signbit(self) -> Self:
        """Whether the sign bit is set, also for -0.0 and NaN."""
        return self._new(functions.sign_bit(self.uop)) if self.dtype.is_float else self < 0

    def isposinf(self) -> Self:
        """Whether an element is infinity."""
        return self.isinf(detect_negative=False)

    def isneginf(self) -> Self:
        """Whether an element is -infinity."""
        return self.isinf(detect_positive=False)

    def lt(self, x: Self | Scalar) -> Self:
        """x < y."""
        return self < x

    def gt(self, x: Self | Scalar) -> Self:
        """x > y."""
        return self > x

    def le(self, x: Self | Scalar) -> Self:
        """x <= y."""
        return self <= x

    def ge(self, x: Self | Scalar) -> Self:
        """x >= y."""
        return self >= x

    def logical_and(self, other: Self | Scalar) -> Self:
        """Whether both are nonzero."""
        return self._truth_of(self) & self._truth_of(other)

    def logical_or(self, other: Self | Scalar) -> Self:
        """Whether at least one is nonzero."""
        return self._truth_of(self) | self._truth_of(other)

    def logical_xor(self, other: Self | Scalar) -> Self:
        """Whether exactly one is nonzero."""
        return self._truth_of(self) ^ self._truth_of(other)

    def _truth_of(self, given: Self | Scalar) -> Self:
        operand = self._operand("logical", given)
        if isinstance(operand, TensorBase):
            return operand if operand.dtype.is_bool else operand.ne(0)
        return self._new(build.const(dtypes.bool, bool(operand)))

    def equal(self, other: Self) -> bool:
        """Whether shapes and all elements are equal, as a Python bool; this computes the tensors."""
        return self.shape == other.shape and bool(self.eq(other).all())

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """NaN and infinities replaced by numbers, infinities by default by the largest and smallest finite number."""
        if not self.dtype.is_float:
            return self
        greatest = largest_finite(self)
        high = greatest if posinf is None else posinf
        low = -greatest if neginf is None else neginf
        finite = self.eq(math.inf).where(high, self.eq(-math.inf).where(low, self))
        return self.ne(self).where(nan, finite).cast(self.dtype)

    # ------------------------------------------------------------ activations

    def threshold(self, threshold: float, value: float) -> Self:
        """x where it is above the threshold, else `value`."""
        return (self > threshold).where(self, value)

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """0 in -lambd..lambd, x elsewhere."""
        return (self.abs() <= lambd).where(0.0, self)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """x moved towards 0 by lambd; 0 where |x| <= lambd."""
        return self - self.clamp(-lambd, lambd)

    def tanhshrink(self) -> Self:
        """x - tanh(x)."""
        return self - self.tanh()

    def prelu(self, weight: Self) -> Self:
        """x above 0 and weight * x below; a weight for each channel (axis 1), or one for all."""
        if weight.numel() > 1 and self.ndim > 1:
            weight = weight.reshape((1, weight.numel(), *(1,) * (self.ndim - 2)))
        return (self > 0).where(self, self * weight)

    def glu(self, dim: int = -1) -> Self:
        """The first half of an axis times the sigmoid of the second half."""
        axis = check_axis("glu", dim, self.ndim)
        if not self.ndim or self.shape[axis] % 2:
            raise ShapeError("glu", f"axis {dim} of shape {self.shape} has an odd size", "give an axis of even size")
        first, second = self.chunk(2, axis)
        return first * second.sigmoid()


# ---------------------------------------------------------------- functions on nodes


def log1p(x: UOp) -> UOp:
    """With a derivative of 0 at infinity."""
    is_infinite = x.eq(math.inf)
    return is_infinite.where(
        functions.log(is_infinite.where(x, 1.0)), functions.log1p(is_infinite.where(x.const_like(0.0), x))
    )


def expm1(x: UOp) -> UOp:
    is_large = x > 1
    half = functions.tanh(is_large.where(x.const_like(0.0), x) * 0.5)
    near = 2 * half / (1 - half)
    value = is_large.where(functions.exp(is_large.where(x, 1.0)) - 1, x.eq(0).where(x, near))
    return marks.with_slopes(value, _expm1_slope, x)


def _expm1_slope(_: UOp, x: UOp) -> tuple[UOp]:
    return (functions.exp(x),)


def erfc(x: UOp) -> UOp:
    """1 - erf(x) for x < 1; above, exp(-x^2) times a rational function with the coefficients of Cephes."""
    is_small = x < 1
    size = is_small.where(x.const_like(1.0), x)
    limit = 10.0 if functions.is_single(x) else 27.0
    size = (size > limit).where(size.const_like(limit), size)
    is_far = size > 8
    near_size, far_size = is_far.where(size.const_like(1.0), size), is_far.where(size, 8.0)
    near = functions.polynomial(near_size, coefficients.ERFC_P) / functions.polynomial(near_size, coefficients.ERFC_Q)
    far = functions.polynomial(far_size, _FAR_P) / functions.polynomial(far_size, _FAR_Q)
    tail = functions.exp(-(size * size)) * is_far.where(far, near)
    return is_small.where(1 - functions.erf(is_small.where(x, 0.0)), tail)


# erfc(x) = exp(-x^2)*P(x)/Q(x) above 8; Cephes (S. L. Moshier), highest power first.
_FAR_P = (
    5.64189583547755073984e-1,
    1.27536670759978104416e0,
    5.01905042251180477414e0,
    6.16021097993053585195e0,
    7.40974269950448939160e0,
    2.97886665372100240670e0,
)
_FAR_Q = (
    1.0,
    2.26052863220117276590e0,
    9.39603524938001434673e0,
    1.20489539808096656605e1,
    1.70814450747565897222e1,
    9.60896809063285878198e0,
    3.36907645100081516050e0,
)


def _erfinv_slopes(y: UOp, _: UOp) -> tuple[UOp]:
    return (functions.exp(y * y) * (math.sqrt(math.pi) / 2),)


def sinc(x: UOp) -> UOp:
    is_small = functions.absolute(x) < 1e-2
    turn = is_small.where(x.const_like(1.0), x) * math.pi
    square = (is_small.where(x, 0.0) * math.pi) * (is_small.where(x, 0.0) * math.pi)
    near = functions.polynomial(square, (-1 / 5040, 1 / 120, -1 / 6, 1.0))
    return is_small.where(near, functions.sin(turn) / turn)


def atan2(y: UOp, x: UOp) -> UOp:
    """atan of the smaller over the larger magnitude, mapped to its octant; signs of zero count, as in C."""
    x_size, y_size = functions.absolute(x), functions.absolute(y)
    is_steep = y_size > x_size
    greatest, least = is_steep.where(y_size, x_size), is_steep.where(x_size, y_size)
    is_origin, is_far = greatest.eq(0), least.eq(math.inf)
    one = x.const_like(1.0)
    ratio = is_far.where(one, is_origin.where(least, is_far.where(one, least) / is_origin.where(one, greatest)))
    angle = functions.atan(ratio)
    angle = is_steep.where(math.pi / 2 - angle, angle)
    angle = functions.sign_bit(x).where(math.pi - angle, angle)
    angle = functions.sign_bit(y).where(-angle, angle)
    angle = (x.ne(x) | y.ne(y)).where(x.const_like(math.nan), angle)
    return marks.with_slopes(angle, _atan2_slopes, y, x)


def _atan2_slopes(_: UOp, y: UOp, x: UOp) -> tuple[UOp, UOp]:
    """x / (x^2 + y^2) and -y / (x^2 + y^2) without overflow, 0 at the origin and at infinity."""
    scale = marks.detach(functions.absolute(x).maximum(functions.absolute(y)))
    is_plain = (scale > 0) & (scale < math.inf)
    safe = is_plain.where(scale, 1.0)
    across, up = x / safe, y / safe
    square = (across * across + up * up) * safe
    other = scale.ne(scale).where(scale, 0.0)
    return is_plain.where(across / square, other), is_plain.where(-up / square, other)


def hypot(x: UOp, y: UOp) -> UOp:
    x_size, y_size = functions.absolute(x), functions.absolute(y)
    # A constant, so that gradients flow through the quotients alone.
    scale = marks.detach(x_size.maximum(y_size))
    is_plain = (scale > 0) & (scale < math.inf)
    safe = is_plain.where(scale, 1.0)
    left, right = is_plain.where(x / safe, 1.0), is_plain.where(y / safe, 0.0)
    length = safe * functions.sqrt(left * left + right * right)
    is_infinite = x_size.eq(math.inf) | y_size.eq(math.inf)
    return is_plain.where(length, is_infinite.where(x.const_like(math.inf), x_size + y_size))


def next_after(x: UOp, y: UOp) -> UOp:
    """Floats of one sign have the order of their bits as integers."""
    bits = build.bitcast(x, _BITS[x.dtype.bits])
    grows = (y > x).eq(x > 0)
    stepped = build.bitcast(bits + grows.where(bits.const_like(1), bits.const_like(-1)), x.dtype)
    least = build.bitcast(bits.const_like(1), x.dtype)
    moved = x.eq(0).where((y > 0).where(least, -least), stepped)
    is_number = x.eq(x) & y.eq(y)
    return is_number.where(x.eq(y).where(y, moved), x + y)


def largest_finite(tensor: TensorBase) -> float:
    dtype = tensor.dtype
    if dtype is dtypes.float8_e4m3:
        return 448.0
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    return math.ldexp(2.0 - math.ldexp(1.0, -dtype.mantissa_bits), bias)

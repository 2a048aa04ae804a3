"""Functions of one element: rounding, powers, exponentials, trigonometry. In: a tensor; integers count as the default
float. Out: a tensor of its shape. Functions of several steps run a short float in float32 and round once, as torch
does, and are written so that neither branch of a selection makes an infinity the gradient of the other could meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

from tilewright.base.dtype import Scalar, dtypes
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.tensor.arithmetic import ArithmeticMixin, kind_rank
from tilewright.tensor.core import TensorBase

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


class ElementwiseMixin(ArithmeticMixin):
    """abs, round, pow, exp, log, sin, ..."""

    # ------------------------------------------------------------ what the functions are made of

    def _unary(self, op: Op) -> Self:
        source = self._as_float()
        return source._new(build.alu(op, source.uop))

    def _in_float32(self, function: Callable[[Self], Self]) -> Self:
        """A function of several steps: a short float runs in float32 and is rounded once."""
        source = self._as_float()
        if source.dtype.bits >= 32:
            return function(source)
        wide = source._new(build.cast(source.uop, dtypes.float32))
        return source._new(build.cast(function(wide).uop, source.dtype))

    def _polynomial(self, coefficients: Sequence[float]) -> Self:
        """By Horner's rule, the highest power first; a leading 1 costs nothing."""
        result = self + coefficients[1] if coefficients[0] == 1.0 else self * coefficients[0] + coefficients[1]
        for coefficient in coefficients[2:]:
            result = result * self + coefficient
        return result

    def _minus_abs(self) -> Self:
        """-|x| with the gradient of one side at 0, for functions that are smooth there."""
        return (self < 0).where(self, -self)

    def _const(self, value: Scalar) -> UOp:
        return build.const(self.dtype, value)

    def _number(self, value: Scalar) -> Self:
        """A number of this dtype, for selections in which no tensor says the dtype."""
        return self._new(self._const(value))

    # ------------------------------------------------------------ signs and rounding

    def abs(self) -> Self:
        if self.dtype.is_bool or self.dtype.is_unsigned:
            return self
        return self._new(build.alu(Ops.MAX, self.uop, build.alu(Ops.NEG, self.uop)))

    def sign(self) -> Self:
        """-1, 0 or 1; NaN stays NaN."""
        if self.dtype.is_bool:
            return self
        zero = self._const(0)
        positive = build.alu(Ops.CMPLT, zero, self.uop)
        rest = zero
        if self.dtype.is_float:
            rest = build.where(build.alu(Ops.CMPEQ, self.uop, zero), zero, self.uop)
        if not self.dtype.is_unsigned:
            rest = build.where(build.alu(Ops.CMPLT, self.uop, zero), self._const(-1), rest)
        return self._new(build.where(positive, self._const(1), rest))

    def copysign(self, other: Self | Scalar) -> Self:
        """This magnitude with the other's sign, that of -0.0 too."""
        left, right, others = self._promoted("copysign", other)
        shape = left.shape or right.shape
        sign = self._new(build.broadcast_to(right, shape), *others)._as_float()
        size = self._new(left, *others)._as_float().abs()
        return sign._sign_bit().where(-size, size)

    def _sign_bit(self) -> Self:
        """Whether a float's sign bit is set."""
        integer = {8: dtypes.int8, 16: dtypes.int16, 32: dtypes.int32, 64: dtypes.int64}[self.dtype.bits]
        return self._new(build.alu(Ops.CMPLT, build.bitcast(self.uop, integer), build.const(integer, 0)))

    def round(self) -> Self:
        """To the nearest whole number, halves to the even one."""
        if not self.dtype.is_float:
            return self
        whole = self.trunc()
        rest = (self - whole).abs()
        half = whole * 0.5
        away = (rest > 0.5) | (rest.eq(0.5) & half.ne(half.trunc()))
        return away.where(whole + (self < 0).where(self._number(-1), 1), whole)

    def clamp(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """No less than `min_` and no more than `max_`; where they cross, `max_` wins."""
        if min_ is None and max_ is None:
            raise ShapeError("clamp", "neither a minimum nor a maximum", "give min_, max_ or both")
        result = self if min_ is None else self.maximum(min_)
        return result if max_ is None else result.minimum(max_)

    def clip(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """As `clamp`."""
        return self.clamp(min_, max_)

    def lerp(self, end: Self, weight: Self | Scalar) -> Self:
        """From this tensor (weight 0) to `end` (weight 1), exact at both."""
        distance = end - self
        if isinstance(weight, TensorBase):
            return (weight < 0.5).where(self + distance * weight, end - distance * (1 - weight))
        return self + distance * weight if weight < 0.5 else end - distance * (1 - weight)

    # ------------------------------------------------------------ tests

    def isnan(self) -> Self:
        return self.ne(self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        found = self._new(build.const(dtypes.bool, False, self.shape))
        if self.dtype.is_float and detect_positive:
            found = found | self.eq(math.inf)
        if self.dtype.is_float and detect_negative:
            found = found | self.eq(-math.inf)
        return found

    def isfinite(self) -> Self:
        if not self.dtype.is_float:
            return self._new(build.const(dtypes.bool, True, self.shape))
        return self.abs() < math.inf

    def isclose(self, other: Self, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
        """|self - other| <= atol + rtol * |other|; equal infinities are close, NaNs where asked for."""
        left, right = self._as_float(), other._as_float()
        near = (left - right).abs() <= right.abs() * rtol + atol
        close = (left.isfinite() & right.isfinite() & near) | self.eq(other)
        return close | (left.isnan() & right.isnan()) if equal_nan else close

    def masked_fill(self, mask: Self, value: Self | Scalar) -> Self:
        """This tensor with `value` where the mask is true, in this tensor's dtype."""
        filled = mask.where(value, self)
        if kind_rank(filled.dtype) > kind_rank(self.dtype):
            message = f"a value that makes {filled.dtype.name} does not fit into {self.dtype.name}"
            raise DTypeError("masked_fill", message, "cast the tensor or the value first")
        return filled._new(build.cast(filled.uop, self.dtype))

    # ------------------------------------------------------------ roots and powers

    def square(self) -> Self:
        return self * self

    def reciprocal(self) -> Self:
        return self._as_float().div(1, reverse=True)

    def sqrt(self) -> Self:
        return self._unary(Ops.SQRT)

    def rsqrt(self) -> Self:
        return self._in_float32(lambda x: x.sqrt().reciprocal())

    def pow(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """This tensor to the power `x`; whole powers are made of multiplications."""
        operand = self._operand("pow", x)
        if isinstance(operand, TensorBase):
            return operand._tensor_power(self, self) if reverse else self._tensor_power(operand, operand)
        return self._power_of_number(operand) if reverse else self._number_power(operand)

    def _number_power(self, exponent: Scalar) -> Self:
        if isinstance(exponent, float) and not self.dtype.is_float:
            return self._as_float()._number_power(exponent)
        whole = int(exponent) if float(exponent).is_integer() else None
        if not self.dtype.is_float and whole is not None and whole < 0:
            message = f"{self.dtype.name} to the power {exponent} is no integer"
            raise DTypeError("pow", message, "cast to a float dtype first, such as `.float()`")
        if whole is not None and (abs(whole) <= 64 or not self.dtype.is_float):
            return (
                self._in_float32(lambda t: t._whole_power(whole)) if self.dtype.is_float else self._whole_power(whole)
            )
        if exponent in (0.5, -0.5):
            return self.sqrt() if exponent > 0 else self.rsqrt()
        return self._in_float32(lambda t: t._real_power(t._number(exponent)))

    def _whole_power(self, exponent: int) -> Self:
        """By repeated squaring."""
        if exponent < 0:
            return self._whole_power(-exponent).reciprocal()
        result: Self | None = None
        square = self
        while exponent:
            if exponent & 1:
                result = square if result is None else result * square
            exponent >>= 1
            square = square * square if exponent else square
        return self._new(build.const(self.dtype, 1, self.shape)) if result is None else result

    def _power_of_number(self, base: Scalar) -> Self:
        """base ** self."""
        if base > 0 and (self.dtype.is_float or isinstance(base, float)):
            return self._in_float32(lambda t: (t * math.log2(base)).exp2() if base != 2 else t.exp2())
        dtype = self.dtype if isinstance(base, int) or self.dtype.is_float else dtypes.default_float
        return self._new(build.const(dtype, base))._tensor_power(self, self)

    def _tensor_power(self, exponent: Self, source: Self) -> Self:
        left, right, _ = self._promoted("pow", exponent)
        base, power = self._new(left, source), self._new(right, source)
        if not left.dtype.is_float:
            return base._integer_power(power)
        if left.dtype.bits >= 32:
            return base._real_power(power)
        wide = base._new(build.cast(left, dtypes.float32)), power._new(build.cast(right, dtypes.float32))
        return self._new(build.cast(wide[0]._real_power(wide[1]).uop, left.dtype), source)

    def _real_power(self, exponent: Self) -> Self:
        """2**(y*log2|x|) with the signs and special cases of C's pow."""
        size = self.abs()
        result = (exponent * size.log2()).exp2()
        half = exponent * 0.5
        is_odd = exponent.eq(exponent.trunc()) & half.ne(half.trunc())
        result = (self._sign_bit() & is_odd).where(-result, result)
        undefined = (self < 0) & (size < math.inf) & exponent.ne(exponent.trunc())
        result = undefined.where(math.nan, result)
        is_one = exponent.eq(0) | self.eq(1) | (self.eq(-1) & exponent.abs().eq(math.inf))
        return is_one.where(1.0, result)

    def _integer_power(self, exponent: Self) -> Self:
        """By the bits of the exponent; a negative power is 0 unless the base is 1 or -1."""
        result = self._new(build.const(self.dtype, 1, self.shape))
        square = self
        for bit in range(max(1, int(exponent.uop.vmax).bit_length())):
            result = (exponent >> bit & 1).ne(0).where(result * square, result)
            square = square * square
        if self.dtype.is_unsigned:
            return result
        unit = (self.eq(-1) & (exponent & 1).ne(0)).where(-1, (self.eq(1) | self.eq(-1)).where(1, 0))
        return (exponent < 0).where(unit._new(build.cast(unit.uop, self.dtype)), result)

    def __pow__(self, x: Self | Scalar) -> Self:
        return self.pow(x)

    def __rpow__(self, x: Scalar) -> Self:
        return self.pow(x, reverse=True)

    def __ipow__(self, x: Any) -> Self:  # type: ignore[misc]
        return self._in_place("**=", self.pow(x))

    # ------------------------------------------------------------ exponentials and logarithms

    def exp2(self) -> Self:
        return self._unary(Ops.EXP2)

    def log2(self) -> Self:
        return self._unary(Ops.LOG2)

    def exp(self) -> Self:
        # codegen knows this form and does not lose the bits that the product rounds away.
        return self._in_float32(lambda x: (x * (1 / math.log(2))).exp2())

    def log(self) -> Self:
        return self._in_float32(lambda x: x.log2() * math.log(2))

    def log10(self) -> Self:
        return self._in_float32(lambda x: x.log2() * math.log10(2))

    def _log1p(self) -> Self:
        """log(1 + x) for x >= -1; the rounding of 1 + x is undone by the quotient (W. Kahan)."""
        moved = self + 1
        exact = moved.eq(1) | moved.eq(math.inf)
        safe = exact.where(2.0, moved)
        return exact.where(self, safe.log() * (self / (safe - 1)))

    def logaddexp(self, other: Self) -> Self:
        """log(exp(self) + exp(other)), without overflow."""
        left, right, others = self._promoted("logaddexp", other)
        one, two = self._new(left, *others), self._new(right, *others)
        difference = one.eq(two).where(0.0, one - two)
        return one.maximum(two) + difference._minus_abs().exp()._log1p()

    # ------------------------------------------------------------ trigonometry

    def sin(self) -> Self:
        return self._unary(Ops.SIN)

    def cos(self) -> Self:
        # Halving is exact, where adding pi/2 would lose the low bits of a large angle.
        return self._in_float32(lambda x: 1 - 2 * (x * 0.5).sin().square())

    def tan(self) -> Self:
        return self._in_float32(lambda x: x.sin() / x.cos())

    def asin(self) -> Self:
        return self._in_float32(lambda x: (x / ((1 - x) * (1 + x)).sqrt()).atan())

    def acos(self) -> Self:
        return self._in_float32(lambda x: 2 * ((1 - x) / (1 + x)).sqrt().atan())

    def atan(self) -> Self:
        return self._in_float32(lambda x: x._atan())

    def _atan(self) -> Self:
        size = -self._minus_abs()
        large, middle = size > 2.414213562373095, size > 0.66
        limited = large.where(1.0, size)
        reduced = large.where(-1 / large.where(size, 1.0), middle.where((limited - 1) / (limited + 1), limited))
        square = reduced.square()
        rational = square * square._polynomial(_ATAN_P) / square._polynomial(_ATAN_Q)
        start = large.where(self._number(math.pi / 2), middle.where(self._number(math.pi / 4), 0.0))
        angle = start + (reduced * rational + reduced)
        return (self < 0).where(-angle, self.eq(0).where(self, angle))

    # ------------------------------------------------------------ hyperbolic functions

    def tanh(self) -> Self:
        return self._in_float32(lambda x: x._tanh())

    def _tanh(self) -> Self:
        minus_size = self._minus_abs()
        is_small = minus_size > -0.625
        near_zero = is_small.where(self, 0.0)
        square = near_zero.square()
        small = near_zero + near_zero * square * square._polynomial(_TANH_P) / square._polynomial(_TANH_Q)
        shrunk = (minus_size * 2).exp()
        large = (1 - shrunk) / (1 + shrunk)
        return is_small.where(small, (self < 0).where(-large, large))

    def sinh(self) -> Self:
        return self._in_float32(lambda x: x._sinh())

    def _sinh(self) -> Self:
        size = -self._minus_abs()
        is_small = size < 1
        near_zero = is_small.where(self, 0.0)
        square = near_zero.square()
        small = near_zero + near_zero * square * square._polynomial(_SINH_P) / square._polynomial(_SINH_Q)
        root = (size * 0.5).exp()  # exp(x) may overflow where half of it does not
        large = 0.5 * root * root - 0.5 / root / root
        return is_small.where(small, (self < 0).where(-large, large))

    def cosh(self) -> Self:
        def function(x: Self) -> Self:
            root = (x._minus_abs() * -0.5).exp()
            return 0.5 * root * root + 0.5 / root / root

        return self._in_float32(function)

    def asinh(self) -> Self:
        def function(x: Self) -> Self:
            size = -x._minus_abs()
            is_large = size > 1e8
            safe = is_large.where(1.0, size)
            small = (safe + safe.square() / (1 + (safe.square() + 1).sqrt()))._log1p()
            result = is_large.where(size.log() + math.log(2), small)
            return (x < 0).where(-result, result)

        return self._in_float32(function)

    def acosh(self) -> Self:
        def function(x: Self) -> Self:
            is_large = x > 1e8
            above_one = is_large.where(1.0, x - 1)
            small = (above_one + (above_one * (above_one + 2)).sqrt())._log1p()
            return is_large.where(x.log() + math.log(2), small)

        return self._in_float32(function)

    def atanh(self) -> Self:
        def function(x: Self) -> Self:
            size = -x._minus_abs()
            result = (2 * size / (1 - size))._log1p() * 0.5
            return (x < 0).where(-result, result)

        return self._in_float32(function)

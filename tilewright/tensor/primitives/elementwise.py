"""Functions of one element: rounding, powers, exponentials, trigonometry. In: a tensor; integers are converted to the
default float. Out: a tensor of its shape. The formulas are in functions.py. Functions of several operations compute 8-
and 16-bit floats in float32 and round once, as torch does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from tilewright.base.dtype import Scalar, dtypes
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.tensor.core.base import TensorBase, check_devices
from tilewright.tensor.core.checks import number_node
from tilewright.tensor.primitives import functions
from tilewright.tensor.primitives.arithmetic import ArithmeticMixin, kind_rank


class ElementwiseMixin(ArithmeticMixin):
    """abs, round, pow, exp, log, sin, ..."""

    # ------------------------------------------------------------ helpers

    def _function(self, function: Callable[[UOp], UOp], of_short: bool = False) -> Self:
        """A function of real numbers. 8- and 16-bit floats are computed in float32 and rounded once, unless `of_short`
        says that the function is a single op."""
        node = self.uop if self.dtype.is_float else build.cast(self.uop, dtypes.default_float)
        scalar = build.scalar_of(node)
        source = node if scalar is None else scalar
        wide = source if of_short or source.dtype.bits >= 32 else build.cast(source, dtypes.float32)
        result = build.cast(function(wide), node.dtype)
        return self._new(result if scalar is None else build.broadcast_scalar(result, node.shape))

    def _in_float32(self, function: Callable[[Self], Self]) -> Self:
        """The same for a function of the whole tensor."""
        source = self._as_float()
        if source.dtype.bits >= 32:
            return function(source)
        wide = source._new(build.cast(source.uop, dtypes.float32))
        return source._new(build.cast(function(wide).uop, source.dtype))

    def _const(self, value: Scalar) -> UOp:
        return build.const(self.dtype, value)

    # ------------------------------------------------------------ signs and rounding

    def abs(self) -> Self:
        """The absolute value."""
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
        """This magnitude with the other's sign; -0.0 is negative."""
        left, right, others = self._promoted_real("copysign", other)
        shape = left.shape or right.shape
        size = functions.absolute(left)
        negative = functions.sign_bit(right)
        return self._new(build.broadcast_to(negative.where(-size, size), shape), *others)

    def round(self) -> Self:
        """Rounded to the nearest integer, halves to even."""
        return self._new(build.alu(Ops.ROUND, self.uop)) if self.dtype.is_float else self

    def clamp(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """Limited to min_..max_; where `min_` > `max_` the result is `max_`."""
        if min_ is None and max_ is None:
            raise ShapeError("clamp", "neither a minimum nor a maximum", "give min_, max_ or both")
        # A bound that is a number is selected by a comparison, so that an element equal to it keeps its gradient, as in
        # torch.
        result = self
        if min_ is not None:
            result = self.maximum(min_) if isinstance(min_, TensorBase) else (self < min_).where(min_, self)
        if max_ is None:
            return result
        return result.minimum(max_) if isinstance(max_, TensorBase) else (result > max_).where(max_, result)

    def clip(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """As `clamp`."""
        return self.clamp(min_, max_)

    def clamp_min(self, min_: Self | Scalar) -> Self:
        """Limited to at least min_."""
        return self.clamp(min_)

    def clamp_max(self, max_: Self | Scalar) -> Self:
        """Limited to at most max_."""
        return self.clamp(None, max_)

    def lerp(self, end: Self, weight: Self | Scalar) -> Self:
        """Linear interpolation from this tensor (weight 0) to `end` (weight 1), exact at both."""
        distance = end - self
        if isinstance(weight, TensorBase):
            return (weight < 0.5).where(self + distance * weight, end - distance * (1 - weight))
        return self + distance * weight if weight < 0.5 else end - distance * (1 - weight)

    # ------------------------------------------------------------ tests

    def isnan(self) -> Self:
        """Whether an element is NaN."""
        return self.ne(self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """Whether an element is infinite."""
        found = self._new(build.const(dtypes.bool, False, self.shape))
        if self.dtype.is_float and detect_positive:
            found = found | self.eq(math.inf)
        if self.dtype.is_float and detect_negative:
            found = found | self.eq(-math.inf)
        return found

    def isfinite(self) -> Self:
        """Whether an element is neither infinite nor NaN."""
        if not self.dtype.is_float:
            return self._new(build.const(dtypes.bool, True, self.shape))
        # x - x is NaN for an infinity; this also holds for float dtypes without infinities.
        return (self - self).eq(0)

    def isclose(self, other: Self | Scalar, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
        """|self - other| <= atol + rtol * |other|; equal infinities are close, and NaNs where `equal_nan` is set."""
        operand = self._operand("isclose", other)
        other = operand if isinstance(operand, TensorBase) else self._tensor(operand)
        left, right = self._as_float(), other._as_float()
        near = (left - right).abs() <= right.abs() * rtol + atol
        close = (left.isfinite() & right.isfinite() & near) | self.eq(other)
        return close | (left.isnan() & right.isnan()) if equal_nan else close

    def masked_fill(self, mask: Self, value: Self | Scalar) -> Self:
        """This tensor with `value` where the mask is true, in this tensor's dtype."""
        check_devices("masked_fill", self, mask)
        if self.dtype.is_bool and not isinstance(value, TensorBase) and value in (0, 1):
            value = bool(value)
        filled = mask.where(value, self)
        if kind_rank(filled.dtype) > kind_rank(self.dtype):
            message = f"the value gives {filled.dtype.name}, which does not fit into {self.dtype.name}"
            raise DTypeError("masked_fill", message, "cast the tensor or the value first")
        return filled._new(build.cast(filled.uop, self.dtype))

    # ------------------------------------------------------------ roots and powers

    def square(self) -> Self:
        """x * x."""
        return self * self

    def reciprocal(self) -> Self:
        """1 / x."""
        return self._as_float().div(1, reverse=True)

    def sqrt(self) -> Self:
        """The square root."""
        return self._function(functions.sqrt, of_short=True)

    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return self._function(functions.rsqrt)

    def pow(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """This tensor to the power `x`; constant integer powers are products."""
        operand = self._operand("pow", x)
        if isinstance(operand, TensorBase):
            return operand._tensor_power(self, self) if reverse else self._tensor_power(operand, operand)
        return self._power_of_number(operand) if reverse else self._number_power(operand)

    def _number_power(self, exponent: Scalar) -> Self:
        if isinstance(exponent, float) and not self.dtype.is_float:
            return self._as_float()._number_power(exponent)
        if not self.dtype.is_float:
            if exponent < 0:
                message = f"{self.dtype.name} to the power {exponent} is not an integer"
                raise DTypeError("pow", message, "cast to a float dtype first, such as `.float()`")
            return self._whole_power(int(exponent))
        return self._function(lambda node: functions.power(node, node.const_like(exponent)))

    def _whole_power(self, exponent: int) -> Self:
        """An integer to an integer power, by repeated squaring."""
        result = self._new(build.const(self.dtype, 1, self.shape))
        square = self
        while exponent:
            if exponent & 1:
                result = result * square
            exponent >>= 1
            square = square * square if exponent else square
        return result

    def _power_of_number(self, base: Scalar) -> Self:
        """base ** self."""
        if 0 < base < math.inf and base != 1 and (self.dtype.is_float or isinstance(base, float)):
            return self._function(lambda node: (node * math.log2(base)).alu(Ops.EXP2))
        dtype = self.dtype if isinstance(base, int) or self.dtype.is_float else dtypes.default_float
        return self._new(number_node("pow", dtype, base))._tensor_power(self, self)

    def _tensor_power(self, exponent: Self, source: Self) -> Self:
        left, right, _ = self._promoted("pow", exponent)
        if not left.dtype.is_float:
            return self._new(left, source)._integer_power(self._new(right, source))
        wide = left.dtype if left.dtype.bits >= 32 else dtypes.float32
        result = functions.power(build.cast(left, wide), build.cast(right, wide))
        return self._new(build.cast(result, left.dtype), source)

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
        """2 to the power of x."""
        return self._function(lambda node: node.alu(Ops.EXP2), of_short=True)

    def log2(self) -> Self:
        """The logarithm to base 2."""
        return self._function(lambda node: node.alu(Ops.LOG2), of_short=True)

    def exp(self) -> Self:
        """e to the power of x."""
        return self._function(functions.exp)

    def log(self) -> Self:
        """The natural logarithm."""
        return self._function(functions.log)

    def log10(self) -> Self:
        """The logarithm to base 10."""
        return self._function(functions.log10)

    def logaddexp(self, other: Self) -> Self:
        """log(exp(self) + exp(other)), without overflow."""
        left, right, others = self._promoted_real("logaddexp", other)
        wide = left.dtype if left.dtype.bits >= 32 else dtypes.float32
        result = functions.logaddexp(build.cast(left, wide), build.cast(right, wide))
        return self._new(build.cast(result, left.dtype), *others)

    # ------------------------------------------------------------ trigonometric and hyperbolic functions

    def sin(self) -> Self:
        """The sine."""
        return self._function(functions.sin, of_short=True)

    def cos(self) -> Self:
        """The cosine."""
        return self._function(functions.cos)

    def tan(self) -> Self:
        """The tangent."""
        return self._function(functions.tan)

    def asin(self) -> Self:
        """The arc sine."""
        return self._function(functions.asin)

    def acos(self) -> Self:
        """The arc cosine."""
        return self._function(functions.acos)

    def atan(self) -> Self:
        """The arc tangent."""
        return self._function(functions.atan)

    def sinh(self) -> Self:
        """The hyperbolic sine."""
        return self._function(functions.sinh)

    def cosh(self) -> Self:
        """The hyperbolic cosine."""
        return self._function(functions.cosh)

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return self._function(functions.tanh)

    def asinh(self) -> Self:
        """The inverse hyperbolic sine."""
        return self._function(functions.asinh)

    def acosh(self) -> Self:
        """The inverse hyperbolic cosine."""
        return self._function(functions.acosh)

    def atanh(self) -> Self:
        """The inverse hyperbolic tangent."""
        return self._function(functions.atanh)

    def erf(self) -> Self:
        """The error function."""
        return self._function(functions.erf)

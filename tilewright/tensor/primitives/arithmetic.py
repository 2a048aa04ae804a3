"""Arithmetic, comparison and selection, with Python's operators. In: tensors and Python numbers, which are weakly
typed: they can change the kind of the result's dtype, never its width. Out: tensors of the broadcast shape and the
promoted dtype. An in-place operator is an assignment: it keeps shape and dtype, and writes through a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TypeVar

from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.tensor.core.base import TensorBase, check_devices, common_dtype
from tilewright.tensor.core.checks import broadcast_shape, fit, number_node
from tilewright.tensor.core.storage import StorageMixin
from tilewright.tensor.primitives import remainders

# Arithmetic on bools, as logical operations.
_BOOL_OPS = {Ops.ADD: Ops.OR, Ops.MUL: Ops.AND, Ops.MAX: Ops.OR, Ops.MIN: Ops.AND}


if TYPE_CHECKING:
    T = TypeVar("T", bound="ArithmeticMixin")


def kind_rank(dtype: DType) -> int:
    """bool < integer < float."""
    return 2 if dtype.is_float else (0 if dtype.is_bool else 1)


def _operator(method: str) -> Callable[[T, T | Scalar], T]:
    """The Python operator that calls a method. The method is looked up at each call, since complex tensors override
    it."""

    def apply(self: T, x: T | Scalar) -> T:
        return getattr(self, method)(x)  # type: ignore[no-any-return]

    return apply


def reflected(method: str) -> Callable[[T, Scalar], T]:
    def apply(self: T, x: Scalar) -> T:
        return getattr(self, method)(x, reverse=True)  # type: ignore[no-any-return]

    return apply


def _in_place_operator(method: str, symbol: str) -> Callable[[T, T | Scalar], T]:
    def apply(self: T, x: T | Scalar) -> T:
        return self._in_place(symbol, getattr(self, method)(x))

    return apply


class ArithmeticMixin(StorageMixin):
    """add, div, eq, where, ... and the operators."""

    # ------------------------------------------------------------ helpers

    def _binary(self, op: Op, x: object, reverse: bool = False, name: str = "") -> Self:
        left, right, others = self._promoted(name or op.name.lower(), x)
        if left.dtype.is_bool:
            op = _BOOL_OPS.get(op, op)
        if reverse:
            left, right = right, left
        return self._new(build.alu(op, left, right), *others)

    def _bits(self, op: Op, x: object, reverse: bool, symbol: str, allow_bool: bool = True) -> Self:
        """A binary op that is defined for integers and bools only."""
        operand = self._operand(symbol, x)
        dtype = common_dtype(self, operand)
        if dtype.is_float or (dtype.is_bool and not allow_bool):
            other = operand.dtype.name if isinstance(operand, TensorBase) else type(operand).__name__
            message = f"{symbol} is not defined for {self.dtype.name} and {other}"
            raise DTypeError(symbol, message, "cast to an integer dtype first, such as `.cast('int32')`")
        return self._binary(op, operand, reverse, symbol)

    def _compare(self, op: Op, x: object, reverse: bool = False, negate: bool = False, name: str = "") -> Self:
        operand = self._operand(name, x)
        source = self
        if isinstance(operand, int) and self.dtype.is_int and not self.dtype.min <= operand <= self.dtype.max:
            # A number that the dtype cannot represent is compared by its value, not by its wrapped value.
            wide = dtypes.int64 if dtypes.int64.min <= operand <= dtypes.int64.max else dtypes.float64
            source = self._new(build.cast(self.uop, wide))
        result = source._binary(op, operand, reverse, name)
        return result.logical_not() if negate else result

    # ------------------------------------------------------------ arithmetic

    def add(self, x: Self | Scalar, reverse: bool = False, *, alpha: Scalar = 1) -> Self:
        """x + alpha * y."""
        return self._binary(Ops.ADD, x if alpha == 1 else self._operand("add", x) * alpha, reverse)

    def sub(self, x: Self | Scalar, reverse: bool = False, *, alpha: Scalar = 1) -> Self:
        """x - alpha * y."""
        operand = self._operand("sub", x)
        operand = operand if alpha == 1 else operand * alpha
        if common_dtype(self, operand).is_bool:
            raise DTypeError("sub", "subtraction is not defined for bool and bool", "use ^, or cast to an integer")
        return self._binary(Ops.SUB, operand, reverse)

    def mul(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """x * y."""
        return self._binary(Ops.MUL, x, reverse)

    def neg(self) -> Self:
        """-x."""
        if self.dtype.is_bool:
            raise DTypeError("neg", "negation is not defined for bool", "use ~ or logical_not")
        return self._new(build.alu(Ops.NEG, self.uop))

    def div(self, x: Self | Scalar, reverse: bool = False, rounding_mode: str | None = None) -> Self:
        """Division; integers give floats. `rounding_mode` "trunc" and "floor" keep the dtype."""
        if rounding_mode not in (None, "trunc", "floor"):
            raise DTypeError("div", f"rounding_mode {rounding_mode!r}", 'give None, "trunc" or "floor"')
        promoted = self._promoted_real if rounding_mode is None else self._promoted
        left, right, others = promoted("div", x)
        if reverse:
            left, right = right, left
        dtype = left.dtype
        if dtype.is_float:
            if rounding_mode == "floor":
                return self._new(remainders.floor_quotient(left, right), *others)
            quotient = self._new(build.alu(Ops.FDIV, left, right), *others)
            return quotient if rounding_mode is None else quotient.trunc()
        floored = build.alu(Ops.IDIV, left, right)
        if rounding_mode == "floor":
            return self._new(floored, *others)
        # Where the quotient is negative and not whole, truncation gives one more than floor.
        zero = build.const(dtype, 0)
        remains = build.alu(Ops.CMPNE, build.alu(Ops.MOD, left, right), zero)
        inexact = build.alu(Ops.AND, remains, build.alu(Ops.CMPLT, floored, zero))
        return self._new(build.where(inexact, build.alu(Ops.ADD, floored, build.const(dtype, 1)), floored), *others)

    def floordiv(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """The quotient rounded down."""
        return self.div(x, reverse, rounding_mode="floor")

    def fmod(self, x: Self | Scalar) -> Self:
        """The exact remainder with the dividend's sign, as C's fmod; NaN where the quotient is 2**96 or more (float64:
        2**208)."""
        left, right, others = self._promoted("fmod", x)
        if left.dtype.is_float:
            return self._new(remainders.fmod(left, right), *others)
        return self - self.div(x, rounding_mode="trunc") * x

    def mod(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """The exact remainder with the divisor's sign, as Python's %; NaN where `fmod` is."""
        left, right, others = self._promoted("mod", x)
        if not left.dtype.is_float:
            return self._binary(Ops.MOD, x, reverse)
        return self._new(remainders.mod(right, left) if reverse else remainders.mod(left, right), *others)

    def _bounded(self, op: Op, bound: Scalar, name: str) -> Self:
        """The maximum (MAX) or minimum (MIN) of this tensor and a number, with a gradient of 0 where the two are
        equal."""
        left, right, _ = self._promoted(name, bound)
        return self._new(build.alu(op, left, marks.taking_ties(right)))

    def maximum(self, x: Self | Scalar) -> Self:
        """The elementwise maximum; where both are equal, each gets half of the gradient."""
        if self._is_below_unsigned(x):
            return self
        return self._binary(Ops.MAX, x, name="maximum")

    def minimum(self, x: Self | Scalar) -> Self:
        """The elementwise minimum; where both are equal, each gets half of the gradient."""
        if self._is_below_unsigned(x):
            message = f"{self.dtype.name} cannot hold {x}, it has {self.dtype.min}..{self.dtype.max}"
            raise DTypeError("minimum", message, "cast the tensor to a signed dtype")
        return self._binary(Ops.MIN, x, name="minimum")

    def _is_below_unsigned(self, x: object) -> bool:
        """Whether an operand is a negative number, which other operations on unsigned integers take for its bits."""
        return self.dtype.is_unsigned and isinstance(x, int) and x < 0

    def trunc(self) -> Self:
        """Rounded towards zero."""
        return self._new(build.alu(Ops.TRUNC, self.uop)) if self.dtype.is_float else self

    def floor(self) -> Self:
        """Rounded down."""
        return self._new(remainders.floor(self.uop)) if self.dtype.is_float else self

    def ceil(self) -> Self:
        """Rounded up."""
        whole = self.trunc()
        return (whole < self).where(whole + 1, whole) if self.dtype.is_float else self

    # ------------------------------------------------------------ bits

    def bitwise_and(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """x & y."""
        return self._bits(Ops.AND, x, reverse, "bitwise_and")

    def bitwise_or(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """x | y."""
        return self._bits(Ops.OR, x, reverse, "bitwise_or")

    def bitwise_xor(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """x ^ y."""
        return self._bits(Ops.XOR, x, reverse, "bitwise_xor")

    def bitwise_not(self) -> Self:
        """~x."""
        return self._bits(Ops.XOR, True if self.dtype.is_bool else -1, False, "bitwise_not")

    def lshift(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """x << y."""
        return self._bits(Ops.SHL, x, reverse, "lshift", allow_bool=False)

    def rshift(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """x >> y."""
        return self._bits(Ops.SHR, x, reverse, "rshift", allow_bool=False)

    def logical_not(self) -> Self:
        """True where an element is 0."""
        truth = build.cast(self.uop, dtypes.bool)
        return self._new(build.alu(Ops.XOR, truth, build.const(dtypes.bool, True)))

    # ------------------------------------------------------------ comparison and selection

    def eq(self, x: Self | Scalar) -> Self:
        """x == y."""
        return self._compare(Ops.CMPEQ, x, name="eq")

    def ne(self, x: Self | Scalar) -> Self:
        """x != y."""
        return self._compare(Ops.CMPNE, x, name="ne")

    def where(self, x: Self | Scalar, y: Self | Scalar) -> Self:
        """`x` where this bool tensor is true, else `y`."""
        if not self.dtype.is_bool:
            message = f"the condition has dtype {self.dtype.name}"
            raise DTypeError("where", message, "give a bool condition, such as `t != 0`")
        values = (self._operand("where", x), self._operand("where", y))
        tensors = [value for value in values if isinstance(value, TensorBase)]
        check_devices("where", self, *tensors)
        dtype = common_dtype(*values)
        shape = broadcast_shape("where", self.shape, *(tensor.shape for tensor in tensors))
        yes, no = (
            fit(value.uop, dtype, shape) if isinstance(value, TensorBase) else number_node("where", dtype, value)
            for value in values
        )
        return self._new(build.where(fit(self.uop, dtypes.bool, shape), yes, no), *tensors)

    # ------------------------------------------------------------ operators

    __add__ = _operator("add")
    __sub__ = _operator("sub")
    __mul__ = _operator("mul")
    __truediv__ = _operator("div")
    __floordiv__ = _operator("floordiv")
    __mod__ = _operator("mod")
    __and__ = _operator("bitwise_and")
    __or__ = _operator("bitwise_or")
    __xor__ = _operator("bitwise_xor")
    __lshift__ = _operator("lshift")
    __rshift__ = _operator("rshift")
    __radd__ = reflected("add")
    __rsub__ = reflected("sub")
    __rmul__ = reflected("mul")
    __rtruediv__ = reflected("div")
    __rfloordiv__ = reflected("floordiv")
    __rmod__ = reflected("mod")
    __rand__ = reflected("bitwise_and")
    __ror__ = reflected("bitwise_or")
    __rxor__ = reflected("bitwise_xor")
    __rlshift__ = reflected("lshift")
    __rrshift__ = reflected("rshift")

    def __neg__(self) -> Self:
        return self.neg()

    def __invert__(self) -> Self:
        return self.bitwise_not()

    def __lt__(self, x: Self | Scalar) -> Self:
        return self._compare(Ops.CMPLT, x, name="lt")

    def __gt__(self, x: Self | Scalar) -> Self:
        return self._compare(Ops.CMPLT, x, reverse=True, name="gt")

    def __le__(self, x: Self | Scalar) -> Self:
        if common_dtype(self, self._operand("le", x)).is_float:
            return self.__lt__(x) | self.eq(x)  # false for NaN
        return self._compare(Ops.CMPLT, x, reverse=True, negate=True, name="le")

    def __ge__(self, x: Self | Scalar) -> Self:
        if common_dtype(self, self._operand("ge", x)).is_float:
            return self.__gt__(x) | self.eq(x)
        return self._compare(Ops.CMPLT, x, negate=True, name="ge")

    def __eq__(self, x: object) -> Self:  # type: ignore[override]
        return self._compare(Ops.CMPEQ, x, name="eq")

    def __ne__(self, x: object) -> Self:  # type: ignore[override]
        return self._compare(Ops.CMPNE, x, name="ne")

    __hash__ = object.__hash__

    # ------------------------------------------------------------ in place

    def _in_place(self, symbol: str, result: Self) -> Self:
        if result.shape != self.shape:
            message = f"the result has shape {result.shape}, the tensor keeps shape {self.shape}"
            raise ShapeError(symbol, message, f"write `a = a {symbol[:-1]} b` to make a new tensor")
        if kind_rank(result.dtype) > kind_rank(self.dtype):
            message = f"the result is {result.dtype.name}, the tensor stays {self.dtype.name}"
            raise DTypeError(symbol, message, f"write `a = a {symbol[:-1]} b`, or cast the operand")
        self._store((), build.cast(result.uop, self.dtype), result)
        return self

    __iadd__ = _in_place_operator("add", "+=")
    __isub__ = _in_place_operator("sub", "-=")
    __imul__ = _in_place_operator("mul", "*=")
    __itruediv__ = _in_place_operator("div", "/=")
    __ifloordiv__ = _in_place_operator("floordiv", "//=")
    __imod__ = _in_place_operator("mod", "%=")
    __iand__ = _in_place_operator("bitwise_and", "&=")
    __ior__ = _in_place_operator("bitwise_or", "|=")
    __ixor__ = _in_place_operator("bitwise_xor", "^=")
    __ilshift__ = _in_place_operator("lshift", "<<=")
    __irshift__ = _in_place_operator("rshift", ">>=")

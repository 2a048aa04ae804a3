"""Functions of elements under the names of the array API. In: arrays, and one Python number where two are taken. Out:
an array of the broadcast shape and the promoted dtype. Each is a method of `Tensor`."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeVar

from tilewright.array_api.dtypes import as_dtype, number_in, result_type
from tilewright.base.errors import DTypeError
from tilewright.tensor.complex.tensor import PART_DTYPES, ComplexTensor, as_complex
from tilewright.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def unary(name: str, method: str) -> Callable[[Tensor], Tensor]:
    """A method without arguments as a function."""

    def function(x: Tensor, /) -> Tensor:
        return getattr(x, method)()  # type: ignore[no-any-return]

    return named(function, name, method)


def operands(name: str, x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    """Two arrays of one dtype; a Python number takes that of the other operand."""
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        raise DTypeError(name, f"{type(x1).__name__} and {type(x2).__name__}", "give at least one array")
    dtype = result_type(x1, x2)
    device = x1.device if isinstance(x1, Tensor) else x2.device
    left, right = (
        (x if x.dtype is dtype else as_dtype(x, dtype)) if isinstance(x, Tensor) else number_in(x, dtype, device)
        for x in (x1, x2)
    )
    return left, right


def _binary(name: str, method: str) -> Callable[[Any, Any], Tensor]:
    def function(x1: Any, x2: Any, /) -> Tensor:
        left, right = operands(name, x1, x2)
        return getattr(left, method)(right)  # type: ignore[no-any-return]

    return named(function, name, method)


def named(function: F, name: str, method: str) -> F:
    """A function under its name in the standard, with the docstring of the method that it calls."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(Tensor, method).__doc__ or f"`Tensor.{method}`."
    return function


abs = unary("abs", "abs")
acos = unary("acos", "acos")
acosh = unary("acosh", "acosh")
asin = unary("asin", "asin")
asinh = unary("asinh", "asinh")
atan = unary("atan", "atan")
atanh = unary("atanh", "atanh")
bitwise_invert = unary("bitwise_invert", "bitwise_not")
ceil = unary("ceil", "ceil")
cos = unary("cos", "cos")
cosh = unary("cosh", "cosh")
exp = unary("exp", "exp")
expm1 = unary("expm1", "expm1")
floor = unary("floor", "floor")
isfinite = unary("isfinite", "isfinite")
isinf = unary("isinf", "isinf")
isnan = unary("isnan", "isnan")
log = unary("log", "log")
log1p = unary("log1p", "log1p")
log2 = unary("log2", "log2")
log10 = unary("log10", "log10")
logical_not = unary("logical_not", "logical_not")
negative = unary("negative", "neg")
positive = unary("positive", "positive")
reciprocal = unary("reciprocal", "reciprocal")
round = unary("round", "round")
sign = unary("sign", "sign")
signbit = unary("signbit", "signbit")
sin = unary("sin", "sin")
sinh = unary("sinh", "sinh")
sqrt = unary("sqrt", "sqrt")
square = unary("square", "square")
tan = unary("tan", "tan")
tanh = unary("tanh", "tanh")
trunc = unary("trunc", "trunc")

add = _binary("add", "add")
atan2 = _binary("atan2", "atan2")
bitwise_and = _binary("bitwise_and", "bitwise_and")
bitwise_left_shift = _binary("bitwise_left_shift", "lshift")
bitwise_or = _binary("bitwise_or", "bitwise_or")
bitwise_right_shift = _binary("bitwise_right_shift", "rshift")
bitwise_xor = _binary("bitwise_xor", "bitwise_xor")
copysign = _binary("copysign", "copysign")
divide = _binary("divide", "div")
equal = _binary("equal", "eq")
floor_divide = _binary("floor_divide", "floordiv")
greater = _binary("greater", "gt")
greater_equal = _binary("greater_equal", "ge")
hypot = _binary("hypot", "hypot")
less = _binary("less", "lt")
less_equal = _binary("less_equal", "le")
logaddexp = _binary("logaddexp", "logaddexp")
logical_and = _binary("logical_and", "logical_and")
logical_or = _binary("logical_or", "logical_or")
logical_xor = _binary("logical_xor", "logical_xor")
maximum = _binary("maximum", "maximum")
minimum = _binary("minimum", "minimum")
multiply = _binary("multiply", "mul")
nextafter = _binary("nextafter", "nextafter")
not_equal = _binary("not_equal", "ne")
pow = _binary("pow", "pow")
remainder = _binary("remainder", "mod")
subtract = _binary("subtract", "sub")


def real(x: Tensor, /) -> Tensor:
    """The real part."""
    return x.real if isinstance(x, ComplexTensor) else x


def imag(x: Tensor, /) -> Tensor:
    """The imaginary part of complex numbers."""
    return as_complex(x).imag


def conj(x: Tensor, /) -> Tensor:
    """The complex conjugate; a real number is its own."""
    return x.conj() if isinstance(x, ComplexTensor) else x


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """No less than `min` and no more than `max`, in the dtype of `x`; NaN in either gives NaN."""
    if x.dtype in PART_DTYPES:
        raise DTypeError("clip", "complex numbers have no order", "clip the parts")
    result = x
    for limit, method in ((min, "maximum"), (max, "minimum")):
        if limit is None:
            continue
        if not isinstance(limit, Tensor) and x.dtype.is_int:
            # A limit that the dtype cannot hold is one that no element reaches.
            limit = builtins.min(builtins.max(limit, x.dtype.min), x.dtype.max)
        bound = limit.cast(x.dtype) if isinstance(limit, Tensor) else number_in(limit, x.dtype, x.device)
        result = getattr(result, method)(bound)
    return result

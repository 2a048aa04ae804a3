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


def _unary(name: str, method: str) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor, /) -> Tensor:
        return getattr(x, method)()  # type: ignore[no-any-return]

    return _named(function, name, method)


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

    return _named(function, name, method)


def _named(function: F, name: str, method: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(Tensor, method).__doc__ or f"`Tensor.{method}`."
    return function


abs = _unary("abs", "abs")
acos = _unary("acos", "acos")
acosh = _unary("acosh", "acosh")
asin = _unary("asin", "asin")
asinh = _unary("asinh", "asinh")
atan = _unary("atan", "atan")
atanh = _unary("atanh", "atanh")
bitwise_invert = _unary("bitwise_invert", "bitwise_not")
ceil = _unary("ceil", "ceil")
cos = _unary("cos", "cos")
cosh = _unary("cosh", "cosh")
exp = _unary("exp", "exp")
expm1 = _unary("expm1", "expm1")
floor = _unary("floor", "floor")
isfinite = _unary("isfinite", "isfinite")
isinf = _unary("isinf", "isinf")
isnan = _unary("isnan", "isnan")
log = _unary("log", "log")
log1p = _unary("log1p", "log1p")
log2 = _unary("log2", "log2")
log10 = _unary("log10", "log10")
logical_not = _unary("logical_not", "logical_not")
negative = _unary("negative", "neg")
positive = _unary("positive", "positive")
reciprocal = _unary("reciprocal", "reciprocal")
round = _unary("round", "round")
sign = _unary("sign", "sign")
signbit = _unary("signbit", "signbit")
sin = _unary("sin", "sin")
sinh = _unary("sinh", "sinh")
sqrt = _unary("sqrt", "sqrt")
square = _unary("square", "square")
tan = _unary("tan", "tan")
tanh = _unary("tanh", "tanh")
trunc = _unary("trunc", "trunc")

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

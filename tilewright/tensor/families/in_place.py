"""Operations that write their result into the tensor: add_, copy_, zero_, ... In: the arguments of the operation
without the underscore. Out: the tensor itself, with the same memory and dtype; expressions built before keep the old
values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.tensor.families.random import RandomMixin


def _in_place(operation: str) -> Callable[..., Any]:
    """The method that computes an operation and assigns its result to the tensor."""

    def method(self: InPlaceMixin, *args: Any, **kwargs: Any) -> InPlaceMixin:
        return self._write_result(f"{operation}_", getattr(self, operation)(*args, **kwargs))

    method.__name__ = method.__qualname__ = f"{operation}_"
    method.__doc__ = f"`{operation}`, written into this tensor."
    return method


class InPlaceMixin(RandomMixin):
    """add_, mul_, copy_, zero_, fill_, clamp_, uniform_, ..."""

    def _write_result(self, name: str, result: Self) -> Self:
        if result.shape != self.shape:
            message = f"a result of shape {result.shape} does not fit into shape {self.shape}"
            raise ShapeError(name, message, f"use `{name.rstrip('_')}`, which makes a new tensor")
        if result.dtype is not self.dtype and not (result.dtype.is_float and self.dtype.is_float):
            message = f"a result of {result.dtype.name} does not fit into {self.dtype.name}"
            raise DTypeError(name, message, f"use `{name.rstrip('_')}`, or cast first")
        return self.assign(result.cast(self.dtype))

    # ------------------------------------------------------------ values from other sources

    def copy_(self, src: Any) -> Self:
        """Overwrites the elements with those of another tensor, cast and broadcast."""
        operand = self._operand("copy_", src)
        if isinstance(operand, InPlaceMixin):
            operand = operand.cast(self.dtype)
        return self.assign(operand)

    def fill_(self, value: Scalar) -> Self:
        """Overwrites every element with a number."""
        return self.assign(self.full_like(value))

    def zero_(self) -> Self:
        """Overwrites every element with 0."""
        return self.fill_(0)

    def uniform_(self, low: float = 0.0, high: float = 1.0) -> Self:
        """Overwrites the elements with random numbers in low..high."""
        values = self.uniform(*self.shape, low=low, high=high, dtype=self._random_dtype(), device=self.device)
        return self._write_result("uniform_", values)

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Self:
        """Overwrites the elements with normally distributed random numbers."""
        values = self.normal(*self.shape, mean=mean, std=std, dtype=self._random_dtype(), device=self.device)
        return self._write_result("normal_", values)

    def _random_dtype(self) -> DType:
        return self.dtype if self.dtype.is_float else dtypes.default_float

    def detach_(self) -> Self:
        """Detaches this tensor from the graph of its gradient."""
        self.uop = self.detach().uop
        self._requires_grad = False
        return self

    # ------------------------------------------------------------ results

    abs_ = _in_place("abs")
    acos_ = _in_place("acos")
    acosh_ = _in_place("acosh")
    add_ = _in_place("add")
    addcdiv_ = _in_place("addcdiv")
    addcmul_ = _in_place("addcmul")
    asin_ = _in_place("asin")
    asinh_ = _in_place("asinh")
    atan_ = _in_place("atan")
    atan2_ = _in_place("atan2")
    atanh_ = _in_place("atanh")
    bitwise_and_ = _in_place("bitwise_and")
    bitwise_not_ = _in_place("bitwise_not")
    bitwise_or_ = _in_place("bitwise_or")
    bitwise_xor_ = _in_place("bitwise_xor")
    ceil_ = _in_place("ceil")
    clamp_ = _in_place("clamp")
    clamp_max_ = _in_place("clamp_max")
    clamp_min_ = _in_place("clamp_min")
    clip_ = _in_place("clip")
    cos_ = _in_place("cos")
    cosh_ = _in_place("cosh")
    cumprod_ = _in_place("cumprod")
    cumsum_ = _in_place("cumsum")
    div_ = _in_place("div")
    erf_ = _in_place("erf")
    erfc_ = _in_place("erfc")
    exp_ = _in_place("exp")
    exp2_ = _in_place("exp2")
    expm1_ = _in_place("expm1")
    floor_ = _in_place("floor")
    fmod_ = _in_place("fmod")
    frac_ = _in_place("frac")
    index_add_ = _in_place("index_add")
    index_copy_ = _in_place("index_copy")
    index_fill_ = _in_place("index_fill")
    lerp_ = _in_place("lerp")
    log_ = _in_place("log")
    log10_ = _in_place("log10")
    log1p_ = _in_place("log1p")
    log2_ = _in_place("log2")
    logical_and_ = _in_place("logical_and")
    logical_not_ = _in_place("logical_not")
    logical_or_ = _in_place("logical_or")
    logical_xor_ = _in_place("logical_xor")
    logit_ = _in_place("logit")
    masked_fill_ = _in_place("masked_fill")
    masked_scatter_ = _in_place("masked_scatter")
    mul_ = _in_place("mul")
    nan_to_num_ = _in_place("nan_to_num")
    neg_ = _in_place("neg")
    pow_ = _in_place("pow")
    reciprocal_ = _in_place("reciprocal")
    relu_ = _in_place("relu")
    remainder_ = _in_place("remainder")
    round_ = _in_place("round")
    rsqrt_ = _in_place("rsqrt")
    scatter_ = _in_place("scatter")
    scatter_add_ = _in_place("scatter_add")
    scatter_reduce_ = _in_place("scatter_reduce")
    sigmoid_ = _in_place("sigmoid")
    sign_ = _in_place("sign")
    sin_ = _in_place("sin")
    sinh_ = _in_place("sinh")
    sqrt_ = _in_place("sqrt")
    square_ = _in_place("square")
    sub_ = _in_place("sub")
    tan_ = _in_place("tan")
    tanh_ = _in_place("tanh")
    tril_ = _in_place("tril")
    triu_ = _in_place("triu")
    trunc_ = _in_place("trunc")

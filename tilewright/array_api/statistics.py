"""Reductions and running reductions with the dtypes that the array API gives them: sums of integers have the default
integer dtype, or their own where that is wider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.array_api.dtypes import as_dtype
from tilewright.array_api.elementwise import named
from tilewright.array_api.manipulation import concat
from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import ShapeError
from tilewright.tensor.complex.tensor import PART_DTYPES
from tilewright.tensor.tensor import Tensor


def _sum_dtype(x: Tensor, dtype: Any) -> DType:
    if dtype is not None:
        return dtype  # type: ignore[no-any-return]
    if x.dtype.is_float or x.dtype in PART_DTYPES:
        return x.dtype
    default = dtypes.uint32 if x.dtype.is_unsigned else dtypes.default_int
    return x.dtype if x.dtype.bits > default.bits else default


def sum(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum."""
    return as_dtype(x, _sum_dtype(x, dtype)).sum(axis, keepdims, _sum_dtype(x, dtype))


def prod(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product."""
    return as_dtype(x, _sum_dtype(x, dtype)).prod(axis, keepdims, _sum_dtype(x, dtype))


def _reduction(name: str) -> Callable[..., Tensor]:
    """The method of `Tensor` with that name, called as the standard does."""

    def function(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
        return getattr(x, name)(axis, keepdims)  # type: ignore[no-any-return]

    return named(function, name, name)


all = _reduction("all")
any = _reduction("any")
max = _reduction("max")
mean = _reduction("mean")
min = _reduction("min")


def var(x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The mean square distance from the mean, over n - correction."""
    return x.var(axis, keepdims, correction)


def std(x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The root of the variance."""
    return x.std(axis, keepdims, correction)


def _running(name: str, x: Tensor, axis: int | None, dtype: Any, include_initial: bool, start: int) -> Tensor:
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(name, f"no axis for shape {x.shape}", "give the axis")
        axis = 0
    source = as_dtype(x, _sum_dtype(x, dtype))
    result = as_dtype(source.cumsum(axis) if start == 0 else source.cumprod(axis), source.dtype)
    if not include_initial:
        return result
    shape = tuple(1 if k == axis % x.ndim else size for k, size in enumerate(x.shape))
    first = as_dtype(Tensor.full(shape, start, device=x.device), source.dtype)
    return concat([first, result], axis=axis)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Each element with all before it added."""
    return _running("cumulative_sum", x, axis, dtype, include_initial, 0)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Each element with all before it multiplied."""
    return _running("cumulative_prod", x, axis, dtype, include_initial, 1)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Each element minus the one before it, n times over."""
    parts = [part for part in (prepend, x, append) if part is not None]
    return (concat(parts, axis=axis) if len(parts) > 1 else x).diff(n, axis)

"""The array API standard, version 2024.12 (data-apis.org): a namespace over `Tensor`. In: tensors of this package. Out:
the same. `tensor.__array_namespace__()` returns it, so that libraries written for the standard take our tensors."""

from __future__ import annotations

import importlib
import math
from typing import Any

from tilewright.base.dtype import dtypes as _dtypes

__array_api_version__ = "2024.12"
SUPPORTED_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")

bool = _dtypes.bool
e = math.e
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi

_CONSTANTS = ["__array_api_version__", "bool", "e", "inf", "nan", "newaxis", "pi"]
_EXTENSIONS = ["fft", "linalg"]
# The names of the standard, by the module that defines them. A module is imported when one of its names is first used.
_NAMES = {
    "creation": """
        arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril triu zeros
        zeros_like
    """,
    "dtypes": """
        __array_namespace_info__ astype can_cast complex64 complex128 finfo float32 float64 iinfo int8 int16 int32 int64
        isdtype result_type uint8 uint16 uint32 uint64
    """,
    "elementwise": """
        abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift bitwise_or
        bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide
        greater greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and
        logical_not logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real
        reciprocal remainder round sign signbit sin sinh sqrt square subtract tan tanh trunc
    """,
    "linalg": "matmul matrix_transpose tensordot vecdot",
    "manipulation": """
        argmax argmin argsort broadcast_arrays broadcast_shapes broadcast_to concat count_nonzero expand_dims flip
        moveaxis nonzero permute_dims repeat reshape roll searchsorted sort squeeze stack take take_along_axis tile
        unique_all unique_counts unique_inverse unique_values unstack where
    """,
    "statistics": "all any cumulative_prod cumulative_sum diff max mean min prod std sum var",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_CONSTANTS, *_EXTENSIONS, *_MODULES])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _EXTENSIONS:
        return importlib.import_module(f"tilewright.array_api.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'tilewright.array_api' has no attribute {name!r}")
    module = importlib.import_module(f"tilewright.array_api.{_MODULES[name]}")
    globals()[name] = found = getattr(module, name)
    return found

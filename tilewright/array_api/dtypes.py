"""Dtypes of the array API: names, limits, kinds, promotion; and the answers of `__array_namespace_info__()`. In:
dtypes, tensors, numbers. Out: dtypes, and what the namespace supports."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtype import DType, FloatLimits, IntegerLimits, cast_scalar, dtypes, promote, to_dtype
from tilewright.base.errors import DTypeError
from tilewright.runtime.device import Device
from tilewright.tensor.complex.tensor import (
    COMPLEX_DTYPES,
    PART_DTYPES,
    ComplexTensor,
    as_complex,
    complex64,
    complex128,
    complex_dtype,
)
from tilewright.tensor.tensor import Tensor

bool_ = dtypes.bool
int8, int16, int32, int64 = dtypes.sints
uint8, uint16, uint32, uint64 = dtypes.uints
float32, float64 = dtypes.float32, dtypes.float64

DEFAULT_COMPLEX = complex64
KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (bool_,),
    "signed integer": dtypes.sints,
    "unsigned integer": dtypes.uints,
    "integral": dtypes.ints,
    "real floating": (float32, float64),
    "complex floating": (complex64, complex128),
}
KINDS["numeric"] = KINDS["integral"] + KINDS["real floating"] + KINDS["complex floating"]
ALL = KINDS["bool"] + KINDS["numeric"]
# Further dtypes of this package that a function may be given.
_EXTRA = {"real floating": dtypes.floats, "numeric": dtypes.floats}


def _dtype_of(type: Any) -> DType:
    return type.dtype if isinstance(type, Tensor) else to_dtype(type)


def iinfo(type: Any, /) -> IntegerLimits:
    """The limits of an integer dtype."""
    return dtypes.iinfo(_dtype_of(type))


def finfo(type: Any, /) -> FloatLimits:
    """The limits of a float dtype; of a complex one those of its parts."""
    dtype = _dtype_of(type)
    return dtypes.finfo(PART_DTYPES.get(dtype, dtype))


def isdtype(dtype: DType, kind: Any) -> bool:
    """Whether a dtype is of a kind, is a dtype, or is one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise DTypeError("isdtype", f"the kind {kind!r}", f"give one of {', '.join(KINDS)}")
        return dtype in KINDS[kind] or dtype in _EXTRA.get(kind, ())
    return dtype is kind


def promote_dtypes(*found: DType) -> DType:
    """The dtype that values of these dtypes compute in; complex is wider than any float."""
    if not any(dtype in PART_DTYPES for dtype in found):
        return promote(*found)
    parts = [PART_DTYPES.get(dtype, dtype) for dtype in found]
    part = promote(*(dtype if dtype.is_float else float32 for dtype in parts))
    return COMPLEX_DTYPES[part if part is float64 else float32]


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype of an operation on these arrays, dtypes and Python numbers; a number counts only by kind."""
    found = [_dtype_of(given) for given in arrays_and_dtypes if isinstance(given, Tensor | DType)]
    numbers = [given for given in arrays_and_dtypes if not isinstance(given, Tensor | DType)]
    if not found:
        raise DTypeError("result_type", "neither an array nor a dtype", "give at least one")
    dtype = promote_dtypes(*found)
    for number in numbers:
        if isinstance(number, complex) and dtype not in PART_DTYPES:
            dtype = COMPLEX_DTYPES[float64 if dtype is float64 else float32]
        elif isinstance(number, float) and not (dtype.is_float or dtype in PART_DTYPES):
            dtype = dtypes.default_float
    return dtype


def can_cast(from_: Any, to: DType, /) -> bool:
    """Whether promotion takes one dtype to the other."""
    source = _dtype_of(from_)
    if source is to:
        return True
    if source in PART_DTYPES and to not in PART_DTYPES:
        return False
    if (source.is_bool or to.is_bool) or (source.is_int and (to.is_float or to in PART_DTYPES)):
        return False
    if source.is_int and to.is_int and source.is_unsigned is False and to.is_unsigned:
        return False
    return promote_dtypes(source, to) is to


def as_dtype(value: Tensor, dtype: Any) -> Tensor:
    """A tensor in a dtype, which may be a complex one."""
    wanted = complex_dtype(dtype)
    if wanted is None:
        return value.cast(dtype)
    part = PART_DTYPES[wanted]
    if isinstance(value, ComplexTensor):
        return ComplexTensor(value.real.cast(part), value.imag.cast(part))
    return as_complex(value.cast(part))


def astype(x: Tensor, dtype: DType, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Each element as another dtype holds it. A complex number is not cast to a real one."""
    if x.dtype is dtype and device in (None, x.device):
        return x.clone() if copy else x
    result = as_dtype(x, dtype)
    return result if device is None else result.to(device)


def number_in(value: Any, dtype: DType, device: Any) -> Tensor:
    """A Python number as a 0-d tensor of a dtype."""
    if dtype in PART_DTYPES:
        return as_complex(value, device, PART_DTYPES[dtype])
    return Tensor(cast_scalar(value, dtype), dtype=dtype, device=device)


class NamespaceInfo:
    """The answers of `__array_namespace_info__()`."""

    def capabilities(self) -> dict[str, Any]:
        """Arrays may be indexed by masks and have shapes that depend on values; axes are not limited."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        return str(Device.DEFAULT)

    def devices(self) -> list[str]:
        """The devices that can be used here."""
        usable = (name for name, reason in Device.availability().items() if reason is None)
        return [name for name in usable if name not in ("NULL", "DISK")]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        del device  # they are the same on every one
        return {
            "real floating": dtypes.default_float,
            "complex floating": DEFAULT_COMPLEX,
            "integral": dtypes.default_int,
            "indexing": dtypes.int64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        del device
        wanted = tuple(KINDS) if kind is None else kind
        return {dtype.name: dtype for dtype in ALL if isdtype(dtype, wanted)}


def __array_namespace_info__() -> NamespaceInfo:
    """Facts about this namespace."""
    return NamespaceInfo()

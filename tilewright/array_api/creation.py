"""Arrays from numbers, shapes and other libraries' memory."""

from __future__ import annotations

from typing import Any

from tilewright.array_api.dtypes import as_dtype
from tilewright.base.dtype import dtypes
from tilewright.base.errors import ShapeError, UnsupportedError
from tilewright.tensor.complex.tensor import COMPLEX_DTYPES, PART_DTYPES, ComplexTensor, as_complex, complex_dtype
from tilewright.tensor.core.convert import flatten
from tilewright.tensor.tensor import Tensor


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """Numbers, nested sequences, arrays of this or another library, and buffers as an array. Without `copy=True` an
    array of this package in the wanted dtype and device is returned as it is."""
    if isinstance(obj, Tensor):
        made = obj if dtype is None or dtype is obj.dtype else as_dtype(obj, dtype)
        made = made if device is None else made.to(device)
        if copy is False and made is not obj:
            raise UnsupportedError("asarray", "another dtype or device needs a copy", "leave out copy=False")
        return made.clone() if copy and made is obj else made
    if copy is False and isinstance(obj, bool | int | float | complex | list | tuple):
        raise ValueError("asarray: Python numbers have no memory to share; leave out copy=False")
    if _is_complex(obj) or complex_dtype(dtype) is not None:
        if isinstance(obj, list | tuple) and _holds_tensors(obj):
            stacked = _stacked(obj)
            return stacked if dtype is None else as_dtype(stacked, dtype)
        part = PART_DTYPES.get(complex_dtype(dtype) or COMPLEX_DTYPES[_part_of(obj)])
        made = as_complex(_host_values(obj), device, part)
        return ComplexTensor(made.real.cast(part), made.imag.cast(part))  # type: ignore[arg-type]
    if isinstance(obj, list | tuple) and _holds_tensors(obj):
        stacked = _stacked(obj)
        return stacked if dtype is None else as_dtype(stacked, dtype)
    return Tensor(obj, dtype=dtype, device=device)


def _is_complex(obj: Any) -> bool:
    if isinstance(obj, list | tuple):
        leaves, _ = flatten(obj) if not _holds_tensors(obj) else ([], ())
        return any(isinstance(leaf, complex) for leaf in leaves) or (
            _holds_tensors(obj) and any(_is_complex(entry) for entry in obj)
        )
    return isinstance(obj, complex | ComplexTensor) or getattr(getattr(obj, "dtype", None), "kind", "") == "c"


def _part_of(obj: Any) -> Any:
    return dtypes.float64 if getattr(getattr(obj, "dtype", None), "name", "") == "complex128" else dtypes.float32


def _host_values(obj: Any) -> Any:
    import numpy as np

    return (
        obj if isinstance(obj, complex | float | int) else np.asarray(obj, None if hasattr(obj, "dtype") else complex)
    )


def _holds_tensors(data: Any) -> bool:
    if not isinstance(data, list | tuple):
        return isinstance(data, Tensor)
    return any(_holds_tensors(entry) for entry in data)


def _stacked(data: Any) -> Tensor:
    parts = [
        entry if isinstance(entry, Tensor) else _stacked(entry) if _holds_tensors(entry) else Tensor(entry)
        for entry in data
    ]
    if any(isinstance(part, ComplexTensor) for part in parts):
        parts = [as_complex(part) for part in parts]
    return parts[0].stack(*parts[1:])


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(shape) if isinstance(shape, tuple | list) else (shape,)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """One value everywhere."""
    wanted = complex_dtype(dtype)
    if wanted is None and (dtype is not None or not isinstance(fill_value, complex)):
        return Tensor.full(_shape(shape), fill_value, dtype, device)
    part = PART_DTYPES[wanted] if wanted is not None else dtypes.float32
    number = complex(fill_value)
    real, imag = (Tensor.full(_shape(shape), each, part, device) for each in (number.real, number.imag))
    return ComplexTensor(real, imag)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros."""
    return full(shape, 0, dtype=dtype or dtypes.default_float, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones."""
    return full(shape, 1, dtype=dtype or dtypes.default_float, device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """An array whose values do not matter: zeros, which take no memory until they are written to."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """One value in the shape of another array."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros in the shape of another array."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones in the shape of another array."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """As `empty`, in the shape of another array."""
    return zeros_like(x, dtype=dtype, device=device)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """start, start + step, ... before stop."""
    return Tensor.arange(start, stop, step, dtype, device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """`num` values from start to stop, which is the last one unless `endpoint` says otherwise."""
    if num < 0:
        raise ShapeError("linspace", f"num={num}", "give a number of at least 0")
    wanted = complex_dtype(dtype)
    if wanted is not None or isinstance(start, complex) or isinstance(stop, complex):
        part = PART_DTYPES[wanted] if wanted is not None else dtypes.float32
        first, last = complex(start), complex(stop)
        real, imag = (
            linspace(a, b, num, dtype=part, device=device, endpoint=endpoint)
            for a, b in ((first.real, last.real), (first.imag, last.imag))
        )
        return ComplexTensor(real, imag)
    if not endpoint:  # the standard's words: the first of one more
        return Tensor.linspace(start, stop, num + 1, dtype, device)[:num]
    return Tensor.linspace(start, stop, num, dtype, device)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones on the k-th diagonal."""
    columns = n_rows if n_cols is None else n_cols
    row = Tensor.arange(n_rows, device=device).reshape((n_rows, 1))
    ones_there = (Tensor.arange(columns, device=device).reshape((1, columns)) - row).eq(k)
    return as_dtype(ones_there, dtype or dtypes.default_float)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Another library's host memory as an array."""
    if _is_complex(x):
        import numpy as np

        return as_complex(x.numpy() if isinstance(x, ComplexTensor) else np.from_dlpack(x), device)
    made = Tensor.from_dlpack(x, device=device)
    return made.clone() if copy else made


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinates of the points of a grid."""
    if indexing not in ("xy", "ij"):
        raise ShapeError("meshgrid", f"indexing {indexing!r}", 'give "xy" or "ij"')
    count = len(arrays)
    shape = tuple(array.shape[0] for array in arrays)
    swaps = indexing == "xy" and count > 1
    result = []
    for number, array in enumerate(arrays):
        axis = {0: 1, 1: 0}.get(number, number) if swaps else number
        sizes = (shape[1], shape[0], *shape[2:]) if swaps else shape
        aligned = array.reshape(tuple(-1 if k == axis else 1 for k in range(count)))
        result.append(aligned.expand(sizes))
    return result


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangle."""
    return x.tril(k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangle."""
    return x.triu(k)

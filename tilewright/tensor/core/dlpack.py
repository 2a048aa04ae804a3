"""DLPack, by which array libraries hand memory to each other. In: memory with its dtype and shape, or a capsule of
another library. Out: a capsule, or the same facts. Only ctypes is needed: the structures are those of
dlpack.h, and a capsule of either side frees what it stands for exactly once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import DeviceError, DTypeError
from tilewright.base.records import NamedTuple
from tilewright.graph.spec import Shape

HOST_DEVICE = (1, 0)
_HOST_KINDS = (1, 3)  # plain memory, and memory that CUDA has pinned
_READ_ONLY = 1
_CODES: dict[str, int] = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_SPECIAL_CODES: dict[DType, int] = {dtypes.bfloat16: 4, dtypes.float8_e4m3: 10, dtypes.float8_e5m2: 12}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class _View(ctypes.Structure):
    """Python's Py_buffer, as far as its first fields go; the rest is room."""

    _fields_ = (("address", ctypes.c_void_p), ("object", ctypes.py_object), ("rest", ctypes.c_byte * 128))


# Names outlive every capsule that has them.
_NAME, _USED = b"dltensor", b"used_dltensor"
_VERSIONED_NAME, _USED_VERSIONED = b"dltensor_versioned", b"used_dltensor_versioned"

_api = ctypes.pythonapi
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_get_buffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_View), ctypes.c_int)(
    ("PyObject_GetBuffer", _api)
)
_release_buffer = ctypes.PYFUNCTYPE(None, ctypes.POINTER(_View))(("PyBuffer_Release", _api))


# ---------------------------------------------------------------- export

# What is handed out, by the address of its structure, until the other side has done with it.
_handed_out: dict[int, tuple[Any, ...]] = {}


def _forget(address: int) -> None:
    _handed_out.pop(address, None)


def _free_capsule(capsule: int) -> None:
    """A capsule that nobody took frees what it stands for; one that was taken has another name."""
    for name in (_NAME, _VERSIONED_NAME):
        if _is_capsule(capsule, name):
            _forget(_pointer_of(capsule, name))


# Kept for good: the other side calls them by address.
_delete = _Deleter(_forget)
_destroy = _Destructor(_free_capsule)


def address_of(view: memoryview) -> int:
    """Where the bytes of a view lie; it may be read-only."""
    found = _View()
    if _get_buffer(view, ctypes.byref(found), 0):  # a failure raises by itself
        raise BufferError("the memory has no address")
    address = found.address
    _release_buffer(ctypes.byref(found))
    return int(address or 0)


def export_capsule(view: memoryview, dtype: DType, shape: Shape, owner: object, is_versioned: bool) -> object:
    """A capsule of row-major host memory, which `owner` keeps alive."""
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    strides = (ctypes.c_int64 * len(shape))(*row_major_strides(shape))
    code = _SPECIAL_CODES.get(dtype, _CODES[dtype.kind])
    tensor = _Tensor(
        address_of(view) if view.nbytes else None,
        _Device(*HOST_DEVICE),
        len(shape),
        _DataType(code, dtype.bits, 1),
        ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
        0,
    )
    delete = ctypes.cast(_delete, ctypes.c_void_p)
    managed: _Managed | _ManagedVersioned
    if is_versioned:
        managed = _ManagedVersioned(1, 0, None, delete, _READ_ONLY if view.readonly else 0, tensor)
    else:
        managed = _Managed(tensor, None, delete)
    address = ctypes.addressof(managed)
    _handed_out[address] = (managed, sizes, strides, view, owner)
    name = _VERSIONED_NAME if is_versioned else _NAME
    return _new_capsule(address, name, ctypes.cast(_destroy, ctypes.c_void_p))


def row_major_strides(shape: Shape) -> list[int]:
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return strides


# ---------------------------------------------------------------- import


class Imported(NamedTuple):
    """Memory of another library: bytes, and where in them (in elements) the first element and its neighbours lie."""

    buffer: Any
    dtype: DType
    shape: Shape
    strides: tuple[int, ...]
    start: int


class _Owner:
    """Gives memory back to the library it came from when the last of its users is gone."""

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address = address
        self._delete: Callable[[int], None] | None = _Deleter(deleter) if deleter else None

    def __del__(self) -> None:
        if self._delete is not None:
            self._delete(self._address)


def import_capsule(capsule: Any) -> Imported:
    """The memory behind a capsule, which is used up by it."""
    pointer = id(capsule)
    managed: _Managed | _ManagedVersioned
    if _is_capsule(pointer, _VERSIONED_NAME):
        address = int(_pointer_of(pointer, _VERSIONED_NAME))
        managed = _ManagedVersioned.from_address(address)
        used = _USED_VERSIONED
    elif _is_capsule(pointer, _NAME):
        address = int(_pointer_of(pointer, _NAME))
        managed = _Managed.from_address(address)
        used = _USED
    else:
        raise DTypeError("from_dlpack", f"{capsule!r} is not a DLPack capsule, or was used before", "ask for a new one")
    tensor = managed.tensor
    dtype = _dtype_of(tensor.dtype)
    if tensor.device.kind not in _HOST_KINDS:
        message = f"memory of device kind {tensor.device.kind}, which the host does not see"
        raise DeviceError("from_dlpack", message, "copy it to the host first, such as `x.cpu()`")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else row_major_strides(shape)
    _set_name(pointer, used)
    owner = _Owner(address, managed.deleter)
    if 0 in shape:
        return Imported(b"", dtype, shape, tuple(strides), 0)
    ends = [(size - 1) * stride for size, stride in zip(shape, strides)]
    lowest, highest = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)
    start = int(tensor.data) + int(tensor.byte_offset) + lowest * dtype.itemsize
    memory = (ctypes.c_uint8 * ((highest - lowest + 1) * dtype.itemsize)).from_address(start)
    memory.owner = owner
    return Imported(memory, dtype, shape, tuple(strides), -lowest)


def _dtype_of(found: _DataType) -> DType:
    for dtype in dtypes.all:
        code = _SPECIAL_CODES.get(dtype, _CODES[dtype.kind])
        if (code, dtype.bits, 1) == (found.code, found.bits, found.lanes):
            return dtype
    message = (
        f"elements of DLPack's code {found.code} with {found.bits} bits and {found.lanes} lanes have no dtype here"
    )
    raise DTypeError("from_dlpack", message, "convert them first, such as to float32")

"""Tensors over bytes of files. In: a path, or an offset into mapped bytes with dtype, shape and strides. Out: tensors
that read the file in place, through the page cache, so a model is in memory once. The mapping is read-only, and tensors
over it are copy-on-write, as for all borrowed memory."""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import DTypeError, FileError, FileFormatError
from tilewright.runtime.unpacking import max_unpacked
from tilewright.tensor.tensor import Tensor

Path = str | os.PathLike[str]

MAX_JSON_BYTES = 1 << 26


def open_mapped(operation: str, path: Path) -> mmap.mmap | None:
    """The file as read-only memory; None where it is empty, which cannot be mapped."""
    check_plain(operation, path)
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return None
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise unreadable(operation, path, error) from error


def bytes_of(operation: str, source: Path | Tensor) -> tuple[str, memoryview]:
    """The bytes of a file, mapped, or a copy of a tensor's bytes, which later updates do not change; and a name for
    errors."""
    if isinstance(source, Tensor):
        if source.dtype is not dtypes.uint8 or source.ndim != 1:
            message = f"a tensor of {source._described()} as the bytes of a file"
            raise DTypeError(operation, message, "give a path, or a 1-D uint8 tensor")
        return "a tensor of bytes", memoryview(source._read(bytes))
    mapping = open_mapped(operation, source)
    return os.fspath(source), memoryview(b"" if mapping is None else mapping)


def unmap_pages(data: memoryview, end: int) -> None:
    """Releases the whole pages of a mapped file before `end` from the process: for data that is read once, such as a
    header. The system reads them again on demand."""
    if isinstance(data.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") and end >= mmap.PAGESIZE:
        data.obj.madvise(mmap.MADV_DONTNEED, 0, end // mmap.PAGESIZE * mmap.PAGESIZE)


def check_plain(operation: str, path: Path) -> None:
    """Refuses special files: opening a pipe would wait for a writer."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise unreadable(operation, path, error) from error
    except (TypeError, ValueError) as error:  # a path with a null byte, or not a path
        raise FileError(operation, f"{path!r} is not a path: {error}", "give the path of a file") from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise FileError(operation, f"{os.fspath(path)!r} is {what}", "give the path of a plain file")


def check_unpacked(operation: str, path: Path, packed: int, unpacked: int) -> None:
    """Refuses contents with an excessive compression ratio, before they are unpacked."""
    if unpacked > max_unpacked(packed):
        reason = f"{packed} bytes unpack to {unpacked}"
        raise damaged(operation, path, reason, "unpack the file by other means, if that is meant")


def unreadable(operation: str, path: Path, error: OSError) -> FileError:
    """The error for a file that cannot be read."""
    reason = error.strerror or str(error)
    return FileError(operation, f"{os.fspath(path)!r} cannot be read: {reason}", "check the path and its permissions")


def damaged(operation: str, path: Path, reason: str, remedy: str = "") -> FileFormatError:
    """The error for a file whose contents are wrong."""
    return FileFormatError(operation, f"{os.fspath(path)!r}: {reason}", remedy or "fetch or save the file again")


def read_json(operation: str, path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    check_plain(operation, path)
    try:
        if os.path.getsize(path) > MAX_JSON_BYTES:
            raise damaged(operation, path, f"more than {MAX_JSON_BYTES} bytes of JSON")
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise unreadable(operation, path, error) from error
    except (ValueError, RecursionError) as error:
        raise damaged(operation, path, f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise damaged(operation, path, f"a JSON {type(found).__name__} where an object should be")
    return found


def tensor_at(data: memoryview, start: int, dtype: DType, shape: Sequence[int], device: str | None) -> Tensor:
    """The row-major elements at byte `start` of a mapping. Raises ValueError where they are not valid."""
    count = math.prod(shape)
    part = data[start : start + count * dtype.itemsize]
    if part.nbytes != count * dtype.itemsize:
        raise ValueError(
            f"{count} elements of {dtype.name} need {count * dtype.itemsize} bytes, {part.nbytes} are there"
        )
    if dtype is dtypes.bool and part.tobytes().translate(None, b"\0\1"):
        raise ValueError("a bool is neither 0 nor 1")
    # Kernels load elements at their natural alignment, which a file does not guarantee.
    source: Any = part if start % dtype.itemsize == 0 else part.tobytes()
    return Tensor(source, device=device, dtype=dtype, copy=False).reshape(tuple(shape))


def strided_tensor(
    data: memoryview, start: int, dtype: DType, size: Sequence[int], stride: Sequence[int], device: str | None
) -> Tensor:
    """A tensor with a stride, in elements, for each axis. Permuted axes are a view of the file and axes of stride 0 an
    expansion; with gaps or overlaps the elements are gathered when the tensor is computed."""
    if 0 in size:
        return Tensor.zeros(*size, dtype=dtype, device=device)
    moving = [axis for axis in range(len(size)) if size[axis] > 1 and stride[axis] > 0]
    outermost_first = sorted(moving, key=lambda axis: stride[axis], reverse=True)
    kept = [size[axis] if axis in moving else 1 for axis in range(len(size))]
    sizes = [size[axis] for axis in outermost_first]
    if _is_dense(sizes, [stride[axis] for axis in outermost_first]):
        found = tensor_at(data, start, dtype, sizes, device)
        found = found.permute([outermost_first.index(axis) for axis in moving]) if len(moving) > 1 else found
    else:
        extent = 1 + sum((size[axis] - 1) * stride[axis] for axis in moving)
        flat = tensor_at(data, start, dtype, (extent,), device)
        found = flat[_positions([size[axis] for axis in moving], [stride[axis] for axis in moving], extent, device)]
    return found.reshape(tuple(kept)).expand(tuple(size))


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the axes, outermost first, fill their memory without gaps."""
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides)):
        if stride != expected:
            return False
        expected *= size
    return True


def _positions(sizes: Sequence[int], strides: Sequence[int], extent: int, device: str | None) -> Tensor:
    """The position of each element."""
    dtype = dtypes.int32 if extent < 1 << 31 else dtypes.int64
    indices = Tensor.zeros(*[1] * len(sizes), dtype=dtype, device=device)
    for axis, (size, stride) in enumerate(zip(sizes, strides)):
        along = Tensor.arange(size, dtype=dtype, device=device) * stride
        indices = indices + along.reshape(tuple(size if other == axis else 1 for other in range(len(sizes))))
    return indices

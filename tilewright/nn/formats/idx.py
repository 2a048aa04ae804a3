"""IDX, the format of MNIST: arrays of one dtype with a header of sizes. In: a path, plain or gzipped. Out: a tensor.
Elements of one byte are mapped from a plain file; wider ones are big-endian in the file and are byte-swapped."""

from __future__ import annotations

import gzip
import io
import math
import zlib

from tilewright.base.dtype import DType, dtypes
from tilewright.nn.formats.mapped import Path, check_unpacked, damaged, open_mapped, tensor_at
from tilewright.tensor.tensor import Tensor

_DTYPES: dict[int, DType] = {
    0x08: dtypes.uint8,
    0x09: dtypes.int8,
    0x0B: dtypes.int16,
    0x0C: dtypes.int32,
    0x0D: dtypes.float32,
    0x0E: dtypes.float64,
}
_GZIP_MAGIC = b"\x1f\x8b"


def idx_load(path: Path, device: str | None = None) -> Tensor:
    """The array of an IDX file; its size is checked against the header."""
    mapping = open_mapped("idx_load", path)
    data = memoryview(b"" if mapping is None else mapping)
    if data[:2] == _GZIP_MAGIC:
        data = _unpacked(path, data)
    dtype, shape, start = _read_header(path, data)
    if data.nbytes != start + math.prod(shape) * dtype.itemsize:
        reason = f"its header announces {dtype.name}{list(shape)}, and {data.nbytes - start} bytes follow"
        raise damaged("idx_load", path, reason)
    if dtype.itemsize == 1:
        return tensor_at(data, start, dtype, shape, device)
    import numpy

    values = numpy.frombuffer(data[start:], numpy.dtype(dtype.name).newbyteorder(">"))
    return Tensor(values.astype(dtype.name).reshape(shape), device=device)


def _unpacked(path: Path, data: memoryview) -> memoryview:
    """The contents of a gzip stream: the number of bytes that its header states, and one more if there is one."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            header = stream.read(4)
            header += stream.read(4 * header[3]) if len(header) == 4 else b""
            dtype, shape, start = _read_header(path, memoryview(header))
            size = math.prod(shape) * dtype.itemsize
            check_unpacked("idx_load", path, data.nbytes, start + size)
            return memoryview(header + stream.read(size + 1))
    except (OSError, EOFError, zlib.error) as error:
        raise damaged("idx_load", path, f"the gzip stream is damaged ({error})") from error


def _read_header(path: Path, data: memoryview) -> tuple[DType, tuple[int, ...], int]:
    """Dtype, shape, and offset of the elements."""
    if data.nbytes < 4 or data[0] or data[1] or data[2] not in _DTYPES:
        found = bytes(data[:4]).hex(" ") or "nothing"
        raise damaged("idx_load", path, f"this is not an IDX file, it begins with {found}")
    axes = data[3]
    start = 4 + 4 * axes
    if data.nbytes < start:
        raise damaged("idx_load", path, f"its header of {axes} sizes is cut off")
    sizes = (int.from_bytes(data[offset : offset + 4], "big") for offset in range(4, start, 4))
    return _DTYPES[data[2]], tuple(sizes), start

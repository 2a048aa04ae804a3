"""GGUF, the files of llama.cpp. In: a path, or a tensor of the file's bytes. Out: what the file says of its model, and
its tensors by name. Plain floats and integers are mapped from the file as they lie there; quantised blocks are unpacked
to float32 by the library `gguf`, which takes memory. A file that is damaged anywhere gives nothing."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.nn.formats.gguf_header import ForeignByteOrder, TensorInfo, read_header
from tilewright.nn.formats.mapped import Path, bytes_of, damaged, tensor_at
from tilewright.tensor.tensor import Tensor

# By the library's names; what is not here is quantised.
_DTYPES: dict[str, DType] = {
    "F64": dtypes.float64,
    "F32": dtypes.float32,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "I8": dtypes.int8,
    "I16": dtypes.int16,
    "I32": dtypes.int32,
    "I64": dtypes.int64,
}


def _library() -> Any:
    try:
        import gguf
    except ImportError as error:
        remedy = "install it: `pip install gguf`, or `pip install tilewright[weights]`"
        raise UnsupportedError("gguf_load", "the package gguf is not installed", remedy) from error
    return gguf


def gguf_load(path: Path | Tensor, device: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The key-value pairs of a GGUF file (numbers, texts, lists of them), and its tensors by name. A shape is in the
    order of torch, the reverse of the file's. Instead of a path, a tensor of uint8 may hold the bytes of the file."""
    name, data = bytes_of("gguf_load", path)
    if not data.nbytes:
        raise damaged("gguf_load", name, "the file is empty")
    try:
        header = read_header(data)
    except ForeignByteOrder as error:
        message = f"{name!r} has the byte order of another machine"
        raise UnsupportedError("gguf_load", message, "convert it with the tools of llama.cpp") from error
    except (ValueError, RecursionError) as error:
        raise damaged("gguf_load", name, f"this is no whole GGUF file ({error})") from error
    if not header.tensors:
        return header.facts, {}
    library = _library()
    found = {}
    for info in header.tensors:
        found[info.name] = _tensor(library, name, data, header.data_start + info.offset, info, device)
    return header.facts, found


def _tensor(library: Any, path: str, data: memoryview, start: int, info: TensorInfo, device: str | None) -> Tensor:
    import numpy

    shape = tuple(reversed(info.sizes))
    count = math.prod(shape)
    try:
        kind = library.GGMLQuantizationType(info.kind)
    except ValueError as error:
        raise damaged("gguf_load", path, f"{info.name!r} has the unknown type {info.kind}") from error
    block, block_bytes = library.GGML_QUANT_SIZES[kind]
    row = shape[-1] if shape else 1
    nbytes = count // block * block_bytes
    if row % block or start + nbytes > data.nbytes:
        reason = f"{info.name!r}, {kind.name}{list(shape)}, does not lie in the {data.nbytes} bytes of the file"
        raise damaged("gguf_load", path, reason)
    try:
        if kind.name in _DTYPES:
            return tensor_at(data, start, _DTYPES[kind.name], shape, device)
        if not count:
            return Tensor.zeros(*shape, device=device)
        packed = numpy.frombuffer(data[start : start + nbytes], numpy.uint8)
        with numpy.errstate(all="ignore"):  # a scale may be infinite
            values = library.dequantize(packed.reshape((count // row, row // block * block_bytes)), kind)
        return Tensor(values, device=device, dtype=dtypes.float32, copy=False).reshape(shape)
    except NotImplementedError as error:
        message = f"{path!r}: {info.name!r} is quantised as {kind.name}, which the package gguf cannot unpack"
        raise UnsupportedError("gguf_load", message, "take a file of another quantisation") from error
    except (ValueError, IndexError, KeyError) as error:
        raise damaged("gguf_load", path, f"{info.name!r}: {error}") from error

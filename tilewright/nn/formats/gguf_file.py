"""GGUF, the files of llama.cpp, through the library `gguf`. In: a path. Out: what the file says of its model, and its
tensors by name. Plain floats and integers are mapped from the file as they lie there; quantised blocks are unpacked to
float32, which takes memory. A file that is damaged anywhere gives nothing."""

from __future__ import annotations

import os
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.nn.formats.mapped import Path, damaged, open_mapped, tensor_at
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
# What the library's reader meets in a file that does not hold what its header announces.
_READER_ERRORS = (ValueError, IndexError, KeyError, OverflowError, RecursionError)


def _library() -> Any:
    try:
        import gguf
    except ImportError as error:
        remedy = "install it: `pip install gguf`, or `pip install tilewright[weights]`"
        raise UnsupportedError("gguf_load", "the package gguf is not installed", remedy) from error
    return gguf


def gguf_load(path: Path, device: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The key-value pairs of a GGUF file (numbers, texts, lists of them), and its tensors by name. A shape is in the
    order of torch, the reverse of the file's."""
    mapping = open_mapped("gguf_load", path)
    if mapping is None:
        raise damaged("gguf_load", path, "the file is empty")
    library = _library()
    try:
        reader = library.GGUFReader(os.fspath(path))
        facts = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    except _READER_ERRORS as error:
        raise damaged("gguf_load", path, f"this is no whole GGUF file ({error})") from error
    if reader.byte_order != "I":
        message = f"{os.fspath(path)!r} has the byte order of another machine"
        raise UnsupportedError("gguf_load", message, "convert it with the tools of llama.cpp")
    data = memoryview(mapping)
    return facts, {entry.name: _tensor(library, path, data, entry, device) for entry in reader.tensors}


def _tensor(library: Any, path: Path, data: memoryview, entry: Any, device: str | None) -> Tensor:
    import numpy

    kind = entry.tensor_type.name
    shape = tuple(int(size) for size in reversed(entry.shape))
    try:
        if kind in _DTYPES:
            return tensor_at(data, entry.data_offset, _DTYPES[kind], shape, device)
        with numpy.errstate(all="ignore"):  # a scale may be infinite
            values = library.dequantize(entry.data, entry.tensor_type)
        return Tensor(values, device=device, dtype=dtypes.float32).reshape(shape)
    except NotImplementedError as error:
        message = f"{os.fspath(path)!r}: {entry.name!r} is quantised as {kind}, which the package gguf cannot unpack"
        raise UnsupportedError("gguf_load", message, "take a file of another quantisation") from error
    except _READER_ERRORS as error:
        raise damaged("gguf_load", path, f"{entry.name!r}: {error}") from error

"""GGUF, the files of llama.cpp. In: a path, or a tensor of the file's bytes. Out: the metadata of the model, and its
tensors by name. Plain floats and integers are mapped from the file; quantised blocks are decoded to float32 by the
library `gguf`, which takes memory. A damaged file is refused as a whole."""

from __future__ import annotations

import math
import os
import re
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.base.records import NamedTuple
from tilewright.nn.formats.gguf_header import ForeignByteOrder, TensorInfo, read_header
from tilewright.nn.formats.gguf_values import KINDS, Kind, as_plain
from tilewright.nn.formats.mapped import Path, bytes_of, damaged, tensor_at, unmap_pages
from tilewright.tensor.tensor import Tensor

# Plain types by name; all others are quantised.
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

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def _library(operation: str) -> Any:
    try:
        import gguf
    except ImportError as error:
        remedy = "install it: `pip install gguf`, or `pip install tilewright[weights]`"
        raise UnsupportedError(operation, "the package gguf is not installed", remedy) from error
    return gguf


class GgufTensor(NamedTuple):
    """One tensor of a file: its type, a shape in torch's order, the offset of its bytes."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    start: int
    nbytes: int


class GgufFile(NamedTuple):
    """A file whose header was read and checked; its data is not read."""

    path: str
    data: memoryview
    facts: dict[str, Any]
    tensors: list[GgufTensor]


def open_gguf(operation: str, path: Path | Tensor) -> GgufFile:
    """The metadata of a GGUF file and the location of its tensors, checked to lie within the file."""
    name, data = bytes_of(operation, path)
    if not data.nbytes:
        raise damaged(operation, name, "the file is empty")
    try:
        header = read_header(data)
    except ForeignByteOrder as error:
        message = f"{name!r} has the byte order of another machine"
        raise UnsupportedError(operation, message, "convert it with the tools of llama.cpp") from error
    except (ValueError, RecursionError) as error:
        raise damaged(operation, name, f"this is not a whole GGUF file ({error})") from error
    found = [_located(operation, name, data, header.data_start, info) for info in header.tensors]
    unmap_pages(data, header.data_start)
    return GgufFile(name, data, header.facts, found)


def open_parts(operation: str, path: Path | Tensor) -> list[GgufFile]:
    """All parts of a model, the one with its metadata first. The tools of llama.cpp write a large model as several
    files whose names end in -00001-of-00003.gguf; each says how many there are, and has tensors of its own."""
    given = open_gguf(operation, path)
    count = given.facts.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return [given]
    found = None if isinstance(path, Tensor) else _PART.fullmatch(os.fspath(path))
    if found is None or int(found[3]) != count:
        message = f"{given.path!r} is one part of {count}, and its name does not say which"
        raise UnsupportedError(operation, message, "give the path of a part, named as in model-00001-of-00003.gguf")
    names = [f"{found[1]}-{number:05}-of-{found[3]}.gguf" for number in range(1, count + 1)]
    parts = [given if name == given.path else open_gguf(operation, name) for name in names]
    names_seen: set[str] = set()
    for part in parts:
        for tensor in part.tensors:
            if tensor.name in names_seen:
                raise damaged(operation, part.path, f"{tensor.name!r} is in another part, too")
            names_seen.add(tensor.name)
    return parts


def _located(operation: str, path: str, data: memoryview, data_start: int, info: TensorInfo) -> GgufTensor:
    shape = tuple(reversed(info.sizes))
    kind = KINDS.get(info.kind)
    if kind is None:
        raise damaged(operation, path, f"{info.name!r} has the unknown type {info.kind}")
    row = shape[-1] if shape else 1
    nbytes = math.prod(shape) // kind.size * kind.nbytes
    start = data_start + info.offset
    if row % kind.size or start + nbytes > data.nbytes:
        reason = f"{info.name!r}, {kind.name}{list(shape)}, does not lie in the {data.nbytes} bytes of the file"
        raise damaged(operation, path, reason)
    return GgufTensor(info.name, kind, shape, start, nbytes)


def gguf_load(path: Path | Tensor, device: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The key-value pairs of a GGUF file (numbers, strings, lists of them), and its tensors by name. Shapes are in
    torch's order, the reverse of the file's. In place of a path, a uint8 tensor with the bytes of the file can be
    given. Of a model in several files (model-00001-of-00003.gguf), the path of one gives the tensors of all."""
    parts = open_parts("gguf_load", path)
    return {key: as_plain(value) for key, value in parts[0].facts.items()}, {
        each.name: _tensor(part, each, device) for part in parts for each in part.tensors
    }


def plain_tensor(operation: str, file: GgufFile, info: GgufTensor, device: str | None) -> Tensor | None:
    """A tensor of plain numbers, mapped from the file; None for a quantised one."""
    if info.kind.name not in _DTYPES:
        return None
    try:
        return tensor_at(file.data, info.start, _DTYPES[info.kind.name], info.shape, device)
    except ValueError as error:
        raise damaged(operation, file.path, f"{info.name!r}: {error}") from error


def _tensor(file: GgufFile, info: GgufTensor, device: str | None) -> Tensor:
    import numpy

    plain = plain_tensor("gguf_load", file, info, device)
    if plain is not None:
        return plain
    count = math.prod(info.shape)
    if not count:
        return Tensor.zeros(*info.shape, device=device)
    rows = count // info.shape[-1]
    library = _library("gguf_load")
    packed = numpy.frombuffer(file.data[info.start : info.start + info.nbytes], numpy.uint8)
    try:
        with numpy.errstate(all="ignore"):  # a scale may be infinite
            kind = library.GGMLQuantizationType(info.kind.number)
            values = library.dequantize(packed.reshape((rows, info.nbytes // rows)), kind)
        return Tensor(values, device=device, dtype=dtypes.float32, copy=False).reshape(info.shape)
    except NotImplementedError as error:
        message = f"{file.path!r}: {info.name!r} is quantised as {info.kind.name}, which the package gguf cannot unpack"
        raise UnsupportedError("gguf_load", message, "take a file of another quantisation") from error
    except (ValueError, IndexError, KeyError) as error:
        raise damaged("gguf_load", file.path, f"{info.name!r}: {error}") from error

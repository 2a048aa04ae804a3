"""safetensors, through the library of that name. In: tensors and a path, or a path. Out: a file, or tensors over it.
The library parses and checks a header; a file has no gaps, so the order and sizes of its tensors give their offsets,
and the data is mapped instead of read. Several files with a JSON index are one model."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import DTypeError, FileError, UnsupportedError
from tilewright.nn.formats.mapped import Path, check_plain, damaged, open_mapped, read_json, tensor_at, unreadable
from tilewright.runtime.access import reading
from tilewright.tensor.tensor import Tensor

Names = Collection[str] | Callable[[str], bool] | None

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_DTYPES: dict[str, DType] = {
    "BOOL": dtypes.bool,
    "U8": dtypes.uint8,
    "I8": dtypes.int8,
    "U16": dtypes.uint16,
    "I16": dtypes.int16,
    "U32": dtypes.uint32,
    "I32": dtypes.int32,
    "U64": dtypes.uint64,
    "I64": dtypes.int64,
    "F8_E4M3": dtypes.float8_e4m3,
    "F8_E5M2": dtypes.float8_e5m2,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
}
# Dtypes of the format without a dtype here. Their bits are needed for the offsets of the tensors after them.
_OTHER_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64}
# The library's names for writing, where they differ from ours.
_WRITTEN_NAMES = {dtypes.float8_e4m3: "float8_e4m3fn"}


class Entry(NamedTuple):
    """One tensor of a file, at offset `start`."""

    dtype_name: str
    shape: tuple[int, ...]
    start: int


def _library(operation: str) -> Any:
    try:
        import safetensors
    except ImportError as error:
        remedy = "install it: `pip install safetensors`, or `pip install tilewright[weights]`"
        raise UnsupportedError(operation, "the package safetensors is not installed", remedy) from error
    return safetensors


# ---------------------------------------------------------------- writing


def safe_save(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors to a safetensors file. The file is replaced atomically, and tensors that are mapped from an older
    file of the same name keep their values."""
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            message = f"{name!r} is a {type(tensor).__name__}"
            raise DTypeError("safe_save", message, "give a dict from names to tensors, such as get_state_dict(model)")
    library = _library("safe_save")
    if tensors:
        first, *others = tensors.values()
        first.realize(*others)
    temporary = f"{os.fspath(path)}.{uuid.uuid4().hex[:8]}.part"
    filled = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    try:
        # Another thread that updates these tensors waits until they are written.
        with reading([tensor._stored_node() for tensor in filled.values()]) as buffers:
            # The views keep the memory alive that the library reads by address.
            views = {name: filled[name]._bytes_in(buffer) for name, buffer in zip(filled, buffers, strict=True)}
            specifications = {
                name: library.TensorSpec(
                    dtype=_WRITTEN_NAMES.get(tensor.dtype, tensor.dtype.name),
                    shape=tensor.shape,
                    data_ptr=_address(views[name]) if name in views else 0,
                    data_len=tensor.nbytes(),
                )
                for name, tensor in tensors.items()
            }
            library.serialize_file(specifications, temporary, metadata=dict(metadata) if metadata else None)
        os.replace(temporary, path)
    except (OSError, library.SafetensorError) as error:
        remedy = "give a path in a folder that exists, can be written and has room"
        raise FileError("safe_save", f"{os.fspath(path)!r} cannot be written: {error}", remedy) from error
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def _address(view: memoryview) -> int:
    """The address of a view's bytes; also of a read-only view, which ctypes would refuse."""
    import numpy

    return int(numpy.asarray(view).ctypes.data)


# ---------------------------------------------------------------- reading


def safe_load(path: Path, names: Names = None, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, or of a model in several files: give the path of its `.index.json`, or
    of a folder with `model.safetensors` or its index. `names`, a collection or a predicate, selects the tensors to
    load. Nothing is read yet: on the CPU the tensors are the mapped file, which must not be overwritten in place while
    they are in use (`safe_save` does not)."""
    file_path = _find_file(os.fspath(path))
    if not file_path.endswith(".json"):
        return _load_file(file_path, names, device)
    weight_map = _read_index(file_path)
    wanted = _pick(weight_map, names, file_path)
    by_file: dict[str, list[str]] = {}
    for name in wanted:
        by_file.setdefault(weight_map[name], []).append(name)
    # All headers are read before the first tensor is made, so that a missing file is reported at once.
    folder = os.path.dirname(file_path)
    entries = {file: _read_entries(os.path.join(folder, file)) for file in by_file}
    for file, members in by_file.items():
        lacking = [name for name in members if name not in entries[file]]
        if lacking:
            reason = f"{file!r} does not hold {', '.join(map(repr, lacking[:5]))}, which the index says"
            raise damaged("safe_load", file_path, reason)
    found: dict[str, Tensor] = {}
    for file, members in by_file.items():
        found |= _load_entries(os.path.join(folder, file), entries[file], members, device)
    return {name: found[name] for name in wanted}


def safe_load_metadata(path: Path) -> dict[str, str]:
    """The metadata strings of a safetensors file, such as `format`; empty where there are none."""
    file_path = _find_file(os.fspath(path))
    library = _library("safe_load_metadata")
    check_plain("safe_load_metadata", file_path)
    try:
        with library.safe_open(file_path, framework="numpy") as opened:
            return dict(opened.metadata() or {})
    except OSError as error:
        raise unreadable("safe_load_metadata", file_path, error) from error
    except library.SafetensorError as error:
        raise damaged("safe_load_metadata", file_path, str(error)) from error


def _find_file(path: str) -> str:
    """The index or the single file of a folder."""
    if not os.path.isdir(path):
        return path
    for name in (INDEX_NAME, SINGLE_NAME):
        if os.path.exists(os.path.join(path, name)):
            return os.path.join(path, name)
    message = f"the folder {path!r} holds neither {INDEX_NAME} nor {SINGLE_NAME}"
    raise FileError("safe_load", message, "give the path of a file")


def _read_index(path: str) -> dict[str, str]:
    """The file of each tensor; files are plain names in the folder of the index."""
    weight_map = read_json("safe_load", path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise damaged("safe_load", path, "the index has no 'weight_map' from names to files")
    for name, file in weight_map.items():
        # An index may not refer to files outside its folder.
        if not isinstance(file, str) or file != os.path.basename(file) or file in ("", ".", ".."):
            raise damaged("safe_load", path, f"{name!r} is in {file!r}, which is not a name of a file beside the index")
    return weight_map


def _pick(available: Collection[str], names: Names, path: str) -> list[str]:
    """The names to load, in the order of the file."""
    if names is None:
        return list(available)
    if callable(names):
        return [name for name in available if names(name)]
    unknown = [name for name in names if name not in available]
    if unknown:
        remedy = f"the names begin with {', '.join(map(repr, list(available)[:5]))}"
        raise FileError("safe_load", f"{path!r} holds no {', '.join(map(repr, unknown[:5]))}", remedy)
    wanted = set(names)
    return [name for name in available if name in wanted]


def _load_file(path: str, names: Names, device: str | None) -> dict[str, Tensor]:
    entries = _read_entries(path)
    return _load_entries(path, entries, _pick(entries, names, path), device)


def _read_entries(path: str) -> dict[str, Entry]:
    """The location of each tensor of a file. The library has checked that shapes, dtypes, offsets and size agree."""
    library = _library("safe_load")
    check_plain("safe_load", path)
    try:
        with open(path, "rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
        with library.safe_open(path, framework="numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.offset_keys()}
            facts = {name: (found.get_dtype(), tuple(found.get_shape())) for name, found in slices.items()}
    except OSError as error:
        raise unreadable("safe_load", path, error) from error
    except library.SafetensorError as error:
        raise damaged("safe_load", path, str(error)) from error
    entries = {}
    for name, (dtype_name, shape) in facts.items():
        entries[name] = Entry(dtype_name, shape, start)
        bits = _DTYPES[dtype_name].itemsize * 8 if dtype_name in _DTYPES else _OTHER_BITS.get(dtype_name)
        if bits is None:
            raise damaged("safe_load", path, f"{name!r} has the unknown dtype {dtype_name}")
        start += math.prod(shape) * bits // 8
    return entries


def _load_entries(path: str, entries: dict[str, Entry], names: list[str], device: str | None) -> dict[str, Tensor]:
    for name in names:
        if entries[name].dtype_name not in _DTYPES:
            message = f"{path!r}: {name!r} has dtype {entries[name].dtype_name}, which no tensor here can have"
            raise UnsupportedError("safe_load", message, "leave it out with `names=`, or save it as another dtype")
    mapping = open_mapped("safe_load", path)
    data = memoryview(b"" if mapping is None else mapping)
    found = {}
    for name in names:
        entry = entries[name]
        try:
            found[name] = tensor_at(data, entry.start, _DTYPES[entry.dtype_name], entry.shape, device)
        except ValueError as error:
            raise damaged("safe_load", path, f"{name!r}: {error}") from error
    return found

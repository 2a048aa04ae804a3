"""Files of torch.save, without torch. In: a `.pt` or `.pth` path, a zip or the older stream of pickles. Out: the saved
object, with tensors over the mapped file. Only globals that rebuild tensors and containers are allowed; a pickle that
uses any other is refused, and no code of it is executed."""

from __future__ import annotations

import io
import math
import mmap
import os
import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.nn.formats.mapped import Path, damaged, open_mapped, strided_tensor
from tilewright.nn.formats.pickle_machine import Call, Global, PickleError, PickleMachine, check_key, to_dict
from tilewright.nn.formats.zip_file import ArchiveError, ZipEntries
from tilewright.tensor.tensor import Tensor

_STORAGES: dict[str, DType] = {
    "BFloat16Storage": dtypes.bfloat16,
    "BoolStorage": dtypes.bool,
    "ByteStorage": dtypes.uint8,
    "CharStorage": dtypes.int8,
    "DoubleStorage": dtypes.float64,
    "FloatStorage": dtypes.float32,
    "HalfStorage": dtypes.float16,
    "IntStorage": dtypes.int32,
    "LongStorage": dtypes.int64,
    "ShortStorage": dtypes.int16,
}
_DTYPES = {dtype.name: dtype for dtype in dtypes.all if not dtype.name.startswith("float8")} | {
    "float8_e4m3fn": dtypes.float8_e4m3,
    "float8_e5m2": dtypes.float8_e5m2,
}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_MAX_COUNT = 1 << 62
_MAX_AXES = 64


class Storage(NamedTuple):
    """Memory that several tensors may share: `nbytes` bytes at `start`. An untyped storage has dtype None."""

    data: memoryview
    start: int
    nbytes: int
    dtype: DType | None


FindStorage = Callable[[str, DType | None, int], Storage]
Rebuild = Callable[..., Any]


def torch_load(path: Path, device: str | None = None, check: bool = True) -> Any:
    """The object that `torch.save` wrote: a state dict, or any nesting of dicts, lists, tuples, numbers and tensors.
    Tensors have no gradient, a `torch.device` becomes a string, a `torch.dtype` a dtype, a `torch.Size` a tuple. On the
    CPU the tensors are the mapped file. `check=False` skips the checksums of a zip, which saves one pass over the
    file."""
    mapping = open_mapped("torch_load", path)
    if mapping is None:
        raise damaged("torch_load", path, "the file is empty")
    try:
        if mapping[:4] == b"PK\x03\x04":
            return _load_zip(path, mapping, device, check)
        return _load_legacy(mapping, device)
    except (PickleError, ArchiveError) as error:
        raise damaged("torch_load", path, str(error), _remedy(str(error))) from error


def _remedy(reason: str) -> str:
    if "refused" in reason:
        return "save the state dict alone, `torch.save(model.state_dict(), path)`, or as safetensors"
    return ""


# ---------------------------------------------------------------- the zip


def _load_zip(path: Path, mapping: mmap.mmap, device: str | None, check: bool) -> Any:
    archive = _Archive(path, mapping, check)
    order = archive.read("byteorder") if archive.has("byteorder") else None
    if order is not None and bytes(order.data[order.start : order.start + order.nbytes]) != b"little":
        message = f"{os.fspath(path)!r} was saved on a big-endian machine"
        raise UnsupportedError("torch_load", message, "save it again on a little-endian machine")

    def find(key: str, dtype: DType | None, count: int) -> Storage:
        return _checked_storage(key, archive.read(f"data/{key}")._replace(dtype=dtype), count)

    text = archive.read("data.pkl")
    file = io.BytesIO(text.data[text.start : text.start + text.nbytes])
    return PickleMachine(_allowed(_rebuilder(device)), _Storages(find).persistent).read(file)


class _Archive:
    """The entries that `torch.save` writes, below the folder that has the name of the file."""

    def __init__(self, path: Path, mapping: mmap.mmap, check: bool) -> None:
        self._entries = ZipEntries("torch_load", path, memoryview(mapping), check)
        pickles = [name for name in self._entries.names if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise PickleError(f"the archive has {len(pickles)} entries named data.pkl where torch.save writes one")
        self._prefix = pickles[0].removesuffix("data.pkl")

    def has(self, name: str) -> bool:
        return self._prefix + name in self._entries.names

    def read(self, name: str) -> Storage:
        if not self.has(name):
            raise PickleError(f"the archive has no entry {self._prefix + name!r}")
        return Storage(*self._entries.read(self._prefix + name), None)


# ---------------------------------------------------------------- the stream of pickles, before torch 1.6


def _load_legacy(mapping: mmap.mmap, device: str | None) -> Any:
    def plain(persistent: Callable[[Any], Any] | None = None, allowed: dict[str, Global] | None = None) -> Any:
        return PickleMachine(allowed or {}, persistent or _no_storages).read(mapping)

    try:
        is_torch = plain() == _LEGACY_MAGIC
    except PickleError:
        is_torch = False
    if not is_torch:
        raise PickleError("this is neither a zip archive nor a stream of pickles as torch.save writes them")
    protocol = plain()
    if protocol != _LEGACY_PROTOCOL:
        raise PickleError(f"its protocol is {reprlib.repr(protocol)} where {_LEGACY_PROTOCOL} is known")
    system = plain()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise PickleError("it was saved on a big-endian machine, or its description is damaged")
    # The elements come after the pickle, so it is read twice: to find its references, and again with the storages in
    # place.
    start = mapping.tell()
    announced = _Storages(lambda key, dtype, count: Storage(memoryview(b""), 0, 0, dtype))
    plain(announced.persistent, _allowed(lambda *_: None))
    storages = _read_legacy_storages(mapping, plain(), announced.facts)
    mapping.seek(start)

    def find(key: str, dtype: DType | None, count: int) -> Storage:
        if key not in storages:
            raise PickleError(f"the storage {key!r} is not in the file")
        return _checked_storage(key, storages[key], count)

    complete = _Storages(find)
    return plain(complete.persistent, _allowed(_rebuilder(device)))


def _no_storages(_: Any) -> Any:
    raise PickleError("the pickle refers to a storage where none can be")


def _read_legacy_storages(mapping: mmap.mmap, keys: Any, facts: dict[str, DType]) -> dict[str, Storage]:
    """The storages after the pickles: for each key a number of elements and the elements."""
    data = memoryview(mapping)
    offset = mapping.tell()
    found: dict[str, Storage] = {}
    if not isinstance(keys, list):
        raise PickleError("the list of storages is damaged")
    for key in keys:
        dtype = facts.get(key) if isinstance(key, str) else None
        if dtype is None:
            raise PickleError(f"the storage {reprlib.repr(key)} belongs to no tensor")
        nbytes = int.from_bytes(data[offset : offset + 8], "little") * dtype.itemsize
        if offset + 8 + nbytes > data.nbytes:
            raise PickleError(f"the storage {key!r} is cut off")
        found[key] = Storage(data, offset + 8, nbytes, dtype)
        offset += 8 + nbytes
    return found


# ---------------------------------------------------------------- storages


def _checked_storage(key: str, storage: Storage, count: int) -> Storage:
    """The storage, checked to have the number of elements that the pickle states."""
    width = 1 if storage.dtype is None else storage.dtype.itemsize
    if storage.nbytes < count * width:
        raise PickleError(f"the storage {key!r} has {storage.nbytes} bytes where {count * width} are announced")
    return storage._replace(nbytes=count * width)


class _Storages:
    """The storages of one pickle by persistent id, each looked up once."""

    def __init__(self, find: FindStorage) -> None:
        self._find = find
        self._found: dict[str, Storage] = {}
        self.facts: dict[str, DType] = {}

    def persistent(self, identity: Any) -> Storage:
        """('storage', type, key, device, count), with a sixth entry in the older format: a part of the storage."""
        if not isinstance(identity, tuple) or len(identity) not in (5, 6) or identity[0] != "storage":
            raise PickleError(f"the pickle refers to {reprlib.repr(identity)}, which is not a storage")
        _, kind, key, _, count = identity[:5]
        part = identity[5] if len(identity) == 6 else None
        dtype = kind if isinstance(kind, DType) else None
        if (dtype is None and kind != "untyped") or not isinstance(key, str) or not _is_count(count):
            raise PickleError(f"the description of the storage {reprlib.repr(key)} is damaged")
        if key not in self._found:
            self._found[key] = self._find(key, dtype, count)
            self.facts[key] = dtype or dtypes.uint8
        storage = self._found[key]
        if storage.dtype is not dtype:
            raise PickleError(f"the storage {key!r} has two dtypes")
        return storage if part is None else self._part(storage, part)

    def _part(self, storage: Storage, part: Any) -> Storage:
        _, offset, count = part
        if not _is_count(offset) or not _is_count(count):
            raise PickleError("the description of a part of a storage is damaged")
        width = 1 if storage.dtype is None else storage.dtype.itemsize
        if storage.nbytes and (offset + count) * width > storage.nbytes:
            raise PickleError("a part of a storage exceeds it")
        return storage._replace(start=storage.start + offset * width, nbytes=min(count * width, storage.nbytes))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT


# ---------------------------------------------------------------- what a pickle may call


def _allowed(rebuild: Rebuild) -> dict[str, Global]:
    """Every global that a pickle of torch may use. A new table for each file, so that no file can change another's."""
    calls: dict[str, Call] = {
        "_codecs.encode": _encode,
        "builtins.set": _set,
        "__builtin__.set": _set,
        "collections.Counter": lambda pairs=(): to_dict(pairs),
        "collections.OrderedDict": lambda pairs=(): to_dict(pairs),
        "torch.Size": _size,
        "torch.device": _device,
        "torch._utils._rebuild_tensor": lambda *args: rebuild(*args[:4], None),
        "torch._utils._rebuild_tensor_v2": lambda *args: rebuild(*args[:4], None),
        "torch._utils._rebuild_tensor_v3": lambda *args: rebuild(*args[:4], args[6]),
        "torch._utils._rebuild_parameter": lambda *args: args[0],
        "torch._utils._rebuild_parameter_with_state": lambda *args: args[0],
    }
    values: dict[str, Any] = {f"torch.{name}": dtype for name, dtype in _DTYPES.items()}
    for module in ("torch", "torch.cuda"):
        values |= {f"{module}.{name}": dtype for name, dtype in _STORAGES.items()}
    values |= {"torch.UntypedStorage": "untyped", "torch.storage.UntypedStorage": "untyped"}
    return {name: Global(name, call=call) for name, call in calls.items()} | {
        name: Global(name, value) for name, value in values.items()
    }


def _encode(text: str, encoding: str) -> bytes:
    """Decodes bytes as protocol 2 writes them."""
    if encoding not in ("latin1", "latin-1"):
        raise PickleError(f"the pickle encodes text as {reprlib.repr(encoding)}")
    return text.encode("latin-1")


def _set(items: Any = ()) -> set[Any]:
    return set(map(check_key, items))


def _size(sizes: Any = ()) -> tuple[int, ...]:
    if not isinstance(sizes, list | tuple) or len(sizes) > _MAX_AXES or not all(map(_is_count, sizes)):
        raise PickleError(f"{reprlib.repr(sizes)} is not a size of a tensor")
    return tuple(sizes)


def _device(kind: Any, index: Any = None) -> str:
    if not isinstance(kind, str) or not (index is None or _is_count(index)):
        raise PickleError("the name of a device is damaged")
    return kind if index is None else f"{kind}:{index}"


def _rebuilder(device: str | None) -> Rebuild:
    """Makes tensors from storages after checking every number."""

    def rebuild(storage: Any, offset: Any, size: Any, stride: Any, dtype: Any) -> Tensor:
        if not isinstance(storage, Storage):
            raise PickleError("a tensor has no storage")
        element = storage.dtype if dtype is None else dtype
        if not isinstance(element, DType):
            raise PickleError("a tensor has no dtype")
        what = f"a tensor of {element.name} with offset {reprlib.repr(offset)}, "
        what += f"size {reprlib.repr(size)} and stride {reprlib.repr(stride)}"
        is_sane = len(size) == len(stride) <= _MAX_AXES and all(map(_is_count, (offset, *size, *stride)))
        count = math.prod(size) if is_sane else _MAX_COUNT
        if count >= _MAX_COUNT:
            raise PickleError(f"{what} cannot be")
        reach = offset + 1 + sum((length - 1) * step for length, step in zip(size, stride)) if count else 0
        if reach * element.itemsize > storage.nbytes:
            raise PickleError(f"{what} exceeds its storage")
        start = storage.start + offset * element.itemsize
        try:
            return strided_tensor(storage.data, start, element, size, stride, device)
        except ValueError as error:
            raise PickleError(f"{what}: {error}") from error

    return rebuild

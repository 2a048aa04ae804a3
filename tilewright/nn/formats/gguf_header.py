"""The header of a GGUF file. In: the bytes of the file. Out: its key-value pairs and the location of each tensor. Every
count and every offset is checked against the size of the file before it is used, in numbers that do not wrap, so that a
damaged file takes no more memory or time than a valid one of its size. Raises ValueError with the reason."""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Any

from tilewright.base.records import NamedTuple
from tilewright.nn.formats.gguf_values import Texts

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_AXES = 8
_STRING, _ARRAY = 8, 9
# Struct formats by type id.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MIN_STRING = 8  # minimum bytes: the length
_MIN_PAIR = 8 + 4 + 1  # minimum bytes: a key, a type, a value
_MIN_INFO = 8 + 4 + 4 + 8  # minimum bytes: a name, a number of axes, a type, an offset
_MAX_DEPTH = 4  # of nested arrays


class ForeignByteOrder(Exception):
    """The file was written on a machine of the other byte order."""


class TensorInfo(NamedTuple):
    """The header's record of a tensor: sizes, last axis first, the id of its type, its offset in the data."""

    name: str
    sizes: tuple[int, ...]
    kind: int
    offset: int


class Header(NamedTuple):
    facts: dict[str, Any]
    tensors: list[TensorInfo]
    data_start: int


def read_header(data: memoryview) -> Header:
    reader = _Reader(data)
    if bytes(data[:4]) != MAGIC:
        raise ValueError(f"its magic is {bytes(data[:4])!r} and not {MAGIC!r}")
    reader.offset = 4
    version = reader.number("I")
    if version not in VERSIONS:
        if version & 0xFFFF == 0 and version:
            raise ForeignByteOrder
        raise ValueError(f"version {version} of the format, where {VERSIONS} are known")
    tensors, pairs = reader.count("Q", _MIN_INFO), reader.count("Q", _MIN_PAIR)
    facts: dict[str, Any] = {}
    for _ in range(pairs):
        key = reader.text()
        if key in facts:
            raise ValueError(f"the key {key!r} occurs twice")
        facts[key] = reader.value(reader.number("I"), 0)
    infos = [reader.tensor_info() for _ in range(tensors)]
    if len({info.name for info in infos}) != len(infos):
        raise ValueError("two tensors have one name")
    alignment = facts.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise ValueError(f"an alignment of {alignment!r}")
    return Header(facts, infos, -(-reader.offset // alignment) * alignment)


class _Reader:
    """Reads the bytes in order, from an offset that each read advances."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.offset = 0

    def _left(self) -> int:
        return self.data.nbytes - self.offset

    def number(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        if size > self._left():
            raise ValueError("the file ends inside its header")
        (found,) = struct.unpack_from("<" + code, self.data, self.offset)
        self.offset += size
        return found

    def count(self, code: str, least: int) -> int:
        """A number of entries of at least `least` bytes each."""
        found = int(self.number(code))
        if found * least > self._left():
            raise ValueError(f"{found} entries are announced, and {self._left()} bytes are left")
        return found

    def text(self) -> str:
        size = self.count("Q", 1)
        found = bytes(self.data[self.offset : self.offset + size])
        self.offset += size
        return found.decode("utf-8", "replace")

    def _texts(self, count: int) -> Texts:
        """As `text`, for many: the words of a vocabulary are most of a header. Only their ends are found and
        checked."""
        data, offset, end, unpack = self.data, self.offset, self.data.nbytes, struct.Struct("<Q").unpack_from
        first = offset + _MIN_STRING
        starts = array("I" if end - offset < 1 << 32 else "Q", [0])
        append = starts.append
        for _ in range(count):
            start = offset + _MIN_STRING
            if start > end:
                raise ValueError("the file ends inside its header")
            offset = start + unpack(data, offset)[0]
            if offset > end:
                raise ValueError(f"a text of {offset - start} bytes is announced, and {end - start} are left")
            append(offset + _MIN_STRING - first)
        self.offset = offset
        return Texts(data, first, starts)

    def value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(self._code(kind))
        if depth >= _MAX_DEPTH:
            raise ValueError("arrays of arrays, too deep")
        inner = int(self.number("I"))
        if inner == _STRING:
            return self._texts(self.count("Q", _MIN_STRING))
        if inner == _ARRAY:
            return [self.value(_ARRAY, depth + 1) for _ in range(self.count("Q", 4 + 8))]
        code = self._code(inner)
        count = self.count("Q", struct.calcsize("<" + code))
        size = count * struct.calcsize("<" + code)
        raw = self.data[self.offset : self.offset + size]
        self.offset += size
        if code == "?":
            return list(struct.unpack(f"<{count}?", raw))
        found = array(code)
        found.frombytes(raw)
        if sys.byteorder == "big":
            found.byteswap()
        return found

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise ValueError(f"a value of the unknown type {kind}")
        return _SCALARS[kind]

    def tensor_info(self) -> TensorInfo:
        name = self.text()
        axes = self.number("I")
        if axes > MAX_AXES:
            raise ValueError(f"{name!r} has {axes} axes")
        sizes = tuple(int(self.number("Q")) for _ in range(axes))
        return TensorInfo(name, sizes, int(self.number("I")), int(self.number("Q")))

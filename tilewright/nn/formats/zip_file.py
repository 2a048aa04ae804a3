"""The entries of a zip. In: the bytes of the archive. Out: the location of each entry, or its bytes where it is packed.
Sizes are checked against the archive before anything is unpacked; a damaged archive raises `ArchiveError`."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from typing import IO, Any, cast

from tilewright.nn.formats.mapped import Path, check_unpacked

# The exceptions that the modules behind `zipfile` raise for damaged contents.
_UNPACKING_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    ArithmeticError,
    LookupError,
    EOFError,
    OSError,
    RuntimeError,  # also NotImplementedError, for an unknown compression or encryption
    ValueError,
    MemoryError,
    struct.error,
)


class ArchiveError(Exception):
    """A damaged archive. The reader of the file catches it and adds the file's name."""


class ViewFile:
    """Host memory as a read-only file. A read beyond the end allocates no more than the bytes that exist."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def read(self, count: int | None = None) -> bytes:
        stop = self._data.nbytes if count is None or count < 0 else min(self._position + count, self._data.nbytes)
        found = bytes(self._data[self._position : stop])
        self._position += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        target = offset + (0, self._position, self._data.nbytes)[whence]
        if target < 0:
            raise OSError(f"a position before the beginning, {target}")
        self._position = target
        return target

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Does nothing: the bytes are owned by the caller."""


class ZipEntries:
    """The entries of an archive by name; of two with one name the later."""

    def __init__(self, operation: str, path: Path, data: memoryview, check: bool) -> None:
        """`check` verifies the checksums of uncompressed entries, which reads them."""
        self._operation, self._path, self._data, self._check = operation, path, data, check
        self._unpacked_bytes = 0
        try:
            with self._open() as archive:
                self._members = {member.filename: member for member in archive.infolist()}
        except _UNPACKING_ERRORS as error:
            raise ArchiveError(f"the zip archive is damaged or cannot be read ({error})") from error

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def _open(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(cast(IO[bytes], cast(Any, ViewFile(self._data))))

    def read(self, name: str) -> tuple[memoryview, int, int]:
        """The bytes of an entry: their memory, offset and length."""
        member = self._members[name]
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            unpacked = self._unpacked(member)
            return memoryview(unpacked), 0, len(unpacked)
        start = self._start(member)
        part = self._data[start : start + member.file_size]
        if part.nbytes != member.file_size:
            raise ArchiveError(f"the entry {name!r} is cut off")
        # torch writes 0 where checksums are switched off.
        if self._check and member.CRC and zlib.crc32(part) != member.CRC:
            raise ArchiveError(f"the entry {name!r} does not have its checksum")
        return self._data, start, part.nbytes

    def _start(self, member: zipfile.ZipInfo) -> int:
        """The offset of an entry's bytes: after its header, name and extra field."""
        offset = member.header_offset
        header = bytes(self._data[offset : offset + 30]) if offset >= 0 else b""
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise ArchiveError(f"the entry {member.filename!r} has no header")
        return offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")

    def _unpacked(self, member: zipfile.ZipInfo) -> bytes:
        # For all entries together: a small file may refer to one packed part many times.
        self._unpacked_bytes += member.file_size
        check_unpacked(self._operation, self._path, self._data.nbytes, self._unpacked_bytes)
        try:
            with self._open() as archive:
                return archive.read(member)
        except _UNPACKING_ERRORS as error:
            raise ArchiveError(f"the entry {member.filename!r} cannot be unpacked ({error})") from error

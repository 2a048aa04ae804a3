"""Archives as tensors. In: a tar or a zip, as a path or as a tensor of its bytes. Out: the bytes of each file in it by
name. Uncompressed entries are not copied: they are a part of the mapped file, or a view of the tensor. Nothing is
written to disk, so that names are not used as paths."""

from __future__ import annotations

import tarfile
import zlib
from typing import IO, Any, cast

from tilewright.base.dtype import dtypes
from tilewright.nn.formats.mapped import Path, bytes_of, damaged, tensor_at
from tilewright.nn.formats.zip_file import ArchiveError, ViewFile, ZipEntries
from tilewright.runtime.unpacking import unpack_gzip
from tilewright.tensor.tensor import Tensor

_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK = tarfile.BLOCKSIZE
_TAR_ERRORS = (
    tarfile.TarError,
    ArithmeticError,
    LookupError,
    EOFError,
    OSError,
    RuntimeError,  # also RecursionError, for headers of headers of headers
    ValueError,
    MemoryError,
)


def zip_extract(path: Path | Tensor, device: str | None = None, check: bool = True) -> dict[str, Tensor]:
    """The files of a zip archive by name, each as a 1-D uint8 tensor; folders are left out, and of two files with one
    name the later is taken. `path` may be a tensor of the archive's bytes. An archive is refused where it is damaged or
    its size grows too much when unpacked. `check=False` skips the checksums of unpacked files."""
    name, data = bytes_of("zip_extract", path)
    try:
        entries = ZipEntries("zip_extract", name, data, check)
        parts = {entry: entries.read(entry) for entry in entries.names if not entry.endswith("/")}
    except ArchiveError as error:
        raise damaged("zip_extract", name, str(error)) from error
    return {entry: _part(path, data, *part, device) for entry, part in parts.items()}


def tar_extract(path: Path | Tensor, device: str | None = None) -> dict[str, Tensor]:
    """The files of a tar archive, plain or gzipped, by name, each as a 1-D uint8 tensor; of two with one name the later
    is taken. Folders, links and devices are left out. `path` may be a tensor of the archive's bytes. An archive is
    refused where it is damaged, truncated, or its size grows too much when unpacked."""
    name, data = bytes_of("tar_extract", path)
    unpacked = data
    try:
        if data[:2] == _GZIP_MAGIC:
            unpacked = memoryview(unpack_gzip(bytes(data)))
        parts = _members(unpacked)
    except ArchiveError as error:
        raise damaged("tar_extract", name, str(error)) from error
    except (*_TAR_ERRORS, zlib.error) as error:
        raise damaged("tar_extract", name, f"this is not a whole tar archive ({error})") from error
    return {entry: _part(path, data, unpacked, *part, device) for entry, part in parts.items()}


def _members(data: memoryview) -> dict[str, tuple[int, int]]:
    """The offset and size of the plain files of a tar."""
    found: dict[str, tuple[int, int]] = {}
    reached = 0
    with tarfile.open(fileobj=cast(IO[bytes], cast(Any, ViewFile(data))), mode="r:") as archive:
        while (member := archive.next()) is not None:
            # A negative size would lead back to headers that were already read: an infinite loop.
            if member.size < 0 or archive.offset <= reached:
                raise ArchiveError(f"the entry {member.name!r} has a negative size")
            reached = archive.offset
            if member.issparse():
                raise ArchiveError(f"the entry {member.name!r} is a sparse file, whose holes are not in the archive")
            if not member.isreg():
                continue
            if member.offset_data + member.size > data.nbytes:
                raise ArchiveError(f"the entry {member.name!r} is cut off")
            found[member.name] = (member.offset_data, member.size)
        # `tarfile` treats a damaged header as the end of the archive, which is a block of zeros or the end of the file.
        rest = bytes(data[archive.offset : archive.offset + _BLOCK])
        if any(rest):
            raise ArchiveError(f"there is no header where one should be, at byte {archive.offset}")
    return found


def _part(
    source: Path | Tensor, data: memoryview, holder: memoryview, start: int, nbytes: int, device: str | None
) -> Tensor:
    """A range of the bytes of `holder`. Those of a tensor are a view of it; as for every expression, an update of the
    tensor does not change them."""
    if isinstance(source, Tensor) and holder is data:
        part = source[start : start + nbytes]
        return part if device is None else part.to(device)
    return tensor_at(holder, start, dtypes.uint8, (nbytes,), device)

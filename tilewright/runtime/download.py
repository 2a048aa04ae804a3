"""Downloads. In: an address. Out: its bytes at a path, or in memory with a copy in the cache folder; or an error that
says what the network answered. A progress bar on stderr shows the transfer. The copy in the cache folder appears only
when all of it has arrived."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from tilewright.base.errors import CacheError, FileError, FileFormatError
from tilewright.base.events import emit
from tilewright.runtime.cache import usable_folder
from tilewright.runtime.sealed import make_folder, read_plain, seal, unseal, write_plain
from tilewright.runtime.unpacking import unpack_gzip

_CHUNK = 1 << 18
_CONNECT_SECONDS = 10
_REMEDY = "set TILEWRIGHT_CACHE_DIR to a folder that can be written"


class Unavailable(Exception):
    """Why a source has nothing: collected where there are several sources, raised to the user where none is left."""


# ---------------------------------------------------------------- transfers


def download(address: str, path: str, progress: bool = True) -> None:
    """Fetches one file, with a progress bar. `Unavailable` where not all of it arrives; the path then has a part of
    it."""
    with open(path, "wb") as file:
        _transfer(address, file, progress)


def _transfer(address: str, file: IO[bytes], progress: bool) -> None:
    import http.client
    import urllib.error
    import urllib.request

    name = os.path.basename(address) or address
    try:
        with urllib.request.urlopen(address, timeout=_CONNECT_SECONDS) as response:
            total = int(response.headers.get("Content-Length") or 0)
            with progress_bar(name, total, progress) as advance:
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
                    advance(len(chunk))
            if total and file.tell() != total:
                raise Unavailable(f"{name} ended after {file.tell()} of {total} bytes")
    except urllib.error.HTTPError as error:
        error.close()
        raise Unavailable(f"{name} cannot be fetched ({error.code} {error.reason})") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unavailable(f"{name} cannot be fetched ({reason})") from error


@contextlib.contextmanager
def progress_bar(label: str, total: int, progress: bool) -> Iterator[Callable[[int], Any]]:
    """A progress bar on stderr, as a function that advances it; it shows a total where that is known."""
    if not progress:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        task = shown.add_task(label, total=total or None)
        yield lambda count: shown.advance(task, count)
        shown.update(task, completed=total or None)


# ---------------------------------------------------------------- the copy that is kept


def make_cache_folder(operation: str, *names: str) -> str:
    """A folder of the cache, created if needed; a temporary folder of this process where the cache is refused."""
    folder = usable_folder() or _folder_of_this_process()
    try:
        return make_folder(folder, *names)
    except OSError as error:
        path = os.path.join(folder, *names)
        raise CacheError(operation, f"the folder {path!r} cannot be made: {error}", _REMEDY) from error


@functools.cache
def _folder_of_this_process() -> str:
    """Removed at exit."""
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="tilewright-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def read_address(operation: str, address: str, gunzip: bool = False, progress: bool = True) -> bytes:
    """The bytes of a file anywhere, unpacked if asked. What came over the network is kept under its address, and later
    calls read that copy; a file of this machine is read as it is."""
    try:
        read = _read_local if address.startswith("file:") else _read_kept
        data = read(operation, address, progress)
    except Unavailable as error:
        remedy = "check the address and the network; what was fetched before is read without one"
        raise FileError(operation, f"{address!r}: {error}", remedy) from error
    if not gunzip:
        return data
    try:
        return unpack_gzip(data)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        message = f"{address!r} is not a whole gzip file: {error}"
        raise FileFormatError(operation, message, "leave out gunzip=True") from error


def _read_local(operation: str, address: str, progress: bool) -> bytes:
    del operation  # it touches no cache that could fail
    memory = io.BytesIO()
    _transfer(address, memory, progress)
    return memory.getvalue()


def _read_kept(operation: str, address: str, progress: bool) -> bytes:
    """A copy that is damaged, another address's or not a regular file is fetched again."""
    folder = make_cache_folder(operation, "downloads")
    key = hashlib.sha256(address.encode()).hexdigest()
    path = os.path.join(folder, key)
    try:
        kept = unseal(key, read_plain(path))
        if kept is not None:
            return kept
    except (OSError, MemoryError) as error:
        if os.path.lexists(path):
            emit("warning", message=f"the copy of {address!r} cannot be read: {error}", location=None)
    data = _read_local(operation, address, progress)
    try:
        write_plain(path, seal(key, data))
    except OSError as error:
        raise CacheError(operation, f"{folder!r}: {error}", _REMEDY) from error
    return data

"""Files of the network. In: an address. Out: its bytes at a path, or in memory with a copy kept in the cache folder; or
an error that says what the network answered. A bar on stderr shows how far a transfer is. Nothing is half kept: a file
appears under its name when the whole of it has arrived."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from tilewright.base.errors import CacheError, FileError, FileFormatError
from tilewright.runtime.cache import cache_folder

_CHUNK = 1 << 18
_CONNECT_SECONDS = 10
_REMEDY = "set TILEWRIGHT_CACHE_DIR to a folder that can be written"


class Unavailable(Exception):
    """Why a place has nothing: collected where there are several places, told to the user where no place is left."""


# ---------------------------------------------------------------- transfers


def download(address: str, path: str, progress: bool = True) -> None:
    """Fetches one file, with a bar. Unavailable where the network or the server does not give all of it."""
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
            with _bar(name, total, progress) as advance:
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
def _bar(label: str, total: int, progress: bool) -> Iterator[Callable[[int], Any]]:
    """A bar on stderr, which knows the end where the server tells it."""
    if not progress:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(label, total=total or None)
        yield lambda count: shown.advance(task, count)


# ---------------------------------------------------------------- the copy that is kept


def make_cache_folder(operation: str, *names: str) -> str:
    """A folder of the cache, made where it is not there yet."""
    place = os.path.join(cache_folder(), *names)
    try:
        os.makedirs(place, exist_ok=True)
    except OSError as error:
        raise CacheError(operation, f"the folder {place!r} cannot be made: {error}", _REMEDY) from error
    return place


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
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        message = f"{address!r} is no whole gzip file: {error}"
        raise FileFormatError(operation, message, "leave out gunzip=True") from error


def _read_local(operation: str, address: str, progress: bool) -> bytes:
    del operation  # it touches no cache that could fail
    memory = io.BytesIO()
    _transfer(address, memory, progress)
    return memory.getvalue()


def _read_kept(operation: str, address: str, progress: bool) -> bytes:
    place = make_cache_folder(operation, "downloads")
    path = os.path.join(place, hashlib.sha256(address.encode()).hexdigest())
    try:
        if not os.path.exists(path):
            with tempfile.TemporaryDirectory(dir=place, prefix=".new-") as workplace:
                arriving = os.path.join(workplace, "file")
                download(address, arriving, progress)
                os.replace(arriving, path)
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CacheError(operation, f"{place!r}: {error}", _REMEDY) from error

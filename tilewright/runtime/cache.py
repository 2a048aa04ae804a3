"""Compiled programs and schedules on disk. In: a key and bytes. Out: the bytes again, in another process, or None. Many
processes may write at once: an entry appears whole or not at all. A damaged one is removed and counts as missing. All
together stay below CACHE_MEGABYTES: `cache_limit` removes those unused longest."""

from __future__ import annotations

import hashlib
import os

from tilewright.base.config import options
from tilewright.base.events import emit, listeners
from tilewright.runtime.cache_limit import MEGABYTE, UNFINISHED, is_turn, note_use, trim

MAGIC = b"tilewright-entry-1\n"
_DIGEST_BYTES = 32


def cache_folder() -> str:
    """TILEWRIGHT_CACHE_DIR, else the user's cache folder."""
    if options.TILEWRIGHT_CACHE_DIR:
        return options.TILEWRIGHT_CACHE_DIR
    import platformdirs

    return platformdirs.user_cache_dir("tilewright", appauthor=False)


def cache_key(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _path(key: str) -> str:
    return os.path.join(cache_folder(), key[:2], key)


def read_entry(key: str, cache: str = "program") -> bytes | None:
    """The entry's bytes; None where there is none, it is damaged, or the cache is off. Events call it by `cache`."""
    if not options.CACHE:
        return None
    path = _path(key)
    try:
        with open(path, "rb") as file:
            data = file.read()
            note_use(file.fileno(), path)
    except OSError:
        return _report(cache, key, None)
    header = len(MAGIC) + _DIGEST_BYTES
    payload = data[header:]
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(payload).digest() != data[len(MAGIC) : header]:
        _remove(path)
        return _report(cache, key, None)
    return _report(cache, key, payload)


def write_entry(key: str, payload: bytes) -> None:
    """Keeps the bytes. A folder that cannot be written makes the cache useless, not the program."""
    if not options.CACHE:
        return
    path = _path(key)
    entry = MAGIC + hashlib.sha256(payload).digest() + payload
    # A name as `tempfile` would choose it, which takes 10 ms to load.
    temporary = os.path.join(os.path.dirname(path), UNFINISHED + os.urandom(8).hex())
    try:
        try:
            _write_new(temporary, entry)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _write_new(temporary, entry)
        os.replace(temporary, path)
        if is_turn(key):
            trim(cache_folder(), options.CACHE_MEGABYTES * MEGABYTE)
    except OSError as error:
        if listeners:
            emit("warning", message=f"the cache cannot be written: {error}", location=None)


def _write_new(path: str, data: bytes) -> None:
    """A file that is not there yet, for the user alone."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)


def _remove(path: str) -> None:
    if listeners:
        emit("warning", message=f"a damaged cache entry is removed: {path}", location=None)
    try:
        os.remove(path)
    except OSError as error:
        if listeners:
            emit("warning", message=f"a damaged cache entry cannot be removed: {error}", location=None)


def _report(cache: str, key: str, payload: bytes | None) -> bytes | None:
    if listeners:
        emit("cache-hit" if payload is not None else "cache-miss", cache=cache, key=key)
    return payload

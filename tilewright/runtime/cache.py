"""Compiled programs and schedules on disk. In: a key and bytes. Out: the bytes again, in another process, or None. Many
processes may write at once: an entry appears whole or not at all. A damaged one is removed and counts as missing; a
folder that others can write to is not used (`sealed`). All together stay below CACHE_MEGABYTES: `cache_limit` removes
those unused longest."""

from __future__ import annotations

import os
import sys
import warnings

from tilewright.base.config import options
from tilewright.base.digests import sha256
from tilewright.base.events import emit
from tilewright.base.location import user_location
from tilewright.runtime.cache_limit import MEGABYTE, is_digest, note_use, remove_entry, triggers_trim, trim
from tilewright.runtime.sealed import (
    MAX_ENTRY_BYTES,
    make_folder,
    read_plain,
    reason_against,
    seal,
    unseal,
    write_plain,
)

_PACKAGE = "tilewright"
_refused: set[str] = set()  # folders that a warning has named


def cache_folder() -> str:
    """TILEWRIGHT_CACHE_DIR, else the user's cache folder."""
    return options.TILEWRIGHT_CACHE_DIR or _user_folder("XDG_CACHE_HOME", "~/.cache", "user_cache_dir")


def state_folder() -> str:
    """TILEWRIGHT_STATE_DIR, else the user's folder for files that cannot be made again: repro files, investigations."""
    return options.TILEWRIGHT_STATE_DIR or _user_folder("XDG_STATE_HOME", "~/.local/state", "user_state_dir")


def _user_folder(variable: str, default: str, name: str) -> str:
    """The package's folder as `platformdirs.<name>` returns it. Every process that reads a stored kernel asks for it,
    so on Linux with an absolute path it is computed here: importing that library takes 1 MB and 10 ms."""
    parent = os.environ.get(variable) or os.path.expanduser(default)
    if sys.platform == "linux" and "ANDROID_DATA" not in os.environ and os.path.isabs(parent):
        return os.path.join(parent, _PACKAGE)
    import platformdirs

    return str(getattr(platformdirs, name)(_PACKAGE, appauthor=False))


def usable_folder() -> str | None:
    """The cache folder; None, and a warning once, where another user could have written entries to it."""
    folder = cache_folder()
    reason = reason_against(folder)
    if not reason:
        return folder
    if folder not in _refused:
        _refused.add(folder)
        remedy = "`chmod go-w` it if it is yours, or set TILEWRIGHT_CACHE_DIR to a folder of your own"
        message = f"the cache folder {folder!r} is not used: {reason}; {remedy}"
        emit("warning", message=message, location=None)
        file, line = user_location() or (__file__, 1)
        warnings.warn_explicit(message, RuntimeWarning, file, line)
    return None


def cache_key(*parts: str) -> str:
    digest = sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def read_entry(key: str, cache: str = "program") -> bytes | None:
    """The entry's bytes; None where there is none, it is damaged or another key's, or the cache is off. `cache` is
    the name of the cache in events."""
    if not options.CACHE:
        return None
    folder = usable_folder() if is_digest(key, 64) else None
    if folder is None:
        return _report(cache, key, None)
    path = os.path.join(folder, key[:2], key)
    try:
        data = read_plain(path, MAX_ENTRY_BYTES)
    except FileNotFoundError:
        return _report(cache, key, None)
    except (OSError, MemoryError) as error:
        emit("warning", message=f"a cache entry cannot be read: {error}", location=None)
        return _report(cache, key, None)
    payload = unseal(key, data)
    if payload is None:
        emit("warning", message=f"a damaged cache entry is removed: {path}", location=None)
        remove_entry(path)
    else:
        note_use(path)
    return _report(cache, key, payload)


def write_entry(key: str, payload: bytes) -> None:
    """Stores the bytes. A folder that cannot be written gives a warning event, not an error."""
    if not options.CACHE:
        return
    folder = usable_folder()
    if folder is None:
        return
    path = os.path.join(folder, key[:2], key)
    entry = seal(key, payload)
    try:
        try:
            write_plain(path, entry)
        except FileNotFoundError:
            make_folder(folder, key[:2])
            write_plain(path, entry)
        if triggers_trim(key):
            trim(folder, options.CACHE_MEGABYTES * MEGABYTE)
    except OSError as error:
        emit("warning", message=f"the cache cannot be written: {error}", location=None)


def _report(cache: str, key: str, payload: bytes | None) -> bytes | None:
    emit("cache-hit" if payload is not None else "cache-miss", cache=cache, key=key)
    return payload

"""The size of the disk cache. In: its folder and a limit. Out: entries removed, those unused longest first. Stands
beside `cache`, which trims it at one write in 256. Several processes may do this at once, without a lock: a file that
another process has open stays readable for it, and two processes remove the same entries."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from tilewright.base.config import options
from tilewright.base.events import emit
from tilewright.base.records import NamedTuple
from tilewright.runtime.sealed import UNFINISHED

MEGABYTE = 1 << 20
# The time of use is updated when it is older than this, because an update is a write to the disk.
NOTED_EVERY_SECONDS = 3600
# An unfinished file older than this was left by a writer that was killed: a write takes milliseconds.
ABANDONED_SECONDS = 3600
_DIGITS = "0123456789abcdef"


class Entry(NamedTuple):
    used: float  # when it was written or last noted as used
    size: int
    path: str


def entries(folder: str) -> Iterator[Entry]:
    """The files that `cache` has written, finished or not; other files of the folder are left out."""
    for part in _scan(folder):
        if is_digest(part.name, 2):
            for found in _scan(part.path):
                if is_digest(found.name, 64) or found.name.startswith(UNFINISHED):
                    try:
                        facts = found.stat(follow_symlinks=False)
                    except OSError:  # removed meanwhile
                        continue
                    yield Entry(facts.st_mtime, facts.st_size, found.path)


def is_digest(name: str, length: int) -> bool:
    """Whether a name is that many hexadecimal digits: 64 for an entry, the first two of them for its folder."""
    return len(name) == length and not name.strip(_DIGITS)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def note_use(path: str) -> None:
    """Records that an entry was read, so that entries unused for longer are removed before it."""
    now = time.time()
    try:
        if now - os.stat(path).st_mtime > NOTED_EVERY_SECONDS:
            os.utime(path)
    except OSError as error:
        emit("warning", message=f"the use of a cache entry cannot be noted: {error}", location=None)


def triggers_trim(key: str) -> bool:
    """Whether the write of this entry also checks the size of the cache: keys are digests, so one in 256 does."""
    return key.startswith("00") and options.CACHE_MEGABYTES > 0


def trim(folder: str, limit: int) -> int:
    """Removes entries until the cache is an eighth below its limit, so that the next checks find nothing to remove.
    Returns the bytes freed."""
    now = time.time()
    found = sorted(entries(folder))
    total = sum(entry.size for entry in found)
    goal = limit - limit // 8 if total > limit else total
    freed = 0
    for entry in found:
        unfinished = os.path.basename(entry.path).startswith(UNFINISHED)
        if now - entry.used > ABANDONED_SECONDS if unfinished else total - freed > goal:
            freed += entry.size if remove_entry(entry.path) else 0
    return freed


def clear(folder: str) -> int:
    """Removes every entry and returns the bytes freed. Other files of the folder, such as downloads, stay."""
    return sum(entry.size for entry in entries(folder) if remove_entry(entry.path))


def remove_entry(path: str) -> bool:
    """Whether the entry is gone: another process may have removed it, or, on some systems, hold it while it reads."""
    try:
        os.remove(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        emit("warning", message=f"a cache entry cannot be removed: {error}", location=None)
        return False
    return True

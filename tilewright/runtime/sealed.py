"""Sealed files. In: a path in the cache, a key and bytes. Out: the bytes again, for the same key; None where the
file is damaged or another key's; OSError where it is missing, another user's or not a regular file. A seal is a digest
of the key and the bytes. Folders are for their owner alone; one that others can write to is refused."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

from tilewright.base.digests import sha256

MAGIC = b"tilewright-entry-2\n"
HEADER_BYTES = len(MAGIC) + 32
# More than any compiled program: a larger file is not an entry, and reading it could take all memory.
MAX_ENTRY_BYTES = 1 << 30
UNFINISHED = ".new-"
FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def reason_against(folder: str) -> str:
    """Why a folder is not used: it is another user's, or others can write to it; '' where it may be used, or is yet to
    be made. What is loaded from the cache is run, so whoever can write there can run code in this process."""
    try:
        facts = os.stat(folder)
    except OSError:
        return ""
    if not stat.S_ISDIR(facts.st_mode):
        return ""  # using it fails, and the system's message says why
    return _not_private(facts)


def _not_private(facts: os.stat_result) -> str:
    """Why something does not belong to this user alone; '' on systems without users."""
    if not hasattr(os, "geteuid"):
        return ""
    if facts.st_uid != os.geteuid():
        return f"it belongs to another user (uid {facts.st_uid})"
    if facts.st_mode & _OTHERS_WRITE:
        return f"others can write to it (mode {stat.S_IMODE(facts.st_mode):04o})"
    return ""


def make_folder(*parts: str) -> str:
    """A folder below the first one, both for the owner alone where they are new."""
    folder = parts[0]
    os.makedirs(folder, FOLDER_MODE, exist_ok=True)
    for part in parts[1:]:
        folder = os.path.join(folder, part)
        os.makedirs(folder, FOLDER_MODE, exist_ok=True)
        reason = reason_against(folder)
        if reason:
            raise PermissionError(errno.EPERM, reason, folder)
    return folder


def open_plain(path: str, further_flags: int = 0) -> BufferedReader:
    """A plain (regular) file, to be read; OSError where it is anything else. Opening a FIFO does not block."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT | further_flags))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a plain file", path)
    return file


def read_plain(path: str, limit: int | None = None) -> bytes:
    """The bytes of a plain file of this user, no link; OSError where it is anything else, or longer than `limit`."""
    with open_plain(path, _NO_LINK) as file:
        facts = os.fstat(file.fileno())
        reason = _not_private(facts)
        if reason:
            raise PermissionError(errno.EPERM, reason, path)
        if limit is not None and facts.st_size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit} bytes", path)
        return file.read()


def write_plain(path: str, data: bytes) -> None:
    """A file of this user alone, in a folder that is there. It appears whole or not at all."""
    # A name as `tempfile` would choose it, which takes 10 ms to load.
    temporary = os.path.join(os.path.dirname(path), UNFINISHED + os.urandom(8).hex())
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, _FILE_MODE)) as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        if os.path.lexists(temporary):
            os.remove(temporary)
        raise


def seal(key: str, payload: bytes) -> bytes:
    return MAGIC + _digest(key, payload) + payload


def unseal(key: str, data: bytes) -> bytes | None:
    """The payload of this key; None for any other data."""
    payload = data[HEADER_BYTES:]
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : HEADER_BYTES] != _digest(key, payload):
        return None
    return payload


def _digest(key: str, payload: bytes) -> bytes:
    name = key.encode()
    digest = sha256(len(name).to_bytes(8, "little") + name)
    digest.update(payload)
    return digest.digest()

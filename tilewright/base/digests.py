"""Digests of bytes. In: bytes. Out: `blake2b` and `sha256` with the interface of `hashlib`, from the interpreter's own
modules where it has them: importing `hashlib` loads OpenSSL, which takes more memory and time than the rest of a small
program."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol


class Digest(Protocol):
    """What a constructor of `hashlib` returns."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...

    def hexdigest(self) -> str: ...


def _constructor(name: str, *modules: str) -> Callable[..., Digest]:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        except ImportError:  # another version of Python, or one built without them
            continue
    return getattr(importlib.import_module("hashlib"), name)  # type: ignore[no-any-return]


blake2b = _constructor("blake2b", "_blake2")
sha256 = _constructor("sha256", "_sha2", "_sha256")

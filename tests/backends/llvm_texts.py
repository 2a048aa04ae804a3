"""The LLVM texts of a test's kernels. In: the fixture that replaces attributes. Out: a list that grows with every
kernel that is compiled while the test runs."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.backends.cpu.code import llvm


def record_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    emit = llvm._emit

    def recorded(text: str, *rest: Any, **named: Any) -> bytes:
        texts.append(text)
        return emit(text, *rest, **named)

    monkeypatch.setattr(llvm, "_emit", recorded)
    return texts

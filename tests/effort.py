"""How much work a call is, for tests of speed. In: a call. Out: how many functions it called: the same number on a slow
machine, and on one that does other things besides, as seconds are not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")


def count_calls(call: Callable[[], Result]) -> tuple[int, Result]:
    """The calls in this thread, of functions of Python and of C alike, and what came back."""
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return calls, result

"""The executed lines of the package, nested by call. In: a program while it runs. Out: a `Call` for each call from
outside of the package into it. Uses `sys.settrace`, so a program runs many times slower.

A loop is one line with a count. At one line of one call the first few calls of each function are kept, and the others
are counted: one reads how a value becomes machine code once, not for each of ten thousand nodes."""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from tilewright.base.location import PACKAGE_FOLDER
from tilewright.debug.trace.places import in_package
from tilewright.debug.trace.records import Call, Limits, SourceLine

# The code that records, and the code that emits events for it.
_IGNORED = tuple(
    os.path.join(PACKAGE_FOLDER, *parts)
    for parts in (("debug", ""), ("cli", ""), ("base", "events.py"), ("base", "location.py"))
)
# Deeper calls are counted and not followed.
MAX_DEPTH = 60


class _OpenLine:
    __slots__ = ("calls", "count", "left_out")

    def __init__(self) -> None:
        self.count = 0
        self.calls: list[_OpenCall] = []
        self.left_out = 0


class _OpenCall:
    """A call whose lines are being recorded."""

    __slots__ = ("caller", "current", "depth", "file", "function", "lines")

    def __init__(self, frame: FrameType, caller: tuple[str, int] | None, depth: int) -> None:
        self.function = frame.f_code.co_qualname
        self.file = frame.f_code.co_filename
        self.caller = caller
        self.depth = depth
        self.lines: dict[int, _OpenLine] = {}
        self.current: _OpenLine | None = None


TraceFunction = Callable[[FrameType, str, Any], Any]


class LineRecorder:
    """Follows the thread that enters it, and every thread that is started inside the context."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.roots: list[_OpenCall] = []
        self.recorded = 0
        self.left_out = 0
        self.repeated = 0
        self._alike: Counter[tuple[str, tuple[str, int] | None]] = Counter()
        self._open: dict[FrameType, _OpenCall] = {}
        self._before: tuple[Any, Any] = (None, None)

    def __enter__(self) -> LineRecorder:
        self._before = (sys.gettrace(), threading.gettrace())
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self._before[0])
        threading.settrace(self._before[1])
        self._open.clear()

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE_FOLDER) or file.startswith(_IGNORED) or frame.f_code.co_name == "<module>":
            return None
        if self.recorded >= self.limits.source_lines:
            self.left_out += 1
            return None
        parent = self._parent_of(frame)
        if parent is None:
            outside = frame.f_back
            caller = None if outside is None else (outside.f_code.co_filename, outside.f_lineno)
            kind = (frame.f_code.co_qualname, caller)
            self._alike[kind] += 1
            if self._alike[kind] > self.limits.calls:
                self.repeated += 1
                return None
            made = _OpenCall(frame, caller, 0)
            self.roots.append(made)
        else:
            line = parent.current
            if line is None:
                return None
            alike = sum(call.function == frame.f_code.co_qualname and call.file == file for call in line.calls)
            if alike >= self.limits.calls or parent.depth >= MAX_DEPTH:
                line.left_out += 1
                return None
            made = _OpenCall(frame, None, parent.depth + 1)
            line.calls.append(made)
        self._open[frame] = made
        return self._on_line

    def _parent_of(self, frame: FrameType) -> _OpenCall | None:
        """The call that this one was made in, past frames of other libraries; None from outside of the package. A call
        made in one that is not followed is not followed either: its parent has no current line."""
        outer = frame.f_back
        while outer is not None:
            found = self._open.get(outer)
            if found is not None:
                return found
            if outer.f_code.co_filename.startswith(PACKAGE_FOLDER) and not outer.f_code.co_filename.startswith(
                _IGNORED
            ):
                return _NOWHERE
            outer = outer.f_back
        return None

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        call = self._open.get(frame)
        if call is None:
            return None
        if event == "line":
            line = call.lines.get(frame.f_lineno)
            if line is None:
                line = call.lines[frame.f_lineno] = _OpenLine()
                self.recorded += 1
            line.count += 1
            call.current = line
        elif event == "return":
            del self._open[frame]
        return self._on_line

    def calls(self) -> tuple[Call, ...]:
        """The recorded calls, including those that only return."""
        return tuple(_finished(root) for root in self.roots if root.lines)

    def notes(self) -> tuple[str, ...]:
        told = []
        if self.repeated:
            told.append(f"the lines of {self.repeated:,} more calls are left out: their lines called the same before")
        if self.left_out:
            told.append(f"the lines of {self.left_out:,} further calls are left out: there are {self.recorded:,} lines")
        return tuple(told)


class _Nowhere(_OpenCall):
    def __init__(self) -> None:
        self.current = None
        self.depth = 0


_NOWHERE = _Nowhere()


def _finished(call: _OpenCall) -> Call:
    lines = []
    texts = {number: linecache.getline(call.file, number).rstrip() for number in call.lines}
    margin = min((len(text) - len(text.lstrip()) for text in texts.values() if text), default=0)
    for number, line in call.lines.items():
        text = texts[number][margin:]
        calls = tuple(_finished(each) for each in line.calls if each.lines)
        lines.append(SourceLine(number, text, line.count, calls, line.left_out))
    return Call(call.function, in_package(call.file), call.caller, tuple(lines))

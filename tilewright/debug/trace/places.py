"""Source locations in the package. In: functions, names of rules, frames. Out: file and line. Rules are data without a
line, so their names are looked up in the text of the package, once, when a trace needs them."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.base.location import PACKAGE_FOLDER
from tilewright.debug.trace.records import Location

_RULE = re.compile(r"\bRule\(\s*[rf]?\"([^\"]+)\"")
_QUOTED = re.compile(r"\"([a-z0-9]+(?:-[a-z0-9]+)+)\"")
# How far a call of `emit` may be below its listener.
_MAX_FRAMES = 8


def in_package(path: str) -> str:
    """`graph/rewrite.py` for a file of the package; another file as it is."""
    return "tilewright/" + path[len(PACKAGE_FOLDER) :].replace("\\", "/") if path.startswith(PACKAGE_FOLDER) else path


def function_place(function: Callable[..., Any]) -> Location | None:
    """The location of a function; of a wrapper or a partial, that of the function inside."""
    inner = getattr(function, "func", function)
    for cell in getattr(inner, "__closure__", None) or ():
        held = cell.cell_contents
        if callable(held) and getattr(held, "__code__", None) is not None:
            inner = held
            break
    code = getattr(inner, "__code__", None)
    return None if code is None else (in_package(code.co_filename), code.co_firstlineno)


def emitter_place() -> Location | None:
    """The line of the package that emitted the event which is being handled, directly or through `announce_x`."""
    frame = sys._getframe(1)
    passed_events = False
    for _ in range(_MAX_FRAMES):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        is_events = frame.f_code.co_filename.endswith("events.py") and frame.f_code.co_name == "emit"
        is_announcing = frame.f_code.co_name.startswith("announce_")
        if passed_events and not is_events and not is_announcing:
            return in_package(frame.f_code.co_filename), frame.f_lineno
        passed_events = passed_events or is_events
    return None


@functools.cache
def _rule_places() -> dict[str, Location]:
    found: dict[str, Location] = {}
    for folder in ("graph", "schedule", "kernel", "codegen", "backends"):
        for path in sorted(Path(PACKAGE_FOLDER, folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "Rule(" not in text:
                continue
            file = in_package(str(path))
            for pattern in (_RULE, _QUOTED):
                for match in pattern.finditer(text):
                    found.setdefault(match.group(1), (file, text.count("\n", 0, match.start(1)) + 1))
    return found


def rule_place(name: str) -> Location | None:
    """The location of a rule; None for one whose name is computed."""
    return _rule_places().get(name)

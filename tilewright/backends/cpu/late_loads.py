"""Where scalars are loaded. In: the lines of a function's text. Out: the same lines, every scalar loaded in front of
the first line of its block that uses it. Stands at the end of the renderer.

A tile's node loads all its elements before the products that use them are written. LLVM keeps that order on processors
whose registers are many, and each scalar of a matrix product then holds a register until its row's turn: on NEON a tile
of six rows no longer fits, and every turn of the inner loop moves its sums about (83 instructions instead of 37).

before:  %a = load float, ptr %p     %b = load float, ptr %q     %x = fmul float %a, %k     %y = fmul float %b, %k
after:   %a = load float, ptr %p     %x = fmul float %a, %k      %b = load float, ptr %q    %y = fmul float %b, %k"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SCALAR_LOAD = re.compile(r"  (%\w+) = load [a-z]\w*, ")
_NAMES = re.compile(r"%\w+")


def sink_loads(lines: Iterable[str]) -> list[str]:
    placed: list[str] = []
    waiting: dict[str, str] = {}
    for line in lines:
        found = _SCALAR_LOAD.match(line)
        if found:
            # What it loads from may have been loaded itself.
            placed.extend(waiting.pop(name) for name in _NAMES.findall(line, found.end()) if name in waiting)
            waiting[found[1]] = line
            continue
        if waiting:
            if not _leaves_memory_alone(line):
                placed.extend(waiting.values())
                waiting.clear()
            else:
                placed.extend(waiting.pop(name) for name in _NAMES.findall(line, 3) if name in waiting)
        placed.append(line)
    return placed + list(waiting.values())


def _leaves_memory_alone(line: str) -> bool:
    """Whether a load may move past it: a value is computed in the same block, and no function but LLVM's is called."""
    return line.startswith("  %") and (" call " not in line or "@llvm." in line)


__all__ = ["sink_loads"]

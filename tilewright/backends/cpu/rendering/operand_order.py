"""The order of the lines of a contraction's inner loop. In: the lines of its one block, and the results that update
accumulators. Out: the same lines, each operand loaded where it is first needed.

LLVM keeps the order of loads, and gives each a register from its load to its last use. Where all operands at once do
not fit the registers beside the accumulators, it moves accumulators around instead: the loop takes twice as long."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Sequence

_PREFETCH = "  call void @llvm.prefetch."
_NAME = re.compile(r"%[\w.]+")
_FENCE = '  call void asm sideeffect "", "~{memory}"()'  # no instruction; no load passes it
_BYTES = {"half": 2, "float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8}


class Body:
    """The lines of a loop, of which some update accumulators."""

    def __init__(self, lines: Sequence[str], updates: Sequence[str], vector_bytes: int) -> None:
        self.lines: dict[str, str] = {}
        self.others: list[str] = []
        for line in lines:
            if name := _defined(line):
                self.lines[name] = line
            else:
                self.others.append(line)
        self.updates = updates
        self.vector_bytes = vector_bytes
        self._read: dict[str, list[str]] = {}  # what `_operands` has found
        # Loads do not pass stores and branches.
        self.is_movable = all(line.startswith(_PREFETCH) for line in self.others) and set(updates) <= set(self.lines)

    def by_need(self, fenced: Collection[str] = ()) -> list[str]:
        """The lines, each as late as the first update that needs it; those that none needs come last. What the `fenced`
        updates need is loaded after a fence."""
        order: dict[str, None] = {}
        made: list[str] = []
        for update in self.updates:
            made += [_FENCE] if update in fenced else []
            stack = [update]
            while stack:
                name = stack[-1]
                missing = [] if name in order else [used for used in self._operands(name) if used not in order]
                if missing:
                    stack.extend(reversed(missing))
                elif stack.pop() not in order:
                    order[name] = None
                    made.append(self.lines[name])
        return [*made, *(line for name, line in self.lines.items() if name not in order), *self.others]

    def registers(self) -> tuple[int, int]:
        """Registers of the operands: of all at once, and the most that updates in order need at a time. LLVM loads once
        what is loaded from one address again."""
        uses = self._uses
        sizes = {load: self._size(load) for load in uses}
        ends = {numbers[-1] for numbers in uses.values()}
        peak = [sum(size for load, size in sizes.items() if uses[load][0] <= n <= uses[load][-1]) for n in ends]
        return sum(sizes.values()), max(peak, default=0)

    def is_shared(self) -> bool:
        """Whether several updates need one load. Elsewhere each is loaded for one update, and in any order."""
        return any(len(numbers) > 1 for numbers in self._uses.values())

    @functools.cached_property
    def _uses(self) -> dict[str, list[int]]:
        """The updates, by number, that need each load, by its text."""
        found: dict[str, list[int]] = {}
        updates = frozenset(self.updates)
        for number, update in enumerate(self.updates):
            for load in {self.lines[name].partition(" = ")[2] for name in self._loads_of(update, updates)}:
                found.setdefault(load, []).append(number)
        return found

    def _operands(self, name: str) -> list[str]:
        """The names that an instruction reads, of those that the loop defines."""
        found = self._read.get(name)
        if found is None:
            used = _NAME.findall(self.lines[name].partition(" = ")[2])
            found = self._read[name] = [each for each in used if each in self.lines]
        return found

    def _loads_of(self, update: str, updates: frozenset[str]) -> set[str]:
        """The loads that an update needs, without those of the updates before it."""
        found: set[str] = set()
        seen: set[str] = set()
        stack = list(self._operands(update))
        while stack:
            name = stack.pop()
            if name in seen or name in updates:
                continue
            seen.add(name)
            if " = load " in self.lines[name]:
                found.add(name)
            else:
                stack += self._operands(name)
        return found

    def _size(self, load: str) -> int:
        """The vector registers of a loaded value."""
        found = re.match(r"load (?:<(\d+) x )?(\w+)", load)
        if found is None or found[2] not in _BYTES:
            return 0
        return -(-int(found[1] or 1) * _BYTES[found[2]] // self.vector_bytes)


def _defined(line: str) -> str:
    """The name that a line defines; empty where it defines none."""
    name, equals, _ = line.strip().partition(" = ")
    return name if equals else ""


def ordered(
    lines: list[str], updates: Sequence[str], vector_bytes: int, free_registers: int, fenced: Collection[str] = ()
) -> list[str]:
    """The lines of a loop by need, where all operands at once need more registers than accumulators leave free, and
    those of one update after the other do not."""
    body = Body(lines, updates, vector_bytes)
    if not body.is_movable or not body.is_shared():
        return lines
    together, at_a_time = body.registers()
    return body.by_need(fenced) if at_a_time <= free_registers < together else lines

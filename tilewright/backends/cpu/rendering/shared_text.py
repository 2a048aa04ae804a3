"""Kernels that differ in numbers alone. In: the LLVM IR texts of several kernels. Out: for each the text to compile;
those that are equal but for numbers share one, which reads the numbers of each kernel from memory.

The layers of a network have the same kernels in other sizes: where the plans are the same too, their texts differ in
limits of loops, strides and offsets. Only numbers that an instruction could as well take from a register may differ;
those of types, shuffles and alignments are the same in all texts that share one."""

from __future__ import annotations

import re
from collections.abc import Sequence

SYMBOL = "tw_numbers"
# The most numbers that an innermost loop may read besides its limit and its steps: each takes a register, a quarter of
# those that a processor with sixteen has. Without this limit a step of MobileNetV2 takes 2 % longer, with it as long.
MAX_LOOP_NUMBERS = 4

_NUMBER = re.compile(r"(?<![\w%@.-])-?\d+(?![\w.])")
_OPERAND = r"(?:[%\w.-]+,\ )?"
# A line up to a number that may be in a register, and the type of the number; `lanes` where all lanes have it.
_PLACE = re.compile(
    rf"""\ \ %[\w.]+\ =\ (?:
      getelementptr\ \w+,\ ptr\ [%@][\w.]+,\ (?P<index>i32|i64) |
      (?:add|sub|mul)(?:\ nuw|\ nsw)*\ (?P<term>i32|i64)\ {_OPERAND} |
      icmp\ \w+\ (?P<bound>i32|i64)\ {_OPERAND} |
      icmp\ \w+\ <(?P<lanes>\d+)\ x\ (?P<word>i32|i64)>\ [%\w.]+,\ splat\ \(i\d+ |
      call\ i\d+\ @llvm\.[su](?:min|max)\.i\d+\((?:i\d+\ [%\w.-]+,\ )?(?P<argument>i32|i64)
    )\ ?""",
    re.VERBOSE,
)
_KINDS = ("index", "term", "bound", "argument", "word")
_OFFSETS = re.compile(r"(  %[\w.]+ = getelementptr \w+, ptr %[\w.]+, <\d+ x i64>) <([^>]*)>")  # of lanes
_SPLAT = re.compile(r"splat \(i\d+ (%[\w.]+)\)")
_ARRAY = re.compile(r"  %[\w.]+ = alloca \[")  # the number after it is a size: the greatest serves all
_STEP = re.compile(r"  %[\w.]+\.(?:next|more) = ")
_LOOP = re.compile(r"(?:(loop\d+):|  br i1 %loop\d+\.more)")
_READ = re.compile(r"%number\d+")
_PARAMETERS = "(ptr %buffers, i64 %lo, i64 %hi)"
_DIGITS = b"0123456789"


def share_texts(texts: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """For each text the one to compile, and the numbers that it reads."""
    made: list[tuple[str, tuple[int, ...]]] = [(text, ()) for text in texts]
    groups: dict[bytes, list[int]] = {}
    for position, text in enumerate(texts):
        groups.setdefault(text.encode().translate(None, _DIGITS), []).append(position)
    for group in groups.values():
        shared = _SharedText([texts[position] for position in group]) if len(group) > 1 else None
        if shared is not None and shared.write():
            text, numbers = shared.text(), zip(*map(_values, shared.columns), strict=True)
            for position, found in zip(group, numbers, strict=True):
                made[position] = (text, found)
    return made


class _SharedText:
    """One text under construction, for several that are equal but for digits."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.rows = list(zip(*(text.split("\n") for text in texts), strict=True))
        self.lines = [row[0] for row in self.rows]
        self.columns: list[tuple[str, ...]] = []  # the values that each number has in the texts, in order in memory
        self.positions: dict[tuple[tuple[str, ...], ...], int] = {}  # of numbers, or of the first of several
        self.reads: dict[str, str] = {}  # the lines that read numbers, by the names that they define
        self.entry = 0  # the first line of the function that may read them

    def write(self) -> bool:
        """False where a number differs that must be in the text, where a loop would read too many, or where nothing
        differs."""
        is_inside = False
        loops = _innermost_loops(self.lines)
        taken: dict[int, set[str]] = {}  # the numbers that an innermost loop reads in every iteration
        for position, row in enumerate(self.rows):
            if row[0].startswith("define"):
                is_inside = _PARAMETERS in row[0] and self.lines[position + 1] == "entry:"
                self.entry = position + 2 if is_inside and not self.reads else self.entry
            if len(set(row)) > 1:
                line = self._line(row) if is_inside else None
                if line is None:
                    return False
                self.lines[position] = line
                if position in loops and not _STEP.match(line):
                    names = taken.setdefault(loops[position], set())
                    names.update(_READ.findall(line))
                    # Offsets of lanes that are constants are parts of the instructions that load the lanes.
                    if len(names) > MAX_LOOP_NUMBERS or _OFFSETS.fullmatch(row[0]):
                        return False
        return bool(self.columns)

    def text(self) -> str:
        header = f"@{SYMBOL} = external global [{len(self.columns)} x i64]"
        return "\n".join([header, *self.lines[: self.entry], *self.reads.values(), *self.lines[self.entry :]])

    def _line(self, row: tuple[str, ...]) -> str | None:
        """The line for all texts; None where it must differ."""
        lanes = [found for found in map(_OFFSETS.fullmatch, row) if found is not None]
        if len(lanes) == len(row) and len({found[1] for found in lanes}) == 1:
            offsets = tuple(zip(*(_NUMBER.findall(found[2]) for found in lanes), strict=True))
            return f"{lanes[0][1]} {self._vector(offsets)}"
        parts = [_NUMBER.split(line) for line in row]
        if any(part != parts[0] for part in parts):
            return None
        line = parts[0][0]
        for column, after in zip(zip(*map(_NUMBER.findall, row), strict=True), parts[0][1:], strict=True):
            value: str | None = column[0]
            if len(set(column)) > 1:
                value = str(max(_values(column))) if _ARRAY.fullmatch(line) else self._name(line, column)
            if value is None:
                return None
            line += value + after
        return _SPLAT.sub(r"\1", line)

    def _name(self, line: str, column: tuple[str, ...]) -> str | None:
        """The name of the number after this part of a line; None where no name may stand there."""
        place = _PLACE.fullmatch(line)
        if place is None:
            return None
        number, address = self._position((column,))
        kind, lanes = next(filter(None, map(place.group, _KINDS))), place["lanes"]
        name = self._read(f"%number{number}", f"load i64, ptr {address}, align 8")
        if kind != "i64":
            name = self._read(f"{name}.{kind}", f"trunc i64 {name} to {kind}")
        if lanes:
            vector = f"<{lanes} x {kind}>"
            first = self._read(f"{name}.first{lanes}", f"insertelement {vector} poison, {kind} {name}, i64 0")
            zeros = f"<{lanes} x i32> zeroinitializer"
            name = self._read(f"{name}.all{lanes}", f"shufflevector {vector} {first}, {vector} poison, {zeros}")
        return name

    def _vector(self, columns: tuple[tuple[str, ...], ...]) -> str:
        """The name of the numbers of the lanes of a vector."""
        first, address = self._position(columns)
        return self._read(f"%number{first}.lanes", f"load <{len(columns)} x i64>, ptr {address}, align 8")

    def _position(self, columns: tuple[tuple[str, ...], ...]) -> tuple[int, str]:
        """The position of the first of several numbers that are next to one another in memory, and its address."""
        if columns not in self.positions:
            self.positions[columns] = len(self.columns)
            self.columns += columns
        first = self.positions[columns]
        return first, f"getelementptr (i64, ptr @{SYMBOL}, i64 {first})"

    def _read(self, name: str, text: str) -> str:
        self.reads.setdefault(name, f"  {name} = {text}")
        return name


def _values(column: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(map(int, column))


def _innermost_loops(lines: Sequence[str]) -> dict[int, int]:
    """The positions of the lines of loops without loops inside, each with that of its loop's first line."""
    found: dict[int, int] = {}
    begins: list[int] = []  # of the open loops; 0 for those that have one inside
    for position, line in enumerate(lines):
        loop = _LOOP.match(line)
        if loop is None:
            continue
        if loop[1]:
            begins = [0] * len(begins)
            begins.append(position)
        else:
            begin = begins.pop()
            found.update(dict.fromkeys(range(begin, position + 1), begin) if begin else {})
    return found

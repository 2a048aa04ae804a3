"""Vectors that a kernel stores in an array on its stack and loads again. In: the lines of a function. Out: the lines in
which a load takes the stored vector itself, where both are in one basic block, without the arrays that nothing loads
any more. LLVM's code generator forwards such vectors too, but leaves the stores."""

from __future__ import annotations

import re

from tilewright.backends.cpu.rendering.shuffles import shuffle_mask
from tilewright.base.records import NamedTuple

_DEFINED = re.compile(r"  (%[\w.]+) = ")
_ARRAY = re.compile(r"  (%[\w.]+) = alloca \[")
_POINTER = re.compile(r"  (%[\w.]+) = getelementptr (\w+), ptr (%[\w.]+), i64 (\d+)$")
_STORE = re.compile(r"  store (<[^>]+>|\w+) (.+), ptr (%[\w.]+)(?:, align \d+)?$")
_LOAD = re.compile(r"  (%[\w.]+) = load (<[^>]+>|\w+), ptr (%[\w.]+)(?:, align \d+)?$")
_TYPE = re.compile(r"(?:<(\d+) x )?(half|float|double|i8|i16|i32|i64)>?$")
_NAME = re.compile(r"%[\w.]+")
_BYTES = {"half": 2, "float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8}


class _Span(NamedTuple):
    """Bytes of an array."""

    array: str
    start: int
    stop: int

    def overlaps(self, other: _Span) -> bool:
        return self.array == other.array and self.start < other.stop and other.start < self.stop


def forward_stores(lines: list[str]) -> list[str]:
    """`store <4 x float> %a, ptr %register0` and `%b = load <4 x float>, ptr %register0`: %a is used for %b. A load of
    some of the stored lanes becomes a shuffle that takes them."""
    addresses = _addresses(lines)
    if not addresses:
        return lines
    held: dict[_Span, tuple[str, str]] = {}  # type and value
    values: dict[str, str] = {}  # of loads
    parts: dict[str, str] = {}  # of loads of some lanes, the instruction that takes them
    loaded: set[str] = set()  # arrays
    for line in lines:
        if not line.startswith(" "):
            held.clear()
        elif (store := _STORE.match(line)) and store[3] in addresses:
            span = _span(addresses[store[3]], store[1])
            held = {other: value for other, value in held.items() if not span.overlaps(other)}
            held[span] = store[1], values.get(store[2], store[2])
        elif (load := _LOAD.match(line)) and load[3] in addresses:
            span = _span(addresses[load[3]], load[2])
            kind, value = held.get(span, ("", ""))
            if kind == load[2]:
                values[load[1]] = value
            elif part := next((part for wide in held.items() if (part := _part(*wide, span, load[2]))), ""):
                parts[load[1]] = part
            else:
                loaded.add(addresses[load[3]][0])
    unused = {pointer for pointer, (array, _) in addresses.items() if array not in loaded}
    kept = [line for line in lines if not _belongs(line, unused, values)]
    if parts:
        names = [found[1] if (found := _DEFINED.match(line)) else "" for line in kept]
        kept = [f"  {name} = {parts[name]}" if name in parts else line for name, line in zip(names, kept)]
    return [_NAME.sub(lambda name: values.get(name[0], name[0]), line) for line in kept] if values else kept


def _addresses(lines: list[str]) -> dict[str, tuple[str, int]]:
    """The array and the offset of each pointer to an array that is loaded and stored at constant offsets alone."""
    arrays = {array[1] for line in lines if " = alloca [" in line and (array := _ARRAY.match(line))}
    found = {array: (array, 0) for array in arrays}
    for line in lines:
        if not arrays:
            return {}
        names = _NAME.findall(line)
        if found.keys().isdisjoint(names) or _ARRAY.match(line):
            continue
        if (pointer := _POINTER.match(line)) and pointer[2] in _BYTES:
            array_name, offset = found[pointer[3]]
            found[pointer[1]] = array_name, offset + int(pointer[4]) * _BYTES[pointer[2]]
            continue
        access = _STORE.match(line) or _LOAD.match(line)
        is_simple = access is not None and _TYPE.match(access[1] if access.re is _STORE else access[2]) is not None
        arrays.difference_update([found[name][0] for name in (names[:-1] if is_simple else names) if name in found])
    return {pointer: place for pointer, place in found.items() if place[0] in arrays}


def _span(address: tuple[str, int], kind: str) -> _Span:
    found = _TYPE.match(kind)
    assert found is not None
    array, start = address
    return _Span(array, start, start + int(found[1] or 1) * _BYTES[found[2]])


def _part(wide: _Span, stored: tuple[str, str], span: _Span, kind: str) -> str:
    """The instruction that takes the lanes of a span from a stored vector; empty where they are not some of its
    lanes."""
    whole, own = _TYPE.match(stored[0]), _TYPE.match(kind)
    if not whole or not own or whole[2] != own[2] or not (whole[1] and own[1]) or span.array != wide.array:
        return ""
    first, rest = divmod(span.start - wide.start, _BYTES[own[2]])
    if rest or span.start < wide.start or span.stop > wide.stop:
        return ""
    lanes = range(first, first + int(own[1]))
    return f"shufflevector {stored[0]} {stored[1]}, {stored[0]} poison, {shuffle_mask(lanes)}"


def _belongs(line: str, unused: set[str], values: dict[str, str]) -> bool:
    """Whether a line defines or writes an array that is not used, or loads a value that is known."""
    if store := _STORE.match(line):
        return store[3] in unused
    defined = _DEFINED.match(line)
    return defined is not None and (defined[1] in unused or defined[1] in values)


__all__ = ["forward_stores"]

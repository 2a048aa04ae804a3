"""Several kernels in one module. In: the LLVM IR texts of kernels. Out: one text for all of them, and of its object the
object of each.

LLVM works out facts of the processor for each module anew (the limits of register pressure alone take 2 ms on ARM) and
builds its passes: a tenth of the time of kernels of usual sizes. The functions of a kernel are in a section of their
own, by which its part of the object is found."""

import re
from collections.abc import Iterator, Sequence

from tilewright.backends.cpu.code.elf import (
    HEADER,
    RELOCATION,
    RELOCATIONS,
    SECTION,
    SYMBOL,
    SYMBOL_TABLE,
    ObjectFile,
    Section,
)

_NAME = re.compile(r"(?:define [^@]*|declare [^@]*)?([@!][\w.]+)")
_ENDING = re.compile(r"\.k\d+$")
_TEXTS = 3  # the section type SHT_STRTAB


def join_texts(texts: Sequence[str], own: frozenset[str]) -> str:
    """One text with the functions of all. The names in `own`, and those of definitions that differ or refer to such
    names, are of one kernel: in the module they end with its number. Other definitions and declarations are shared."""
    joined: dict[str, str] = {}
    for number, text in enumerate(texts):
        found = {_name(entity): entity for entity in _entities(text)}
        renamed = {name for name, entity in found.items() if name in own or joined.get(name, entity) != entity}
        pattern = _pattern(renamed)
        renamed |= {name for name, entity in found.items() if entity.startswith("define") and pattern.search(entity)}
        pattern = _pattern(renamed)
        for name, entity in found.items():
            ending = _ending(number) if name in renamed else ""
            changed = pattern.sub(rf"\g<0>{_ending(number)}", entity)
            if ending and entity.startswith("define"):
                changed = changed.replace(" {\n", f' section "{_section(number)}" {{\n', 1)
            joined[name + ending] = changed
    return "\n".join(joined.values()) + "\n"


def _entities(text: str) -> Iterator[str]:
    """The functions, declarations and metadata of a text."""
    for part in text.split("\n}\n"):
        lines, is_function, body = f"\n{part}".partition("\ndefine ")
        yield from filter(None, lines.split("\n"))
        if is_function:
            yield f"define {body}\n}}"


def _name(entity: str) -> str:
    found = _NAME.match(entity)
    return entity if found is None else found[1]


def _pattern(names: set[str]) -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(map(re.escape, sorted(names)))})(?![\w.])")


def _ending(number: int) -> str:
    return f".k{number}"


def _section(number: int) -> str:
    return f".text{_ending(number)}"


def split_object(data: bytes, count: int) -> list[bytes]:
    """The ELF objects of the `count` kernels of a module, each with the names of its own text."""
    whole = ObjectFile(data)
    return [_part(whole, number) for number in range(count)]


def _part(whole: ObjectFile, number: int) -> bytes:
    """The object of one kernel: its own section, and those that it refers to."""
    relocations: dict[int, list[list[int]]] = {}  # of each section: offset, kind, symbol, addend
    for index, *relocation in whole.relocations():
        relocations.setdefault(index, []).append(relocation)
    own = [index for index in whole.loaded if whole.name_of(whole.sections[index]) == _section(number)]
    kept = list(own)
    for index in kept:  # which grows meanwhile
        found = [whole.symbols[symbol].section for _, _, symbol, _ in relocations.get(index, ())]
        kept += [section for section in dict.fromkeys(found) if section in whole.loaded and section not in kept]
    kept.sort()
    used = {symbol for index in kept for _, _, symbol, _ in relocations.get(index, ())}
    named = {index for index, symbol in enumerate(whole.symbols) if symbol.name and symbol.section in own}
    written = _Written(kept)
    for symbol in sorted(used | named):
        name, place, value = whole.symbols[symbol]
        written.add_symbol(symbol, _ENDING.sub("", name), place, value)
    for index in kept:
        section = whole.sections[index]
        contents = whole.data[section.offset : section.offset + section.size]
        written.add_section(section, whole.name_of(section), contents, relocations.get(index, ()))
    return written.object(whole.data[:64])


class _Written:
    """An ELF object under construction: the sections that are loaded, then their relocations, symbols and names."""

    def __init__(self, kept: Sequence[int]) -> None:
        self.positions = {index: 1 + position for position, index in enumerate(kept)}  # of sections, in the new object
        self.texts = bytearray(b"\0")
        self.symbols = bytearray(SYMBOL.size)
        self.numbers: dict[int, int] = {}  # of symbols, in the new object
        self.contents: list[bytes] = []
        self.sections: list[Section] = []
        self.relocations: list[tuple[int, bytes]] = []

    def _text(self, text: str) -> int:
        """The offset of a name among the names."""
        start = len(self.texts)
        self.texts += text.encode() + b"\0"
        return start if text else 0

    def add_symbol(self, index: int, name: str, section: int, value: int) -> None:
        self.numbers[index] = len(self.symbols) // SYMBOL.size
        is_global = 0x10
        self.symbols += SYMBOL.pack(self._text(name), is_global, 0, self.positions.get(section, 0), value, 0)

    def add_section(self, section: Section, name: str, contents: bytes, relocations: Sequence[Sequence[int]]) -> None:
        self.sections.append(section._replace(name=self._text(name)))
        self.contents.append(contents)
        words = [
            RELOCATION.pack(offset, self.numbers[symbol] << 32 | kind, addend)
            for offset, kind, symbol, addend in relocations
        ]
        if words:
            self.relocations.append((len(self.sections), b"".join(words)))

    def object(self, header: bytes) -> bytes:
        names = 1 + len(self.sections) + len(self.relocations) + 1  # the position of the names, after the symbols
        for target, words in self.relocations:
            facts = (0, RELOCATIONS, 0, 0, 0, 0, names - 1, target, 8, RELOCATION.size)
            self._append(Section(*facts), words)
        self._append(Section(0, SYMBOL_TABLE, 0, 0, 0, 0, names, 1, 8, SYMBOL.size), bytes(self.symbols))
        self._append(Section(0, _TEXTS, 0, 0, 0, 0, 0, 0, 1, 0), bytes(self.texts))
        made = bytearray(HEADER.size)
        table = [Section(*[0] * 10)]
        for section, contents in zip(self.sections, self.contents, strict=True):
            made += bytes(-len(made) % max(section.alignment, 1))
            table.append(section._replace(offset=len(made), size=len(contents)))
            made += contents
        made += bytes(-len(made) % 8)
        fields = list(HEADER.unpack(header))
        fields[6], fields[12], fields[13] = len(made), len(table), names
        made[: HEADER.size] = HEADER.pack(*fields)
        for section in table:
            made += SECTION.pack(*section)
        return bytes(made)

    def _append(self, section: Section, contents: bytes) -> None:
        self.sections.append(section)
        self.contents.append(contents)

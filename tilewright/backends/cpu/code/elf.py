"""Loading ELF objects. In: the bytes of a relocatable object, as LLVM writes it, and the names to bind. Out:
`LoadedCode`: the code mapped and ready to call. Stands below `llvm.load_object`; it does without llvmlite, whose import
takes a tenth of a second, and it checks every offset, so that a damaged file raises instead of crashing."""

import ctypes
import functools
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping

from tilewright.backends.cpu.host import system
from tilewright.base.records import NamedTuple


class CompileFailure(Exception):
    """LLVM refused the text, or an object cannot be loaded; the message quotes the offending line or field."""


class LoadedCode:
    """Machine code in memory. The addresses are valid while this object lives; the last reference unmaps the code.

    An object that stores an address also keeps the `LoadedCode`. At interpreter exit nothing is unmapped, because
    daemon threads may still be running kernels then."""

    __slots__ = ("_release", "address", "read", "symbols")

    def __init__(self, symbols: Mapping[str, int], first: str, release: Callable[[], object]) -> None:
        self.symbols = dict(symbols)
        self.address = self.symbols[first]
        self.read: object = None  # memory that the code reads, kept as long as it is
        self._release = release

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self._release()


class Section(NamedTuple):
    """A section header."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


_MACHINES = {"x86_64": 62, "aarch64": 183}
HEADER, SECTION = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
SYMBOL, RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
RELOCATIONS, _NO_BITS, SYMBOL_TABLE = 4, 8, 2  # section types SHT_RELA, SHT_NOBITS, SHT_SYMTAB
_WRITABLE, _LOADED = 1, 2  # section flags SHF_WRITE, SHF_ALLOC
_STUB_BYTES = 16
# A stub jumps to the address in its last 8 bytes, which also serve as the symbol's entry in the global offset table.
_STUBS = {"x86_64": bytes.fromhex("ff25020000006690"), "aarch64": bytes.fromhex("5000005800021fd6")}
# Relocation number -> (kind, detail, whether it refers to the symbol's entry in the global offset table). The kinds:
# 'absolute' and 'relative' (detail: bytes), 'page' (adrp), 'low' (12 bits; detail: scale), 'branch' (26 bits).
_KINDS: dict[str, dict[int, tuple[str, int, bool]]] = {
    "x86_64": {
        1: ("absolute", 8, False),
        24: ("relative", 8, False),
        2: ("relative", 4, False),
        4: ("relative", 4, False),
        **dict.fromkeys((9, 41, 42), ("relative", 4, True)),
    },
    "aarch64": {
        257: ("absolute", 8, False),
        260: ("relative", 8, False),
        261: ("relative", 4, False),
        275: ("page", 0, False),
        311: ("page", 0, True),
        **{
            number: ("low", shift, False)
            for number, shift in ((277, 0), (278, 0), (284, 1), (285, 2), (286, 3), (299, 4))
        },
        312: ("low", 3, True),
        282: ("branch", 0, False),
        283: ("branch", 0, False),
    },
}


class ObjectFile:
    """A relocatable ELF file: checked when it is made, laid out and relocated by `load`."""

    def __init__(self, data: bytes, instruction_set: str | None = None) -> None:
        self.data = data
        self.instruction_set = instruction_set or system.machine()
        header = HEADER.unpack_from(data)
        if header[0][4:6] != b"\x02\x01" or header[1] != 1 or header[2] != _MACHINES.get(self.instruction_set):
            raise CompileFailure(f"the object is not a 64-bit relocatable file for {self.instruction_set}")
        offset, count = header[6], header[12]
        self.sections = [Section(*SECTION.unpack_from(data, offset + SECTION.size * i)) for i in range(count)]
        for section in self.sections:
            if section.type != _NO_BITS and section.offset + section.size > len(data):
                raise CompileFailure("the object file is damaged: a section ends after the end of the file")
        self.names = self.sections[header[13]]
        self.loaded = [index for index, section in enumerate(self.sections) if self._is_loaded(section)]
        self.symbols = list(self._read_symbols())
        self.defined = {symbol.name: symbol for symbol in self.symbols if symbol.name and symbol.section in self.loaded}

    def _text(self, table: Section, offset: int) -> str:
        start = table.offset + offset
        return self.data[start : self.data.index(b"\0", start)].decode()

    def name_of(self, section: Section) -> str:
        return self._text(self.names, section.name)

    def _is_loaded(self, section: Section) -> bool:
        name = self.name_of(section)
        if not section.flags & _LOADED or not section.size or name.startswith(".eh_frame"):
            return False
        if section.type == _NO_BITS or (section.flags & _WRITABLE and not name.startswith(".data.rel.ro")):
            raise CompileFailure(f"section {name}: kernels may not have writable globals")
        return True

    def _read_symbols(self) -> Iterator[_Symbol]:
        for table in (section for section in self.sections if section.type == SYMBOL_TABLE):
            for offset in range(table.offset, table.offset + table.size, SYMBOL.size):
                name, _, _, section, value, _ = SYMBOL.unpack_from(self.data, offset)
                if section in self.loaded and value > self.sections[section].size:
                    raise CompileFailure("the object file is damaged: a symbol lies outside its section")
                yield _Symbol(self._text(self.sections[table.link], name), section, value)

    def _lay_out(self) -> tuple[dict[int, int], int]:
        """Offsets of the loaded sections in the image, and the size of all of them."""
        offsets: dict[int, int] = {}
        size = 0
        for index in self.loaded:
            alignment = max(1, self.sections[index].alignment)
            if alignment > mmap.PAGESIZE:
                raise CompileFailure(f"a section asks for an alignment of {alignment} bytes")
            offsets[index] = size = -(-size // alignment) * alignment
            size += self.sections[index].size
        if sum(self.sections[index].size for index in self.loaded) > len(self.data):
            raise CompileFailure("the object file is damaged: sections overlap")
        return offsets, -(-size // _STUB_BYTES) * _STUB_BYTES

    def relocations(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(section, offset in it, kind, index of the symbol, addend) of every relocation in what is loaded."""
        for table in (s for s in self.sections if s.type == RELOCATIONS and s.info in self.loaded):
            for position in range(table.offset, table.offset + table.size, RELOCATION.size):
                offset, info, addend = RELOCATION.unpack_from(self.data, position)
                yield table.info, offset, info & 0xFFFFFFFF, info >> 32, addend

    def build(self, base: int, resolve: Callable[[str], int]) -> bytes:
        """The relocated image for the address `base`: the sections, then a stub for each outside symbol."""
        offsets, size = self._lay_out()
        image = bytearray(size)
        for index, offset in offsets.items():
            section = self.sections[index]
            image[offset : offset + section.size] = self.data[section.offset : section.offset + section.size]
        stubs: dict[_Symbol, int] = {}
        for index, offset, number, symbol_index, addend in self.relocations():
            symbol = self.symbols[symbol_index]
            kind, detail, through_slot = _KINDS[self.instruction_set].get(number, ("", 0, False))
            if not kind:
                raise CompileFailure(f"relocation {number} of {self.instruction_set} is not supported")
            width = detail if kind in ("absolute", "relative") else 4
            if offset + width > self.sections[index].size:
                raise CompileFailure("the object file is damaged: a relocation lies outside its section")
            inside = symbol.section in offsets
            where = offsets[symbol.section] + symbol.value if inside else 0
            if not inside or through_slot:
                stub = stubs.get(symbol)
                if stub is None:
                    stub = stubs[symbol] = len(image)
                    target = base + where if inside else resolve(symbol.name)
                    image += _STUBS[self.instruction_set] + struct.pack("<Q", target)
                where = stub + 8 if through_slot else stub
            position = offsets[index] + offset
            _relocate(image, kind, detail, position, base + position, base + where + addend)
        return bytes(image)

    def load(self, symbols: tuple[str, ...], imports: Mapping[str, int]) -> LoadedCode:
        """Map the image: written first, then made executable and read-only."""
        offsets, bytes_of_sections = self._lay_out()
        outside = {symbol.name for symbol in self.symbols if symbol.section not in offsets}
        size = bytes_of_sections + _STUB_BYTES * (len(outside) + len(self.symbols))
        libc = _libc()
        base = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            raise MemoryError(f"no memory for {size} bytes of code")
        release = functools.partial(libc.munmap, base, size)
        try:
            image = self.build(base, functools.partial(_resolve, imports))
            ctypes.memmove(base, image, len(image))
            if libc.mprotect(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
                number = ctypes.get_errno()
                raise CompileFailure(f"this system does not allow executable memory: {os.strerror(number)}")
        except BaseException:
            release()
            raise
        _clear_instruction_cache(base, size)
        table = {name: base + offsets[symbol.section] + symbol.value for name, symbol in self.defined.items()}
        return LoadedCode(table, symbols[0], release)


def _relocate(image: bytearray, kind: str, detail: int, position: int, address: int, target: int) -> None:
    """Patches the bytes at `position` of the image, whose address is `address`, so that they refer to `target`."""
    if kind in ("absolute", "relative"):
        value = target - address if kind == "relative" else target
        if detail == 4 and not -(1 << 31) <= value < 1 << 31:
            raise CompileFailure("a relative reference is out of range")
        image[position : position + detail] = (value & (1 << 8 * detail) - 1).to_bytes(detail, "little")
        return
    (word,) = struct.unpack_from("<I", image, position)
    if kind == "page":
        pages = (target >> 12) - (address >> 12)
        if not -(1 << 20) <= pages < 1 << 20:
            raise CompileFailure("a page reference is out of range")
        word = word & ~0x60FFFFE0 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == "low":
        word = word & ~(0xFFF << 10) | ((target & 0xFFF) >> detail) << 10
    else:
        distance = target - address
        if not -(1 << 27) <= distance < 1 << 27:
            raise CompileFailure(f"a branch over {distance} bytes is out of range: the instruction reaches 128 MiB")
        word = word & ~0x3FFFFFF | distance >> 2 & 0x3FFFFFF
    struct.pack_into("<I", image, position, word)


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def _resolve(imports: Mapping[str, int], name: str) -> int:
    """The address of a symbol outside the object: given by the caller, or from the process's libc and libm."""
    if name in imports:
        return imports[name]
    for library in (_libc(), _libm()):
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise CompileFailure(f"the kernel refers to `{name}`, which neither libc nor libm has")


@functools.cache
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL("libm.so.6" if sys.platform == "linux" else None)


def _clear_instruction_cache(base: int, size: int) -> None:
    """The instruction cache of ARM is not coherent. Linux cleans a page that becomes executable; libgcc does it
    again."""
    if system.machine() == "aarch64":
        library = _libgcc()
        if library is not None:
            library.__clear_cache(ctypes.c_void_p(base), ctypes.c_void_p(base + size))


@functools.cache
def _libgcc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libgcc_s.so.1")
    except OSError:
        return None

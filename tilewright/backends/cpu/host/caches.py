"""The memory hierarchy of this machine. In: the facts that the system reports (sysfs on Linux, sysctl on macOS,
GetLogicalProcessorInformation on Windows) and the option CPU_FACTS. Out: the fields of `Target` that describe caches,
pages, the TLB and prefetching. Other facts have the defaults of `Target`; no system reports the number of entries of a
TLB, or how well its processor prefetches."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

from tilewright.backends.cpu.host.system import ROOT, is_number, machine, read_text, usable_cores
from tilewright.base.errors import ConfigError
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target

# A hypervisor shows a guest the last-level cache of the whole socket, and the cores that a process may not use have
# their share of it: this is the maximum that is counted for each core of the process.
MAX_SHARED_BYTES_PER_CORE = 8 << 20
NAMES = (
    *("line_bytes", "page_bytes", "l1_bytes", "l1_ways", "core_cache_bytes", "cache_bytes", "tlb_entries"),
    *("prefetch_bytes", "prefetched_streams", "prefetch_streams", "read_streams", "memory_streams"),
)
_POWERS = ("line_bytes", "page_bytes")
_MAY_BE_ZERO = ("prefetch_bytes",)
# By instruction set, where prefetching differs from Target's. Measured on a Neoverse N1: prefetch instructions make one
# stream a few percent faster, and two by half slower (bench/prefetch.py); 16 streams take four times as long for each
# byte as 8; sums of rows take 20 GB/s in one or two streams, and 15 in four.
PREFETCHING = {"aarch64": {"prefetched_streams": 1, "prefetch_streams": 8, "memory_streams": 2}}
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# For a machine that reports no caches.
_DEFAULTS: dict[str, int] = {name: getattr(Target("defaults"), name) for name in NAMES}
_DEFAULTS["cache_bytes"] = 16 << 20


class Cache(NamedTuple):
    """One cache of data that the first core uses; 0 where the system does not say. `cores` share it."""

    level: int
    nbytes: int
    line_bytes: int = 0
    ways: int = 0
    cores: int = 1


@functools.cache
def memory_facts(stated: str = "") -> dict[str, Any]:
    """The facts of this machine by the names of `Target`'s fields; those that `stated` gives are taken from there."""
    caches = {"darwin": _darwin_caches, "win32": _windows_caches}.get(sys.platform, linux_caches)()
    return facts_of(caches, mmap.PAGESIZE, usable_cores()) | PREFETCHING.get(machine(), {}) | parse_facts(stated)


def facts_of(caches: list[Cache], page_bytes: int, cores: int) -> dict[str, int]:
    """`cores` are those that the process may use, however many threads it is told to start: the length of a block of a
    sum depends on these facts."""
    found = {"page_bytes": page_bytes}
    known = {cache.level: cache for cache in caches if cache.nbytes > 0}
    if 1 in known:
        found |= {"l1_bytes": known[1].nbytes, "l1_ways": known[1].ways, "line_bytes": known[1].line_bytes}
    if 2 in known:
        found["core_cache_bytes"] = known[2].nbytes // max(1, known[2].cores)
    if known and max(known) > 1:
        last = known[max(known)]
        found["cache_bytes"] = min(last.nbytes, MAX_SHARED_BYTES_PER_CORE * max(1, min(last.cores, cores)))
    return {name: found[name] if is_possible(name, found.get(name, 0)) else _DEFAULTS[name] for name in NAMES}


def is_possible(name: str, number: int) -> bool:
    """A positive number; a power of two for sizes that divide addresses."""
    return number > 0 and not (name in _POWERS and number & (number - 1))


def number_in(text: str) -> int:
    """`36608K` as a number of bytes; 0 where the text is not a number."""
    text = text.strip()
    scale = _SUFFIXES.get(text[-1:].upper(), 1)
    digits = text[:-1] if scale > 1 else text
    return int(digits) * scale if is_number(digits) else 0


def parse_facts(text: str) -> dict[str, int]:
    """CPU_FACTS: `core_cache_bytes=2M page_bytes=16K`."""
    found = {}
    for part in text.split():
        name, _, value = part.partition("=")
        reason = None
        if name not in NAMES:
            reason = f"{name!r} is not a fact of the machine"
        elif not is_possible(name, number_in(value)) and not (name in _MAY_BE_ZERO and value == "0"):
            reason = f"{part!r} gives {name} no {'power of two' if name in _POWERS else 'positive number'}"
        if reason is not None:
            remedy = f"give name=number, with K, M or G for a larger unit, of: {', '.join(NAMES)}"
            raise ConfigError("option CPU_FACTS", reason, remedy)
        found[name] = number_in(value)
    return found


# ---------------------------------------------------------------- Linux


def linux_caches(root: str = ROOT) -> list[Cache]:
    cpu = os.path.join(root, "sys/devices/system/cpu/cpu0")
    threads = _count_processors(read_text(cpu, "topology/thread_siblings_list")) or 1

    caches = []
    held = os.path.join(cpu, "cache")
    folders = os.listdir(held) if os.path.isdir(held) else []
    for folder in (os.path.join(held, name) for name in sorted(folders) if name.startswith("index")):
        if read_text(folder, "type").strip() != "Instruction":
            names = ("level", "size", "coherency_line_size", "ways_of_associativity")
            level, size, line, ways = (number_in(read_text(folder, name)) for name in names)
            sharing = _count_processors(read_text(folder, "shared_cpu_list")) or threads
            caches.append(Cache(level, size, line, ways, cores=-(-sharing // threads)))
    return caches


def _count_processors(text: str) -> int:
    """How many numbers a list such as `0-3,8` has."""
    count = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if is_number(first):
            count += int(last) - int(first) + 1 if is_number(last) else 1
    return count


# ---------------------------------------------------------------- macOS


def _darwin_caches() -> list[Cache]:
    library = ctypes.CDLL(None)

    def ask(name: str) -> int:
        value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
        failed = library.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
        return 0 if failed else value.value

    return darwin_caches(ask)


def darwin_caches(ask: Callable[[str], int]) -> list[Cache]:
    """`ask` gives 0 for a name that the machine does not have. Level 0 of performance are the fast cores."""
    line = ask("hw.cachelinesize")
    cores = ask("hw.perflevel0.cpusperl2") or 1
    last = ask("hw.l3cachesize")
    first, second = (ask(f"hw.perflevel0.{name}") or ask(f"hw.{name}") for name in ("l1dcachesize", "l2cachesize"))
    physical = ask("hw.physicalcpu") or 1
    return [Cache(1, first, line), Cache(2, second, line, cores=cores), Cache(3, last, line, cores=physical)]


# ---------------------------------------------------------------- Windows

# SYSTEM_LOGICAL_PROCESSOR_INFORMATION of a cache, 64-bit: mask, relationship, level, ways, line, bytes, kind.
_RECORD = struct.Struct("<QiiBBHIi4x")
_RELATION_CACHE, _INSTRUCTIONS = 2, 1


def _windows_caches() -> list[Cache]:
    ask = ctypes.windll.kernel32.GetLogicalProcessorInformation  # type: ignore[attr-defined]
    size = ctypes.c_uint32(0)
    ask(None, ctypes.byref(size))
    records = ctypes.create_string_buffer(size.value)
    return windows_caches(records.raw) if ask(records, ctypes.byref(size)) else []


def windows_caches(records: bytes) -> list[Cache]:
    """The caches of the first processor."""
    found = []
    for mask, relation, _, level, ways, line, nbytes, kind in _RECORD.iter_unpack(records):
        if relation == _RELATION_CACHE and kind != _INSTRUCTIONS and mask & 1:
            # 255 ways are all of them: no limit on lines that lie a power of two apart.
            found.append(Cache(level, nbytes, line, ways, max(1, mask.bit_count() if level > 1 else 1)))
    return found

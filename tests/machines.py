"""Targets of named processors, with the same facts on every machine that the tests run on."""

from __future__ import annotations

from typing import Any

from tilewright.backends.cpu.device import cpu_target, processor_facts
from tilewright.backends.cpu.host.caches import NAMES, PREFETCHING
from tilewright.backends.cpu.host.processors import Processor
from tilewright.base.records import replace
from tilewright.base.target import Target

# By LLVM's name of the processor: the instruction set and flags, and what memory it has.
_FLAGS = {
    "neoverse-n1": ("aarch64", "asimd asimddp"),
    "haswell": ("x86_64", "avx2 fma f16c"),
    "skylake-avx512": ("x86_64", "avx2 fma f16c avx512f avx512bw avx512vl"),
}
_MEMORY = {
    "neoverse-n1": {"l1_bytes": 64 << 10, "l1_ways": 4, "core_cache_bytes": 1 << 20, "tlb_entries": 48},
    "haswell": {"l1_bytes": 32 << 10, "l1_ways": 8, "core_cache_bytes": 256 << 10, "tlb_entries": 64},
    "skylake-avx512": {"l1_bytes": 32 << 10, "l1_ways": 8, "core_cache_bytes": 1 << 20, "tlb_entries": 64},
}


def target_of(name: str, **facts: Any) -> Target:
    """The target of a processor by its name, with two cores and 16 MiB of cache. Its code may run on this machine,
    where all its instructions are LLVM's own: flags for denormal numbers are not, and are left alone."""
    instruction_set, flags = _FLAGS[name]
    found = {each: getattr(Target(""), each) for each in NAMES}
    found |= {"cores": 2, "cache_bytes": 16 << 20, "flush_denormals": 0, **_MEMORY[name]}
    found |= PREFETCHING.get(instruction_set, {})
    found |= processor_facts(Processor(instruction_set, frozenset(flags.split())))
    return replace(cpu_target(), **{**found, **facts})

"""The processor that CPU code is compiled for. In: its name in CPU_ARCH, or none: that of this machine. Out: a
`Processor`, whose flags decide the vectors, conversions and dot products of the target. Stands
between `host`, which reads the flags of this machine, and `device`, `llvm` and `c_compiler`."""

from __future__ import annotations

import functools

from tilewright.backends.cpu.host import system
from tilewright.base.dtype import dtypes
from tilewright.base.errors import ConfigError
from tilewright.base.records import NamedTuple
from tilewright.base.target import DotProduct

# Part of every 64-bit x86; LLVM fuses it with the addition that follows where the processor has that instruction.
_PAIRS_OF_WORDS = DotProduct("pmaddwd", dtypes.int16, dtypes.int16, dtypes.int32, 2, count=2)
_UNSIGNED_BY_SIGNED = DotProduct("vpdpbusd", dtypes.uint8, dtypes.int8, dtypes.int32, 4)
# The same without VNNI. pmaddubsw saturates sums of two products at 16 bits, which those of 7 bits do not reach; other
# bytes are widened to words in registers.
_SMALL_BY_SIGNED = DotProduct("pmaddubsw", dtypes.uint8, dtypes.int8, dtypes.int32, 4, count=3, max_left=127)
_BYTES_AS_WORDS = DotProduct("bytes as words", dtypes.uint8, dtypes.int8, dtypes.int32, 4, count=9)
_ARM_DOT_PRODUCTS = {
    "asimddp": (
        DotProduct("sdot", dtypes.int8, dtypes.int8, dtypes.int32, 4),
        DotProduct("udot", dtypes.uint8, dtypes.uint8, dtypes.int32, 4),
    ),
    "i8mm": (DotProduct("usdot", dtypes.uint8, dtypes.int8, dtypes.int32, 4),),
}
# Flags that the target record uses and LLVM does not detect, with LLVM's names of them.
_ARM_FEATURES = {"asimddp": "dotprod", "i8mm": "i8mm"}


class Processor(NamedTuple):
    """`flags` are spelled as the kernel of the operating system spells them, `name` as LLVM does."""

    instruction_set: str
    flags: frozenset[str]
    name: str = ""  # empty: whichever LLVM finds here

    def vector(self) -> tuple[int, int]:
        """(bytes of a vector register, number of vector registers)."""
        if self.instruction_set == "aarch64":
            return 16, 32
        if "avx512f" in self.flags:
            return 64, 32
        return (32 if "avx2" in self.flags else 16), 16

    def masked_itemsizes(self) -> tuple[int, ...]:
        """Bytes of the elements of which it loads and stores vectors under a mask. LLVM uses SVE for vectors whose size
        is not known alone."""
        if self.instruction_set != "x86_64" or "avx2" not in self.flags:
            return ()
        return (1, 2, 4, 8) if "avx512bw" in self.flags else (4, 8)

    def has_half_casts(self) -> bool:
        """Whether half <-> float conversion is one instruction. It is part of the base instruction set on 64-bit
        ARM."""
        return self.instruction_set == "aarch64" or "f16c" in self.flags

    def has_saturating_casts(self) -> bool:
        """Whether one instruction converts a vector of floats to integers as `graph/ops.py` defines it."""
        return self.instruction_set == "aarch64"

    def has_nan_maximum(self) -> bool:
        """Whether one instruction gives the larger of two floats, and NaN where one of them is NaN."""
        return self.instruction_set == "aarch64"

    def has_lane_operands(self) -> bool:
        """Whether an instruction multiplies a vector by one lane of another."""
        return self.instruction_set == "aarch64"

    def has_shift_insert(self) -> bool:
        """Whether one instruction shifts a vector and inserts it into another."""
        return self.instruction_set == "aarch64"

    def has_slow_conversions(self) -> bool:
        """Whether a vector of integers is converted to floats more slowly than its bytes are shuffled and a vector is
        subtracted."""
        return self.instruction_set == "aarch64"

    def dot_products(self) -> tuple[DotProduct, ...]:
        """The dot-product instructions, for registers as wide as `vector` says."""
        if self.instruction_set == "aarch64":
            return tuple(each for flag, found in _ARM_DOT_PRODUCTS.items() if flag in self.flags for each in found)
        if self.instruction_set != "x86_64" or ("avx512f" in self.flags and "avx512bw" not in self.flags):
            return ()
        has_bytes = ("avx512_vnni" if "avx512f" in self.flags else "avx_vnni") in self.flags
        if has_bytes:
            return _UNSIGNED_BY_SIGNED, _PAIRS_OF_WORDS
        return (_SMALL_BY_SIGNED, _PAIRS_OF_WORDS, _BYTES_AS_WORDS) if "avx2" in self.flags else (_PAIRS_OF_WORDS,)

    def further_features(self) -> str:
        """Features for LLVM besides those that it detects."""
        if self.instruction_set != "aarch64":
            return ""
        return "".join(f",+{feature}" for flag, feature in _ARM_FEATURES.items() if flag in self.flags)


# The flags of each name: all that LLVM may use for it. A machine without one of them cannot run the code.
_V1 = "sse2"
_V2 = f"{_V1} pni ssse3 sse4_1 sse4_2 popcnt cx16"
_V3 = f"{_V2} avx avx2 fma f16c bmi1 bmi2 movbe abm"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
_ICELAKE = f"{_V4} avx512_vnni avx512_vbmi2 avx512_bitalg avx512_vpopcntdq avx512ifma avx512vbmi gfni"
_ARM = "fp asimd"
_ARM_8_2 = f"{_ARM} atomics asimdrdm lrcpc fphp asimdhp asimddp"
_ARM_9 = f"{_ARM_8_2} sve sve2 i8mm bf16"
_FLAGS = {
    "x86_64": {
        "x86-64": _V1,
        "x86-64-v2": _V2,
        "x86-64-v3": _V3,
        "x86-64-v4": _V4,
        "nehalem": _V2,
        "haswell": _V3,
        "skylake": _V3,
        "skylake-avx512": _V4,
        "cascadelake": f"{_V4} avx512_vnni",
        "icelake-server": _ICELAKE,
        "sapphirerapids": f"{_ICELAKE} avx_vnni avx512_bf16 avx512_fp16",
        "alderlake": f"{_V3} avx_vnni gfni",
        "znver2": f"{_V3} sse4a",
        "znver3": f"{_V3} sse4a",
        "znver4": f"{_ICELAKE} sse4a avx512_bf16",
        "znver5": f"{_ICELAKE} sse4a avx512_bf16 avx_vnni",
    },
    "aarch64": {
        "generic": _ARM,
        "cortex-a53": _ARM,
        "cortex-a72": _ARM,
        "cortex-a76": _ARM_8_2,
        "neoverse-n1": _ARM_8_2,
        "neoverse-n2": _ARM_9,
        "neoverse-v1": f"{_ARM_8_2} sve i8mm bf16",
        "neoverse-v2": _ARM_9,
        "apple-m1": f"{_ARM_8_2} fcma flagm sha3",
    },
}


@functools.cache
def this_processor() -> Processor:
    return Processor(system.machine(), system.cpu_flags())


@functools.cache
def processor(name: str) -> Processor:
    """The processor of that name. One whose code this machine cannot run is refused: its code would end the process."""
    here = this_processor()
    if not name:
        return here
    known = _FLAGS.get(here.instruction_set, {})
    if name not in known:
        reason = f"no processor of {here.instruction_set} is known as {name!r}"
        raise ConfigError("option CPU_ARCH", reason, f"leave it empty, or give one of: {', '.join(known)}")
    flags = frozenset(known[name].split())
    missing = sorted(flags - here.flags)
    if missing:
        reason = f"code for {name!r} may use {', '.join(missing)}, which this machine does not have"
        raise ConfigError("option CPU_ARCH", reason, "leave it empty, or name an older processor")
    return Processor(here.instruction_set, flags, name)

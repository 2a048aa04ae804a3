"""64-bit ARM processors that an emulator stands in for. In: the name of one, as the emulator and LLVM know it. Out: the
text of its /proc/cpuinfo, which the emulator does not make up, and from which host facts and LLVM learn what it has."""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """`flags` and the numbers of its maker are as Linux shows them on such a processor."""

    emulated: str
    implementer: int
    part: int
    flags: str

    def cpuinfo(self) -> str:
        lines = {
            "processor": "0",
            "BogoMIPS": "50.00",
            "Features": self.flags,
            "CPU implementer": f"{self.implementer:#x}",
            "CPU architecture": "8",
            "CPU variant": "0x1",
            "CPU part": f"{self.part:#x}",
            "CPU revision": "1",
        }
        return "".join(f"{key}\t: {value}\n" for key, value in lines.items()) + "\n"


_OLD = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_DOTS = f"{_OLD} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
MACHINES = {
    # A Raspberry Pi 4: neither dot products nor atomic instructions that do not loop.
    "cortex-a72": Machine("cortex-a72", 0x41, 0xD08, _OLD),
    "neoverse-n1": Machine("neoverse-n1", 0x41, 0xD0C, f"{_DOTS} ssbs"),
    # One that LLVM does not know, with all that the emulator can do but wide registers.
    "unknown": Machine("max,sve=off,sme=off", 0x00, 0x051, f"{_DOTS} i8mm bf16 flagm fcma sha3"),
}

__all__ = ["MACHINES", "Machine"]

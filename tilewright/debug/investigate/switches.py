"""The parts of the compiler that an option switches off: the hypotheses that scenarios try. Each names what is at fault
if the program is right without it."""

from __future__ import annotations

from typing import NamedTuple


class Switch(NamedTuple):
    """With `settings` the suspected part is off. `bisection` finds which one of it; `scope` says where it can matter:
    in a graph (so a repro shows it), or in a program alone."""

    name: str
    question: str
    settings: dict[str, str]
    scope: str = "graph"
    bisection: str = ""


SWITCHES: tuple[Switch, ...] = (
    Switch("cache", "a stale entry of the disk cache", {"CACHE": "0"}, "program"),
    Switch("jit", "the replay of a jitted function", {"JIT": "0"}, "program"),
    Switch("rewrites", "a rewrite rule", {"REWRITE_LIMIT": "0"}, "graph", "bisect-rewrites"),
    Switch("opts", "an opt", {"NOOPT": "1"}, "graph", "bisect-opts"),
    Switch("fusion", "the fusion of two operations", {"FUSE": "0"}, "graph", "bisect-fusion"),
    Switch("memory", "two temporary buffers in the same memory", {"REUSE_LIMIT": "0"}, "graph", "bisect-memory"),
    Switch("queue", "the order between queues", {"SERIAL_LIMIT": "-1"}, "graph", "waits"),
    Switch("passes", "an optional pass", {"PASS_LIMIT": "0"}, "graph", "bisect-passes"),
    Switch("device", "the device and its backend", {"DEVICE": "PYTHON"}),
    Switch("threads", "a race between threads of the CPU", {"TILEWRIGHT_THREADS": "1"}),
    Switch("split", "the split of a large reduction", {"SPLIT_REDUCE": "0"}),
    Switch("fold", "the closed form of a sum", {"FOLD_REDUCE": "0"}),
    Switch("dynamic", "a kernel that is shared by several sizes", {"DYNAMIC_KERNELS": "0"}),
    Switch("lifted", "a plan that several sizes share", {"LIFT_SIZES": "0"}, "program"),
    Switch("remembered", "a graph made from that of earlier calls", {"REMEMBER_GRAPHS": "0"}, "program"),
    Switch("denormals", "denormal numbers taken as zero", {"FLUSH_DENORMALS": "0"}),
)

# Everything off: what is right if the compiler is at fault, and wrong as well if the program is.
REFERENCE: dict[str, str] = {
    "DEVICE": "PYTHON",
    "CACHE": "0",
    "JIT": "0",
    "NOOPT": "1",
    "FUSE": "0",
    "PASS_LIMIT": "0",
    "REWRITE_LIMIT": "0",
    "REUSE_LIMIT": "0",
    "SERIAL_LIMIT": "-1",
    "SPLIT_REDUCE": "0",
    "FOLD_REDUCE": "0",
    "DYNAMIC_KERNELS": "0",
    "LIFT_SIZES": "0",
    "REMEMBER_GRAPHS": "0",
    "FLUSH_DENORMALS": "0",
}


def settings_text(settings: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())

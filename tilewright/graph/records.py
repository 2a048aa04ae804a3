"""The frozen records that stages exchange. In: nothing. Out: what schedule gives to kernel, kernel to codegen, codegen
to a backend and a backend to the runtime. They hold nodes and plain values only, so each can be shown and kept."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.records import record
from tilewright.base.target import Target
from tilewright.graph.uop import UOp


class OptOps(enum.Enum):
    """The kernel transforms."""

    TC = "tc"
    UPCAST = "upcast"
    UNROLL = "unroll"
    LOCAL = "local"
    THREAD = "thread"
    GROUP = "group"
    GROUPTOP = "grouptop"
    NOLOCALS = "nolocals"
    PADTO = "padto"
    SWAP = "swap"
    BLOCK = "block"
    STAGE = "stage"
    MEMOISE = "memoise"
    SCATTER = "scatter"
    DISTRIBUTE = "distribute"
    SPILL = "spill"
    CLIP = "clip"
    CUT = "cut"
    ALIGN = "align"

    __hash__ = object.__hash__


@record
class Opt:
    """One transform with its axis and argument."""

    op: OptOps
    axis: int | None = None
    arg: Any = None

    def __repr__(self) -> str:
        return f"Opt(OptOps.{self.op.name}, {self.axis}, {self.arg})"


@record
class KernelInfo:
    """The argument of a kernel's SINK. `opts_to_apply`: () none, a tuple exactly those, None a template's choice.
    `applied` is what the kernel stage did, for people to see. `fills` are the arguments of a custom kernel that hold
    nothing before it: it has to write all of them. `streams` are those that no cache holds when it starts, such as the
    weights of a model, and that it reads in the order of memory. `sections` says that the kernel is that many equal
    ones, each on `section_buffers` buffers of its own (graph/kernels/sections.py)."""

    name: str = ""
    opts_to_apply: tuple[Opt, ...] | None = None
    applied: tuple[Opt, ...] = ()
    fills: tuple[int, ...] = ()
    sections: int = 1
    section_buffers: int = 0
    streams: tuple[int, ...] = ()


@record
class Param:
    """A buffer argument of a program."""

    slot: int
    dtype: DType
    size: int
    is_read: bool
    is_written: bool
    holds_checks: bool = False  # a word per CHECK, which any failing element may write: no result of the program


@record
class Program:
    """A linear program: `body` in order of execution, every node after its sources.

    RANGE of LOOP or REDUCE kind opens a loop that its END closes. RANGE of GLOBAL, LOCAL, GROUP or THREAD kind is an
    index of the launch: it has no END, `global_ranges` and `local_ranges` list them outermost first. RANGE of UPCAST or
    UNROLL kind is a tile axis: it is not in the body, a value depends on it through its sources, and the emitter writes
    the value once per element of its tile. CONST and PARAM are not in the body either.

    Where `section` is an axis, the launch runs the program once for each of its values, each on buffers of its own:
    `params` are those of the first, and those of number n have slots that are n * `section_buffers` greater."""

    name: str
    body: tuple[UOp, ...]
    params: tuple[Param, ...]
    global_ranges: tuple[UOp, ...]
    local_ranges: tuple[UOp, ...]
    target: Target
    flops: int = 0
    bytes_moved: int = 0
    fills: tuple[int, ...] = ()  # the slots that the program has to write whole
    variables: tuple[UOp, ...] = ()  # integers that a launch gives, in this order
    first_variable: int = 0  # the position of the first among the arguments: after the buffers that a launch gives
    section: UOp | None = None
    section_buffers: int = 0
    streams: tuple[int, ...] = ()  # the slots that are read from memory in its order
    numbers: tuple[int, ...] = ()  # those that the text, which other programs share, reads from memory

    @property
    def sections(self) -> int:
        return 1 if self.section is None else int(self.section.src[0].arg)

    @property
    def variable_names(self) -> tuple[str, ...]:
        return tuple(variable.arg[0] for variable in self.variables)


@record
class Slot:
    """Memory of a schedule: `kind` is input (bound by the caller), output (kept by the caller), temp, or check: a word
    for each CHECK of one kernel, which is 0 before it runs and afterwards the value that failed, if any did (0 is in
    range wherever anything is)."""

    dtype: DType
    size: int
    device: str
    kind: str

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * self.size


@record
class Access:
    """A declared access: bytes [start, stop) of a slot."""

    slot: int
    start: int
    stop: int

    def conflicts(self, other: Access) -> bool:
        return self.slot == other.slot and self.start < other.stop and other.start < self.stop


@record
class Item:
    """One step of a schedule: a kernel (`ast` is a SINK) or a copy between devices (`ast` is None).

    `slots[k]` is the memory of the kernel's PARAM k, which begins at byte `starts[k]` of it; of a copy, (target,
    source), both whole. So kernels that differ only in where they read and write are one kernel. `line` is the user's
    line. `checks` has the number of the CHECK for each word of the last slot, where the kernel has any."""

    ast: UOp | None
    slots: tuple[int, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    device: str
    line: tuple[str, int] | None = None
    starts: tuple[int, ...] = ()
    checks: tuple[int, ...] = ()


@record
class Schedule:
    """Items in order. The first slots are the inputs, in the order of the graph's PARAMs; `outputs[k]` is the slot that
    holds the k-th requested value. Temps share one arena per device: `offsets` has (slot, byte offset) for each,
    `arenas` (device, bytes)."""

    items: tuple[Item, ...]
    slots: tuple[Slot, ...]
    outputs: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    arenas: tuple[tuple[str, int], ...]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __str__(self) -> str:
        """A line per item: what runs, where, what it reads and writes, and the user's line."""
        lines = []
        for number, item in enumerate(self.items):
            name = "copy" if item.ast is None else item.ast.arg.name
            reads = ", ".join(self._memory(access.slot) for access in item.reads) or "nothing"
            writes = ", ".join(self._memory(access.slot) for access in item.writes) or "nothing"
            place = "" if item.line is None else f"  {item.line[0]}:{item.line[1]}"
            lines.append(f"{number:3d} {item.device} {name}: reads {reads}; writes {writes}{place}")
        return "\n".join(lines)

    def _memory(self, number: int) -> str:
        slot = self.slots[number]
        return f"{slot.kind}{number} {slot.dtype.name}[{slot.size}]"

"""Memory for packed operands that do not fit the stack. In: a program's placeholders. Out: the offset of each, the text
that takes and gives back a panel, and the panels themselves: one for each thread of the process, allocated when a
kernel that needs them is loaded, so that a launch never lacks memory."""

from __future__ import annotations

import ctypes
import os
import threading

from tilewright.backends.cpu.host import system
from tilewright.backends.cpu.host.memory import HostMemory, allocate
from tilewright.base.config import options
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import out_of_memory

# Bytes of the headers of the panels. A constant and not a fact of the machine, because compiled code contains it.
SLOT_BYTES = 64
# The limit on placeholders on a thread's stack, which has 512 KiB on some systems.
STACK_BYTES = 256 * 1024
SYMBOL = "tw_panels"
TAKE = ["  %panels = load ptr, ptr @tw_panels", "  %panel = call ptr @take_panel(ptr %panels)"]
GIVE = "  call void @give_panel(ptr %panel)"

# The panels begin with a header that has their number and their stride. Each begins with a header that is 1 while a
# thread uses it. There may be more threads than panels, where several threads of Python launch at once: one that finds
# no free panel waits for the next to be given back.
FUNCTIONS = """@tw_panels = external global ptr
declare i32 @sched_yield()
define internal ptr @take_panel(ptr %panels) {
entry:
  %count = load i64, ptr %panels, align 8
  %stride_word = getelementptr i64, ptr %panels, i64 1
  %stride = load i64, ptr %stride_word, align 8
  br label %round
round:
  br label %look
look:
  %number = phi i64 [ 0, %round ], [ %next, %skip ]
  %distance = mul i64 %number, %stride
  %offset = add i64 %distance, SLOT
  %place = getelementptr i8, ptr %panels, i64 %offset
  %state = load atomic i32, ptr %place monotonic, align 4
  %used = icmp ne i32 %state, 0
  br i1 %used, label %skip, label %try
try:
  %before = atomicrmw xchg ptr %place, i32 1 acquire
  %taken = icmp eq i32 %before, 0
  br i1 %taken, label %found, label %skip
skip:
  %next = add i64 %number, 1
  %over = icmp eq i64 %next, %count
  br i1 %over, label %wait, label %look
wait:
  %yielded = call i32 @sched_yield()
  br label %round
found:
  %panel = getelementptr i8, ptr %place, i64 SLOT
  ret ptr %panel
}
define internal void @give_panel(ptr %panel) {
  %place = getelementptr i8, ptr %panel, i64 -SLOT
  store atomic i32 0, ptr %place release, align 4
  ret void
}""".replace("SLOT", str(SLOT_BYTES))


def panel_offsets(program: Program) -> tuple[dict[UOp, int], int]:
    """The offset in the panel of each placeholder that does not fit the stack; and the bytes of the panel."""
    on_stack = in_panel = 0
    offsets: dict[UOp, int] = {}
    for node in program.body:
        if node.op is not Ops.DEFINE_LOCAL and node.op is not Ops.DEFINE_REG:
            continue
        nbytes = node.arg.size * node.dtype.itemsize
        if on_stack + nbytes <= STACK_BYTES:
            on_stack += nbytes
        else:
            offsets[node] = in_panel
            in_panel += -(-nbytes // SLOT_BYTES) * SLOT_BYTES
    return offsets, in_panel


class Panels:
    """The panels of the process. Kernels find them through a word whose address they are loaded with."""

    def __init__(self) -> None:
        self.word = allocate(8)
        self.nbytes = 0
        self.made: list[tuple[HostMemory, int, int]] = []  # a kernel may still be running on those before the last
        self._lock = threading.Lock()

    def ensure(self, nbytes: int) -> None:
        """Makes each panel at least `nbytes` long."""
        with self._lock:
            if nbytes <= self.nbytes:
                return
            count, stride = system.usable_cores(options.TILEWRIGHT_THREADS or None), SLOT_BYTES + nbytes
            size = SLOT_BYTES + count * stride
            try:
                memory = allocate(size)
            except MemoryError as error:
                raise out_of_memory("CPU", size, error) from error
            self.made.append((memory, count, stride))
            self.release()
            self.nbytes = nbytes
            ctypes.c_void_p.from_address(self.word.address).value = memory.address

    def release(self) -> None:
        """Marks every panel of the newest block as free."""
        for memory, count, stride in self.made[-1:]:
            header = (ctypes.c_int64 * 2).from_address(memory.address)
            header[:] = [count, stride]
            for number in range(count):
                ctypes.c_int32.from_address(memory.address + SLOT_BYTES + number * stride).value = 0

    def renew(self) -> None:
        """The threads that used panels, or held the lock, do not exist in the child of a fork."""
        self._lock = threading.Lock()
        self.release()


panels = Panels()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=panels.renew)

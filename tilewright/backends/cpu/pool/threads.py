"""The thread pool. In: lists of native kernel calls (function, buffers, extent, grain) and the number of threads. Out:
`CommandList.run()`: one native call that runs the list in order, each command split over the threads. Stands between
the CPU device and the machine code from `llvm`; the pool itself is LLVM IR (`ir`), so users need no C compiler."""

import atexit
import ctypes
import itertools
import os
import sys
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence

from tilewright.backends.cpu.code.llvm import load_object
from tilewright.backends.cpu.host.memory import allocate
from tilewright.backends.cpu.pool import python_call
from tilewright.backends.cpu.pool.ir import MAXIMUM_THREADS, OFFSETS, STATE_BYTES

# Nanoseconds that an idle worker spins before it sleeps; waking it takes the caller 25,000 or more. The longer time is
# used while commands come within it, the shorter one after a longer pause, so that an idle process uses no CPU time.
MIN_SPIN = 100_000
MAX_SPIN = 1_000_000
Command = tuple[int, Sequence[int], int, int]
"""(address of `void function(ptr buffers, i64 lo, i64 hi)`, buffer addresses, extent, grain)"""


class Pool:
    """The workers of one process, started when a command first needs them.

    `threads` counts the calling thread, so 1 means no workers. The children of a fork start their own workers.
    """

    def __init__(self, code: bytes, threads: int) -> None:
        """`code` is the object of `pool_ir()`."""
        self.threads = min(max(1, threads), MAXIMUM_THREADS)
        self._state = allocate(STATE_BYTES)
        imports = {"tw_state": self._state.address, **python_call.imports()}
        self._code = load_object(code, "tw_call", "tw_stop", imports=imports)
        self.method = python_call.method_at(self._code.address)
        self._stop = ctypes.CFUNCTYPE(None)(self._code.symbols["tw_stop"])
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        """Make the state that of a pool without workers."""
        ctypes.memset(self._state.address, 0, STATE_BYTES)
        ctypes.c_int32.from_address(self._state.address + OFFSETS["WORKERS"]).value = self.threads - 1
        for name, nanoseconds in (("MIN_SPIN", MIN_SPIN), ("MAX_SPIN", MAX_SPIN)):
            ctypes.c_int64.from_address(self._state.address + OFFSETS[name]).value = nanoseconds

    @property
    def started(self) -> int:
        """The number of workers; the system's count of threads also has those that are ending."""
        return ctypes.c_int32.from_address(self._state.address + OFFSETS["STARTED"]).value

    def close(self) -> None:
        """End the workers and wait for them; commands that run later run on the calling thread alone."""
        self.threads = 1
        self._stop()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Without this the workers would run on in code that is no longer mapped. At exit, nothing is unmapped.
        if hasattr(self, "_stop") and not is_finalizing():
            self.close()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _restart_pools() -> None:
    """The parent's workers do not exist in the child of a fork, and a lock that one held is never released."""
    for pool in _pools:
        pool._reset()


def _close_pools() -> None:
    """At interpreter exit, before Python frees what kernels may be reading."""
    for pool in list(_pools):
        pool.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_pools)
atexit.register(_close_pools)


class CommandList:
    """A packed list of commands, built once and run often. `run()` is a single native call that releases the GIL.

    A command's function is called over parts of [0, extent), `grain` items long, from several threads at once; commands
    run one after the other. `owners` are objects, such as `LoadedCode` and `HostMemory`, that must live as long.
    `pointers` holds the buffers of all commands, those of command k from `first[k]` on.
    """

    __slots__ = ("_words", "first", "pointers", "run")

    run: Callable[[], None]

    def __init__(self, pool: Pool, commands: Iterable[Command], owners: Iterable[object] = ()) -> None:
        listed = list(commands)
        self.first = list(itertools.accumulate((len(buffers) for _, buffers, _, _ in listed), initial=0))
        self.pointers = array("q", [address for _, buffers, _, _ in listed for address in buffers])
        base = self.pointers.buffer_info()[0]
        self._words = array("q", [len(listed)])
        for (function, _, extent, grain), first in zip(listed, self.first, strict=False):
            self._words.extend((function, base + 8 * first, extent, grain))
        # What the native side reads stays alive through `run`, even where only that is kept.
        self.run = python_call.function_of(pool.method, self._words, pool, self.pointers, tuple(owners))

    def __len__(self) -> int:
        return len(self.first) - 1

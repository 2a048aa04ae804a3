"""Memory of a card. In: sizes, and bytes of the host. Out: copies, and blocks that return to a pool when dropped.
A block may be reused at once: work that still uses it is earlier in the same queue."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from typing import Any

from tilewright.backends.cuda.card import Card
from tilewright.backends.cuda.library import OUT_OF_MEMORY, CudaError
from tilewright.base.errors import InternalError

MIN_BLOCK = 512
# Sizes are rounded up to one of eight steps between powers of two, so that blocks are reused for similar sizes.
STEPS = 8
# Pinned memory that copies between pageable host memory and the card go through.
STAGING_BYTES = 4 << 20
STAGING_BUFFERS = 4
# Smaller copies use the driver's own staging, in one call.
MIN_STAGED = 64 << 10


class CudaMemory:
    """A block of a card's memory."""

    __slots__ = ("__weakref__", "_pool", "_size", "address", "nbytes")

    def __init__(self, pool: Pool, address: int, nbytes: int, size: int) -> None:
        self._pool = pool
        self._size = size
        self.address = address
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._pool.give_back(self.address, self._size)


def block_size(nbytes: int) -> int:
    """The size of the block that serves a request."""
    if nbytes <= MIN_BLOCK:
        return MIN_BLOCK
    step = max(MIN_BLOCK, (1 << (nbytes - 1).bit_length()) // (2 * STEPS))
    return -(-nbytes // step) * step


class Pool:
    """Blocks of one card. What was freed is kept by size and given out again; all of it goes back to the card when a
    new block does not fit."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.free: dict[int, list[int]] = {}
        # A finaliser may run at any moment, also inside this class: it only appends to this, which is atomic.
        self._returned: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> CudaMemory:
        size = block_size(nbytes)
        with self._lock:
            self._collect()
            kept = self.free.get(size)
            address = kept.pop() if kept else self._new_block(size)
        return CudaMemory(self, address, nbytes, size)

    def give_back(self, address: int, size: int) -> None:
        self._returned.append((address, size))

    def _collect(self) -> None:
        while self._returned:
            address, size = self._returned.popleft()
            self.free.setdefault(size, []).append(address)

    def _new_block(self, size: int) -> int:
        self.card.enter()
        for attempt in range(2):
            try:
                return int(self.card.library.call("cuMemAlloc", size))
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise InternalError(str(error)) from error
                if attempt == 0:
                    self._release()
        left, total = self.card.library.call("cuMemGetInfo")
        raise MemoryError(f"{left} of {total} bytes of {self.card.name} are free")

    def _release(self) -> None:
        """Gives all kept blocks back to the card, when nothing in the queue uses them any more."""
        self.card.synchronize()
        for blocks in self.free.values():
            for address in blocks:
                self.card.library.call("cuMemFree", address)
        self.free.clear()


class Staging:
    """Copies between the host and a card through pinned buffers: while one is transferred the next is filled."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self._lock = threading.Lock()
        self._buffers: list[tuple[int, Any, Any]] = []

    def _prepare(self) -> list[tuple[int, Any, Any]]:
        """Each buffer's address, its bytes as an array, and the event after its last use."""
        import numpy as np

        while len(self._buffers) < STAGING_BUFFERS:
            address = int(self.card.library.call("cuMemHostAlloc", STAGING_BYTES, 0))
            array = np.ctypeslib.as_array((ctypes.c_uint8 * STAGING_BYTES).from_address(address))
            event = self.card.new_event()
            self.card.record(event)
            self._buffers.append((address, array, event))
        return self._buffers

    def copy_in(self, address: int, data: memoryview) -> None:
        import numpy as np

        source = np.frombuffer(data, dtype=np.uint8)
        call, stream = self.card.library.call, self.card.stream
        self.card.enter()
        if source.nbytes < MIN_STAGED:
            # The driver has taken the bytes of pageable memory when this returns.
            call("cuMemcpyHtoDAsync", address, source.ctypes.data, source.nbytes, stream)
            return
        with self._lock:
            buffers = self._prepare()
            for number, start in enumerate(range(0, source.nbytes, STAGING_BYTES)):
                pinned, array, event = buffers[number % STAGING_BUFFERS]
                part = source[start : start + STAGING_BYTES]
                self.card.wait(event)
                array[: part.nbytes] = part
                call("cuMemcpyHtoDAsync", address + start, pinned, part.nbytes, stream)
                self.card.record(event)

    def copy_out(self, address: int, into: memoryview) -> None:
        import numpy as np

        target = np.frombuffer(into, dtype=np.uint8)
        self.card.enter()
        if target.nbytes < MIN_STAGED:
            self.card.library.call("cuMemcpyDtoHAsync", target.ctypes.data, address, target.nbytes, self.card.stream)
            self.card.synchronize()
            return
        with self._lock:
            self._read_pipelined(address, target)

    def _read_pipelined(self, address: int, target: Any) -> None:
        buffers = self._prepare()
        starts = list(range(0, target.nbytes, STAGING_BYTES))
        for number in range(len(starts) + STAGING_BUFFERS):
            done = number - STAGING_BUFFERS
            if done >= 0:
                _, array, event = buffers[done % STAGING_BUFFERS]
                part = target[starts[done] : starts[done] + STAGING_BYTES]
                self.card.wait(event)
                part[:] = array[: part.nbytes]
            if number < len(starts):
                pinned, _, event = buffers[number % STAGING_BUFFERS]
                size = min(STAGING_BYTES, target.nbytes - starts[number])
                self.card.library.call("cuMemcpyDtoHAsync", pinned, address + starts[number], size, self.card.stream)
                self.card.record(event)

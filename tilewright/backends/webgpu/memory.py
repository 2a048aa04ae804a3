"""Memory of WEBGPU. In: sizes, and bytes of the host. Out: buffers, and copies in the order of the queue.
wgpu copies whole words at word addresses; bytes at either end are copied with the words that contain them."""

from __future__ import annotations

from collections import deque
from typing import Any

from tilewright.backends.webgpu.context import GpuContext
from tilewright.runtime.device import Address

WORD = 4


def up_to_word(nbytes: int) -> int:
    return -(-nbytes // WORD) * WORD


class WebGpuMemory:
    """A buffer of whole words."""

    __slots__ = ("__weakref__", "buffer", "dropped", "nbytes")

    def __init__(self, buffer: Any, nbytes: int, dropped: deque[Any] | None) -> None:
        self.buffer = buffer
        self.nbytes = nbytes
        self.dropped = dropped

    def __del__(self) -> None:
        if self.dropped is not None:
            self.dropped.append(self.buffer)


class Copies:
    """The copies of one device."""

    def __init__(self, device: Any, context: GpuContext) -> None:
        import wgpu

        self.device = device
        self.context = context
        self.queue = device.queue
        self.usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        self.max_bytes = int(device.limits["max-buffer-size"])
        self.fence = self.allocate(WORD)

    def allocate(self, nbytes: int) -> WebGpuMemory:
        size = up_to_word(max(nbytes, WORD))
        if size > self.max_bytes:
            raise MemoryError(f"a buffer has {self.max_bytes} bytes at most")
        # wgpu's own error for a lack of memory is a MemoryError.
        with self.context:
            return WebGpuMemory(self.device.create_buffer(size=size, usage=self.usage), size, self.context.dropped)

    def copy_in(self, memory: WebGpuMemory, offset: int, data: memoryview) -> None:
        start, stop = offset // WORD * WORD, up_to_word(offset + data.nbytes)
        if start == offset and stop == offset + data.nbytes:
            if data.nbytes:
                with self.context:
                    self.queue.write_buffer(memory.buffer, offset, data)
            return
        words = bytearray(stop - start)
        self.copy_out(memory, start, memoryview(words))
        words[offset - start : offset - start + data.nbytes] = data
        with self.context:
            self.queue.write_buffer(memory.buffer, start, words)

    def copy_out(self, memory: WebGpuMemory, offset: int, into: memoryview) -> None:
        if into.nbytes:
            start = offset // WORD * WORD
            words = self.context.read(memory.buffer, start, up_to_word(offset + into.nbytes) - start)
            into[:] = words.cast("B")[offset - start : offset - start + into.nbytes]

    def copy(self, target: Address, source: Address, nbytes: int) -> None:
        (to, to_offset), (origin, from_offset) = target, source
        # A command copies words between two buffers; the host does the rest.
        if to is origin or to_offset % WORD or from_offset % WORD or nbytes % WORD:
            staged = memoryview(bytearray(nbytes))
            self.copy_out(origin, from_offset, staged)
            self.copy_in(to, to_offset, staged)
        elif nbytes:
            with self.context:
                encoder = self.device.create_command_encoder()
                encoder.copy_buffer_to_buffer(origin.buffer, from_offset, to.buffer, to_offset, nbytes)
                self.queue.submit([encoder.finish()])

    def synchronize(self) -> None:
        """A read waits for all that was submitted before it."""
        self.context.read(self.fence.buffer, 0, WORD)

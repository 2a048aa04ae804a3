"""One thread at a time in OpenGL. In: an opened wgpu device. Out: a lock for every call to it, and a way to read.

wgpu gives all devices of an OpenGL adapter one context, and ends the process where a thread has waited a second for
another to leave it; compiling a large kernel takes longer. So threads wait for a lock here instead. wgpu-py's own
thread, which polls a device for finished reads, does not know this lock: it is stopped on such a device, and the reader
polls. Other backends take calls from many threads."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

_IN_CONTEXT = threading.RLock()


def has_one_context(device: Any) -> bool:
    return str(device.adapter.info["backend_type"]) == "OpenGL"


class Token:
    """The token of a read in progress; nothing waits for it."""

    def set_done(self) -> None:
        return

    def is_done(self) -> bool:
        return True


class NoPoller:
    """Replaces wgpu-py's polling thread."""

    def get_token(self) -> Token:
        return Token()

    def stop(self) -> None:
        return


class GpuContext:
    """`with context:` around every call to wgpu."""

    def __init__(self, device: Any) -> None:
        import wgpu

        self.device = device
        self.is_single = has_one_context(device)
        self.lock: contextlib.AbstractContextManager[Any] = _IN_CONTEXT if self.is_single else contextlib.nullcontext()
        self.staging = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ
        # Buffers without references. A finaliser may run in any thread and must not wait for a lock, so they are freed
        # by the next call.
        self.dropped: deque[Any] | None = deque() if self.is_single else None
        if self.is_single:
            device._poller.stop()
            device._poller = NoPoller()

    def __enter__(self) -> None:
        self.lock.__enter__()
        if self.dropped:
            self.dropped.clear()

    def __exit__(self, *error: object) -> None:
        self.lock.__exit__(None, None, None)

    def read(self, buffer: Any, offset: int, size: int) -> memoryview:
        """The contents of the buffer after all that was submitted."""
        device = self.device
        with self:
            if not self.is_single:
                return memoryview(device.queue.read_buffer(buffer, offset, size))
            staged = device.create_buffer(size=size, usage=self.staging)
            encoder = device.create_command_encoder()
            encoder.copy_buffer_to_buffer(buffer, offset, staged, 0, size)
            device.queue.submit([encoder.finish()])
            mapped = staged.map_async("READ_NOSYNC")
            device._poll_wait()
            mapped.sync_wait()
            found = memoryview(staged.read_mapped())
            staged.destroy()
            return found

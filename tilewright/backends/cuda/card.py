"""One card. In: its number. Out: its context, its queue and its facts; `enter` makes the context the thread's own.
All work of a device is given to one stream, so launches and copies happen in the order they are given."""

from __future__ import annotations

import threading
from typing import Any

from tilewright.backends.cuda.library import CudaError, driver_library
from tilewright.base.errors import InternalError
from tilewright.runtime.device import Unavailable

# CUdevice_attribute
MAX_THREADS = 1
MULTIPROCESSORS = 16
L2_BYTES = 38
MAJOR = 75
MINOR = 76
SHARED_BYTES = 97  # of a block that asked for more than the usual 48 KiB

# CUstream_flags and CUevent_flags
NON_BLOCKING = 1
NO_TIMING = 2

# Architectures with specific instructions, such as wgmma, that need the 'a' suffix of their name.
_WITH_SUFFIX = ("90", "100", "101", "103", "120", "121")


class Card:
    """An open card. All calls go through here, so that errors are of this package."""

    def __init__(self, ordinal: int) -> None:
        self.library = driver_library()
        count = self.library.call("cuDeviceGetCount")
        if ordinal >= count:
            raise Unavailable(f"there are {count} NVIDIA cards, counted from 0", "name one of them")
        self.device = self.library.call("cuDeviceGet", ordinal)
        self.name = bytes(self.library.call("cuDeviceGetName", 128, self.device)).split(b"\0")[0].decode()
        self.context = int(self.library.call("cuDevicePrimaryCtxRetain", self.device))
        self._set_context = self.library.native("cuCtxSetCurrent")
        self.enter()
        self.stream = self.library.call("cuStreamCreate", NON_BLOCKING)
        self._clocks = [self.library.call("cuEventCreate", 0) for _ in range(2)]
        self._timing = threading.Lock()

    def enter(self) -> None:
        """Makes this card's context the current one of the thread: other libraries change it too."""
        status = self._set_context(self.context)
        if status:
            self.library.fail("cuCtxSetCurrent", status)

    def attribute(self, number: int) -> int:
        return int(self.library.call("cuDeviceGetAttribute", number, self.device))

    def arch(self) -> str:
        number = f"{self.attribute(MAJOR)}{self.attribute(MINOR)}"
        return f"sm_{number}a" if number in _WITH_SUFFIX else f"sm_{number}"

    def new_event(self) -> Any:
        return self.library.call("cuEventCreate", NO_TIMING)

    def record(self, event: Any) -> None:
        self.library.call("cuEventRecord", event, self.stream)

    def wait(self, event: Any) -> None:
        """The host waits until the queue has passed the event."""
        self.library.call("cuEventSynchronize", event)

    def synchronize(self) -> None:
        self.enter()
        try:
            self.library.call("cuStreamSynchronize", self.stream)
        except CudaError as error:
            raise InternalError(f"a kernel failed on {self.name}: {error}") from error

    def seconds(self, work: Any) -> float:
        """The seconds that the work which `work()` enqueues takes, by the card's clock."""
        with self._timing:
            start, stop = self._clocks
            self.enter()
            self.record(start)
            work()
            self.record(stop)
            self.wait(stop)
            return float(self.library.call("cuEventElapsedTime", start, stop)) / 1e3

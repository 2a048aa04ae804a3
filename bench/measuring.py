"""Time and memory of calls, for scripts that compare libraries. In: a call and how to wait for its device. Out:
seconds, or the most bytes that were in use at once."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import memory_step
from tilewright import Device

# The CPU time of all threads says what a call costs on a machine whose cores others use too.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def steady_seconds(
    call: Callable[[], object],
    synchronize: Callable[[], object],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The median of calls one after the other, each waited for; a few at a time where they are short."""

    def timed(count: int) -> float:
        start = clock()
        for _ in range(count):
            call()
        synchronize()
        return (clock() - start) / count

    once = min(timed(1), timed(1))
    count = max(1, round(0.02 / max(once, 1e-6)))
    rounds = max(3, min(50, int(seconds / (once * count))))
    return statistics.median(timed(count) for _ in range(rounds))


class HostMemory:
    """The most that the process has resident, above what it had when this was made. Linux alone tells."""

    def __init__(self) -> None:
        gc.collect()
        self.is_known = Path("/proc/self/clear_refs").exists()
        if self.is_known:
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
            if trim is not None:
                trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is resident now
            self.start = memory_step.resident_bytes()

    def peak(self) -> int | None:
        return memory_step.peak_bytes() - self.start if self.is_known else None


class CudaMemory:
    """What the pool of a card has taken; it gives nothing back before the card is full."""

    def __init__(self, device: str) -> None:
        self.card = Device[device].card  # type: ignore[attr-defined]
        self.start = self._free()

    def peak(self) -> int:
        return self.start - self._free()

    def _free(self) -> int:
        self.card.enter()
        return int(self.card.library.call("cuMemGetInfo")[0])


class TorchCudaMemory:
    def __init__(self, torch: Any) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.torch = torch
        self.start = torch.cuda.memory_allocated()

    def peak(self) -> int:
        return int(self.torch.cuda.max_memory_allocated()) - int(self.start)

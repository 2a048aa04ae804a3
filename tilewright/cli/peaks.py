"""The peaks of a machine. In: a device. Out: its `Peaks`: float32 operations a second and bytes a second, measured with
kernels of this package once per machine and kept in the cache folder."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from tilewright import AddrSpace, AxisType, Context, KernelInfo, Opt, OptOps, Tensor, UOp, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.base.target import Target
from tilewright.debug.watch import watch_runs
from tilewright.runtime.cache import cache_key, read_entry, write_entry
from tilewright.runtime.device import open_driver

# Part of the key: it changes with the way of measuring.
VERSION = "peaks 1"
# The length of a loop over values that stay in the L1 cache and in registers.
STEPS = 256
# Long enough to be measured, and for idle cores to wake. A shape that takes less is made larger.
MIN_SECONDS = 4e-3
GROWTH = 8
MAX_GROWTHS = 4
ROUNDS = 20
# Elements to begin with, and elements that no cache holds: a device that is slow with few is not given many.
FEW_ELEMENTS, MANY_ELEMENTS = 1 << 20, 1 << 25
SLOW_SECONDS = 0.2
THREADS_OF_A_GROUP = 64


@dataclass(frozen=True)
class Peaks:
    """Operations and bytes a second. Reading, writing and both at once (`triad`, a[i] = b[i] + c * d[i]) differ."""

    operations: float
    read: float
    write: float
    triad: float

    @property
    def bandwidth(self) -> float:
        return max(self.read, self.write, self.triad)


Note = Callable[[str], object]
"""Called with what is measured next."""


def machine_peaks(device: str, again: bool = False, note: Note = lambda what: None) -> Peaks:
    """From the cache folder; measured where they are not there, cannot be read, or `again` is asked for."""
    kept = None if again else known_peaks(device)
    if kept is None:
        kept = measure_peaks(device, note)
        write_entry(_key_of(device), json.dumps(asdict(kept)).encode())
    return kept


def known_peaks(device: str) -> Peaks | None:
    """The peaks that were measured on this machine before."""
    return read_peaks(read_entry(_key_of(device)))


def _key_of(device: str) -> str:
    target = open_driver(device).target
    return cache_key(VERSION, platform.node(), target.name, target.arch, target.toolchain, str(target.cores))


def read_peaks(entry: bytes | None) -> Peaks | None:
    """The peaks of an entry; None for one that does not hold four rates."""
    if entry is None:
        return None
    try:
        fields = json.loads(entry)
        peaks = Peaks(**{name: float(value) for name, value in fields.items()})
    except (ValueError, TypeError, AttributeError):
        return None
    return peaks if all(rate > 0 for rate in asdict(peaks).values()) else None


def measure_peaks(device: str, note: Note = lambda what: None) -> Peaks:
    with Context(JIT=0, BEAM=0, NOOPT=0, DEBUG=0):
        note("arithmetic")
        operations = max(_shape_rate(device, *shape) for shape in _register_shapes(open_driver(device).target))
        rates = {}
        for name, kernel in STREAMS.items():
            note(name)
            rates[name] = _stream_rate(device, kernel)
    return Peaks(operations, **rates)


# ---------------------------------------------------------------- arithmetic


def _register_shapes(target: Target) -> list[tuple[int, int]]:
    """(vectors, columns) of accumulators: enough to hide the latency of an addition, and few enough for the
    registers."""
    registers = target.vector_registers
    return [(1, registers // 2), (2, registers // 4), (2, registers * 3 // 8)]


def _shape_rate(device: str, vectors: int, columns: int) -> float:
    """Operations a second with this many accumulators, for as many rows as take long enough."""
    target = open_driver(device).target
    tile = vectors * target.lanes(dtypes.float32)
    rows = tile * target.cores * THREADS_OF_A_GROUP
    for _ in range(MAX_GROWTHS):
        if _best_run(_products(device, rows, columns, tile), 1).seconds >= MIN_SECONDS:
            break
        rows *= GROWTH
    return 2.0 * rows * columns * STEPS / _best_run(_products(device, rows, columns, tile), ROUNDS).seconds


def _products(device: str, rows: int, columns: int, tile: int) -> Callable[[], Tensor]:
    """Every row's factor, which stays in a register, times every step's, which all rows share."""
    target = open_driver(device).target
    opts = [Opt(OptOps.UPCAST, 0, tile), Opt(OptOps.UPCAST, 1, columns)]
    if target.has_threads:
        opts.append(Opt(OptOps.THREAD, 0, rows // tile))
    elif target.has_local:
        opts.append(Opt(OptOps.LOCAL, 0, min(THREADS_OF_A_GROUP, target.max_group_size)))
    info = KernelInfo(name="peak_arithmetic", opts_to_apply=tuple(opts))

    def products(out: UOp, row_factors: UOp, step_factors: UOp) -> UOp:
        row, column = UOp.range(rows, 0), UOp.range(columns, 1)
        total = UOp.placeholder((1,), out.dtype, 0, addrspace=AddrSpace.REG)
        total = total.after(row, column)[0].set(0)
        step = UOp.range(STEPS, 2, AxisType.REDUCE)
        product = row_factors[row] * step_factors[step, column]
        total = total[0].set(total.after(step)[0] + product, end=step)
        return out[column, row].set(total[0], end=(row, column)).sink(arg=info)

    row_factors = Tensor.ones(rows, device=device).contiguous().realize()
    step_factors = Tensor.ones(STEPS, columns, device=device).contiguous().realize()

    def work() -> Tensor:
        out = Tensor.empty(columns, rows, device=device)
        return Tensor.custom_kernel(out, row_factors, step_factors, fxn=products)[0].realize()

    return work


# ---------------------------------------------------------------- memory

STREAMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "read": lambda a, b, c: b.sum(),
    "write": lambda a, b, c: a.assign(Tensor.full(a.shape, 2.0, device=a.device)),
    "triad": lambda a, b, c: a.assign(b + 3.0 * c),
}


def _stream_rate(device: str, stream: Callable[[Tensor, Tensor, Tensor], Tensor]) -> float:
    """Bytes a second; the number of bytes is that of the events of its kernels."""
    few = _best_run(_stream_over(device, stream, FEW_ELEMENTS), 1)
    if few.seconds * MANY_ELEMENTS / FEW_ELEMENTS > SLOW_SECONDS:
        return few.bytes_moved / few.seconds
    many = _best_run(_stream_over(device, stream, MANY_ELEMENTS), ROUNDS)
    return many.bytes_moved / many.seconds


def _stream_over(device: str, stream: Callable[[Tensor, Tensor, Tensor], Tensor], count: int) -> Callable[[], Tensor]:
    a, b, c = (Tensor.full((count,), float(n), device=device).contiguous().realize() for n in range(3))
    return lambda: stream(a, b, c).realize()


# ---------------------------------------------------------------- clocks


class Work(NamedTuple):
    """The time and the bytes of the kernels of one round."""

    seconds: float
    bytes_moved: int


def _best_run(work: Callable[[], object], rounds: int) -> Work:
    """The shortest of some rounds after one that is not counted; a slow one is the last."""
    done: list[Work] = []
    while len(done) <= rounds and (len(done) < 2 or done[-1].seconds < SLOW_SECONDS):
        with watch_runs() as runs:
            work()
        done.append(Work(sum(run.seconds for run in runs), sum(run.bytes_moved for run in runs)))
    best = min(done[1:])
    if best.seconds <= 0:
        raise UnsupportedError("bench", "the kernels of this device take no time", "name a device that runs them")
    return best

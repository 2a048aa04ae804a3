"""Kernels against the roofline. In: runs of kernels, and the peaks of the devices they ran on. Out: a `Report`, for
each kernel what bounds it and how much time it loses, the greatest loss first; as a table, and as plain values.

No kernel can be faster than its operations at the peak of arithmetic, nor than its bytes at the peak of memory. The
larger of the two times is its roof; what it takes above that is its loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.table import Table

from tilewright.cli.peaks import Peaks
from tilewright.debug import describe
from tilewright.debug.watch import KernelRun

Values = dict[str, str | int | float]


@dataclass(frozen=True)
class Row:
    """All runs of one kernel for one line of the user's program, or the sum of several such rows."""

    name: str
    location: str
    device: str
    count: int
    seconds: float
    operations: int
    bytes_moved: int
    arithmetic_seconds: float  # what the operations take at the peak
    memory_seconds: float  # what the bytes take at the peak
    roof_seconds: float  # the larger of the two, summed over the runs
    loss_seconds: float

    @property
    def bound(self) -> str:
        """Which roof it is under."""
        return "arithmetic" if self.arithmetic_seconds > self.memory_seconds else "memory"

    @property
    def share(self) -> float:
        """The time of the roof as a fraction of the kernel's; above 1 where data came from a cache."""
        return self.roof_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes_moved if self.bytes_moved else 0.0

    @property
    def operation_rate(self) -> float:
        return self.operations / self.seconds if self.seconds > 0 else 0.0

    @property
    def byte_rate(self) -> float:
        return self.bytes_moved / self.seconds if self.seconds > 0 else 0.0

    def values(self) -> Values:
        return {
            "name": self.name,
            "location": self.location,
            "device": self.device,
            "count": self.count,
            "seconds": self.seconds,
            "operations": self.operations,
            "bytes": self.bytes_moved,
            "operations_per_second": self.operation_rate,
            "bytes_per_second": self.byte_rate,
            "operations_per_byte": self.intensity,
            "bound": self.bound,
            "share_of_roof": self.share,
            "loss_seconds": self.loss_seconds,
        }


@dataclass(frozen=True)
class Report:
    """The kernels of a run, the greatest loss first, and the peaks of each device they ran on."""

    rows: tuple[Row, ...]
    peaks: Mapping[str, Peaks]

    @property
    def total(self) -> Row:
        return join_rows("total", self.rows)

    def values(self) -> dict[str, object]:
        peaks = {
            device: {
                "operations_per_second": found.operations,
                "read_bytes_per_second": found.read,
                "write_bytes_per_second": found.write,
                "triad_bytes_per_second": found.triad,
            }
            for device, found in self.peaks.items()
        }
        return {"peaks": peaks, "kernels": [row.values() for row in self.rows], "total": self.total.values()}

    def peak_lines(self) -> list[str]:
        return [
            f"{device}: {found.operations / 1e9:.3g} GFLOP/s; GB/s: "
            f"{found.read / 1e9:.3g} read, {found.write / 1e9:.3g} write, {found.triad / 1e9:.3g} triad"
            for device, found in self.peaks.items()
        ]

    def table(self, top: int) -> Table:
        made = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("kernel", "line"):
            made.add_column(title, no_wrap=True)
        for title in ("count", "time", "GFLOP/s", "GB/s", "FLOP/B"):
            made.add_column(title, justify="right", no_wrap=True)
        made.add_column("roof", no_wrap=True)
        for title in ("of roof", "loss"):
            made.add_column(title, justify="right", no_wrap=True)
        for row in self.rows[:top]:
            made.add_row(*cells(row))
        if rest := self.rows[top:]:
            made.add_row(*cells(join_rows(f"{len(rest)} more", rest)))
        made.add_row(*cells(self.total), style="bold")
        return made


def report_runs(runs: Iterable[KernelRun], peaks: Mapping[str, Peaks]) -> Report:
    kernels: dict[tuple[str, str, str], list[Row]] = {}
    for run in runs:
        kernels.setdefault((run.name, run.location, run.device), []).append(row_of(run, peaks[run.device]))
    rows = [join_rows(name, found, location) for (name, location, _), found in kernels.items()]
    return Report(tuple(sorted(rows, key=lambda row: -row.loss_seconds)), peaks)


def row_of(run: KernelRun, peaks: Peaks) -> Row:
    arithmetic, memory = run.operations / peaks.operations, run.bytes_moved / peaks.bandwidth
    roof = max(arithmetic, memory)
    return Row(
        run.name,
        run.location,
        run.device,
        1,
        run.seconds,
        run.operations,
        run.bytes_moved,
        arithmetic,
        memory,
        roof,
        max(run.seconds - roof, 0.0),
    )


def join_rows(name: str, rows: Iterable[Row], location: str = "") -> Row:
    found = list(rows)
    devices = dict.fromkeys(row.device for row in found)
    return Row(
        name,
        location,
        ", ".join(devices),
        sum(row.count for row in found),
        sum(row.seconds for row in found),
        sum(row.operations for row in found),
        sum(row.bytes_moved for row in found),
        sum(row.arithmetic_seconds for row in found),
        sum(row.memory_seconds for row in found),
        sum(row.roof_seconds for row in found),
        sum(row.loss_seconds for row in found),
    )


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.location,
        str(row.count),
        describe.show_seconds(row.seconds),
        describe.giga_per_second(row.operations, row.seconds),
        describe.giga_per_second(row.bytes_moved, row.seconds),
        f"{row.intensity:.2f}",
        row.bound,
        f"{row.share:.0%}",
        describe.show_seconds(row.loss_seconds),
    )

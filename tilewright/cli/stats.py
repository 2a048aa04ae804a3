"""`tilewright stats`. In: a profile (PROFILE=1) or a trace (`tilewright trace --json`). Out: tables of what took the
time: kernels, copies and replays by the user's line, stages of the compiler, and the most memory that was in use."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from tilewright.base.config import options
from tilewright.base.errors import FileError
from tilewright.debug import describe
from tilewright.debug.chrome import read_profile
from tilewright.debug.layout import TABLE_WIDTH, make_console
from tilewright.debug.trace.encode import is_trace, read_trace
from tilewright.debug.trace.facts import time_of
from tilewright.debug.trace.records import Run, Span, Timeline

DEFAULT_FILE = "tilewright_profile.json"


@dataclass(frozen=True)
class Row:
    """All runs of one kernel, copy or replay for one line."""

    kind: str
    name: str
    device: str
    location: str
    durations: tuple[int, ...]
    operations: int
    bytes_moved: int

    @property
    def total(self) -> int:
        return sum(self.durations)


def read_timeline(path: Path) -> Timeline:
    """The timeline of a profile or a trace."""
    try:
        has_more = is_trace(path)
    except OSError as error:
        remedy = "name a file that PROFILE=1 or `tilewright trace --json` wrote"
        raise FileError("stats", f"{path} cannot be read: {error.strerror}", remedy) from error
    if has_more:
        trace = read_trace(path)
        return Timeline(trace.program, trace.runs, trace.spans, trace.memory, trace.notes)
    return read_profile(path)


def rows_of(runs: Iterable[Run]) -> list[Row]:
    """The greatest time first."""
    groups: dict[tuple[str, str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.kind, run.name, run.device, describe.show_location(run.line)), []).append(run)
    rows = [
        Row(
            *key,
            tuple(run.duration for run in found),
            sum(run.operations for run in found),
            sum(run.bytes_moved for run in found),
        )
        for key, found in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.total, row.kind, row.name, row.location))


def stage_rows(spans: Iterable[Span]) -> list[tuple[str, int, int]]:
    """Name, count and nanoseconds of each stage and pass, the greatest first. The name of a compiled kernel is left
    out."""
    found: dict[str, list[int]] = {}
    for span in spans:
        name = span.name.partition(" ")[0] if span.stage == "stage" else f"{span.stage}/{span.name}"
        found.setdefault(name, []).append(span.duration)
    rows = [(name, len(durations), sum(durations)) for name, durations in found.items()]
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def peak_memory(timeline: Timeline) -> dict[str, int]:
    """The most bytes of each device that were allocated at once."""
    peaks: dict[str, int] = {}
    for level in timeline.memory:
        peaks[level.device] = max(peaks.get(level.device, 0), level.allocated)
    return peaks


def runs_table(timeline: Timeline, top: int) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("kind", "name", "device", "line"):
        made.add_column(title, no_wrap=True)
    for title in ("count", "total", "share", "mean", "least", "most", "GFLOP/s", "GB/s"):
        made.add_column(title, justify="right", no_wrap=True)
    rows, all_time = rows_of(timeline.runs), max(1, time_of(timeline.runs))
    for row in rows[:top]:
        durations = row.durations
        made.add_row(
            row.kind,
            row.name,
            row.device,
            row.location,
            str(len(durations)),
            describe.show_nanoseconds(row.total),
            "" if row.kind == "replay" else f"{row.total / all_time:.0%}",
            describe.show_nanoseconds(row.total / len(durations)),
            describe.show_nanoseconds(min(durations)),
            describe.show_nanoseconds(max(durations)),
            describe.giga_per_second(row.operations, row.total / 1e9),
            describe.giga_per_second(row.bytes_moved, row.total / 1e9),
        )
    if rest := rows[top:]:
        shown = time_of(timeline.runs) - sum(row.total for row in rows[:top] if row.kind != "replay")
        made.add_row(
            "",
            f"{len(rest)} more",
            "",
            "",
            str(sum(len(row.durations) for row in rest)),
            describe.show_nanoseconds(shown),
        )
    return made


def stages_table(timeline: Timeline, top: int) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("stage", no_wrap=True)
    made.add_column("count", justify="right")
    made.add_column("total", justify="right")
    for name, count, spent in stage_rows(timeline.spans)[:top]:
        made.add_row(name, str(count), describe.show_nanoseconds(spent))
    return made


def print_stats(path: Path | None, top: int, as_json: bool = False) -> None:
    timeline = read_timeline(path or Path(options.PROFILE_FILE or DEFAULT_FILE))
    if as_json:
        print(json.dumps(stats_values(timeline), indent=1))
        return
    console = make_console(TABLE_WIDTH)
    count = len(timeline.runs)
    total = describe.show_nanoseconds(time_of(timeline.runs))
    console.print(f"{timeline.program}: {count} run{'' if count == 1 else 's'}, {total} on devices", markup=False)
    for note in timeline.notes:
        console.print(f"note: {note}", markup=False)
    if timeline.runs:
        console.print(runs_table(timeline, top))
    if timeline.spans:
        console.print()
        console.print(stages_table(timeline, top))
    for device, peak in peak_memory(timeline).items():
        console.print(f"most memory of {device}: {describe.show_bytes(peak)}", markup=False)


def stats_values(timeline: Timeline) -> dict[str, object]:
    """The tables as plain values."""
    return {
        "program": timeline.program,
        "runs": [
            {
                "kind": row.kind,
                "name": row.name,
                "device": row.device,
                "line": row.location,
                "count": len(row.durations),
                "nanoseconds": row.total,
                "operations": row.operations,
                "bytes": row.bytes_moved,
            }
            for row in rows_of(timeline.runs)
        ],
        "stages": [
            {"name": name, "count": count, "nanoseconds": spent} for name, count, spent in stage_rows(timeline.spans)
        ],
        "peak_memory": peak_memory(timeline),
        "notes": list(timeline.notes),
    }

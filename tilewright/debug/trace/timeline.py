"""Timelines. In: events of kernels, copies, replays and stages. Out: `Run`, `Span` and `Level` records: all of a
profile, and a part of a trace."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from tilewright.base.events import Event, GlobalCounters
from tilewright.base.location import user_location
from tilewright.debug.trace.records import Level, Limits, Location, Run, Span, Timeline

Fields = dict[str, Any]


class TimelineRecorder:
    """Collects records. The caller of `note_event` holds a lock."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.began = time.perf_counter_ns()
        self.runs: list[Run] = []
        self.spans: list[Span] = []
        self.memory: list[Level] = []
        self.left_out: Counter[str] = Counter()
        self.kernel_numbers: dict[tuple[str, str], int] = {}
        self._levels: dict[str, int] = {}
        self._devices: dict[str, str] = {}  # where a kernel ran last

    def note_event(self, event: Event, step: int | None = None) -> None:
        fields = event.fields
        if event.kind == "stage":
            self._note_stage(event, fields)
        elif event.kind == "kernel-run":
            name, device = str(fields["name"]), str(fields["device"])
            self._devices[name] = device
            self._note_run(event, "kernel", name, device, fields["location"], step)  # type: ignore[arg-type]
        elif event.kind == "copy":
            name = f"{fields['source']} to {fields['target']}"
            self._note_run(event, "copy", name, str(fields["target"]), fields["location"], step)  # type: ignore[arg-type]
        else:
            names: tuple[str, ...] = fields["names"]  # type: ignore[assignment]
            devices = ", ".join(dict.fromkeys(self._devices.get(name, "host") for name in names)) or "host"
            self._note_run(event, "replay", str(fields["name"]), devices, user_location(), None, names)

    def _note_run(
        self,
        event: Event,
        kind: str,
        name: str,
        device: str,
        line: Location | None,
        step: int | None,
        names: tuple[str, ...] = (),
    ) -> None:
        fields: Fields = event.fields
        duration = round(fields["seconds"] * 1e9)
        ended = event.time_ns - self.began
        self._note_memory(ended)
        if len(self.runs) >= self.limits.runs:
            self.left_out["runs"] += 1
            return
        work = fields.get("operations", 0), fields["bytes"]
        thread, kernel = threading.current_thread().name, self.kernel_numbers.get((name, device))
        self.runs.append(Run(kind, name, device, ended - duration, duration, *work, line, thread, step, kernel, names))

    def _note_stage(self, event: Event, fields: Fields) -> None:
        start = event.time_ns - self.began - fields["nanoseconds"]
        thread = threading.current_thread().name
        name = f"{fields['name']} {fields['about']}".rstrip()
        self.add_span(Span("stage", name, start, fields["nanoseconds"], thread, user_location()))

    def add_span(self, span: Span) -> None:
        if len(self.spans) < self.limits.runs:
            self.spans.append(span)
        else:
            self.left_out["spans of stages"] += 1

    def _note_memory(self, now: int) -> None:
        for device, allocated in GlobalCounters.mem_used_per_device.items():
            if self._levels.get(device) != allocated:
                self._levels[device] = allocated
                if len(self.memory) < self.limits.levels:
                    self.memory.append(Level(now, device, allocated))
                else:
                    self.left_out["levels of memory"] += 1

    def limit_notes(self) -> list[str]:
        """What was left out, in sentences."""
        return [
            f"{count:,} {what} are not recorded: there is a limit" for what, count in self.left_out.items() if count
        ]

    def timeline(self, program: str) -> Timeline:
        notes = tuple(self.limit_notes())
        return Timeline(program, tuple(self.runs), tuple(self.spans), tuple(self.memory), notes)

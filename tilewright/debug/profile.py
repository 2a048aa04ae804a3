"""The profile of a process. In: events, while the option PROFILE is above 0. Out: a file for Perfetto when the process
ends. `base.events` loads this module by name at the first event; nothing imports it."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

from tilewright.base.config import options
from tilewright.base.errors import FileError
from tilewright.base.events import Event
from tilewright.base.forks import renewed_lock
from tilewright.debug.chrome import write_profile
from tilewright.debug.trace.records import Limits, Timeline
from tilewright.debug.trace.timeline import TimelineRecorder

DEFAULT_FILE = "tilewright_profile.json"
LIMITS = Limits(runs=1_000_000, levels=200_000)


class Profiler:
    """What the process has run so far. One for the process: its threads share the devices."""

    def __init__(self) -> None:
        self._lock = renewed_lock()
        self._process = os.getpid()
        # Settled now: a program may go elsewhere while it runs.
        self._path = Path(options.PROFILE_FILE or DEFAULT_FILE).absolute()
        self._recorder = TimelineRecorder(LIMITS)

    def note_event(self, event: Event) -> None:
        with self._lock:
            if not self._recorder.runs and not self._recorder.spans:
                # The first event was there before this module was.
                self._recorder.began = event.time_ns - _duration(event)
            self._recorder.note_event(event)

    def timeline(self) -> Timeline:
        with self._lock:
            return self._recorder.timeline(" ".join(sys.argv))

    def write(self) -> None:
        """Write the file, and say so. A child of a fork has the records of its parent and leaves them to it."""
        if os.getpid() != self._process:
            return
        try:
            write_profile(self.timeline(), self._path)
        except FileError as error:
            sys.stderr.write(f"profile: {error.message}\n")
            return
        sys.stderr.write(
            f"profile: {self._path}; open it at ui.perfetto.dev, or `tilewright stats {self._path.name}`\n"
        )


def _duration(event: Event) -> int:
    """Nanoseconds; stages count in those, and what ran in seconds."""
    fields: dict[str, Any] = event.fields
    return int(fields["nanoseconds"]) if "nanoseconds" in fields else round(fields["seconds"] * 1e9)


_profiler = Profiler()
note_event = _profiler.note_event
atexit.register(_profiler.write)

__all__ = ["DEFAULT_FILE", "note_event"]

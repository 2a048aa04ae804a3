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
    """The runs of the process so far. One for the process: its threads share the devices."""

    def __init__(self) -> None:
        self._lock = renewed_lock()
        self._process = os.getpid()
        # Made absolute now: a program may change its working folder.
        self._path = Path(options.PROFILE_FILE or DEFAULT_FILE).absolute()
        self._recorder = TimelineRecorder(LIMITS)

    def note_event(self, event: Event) -> None:
        with self._lock:
            if not self._recorder.runs and not self._recorder.spans:
                # The first event began before this module was loaded.
                self._recorder.began = event.time_ns - _duration(event)
            self._recorder.note_event(event)

    def timeline(self) -> Timeline:
        with self._lock:
            return self._recorder.timeline(" ".join(sys.argv))

    def write(self) -> None:
        """Writes the file, and says so on stderr. The child of a fork leaves the records of its parent to it."""
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
    """In nanoseconds: stages have those, runs have seconds."""
    fields: dict[str, Any] = event.fields
    return int(fields["nanoseconds"]) if "nanoseconds" in fields else round(fields["seconds"] * 1e9)


_profiler = Profiler()
note_event = _profiler.note_event
atexit.register(_profiler.write)

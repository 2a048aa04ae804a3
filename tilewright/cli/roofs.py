"""The roofs of a trace. In: the runs on each device. Out: the peaks of these devices, for the web page."""

from __future__ import annotations

from tilewright.base.config import Context
from tilewright.cli.peaks import known_peaks, machine_peaks
from tilewright.debug.trace.records import Trace
from tilewright.debug.viz import Roof


def roofs_of(trace: Trace, measures: bool) -> dict[str, Roof]:
    """The peaks of the devices that ran something: those that were measured before, or all where that is asked for."""
    found: dict[str, Roof] = {}
    for device in dict.fromkeys(run.device for run in trace.runs if run.kind == "kernel"):
        with Context(JIT=0):
            peaks = machine_peaks(device) if measures else known_peaks(device)
        if peaks is not None:
            found[device] = Roof(peaks.operations, peaks.bandwidth)
    return found

"""Timelines as the JSON that Perfetto and Chrome read. In: a `Timeline`. Out: its text, and the timeline again.

A process of the view stands for the host, with a row per thread (stages of the compiler, replays of jitted functions),
another for the devices, with a row per queue (kernels, copies) and a curve of the memory that is allocated. Times are
microseconds, as the format has them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tilewright.base.errors import FileError
from tilewright.debug import describe
from tilewright.debug.trace.records import Level, Location, Run, Span, Timeline

HOST, DEVICES = 1, 2
KIND = "tilewright profile"
_REMEDY = "give a file that PROFILE=1 wrote"

Values = dict[str, Any]


def chrome_values(timeline: Timeline) -> Values:
    """The whole file."""
    threads = list(dict.fromkeys([*(s.thread for s in timeline.spans), *(r.thread for r in timeline.runs)]))
    queues = list(dict.fromkeys(run.device for run in timeline.runs if run.kind != "replay"))
    rows = {("host", name): number for number, name in enumerate(threads, 1)}
    rows |= {("device", name): number for number, name in enumerate(queues, 1)}
    events = [
        *_names(HOST, "host", threads),
        *_names(DEVICES, "devices", queues),
        *(_span_event(span, rows) for span in timeline.spans),
        *(_run_event(run, rows) for run in timeline.runs),
        *(_level_event(level) for level in timeline.memory),
    ]
    other = {"kind": KIND, "program": timeline.program, "notes": list(timeline.notes)}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _names(process: int, name: str, rows: Iterable[str]) -> Iterator[Values]:
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    for number, row in enumerate(rows, 1):
        yield {"ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": {"name": row}}


def _span_event(span: Span, rows: dict[tuple[str, str], int]) -> Values:
    args = {"line": _line_text(span.line), "location": span.line, "stage": span.stage}
    return _complete(span.name, "compile", HOST, rows["host", span.thread], span.start, span.duration, args)


def _run_event(run: Run, rows: dict[tuple[str, str], int]) -> Values:
    args: Values = {"line": _line_text(run.line), "location": run.line, "device": run.device, "thread": run.thread}
    args |= {"operations": run.operations, "bytes": run.bytes_moved, "nanoseconds": run.duration}
    if run.duration:
        args |= {"GFLOP/s": round(run.operations / run.duration, 3), "GB/s": round(run.bytes_moved / run.duration, 3)}
    if run.kind == "replay":
        args["kernels"] = list(run.names)
        return _complete(run.name, run.kind, HOST, rows["host", run.thread], run.start, run.duration, args)
    return _complete(run.name, run.kind, DEVICES, rows["device", run.device], run.start, run.duration, args)


def _complete(name: str, category: str, process: int, row: int, start: int, duration: int, args: Values) -> Values:
    times = {"ts": start / 1000, "dur": duration / 1000}
    return {"ph": "X", "name": name, "cat": category, "pid": process, "tid": row, **times, "args": args}


def _level_event(level: Level) -> Values:
    name = f"memory of {level.device}"
    return {"ph": "C", "name": name, "pid": DEVICES, "ts": level.time / 1000, "args": {"bytes": level.allocated}}


def _line_text(line: Location | None) -> str:
    return "" if line is None else describe.show_location(line)


# ---------------------------------------------------------------- files


def write_profile(timeline: Timeline, path: Path) -> None:
    text = json.dumps(chrome_values(timeline), separators=(",", ":"), allow_nan=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        remedy = "name another with PROFILE_FILE"
        raise FileError("profile", f"{path} cannot be written: {error.strerror}", remedy) from error


def read_profile(path: Path) -> Timeline:
    """The timeline that was written; events of other programs in the file are left alone."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError("profile", f"{path} cannot be read: {error.strerror}", _REMEDY) from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FileError("profile", f"{path} is not JSON: {error}", _REMEDY) from error
    if not isinstance(values, dict) or not isinstance(values.get("otherData"), dict):
        raise FileError("profile", f"{path} is not a profile", _REMEDY)
    other = values["otherData"]
    if other.get("kind") != KIND or not isinstance(values.get("traceEvents"), list):
        raise FileError("profile", f"{path} is not a profile of this package", _REMEDY)
    try:
        return _timeline(values["traceEvents"], other)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError("profile", f"{path} is damaged: {error!r}", _REMEDY) from error


def _timeline(events: list[Values], other: Values) -> Timeline:
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == HOST}
    runs: list[Run] = []
    spans: list[Span] = []
    memory: list[Level] = []
    for event in events:
        args = event.get("args", {})
        if event["ph"] == "C":
            device = event["name"].removeprefix("memory of ")
            memory.append(Level(round(event["ts"] * 1000), device, int(args["bytes"])))
        elif event["ph"] == "X":
            times = round(event["ts"] * 1000), round(event["dur"] * 1000)
            line = None if args["location"] is None else (str(args["location"][0]), int(args["location"][1]))
            if event["cat"] == "compile":
                spans.append(Span(args["stage"], event["name"], *times, threads[event["tid"]], line))
            else:
                work = int(args["operations"]), int(args["bytes"])
                names, thread = tuple(args.get("kernels", ())), str(args["thread"])
                run = Run(event["cat"], event["name"], args["device"], *times, *work, line, thread, None, None, names)
                runs.append(run)
    return Timeline(str(other["program"]), tuple(runs), tuple(spans), tuple(memory), tuple(map(str, other["notes"])))

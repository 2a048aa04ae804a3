"""The web view of a trace. In: a `Trace`, and the peaks of devices where they are known. Out: one HTML document that
holds the trace and loads nothing else. `tilewright viz` serves it, `tilewright trace --html` writes it to a file.

Script and style are inlined, and the content security policy allows only this script, by its hash. The trace is in it
as JSON without any `<`: no name or text of a program can end the element that it is in."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from tilewright.base.errors import FileError
from tilewright.debug.trace.encode import to_values
from tilewright.debug.trace.records import FORMAT, Timeline, Trace
from tilewright.llm.serve.page import hash_source

# The order in which the scripts stand in the document.
SCRIPTS = ("model.js", "layout.js", "graph.js", "text.js", "charts.js", "search.js", "views.js", "app.js")


class Roof(NamedTuple):
    """The peaks of a device: operations and bytes a second."""

    operations: float
    bandwidth: float


def trace_page(trace: Trace, roofs: Mapping[str, Roof] | None = None) -> str:
    """The document."""
    script = "".join(map(read_file, SCRIPTS))
    style = read_file("page.css")
    policy = (
        f"default-src 'none'; script-src {hash_source(script)}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    values = {"trace": to_values(trace), "peaks": {device: roof._asdict() for device, roof in (roofs or {}).items()}}
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(f"{trace.program}: tilewright"),
        "STYLE": style,
        "DATA": escaped_json(values),
        "SCRIPT": script,
    }
    # Inserted text is not searched: a trace may contain the marks of this template.
    document = []
    rest = read_file("page.html")
    for name, text in parts.items():
        before, _, rest = rest.partition(f"/*{name}*/")
        document += [before, text]
    return "".join([*document, rest])


def escaped_json(values: object) -> str:
    """JSON that can stand in a script element: `<`, `>` and `&` are written as escapes, and so are line separators."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def write_page(trace: Trace, path: Path, roofs: Mapping[str, Roof] | None = None) -> None:
    try:
        path.write_text(trace_page(trace, roofs), encoding="utf-8")
    except OSError as error:
        remedy = "name a file in a folder of yours"
        raise FileError("viz", f"{path} cannot be written: {error.strerror}", remedy) from error


def trace_of(timeline: Timeline) -> Trace:
    """A profile as a trace that has times alone."""
    times = [(run.start, run.start + run.duration) for run in timeline.runs]
    times += [(span.start, span.start + span.duration) for span in timeline.spans]
    first = min((start for start, _ in times), default=0)
    last = max((end for _, end in times), default=0)
    return Trace(
        format=FORMAT,
        program=timeline.program,
        outcome="profiled",
        versions=(),
        options=(),
        duration=last - first,
        lines=(),
        steps=(),
        kernels=(),
        runs=timeline.runs,
        spans=timeline.spans,
        memory=timeline.memory,
        calls=(),
        notes=timeline.notes,
    )


def read_file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")

"""`tilewright trace`. In: a program, how deep to look and which files to write. Out: the program's own output, then its
trace as text; as JSON where asked for. Exit status is the program's."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.cli.programs import Outcome, Script, find_program
from tilewright.debug.trace.encode import write_trace
from tilewright.debug.trace.lines import LineRecorder
from tilewright.debug.trace.recorder import Recorder
from tilewright.debug.trace.records import Limits, Trace
from tilewright.debug.trace.text import trace_lines

DEFAULT_DEPTH = 3
# Where a file has the whole trace, the terminal shows the lines that made work.
DEPTH_BESIDE_FILE = 1


@dataclass(frozen=True)
class TraceRequest:
    """The arguments of the command. `given` is the script and its arguments; a `depth` of None is the default."""

    given: tuple[str, ...]
    module: str = ""
    depth: int | None = None
    lines: bool = False
    json: Path | None = None
    html: Path | None = None
    limits: Limits = field(default_factory=Limits)


def run_trace(request: TraceRequest) -> int:
    """Runs the program and writes its trace; the exit status is the program's."""
    program = find_program("trace", request.given, request.module)
    trace, outcome = trace_program(program, request.lines, request.limits)
    sys.stdout.flush()
    if request.json is not None:
        write_trace(trace, request.json)
    if request.html is not None:
        from tilewright.cli.roofs import roofs_of
        from tilewright.debug.viz import write_page

        write_page(trace, request.html, roofs_of(trace, measures=False))
    depth = request.depth
    if depth is None:
        depth = DEFAULT_DEPTH if request.json is None and request.html is None else DEPTH_BESIDE_FILE
    if depth > 0:
        print_lines(trace, depth)
    return outcome.status


def trace_program(program: Script, with_lines: bool = False, limits: Limits | None = None) -> tuple[Trace, Outcome]:
    """The trace of a program, and how the program ended. What it recorded before an error is kept."""
    recorder, lines = Recorder(limits), LineRecorder(limits)
    with ExitStack() as stack:
        stack.enter_context(recorder)
        if with_lines:
            stack.enter_context(lines)
        outcome = program.run_to_end()
    return recorder.trace(str(program), outcome.words, lines.calls(), lines.notes()), outcome


def print_lines(trace: Trace, depth: int) -> None:
    """Prints the trace, until a reader such as `head` closes the pipe."""
    try:
        for line in trace_lines(trace, depth):
            sys.stdout.write(line.rstrip() + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()

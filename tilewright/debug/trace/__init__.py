"""A program from its lines to machine code. In: a program. Out: a `Trace`, and that as text or JSON.

    with Recorder() as recorder:
        (Tensor([1, 2, 3]) + 2).tolist()
    print(trace_text(recorder.trace("program.py", "finished"), depth=3))

`recorder.py` listens to events, `lines.py` follows the executed lines of the package, and both fill the records of
`records.py`, from which everything else is made. The command is `tilewright trace`."""

from tilewright.debug.trace.encode import read_trace, write_trace
from tilewright.debug.trace.lines import LineRecorder
from tilewright.debug.trace.recorder import Recorder
from tilewright.debug.trace.records import Limits, Trace
from tilewright.debug.trace.text import trace_text

__all__ = ["Limits", "LineRecorder", "Recorder", "Trace", "read_trace", "trace_text", "write_trace"]

"""Inspecting what the compiler did. In: tensors and events. Out: records and text. Imported by nothing in the package.
`explain(tensor)` shows every stage of one expression; the option DEBUG prints events as they happen (printer.py)."""

from tilewright.debug.dump import dump
from tilewright.debug.explain import Explanation, explain
from tilewright.debug.explained import ExplainedKernel
from tilewright.debug.replay import Outcome, replay
from tilewright.debug.watch import KernelRun, watch_runs
from tilewright.graph.text.repro import Repro, load_repro, read_repro

__all__ = [
    "ExplainedKernel",
    "Explanation",
    "KernelRun",
    "Outcome",
    "Repro",
    "dump",
    "explain",
    "load_repro",
    "read_repro",
    "replay",
    "watch_runs",
]

"""Observers of every run of a schedule. In: a run that is about to start, with its graph and buffers. Out: their
findings when it is done, which may be an error. CHECK_NAN is one; debug/ adds others while it investigates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tilewright.base.records import NamedTuple
from tilewright.engine.execution.run import Execution
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.records import Schedule
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer


class Run(NamedTuple):
    """A run before it starts: `slots` has the buffer of each slot, None for temporary memory."""

    outputs: Sequence[UOp]
    device: str
    bound: BoundGraph
    schedule: Schedule
    slots: list[Buffer | None]


class Guard(Protocol):
    """A watcher's state for one run."""

    def check(self, execution: Execution) -> None:
        """Called when the run is done and its results are recorded on their nodes."""


run_watchers: list[Callable[[Run], Guard]] = []
# Called with a graph that cannot be planned: its outputs, its device and its binding.
plan_watchers: list[Callable[[Sequence[UOp], str, BoundGraph], None]] = []

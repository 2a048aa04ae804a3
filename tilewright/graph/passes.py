"""Passes as data. In: a stage's list of passes and the state they work on. Out: the state after all of them; and for
each pass its events, its time and, where VERIFY_GRAPH is set, the proof that the graph it left is well formed.

A stage is a literal list of `Pass`, which is also its documentation: what a pass needs and what it gives. PASS_LIMIT=n
runs the first n of the passes that a right result does not need, so that a wrong one can be found by bisection."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from tilewright.base import events
from tilewright.base.config import options
from tilewright.base.records import NamedTuple, mutable_record
from tilewright.base.target import Target
from tilewright.graph.uop import UOp


class State(Protocol):
    """What the passes of a stage work on."""

    @property
    def graph(self) -> tuple[UOp, ...]:
        """The roots of the graph as it is now, for those who watch."""

    def verify(self, pass_name: str) -> None:
        """Raises a `VerifyError` that names the pass where the graph breaks the rules of its stage."""


@mutable_record
class KernelState:
    """One kernel on its way through a stage."""

    sink: UOp
    target: Target

    @property
    def graph(self) -> tuple[UOp, ...]:
        return (self.sink,)

    def verify(self, pass_name: str) -> None:
        from tilewright.graph.verification.verify import verify_kernel

        verify_kernel(self.sink, pass_name)


S = TypeVar("S", bound=State)
S_contra = TypeVar("S_contra", bound=State, contravariant=True)


class Pass(NamedTuple, Generic[S_contra]):
    """One step of a stage. It changes the state it is given. Without an optional pass the result is right too."""

    name: str
    run: Callable[[S_contra], None]
    needs: str
    gives: str
    is_optional: bool = False


_optional_passes_run = 0


def optional_passes_run() -> int:
    """How many optional passes the process has run while PASS_LIMIT was set; what a bisection searches over."""
    return _optional_passes_run


def reset_pass_count() -> None:
    """Count from zero again, so that one process can try several values of PASS_LIMIT."""
    global _optional_passes_run
    _optional_passes_run = 0


def run_passes(stage: str, passes: Sequence[Pass[S]], state: S) -> None:
    """Each pass in turn. The events "pass-start" and "pass-end" hold the roots of the graph before and after it."""
    limit, is_verified = options.PASS_LIMIT, options.VERIFY_GRAPH
    verified: tuple[UOp, ...] = ()
    if is_verified:
        state.verify("what the stage is given")
        verified = state.graph
    for step in passes:
        if limit >= 0 and step.is_optional and not _count_optional(limit):
            continue
        if "pass-start" in events.listeners:
            events.emit("pass-start", stage=stage, name=step.name, graph=state.graph, run=step.run)
        start = time.perf_counter_ns()
        step.run(state)
        spent = time.perf_counter_ns() - start
        events.add_pass_time(stage, step.name, spent)
        if is_verified and state.graph != verified:
            state.verify(step.name)
            verified = state.graph
        if "pass-end" in events.listeners:
            events.emit("pass-end", stage=stage, name=step.name, graph=state.graph, nanoseconds=spent)


def _count_optional(limit: int) -> bool:
    """Counts an optional pass. False where PASS_LIMIT forbids it."""
    global _optional_passes_run
    if _optional_passes_run >= limit:
        return False
    _optional_passes_run += 1
    return True

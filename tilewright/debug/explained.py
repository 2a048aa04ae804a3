"""The stages of an expression, as records. In: the result of each stage. Out: plain text. `explain.py` fills them,
`layout.py` prints them in panels."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.debug import describe
from tilewright.debug.describe import AxisFacts
from tilewright.graph.records import Opt, Schedule


@dataclass(frozen=True)
class ExplainedKernel:
    """The result of each stage for one kernel, in order."""

    name: str
    device: str
    line: tuple[str, int] | None  # the user's line it comes from
    expression: str  # what it computes, over the loops that the scheduler made
    opts: tuple[Opt, ...]
    reason: str  # the template and the plan that the opts are of, and what it was compared with
    axes: tuple[AxisFacts, ...]  # after the opts, outermost first
    optimised: str  # the same computation over those axes
    program: str  # in order, inside its loops
    source: str
    assembly: str
    operations: int
    bytes_moved: int
    stage_times: dict[str, int]  # nanoseconds, of the compilation that made it

    @property
    def location(self) -> str:
        return describe.show_location(self.line)


@dataclass(frozen=True)
class Stages:
    """The result of each stage for an expression."""

    graph: str  # the nodes of the tensors; `graph.text.parse` reads it back
    items: tuple[str, ...]  # the schedule, an item a line
    kernels: tuple[ExplainedKernel, ...]  # of the items that are kernels, in order
    stage_times: dict[str, int]  # nanoseconds: binding and scheduling, then the stages of all kernels together
    plan: Schedule

    def text(self) -> str:
        """All of it as plain text."""
        parts = [_titled("graph", self.graph), _titled("schedule", "\n".join(self.items))]
        for kernel in self.kernels:
            axes = " ".join(map(str, kernel.axes)) or "none"
            facts = f"axes {axes}\nopts {describe.show_opts(kernel.opts)}\n{kernel.reason}\n{kernel.optimised}"
            parts += [
                _titled(f"kernel {kernel.name}, as scheduled ({kernel.location})", kernel.expression),
                _titled(f"kernel {kernel.name}, optimised", facts),
                _titled(f"program {kernel.name}", kernel.program),
                _titled(f"source of {kernel.name}", kernel.source),
                _titled(f"assembly of {kernel.name}", kernel.assembly),
                _titled(f"times of {kernel.name}", describe.show_stage_times(kernel.stage_times)),
            ]
        parts.append(_titled("times", describe.show_stage_times(self.stage_times)))
        return "\n".join(parts)


def _titled(title: str, text: str) -> str:
    return f"==== {title}\n{text.rstrip()}\n"

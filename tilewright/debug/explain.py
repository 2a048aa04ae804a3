"""Every stage of one expression. In: lazy tensors. Out: an `Explanation`, which holds what each stage made of them and
how long it took, and prints itself. Stands beside the flow: it calls the stages as `realize` does, and runs nothing.

    from tilewright.debug import explain

    explain((x @ w + b).softmax()).print()

What it compiles is kept in the caches, so a `realize` that follows only runs. A kernel that was compiled before shows
the times of then; `with Context(CACHE=0):` leaves out the disk cache, so that the compiler's time is in the record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import RealizeError
from tilewright.base.events import stage_times
from tilewright.debug import describe
from tilewright.debug.describe import AxisFacts
from tilewright.engine.compile import CompiledKernel, compile_kernel
from tilewright.engine.parts import held_buffer
from tilewright.engine.realize import schedule
from tilewright.graph.records import Item, Opt, Schedule
from tilewright.graph.text.show import show, show_program
from tilewright.runtime.device import open_driver


@dataclass(frozen=True)
class ExplainedKernel:
    """What became of one kernel, in the order it happened."""

    name: str
    device: str
    line: tuple[str, int] | None  # the user's line it comes from
    expression: str  # what it computes, over the loops that the scheduler made
    opts: tuple[Opt, ...]
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
class Explanation:
    """What became of an expression."""

    graph: str  # the nodes of the tensors; `graph.show.parse` reads it back
    items: tuple[str, ...]  # the schedule, an item a line
    kernels: tuple[ExplainedKernel, ...]  # of the items that are kernels, in order
    stage_times: dict[str, int]  # nanoseconds: binding and scheduling, then the stages of all kernels together
    plan: Schedule

    def text(self) -> str:
        """All of it as plain text."""
        parts = [_titled("graph", self.graph), _titled("schedule", "\n".join(self.items))]
        for kernel in self.kernels:
            axes = " ".join(map(str, kernel.axes)) or "none"
            facts = f"axes {axes}\nopts {describe.show_opts(kernel.opts)}\n{kernel.optimised}"
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

    def print(self, console: Any = None, lines: int | None = None) -> None:
        """Print it in panels to a `rich` console (stdout where none is given), each text cut after `lines` lines."""
        from tilewright.debug.layout import print_explanation

        print_explanation(self, console, lines)


def explain(*tensors: Any) -> Explanation:
    """Take lazy tensors of one device through every stage but the last: what is compiled here is not run."""
    wanted = [tensor.uop for tensor in tensors if held_buffer(tensor.uop) is None]
    if not wanted:
        raise RealizeError(
            "explain",
            "the value is there already, so there is nothing left to compile",
            "explain an expression before it is realised",
        )
    before = dict(stage_times)
    plan = schedule(wanted, tensors[0].device)
    spent = {stage: total - before.get(stage, 0) for stage, total in stage_times.items() if total != before.get(stage)}
    kernels = [
        _explain_kernel(item, compile_kernel(item.ast, item.device)) for item in plan.items if item.ast is not None
    ]
    # Two items may be one kernel, which was compiled once.
    for times in {id(kernel.stage_times): kernel.stage_times for kernel in kernels}.values():
        for stage, nanoseconds in times.items():
            spent[stage] = spent.get(stage, 0) + nanoseconds
    items = tuple(describe.show_item(number, item, plan) for number, item in enumerate(plan.items))
    return Explanation("\n".join(show(node) for node in wanted), items, tuple(kernels), spent, plan)


def _explain_kernel(item: Item, kernel: CompiledKernel) -> ExplainedKernel:
    driver = open_driver(item.device)
    return ExplainedKernel(
        name=kernel.program.name,
        device=item.device,
        line=item.line,
        expression=describe.show_kernel(kernel.ast),
        opts=describe.opts_of(kernel.optimised),
        axes=describe.axes_of(kernel.optimised),
        optimised=describe.show_kernel(kernel.optimised),
        program=show_program(kernel.program),
        source=kernel.source,
        assembly=driver.disassemble(kernel.source),
        operations=kernel.program.flops,
        bytes_moved=kernel.program.bytes_moved,
        stage_times=kernel.stage_times,
    )


def _titled(title: str, text: str) -> str:
    return f"==== {title}\n{text.rstrip()}\n"

"""Every stage of one expression. In: lazy tensors. Out: an `Explanation`, which holds what each stage made of them and
how long it took, and prints itself. Stands beside the flow: it calls the stages as `realize` does, and runs nothing.

    from tilewright.debug import explain

    explain((x @ w + b).softmax()).print()

What it compiles is kept in the caches, so a `realize` that follows only runs. A kernel that was compiled earlier shows
the times of that compilation; `with Context(CACHE=0):` leaves out the disk cache, so that the compiler's time is in the
record."""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import RealizeError
from tilewright.base.events import stage_times
from tilewright.debug import describe
from tilewright.debug.explained import ExplainedKernel, Stages
from tilewright.engine.compilation.compile import CompiledKernel, compile_kernel
from tilewright.engine.execution.realize import schedule
from tilewright.engine.memory.parts import held_buffer
from tilewright.graph.records import Item
from tilewright.graph.text.show import show, show_program
from tilewright.kernel.optimise import explain_opts
from tilewright.runtime.device import open_driver


class Explanation(Stages):
    """The result of each stage for an expression, to be read or printed."""

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
        reason=explain_opts(kernel.ast, driver.target, describe.opts_of(kernel.optimised)),
        axes=describe.axes_of(kernel.optimised),
        optimised=describe.show_kernel(kernel.optimised),
        program=show_program(kernel.program),
        source=kernel.source,
        assembly=driver.disassemble(kernel.source),
        operations=kernel.program.flops,
        bytes_moved=kernel.program.bytes_moved,
        stage_times=kernel.stage_times,
    )

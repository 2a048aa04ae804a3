"""An `Explanation` laid out for a terminal. In: the record. Out: panels, tables and coloured text on a `rich` console.
Only printing needs rich, so it is imported with this module and this module with the first print."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tilewright.debug import describe
from tilewright.debug.explained import ExplainedKernel, Stages

# The colours of the terminal itself, so that both light and dark ones stay readable.
THEME = "ansi_dark"
# The width of stdout where it is not a terminal: of panels, and of tables.
PLAIN_WIDTH = 120
TABLE_WIDTH = 200


def make_console(plain_width: int = PLAIN_WIDTH) -> Console:
    """A console on stdout; plain text of a fixed width where that is a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=plain_width)


def print_explanation(explanation: Stages, console: Console | None, lines: int | None) -> None:
    """Every stage in order, then the time of each."""
    console = console or make_console()
    console.print(text_panel("graph", explanation.graph, lines=lines))
    console.print(schedule_panel(explanation))
    for kernel in explanation.kernels:
        for part in kernel_parts(kernel, lines):
            console.print(part)
    console.print(times_table(explanation.stage_times))


def text_panel(title: str, text: str, language: str = "", lines: int | None = None, note: str = "") -> Panel:
    """A text in a frame. What is left out of a long one is counted in the frame."""
    found = text.rstrip("\n").split("\n")
    kept = found if lines is None or len(found) <= lines else found[:lines]
    left_out = len(found) - len(kept)
    shown = "\n".join(kept)
    body: RenderableType = Syntax(shown, language, theme=THEME, background_color="default", word_wrap=False)
    if not language:
        body = Text(shown, no_wrap=True, overflow="ellipsis")
    notes = [note] if note else []
    if left_out:
        notes.append(f"{left_out} more lines")
    return Panel(body, title=title, title_align="left", subtitle="; ".join(notes) or None, subtitle_align="right")


def schedule_panel(explanation: Stages) -> Panel:
    """A row per item: what runs, what it reads and writes, whose line it is."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("item", "device", "reads", "writes", "your line"):
        table.add_column(heading, overflow="fold")
    plan = explanation.plan
    for item in plan.items:
        table.add_row(
            Text(describe.kernel_name(item), style="cyan"),
            item.device,
            "\n".join(describe.show_access(access, plan) for access in item.reads),
            "\n".join(describe.show_access(access, plan) for access in item.writes),
            describe.show_location(item.line),
        )
    return Panel(table, title="schedule", title_align="left")


def kernel_parts(kernel: ExplainedKernel, lines: int | None = None) -> list[RenderableType]:
    """The panels of one kernel, from what it computes to its machine code."""
    return [
        text_panel(f"kernel {kernel.name}: as scheduled", kernel.expression, "python", lines),
        axes_panel(kernel),
        text_panel(f"kernel {kernel.name}: program", kernel.program, "python", lines),
        text_panel(f"kernel {kernel.name}: source", kernel.source, "llvm", lines),
        text_panel(f"kernel {kernel.name}: machine code", machine_code(kernel.assembly), "gas", lines),
    ]


def axes_panel(kernel: ExplainedKernel) -> Panel:
    """The axes with their roles, the opts that gave them, and the computation over them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("axis", "role", "size"):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for axis in kernel.axes:
        table.add_row(Text(axis.name, style="cyan"), axis.kind.name.lower(), str(axis.size))
    body = Table.grid()
    body.add_row(table)
    body.add_row(Padding(Text(f"opts: {describe.show_opts(kernel.opts)}"), (1, 0, 0, 0)))
    body.add_row(Text(kernel.reason))
    body.add_row(Syntax(kernel.optimised, "python", theme=THEME, background_color="default", word_wrap=True))
    return Panel(body, title=f"kernel {kernel.name}: axes", title_align="left")


def times_table(stage_times: Mapping[str, int], title: str = "time of each stage") -> Table:
    """A row and a bar per stage, and the sum."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    table.add_column("stage")
    table.add_column("time", justify="right")
    table.add_column("share")
    total = max(1, sum(stage_times.values()))
    for stage, spent in describe.ordered_stages(stage_times):
        bar = "█" * max(1, round(40 * spent / total))
        table.add_row(stage, describe.show_seconds(spent / 1e9), Text(bar, style="cyan"))
    table.add_row("all", describe.show_seconds(total / 1e9), "", style="bold")
    return table


def machine_code(assembly: str) -> str:
    """The instructions and labels, without the directives and comments that only an assembler reads."""
    kept = []
    for line in assembly.splitlines():
        text = re.split(r"\s+(?:#|//) ", line)[0].expandtabs(8).rstrip()
        is_label = text.endswith(":")
        if text.strip() and (is_label or not text.lstrip().startswith((".", "#", "//"))):
            kept.append(text)
    return "\n".join(kept)

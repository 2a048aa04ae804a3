"""Short descriptions of what the stages made. In: kernels, schedules, times, locations. Out: text for a line or a
table. The printer and `explain` share these functions, so that they describe a kernel in the same words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Access, Item, KernelInfo, Opt, Schedule
from tilewright.graph.text.arguments import axis_name
from tilewright.graph.text.show import show_expression
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import view_kernel

# ---------------------------------------------------------------- numbers and locations


def show_seconds(seconds: float) -> str:
    """Three digits and the unit that fits: `12.3 us`, `1.23 ms`, `12.3 s`."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds)} s"


def show_nanoseconds(count: float) -> str:
    return show_seconds(count / 1e9)


def show_bytes(count: int) -> str:
    """`512 B`, `32.8 kB`, `1.02 MB`: thousands, as GB/s counts them."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{_three_digits(size)} {unit}"


def giga_per_second(amount: int, seconds: float) -> str:
    """Thousand millions a second, in three digits; `-` where the measured time is 0."""
    return _three_digits(amount / seconds / 1e9) if seconds > 0 else "-"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def show_stage_times(stage_times: Mapping[str, int]) -> str:
    """`kernel 1.23 ms, codegen 2.34 ms, ... = 5.67 ms`, in the order the stages ran."""
    parts = [f"{stage} {show_seconds(spent / 1e9)}" for stage, spent in ordered_stages(stage_times)]
    total = show_seconds(sum(stage_times.values()) / 1e9)
    return ", ".join(parts) + f" = {total}"


STAGES = ("bind", "schedule", "kernel", "codegen", "render", "cache", "compile", "load")


def ordered_stages(stage_times: Mapping[str, int]) -> list[tuple[str, int]]:
    """The stages that took time, in the order of the flow; those that are not in it come last."""
    ranks = {stage: number for number, stage in enumerate(STAGES)}
    taken = [(stage, spent) for stage, spent in stage_times.items() if spent > 0]
    return sorted(taken, key=lambda entry: (ranks.get(entry[0], len(ranks)), entry[0]))


def show_location(line: tuple[str, int] | None) -> str:
    """The user's file and line: relative to the working folder if the file is below it, else its last folder and
    name."""
    if line is None:
        return "(no line)"
    path, number = line
    if os.path.isabs(path):
        folder = os.path.join(os.getcwd(), "")
        parts = path.split(os.sep)
        path = path[len(folder) :] if path.startswith(folder) else os.sep.join(parts[-2:])
    return f"{path}:{number}"


# ---------------------------------------------------------------- schedules


def kernel_name(item: Item) -> str:
    """The name of an item's kernel as the program will have it; a copy is called so."""
    if item.ast is None:
        return "copy"
    return item.ast.arg.name if isinstance(item.ast.arg, KernelInfo) and item.ast.arg.name else "kernel"


def show_access(access: Access, plan: Schedule) -> str:
    """`s3 float32[2048]`: a slot of the schedule, and which of its elements where it is not all of them."""
    slot = plan.slots[access.slot]
    text = f"s{access.slot} {slot.dtype.name}[{slot.size}]"
    if (access.start, access.stop) == (0, slot.nbytes):
        return text
    return f"{text} from {access.start // slot.dtype.itemsize} to {access.stop // slot.dtype.itemsize}"


def show_item(number: int, item: Item, plan: Schedule) -> str:
    """One line: what runs, what it reads, what it writes, and the line of the user's program it comes from."""
    reads = ", ".join(show_access(access, plan) for access in item.reads) or "nothing"
    writes = ", ".join(show_access(access, plan) for access in item.writes) or "nothing"
    return f"{number} {kernel_name(item)} on {item.device}: {reads} -> {writes}  {show_location(item.line)}"


# ---------------------------------------------------------------- kernels


class AxisFacts(NamedTuple):
    """One axis of a kernel: its name as in the expressions, the role it plays, its size."""

    name: str
    kind: AxisType
    size: int

    def __str__(self) -> str:
        return f"{self.name}:{self.kind.name}({self.size})"


def axes_of(sink: UOp) -> tuple[AxisFacts, ...]:
    """The axes of a kernel, outermost first."""
    return tuple(AxisFacts(axis_name(axis), axis.arg.kind, size_of(axis)) for axis in view_kernel(sink).axes)


def opts_of(optimised: UOp) -> tuple[Opt, ...]:
    """The transforms that the kernel stage applied."""
    return optimised.arg.applied if isinstance(optimised.arg, KernelInfo) else ()


def show_opts(opts: tuple[Opt, ...]) -> str:
    """`UPCAST(1, 32), THREAD(0, 8)`: the transform, its axis, its amount."""
    return ", ".join(f"{opt.op.name}({opt.axis}, {opt.arg})" for opt in opts) or "none"


def show_kernel(sink: UOp) -> str:
    """What a kernel computes, one assignment a line: `p0[L0*32 + L1] = reduce(p1[L0*32 + R2], R2, Ops.ADD)`."""
    lines = []
    for part in sink.src:
        if part.op is Ops.STORE:
            lines.append(f"{show_expression(part.src[0])} = {show_expression(part.src[1])}")
        else:
            lines.append(show_expression(part))
    return "\n".join(lines)

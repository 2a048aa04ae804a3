"""Why each opt is there, in words. In: a kernel, the opts that were chosen for it, and what led to them. Out: an event
"decision" for each opt. It is called only while the event has a listener; the transforms themselves write no
sentences."""

from __future__ import annotations

from tilewright.base.costs import seconds_of
from tilewright.base.errors import KernelOptError
from tilewright.base.events import emit
from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.text.arguments import axis_name
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import KernelView, is_counted, stride, view_kernel
from tilewright.kernel.cost import roofline_clocks
from tilewright.kernel.templates.template import Choice

MEANINGS = {
    OptOps.TC: "tensor cores take the products",
    OptOps.LOCAL: "threads of a work-group share the loop",
    OptOps.GROUP: "threads of a work-group each sum a part",
    OptOps.GROUPTOP: "threads of a work-group each sum a part",
    OptOps.NOLOCALS: "no work-groups",
    OptOps.PADTO: "padded to a multiple that fills whole vectors, with masks",
    OptOps.SWAP: "the order of two loops is exchanged",
    OptOps.BLOCK: "in blocks, so that what a block reads stays in a cache",
    OptOps.STAGE: "an operand is copied to where the inner loop reads it",
    OptOps.MEMOISE: "values that cost more to compute again than to load are kept for the second loop",
    OptOps.SCATTER: "stores at computed indices are shared out by their targets",
    OptOps.SPILL: "accumulators are spilled to memory between blocks",
    OptOps.CLIP: "the last tile is clipped",
    OptOps.CUT: "cut into parts in which its masks are constant",
    OptOps.ALIGN: "begins at a multiple in memory in every row, with masks",
}


def explain_choice(choice: Choice, view: KernelView) -> str:
    """The template, the plan and its reason, the plans it was compared with, and the lower bound on the time of any
    plan."""
    memory, arithmetic = (seconds_of(clocks, view.target) for clocks in roofline_clocks(view))
    bound = "memory" if memory >= arithmetic else "arithmetic"
    text = f"template {choice.template}, plan {choice.plan.name}: {choice.plan.reason}"
    text += f"; {bound} takes {max(memory, arithmetic) * 1e6:.3g} us at least"
    estimates = [f"{each.plan.name} {each.seconds * 1e6:.3g} us" for each in choice.considered if each.seconds]
    others = [each.plan.name for each in choice.considered if not each.seconds and each.plan is not choice.plan]
    considered = [*estimates, *others]
    return f"{text}; considered: {', '.join(considered)}" if considered else text


def announce_opts(view: KernelView, opts: tuple[Opt, ...], reason: str) -> None:
    """An event for the choice, and one for each opt with the facts of the axis that it is applied to."""
    if not view.axes:
        reason = "it has no loops"
    count = f"{len(opts) or 'no'} opt{'' if len(opts) == 1 else 's'}"
    emit("decision", stage="kernel", choice=count, reason=reason, node=view.sink)
    for opt in opts:
        choice = f"{opt.op.name}({opt.axis}, {opt.arg})"
        emit("decision", stage="kernel", choice=choice, reason=explain_opt(view, opt), node=view.sink)
        made = view.trail.get((view.sink, opt))
        try:
            made = apply_opt(view.sink, opt, view.target) if made is None else made
        except KernelOptError:
            return  # the pass that applies the opts refuses it, at the user's line
        view = view_kernel(made, view.target, view.trail)


def explain_opt(view: KernelView, opt: Opt) -> str:
    """Which loop, what it is, and what the opt does for it."""
    if opt.axis is None or not 0 <= opt.axis < len(view.axes):
        return MEANINGS.get(opt.op, opt.op.name)
    axis = view.axes[opt.axis]
    size = f" of {size_of(axis)}" if is_counted(axis) else ""
    name = f"{axis_name(axis)} ({axis.arg.kind.name.lower()}{size})"
    if opt.op is OptOps.THREAD:
        return f"{name} is shared by threads: each has its own outputs"
    if opt.op in (OptOps.UPCAST, OptOps.UNROLL):
        return f"{name}: {_tile_reason(view, axis)}"
    return f"{name}: {MEANINGS.get(opt.op, opt.op.name)}"


def _tile_reason(view: KernelView, axis: UOp) -> str:
    """A tile axis gives vectors where accesses have stride 1, and reuse where loads do not depend on it."""
    unit = sum(stride(access, axis) == 1 for access in view.accesses)
    reused = sum(axis not in load.ranges for load in view.loads)
    parts = []
    if unit:
        parts.append(f"vectors, stride 1 in {unit} of {len(view.accesses)} accesses")
    if reused:
        parts.append(f"{reused} of {len(view.loads)} loads are reused along it")
    if axis.arg.kind is AxisType.REDUCE:
        parts.append("independent accumulators")
    return "; ".join(parts) or "unrolled, so that instructions of several iterations overlap"

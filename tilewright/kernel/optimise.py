"""The kernel stage. In: a kernel and a target. Out: the same kernel with its axes split and given roles.

accumulators    what users add up by hand becomes reductions (`prepare/accumulators.py`)
prepare_kernel  loops that walk memory as one become one; one that is only ever divided becomes two
opts            those the kernel states, those that search found, or the heuristic's choice
simplify        index maths after the splits"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from tilewright.base.config import options
from tilewright.base.errors import KernelOptError
from tilewright.base.events import stage_timer
from tilewright.base.target import Target, TensorCore
from tilewright.graph.ops import AxisType
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.simplify import simplify
from tilewright.graph.threads import local_bytes, threads_of
from tilewright.graph.uop import UOp
from tilewright.graph.walk import exchange_axis
from tilewright.kernel.analysis.dependence import check_cores
from tilewright.kernel.axes import KernelView, is_counted, make_range, size_of, view_kernel
from tilewright.kernel.heuristics.default import choose_opts
from tilewright.kernel.prepare.accumulators import recognise_accumulators
from tilewright.kernel.prepare.loops import merge_loops, split_loops
from tilewright.kernel.transforms.block import apply_block, block_candidates, check_block
from tilewright.kernel.transforms.clip import apply_clip, check_clip, clip_candidates
from tilewright.kernel.transforms.group import (
    apply_group,
    apply_grouptop,
    check_group,
    check_grouptop,
    group_candidates,
)
from tilewright.kernel.transforms.hold import apply_hold, check_hold, hold_candidates
from tilewright.kernel.transforms.keep import apply_keep, check_keep, keep_candidates
from tilewright.kernel.transforms.local import apply_local, check_local, local_candidates
from tilewright.kernel.transforms.nolocals import apply_nolocals, check_nolocals, nolocals_candidates
from tilewright.kernel.transforms.pad import apply_pad, check_pad, pad_candidates
from tilewright.kernel.transforms.scatter import apply_scatter, check_scatter, scatter_candidates
from tilewright.kernel.transforms.stage import apply_stage, check_stage, stage_candidates
from tilewright.kernel.transforms.swap import apply_swap, check_swap, swap_candidates
from tilewright.kernel.transforms.tensor_core import apply_tensor_core, check_tensor_core
from tilewright.kernel.transforms.thread import apply_thread, check_thread, thread_candidates
from tilewright.kernel.transforms.unroll import apply_unroll, check_unroll, unroll_candidates
from tilewright.kernel.transforms.upcast import apply_upcast, check_upcast, upcast_candidates

# A target without facts, for those who apply an opt that needs none.
ANY_TARGET = Target("ANY")
# Copied tiles, where the target does not say how much memory it has for them.
MOST_PANEL_BYTES = 256 * 1024


class Transform(NamedTuple):
    """`candidates` proposes axes and arguments for search; each is checked like one a user gave. A transform that takes
    no axis is given the kernel in its place."""

    check: Callable[[KernelView, UOp, Any], str | None]
    apply: Callable[[KernelView, UOp, Any], UOp]
    candidates: Callable[[KernelView], Iterator[tuple[UOp, Any]]]
    takes_axis: bool = True


TRANSFORMS: dict[OptOps, Transform] = {
    OptOps.UPCAST: Transform(check_upcast, apply_upcast, upcast_candidates),
    OptOps.UNROLL: Transform(check_unroll, apply_unroll, unroll_candidates),
    OptOps.THREAD: Transform(check_thread, apply_thread, thread_candidates),
    OptOps.LOCAL: Transform(check_local, apply_local, local_candidates),
    OptOps.GROUP: Transform(check_group, apply_group, group_candidates),
    OptOps.GROUPTOP: Transform(check_grouptop, apply_grouptop, group_candidates),
    OptOps.NOLOCALS: Transform(check_nolocals, apply_nolocals, nolocals_candidates, takes_axis=False),
    OptOps.PADTO: Transform(check_pad, apply_pad, pad_candidates),
    OptOps.SWAP: Transform(check_swap, apply_swap, swap_candidates),
    OptOps.BLOCK: Transform(check_block, apply_block, block_candidates),
    OptOps.STAGE: Transform(check_stage, apply_stage, stage_candidates),
    OptOps.KEEP: Transform(check_keep, apply_keep, keep_candidates),
    OptOps.SCATTER: Transform(check_scatter, apply_scatter, scatter_candidates),
    OptOps.HOLD: Transform(check_hold, apply_hold, hold_candidates),
    OptOps.CLIP: Transform(check_clip, apply_clip, clip_candidates),
    # Its cores are the target's: search asks `tensor_core_opts`.
    OptOps.TC: Transform(check_tensor_core, apply_tensor_core, lambda view: iter(())),
}


def optimise(sink: UOp, target: Target, found: tuple[Opt, ...] | None = None) -> UOp:
    """The kernel as it will be lowered. A kernel that states its opts gets exactly those; `found` are opts for the
    prepared kernel in place of the heuristic's."""
    with stage_timer("kernel"):
        info = sink.arg if isinstance(sink.arg, KernelInfo) else KernelInfo()
        opts = info.opts_to_apply or ()
        trail: dict[tuple[UOp, Opt], UOp] = {}
        sink = recognise_accumulators(sink)
        if info.opts_to_apply is None and not options.NOOPT:
            sink = prepare_kernel(sink)
            view = view_kernel(sink)
            opts = choose_opts(view, target) if found is None else found
            # The heuristic applies what it chooses, legal opts alone; where graphs are verified that is not believed.
            trail = {} if options.VERIFY_GRAPH else view.trail
        for opt in opts:
            made = trail.get((sink, opt))
            if made is None:
                made = apply_opt(sink, opt, target)
                check_groups(view_kernel(made), opt, target)
            sink = made
        if any(opt.op is OptOps.STAGE for opt in opts):
            # A copy lies as the kernel reads it: loops that leap in a buffer may walk its copy as one.
            sink = merge_loops(sink)
        if not opts:
            check_memory(view_kernel(sink), info.name or "kernel", target)
        sink = sink.replace(arg=replace(info, applied=opts))
        return simplify(to_launch_axes(sink, target))


def prepare_kernel(sink: UOp) -> UOp:
    """The kernel with the loops that the heuristic and search choose opts for."""
    return split_loops(merge_loops(recognise_accumulators(sink)))


def apply_opt(sink: UOp, opt: Opt, target: Target = ANY_TARGET) -> UOp:
    """The kernel after one transform; `KernelOptError` says why it may not be applied."""
    transform = TRANSFORMS.get(opt.op)
    if transform is None:
        raise KernelOptError(
            f"{opt}", f"{opt.op.name} is not available", f"use one of {', '.join(o.name for o in TRANSFORMS)}"
        )
    view = view_kernel(sink)
    if not transform.takes_axis and opt.axis is not None:
        raise KernelOptError(f"{opt}", f"{opt.op.name} is for the whole kernel", "leave out the axis")
    if transform.takes_axis and (opt.axis is None or not 0 <= opt.axis < len(view.axes)):
        raise KernelOptError(
            f"{opt}", f"the kernel has axes 0 to {len(view.axes) - 1}: {describe_axes(view)}", "name one of them"
        )
    axis = view.sink if opt.axis is None else view.axes[opt.axis]
    argument = find_core(opt, target) if opt.op is OptOps.TC else opt.arg
    reason = transform.check(view, axis, argument)
    if reason is not None:
        raise KernelOptError(
            f"{opt}", f"{reason}; axes: {describe_axes(view)}", "choose an axis and amount that satisfy this"
        )
    return transform.apply(view, axis, argument)


def find_core(opt: Opt, target: Target) -> TensorCore:
    """The tensor core that an opt names."""
    for core in target.tensor_cores:
        if core.name == opt.arg:
            return core
    known = ", ".join(core.name for core in target.tensor_cores) or "none"
    raise KernelOptError(f"{opt}", f"{target.name} has no tensor core {opt.arg!r}", f"name one of: {known}")


def check_groups(view: KernelView, opt: Opt, target: Target) -> None:
    """Refuses work-groups that the target cannot run, and more local memory than it has."""
    is_grouped = bool(view.of_kind(AxisType.LOCAL, AxisType.GROUP))
    if is_grouped and not target.has_local:
        raise KernelOptError(
            f"{opt}", f"{opt.op.name} needs work-groups, {target.name} has none", "use THREAD or UPCAST"
        )
    size = threads_of(view.sink).count if is_grouped else 1
    if size > target.max_group_size:
        raise KernelOptError(
            f"{opt}",
            f"a work-group of {size} is larger than {target.max_group_size}, the most that {target.name} runs; "
            f"axes: {describe_axes(view)}",
            "choose a smaller amount",
        )
    check_memory(view, f"{opt}", target)


def check_memory(view: KernelView, subject: str, target: Target) -> None:
    """Refuses more local memory than the target has, placeholders included."""
    used = local_bytes(view.sink, target.warp_size)
    most = target.max_local_bytes if target.has_local else target.max_local_bytes or MOST_PANEL_BYTES
    if used > most:
        raise KernelOptError(
            subject,
            f"{used} bytes of local memory are more than {most}, which {target.name} has; axes: {describe_axes(view)}",
            "choose a smaller amount, or smaller tiles",
        )


def describe_axes(view: KernelView) -> str:
    sizes = (size_of(axis) if is_counted(axis) else "computed" for axis in view.axes)
    return ", ".join(f"{n}:{axis.arg.kind.name}({size})" for n, (axis, size) in enumerate(zip(view.axes, sizes)))


def to_launch_axes(sink: UOp, target: Target) -> UOp:
    """On a target with a grid, output loops that no work-group claims are the grid."""
    if target.has_threads or not target.has_local:
        return sink
    view = view_kernel(sink)
    for axis in view.of_kind(AxisType.LOOP):
        if axis not in view.reduce_axes and is_counted(axis) and check_cores(view, axis) is None:
            if all(axis in node.ranges for node in view.reduces if node.ranges):
                sink = exchange_axis(sink, axis, make_range(size_of(axis), axis.arg.id, AxisType.GLOBAL))
    return sink

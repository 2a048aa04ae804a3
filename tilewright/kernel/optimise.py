"""The kernel stage. In: a kernel and a target. Out: the same kernel with its axes split and given roles.

accumulators    what users add up by hand becomes reductions (`prepare/accumulators.py`)
prepare_kernel  loops that walk memory as one become one; one that is only ever divided becomes two
opts            those the kernel states, those that search found, or the heuristic's choice
simplify        index maths after the splits"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.config import options
from tilewright.base.events import stage_timer
from tilewright.base.target import Target
from tilewright.graph.ops import AxisType
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp
from tilewright.graph.walk import exchange_axis
from tilewright.kernel.analysis.dependence import check_cores
from tilewright.kernel.apply import apply_opt, check_limits
from tilewright.kernel.axes import is_counted, make_range, size_of, view_kernel
from tilewright.kernel.heuristics.default import choose_opts
from tilewright.kernel.prepare.accumulators import recognise_accumulators
from tilewright.kernel.prepare.loops import merge_loops, split_loops


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
            view = view_kernel(sink, target)
            opts = choose_opts(view) if found is None else found
            # The heuristic applies what it chooses, legal opts alone; where graphs are verified that is not believed.
            trail = {} if options.VERIFY_GRAPH else view.trail
        for opt in opts:
            made = trail.get((sink, opt))
            if made is None:
                made = apply_opt(sink, opt, target)
            sink = made
        if any(opt.op is OptOps.STAGE for opt in opts):
            # A copy lies as the kernel reads it: loops that leap in a buffer may walk its copy as one.
            sink = merge_loops(sink)
        if not opts:
            check_limits(view_kernel(sink, target), info.name or "kernel")
        sink = sink.replace(arg=replace(info, applied=opts))
        return simplify(to_launch_axes(sink, target))


def prepare_kernel(sink: UOp) -> UOp:
    """The kernel with the loops that the heuristic and search choose opts for."""
    return split_loops(merge_loops(recognise_accumulators(sink)))


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

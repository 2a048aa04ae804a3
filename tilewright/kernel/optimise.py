"""The kernel stage. In: a kernel and a target. Out: the same kernel with its axes split and given roles. `PASSES` says
what is done in which order."""

from __future__ import annotations

import itertools
import math

from tilewright.base.config import options
from tilewright.base.events import listeners, stage_timer
from tilewright.base.quota import Quota
from tilewright.base.records import field, mutable_record, replace
from tilewright.base.target import Target
from tilewright.graph.kernels.sections import first_section
from tilewright.graph.ops import Axis, AxisType
from tilewright.graph.passes import KernelState, Pass, run_passes
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp
from tilewright.graph.walk import exchange_axis, size_of
from tilewright.kernel.analysis.dependence import check_cores
from tilewright.kernel.apply import apply_opt, check_limits
from tilewright.kernel.axes import (
    ANY_TARGET,
    is_counted,
    is_uniform,
    make_range,
    padded_size,
    quotient_of,
    split_axis,
    view_kernel,
)
from tilewright.kernel.prepare.accumulators import recognise_accumulators
from tilewright.kernel.prepare.loops import merge_loops, split_loops
from tilewright.kernel.templates.choose import choose_plan
from tilewright.kernel.templates.reasons import announce_opts, explain_choice
from tilewright.kernel.transforms.pad import apply_pad

opt_quota = Quota()  # of OPT_LIMIT
# Work-groups per core of a grid of symbolic size; those that a launch has no work for end at once.
GROUPS_PER_CORE = 16


@mutable_record
class Optimisation(KernelState):
    """A kernel and its opts. `found` are opts for the prepared kernel in place of a template's."""

    info: KernelInfo
    found: tuple[Opt, ...] | None
    opts: tuple[Opt, ...]
    # The kernel after each opt that a template tried, by (kernel, opt).
    trail: dict[tuple[UOp, Opt], UOp] = field(default_factory=dict)


def take_section(state: Optimisation) -> None:
    """Equal sections are compiled once, where the target launches one program on the buffers of each."""
    if state.info.sections == 1:
        return
    if state.target.max_sections > 1:
        state.sink = first_section(state.sink)
    else:
        state.info = replace(state.info, sections=1, section_buffers=0)
        state.sink = state.sink.replace(arg=state.info)


def recognise_sums(state: Optimisation) -> None:
    state.sink = recognise_accumulators(state.sink)


def choose_loops(state: Optimisation) -> None:
    """Merges and splits loops, then chooses opts. The opts that a kernel states are for the loops it has."""
    if state.info.opts_to_apply is not None or options.NOOPT:
        if "decision" in listeners:
            reason = "NOOPT=1" if state.info.opts_to_apply is None else "the kernel states its opts"
            announce_opts(view_kernel(state.sink, state.target), state.opts, reason)
        return
    state.sink = merge_and_split_loops(state.sink, state.target)
    view = view_kernel(state.sink, state.target)
    choice = choose_plan(view) if state.found is None else None
    state.opts = (state.found or ()) if choice is None else choice.opts
    if options.OPT_LIMIT >= 0:
        state.opts = tuple(itertools.takewhile(lambda _: opt_quota.take(options.OPT_LIMIT), state.opts))
    if "decision" in listeners:
        announce_opts(view, state.opts, "found by search" if choice is None else explain_choice(choice, view))
    # The template has checked and applied the opts it chose; with VERIFY_GRAPH that is done again.
    state.trail = {} if options.VERIFY_GRAPH else view.trail


def apply_opts(state: Optimisation) -> None:
    for opt in state.opts:
        made = state.trail.get((state.sink, opt))
        if made is None:
            made = apply_opt(state.sink, opt, state.target)
        state.sink = made
    if not state.opts:
        check_limits(view_kernel(state.sink, state.target), state.info.name or "kernel")
    state.sink = state.sink.replace(arg=replace(state.info, applied=state.opts))


def merge_staged_loops(state: Optimisation) -> None:
    """Loops that are strided in a buffer may be contiguous in its staged copy, and are then one loop."""
    if any(opt.op is OptOps.STAGE for opt in state.opts):
        state.sink = merge_loops(state.sink)


def launch_loops(state: Optimisation) -> None:
    state.sink = to_launch_axes(state.sink, state.target)


def simplify_sink(state: Optimisation) -> None:
    state.sink = simplify(state.sink)


PASSES: tuple[Pass[Optimisation], ...] = (
    Pass("take_section", take_section, "equal sections", "one section, where the target supports sections"),
    Pass(
        "recognise_accumulators", recognise_sums, "a kernel as scheduled or written", "sums made by hand as reductions"
    ),
    Pass("choose_opts", choose_loops, "reductions", "loops merged and split for opts, and the opts", is_optional=True),
    Pass("apply_opts", apply_opts, "legal opts", "axes with roles, within the target's limits"),
    Pass("merge_loops", merge_staged_loops, "staged operands", "loops over a staged copy merged", is_optional=True),
    Pass("to_launch_axes", launch_loops, "output loops", "loops outside of work-groups as grid axes"),
    Pass("simplify", simplify_sink, "split axes", "small index expressions", is_optional=True),
)


def optimise(sink: UOp, target: Target, found: tuple[Opt, ...] | None = None) -> UOp:
    """The kernel as it will be lowered. A kernel that states its opts gets exactly those; `found` are opts for the
    prepared kernel in place of a template's."""
    with stage_timer("kernel"):
        info = sink.arg if isinstance(sink.arg, KernelInfo) else KernelInfo()
        state = Optimisation(sink, target, info, found, info.opts_to_apply or ())
        run_passes("kernel", PASSES, state)
        return state.sink


def explain_opts(sink: UOp, target: Target, applied: tuple[Opt, ...]) -> str:
    """Why a kernel has the opts that were applied, for people: the template and its plan, unless they are stated."""
    info = sink.arg if isinstance(sink.arg, KernelInfo) else KernelInfo()
    if info.opts_to_apply is not None:
        return "the kernel states its opts"
    state = Optimisation(sink, target, info, None, ())
    take_section(state)
    view = view_kernel(prepare_kernel(state.sink, target), target)
    choice = choose_plan(view)
    if choice.opts == applied:
        return explain_choice(choice, view)
    return "NOOPT=1" if options.NOOPT else "found by search"


def prepare_kernel(sink: UOp, target: Target = ANY_TARGET) -> UOp:
    """The kernel with the loops that templates and search choose opts for."""
    return merge_and_split_loops(recognise_accumulators(sink), target)


def merge_and_split_loops(sink: UOp, target: Target) -> UOp:
    return split_loops(merge_loops(sink, merges_symbolic=target.has_local and not target.has_threads))


def to_launch_axes(sink: UOp, target: Target) -> UOp:
    """On a target with a grid, output loops that no work-group claims are the grid."""
    if target.has_threads or not target.has_local:
        return sink
    view = view_kernel(sink)
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if axis not in view.reduce_axes and is_uniform(axis)]
    found = [axis for axis in loops if all(axis in node.ranges for node in view.reduces if node.ranges)]
    found = [axis for axis in found if check_cores(view, axis) is None]
    groups = math.prod(size_of(axis) for axis in (*found, *view.of_kind(AxisType.GLOBAL)) if is_counted(axis))
    for axis in found:
        if is_counted(axis):
            sink = exchange_axis(sink, axis, make_range(size_of(axis), axis.arg.id, AxisType.GLOBAL))
        else:
            most = max(1, target.cores * GROUPS_PER_CORE // groups)
            sink = to_symbolic_grid(sink, axis, 1 << (most.bit_length() - 1))
            groups *= min(most, size_of(axis))
    return sink


def to_symbolic_grid(sink: UOp, axis: UOp, most: int) -> UOp:
    """The kernel with a loop of symbolic size as an axis of the grid. The grid has `most` work-groups along the
    axis for every size; where the size is larger, each work-group has further iterations.

    before: for i in n: out[i] = ...
    after:  for block in n: out[block] = ...                                      where n never exceeds `most`
            for block in 64: for step in (n + 63) // 64: if step*64 + block < n: out[step*64 + block] = ..."""
    if size_of(axis) <= most:
        return exchange_axis(sink, axis, axis.replace(arg=Axis(axis.arg.id, AxisType.GLOBAL)))
    if quotient_of(axis, most) is None:
        sink = apply_pad(view_kernel(sink), axis, most)
        axis = make_range(padded_size(axis, most), axis.arg.id, axis.arg.kind)
    return split_axis(sink, axis, most, AxisType.GLOBAL)

"""The kernel stage. In: a kernel and a target. Out: the same kernel with its axes split and given roles.

merge_loops    loops that walk memory as one become one
split_loops    a loop that is only ever divided becomes two, so that no index divides
opts           those the kernel states, or the heuristic's choice
simplify       index maths after the splits"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tilewright.base.config import options
from tilewright.base.errors import KernelOptError
from tilewright.base.events import stage_timer
from tilewright.base.target import Target
from tilewright.graph.ops import AxisType
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, exchange_axis, make_range, size_of, view_kernel
from tilewright.kernel.heuristic import choose_opts
from tilewright.kernel.loops import merge_loops, split_loops
from tilewright.kernel.transforms.pad import apply_pad, check_pad
from tilewright.kernel.transforms.thread import apply_local, apply_thread, check_local, check_thread
from tilewright.kernel.transforms.unroll import apply_unroll, check_unroll
from tilewright.kernel.transforms.upcast import apply_upcast, check_upcast


class Transform(NamedTuple):
    check: Callable[[KernelView, UOp, int], str | None]
    apply: Callable[[KernelView, UOp, int], UOp]


TRANSFORMS: dict[OptOps, Transform] = {
    OptOps.UPCAST: Transform(check_upcast, apply_upcast),
    OptOps.UNROLL: Transform(check_unroll, apply_unroll),
    OptOps.THREAD: Transform(check_thread, apply_thread),
    OptOps.LOCAL: Transform(check_local, apply_local),
    OptOps.PADTO: Transform(check_pad, apply_pad),
}


def optimise(sink: UOp, target: Target) -> UOp:
    """The kernel as it will be lowered. A kernel that states its opts gets exactly those."""
    with stage_timer("kernel"):
        info = sink.arg if isinstance(sink.arg, KernelInfo) else KernelInfo()
        opts = info.opts_to_apply or ()
        if info.opts_to_apply is None and not options.NOOPT:
            sink = split_loops(merge_loops(sink))
            opts = choose_opts(view_kernel(sink), target)
        for opt in opts:
            sink = apply_opt(sink, opt)
            check_groups(view_kernel(sink), opt, target)
        sink = sink.replace(arg=KernelInfo(info.name, info.opts_to_apply, opts))
        return simplify(to_launch_axes(sink, target))


def apply_opt(sink: UOp, opt: Opt) -> UOp:
    """The kernel after one transform; `KernelOptError` says why it may not be applied."""
    transform = TRANSFORMS.get(opt.op)
    if transform is None:
        raise KernelOptError(
            f"{opt}", f"{opt.op.name} is not available", f"use one of {', '.join(o.name for o in TRANSFORMS)}"
        )
    view = view_kernel(sink)
    if opt.axis is None or not 0 <= opt.axis < len(view.axes):
        raise KernelOptError(
            f"{opt}", f"the kernel has axes 0 to {len(view.axes) - 1}: {describe_axes(view)}", "name one of them"
        )
    axis = view.axes[opt.axis]
    reason = transform.check(view, axis, opt.arg)
    if reason is not None:
        raise KernelOptError(
            f"{opt}", f"{reason}; axes: {describe_axes(view)}", "choose an axis and amount that satisfy this"
        )
    return transform.apply(view, axis, opt.arg)


def check_groups(view: KernelView, opt: Opt, target: Target) -> None:
    """Refuses work-groups that the target cannot run."""
    size = math.prod(size_of(axis) for axis in view.of_kind(AxisType.LOCAL, AxisType.GROUP))
    if size > 1 and not target.has_local:
        raise KernelOptError(f"{opt}", f"LOCAL needs work-groups, {target.name} has none", "use THREAD or UPCAST")
    if size > target.max_group_size:
        raise KernelOptError(
            f"{opt}",
            f"a work-group of {size} is larger than {target.max_group_size}, the most that {target.name} runs; "
            f"axes: {describe_axes(view)}",
            "choose a smaller amount",
        )


def describe_axes(view: KernelView) -> str:
    return ", ".join(f"{n}:{axis.arg.kind.name}({size_of(axis)})" for n, axis in enumerate(view.axes))


def to_launch_axes(sink: UOp, target: Target) -> UOp:
    """On a target with a grid, output loops that no work-group claims are the grid."""
    if target.has_threads or not target.has_local:
        return sink
    view = view_kernel(sink)
    for axis in view.of_kind(AxisType.LOOP):
        if axis not in view.reduce_axes and all(axis in store.ranges for store in view.stores):
            if all(axis in node.ranges for node in view.reduces if node.ranges):
                sink = exchange_axis(sink, axis, make_range(size_of(axis), axis.arg.id, AxisType.GLOBAL))
    return sink

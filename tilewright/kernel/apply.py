"""One opt applied to a kernel. In: a kernel, an `Opt`, a target. Out: the kernel after the transform that the registry
has for it, or a `KernelOptError` with the reason. The stage, search and the templates apply opts through this."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.errors import KernelOptError
from tilewright.base.target import Target
from tilewright.graph.kernels.threads import count_threads, local_bytes
from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import ANY_TARGET, KernelView, is_counted, view_kernel
from tilewright.kernel.transforms.registry import TRANSFORMS

# Bytes of packed panels, where the target does not say how much memory it has for them.
MAX_PANEL_BYTES = 256 * 1024


def apply_opt(sink: UOp, opt: Opt, target: Target = ANY_TARGET) -> UOp:
    """The kernel after one transform; `KernelOptError` says why it may not be applied."""
    transform = TRANSFORMS.get(opt.op)
    if transform is None:
        raise KernelOptError(
            f"{opt}", f"{opt.op.name} is not available", f"use one of {', '.join(op.name for op in TRANSFORMS)}"
        )
    view = view_kernel(sink, target)
    if not transform.takes_axis and opt.axis is not None:
        raise KernelOptError(f"{opt}", f"{opt.op.name} is for the whole kernel", "leave out the axis")
    if transform.takes_axis and (opt.axis is None or not 0 <= opt.axis < len(view.axes)):
        raise KernelOptError(
            f"{opt}", f"the kernel has axes 0 to {len(view.axes) - 1}: {describe_axes(view)}", "name one of them"
        )
    axis = view.sink if opt.axis is None else view.axes[opt.axis]
    reason = transform.check(view, axis, opt.arg)
    if reason is not None:
        remedy = f"choose an axis and an argument that satisfy this; {opt.op.name} takes {transform.argument}"
        raise KernelOptError(f"{opt}", f"{reason}; axes: {describe_axes(view)}", remedy)
    made = transform.apply(view, axis, opt.arg)
    after = view_kernel(made, target)
    if after.of_kind(AxisType.LOCAL, AxisType.GROUP) and not target.has_local:
        reason = f"{opt.op.name} needs work-groups, {target.name} has none"
        raise KernelOptError(f"{opt}", reason, "use THREAD or UPCAST")
    check_limits(after, f"{opt}")
    return made


def candidate_opts(view: KernelView) -> Iterator[Opt]:
    """Every opt that a transform proposes for the kernel as it stands, on its target."""
    for op, transform in TRANSFORMS.items():
        if view.target.has_local or not transform.needs_groups:
            for axis, argument in transform.candidates(view):
                yield Opt(op, view.axes.index(axis) if transform.takes_axis else None, argument)


def fits_target(view: KernelView) -> bool:
    """Whether the target has the threads and the memory for the kernel's work-groups."""
    size, used = work_group(view)
    return size <= view.target.max_group_size and used <= memory_limit(view.target)


def check_limits(view: KernelView, subject: str) -> None:
    """Refuses a work-group larger than the target runs, and more local memory than it has, placeholders included."""
    target = view.target
    size, used = work_group(view)
    if size > target.max_group_size:
        raise KernelOptError(
            subject,
            f"a work-group of {size} is larger than {target.max_group_size}, the most that {target.name} runs; "
            f"axes: {describe_axes(view)}",
            "choose a smaller amount",
        )
    limit = memory_limit(target)
    if used > limit:
        raise KernelOptError(
            subject,
            f"{used} bytes of local memory are more than {limit}, which {target.name} has; axes: {describe_axes(view)}",
            "choose a smaller amount, or smaller tiles",
        )


def work_group(view: KernelView) -> tuple[int, int]:
    """The threads of a work-group, and the bytes of local memory that it takes."""
    is_grouped = bool(view.of_kind(AxisType.LOCAL, AxisType.GROUP))
    return count_threads(view.sink) if is_grouped else 1, local_bytes(view.sink, view.target.warp_size)


def memory_limit(target: Target) -> int:
    return target.max_local_bytes if target.has_local else target.max_local_bytes or MAX_PANEL_BYTES


def describe_axes(view: KernelView) -> str:
    sizes = (size_of(axis) if is_counted(axis) else "computed" for axis in view.axes)
    return ", ".join(f"{n}:{axis.arg.kind.name}({size})" for n, (axis, size) in enumerate(zip(view.axes, sizes)))

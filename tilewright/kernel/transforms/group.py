"""GROUP and GROUPTOP: the threads of a work-group share a reduction; each accumulates its part, and the partial results
are combined. In: a kernel, a reduce axis, the number of threads. Out: the kernel with that axis split, the part of
the threads being of kind GROUP. `codegen/group.py` emits local memory and barriers; here it is one more reduction.

    before: for k in 128: acc += a[k]
    after:  group g of 4: for k0 in 32: acc += a[k0*4 + g]          GROUP by 4: threads read adjacent elements
            group g of 4: for k0 in 32: acc += a[g*32 + k0]         GROUPTOP by 4: each reads a contiguous part"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.analysis.dependence import check_first_thread, check_reduced
from tilewright.kernel.axes import KernelView, split_axis
from tilewright.kernel.transforms.common import Transform, check_amount, divisors, prefixed
from tilewright.kernel.transforms.nolocals import check_allows_locals
from tilewright.kernel.transforms.unroll import check_is_reduced

AMOUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def _check(view: KernelView, axis: UOp, amount: int, name: str) -> str | None:
    reason = check_allows_locals(view, name) or check_is_reduced(view, axis, name)
    if reason is not None:
        return reason
    position = view.axes.index(axis)
    if axis.arg.kind is not AxisType.REDUCE:
        return f"{name} needs a reduce loop, axis {position} is {axis.arg.kind.name}"
    return check_amount(view, axis, amount, name) or prefixed(
        name, check_reduced(view, axis) or check_first_thread(view, axis)
    )


def check_group(view: KernelView, axis: UOp, amount: int) -> str | None:
    return _check(view, axis, amount, "GROUP")


def apply_group(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.GROUP)


def check_grouptop(view: KernelView, axis: UOp, amount: int) -> str | None:
    return _check(view, axis, amount, "GROUPTOP")


def apply_grouptop(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.GROUP, inner_is_outermost=True)


def group_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.REDUCE):
        if axis in view.reduce_axes:
            for amount in divisors(axis, AMOUNTS):
                yield axis, amount


THREADS = "the number of threads that share the reduction"
GROUP = Transform(OptOps.GROUP, check_group, apply_group, group_candidates, THREADS, needs_groups=True)
GROUPTOP = Transform(OptOps.GROUPTOP, check_grouptop, apply_grouptop, group_candidates, THREADS, needs_groups=True)

"""LOCAL: part of an output loop becomes threads of a work-group. In: a kernel, an output loop, the number of threads.
Out: the kernel with that axis split; adjacent threads have adjacent iterations.

    before: for i in 128: out[i] = ...
    after:  local i1 of 4: for i0 in 32: out[i0*4 + i1] = ...       by 4"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.analysis.dependence import check_group
from tilewright.kernel.axes import KernelView, split_axis
from tilewright.kernel.transforms.common import Transform, check_output_loop, divisors, prefixed
from tilewright.kernel.transforms.nolocals import check_allows_locals

AMOUNTS = (2, 3, 4, 8, 16, 32, 64, 128, 256)


def check_local(view: KernelView, axis: UOp, amount: int) -> str | None:
    return (
        check_allows_locals(view, "LOCAL")
        or check_output_loop(view, axis, amount, "LOCAL")
        or prefixed("LOCAL", check_group(view, axis))
    )


def apply_local(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.LOCAL)


def local_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.LOOP, AxisType.GLOBAL):
        if axis not in view.reduce_axes:
            for amount in divisors(axis, AMOUNTS):
                yield axis, amount


LOCAL = Transform(OptOps.LOCAL, check_local, apply_local, local_candidates, "the number of threads", needs_groups=True)

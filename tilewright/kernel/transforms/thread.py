"""THREAD: iterations of an output loop are shared among the cores. In: a kernel, an output loop, the number of parts.
Out: the kernel with a parallel loop over the parts outermost.

    before: for i in 128: out[i] = ...
    after:  thread i0 of 32: for i1 in 4: out[i0*4 + i1] = ...      by 32

Several loops may be parallel: every combination of their iterations is one task."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import check_cores
from tilewright.kernel.axes import KernelView, is_counted, split_axis
from tilewright.kernel.transforms.common import Transform, check_output_loop, prefixed


def check_thread(view: KernelView, axis: UOp, amount: int) -> str | None:
    return check_output_loop(view, axis, amount, "THREAD") or prefixed("THREAD", check_cores(view, axis))


def apply_thread(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.THREAD, inner_is_outermost=True)


def thread_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.LOOP):
        if axis not in view.reduce_axes and is_counted(axis):
            yield axis, size_of(axis)


THREAD = Transform(OptOps.THREAD, check_thread, apply_thread, thread_candidates, "the number of parts")

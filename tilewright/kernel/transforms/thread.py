"""THREAD and LOCAL: iterations of an output loop run side by side, on cores or in a work-group.
In: a kernel, a loop, an amount. Out: the kernel with that axis given to threads.

    before: for i in 128: out[i] = ...
    after:  thread i0 of 32: for i1 in 4: out[i0*4 + i1] = ...      THREAD by 32
            local i1 of 4: for i0 in 32: out[i0*4 + i1] = ...       LOCAL by 4"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, size_of, split_axis


def _check_loop(view: KernelView, axis: UOp, amount: int, name: str) -> str | None:
    position = view.axes.index(axis)
    if axis in view.reduce_axes:
        return f"{name} needs an output loop, axis {position} is reduced"
    if axis.arg.kind not in (AxisType.LOOP, AxisType.GLOBAL):
        return f"{name} needs a loop, axis {position} is {axis.arg.kind.name}"
    if amount < 1 or size_of(axis) % amount:
        return f"{name} amount {amount} does not divide size {size_of(axis)} of axis {position}"
    return None


def check_thread(view: KernelView, axis: UOp, amount: int) -> str | None:
    if view.of_kind(AxisType.THREAD):
        return "THREAD is given already: a kernel has one thread axis"
    return _check_loop(view, axis, amount, "THREAD")


def apply_thread(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.THREAD, inner_is_outermost=True)


def check_local(view: KernelView, axis: UOp, amount: int) -> str | None:
    return _check_loop(view, axis, amount, "LOCAL")


def apply_local(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.LOCAL)


def thread_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.LOOP):
        if axis not in view.reduce_axes:
            yield axis, size_of(axis)


def local_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.LOOP, AxisType.GLOBAL):
        for amount in (2, 4, 8, 16, 32):
            if size_of(axis) % amount == 0:
                yield axis, amount

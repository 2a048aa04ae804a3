"""Choosing opts one after another. In: a kernel and a target record. Out: the opts chosen so far, and the kernel that
they make. The heuristics are written with this."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, size_of, view_kernel
from tilewright.kernel.transforms.keep import apply_keep
from tilewright.kernel.transforms.pad import apply_pad
from tilewright.kernel.transforms.swap import apply_swap, check_swap
from tilewright.kernel.transforms.thread import apply_thread
from tilewright.kernel.transforms.unroll import apply_unroll, check_unroll
from tilewright.kernel.transforms.upcast import apply_upcast, check_upcast

# Vectors a memory-bound loop has in flight, so that loads overlap.
VECTORS_IN_FLIGHT = 4


class Choice:
    """Applies opts as it chooses them, so that each choice sees the kernel as it is by then."""

    def __init__(self, view: KernelView, target: Target) -> None:
        self.view = view
        self.target = target
        self.opts: list[Opt] = []

    def upcast(self, axis: UOp, amount: int) -> None:
        if check_upcast(self.view, axis, amount) is not None:
            return
        self.opts.append(Opt(OptOps.UPCAST, self.view.axes.index(axis), amount))
        self.view = view_kernel(apply_upcast(self.view, axis, amount))

    def pad(self, axis: UOp, multiple: int) -> UOp:
        """The axis after padding; a loop that is counted at run time is never vectorised, so it never comes here."""
        self.opts.append(Opt(OptOps.PADTO, self.view.axes.index(axis), multiple))
        self.view = view_kernel(apply_pad(self.view, axis, multiple))
        return next(made for made in self.view.axes if made.arg.id == axis.arg.id)

    def unroll(self, axis: UOp, amount: int) -> None:
        if check_unroll(self.view, axis, amount) is None:
            self.opts.append(Opt(OptOps.UNROLL, self.view.axes.index(axis), amount))
            self.view = view_kernel(apply_unroll(self.view, axis, amount))

    def thread(self, axis: UOp) -> None:
        """Shares all iterations of an output loop among the cores."""
        self.opts.append(Opt(OptOps.THREAD, self.view.axes.index(axis), size_of(axis)))
        self.view = view_kernel(apply_thread(self.view, axis, size_of(axis)))

    def keep(self, axis: UOp) -> None:
        self.opts.append(Opt(OptOps.KEEP, self.view.axes.index(axis)))
        self.view = view_kernel(apply_keep(self.view, axis, None))

    def put_outside(self, outer: UOp, inner: UOp) -> tuple[UOp, UOp]:
        """The two loops, of which the first is now around the second."""
        first, second = self.view.axes.index(outer), self.view.axes.index(inner)
        if first < second or check_swap(self.view, outer, second) is not None:
            return outer, inner
        self.opts.append(Opt(OptOps.SWAP, first, second))
        self.view = view_kernel(apply_swap(self.view, outer, second))
        return self.view.axes[second], self.view.axes[first]

    def vectorise(self, axis: UOp, vectors: int, lanes: int) -> None:
        """A tile of up to `vectors` registers along the axis. A size without a useful divisor is padded."""
        size = size_of(axis)
        if size <= lanes:
            self.upcast(axis, size)
            return
        amount = best_divisor(size, vectors * lanes, lanes)
        if amount is None:
            axis = self.pad(axis, lanes if size < vectors * lanes else lanes * min(vectors, 2))
            amount = best_divisor(size_of(axis), vectors * lanes, lanes)
            assert amount is not None
        self.upcast(axis, amount)


def best_divisor(size: int, most: int, lanes: int) -> int | None:
    """The largest divisor of `size` up to `most` that is whole registers; else whole halves of one; else None."""
    for amount in range(most - most % lanes, 0, -lanes):
        if size % amount == 0:
            return amount
    half = max(1, lanes // 2)
    # Each half takes a register. A tile of few is one that reuses what it loads, and has none to spare.
    halves = most // half if most >= VECTORS_IN_FLIGHT * lanes else most // lanes
    return next((count * half for count in range(halves, 0, -1) if half >= 4 and size % (count * half) == 0), None)

"""A list of opts under construction. In: a kernel for a target. Out: the opts chosen so far, and the kernel after them.
Templates are written with this."""

from __future__ import annotations

from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, is_counted, is_uniform, make_range, padded_size, quotient_of, view_kernel
from tilewright.kernel.transforms.pad import check_pad
from tilewright.kernel.transforms.registry import TRANSFORMS
from tilewright.kernel.transforms.swap import check_swap
from tilewright.kernel.transforms.unroll import check_unroll
from tilewright.kernel.transforms.upcast import check_upcast


class OptBuilder:
    """Applies every opt as it is chosen, so that the next choice sees the kernel after it."""

    def __init__(self, view: KernelView) -> None:
        self.view = view
        self.target = view.target
        self.opts: list[Opt] = []

    def apply(self, op: OptOps, axis: UOp, argument: int | None = None) -> None:
        """Chooses an opt that is known to be legal."""
        self.accept(op, axis, argument, TRANSFORMS[op].apply(self.view, axis, argument))

    def accept(self, op: OptOps, axis: UOp, argument: int | None, made: UOp) -> None:
        """Chooses an opt that was already applied and gave the kernel `made`."""
        opt = Opt(op, self.view.axes.index(axis), argument)
        self.opts.append(opt)
        self.view.trail[self.view.sink, opt] = made
        self.view = view_kernel(made, self.target, self.view.trail)

    def upcast(self, axis: UOp, amount: int) -> None:
        if check_upcast(self.view, axis, amount) is None:
            self.apply(OptOps.UPCAST, axis, amount)

    def pad(self, axis: UOp, multiple: int) -> UOp:
        """The axis, padded where its size is not a multiple. Its size is a constant: no other loop is vectorised."""
        if size_of(axis) % multiple:
            self.apply(OptOps.PADTO, axis, multiple)
            return make_range(-(-size_of(axis) // multiple) * multiple, axis.arg.id, axis.arg.kind)
        return axis

    def block(self, axis: UOp, amount: int) -> tuple[UOp, UOp]:
        """The loop over blocks of `amount` iterations, and the loop inside a block."""
        self.apply(OptOps.BLOCK, axis, amount)
        blocks = make_range(-(-size_of(axis) // amount), (*axis.arg.id, 0), axis.arg.kind)
        return blocks, make_range(amount, (*axis.arg.id, 1), axis.arg.kind)

    def unroll(self, axis: UOp, amount: int) -> None:
        if check_unroll(self.view, axis, amount) is None:
            self.apply(OptOps.UNROLL, axis, amount)

    def put_outside(self, outer: UOp, inner: UOp) -> tuple[UOp, UOp]:
        """The two loops, the first now outside the second if SWAP allows it."""
        first, second = self.view.axes.index(outer), self.view.axes.index(inner)
        if first < second or check_swap(self.view, outer, second) is not None:
            return outer, inner
        self.apply(OptOps.SWAP, outer, second)
        return self.view.axes[second], self.view.axes[first]

    def vectorise(self, axis: UOp, vectors: int, lanes: int) -> None:
        """A tile of up to `vectors` registers along the axis, which is padded where it has no useful divisor."""
        size = size_of(axis)
        if not is_counted(axis):
            self.vectorise_variable(axis, lanes * min(vectors, 2))
            return
        if size <= lanes:
            self.upcast(axis, size)
            return
        few = self.target.independent_vectors
        amount = best_divisor(size, vectors * lanes, lanes, few)
        if amount is None:
            if check_upcast(self.view, axis, 1) is not None:
                return
            axis = self.pad(axis, lanes if size < vectors * lanes else lanes * min(vectors, 2))
            amount = best_divisor(size_of(axis), vectors * lanes, lanes, few)
            assert amount is not None
        self.upcast(axis, amount)

    def vectorise_variable(self, axis: UOp, amount: int) -> None:
        """A tile along an axis whose size a launch gives: masked at its end, unless the size is a multiple."""
        if not is_uniform(axis):
            return
        if quotient_of(axis, amount) is None:
            if check_pad(self.view, axis, amount) is not None or check_upcast(self.view, axis, 1) is not None:
                return
            self.apply(OptOps.PADTO, axis, amount)
            axis = make_range(padded_size(axis, amount), axis.arg.id, axis.arg.kind)
        self.upcast(axis, amount)


def best_divisor(size: int, most: int, lanes: int, independent: int) -> int | None:
    """The largest divisor of `size` up to `most` that fills whole registers; else whole half registers; else None. A
    tile of `independent` vectors has registers to spare."""
    for amount in range(most - most % lanes, 0, -lanes):
        if size % amount == 0:
            return amount
    half = max(1, lanes // 2)
    # A half takes a whole register. A small tile is one that reuses its loads, and has no register to spare.
    halves = most // half if most >= independent * lanes else most // lanes
    return next((count * half for count in range(halves, 0, -1) if half >= 4 and size % (count * half) == 0), None)

"""The loop nest of a matrix product, with named loops. In: a kernel for a target. Out: the kernel with loops tiled,
blocked, ordered and parallel. `products` chooses the sizes; this turns them into opts and tracks the remaining
loops."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, make_range
from tilewright.kernel.templates.opt_builder import OptBuilder
from tilewright.kernel.transforms.block import check_block, check_overlap
from tilewright.kernel.transforms.pad import check_pad
from tilewright.kernel.transforms.spill import check_spill
from tilewright.kernel.transforms.swap import check_swap

# The order of the loops, outermost first.
NEST = ("blocks of columns", "blocks of rows", "rows", "columns")
# The order where each block of rows is packed once, for all columns.
ROWS_OUTSIDE = ("blocks of rows", "columns", "rows")


class Nest(OptBuilder):
    """`loops` has no entry for a loop of one iteration. After `order`, the loops around the nest come first."""

    def __init__(self, view: KernelView) -> None:
        super().__init__(view)
        self.loops: dict[str, UOp] = {}

    def cut(self, name: str, axis: UOp, amount: int) -> None:
        """A tile along an axis, and the loop over tiles if there are several."""
        axis = self.pad(axis, amount)
        self.apply(OptOps.UPCAST, axis, amount)
        if amount < size_of(axis):
            self.loops[name] = make_range(size_of(axis) // amount, (*axis.arg.id, 0), axis.arg.kind)

    def group(self, terms: int) -> None:
        """Unrolls the longest axis of the sum by the terms of a dot-product instruction."""
        axis = max(self.view.reduces[0].src[1:], key=size_of)
        self.apply(OptOps.UNROLL, self.pad(axis, terms), terms)

    def overlap(self, name: str, axis: UOp, amount: int) -> None:
        """Tiles along an axis that they do not divide: the last one overlaps the one before."""
        self.loops[name], tile = self.block(axis, amount)
        self.apply(OptOps.UPCAST, tile, amount)

    def cover(self, name: str, axis: UOp, amount: int, may_overlap: bool = True) -> None:
        """Tiles along an axis; where they do not divide it, the last one overlaps the one before, or is masked."""
        is_divided = size_of(axis) % amount == 0 or size_of(axis) < amount
        if is_divided or not may_overlap or check_overlap(self.view, axis) is not None:
            self.cut(name, axis, amount)
        else:
            self.overlap(name, axis, amount)

    def spill_blocks(self, loop: UOp, amount: int) -> bool:
        """Takes the sum in blocks of `amount` terms, and spills the accumulators of a loop between them. False where
        that is not legal."""
        summed = self.view.reduces[0].src[1]
        if size_of(summed) % amount and check_pad(self.view, summed, amount) is not None:
            return False
        summed = self.pad(summed, amount)
        if check_spill(self.view, loop, None) is not None or check_block(self.view, summed, amount) is not None:
            return False
        self.apply(OptOps.BLOCK, summed, amount)
        self.apply(OptOps.SPILL, loop, 1)
        return True

    def block_loop(self, name: str, amount: int) -> None:
        """Splits a loop: `blocks of x` is the loop over blocks, `x` the loop inside a block."""
        axis = self.loops[name]
        if amount == 1:
            self.loops[f"blocks of {name}"] = self.loops.pop(name)
        elif amount < size_of(axis):
            self.loops[f"blocks of {name}"], self.loops[name] = self.block(axis, amount)

    def order(self, nest: tuple[str, ...] = NEST, inside: Sequence[UOp] = ()) -> None:
        """Swaps the loops into the order of the nest. Those around it are outside, but for some that are `inside` its
        first loop."""
        others = [axis for axis in self.view.of_kind(AxisType.LOOP) if axis not in self.loops.values()]
        names = {f"around {number}": axis for number, axis in enumerate(others)}
        around = {name: axis for name, axis in names.items() if axis not in inside}
        first, *rest = [name for name in nest if name in self.loops] or [""]
        self.loops = (
            around
            | ({first: self.loops[first]} if first else {})
            | {name: axis for name, axis in names.items() if axis in inside}
            | {name: self.loops[name] for name in rest}
        )
        for number, name in enumerate(self.loops):
            axis = self.loops[name]
            current = sorted(self.loops.values(), key=self.view.axes.index)[number]
            if axis is current or check_swap(self.view, axis, self.view.axes.index(current)) is not None:
                continue
            other = next(each for each in self.loops if self.loops[each] is current)
            self.apply(OptOps.SWAP, axis, self.view.axes.index(current))
            self.loops[name] = make_range(axis.src[0], current.arg.id, axis.arg.kind)
            self.loops[other] = make_range(current.src[0], axis.arg.id, current.arg.kind)

    def parallelise(self, name: str, amount: int) -> None:
        axis = self.loops[name]
        self.apply(OptOps.THREAD, axis, amount)
        is_split = amount < size_of(axis)
        identity, kind = ((*axis.arg.id, 0), axis.arg.kind) if is_split else (axis.arg.id, AxisType.THREAD)
        self.loops[name] = make_range(size_of(axis) // amount if is_split else amount, identity, kind)

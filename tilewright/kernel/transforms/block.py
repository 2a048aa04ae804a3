"""BLOCK: a loop becomes two, which walk it block by block in the same order. In: a kernel, a loop, the length of a
block. Out: the kernel with the two loops, of the kind that the one had. SWAP then moves a block outwards, so that what
its iterations share stays in a cache; STAGE copies that there.

    before: for i in 128: out[i] = ...
    after:  for i0 in 16: for i1 in 8: out[i0*8 + i1] = ...         by 8"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, size_of, split_axis
from tilewright.kernel.transforms.common import check_amount, divisors

_LOOPS = (AxisType.LOOP, AxisType.REDUCE)


def check_block(view: KernelView, axis: UOp, amount: int) -> str | None:
    position = view.axes.index(axis)
    if axis.arg.kind not in _LOOPS:
        return f"BLOCK needs a loop, axis {position} is {axis.arg.kind.name}"
    reason = check_amount(view, axis, amount, "BLOCK")
    if reason is None and amount in (1, size_of(axis)):
        reason = f"BLOCK by {amount} leaves axis {position} of size {size_of(axis)} as it is"
    return reason


def apply_block(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, axis.arg.kind)


def block_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(*_LOOPS):
        for amount in divisors(axis, (2, 4, 8, 16, 32)):
            if amount < size_of(axis):
                yield axis, amount

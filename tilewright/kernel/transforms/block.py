"""BLOCK: a loop becomes two nested loops, over blocks and inside a block, in the same order. In: a kernel, a loop, the
length of a block. Out: the kernel with the two loops, of the same kind. SWAP then moves a loop over blocks outwards, so
that the data its iterations share stays in a cache; STAGE packs that data.

    before: for i in 128: out[i] = ...
    after:  for i0 in 16: for i1 in 8: out[i0*8 + i1] = ...                by 8

Where the length does not divide the loop, the last block starts early enough to end with it: some results are computed
twice, which costs less than a mask in every block. So it is for a symbolic size that is never less than a block.

    after:  for i0 in 22: for i1 in 6: out[min(i0*6, 122) + i1] = ...      by 6"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, index_const, memory_of
from tilewright.graph.walk import exchange_axis, size_of
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.axes import KernelView, ceil_div, is_uniform, make_range, quotient_of, split_axis
from tilewright.kernel.transforms.common import Transform, check_amount, divisors

_LOOPS = (AxisType.LOOP, AxisType.REDUCE)


def check_block(view: KernelView, axis: UOp, amount: int) -> str | None:
    position = view.axes.index(axis)
    if axis.arg.kind not in _LOOPS:
        return f"BLOCK needs a loop, axis {position} is {axis.arg.kind.name}"
    reason = check_amount(view, axis, amount, "BLOCK")
    if reason is not None and _leaves_a_remainder(axis, amount):
        overlap = check_overlap(view, axis)
        return None if overlap is None else f"{reason}: {overlap}"
    if reason is None and amount in (1, size_of(axis)):
        reason = f"BLOCK by {amount} leaves axis {position} of size {size_of(axis)} as it is"
    return reason


def _leaves_a_remainder(axis: UOp, amount: object) -> bool:
    """Whether `amount` is a length of several blocks that does not divide the loop."""
    if not isinstance(amount, int) or not is_uniform(axis):
        return False
    least = axis.src[0].vmin
    return 1 < amount <= least and amount < size_of(axis) and quotient_of(axis, amount) is None


def check_overlap(view: KernelView, axis: UOp) -> str | None:
    """Whether iterations may run twice: they must not load what any iteration stores."""
    position = view.axes.index(axis)
    if axis in view.reduce_axes:
        return f"axis {position} is reduced, no iteration may count twice"
    if has_effects(view) or view.sized_by(axis):
        return f"each iteration of axis {position} happens once, in order"
    written = {memory_of(store) for store in view.stores}
    again = next((memory_of(load) for load in view.loads if memory_of(load) in written), None)
    return None if again is None else f"buffer {again.arg.slot} is read and written, no iteration may run twice"


def apply_block(view: KernelView, axis: UOp, amount: int) -> UOp:
    size = axis.src[0]
    if quotient_of(axis, amount) is not None:
        return split_axis(view.sink, axis, amount, axis.arg.kind)
    blocks = make_range(ceil_div(size, amount), (*axis.arg.id, 0), axis.arg.kind)
    inside = make_range(amount, (*axis.arg.id, 1), axis.arg.kind)
    last = index_const(size.arg - amount) if size.is_const else size - amount
    return exchange_axis(view.sink, axis, (blocks * amount).minimum(last) + inside)


def block_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(*_LOOPS):
        for amount in divisors(axis, (2, 4, 8, 16, 32)):
            if amount < size_of(axis):
                yield axis, amount


BLOCK = Transform(OptOps.BLOCK, check_block, apply_block, block_candidates, "the length of a block")

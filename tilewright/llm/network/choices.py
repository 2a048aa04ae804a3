"""The largest of few elements. In: rows of preferences, and numbers that belong to them. Out: the positions of the k
largest preferences of each row, the largest first, and the numbers there. A router of experts asks for them.

On a device whose threads run in warps it is one kernel: a thread for each element counts those before it, and stores
where the number is below k."""

from __future__ import annotations

import functools

from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.custom import PureKernel
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.tensor import Tensor

# Each thread reads the whole row: longer rows are sorted instead.
MAX_ROW = 256


def largest(preference: Tensor, numbers: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Positions int32 (rows, k), and the numbers (rows, k) at them. Of equal preferences the first comes first; NaN is
    above all numbers."""
    if not _has_kernel(preference, numbers, k):
        chosen = preference.topk(k).indices.cast(dtypes.int32)
        return chosen, numbers.gather(-1, chosen)
    shape = (preference.shape[0], k)
    indices = Tensor.empty(*shape, dtype=dtypes.int32, device=preference.device)
    found = Tensor.empty(*shape, dtype=numbers.dtype, device=preference.device)
    made = indices.custom_kernel(found, preference.detach(), numbers, fxn=_kernel(k), grad_fxn=_gradient)
    return made[0], made[1]


def _has_kernel(preference: Tensor, numbers: Tensor, k: int) -> bool:
    if not isinstance(preference.device, str) or not all(isinstance(size, int) for size in preference.shape):
        return False
    if preference.ndim != 2 or preference.dtype is not dtypes.float32 or numbers.shape != preference.shape:
        return False
    return 1 <= k <= preference.shape[1] <= MAX_ROW and open_driver(preference.device).target.warp_size > 1


@functools.lru_cache(maxsize=64)
def _kernel(k: int) -> PureKernel:
    def pick_largest(indices: UOp, found: UOp, preference: UOp, numbers: UOp) -> UOp:
        rows, size = preference.shape
        row, own = UOp.range(rows, 0, AxisType.GLOBAL), UOp.range(size, 1, AxisType.LOCAL)
        other = UOp.range(size, 2, AxisType.REDUCE)
        mine, theirs = (_key(preference[row, at].load()) for at in (own, other))
        is_before = (mine < theirs) | (mine.eq(theirs) & (other < own))
        before = UOp(Ops.REDUCE, dtypes.int32, (is_before.cast(dtypes.int32), other), Ops.ADD)
        rank = before.cast(dtypes.index)
        effects = [
            memory[row, rank].store(value, mask=rank < k).end(row, own)
            for memory, value in ((indices, own.cast(dtypes.int32)), (found, numbers[row, own].load()))
        ]
        return UOp.group(*effects).sink(arg=KernelInfo("pick_largest", ()))

    return PureKernel(pick_largest)


def _key(value: UOp) -> UOp:
    """An integer in the order of the floats: the bits of a negative one are in reverse. Zeros are equal."""
    is_nan = value.ne(value)
    bits = (value + 0.0).bitcast(dtypes.int32)
    ordered = (bits < 0).where(bits ^ 0x7FFFFFFF, bits)
    return is_nan.where(bits.const_like(0x7FFFFFFF), ordered)


def _gradient(slopes: list[Tensor], indices: Tensor, *given: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of the numbers: each slope goes to the element that was taken."""
    numbers = given[-1]
    columns = Tensor.arange(numbers.shape[1], dtype=dtypes.int32, device=numbers.device)
    is_taken = indices.unsqueeze(-1) == columns
    return (None, None, None, is_taken.where(slopes[1].unsqueeze(-1), 0.0).sum(1))

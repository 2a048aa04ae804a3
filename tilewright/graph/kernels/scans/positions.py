"""The positions of true elements, for devices whose threads are CPU cores. In: a row of bools, as a node. Out: a
CUSTOM_KERNEL node with the positions in order, then the length of the row for each element that is false, and in the
end the number of true elements. One serial loop stores the position of every element at the number of true ones before
it: that of a false element is replaced by the next one."""

from __future__ import annotations

import functools

from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.kernels.nodes import MAX_KERNELS, call
from tilewright.graph.kernels.scans.running import Loops, sink
from tilewright.graph.uop import UOp, const

# Elements after which the number of true ones goes through memory.
BLOCK = 16


def positions(mask: UOp) -> UOp:
    (size,) = mask.shape
    return call(positions_kernel(size), ((dtypes.int32, (size + 1,)),), (mask,))[0]


@functools.lru_cache(MAX_KERNELS)
def positions_kernel(size: int) -> UOp:
    out, mask = make_argument(0, dtypes.int32, (size + 1,)), make_argument(1, dtypes.bool, (size,))
    loops = Loops()
    count = loops.memory(1, dtypes.int32)[0].set(0)
    effects: list[UOp] = []
    for start, length, times in ((0, BLOCK, size // BLOCK), (size - size % BLOCK, size % BLOCK, 1)):
        if length == 0 or times == 0:
            continue
        k = loops.over(times)
        carried, stored = count.after(*effects, k)[0], out.after(*effects, k)
        before, found = carried.load(), const(dtypes.int32, 0)
        stores: list[UOp] = []
        for j in range(length):
            place = start + k * length + j
            # A later element may replace this one: the stores stay in this order.
            stored = stored.after(*stores[-1:])
            stores.append(stored[(before + found).cast(dtypes.index)].store(place.cast(dtypes.int32)))
            found = found + mask[place].load().cast(dtypes.int32)
        effects.append(UOp.group(*stores, carried.store(before + found)).end(k))
    total = count.after(*effects)[0].load()
    left = loops.over((size - total).cast(dtypes.index))
    filled = out.after(*effects, left)[total.cast(dtypes.index) + left].store(size).end(left)
    counted = out.after(*effects)[size].store(total)
    return sink("positions", [filled, counted], 1)

"""Lines of the first-level cache that share a set. In: a kernel, and a loop that a template would tile. Out: how many
of its iterations the cache holds the lines of."""

from __future__ import annotations

from collections import Counter

from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, stride


def lines_along(view: KernelView, axis: UOp, most: int) -> int:
    """How many iterations of an axis, up to `most`, the first cache holds the lines of, beside those of the loops that
    are tiled: lines that share a set evict one another."""
    tiled = view.of_kind(AxisType.UPCAST)
    return min((_lines_held(view, load, axis, tiled, most) for load in view.loads), default=most)


def _lines_held(view: KernelView, load: UOp, axis: UOp, tiled: list[UOp], most: int) -> int:
    target, itemsize = view.target, load.dtype.itemsize
    step = abs(stride(load, axis) or 0) * itemsize
    places = [0]
    for loop in tiled:
        apart = abs(stride(load, loop) or 0) * itemsize
        places = [place + apart * number for place in places for number in range(size_of(loop) if apart else 1)]
    held: set[int] = set()
    for count in range(most if step else 0):
        held.update((place + count * step) // target.line_bytes for place in places)
        sets = Counter(line * target.line_bytes % target.l1_way_bytes for line in held)
        if max(sets.values()) > target.l1_ways:
            return count
    return most

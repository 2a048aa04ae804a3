"""KEEP: what a reduction computes for each of its elements, and a later loop would compute again, is kept in local
memory. In: a kernel, a loop of a reduction. Out: the kernel in which that loop also stores and the later one loads.

    before: for r in 1024: s += exp(x[r] - m)
            for i in 1024: out[i] = exp(x[i] - m) / s
    after:  for r in 1024: local[r] = exp(x[r] - m); s += exp(x[r] - m)     one node: it is computed once
            for i in 1024: out[i] = local[i] / s

KEEP comes after the opts that take apart the two loops, and those have to take them apart alike: a value is the same
one where exchanging the loops gives it node for node."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from tilewright.base.dtype import dtypes
from tilewright.graph.cost import own_cost
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import substitute, toposort
from tilewright.kernel.axes import KernelView, is_counted, size_of
from tilewright.kernel.transforms.common import Transform

_THREADS = (AxisType.LOCAL, AxisType.GROUP)


class Kept(NamedTuple):
    """A value inside a reduction, and its equal once each loop there is exchanged for a later one."""

    value: UOp
    again: UOp
    loops: dict[UOp, UOp]

    @property
    def layout(self) -> list[UOp]:
        """The axes that number the kept elements, the fastest last. The elements of a tile each have their own."""
        tiles = [axis for axis in self.value.ranges if axis.arg.kind.is_tile and axis not in self.loops]
        return [*sorted(tiles, key=lambda axis: axis.arg.id), *self.loops]

    @property
    def size(self) -> int:
        return math.prod(map(size_of, self.layout))

    @property
    def cost(self) -> float:
        """The work that it takes for each element."""
        return sum(own_cost(node) for node in toposort(self.value) if not node.ranges.isdisjoint(self.loops))


def kept_values(view: KernelView, axis: UOp) -> list[Kept]:
    """What KEEP keeps at the axis. Where one value holds another, the larger alone."""
    nodes = frozenset(view.nodes)
    found: dict[UOp, Kept] = {}
    for reduce in view.closers(axis):
        for loops in _later_loops(view, reduce):
            inside: set[UOp] = set()
            for value in reversed(toposort(reduce.src[0])):
                if value not in inside:
                    if not _is_computed(value) or not value.ranges.issuperset(loops):
                        continue
                    again = substitute(value, loops)
                    if again not in nodes:
                        continue
                    found.setdefault(value, Kept(value, again, loops))
                inside.update(value.src)
    return list(found.values())


def _is_computed(value: UOp) -> bool:
    """Whether it is data, and took more than fetching it."""
    return value.op is Ops.REDUCE or (own_cost(value) >= 1 and value.dtype is not dtypes.index)


def _later_loops(view: KernelView, reduce: UOp) -> Iterator[dict[UOp, UOp]]:
    """The ways to exchange the loops of a reduction for others of the same size and kind, around stores alone. Nothing
    that shares a loop with the reduction needs those: all of it can be over before they begin."""
    if reduce.op is not Ops.REDUCE or not all(map(is_counted, reduce.src[1:])):
        return
    closed = [axis for axis in view.axes if axis in reduce.src[1:]]
    needed = frozenset(toposort(*(node for axis in closed for node in view.closers(axis))))
    later = [axis for axis in view.of_kind(AxisType.LOOP, AxisType.UPCAST) if axis not in needed]

    def is_alike(one: UOp, other: UOp) -> bool:
        return one.src[0] is other.src[0] and one.arg.kind.is_tile == other.arg.kind.is_tile

    for chosen in itertools.product(*([other for other in later if is_alike(axis, other)] for axis in closed)):
        if len(set(chosen)) == len(closed):
            yield dict(zip(closed, chosen, strict=True))


def check_keep(view: KernelView, axis: UOp, argument: object) -> str | None:
    position = view.axes.index(axis)
    if argument is not None:
        return f"KEEP takes no argument, {argument!r} is one"
    if axis.arg.kind is not AxisType.REDUCE or axis not in view.reduce_axes:
        return f"KEEP needs a loop of a reduction, axis {position} is {axis.arg.kind.name}"
    threads = view.of_kind(*_THREADS)
    if threads:
        number = view.axes.index(threads[0])
        return f"KEEP needs memory of its own, {size_of(threads[0])} threads along axis {number} would share it"
    if not kept_values(view, axis):
        return f"KEEP at axis {position} of size {size_of(axis)}: no later loop computes again what is reduced there"
    return None


def apply_keep(view: KernelView, axis: UOp, argument: object) -> UOp:
    slot = max((node.arg.slot for node in view.nodes if node.op is Ops.DEFINE_LOCAL), default=-1)
    exchanges: dict[UOp, UOp] = {}
    for kept in kept_values(view, axis):
        slot += 1
        dtype = kept.value.dtype
        memory = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, kept.size))
        place, step = index_const(0), 1
        for each in reversed(kept.layout):
            place, step = place + each * step, step * size_of(each)
        store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, dtype, (memory, place)), kept.value))
        version = UOp(Ops.AFTER, dtype, (memory, UOp(Ops.END, dtypes.void, (store, *kept.loops))))
        later = UOp(Ops.INDEX, dtype, (version, substitute(place, kept.loops)))
        exchanges[kept.again] = UOp(Ops.LOAD, dtype, (later,))
    return substitute(view.sink, exchanges)


def keep_candidates(view: KernelView) -> Iterator[tuple[UOp, None]]:
    for axis in view.of_kind(AxisType.REDUCE):
        if check_keep(view, axis, None) is None:
            yield axis, None


KEEP = Transform(OptOps.KEEP, check_keep, apply_keep, keep_candidates, "none")

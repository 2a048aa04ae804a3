"""MEMOISE: a value that a reduction computes for each element, and a later loop would compute again, is stored in local
memory and loaded by the later loop. In: a kernel, a loop of a reduction. Out: the kernel with that store and load.

    before: for r in 1024: s += exp(x[r] - m)
            for i in 1024: out[i] = exp(x[i] - m) / s
    after:  for r in 1024: local[r] = exp(x[r] - m); s += exp(x[r] - m)     one node, computed once
            for i in 1024: out[i] = local[i] / s

MEMOISE comes after the opts that split the two loops, which must be split alike: two values are the same if replacing
the loops of the one by those of the other gives the identical node."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import size_of, substitute, toposort
from tilewright.kernel.axes import KernelView, is_counted
from tilewright.kernel.transforms.common import Transform

_THREADS = (AxisType.LOCAL, AxisType.GROUP)


class Memoised(NamedTuple):
    """A value inside a reduction, and the node that it equals once its loops are replaced by the later ones."""

    value: UOp
    again: UOp
    loops: dict[UOp, UOp]

    @property
    def layout(self) -> list[UOp]:
        """The axes of the local memory, the fastest last; tiles have elements of their own."""
        tiles = [axis for axis in self.value.ranges if axis.arg.kind.is_tile and axis not in self.loops]
        return [*sorted(tiles, key=lambda axis: axis.arg.id), *self.loops]

    @property
    def size(self) -> int:
        return math.prod(map(size_of, self.layout))

    @property
    def cost(self) -> float:
        """The cost of computing one element."""
        return sum(node.op.cost for node in toposort(self.value) if not node.ranges.isdisjoint(self.loops))


def repeated_values(view: KernelView, axis: UOp) -> list[Memoised]:
    """The values that MEMOISE stores at the axis. Of nested ones, the outer one only."""
    ways = [(reduce, loops) for reduce in view.closers(axis) for loops in _later_loops(view, reduce)]
    if not ways:
        return []
    nodes = frozenset(view.nodes)
    kinds = {(node.op, node.ranges) for node in view.nodes}
    found: dict[UOp, Memoised] = {}
    for reduce, loops in ways:
        # Stored in the nest of the reduction: a value without one of the loops around it would have another nest.
        nest = {*loops, *(loop for loop in reduce.ranges if loop.arg.kind in (AxisType.LOOP, AxisType.REDUCE))}
        inside: set[UOp] = set()
        for value in reversed(toposort(reduce.src[0])):
            if value not in inside:
                if not _is_computed(value) or not value.ranges.issuperset(nest):
                    continue
                ranges = value.ranges.difference(loops).union(loops.values())
                if (value.op, ranges) not in kinds and all(map(is_counted, value.ranges)):
                    continue  # known without making the node
                again = substitute(value, loops)
                if again not in nodes:
                    continue
                found.setdefault(value, Memoised(value, again, loops))
            inside.update(value.src)
    return list(found.values())


def _is_computed(value: UOp) -> bool:
    """Whether it is data that costs more than a load."""
    return value.op is Ops.REDUCE or (value.op.cost >= 1 and value.dtype is not dtypes.index)


def _later_loops(view: KernelView, reduce: UOp) -> Iterator[dict[UOp, UOp]]:
    """The ways to replace the loops of a reduction by later loops of the same size and kind. Nothing that shares a loop
    with the reduction depends on a later loop, so the reduction is complete before these begin."""
    if reduce.op is not Ops.REDUCE or not all(map(is_counted, reduce.src[1:])):
        return
    closed = [axis for axis in view.axes if axis in reduce.src[1:]]

    def is_alike(one: UOp, other: UOp) -> bool:
        return one.src[0] is other.src[0] and one.arg.kind.is_tile == other.arg.kind.is_tile

    others = view.of_kind(AxisType.LOOP, AxisType.UPCAST)
    alike = [[other for other in others if is_alike(axis, other)] for axis in closed]
    if not all(alike):
        return
    needed = frozenset(toposort(*(node for axis in closed for node in view.closers(axis))))
    for chosen in itertools.product(*([other for other in found if other not in needed] for found in alike)):
        if len(set(chosen)) == len(closed):
            yield dict(zip(closed, chosen, strict=True))


def check_memoise(view: KernelView, axis: UOp, argument: object) -> str | None:
    position = view.axes.index(axis)
    if argument is not None:
        return f"MEMOISE takes no argument, {argument!r} is one"
    if axis.arg.kind is not AxisType.REDUCE or axis not in view.reduce_axes:
        return f"MEMOISE needs a loop of a reduction, axis {position} is {axis.arg.kind.name}"
    threads = view.of_kind(*_THREADS)
    if threads:
        number = view.axes.index(threads[0])
        return f"MEMOISE needs memory per thread, {size_of(threads[0])} threads along axis {number} would share it"
    if not repeated_values(view, axis):
        return f"MEMOISE at axis {position} of size {size_of(axis)}: no later loop computes the reduced value again"
    return None


def apply_memoise(view: KernelView, axis: UOp, argument: object) -> UOp:
    exchanges: dict[UOp, UOp] = {}
    for slot, kept in enumerate(repeated_values(view, axis), view.free_slot):
        dtype = kept.value.dtype
        memory = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, kept.size))
        index, step = index_const(0), 1
        for each in reversed(kept.layout):
            index, step = index + each * step, step * size_of(each)
        store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, dtype, (memory, index)), kept.value))
        version = UOp(Ops.AFTER, dtype, (memory, UOp(Ops.END, dtypes.void, (store, *kept.loops))))
        later = UOp(Ops.INDEX, dtype, (version, substitute(index, kept.loops)))
        exchanges[kept.again] = UOp(Ops.LOAD, dtype, (later,))
    return substitute(view.sink, exchanges)


def memoise_candidates(view: KernelView) -> Iterator[tuple[UOp, None]]:
    for axis in view.of_kind(AxisType.REDUCE):
        if check_memoise(view, axis, None) is None:
            yield axis, None


MEMOISE = Transform(OptOps.MEMOISE, check_memoise, apply_memoise, memoise_candidates, "no argument")

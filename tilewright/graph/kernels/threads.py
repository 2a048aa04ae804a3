"""The threads of a work-group. In: a kernel with LOCAL and GROUP axes. Out: which axes share one axis of the group,
which of those is the fastest, and the local memory of grouped reductions. Facts only: the kernel stage compares them
with a target's limits, `codegen/launch.py` and `codegen/group.py` generate code from them."""

from __future__ import annotations

import math

from tilewright.base.records import NamedTuple, record
from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, index_const, memory_of
from tilewright.graph.walk import substitute, toposort

THREAD_KINDS = frozenset({AxisType.LOCAL, AxisType.GROUP})


class GroupLayout(NamedTuple):
    """How the threads of a reduction combine their values: `width` adjacent threads by warp shuffles, then `parts`
    values through local memory for each element of `tiles` and each thread of the `others`. Axes are given by lane."""

    others: tuple[int, ...]
    tiles: tuple[UOp, ...]
    groups: tuple[int, ...]
    width: int
    parts: int

    def size(self, sizes: tuple[int, ...]) -> int:
        """Elements of local memory, from the sizes of the lanes; 0 where all threads are in one warp."""
        if self.parts == 1:
            return 0
        apart = math.prod(sizes[lane] for lane in self.others)
        return apart * math.prod(int(tile.src[0].arg) for tile in self.tiles) * self.parts


@record
class Threads:
    """`lanes` are the axes of the work-group, the fastest last, each with the axes of the kernel that are mapped to
    it."""

    lanes: tuple[tuple[UOp, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(axes[0].src[0].arg) for axes in self.lanes)

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    def lanes_of(self, axes: frozenset[UOp] | tuple[UOp, ...]) -> tuple[int, ...]:
        return tuple(number for number, lane in enumerate(self.lanes) if any(axis in axes for axis in lane))

    def layout(self, reduce: UOp, warp_size: int) -> GroupLayout:
        """The layout of a REDUCE with GROUP axes among its ranges."""
        closed = tuple(axis for axis in reduce.src[1:] if axis.arg.kind in THREAD_KINDS)
        groups = self.lanes_of(closed)
        value = reduce.src[0].ranges
        others = tuple(lane for lane in self.lanes_of(value - set(closed)) if lane not in groups)
        kept = reduce.ranges
        tiles = tuple(sorted((axis for axis in kept if axis.arg.kind.is_tile), key=lambda axis: axis.arg.id))
        width = 1
        if groups[-1] == len(self.lanes) - 1:
            while width < warp_size and self.sizes[-1] % (2 * width) == 0:
                width *= 2
        parts = math.prod(self.sizes[lane] for lane in groups) // width
        return GroupLayout(others, tiles, groups, width, parts)


def threads_of(sink: UOp) -> Threads:
    """The axes of the work-group, in order. Cached on the kernel, since the check of each candidate opt asks for
    them."""
    found: Threads | None = sink.cache.get("threads")
    if found is None:
        lanes = _shared_lanes(sink)
        if len(lanes) > 1:
            steps = _min_strides(toposort(sink), [axis for lane in lanes for axis in lane])
            lanes = sorted(lanes, key=lambda lane: (*max(steps[axis] for axis in lane), lane[0].arg.id))
        found = sink.cache["threads"] = Threads(tuple(tuple(lane) for lane in lanes))
    return found


def count_threads(sink: UOp) -> int:
    """The number of threads of a work-group; the order of its axes does not matter."""
    return math.prod(int(lane[0].src[0].arg) for lane in _shared_lanes(sink))


def _shared_lanes(sink: UOp) -> list[list[UOp]]:
    """Axes of equal size are mapped to one axis of the group where no value depends on both."""
    found: list[list[UOp]] | None = sink.cache.get("lanes")
    if found is None:
        nodes = toposort(sink)
        axes = sorted((n for n in nodes if n.op is Ops.RANGE and n.arg.kind in THREAD_KINDS), key=lambda a: a.arg.id)
        apart = _met_together(nodes) if len(axes) > 1 else set()
        found = []
        for axis in axes:
            home = next((lane for lane in found if all(_may_share(axis, other, apart) for other in lane)), None)
            if home is None:
                found.append([axis])
            else:
                home.append(axis)
        sink.cache["lanes"] = found
    return found


def _may_share(axis: UOp, other: UOp, apart: set[frozenset[UOp]]) -> bool:
    return axis.src[0] is other.src[0] and frozenset((axis, other)) not in apart


def _met_together(nodes: list[UOp]) -> set[frozenset[UOp]]:
    """Pairs of thread axes that some value depends on, or that one reduction or effect ends."""
    groups: set[frozenset[UOp]] = set()
    for node in nodes:
        named = node.src if node.op in (Ops.REDUCE, Ops.END) else ()
        groups.add(frozenset(a for a in (*node.ranges, *named) if a.op is Ops.RANGE and a.arg.kind in THREAD_KINDS))
    return {frozenset((one, other)) for found in groups for one in found for other in found if one is not other}


def _min_strides(nodes: list[UOp], axes: list[UOp]) -> dict[UOp, tuple[int, int]]:
    """A sort key for each axis: minus its minimum stride in a buffer, and the number of accesses with that stride.
    Threads along the smallest stride should be adjacent, and of equal strides those of the most accesses. Where a
    thread accesses a vector, the stride is in vectors."""
    found: dict[UOp, list[int]] = {axis: [] for axis in axes}
    for node in nodes:
        if node.op is Ops.INDEX and memory_of(node).op is Ops.PARAM:
            lanes = _vector_lanes(node.src[1])
            for axis in node.src[1].ranges.intersection(axes):
                step = abs(_first_step(node.src[1], axis))
                if step:
                    found[axis].append(step if step % lanes else step // lanes)
    least = {axis: min(steps, default=1 << 62) for axis, steps in found.items()}
    return {axis: (-least[axis], steps.count(least[axis])) for axis, steps in found.items()}


def _vector_lanes(position: UOp) -> int:
    """The adjacent elements that the tiles of one thread have in memory."""
    tiles = [(step, axis) for axis, step in affine(position).terms.items() if axis.op is Ops.RANGE]
    tiles = [(step, axis) for step, axis in tiles if axis.arg.kind.is_tile and axis.src[0].is_const]
    lanes = 1
    for step, axis in sorted(tiles, key=lambda tile: (tile[0], tile[1].arg.id)):
        if step == lanes:
            lanes *= int(axis.src[0].arg)
    return lanes


def _first_step(position: UOp, axis: UOp) -> int:
    """The distance of the first two threads along an axis in memory; 0 where it is 0 or not known."""
    total = 0
    for atom, step in affine(position).terms.items():
        if atom is axis:
            total += step
        elif axis in atom.ranges:
            others: dict[UOp, UOp] = dict.fromkeys(atom.ranges, index_const(0))
            first, second = (simplify(substitute(atom, {**others, axis: index_const(n)})) for n in (0, 1))
            if not (first.is_const and second.is_const):
                return 0
            total += step * (int(second.arg) - int(first.arg))
    return total


def local_bytes(sink: UOp, warp_size: int) -> int:
    """The local memory of a kernel in bytes: its placeholders, and a slot for each grouped reduction."""
    nodes = toposort(sink)
    total = sum(int(node.arg.size) * node.dtype.itemsize for node in nodes if node.op is Ops.DEFINE_LOCAL)
    grouped = [n for n in nodes if n.op is Ops.REDUCE and any(a.arg.kind is AxisType.GROUP for a in n.src[1:])]
    if not grouped:
        return total
    threads = threads_of(sink)
    return total + sum(threads.layout(n, warp_size).size(threads.sizes) * max(n.dtype.itemsize, 4) for n in grouped)

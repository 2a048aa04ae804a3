"""Work-group reductions. In: a kernel whose reductions may run over GROUP axes, and its thread layout. Out: the kernel
with barriers and local memory instead: each thread reduces its part, and every thread gets the total.

    before: total = REDUCE(a[k0*4 + g], k0, g)
    after:  partial = REDUCE(a[k0*4 + g], k0)
            met     = BARRIER(END(STORE(local[g], partial), g))       after another BARRIER inside a loop
            total   = REDUCE(LOAD(local after met [k]), k)

Where the target has warps and g is the fastest axis of the group, the threads of a warp combine their partials by
exchange, and one partial for each warp goes through local memory. Every reduction has its own slot of local memory."""

from __future__ import annotations

import itertools

from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph.kernels.threads import GroupLayout, Threads
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import map_graph, toposort

_LOOP_KINDS = frozenset({AxisType.LOOP, AxisType.REDUCE})
# The ids of ranges over partials start here, above those of any axis of a kernel.
_PARTIAL_ID = 1 << 21
# The most partials that are combined unrolled; more are combined in a loop.
_MAX_UNROLLED = 8


def lower_groups(sink: UOp, threads: Threads, target: Target) -> UOp:
    nodes = toposort(sink)
    if not any(node.op is Ops.REDUCE and _group_axes(node) for node in nodes):
        return sink
    used = [node.arg.slot for node in nodes if node.op is Ops.DEFINE_LOCAL]
    slots = itertools.count(max(used, default=-1) + 1)

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.REDUCE or not _group_axes(node):
            return None
        layout = threads.layout(node, target.warp_size)
        return GroupWriter(threads, layout, node.with_src(src), next(slots)).total()

    return map_graph(sink, visit, nodes)


def _group_axes(node: UOp) -> list[UOp]:
    return [axis for axis in node.src[1:] if axis.arg.kind is AxisType.GROUP]


class GroupWriter:
    """Lowers one reduction. `layout` is that of the kernel before lowering, since lowered sources may depend on fewer
    threads."""

    def __init__(self, threads: Threads, layout: GroupLayout, reduce: UOp, slot: int) -> None:
        self.layout = layout
        self.reduce = reduce
        self.slot = slot
        self.axes = [lane[0] for lane in threads.lanes]
        self.sizes = threads.sizes
        self.groups = [self.axes[lane] for lane in layout.groups]
        self.loops = tuple(
            sorted((axis for axis in reduce.ranges if axis.arg.kind in _LOOP_KINDS), key=lambda axis: axis.arg.id)
        )

    def total(self) -> UOp:
        value = self.partial()
        if self.layout.width > 1:
            closed = self.groups if self.layout.parts == 1 else ()
            value = self.fold(value, self.layout.width, *closed)
        return value if self.layout.parts == 1 else self.combined(value)

    def partial(self) -> UOp:
        """The reduction of one thread's part."""
        kept = tuple(axis for axis in self.reduce.src[1:] if axis not in self.groups)
        return self.reduce.replace(src=(self.reduce.src[0], *kept)) if kept else self.reduce.src[0]

    def fold(self, value: UOp, width: int, *closed: UOp) -> UOp:
        return UOp(Ops.WARP_FOLD, value.dtype, (value, *closed), (self.reduce.arg, width))

    def combined(self, value: UOp) -> UOp:
        """All partials, through local memory."""
        dtype = value.dtype
        layout = self.layout
        memory = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(self.slot, layout.size(self.sizes)))
        version = memory
        if self.loops:
            # Other threads may still be reading the partials of the previous iteration.
            version = UOp(Ops.AFTER, dtype, (memory, UOp(Ops.BARRIER, dtypes.void, self.loops, self.slot)))
        index = [version, self.position(self.own_part())]
        if layout.width > 1:
            index.append((self.groups[-1] % layout.width).eq(0))
        store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, dtype, tuple(index)), value))
        apart = [axis for axis in self.axes if axis in store.ranges]
        met = UOp(Ops.BARRIER, dtypes.void, (UOp(Ops.END, dtypes.void, (store, *apart, *layout.tiles)),), self.slot)
        version = UOp(Ops.AFTER, dtype, (memory, met))
        if self.is_fold_enough():
            loaded = self.load(version, self.groups[-1] % layout.parts)
            return self.fold(loaded, layout.parts, *self.groups)
        kind = AxisType.UNROLL if layout.parts <= _MAX_UNROLLED else AxisType.REDUCE
        part = UOp(Ops.RANGE, dtypes.index, (index_const(layout.parts),), Axis((_PARTIAL_ID + self.slot,), kind))
        return UOp(Ops.REDUCE, dtype, (self.load(version, part), part), self.reduce.arg)

    def is_fold_enough(self) -> bool:
        """Whether the partials of all warps fit one warp, which combines them by another exchange."""
        parts, width = self.layout.parts, self.layout.width
        return len(self.groups) == 1 and 1 < parts <= width and parts & (parts - 1) == 0

    def load(self, version: UOp, part: UOp) -> UOp:
        index = UOp(Ops.INDEX, version.dtype, (version, self.position(part)))
        return UOp(Ops.LOAD, version.dtype, (index,))

    def own_part(self) -> UOp:
        """The index of a thread's partial: that of its warp, where the warp has combined its own."""
        part = index_const(0)
        for lane, axis in zip(self.layout.groups[:-1], self.groups[:-1], strict=True):
            part = part * self.sizes[lane] + axis
        last = self.groups[-1]
        part = part * (self.sizes[self.layout.groups[-1]] // self.layout.width)
        return part + (last // self.layout.width if self.layout.width > 1 else last)

    def position(self, part: UOp) -> UOp:
        """The index of a partial in local memory: the partials of one total are contiguous, for each element of the
        tile and each thread along the other axes. Where the fastest threads belong to another axis, that axis is
        contiguous instead, so that adjacent threads use different banks."""
        others = [(self.axes[lane], self.sizes[lane]) for lane in self.layout.others]
        digits = [*others, *((tile, int(tile.src[0].arg)) for tile in self.layout.tiles), (part, self.layout.parts)]
        if others and self.layout.others[-1] == len(self.axes) - 1:
            digits = [*reversed(digits[len(others) :]), *others]
        position = index_const(0)
        for digit, size in digits:
            position = position * size + digit
        return simplify(position)

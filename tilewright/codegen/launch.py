"""The thread layout of a work-group. In: a kernel with LOCAL and GROUP axes. Out: the kernel with axes that may share
threads merged, and in the end all of them LOCAL, with stores masked to one thread where several would store the same
value. Runs before and after `group.py`, which needs to know which threads are neighbours."""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.threads import THREAD_KINDS, Threads, threads_of
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, index_const, memory_of
from tilewright.graph.walk import exchange_axis, map_graph, substitute, toposort

LOOP_KINDS = frozenset({AxisType.LOOP, AxisType.REDUCE})
# The id of the barriers between reading an element and overwriting it.
_BEFORE_STORE = -2


def share_threads(sink: UOp) -> tuple[UOp, Threads]:
    """The kernel with one axis for each axis of the work-group, and those axes, the fastest last. Later passes use them
    as the thread layout, because a layout computed from the merged axes could have another order.

    before: max over g0 of 256, sum over g1 of 256, out[l] for local l of 256
    after:  the three on one axis of 256 threads: a thread writes the elements of a row that it has read
    """
    exchanges: dict[UOp, UOp] = {}
    lanes: list[tuple[UOp]] = []
    for lane in threads_of(sink).lanes:
        kinds = {axis.arg.kind for axis in lane}
        kind = AxisType.GROUP if AxisType.GROUP in kinds else AxisType.LOCAL
        shared = UOp(Ops.RANGE, lane[0].dtype, lane[0].src, Axis(lane[0].arg.id, kind))
        exchanges.update({axis: shared for axis in lane if axis is not shared})
        lanes.append((shared,))
    return substitute(sink, exchanges), Threads(tuple(lanes))


def join_cores(sink: UOp) -> UOp:
    """The kernel with its THREAD axes merged into one, the first axis the slowest.

    before: out[t0*64 + t1] for t0 of 8, t1 of 64
    after:  out[t//64*64 + t%64] for t of 512
    """
    nodes = toposort(sink)
    axes = sorted((n for n in nodes if n.op is Ops.RANGE and n.arg.kind is AxisType.THREAD), key=lambda a: a.arg.id)
    if len(axes) < 2:
        return sink
    sizes = [int(axis.src[0].arg) for axis in axes]
    joined = axes[0].replace(src=(index_const(math.prod(sizes)),))
    for number, axis in enumerate(axes):
        digit = joined // math.prod(sizes[number + 1 :])
        sink = exchange_axis(sink, axis, digit % sizes[number] if number else digit)
    return simplify(sink)


def settle_threads(sink: UOp) -> UOp:
    """The kernel with LOCAL axes alone, its stores masked, and without barriers that order nothing."""
    sink = drop_idle_barriers(mask_stores(sink))
    groups = [node for node in toposort(sink) if node.op is Ops.RANGE and node.arg.kind is AxisType.GROUP]
    return substitute(sink, {axis: axis.replace(arg=Axis(axis.arg.id, AxisType.LOCAL)) for axis in groups})


def mask_stores(sink: UOp) -> UOp:
    """
    before: out[i] = total                          the same for all threads g
    after:  out[i] = total   if g == 0
    """
    nodes = toposort(sink)
    threads = sorted((n for n in nodes if n.op is Ops.RANGE and n.arg.kind in THREAD_KINDS), key=lambda a: a.arg.id)
    if not threads:
        return sink
    buffers = {
        memory_of(node.src[0]) for node in nodes if node.op is Ops.LOAD and memory_of(node.src[0]).op is Ops.PARAM
    }

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.STORE or memory_of(node.src[0]).op is Ops.DEFINE_REG:
            return None
        missing = [axis for axis in threads if axis not in node.ranges]
        value = src[1] if memory_of(node.src[0]) in buffers else None
        return node.with_src((_masked(src[0], missing, value), src[1])) if missing else None

    return map_graph(sink, visit, nodes)


def _masked(index: UOp, missing: list[UOp], value: UOp | None) -> UOp:
    """The index, masked to the first thread along each axis. Where the kernel also reads this memory, a barrier keeps
    it from being overwritten before all threads have read it for `value`."""
    memory, position, *valid = index.src
    mask = missing[0].eq(0)
    for axis in missing[1:]:
        mask = mask & axis.eq(0)
    if value is not None:
        memory = UOp(Ops.AFTER, memory.dtype, (memory, UOp(Ops.BARRIER, dtypes.void, (value,), _BEFORE_STORE)))
    return UOp(Ops.INDEX, index.dtype, (memory, position, valid[0] & mask if valid else mask))


def drop_idle_barriers(sink: UOp) -> UOp:
    """Removes barriers before which nothing happens: the loops that they named have become the grid. Where the store
    that such a barrier comes before is repeated by another loop, the barrier names that loop instead."""
    nodes = toposort(sink)
    repeated = _repeating_loops(nodes)

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.AFTER:
            return None
        loops = repeated.get(node, ())
        kept = [source for source in src[1:] if not _is_idle(source)]
        kept += [source.with_src(loops) for source in src[1:] if loops and _is_idle(source)]
        return UOp(node.op, node.dtype, (src[0], *kept)) if kept else src[0]

    return map_graph(sink, visit, nodes)


def _repeating_loops(nodes: list[UOp]) -> dict[UOp, tuple[UOp, ...]]:
    """For each version of a memory that is stored to after an idle barrier, the loops around the store; its own loops
    are ended."""
    found: dict[UOp, tuple[UOp, ...]] = {}
    for end in nodes:
        if end.op is Ops.END and end.src[0].op is Ops.STORE:
            version = end.src[0].src[0].src[0]
            if version.op is Ops.AFTER and any(_is_idle(source) for source in version.src[1:]):
                loops = (axis for axis in end.ranges if axis.arg.kind in LOOP_KINDS)
                found[version] = tuple(sorted(loops, key=lambda axis: axis.arg.id))
    return found


def _is_idle(node: UOp) -> bool:
    return node.op is Ops.BARRIER and all(
        source.op is Ops.RANGE and source.arg.kind not in LOOP_KINDS for source in node.src
    )

"""Opts for memory-bound kernels of work-groups. In: a kernel without a product, for a target with work-groups. Out: the
opts, in order: vectors along the fast loop of an elementwise kernel, threads that share rows, threads along columns."""

from __future__ import annotations

import math

from tilewright.base.target import Target
from tilewright.graph.kernels.threads import threads_of
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, is_counted, size_of, stride
from tilewright.kernel.heuristics.group_builder import GroupOptBuilder, divisor, output_loops, step_of, warp_threads

# Threads of a work-group without shared data.
GROUP_THREADS = 256
# Threads that saturate a core: with fewer than that on all cores, more threads share a reduction.
THREADS_PER_CORE = 2048
# Vectors of a row per thread, at least.
VECTORS_PER_THREAD = 4


def choose_memory_opts(builder: GroupOptBuilder) -> None:
    view = builder.view
    if any(unit_axis(view, node) is not None for node in view.reduces):
        share_rows(builder)
        return
    if view.reduces:
        share_columns(builder)
    fill_groups(builder)


# ---------------------------------------------------------------- elementwise


def fill_groups(builder: GroupOptBuilder) -> None:
    """Vectors along the fast loop, then threads, until the work-group has GROUP_THREADS."""
    view = builder.view
    loops = sorted(output_loops(view), key=lambda axis: step_of(axis, view.stores))
    if not loops:
        return
    first: UOp | None = loops[0]
    assert first is not None
    steps = [stride(access, first) for access in view.accesses]
    if all(step in (0, 1) for step in steps) and not view.reduces:
        amount = math.gcd(size_of(first), builder.lanes)
        first = builder.split(OptOps.UPCAST, first, amount)
    for axis in (first, *loops[1:]):
        if axis is None or axis not in builder.view.axes:
            continue
        most = min(builder.room, GROUP_THREADS // max(1, threads_of(builder.view.sink).count))
        if most <= 1:
            return
        if size_of(axis) > 2 * most and divisor(size_of(axis), most) < min(most, warp_threads(builder.target)):
            axis = builder.fill_up(axis, most if size_of(axis) >= 64 * most else min(most, 64))
        builder.split(OptOps.LOCAL, axis, divisor(size_of(axis), most))


# ---------------------------------------------------------------- reductions along memory


def unit_axis(view: KernelView, reduce: UOp) -> UOp | None:
    """The longest reduce axis of stride 1 in an operand, if there is one."""
    inside = [access for access in view.accesses if any(axis in access.ranges for axis in reduce.src[1:])]
    axes = [axis for axis in reduce.src[1:] if axis.arg.kind is AxisType.REDUCE and is_counted(axis)]
    found = [axis for axis in axes if any(stride(access, axis) == 1 for access in inside) and size_of(axis) > 1]
    return max(found, key=size_of, default=None)


def share_rows(builder: GroupOptBuilder) -> None:
    """Gives every reduction of a row, and the loop that stores the row, to the same number of threads."""
    view = builder.view
    found = [unit_axis(view, node) for node in view.reduces]
    axes = list(dict.fromkeys(axis for axis in found if axis is not None))
    inner = [loop for loop in output_loops(view) if not all(loop in node.ranges for node in view.reduces)]
    inner = [loop for loop in inner if any(stride(store, loop) == 1 for store in view.stores)]
    lanes = builder.lanes
    length = max(size_of(axis) for axis in axes)
    rows = math.prod(size_of(loop) for loop in output_loops(view) if loop not in inner)
    threads = threads_for_rows(builder.target, -(-length // lanes), rows)
    for axis, op in [*((a, OptOps.GROUP) for a in axes), *((a, OptOps.LOCAL) for a in inner)]:
        if size_of(axis) % lanes or divisor(size_of(axis) // lanes, threads) < min(threads, 32):
            if size_of(axis) > lanes * threads:
                axis = builder.fill_up(axis, lanes * min(threads, 64))
        rest = builder.split(OptOps.UPCAST, axis, math.gcd(size_of(axis), lanes))
        if rest is not None:
            builder.split(op, rest, divisor(size_of(rest), threads))
    add_rows(builder)


def threads_for_rows(target: Target, vectors: int, rows: int) -> int:
    """Threads that share a row: enough to saturate the cores, each with enough work."""
    most = min(target.max_group_size, 1024)
    wanted = max(1, target.cores * THREADS_PER_CORE // max(rows, 1))
    least = min(vectors, warp_threads(target))
    own = max(1, vectors // VECTORS_PER_THREAD)
    count = max(least, min(own, max(wanted, GROUP_THREADS)))
    return min(most, 1 << (count.bit_length() - 1))


def add_rows(builder: GroupOptBuilder) -> None:
    """A work-group with few threads per row takes several rows."""
    loops = [a for a in output_loops(builder.view) if all(a in node.ranges for node in builder.view.reduces)]
    count = threads_of(builder.view.sink).count
    if loops and 1 < count < GROUP_THREADS // 2:
        axis = max(loops, key=lambda loop: loop.arg.id)
        builder.split(OptOps.LOCAL, axis, divisor(size_of(axis), min(builder.room, GROUP_THREADS // (2 * count))))


# ---------------------------------------------------------------- reductions across memory


def share_columns(builder: GroupOptBuilder) -> None:
    """Threads along the fast output loop; where they are few in all, they share the reduction."""
    view = builder.view
    loops = sorted(output_loops(view), key=lambda axis: step_of(axis, view.accesses))
    count = math.prod(size_of(loop) for loop in loops)
    wanted = builder.target.cores * THREADS_PER_CORE
    sharing = min(32, max(1, wanted // max(count, 1)), builder.target.max_group_size)
    axes = [axis for node in view.reduces for axis in node.src[1:] if axis.arg.kind is AxisType.REDUCE]
    if sharing < 2 or len(view.reduces) != 1 or not axes:
        return
    longest = max(axes, key=size_of)
    if loops:
        builder.split(OptOps.LOCAL, loops[0], divisor(size_of(loops[0]), 32))
    if longest in builder.view.axes:
        builder.split(OptOps.GROUP, longest, divisor(size_of(longest), min(sharing, builder.room)))

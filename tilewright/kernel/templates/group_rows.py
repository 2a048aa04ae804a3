"""Reductions along memory on a device with work-groups. In: a kernel without a product. Out: the plan of its template:
the threads of a group share each row (sum of rows, softmax, matrix times vector), adjacent threads on adjacent
elements; all reductions of a row and its output loop use the same number of threads. `group_memory.py` is for
reductions across memory."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tilewright.graph.affine import affine
from tilewright.graph.kernels.threads import count_threads
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.axes import KernelView, is_counted, is_uniform, quotient_of, stride
from tilewright.kernel.templates.group_builder import (
    GroupOptBuilder,
    divisor,
    output_loops,
    part_of,
    tile_groups,
    warp_threads,
)
from tilewright.kernel.templates.group_elements import may_pad
from tilewright.kernel.templates.measured_groups import (
    GROUP_THREADS,
    MAX_PADDED,
    MIN_INTERLEAVED,
    ROWS_PER_THREAD,
    SHORT_ROW,
    SMALL_OPERAND,
    VECTORS_PER_THREAD,
)
from tilewright.kernel.templates.template import Plan, Template


def match_rows(view: KernelView) -> bool | None:
    return has_rows(view) or None


def row_plans(view: KernelView, found: bool) -> tuple[Plan, ...]:
    reason = "a reduction along memory: the threads of a work-group share each row, adjacent ones adjacent elements"
    # No opts: threads cannot share such a row, and there must be threads.
    return (Plan("shared rows", reason, lambda: tile_groups(view, share_rows) or None),)


def unit_axis(view: KernelView, reduce: UOp) -> UOp | None:
    """The longest reduce axis of stride 1 in an operand, if there is one. The strides of an operand that is much
    smaller than another, such as the vector that a matrix is multiplied by, do not matter: it stays in a cache. Terms
    that are computed, as of weights by distance, have no strides; each thread along a loop that stores the row would
    sum all of them."""
    inside = large_accesses([access for access in view.accesses if any(a in access.ranges for a in reduce.src[1:])])
    axes = [axis for axis in reduce.src[1:] if axis.arg.kind is AxisType.REDUCE and is_uniform(axis)]
    if not inside and any(loop not in reduce.ranges for loop in output_loops(view)):
        return max(axes, key=size_of, default=None)
    found = [axis for axis in axes if any(stride(access, axis) == 1 for access in inside) and size_of(axis) > 1]
    return max(found, key=size_of, default=None)


def large_accesses(accesses: list[UOp]) -> list[UOp]:
    """The accesses of operands that are not much smaller than the largest."""
    most = max((reached(access) for access in accesses), default=0)
    return [access for access in accesses if SMALL_OPERAND * reached(access) >= most]


def reached(access: UOp) -> int:
    """The number of elements of an access: the product of the sizes of its loops."""
    return math.prod(size_of(axis) for axis in access.ranges if is_uniform(axis))


def has_rows(view: KernelView) -> bool:
    """Whether the threads of a group should share each reduction along memory. A short reduction, such as a pooling
    window, is left to one thread: its elements are in few cache lines, which adjacent threads read as well."""
    found = [(unit_axis(view, node), node) for node in view.reduces]
    return any(
        size_of(axis) > SHORT_ROW or (steps_of(node) > SHORT_ROW**2 and not is_window(view, axis))
        for axis, node in found
        if axis is not None
    )


def is_window(view: KernelView, axis: UOp) -> bool:
    """Whether an output loop shifts the elements that are read along the axis by less than its length: adjacent threads
    along that output loop read the same elements."""
    along = large_accesses([access for access in view.loads if stride(access, axis) == 1])
    loops = [loop for loop in output_loops(view) if size_of(loop) >= warp_threads(view.target)]
    shifts = range(1, max(2, size_of(axis)))
    return bool(along) and all(any(stride(access, loop) in shifts for loop in loops) for access in along)


def keep_short_rows(builder: GroupOptBuilder) -> bool:
    """Where a kernel reduces short rows and stores something for each of their elements, as a softmax does, a thread
    has whole rows: with one thread per element, every thread would reduce the row again. Returns whether there are
    enough rows."""
    view = builder.view
    inner = [loop for loop in output_loops(view) if not any(loop in node.ranges for node in view.reduces)]
    axes = list(dict.fromkeys(axis for node in view.reduces for axis in node.src[1:]))
    rows = math.prod(size_of(loop) for loop in output_loops(view) if loop not in inner)
    elements = math.prod(map(size_of, inner))
    if not inner or not all(map(is_counted, (*inner, *axes))) or max(elements, *map(size_of, axes)) > SHORT_ROW:
        return False
    if rows < builder.target.cores * builder.target.threads_per_core // ROWS_PER_THREAD or has_effects(view):
        return False
    for loop in inner:
        builder.split(OptOps.UPCAST, loop, size_of(loop))
    for axis in axes:
        builder.split(OptOps.UNROLL, axis, size_of(axis))
    return True


def load_short_rows(builder: GroupOptBuilder) -> None:
    """A thread that sums a short row by itself loads it as vectors."""
    for axis in dict.fromkeys(unit_axis(builder.view, node) for node in builder.view.reduces):
        if axis is not None and is_aligned(builder.view, axis, builder.lanes):
            builder.split(OptOps.UPCAST, axis, builder.lanes)


def steps_of(reduce: UOp) -> int:
    """Iterations of a reduction for one result."""
    return math.prod(size_of(axis) for axis in reduce.src[1:])


def main_reductions(view: KernelView) -> list[UOp]:
    """The reductions with the most iterations of all their loops. Others, such as the sum of partial sums, are so short
    that every work-group may repeat them."""
    work = {node: steps_of(node) * math.prod(size_of(axis) for axis in node.ranges) for node in view.reduces}
    most = max(work.values())
    return [node for node, count in work.items() if 16 * count >= most]


def share_rows(builder: GroupOptBuilder) -> None:
    """Divides every reduction of a row, and the loops that store the row, among the same number of threads. Where rows
    are few, threads also share the reductions' other loops, such as the images of a batch where a row is one
    channel."""
    view = builder.view
    found = [unit_axis(view, node) for node in view.reduces]
    axes = list(dict.fromkeys(axis for axis in found if axis is not None))
    outputs = output_loops(view)
    inner = [loop for loop in outputs if not all(loop in node.ranges for node in main_reductions(view))]
    # Stores across the rows are slow, and slower by one thread alone: the loop that is contiguous in loads is shared.
    candidates = ([loop for loop in inner if has_unit_step(loop, of)] for of in (view.stores, view.loads))
    fast = list(dict.fromkeys(long_part(loop, inner, view) for loop in next(filter(None, candidates), [])))
    # What is stored for a row may be longer than what is left to sum of it.
    longest = max([*axes, *fast], key=size_of)
    lanes = builder.lanes
    rows = math.prod(size_of(loop) for loop in outputs if loop not in inner)
    vectors = size_of(longest) // lanes if is_aligned(view, longest, lanes) else -(-size_of(longest) // lanes)
    threads = threads_for_rows(builder, vectors, rows)
    shortest = shortest_of_work([*axes, *fast], view)
    while threads > warp_threads(builder.target) and threads >= 2 * shortest:
        threads //= 2  # the same threads go along every axis, and those beyond its end would wait
    slow = slow_axes(view, [*axes, *fast], inner)
    teams = teams_for_rows(builder, threads, rows, slow)
    for axis, op in [*((a, OptOps.GROUP) for a in axes), *((a, OptOps.LOCAL) for a in fast)]:
        share_axis(builder, axis, op, threads)
    for axis in slow:
        op = OptOps.GROUP if axis in view.reduce_axes else OptOps.LOCAL
        builder.split(op, builder.fill_up(axis, teams), teams)
    add_rows(builder)


def shortest_of_work(axes: list[UOp], view: KernelView) -> int:
    """The size of the shortest axis over which a kernel has most of its accesses. Threads may wait elsewhere, as beyond
    the end of partial sums that every work-group combines."""
    work = {
        axis: max((reached(access) for access in view.accesses if axis in access.ranges), default=1) for axis in axes
    }
    most = max(work.values())
    return min(size_of(axis) for axis, count in work.items() if 16 * count >= most)


def long_part(loop: UOp, inner: list[UOp], view: KernelView) -> UOp:
    """The loop that threads share in place of one that is contiguous but has no iterations for a warp, as that of two
    interleaved results: the next one in memory, where it has more."""
    if size_of(loop) >= MIN_INTERLEAVED:
        return loop
    steps = {size_of(loop) * abs(step) for access in view.stores if (step := stride(access, loop)) is not None}
    near = [each for each in inner if any(abs(stride(access, each) or 0) in steps for access in view.stores)]
    return max([loop, *near], key=size_of)


def has_unit_step(loop: UOp, accesses: Iterable[UOp]) -> bool:
    return any(stride(access, loop) == 1 for access in accesses)


def share_axis(builder: GroupOptBuilder, axis: UOp, op: OptOps, threads: int) -> None:
    """Distributes an axis of stride 1 over `threads`, padded to a multiple of them. Each thread loads vectors; where
    those would not be aligned it loads elements, adjacent threads adjacent ones."""
    lanes = builder.lanes
    if is_aligned(builder.view, axis, lanes):
        rest = builder.split(OptOps.UPCAST, axis, lanes)
        if rest is not None:
            builder.split(op, builder.fill_up(rest, threads), threads)
        return
    several = lanes if size_of(axis) >= lanes * threads else 1
    rest = builder.split(op, builder.fill_up(axis, threads * several), threads)
    if rest is not None and several > 1 and quotient_of(rest, several) is not None:
        builder.split(OptOps.UPCAST, rest, several)


def is_aligned(view: KernelView, axis: UOp, lanes: int) -> bool:
    """Whether vectors of `lanes` elements along the axis begin at multiples of their length in every buffer, and no
    mask divides one."""
    if size_of(axis) % lanes or not is_counted(axis):
        return False
    for access in view.accesses:
        if any(axis in mask.ranges for mask in access.src[2:]):
            return False
        if stride(access, axis) == 1:
            form = affine(access.src[1])
            others = (count for atom, count in form.terms.items() if atom is not axis)
            if form.constant % lanes or any(count % lanes for count in others):
                return False
    return True


def threads_for_rows(builder: GroupOptBuilder, vectors: int, rows: int) -> int:
    """The number of threads that share a row, a power of two: enough to saturate the cores, each with enough work.
    Where several reductions read a row, enough that the cache holds all rows that are read at a time."""
    target, view = builder.target, builder.view
    most = min(target.max_group_size, 1024)
    wanted = max(1, target.cores * target.threads_per_core // max(rows, 1), GROUP_THREADS)
    if len(main_reductions(view)) > 1:
        row_bytes = vectors * target.vector_bytes
        min_threads = -(-target.cores * target.threads_per_core * row_bytes // target.cache_bytes)
        wanted = max(wanted, 1 << (min_threads - 1).bit_length())
    least = min(vectors, warp_threads(target))
    count = max(least, min(max(1, vectors // VECTORS_PER_THREAD), wanted))
    threads = min(most, 1 << (count.bit_length() - 1))
    while threads > warp_threads(target) and -(-vectors // threads) * threads > MAX_PADDED * vectors:
        threads //= 2
    return threads


def slow_axes(view: KernelView, shared: list[UOp], inner: list[UOp]) -> list[UOp]:
    """For each main reduction its longest loop that threads do not share yet, and the same for the loops that store
    results; none where one of them has no such loop."""
    found = []
    for node in main_reductions(view):
        others = [a for a in node.src[1:] if a not in shared and a.arg.kind is AxisType.REDUCE and is_uniform(a)]
        found.append(max(others, key=size_of, default=None))
    if inner:
        found.append(max((loop for loop in inner if loop not in shared), key=size_of, default=None))
    return [] if None in found else list(dict.fromkeys(axis for axis in found if axis is not None))


def teams_for_rows(builder: GroupOptBuilder, threads: int, rows: int, slow: list[UOp]) -> int:
    """The number of teams that share the slow axes, each with the threads of a row: a power of two to whose multiple
    every axis of constant size can be padded."""
    if not slow:
        return 1
    wanted = builder.target.cores * builder.target.threads_per_core // max(rows * threads, 1)
    most = min(wanted, min(builder.target.max_group_size, 1024) // threads)
    counted = [size_of(axis) for axis in slow if is_counted(axis)]
    powers = [1 << power for power in reversed(range(max(most, 1).bit_length()))]
    return next(teams for teams in powers if all(-(-size // teams) * teams <= MAX_PADDED * size for size in counted))


def add_rows(builder: GroupOptBuilder) -> None:
    """A work-group with few threads per row takes several rows."""
    loops = [a for a in output_loops(builder.view) if all(a in node.ranges for node in builder.view.reduces)]
    for axis in sorted(loops, key=lambda loop: (is_counted(loop), loop.arg.id), reverse=True):
        count = count_threads(builder.view.sink)
        if 1 < count < GROUP_THREADS // 2:
            amount = min(builder.room, GROUP_THREADS // (2 * count))
            if may_pad(axis, amount) and 2 * divisor(size_of(axis), amount) < amount:
                axis = builder.fill_up(axis, amount)
            builder.split(OptOps.LOCAL, axis, part_of(axis, amount))


ROWS = Template("rows", "a reduction along memory", match_rows, row_plans)

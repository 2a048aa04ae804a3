"""Opts for memory-bound kernels. In: a list of opts under construction, for a target without work-groups. Out: the list
with tiles whose accesses suit caches and prefetchers: whole lines, whole pages, a few streams at a time.

  a transposition           square tiles, loaded along one loop and stored along the other
  a sum over the slow axis  long parts of rows, accumulators spilled to memory where registers do not suffice
  a sum over the fast axis  several vectors of several rows at a large stride, one prefetch stream each
                            one vector of neighbouring rows, where an expensive function of each sum follows"""

from __future__ import annotations

import math

from tilewright.base.costs import CACHE_ADDITIONS
from tilewright.base.target import Target
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, is_counted, stride
from tilewright.kernel.templates.dot_tiles import utilisation
from tilewright.kernel.templates.measured import (
    LONG_SHARE,
    MASKED_SPEED,
    MAX_ROW_SHARE,
    MIN_SQUARE,
    MIN_STREAMED_PARTS,
    MIN_STREAMED_ROWS,
    OVERLAPPING_VECTORS,
    SHORT_SHARE,
    SPILL_SHARE,
)
from tilewright.kernel.templates.opt_builder import OptBuilder, best_divisor
from tilewright.kernel.templates.sharing import may_be_serial
from tilewright.kernel.transforms.block import check_block
from tilewright.kernel.transforms.spill import check_spill
from tilewright.kernel.transforms.thread import check_thread


def crossing_axes(view: KernelView) -> tuple[UOp, UOp] | None:
    """An output loop of stride 1 in every store, and one of stride 1 in the loads that cross it."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if is_counted(axis) and size_of(axis) >= MIN_SQUARE]
    loops = [axis for axis in loops if all(axis in node.ranges for node in view.reduces)]
    loads = [access for access in view.accesses if access not in view.stores]
    for outer in loops:
        across = [load for load in loads if stride(load, outer) not in (0, 1)]
        if not across or any(stride(store, outer) != 1 for store in view.stores):
            continue
        for inner in loops:
            if inner is not outer and all(stride(load, inner) == 1 for load in across):
                return outer, inner
    return None


def square_tile(builder: OptBuilder, outer: UOp, inner: UOp) -> None:
    """Tiles both loops: vectors are loaded along one, transposed in registers, and stored along the other as whole
    lines. The loop of the loads is inside: their lines are prefetched. The stores are non-temporal. A sum has a square
    of accumulators, which is transposed after it."""
    itemsize = max(store.dtype.itemsize for store in builder.view.stores)
    lanes = max(1, builder.target.line_bytes // itemsize)
    steps = [abs(stride(load, outer) or 0) * load.dtype.itemsize for load in builder.view.loads]
    loaded = min(builder.target.transposed_lanes(itemsize, min(lanes, size_of(outer)), step) for step in steps)
    if builder.view.reduces:
        lanes = loaded = max(1, builder.target.vector_bytes // itemsize)
    outer, inner = builder.put_outside(outer, inner)
    builder.vectorise(outer, 1, lanes)
    builder.vectorise(inner, 1, min(loaded, builder.target.vector_registers // 2))


def row_vectors(view: KernelView, axis: UOp, lanes: int) -> int:
    """The number of vectors of a row that a sum over the rows of a large matrix accumulates at a time: as many as fit
    the L1, or fewer where that would leave cores idle. 0 for a matrix that fits a cache: the core's own cache, with
    room for other data, if the processor does not prefetch all rows at a time. Whether accumulators are spilled does
    not depend on the number of cores."""
    target = view.target
    if not view.reduces or not target.has_threads:
        return 0
    inside = [access for access in view.accesses if access.ranges & view.reduce_axes and stride(access, axis) == 1]
    near, far = target.core_cache_bytes // LONG_SHARE, target.cache_bytes
    if not any(
        memory_of(load).arg.size * load.dtype.itemsize >= (far if _is_prefetched(view, load, axis) else near)
        for load in inside
    ):
        return 0
    room = view.target.l1_bytes // SPILL_SHARE // max(node.dtype.itemsize for node in view.reduces)
    least = target.independent_vectors if is_spilled(view, axis, lanes) else 0
    parts = -(-view.target.cores // max(1, _tasks_around(view, axis)))
    return max(min(-(-size_of(axis) // parts), room) // lanes, least)


def _is_prefetched(view: KernelView, load: UOp, axis: UOp) -> bool:
    """Whether the rows along `axis` that a sum reads at a time are so few that the processor prefetches all of them,
    and the L1 holds a line of each: rows at a stride of a large power of two share a set. A row that overlaps the one
    before, as in windows, is no stream of its own."""
    steps = [(size_of(loop), stride(load, loop) or 0) for loop in view.reduce_axes & load.ranges]
    rows = [(size, abs(step) * load.dtype.itemsize) for size, step in steps if abs(step) >= size_of(axis)]
    streams = math.prod(size for size, _ in rows)
    held = min((view.target.l1_lines(step) for _, step in rows), default=streams)
    return streams < 2 * view.target.prefetch_streams and streams <= held


def _tasks_around(view: KernelView, axis: UOp) -> int:
    """The iterations of the other output loops, each of which may be a task."""
    loops = [loop for loop in view.of_kind(AxisType.LOOP) if loop is not axis and loop not in view.reduce_axes]
    return math.prod(size_of(loop) for loop in loops if is_counted(loop))


def is_spilled(view: KernelView, axis: UOp, lanes: int) -> bool:
    """Whether a row needs more accumulators than there are registers, and SPILL is legal."""
    return size_of(axis) > view.target.vector_registers // 2 * lanes and check_spill(view, axis, None) is None


def stream_rows(builder: OptBuilder, axis: UOp, vectors: int, lanes: int) -> None:
    """Accumulates `vectors` of a row at a time: in registers where they suffice, else spilled, with several rows at a
    time for each spill. Parts of a row are parallel."""
    if builder.view.of_kind(AxisType.UPCAST) or not is_spilled(builder.view, axis, lanes):
        # A row that is one tile of overlapping vectors is read once; each of two tiles would read all rows.
        overlaps = may_be_serial(builder.view, axis)
        vectors = -(-size_of(axis) // lanes) if overlaps else vectors
        builder.vectorise(axis, min(vectors, builder.target.vector_registers // 2), lanes, overlaps)
        return
    itemsize = min(load.dtype.itemsize for load in builder.view.loads if stride(load, axis) == 1)
    # Spilled rows exceed half of the registers: with tiles of at most half, a loop over tiles remains.
    vectors_of_line = max(1, min(builder.target.line_bytes // (lanes * itemsize), builder.target.vector_registers // 2))
    tile, part = part_of_row(builder.view, axis, vectors * lanes, vectors_of_line, lanes)
    axis = builder.pad(axis, part * tile) if part * tile < size_of(axis) else axis
    builder.vectorise(axis, vectors_of_line, lanes)
    rows = [found for found in builder.view.of_kind(AxisType.REDUCE) if found in builder.view.reduce_axes]
    if rows and is_counted(rows[-1]):
        split_into_streams(builder, rows[-1], OptOps.UNROLL, builder.target.read_streams // 2)
    columns = builder.view.of_kind(AxisType.LOOP)[-1]
    if check_block(builder.view, columns, part) is None:
        builder.apply(OptOps.BLOCK, columns, part)
    *around, columns = builder.view.of_kind(AxisType.LOOP)
    shared = next(
        (loop for loop in around if size_of(loop) >= 2 * builder.target.cores), around[-1] if around else None
    )
    if shared is not None and check_thread(builder.view, shared, size_of(shared)) is None:
        builder.apply(OptOps.THREAD, shared, size_of(shared))
    if check_spill(builder.view, columns, None) is None:
        builder.apply(OptOps.SPILL, columns)


def part_of_row(view: KernelView, axis: UOp, most: int, vectors: int, lanes: int) -> tuple[int, int]:
    """The length of a tile, and how many tiles are one task, with up to `most` accumulators. A row is padded, and its
    loads masked, where no divisor of it gives parts as long as the prefetcher needs."""
    size, tasks, target = size_of(axis), _tasks_around(view, axis), view.target
    row_bytes = min(access.dtype.itemsize for access in view.loads if stride(access, axis) == 1)
    full = vectors * lanes
    exact = best_divisor(size, full, lanes, target.independent_vectors) or full
    sizes = [(tile, part) for tile in (full, exact) for part in range(1, -(-min(most, size) // tile) + 1)]

    def worth(tile: int, part: int) -> float:
        speed = 1.0 if size % (part * tile) == 0 else MASKED_SPEED
        return speed * worth_of_part(-(-size // tile), part, tile * row_bytes, target, tasks)

    unpadded = [found for found in sizes if found[0] == full or size % (found[0] * found[1]) == 0]
    return max(unpadded, key=lambda found: (worth(*found), found[1]))


def worth_of_part(tiles: int, part: int, row_bytes: int, target: Target, tasks: int = 1) -> float:
    """The relative speed of rows in parts of some tiles, for `tasks` rows at a time. Parts shorter than a page are
    prefetched badly; tiles that pad the last part are wasted."""
    parts = -(-tiles // part)
    prefetched = math.sqrt(min(1.0, part * row_bytes / target.page_bytes))
    return utilisation(tasks * parts, target.cores) * tiles / (parts * part) * prefetched


def split_into_streams(builder: OptBuilder, axis: UOp, op: OptOps, most: int) -> None:
    """Splits a loop over rows into up to `most` equal parts and unrolls over the parts: each part is one long prefetch
    stream that continues from row to row, where adjacent rows would be several short ones."""
    parts = next((n for n in range(most, 1, -1) if size_of(axis) % n == 0), 1)
    if parts == 1 or check_block(builder.view, axis, size_of(axis) // parts) is not None:
        return
    builder.apply(op, builder.block(axis, size_of(axis) // parts)[0], parts)


def add_accumulators(builder: OptBuilder, lanes: int) -> None:
    """Tiles a second axis of a reduction whose vector axis is short: more independent accumulators, of fewer terms
    each, which also round less."""
    most = builder.target.independent_vectors
    for number in range(len(builder.view.reduces)):
        node = builder.view.reduces[number]
        tile = math.prod(size_of(axis) for axis in node.src[1:] if axis.arg.kind is AxisType.UPCAST)
        room = min(most, most * lanes // tile)
        loops = [a for a in node.src[1:] if a.arg.kind is AxisType.REDUCE and is_counted(a)]
        for axis in loops if 1 < tile and 1 < room else ():
            amount = max(d for d in range(1, room + 1) if size_of(axis) % d == 0)
            if amount > 1:
                builder.upcast(axis, amount)
                break


def vectors_of_row(view: KernelView) -> int:
    """The vectors of a row that are taken at a time: as many as hide the latency of one. Where few rows of arrays that
    no cache holds reach the bandwidth of memory, each takes more: half of the registers are accumulators."""
    target, fewest = view.target, view.target.independent_vectors
    is_streamed = any(memory_of(load).arg.size * load.dtype.itemsize >= target.cache_bytes for load in view.accesses)
    if not is_streamed or len({node.src[1:] for node in view.reduces}) != 1:
        return fewest
    return max(fewest, target.vector_registers // 2 // max(target.memory_streams, len(view.reduces)))


def add_streams(builder: OptBuilder) -> None:
    """A kernel of one vectorised reduction per row, and nothing else per row but what is short beside it, such as the
    sum of the partial sums of a mean, takes several rows at a time."""
    view, total = builder.view, long_reduction(builder.view)
    if not builder.target.has_threads or total is None or not any(a.arg.kind.is_tile for a in view.axes):
        return
    rows = [axis for axis in view.of_kind(AxisType.LOOP) if axis not in view.reduce_axes]
    if not rows or any(axis not in total.ranges for axis in rows):
        return
    sums = math.prod(size_of(axis) for axis in total.src[1:] if axis.arg.kind is AxisType.UPCAST)
    lanes = builder.target.lanes(total.dtype)
    room = builder.target.vector_registers // 2 // max(1, -(-sums // lanes))
    if not is_counted(rows[-1]):
        builder.vectorise_variable(rows[-1], min(builder.target.memory_streams, room))
    elif size_of(rows[-1]) >= (MIN_STREAMED_ROWS if len(view.reduces) == 1 else MIN_STREAMED_PARTS):
        wanted = min(builder.target.memory_streams, room)
        if sums <= lanes and not any(size_of(rows[-1]) % n == 0 for n in range(2, wanted + 1)):
            # A single accumulator is one dependent chain, so that more streams than the memory needs are faster.
            wanted = min(builder.target.read_streams, room)
        split_into_streams(builder, rows[-1], OptOps.UPCAST, wanted)


def long_reduction(view: KernelView) -> UOp | None:
    """The only reduction of a kernel that takes time: each other one has few iterations beside it, in all of
    its loops. None where there is none, or where there are several."""
    counts = {node: math.prod(map(size_of, (*node.src[1:], *node.ranges))) for node in view.reduces}
    most = max(counts.values(), default=0)
    found = [node for node, count in counts.items() if SHORT_SHARE * count > most]
    return found[0] if len(found) == 1 else None


def rows_as_lanes(view: KernelView) -> UOp | None:
    """The loop over the rows of a sum whose results are lanes of a vector: what is computed from each sum, such as an
    activation, takes longer one by one than reading neighbouring rows in place of streams costs."""
    if not view.target.has_threads or len(view.reduces) != 1 or not all(map(is_counted, view.axes)):
        return None
    total = view.reduces[0]
    behind = [node for node in view.nodes if node.op.is_elementwise and not node.ranges & view.reduce_axes]
    after: set[UOp] = {total}
    for node in behind:
        if not after.isdisjoint(node.src):
            after.add(node)
    additions = sum(node.op.cost for node in after)
    length = math.prod(map(size_of, total.src[1:]))
    if additions < CACHE_ADDITIONS or length > MAX_ROW_SHARE * additions:
        return None
    rows = [axis for axis in view.of_kind(AxisType.LOOP) if axis in total.ranges]
    found = [axis for axis in rows if all(stride(store, axis) == 1 for store in view.stores)]
    return found[0] if found and size_of(found[0]) >= view.target.lanes(total.dtype) else None


def overlap_short_rows(builder: OptBuilder) -> None:
    """Several rows at a time where a row has few vectors and several reductions, each of which waits for the one before
    it, as in softmax: the operations of different rows overlap."""
    view, target = builder.view, builder.target
    rows = [axis for axis in view.of_kind(AxisType.LOOP) if is_counted(axis)]
    if len(rows) != 1 or any(axis.arg.kind is AxisType.REDUCE for axis in view.axes):
        return
    if any(rows[0] not in node.ranges for node in view.reduces):
        return
    lengths = [math.prod(map(size_of, node.src[1:])) for node in view.reduces]
    vectors = -(-max(lengths) // target.lanes(view.reduces[0].dtype))
    most = OVERLAPPING_VECTORS * target.independent_vectors // vectors
    amounts = [n for n in range(2, most + 1) if size_of(rows[0]) % n == 0]
    if amounts:
        builder.upcast(rows[0], amounts[-1])
    elif most > 1 and size_of(rows[0]) > most and builder.has_masks(rows[0]):
        builder.upcast(builder.pad(rows[0], most), most)

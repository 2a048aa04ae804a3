"""The default optimisation. In: a kernel and a target record. Out: the opts to apply, in order.

  1. a vector axis for all of the kernel: an output loop that every access walks with stride 0 or 1 (elementwise maths,
     a sum over the slow axis, a matrix product, a convolution); else one whose neighbours the stores interleave (the
     gradient of windows that are 2 apart); else a square of two, one that the stores and one that the loads walk (a
     transposition); else one per inner loop (a sum over the fast axis, softmax)
  2. register tiles: an output loop that a load inside a reduction does not depend on is tiled, so the load is reused
  3. threads: the outermost output loop
  4. what takes long to compute is kept where a later loop needs it again

The choice follows from strides, sizes and the target's registers, never from the name of a device or an operation."""

from __future__ import annotations

import math

from tilewright.base.dtype import DType, dtypes
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.analysis.dependence import check_cores
from tilewright.kernel.axes import KernelView, is_counted, size_of, stride
from tilewright.kernel.heuristics.convolutions import choose_window_opts
from tilewright.kernel.heuristics.opt_builder import VECTORS_IN_FLIGHT, OptBuilder
from tilewright.kernel.heuristics.products import choose_product_opts
from tilewright.kernel.heuristics.scatter import choose_scatter_opts
from tilewright.kernel.heuristics.streams import (
    add_streams,
    crossing_axes,
    fill_flights,
    row_vectors,
    square_tile,
    stream_rows,
)
from tilewright.kernel.heuristics.work_groups import choose_group_opts
from tilewright.kernel.transforms.memoise import check_memoise, repeated_values

# A tile may be this much larger than the registers that hold accumulators leave room for: operands need some too.
OPERAND_REGISTERS = 4
# Steps along a vector axis that cost a few instructions a vector, and not one a lane.
NEAR_STEPS = (0, 1, 2, 3, 4)
# Results that lie side by side and are computed as vectors apart, each of them one of so many in turn.
MOST_STRANDS = 4
# Steps of a window that is written out.
MOST_WINDOW = 16
# Additions that take about as long as storing a value and fetching it from a near cache.
MIN_MEMOISED_COST = 8
# A kernel with less work than this per thread gains nothing from threads.
LEAST_WORK = 1 << 14


def choose_opts(view: KernelView) -> tuple[Opt, ...]:
    scattered = choose_scatter_opts(view)
    if scattered is not None:
        return scattered
    if view.target.has_local:
        return choose_group_opts(view)
    product = choose_window_opts(view) or choose_product_opts(view)
    if product is not None:
        return product
    builder = OptBuilder(view)
    lanes = view.target.lanes(widest_dtype_of(view))
    axis = common_vector_axis(view)
    woven = woven_axes(view) if axis is None or size_of(axis) <= MOST_STRANDS else None
    crossing = crossing_axes(view) if axis is None and woven is None else None
    if axis is None and crossing is None:
        axis = common_vector_axis(view, NEAR_STEPS)
    if woven is not None:
        weave(builder, *woven, lanes)
    elif axis is not None:
        tile_along(builder, axis, lanes)
    elif crossing is not None:
        square_tile(builder, *crossing)
    else:
        for inner in inner_vector_axes(view):
            # What does not lie side by side is fetched lane by lane: more of it at once only makes more text.
            is_scattered = any(stride(access, inner) not in (*NEAR_STEPS, -1) for access in view.accesses)
            builder.vectorise(inner, 1 if is_scattered else VECTORS_IN_FLIGHT, lanes)
        fill_flights(builder, lanes)
        add_streams(builder)
    add_threads(builder)
    memoise_values(builder)
    return tuple(builder.opts)


def tile_along(builder: OptBuilder, axis: UOp, lanes: int) -> None:
    """A tile of vectors along the axis, and of rows where that uses a load again."""
    view, registers = builder.view, builder.target.vector_registers // 2
    if spills_constants(view):
        builder.vectorise(axis, 1, lanes)
        return
    rows = tile_axes(view, axis)
    count = math.prod(size_of(row) for row in rows)
    wide = row_vectors(view, axis, lanes)
    wide = min(wide, registers // count) if rows else wide
    if wide >= VECTORS_IN_FLIGHT:
        for row in rows:
            builder.upcast(row, size_of(row))
        stream_rows(builder, axis, wide, lanes)
        return
    vectors = VECTORS_IN_FLIGHT if len(view.accesses) <= 4 and not rows else 2
    register_tile(builder, axis, min(vectors, max(1, size_of(axis) // lanes)))
    builder.vectorise(axis, vectors, lanes)


def spills_constants(view: KernelView) -> bool:
    """Whether a kernel without sums has more numbers than registers could hold beside its values. Several vectors at a
    time then gain nothing: 128 additions and products of other numbers each are compiled in a sixth of the time, and
    run as fast, one vector at a time."""
    numbers = {node for node in view.nodes if node.op is Ops.CONST and node.dtype.is_float}
    return not view.reduces and len(numbers) > 2 * view.target.vector_registers


def widest_dtype_of(view: KernelView) -> DType:
    """The dtype that fills a register soonest: of what is stored, loaded, computed and accumulated. A float that the
    target lacks is computed in float32."""
    nodes = [*view.accesses, *view.reduces, *(node for node in view.nodes if node.op.is_elementwise)]
    found = {node.dtype for node in nodes if node.dtype.is_float or node.dtype.kind in ("int", "uint")}
    return max(map(view.target.held_in, found), key=lambda dtype: dtype.itemsize, default=dtypes.uint8)


def common_vector_axis(view: KernelView, allowed: tuple[int, ...] = (0, 1)) -> UOp | None:
    """The output loop that every access walks with an allowed stride, and every store with stride 1."""
    best: tuple[int, UOp] | None = None
    for axis in view.of_kind(AxisType.LOOP):
        if axis in view.reduce_axes or size_of(axis) == 1 or not is_counted(axis):
            continue
        if any(axis not in node.ranges for node in view.reduces if node.ranges or node.src[0].ranges):
            continue
        steps = [stride(access, axis) for access in view.accesses]
        if any(stride(access, axis) != 1 for access in view.stores) or any(step not in allowed for step in steps):
            continue
        if best is None or size_of(axis) > best[0]:
            best = (size_of(axis), axis)
    return None if best is None else best[1]


def woven_axes(view: KernelView) -> tuple[UOp, UOp] | None:
    """An output loop along which every load lies side by side, and a short one, over whose steps the stores take turns:
    the gradient of windows that are 2 apart, each of whose elements has another part of the window."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if axis not in view.reduce_axes and is_counted(axis)]
    loops = [axis for axis in loops if all(axis in node.ranges for node in view.reduces)]
    loads = [access for access in view.accesses if access not in view.stores]
    for strand in loops:
        if size_of(strand) > MOST_STRANDS or any(stride(store, strand) != 1 for store in view.stores):
            continue
        for axis in loops:
            is_apart = all(stride(store, axis) == size_of(strand) for store in view.stores)
            # What is not summed over may lie as the results do, who take turns along it too, or be one of some turns.
            woven = [load for load in loads if stride(load, axis) not in (0, 1)]
            are_alike = all(stride(load, axis) == size_of(strand) for load in woven)
            are_alike = are_alike and all(stride(load, strand) in (0, 1) for load in woven)
            if is_apart and size_of(axis) > MOST_STRANDS and are_alike:
                return axis, strand
    return None


def weave(builder: OptBuilder, axis: UOp, strand: UOp, lanes: int) -> None:
    """Vectors along the axis for each of the strands, and windows written out, with the short loops that their masks
    depend on: the masks are then known. Strands are written out too, as neighbours that are no vectors."""
    steps = math.prod(size_of(each) for each in builder.view.reduce_axes)
    masks = [mask for access in builder.view.accesses for mask in access.src[2:]]
    others = [each for each in builder.view.of_kind(AxisType.LOOP) if each not in (axis, strand)]
    short = [each for each in others if size_of(each) <= MOST_STRANDS and any(each in mask.ranges for mask in masks)]
    builder.unroll(strand, size_of(strand))
    # A part of each vector is left empty rather than one of some: those would be masked.
    amount = max(n for n in range(1, lanes + 1) if size_of(axis) % n == 0)
    if 2 * amount > lanes:
        builder.upcast(axis, amount)
    else:
        builder.vectorise(axis, 1, lanes)
    if steps <= MOST_WINDOW and all(is_counted(each) for each in builder.view.reduce_axes):
        for each in (*builder.view.of_kind(AxisType.REDUCE), *short):
            builder.unroll(each, size_of(each))


def inner_vector_axes(view: KernelView) -> list[UOp]:
    """Per reduction, and for the stores, the innermost loop with the most unit strides."""
    chosen: list[UOp] = []
    for node in view.reduces:
        inside = [n for n in view.accesses if any(axis in n.ranges for axis in node.src[1:])]
        candidates = [axis for axis in node.src[1:] if axis.arg.kind is AxisType.REDUCE]
        chosen.extend(_best_axis(candidates, inside))
    rows = frozenset(axis for node in view.reduces for axis in node.ranges)
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if axis not in rows and axis not in view.reduce_axes]
    chosen.extend(_best_axis(loops, list(view.stores)))
    return list(dict.fromkeys(chosen))


def _best_axis(candidates: list[UOp], accesses: list[UOp]) -> list[UOp]:
    def unit_strides(axis: UOp) -> int:
        return sum(stride(access, axis) == 1 for access in accesses)

    usable = [a for a in candidates if is_counted(a) and size_of(a) > 1 and unit_strides(a) > 0]
    return [max(usable, key=lambda axis: (unit_strides(axis), size_of(axis)))] if usable else []


def tile_axes(view: KernelView, vector_axis: UOp) -> list[UOp]:
    """Output loops along which a load inside a reduction is the same: tiling them reuses the load."""
    found = []
    loads = [n for n in view.accesses if n not in view.stores and n.ranges & view.reduce_axes]
    for axis in view.of_kind(AxisType.LOOP):
        if axis is vector_axis or axis in view.reduce_axes or not loads or not is_counted(axis):
            continue
        if all(axis in node.ranges for node in view.reduces) and any(axis not in load.ranges for load in loads):
            found.append(axis)
    # A masked vector is dear: of the loops along which it is the same, the first is tiled.
    masked = [load for load in loads if len(load.src) > 2 and stride(load, vector_axis) != 0]
    return sorted(found, key=lambda axis: any(axis in load.ranges for load in masked))


def register_tile(builder: OptBuilder, vector_axis: UOp, vectors: int) -> None:
    """Tiles one output loop so that accumulators fill the registers that operands leave free."""
    free = builder.target.vector_registers - OPERAND_REGISTERS - vectors
    most = max(1, free // (vectors * max(1, len(builder.view.reduces))))
    for axis in tile_axes(builder.view, vector_axis):
        amount = max((d for d in range(1, min(most, 12) + 1) if size_of(axis) % d == 0), default=1)
        if amount > 1:
            builder.upcast(axis, amount)
            return


def add_threads(builder: OptBuilder) -> None:
    """The outermost output loop that every store depends on is shared among the cores."""
    view = builder.view
    if not builder.target.has_threads or view.of_kind(AxisType.THREAD):
        return
    work = 1
    for axis in view.axes:
        work *= size_of(axis)
    candidates = [
        axis
        for axis in view.of_kind(AxisType.LOOP)
        if axis not in view.reduce_axes and all(axis in node.ranges for node in (*view.stores, *view.reduces))
        if is_counted(axis) and check_cores(view, axis) is None
    ]
    if work < 2 * LEAST_WORK or not candidates:
        return
    enough = [axis for axis in candidates if size_of(axis) >= 4 * builder.target.cores]
    axis = enough[0] if enough else max(candidates, key=size_of)
    if size_of(axis) > 1:
        builder.apply(OptOps.THREAD, axis, size_of(axis))


def memoise_values(builder: OptBuilder) -> None:
    """Keeps in the cache of a core what takes longer to compute again than to fetch."""
    room = min(builder.target.core_cache_bytes // 2, builder.target.max_local_bytes)
    for axis in builder.view.of_kind(AxisType.REDUCE):
        if check_memoise(builder.view, axis, None) is None:
            kept = repeated_values(builder.view, axis)
            nbytes = sum(found.size * found.value.dtype.itemsize for found in kept)
            if min(found.cost for found in kept) >= MIN_MEMOISED_COST and nbytes <= room:
                builder.apply(OptOps.MEMOISE, axis)
                room -= nbytes

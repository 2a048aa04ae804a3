"""Templates of memory-bound kernels on CPU cores. In: a kernel for a target without work-groups. Out: opts that make
vectors along the loops in which memory is contiguous.

  interleaved   the stores interleave phases (the gradient of windows at stride 2): vectors for each phase
  selected      masks of loads depend on short loops alone (a join of slices): those are unrolled
  columns       a reduction whose results have a loop with a small stride in every access: vectors along it, and
                register tiles: an output loop that a load inside the reduction does not depend on reuses the load
  elementwise   the same without a reduction
  transpose     one loop has stride 1 in the stores, another in the loads: a square tile of both
  rows          anything else: a vector axis per inner loop (a sum over the fast axis, softmax)

Then the outermost output loop is parallel, and expensive values that a later loop needs again are memoised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.base.dtype import DType, dtypes
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.text.arguments import axis_name
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.cache_sets import lines_along
from tilewright.kernel.axes import KernelView, is_counted, is_indirect, is_uniform, stride
from tilewright.kernel.templates.boxes import find_box, stage_windows
from tilewright.kernel.templates.measured import (
    BRIEF_WORK,
    MAX_NEAR_STEP,
    MAX_PHASES,
    MAX_SELECTED,
    MAX_SELECTING,
    MAX_TILE_ROWS,
    MAX_WINDOW,
    MIN_SUMS,
    OPERAND_REGISTERS,
)
from tilewright.kernel.templates.opt_builder import OptBuilder, divides_long_integers, memoise_values, memoised_bytes
from tilewright.kernel.templates.sharing import add_threads, may_be_serial, parts_for_cores
from tilewright.kernel.templates.streams import (
    add_accumulators,
    add_streams,
    crossing_axes,
    long_reduction,
    overlap_short_rows,
    row_vectors,
    rows_as_lanes,
    square_tile,
    stream_rows,
    vectors_of_row,
)
from tilewright.kernel.templates.template import Opts, Plan, Template
from tilewright.kernel.transforms.upcast import check_upcast

NEAR_STEPS = tuple(range(MAX_NEAR_STEP + 1))
# At most one row in this many is computed twice, where tiles of rows overlap.
MAX_AGAIN = 8


def match_interleaved(view: KernelView) -> tuple[UOp, UOp] | None:
    axis = common_vector_axis(view)
    size = 0 if axis is None else size_of(axis)
    is_short = size <= MAX_NEAR_STEP or (size <= MAX_PHASES and size % lanes_of(view) > 0)
    return interleaved_axes(view) if is_short else None


def interleaved_plans(view: KernelView, found: tuple[UOp, UOp]) -> tuple[Plan, ...]:
    reason = "stores interleave phases: vectors along the loop of stride 1 in the loads, for each phase"
    return (Plan("phases", reason, lambda: _made(view, lambda b: interleave(b, *found, lanes_of(view)))),)


def match_selected(view: KernelView) -> list[UOp] | None:
    found = selecting_axes(view)
    axis = vector_axis(view) if found else None
    return found if found and (axis is None or size_of(axis) <= MAX_SELECTING) else None


def selected_plans(view: KernelView, found: list[UOp]) -> tuple[Plan, ...]:
    def unroll(builder: OptBuilder) -> None:
        for short in found:
            builder.unroll(short, size_of(short))

    reason = "masks of loads depend on short loops alone: unrolled, one load remains of those they select from"
    return (Plan("unrolled", reason, lambda: _made(view, unroll)),)


def vector_axis(view: KernelView) -> UOp | None:
    """The loop to vectorise. Where one loop has stride 1 in the stores and another in the loads, its strides must be 0
    or 1; elsewhere small strides are allowed."""
    return common_vector_axis(view) or (None if crossing_axes(view) else common_vector_axis(view, NEAR_STEPS))


def match_columns(view: KernelView) -> UOp | None:
    return vector_axis(view) if view.reduces else None


def match_elementwise(view: KernelView) -> UOp | None:
    return None if view.reduces else vector_axis(view)


def vector_plans(view: KernelView, axis: UOp) -> tuple[Plan, ...]:
    reason = f"{axis_name(axis)} has a stride of at most {MAX_NEAR_STEP} in every access: vectors along it"
    return (Plan("vectors", reason, lambda: _made(view, lambda b: tile_along(b, axis, lanes_of(view)))),)


def transpose_plans(view: KernelView, crossing: tuple[UOp, UOp]) -> tuple[Plan, ...]:
    reason = "one loop has stride 1 in the stores, another in the loads: a square tile of both"
    return (Plan("square tile", reason, lambda: _made(view, lambda b: square_tile(b, *crossing))),)


def row_plans(view: KernelView, found: bool) -> tuple[Plan, ...]:
    reason = "no loop has a small stride in every access: a vector axis for each inner loop"
    return (Plan("inner loops", reason, lambda: _made(view, vectorise_inner)),)


def _made(view: KernelView, tile: Callable[[OptBuilder], None]) -> Opts:
    """The opts of a tile, with threads and memoised values."""
    builder = OptBuilder(view)
    tile(builder)
    add_threads(builder)
    stage_windows(builder)
    memoise_values(builder)
    return tuple(builder.opts)


def lanes_of(view: KernelView, axis: UOp | None = None) -> int:
    """Lanes of a vector that holds any value of the kernel, or of one axis."""
    return view.target.lanes(widest_dtype_of(view, axis))


def vectorise_inner(builder: OptBuilder) -> None:
    view, lanes = builder.view, lanes_of(builder.view)
    row = rows_as_lanes(view)
    # A loop after reductions is tiled like theirs, so that it can load the values that they memoise.
    is_alike = any(memoised_bytes(view, axis) for axis in view.of_kind(AxisType.REDUCE))
    for inner in inner_vector_axes(view):
        lanes = lanes_of(view, inner)
        # A load at a large stride is one instruction per lane: several vectors only make the code longer.
        is_scattered = any(stride(access, inner) not in (*NEAR_STEPS, -1) for access in view.accesses)
        overlaps = not view.reduces and may_be_serial(view, inner)
        if not view.reduces and not builder.has_masks(inner) and any(is_indirect(a, inner) for a in view.accesses):
            continue  # without gather instructions, the lanes of a vector of addresses would be extracted one by one
        if is_scattered and is_counted(inner) and not view.reduces and size_of(inner) > lanes:
            # Whole vectors only, with the last one masked or overlapping: half a vector takes as long.
            if not overlaps or builder.has_masks(inner) or not builder.overlap_tiles(inner, lanes):
                builder.upcast(builder.pad(inner, lanes), lanes)
        else:
            vectors = 1 if is_scattered or row is not None else vectors_of_row(view)
            builder.vectorise(inner, vectors, lanes, overlaps, not is_alike)
    if row is not None:
        builder.vectorise(row, 1, lanes_of(view, row), may_be_serial(builder.view, row))
        return
    add_accumulators(builder, lanes)
    if len(view.reduces) > 1 and long_reduction(view) is None:
        overlap_short_rows(builder)
    else:
        add_streams(builder)


def tile_along(builder: OptBuilder, axis: UOp, lanes: int) -> None:
    """A tile of vectors along the axis, and of rows where that reuses a load."""
    view, registers = builder.view, builder.target.vector_registers // 2
    if divides_long_integers(view):
        return
    # The box of windows is copied for padded tiles only, not for overlapping ones.
    has_box = find_box(view) is not None
    overlaps = not has_box and may_be_serial(view, axis)
    if spills_constants(view) or is_brief(view) or not is_counted(axis):
        builder.vectorise(axis, 1 if is_counted(axis) else 2, lanes, overlaps)
        return
    rows = tile_axes(view, axis)
    count = math.prod(size_of(row) for row in rows)
    wide = row_vectors(view, axis, lanes)
    wide = min(wide, registers // count) if rows else wide
    if wide >= view.target.independent_vectors:
        for row in rows:
            builder.upcast(row, size_of(row))
        stream_rows(builder, axis, wide, lanes)
        return
    if not overlaps and not has_box and not builder.has_masks(axis):
        axis = parts_for_cores(builder, axis, view.target.independent_vectors * lanes)
        overlaps = may_be_serial(builder.view, axis)
    vectors = view.target.independent_vectors if len(view.accesses) <= 4 and not rows else 2
    register_tile(builder, axis, min(vectors, max(1, size_of(axis) // lanes)))
    builder.vectorise(axis, vectors, lanes, overlaps)
    if view.reduces and rows:
        tile = math.prod(size_of(tiled) for tiled in builder.view.of_kind(AxisType.UPCAST))
        overlap_rows(builder, axis, MIN_SUMS // max(1, -(-tile // lanes)), rows)
    elif view.reduces and size_of(axis) <= lanes:
        overlap_rows(builder, axis, builder.target.independent_vectors)


def overlap_rows(builder: OptBuilder, vector_axis: UOp, most: int, tiled: Sequence[UOp] = ()) -> None:
    """Up to `most` rows at a time where a tile has few vectors of accumulators: additions of different rows overlap."""
    view = builder.view
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if is_counted(axis) and size_of(axis) > 1]
    loops = [axis for axis in loops if axis.arg.id[: len(vector_axis.arg.id)] != vector_axis.arg.id]
    inside = [axis for axis in loops if all(axis in node.ranges for node in view.reduces)]
    # A loop over tiles of rows is left: more of them may be too many for the first cache.
    inside = [axis for axis in inside if axis in tiled or all(axis.arg.id[:-1] != row.arg.id for row in tiled)]
    if not inside:
        return
    row, size = inside[-1], size_of(inside[-1])
    most = lines_along(view, row, most)
    amounts = [n for n in range(2, most + 1) if size % n == 0]
    if amounts:
        builder.upcast(row, amounts[-1])
    elif 1 < most and -size % most * MAX_AGAIN <= size and find_box(view) is None and may_be_serial(view, row):
        builder.overlap_tiles(row, most)


def is_brief(view: KernelView) -> bool:
    """Whether a thousand runs of a kernel without sums take less time than LLVM takes to compile it. A tile of one
    vector halves the compile time: LLVM schedules up to a dozen instructions without tracking register pressure."""
    return not view.reduces and math.prod(map(size_of, view.axes)) <= BRIEF_WORK


def spills_constants(view: KernelView) -> bool:
    """Whether a kernel without sums has more float constants, or numbers given at launch, than registers hold. Several
    vectors at a time then gain nothing: with one vector at a time, 128 additions and products with different constants
    run as fast and compile in a sixth of the time."""
    constants = {node for node in view.nodes if node.op is Ops.CONST and node.dtype.is_float}
    numbers = constants.union(node for node in view.nodes if node.op is Ops.VARIABLE)
    return not view.reduces and len(numbers) > 2 * view.target.vector_registers


def widest_dtype_of(view: KernelView, axis: UOp | None = None) -> DType:
    """The widest dtype that is stored, loaded, computed or accumulated, as registers hold it: a float that the target
    lacks is computed in float32. A loaded index, usually of 64 bits, does not count: it is the same for a whole row, or
    takes two registers."""
    nodes = [node for node in values_of(view) if axis is None or axis in node.ranges or axis in node.src]
    found = {node.dtype for node in nodes if node.dtype.is_float or node.dtype.kind in ("int", "uint")}
    return max(map(view.target.held_in, found), key=lambda dtype: dtype.itemsize, default=dtypes.uint8)


def values_of(view: KernelView) -> list[UOp]:
    """Accesses, reductions and arithmetic, without the nodes that only positions and masks of loads depend on."""
    seen: set[UOp] = set()
    stack = list(view.sink.src)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.src[:1] if node.op is Ops.INDEX and node not in view.stores else node.src)
    kept = {Ops.INDEX, Ops.REDUCE}
    return [node for node in view.nodes if node in seen and (node.op in kept or node.op.is_elementwise)]


def common_vector_axis(view: KernelView, allowed: tuple[int, ...] = (0, 1)) -> UOp | None:
    """The longest output loop with an allowed stride in every access and stride 1 in every store. A load behind sums
    may have any index, such as a label's class: it is one instruction for each lane, once for all terms of a sum."""
    behind = [access for access in view.loads if view.reduces and not access.ranges & view.reduce_axes]
    found = []
    for axis in view.of_kind(AxisType.LOOP):
        if axis in view.reduce_axes or size_of(axis) == 1 or not is_uniform(axis):
            continue
        if any(axis not in node.ranges for node in view.reduces if node.ranges or node.src[0].ranges):
            continue
        steps = {access: stride(access, axis) for access in view.accesses}
        are_allowed = all(step in allowed or (step is None and load in behind) for load, step in steps.items())
        if are_allowed and all(steps[store] == 1 for store in view.stores):
            found.append(axis)
    # Vectors along a loop of constant size need no mask at its end.
    return max(found, key=lambda axis: (is_counted(axis), size_of(axis)), default=None)


def selecting_axes(view: KernelView) -> list[UOp]:
    """In a kernel without sums, the short output loops that are all that masks of loads depend on: unrolled, one load
    remains of those that a join of slices selects from. Longer loops are vectorised instead."""
    masks = [mask for access in view.accesses for mask in access.src[2:]]
    if view.reduces or not masks:
        return []
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if is_counted(axis) and size_of(axis) <= MAX_SELECTING]
    found = [axis for axis in loops if any(axis in mask.ranges for mask in masks)]
    is_all = all(mask.ranges.issubset(found) for mask in masks)
    return found if is_all and math.prod(size_of(axis) for axis in found) <= MAX_SELECTED else []


def interleaved_axes(view: KernelView) -> tuple[UOp, UOp] | None:
    """An output loop of stride 1 in every load, and a short one whose iterations are the phases that the stores
    interleave along it: in the gradient of windows at stride 2, each phase uses other elements of the window."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if axis not in view.reduce_axes and is_counted(axis)]
    loops = [axis for axis in loops if all(axis in node.ranges for node in view.reduces)]
    loads = [access for access in view.accesses if access not in view.stores]
    for phase in loops:
        if size_of(phase) > MAX_PHASES or any(stride(store, phase) != 1 for store in view.stores):
            continue
        for axis in loops:
            is_apart = all(stride(store, axis) == size_of(phase) for store in view.stores)
            # A load outside the sum may be interleaved like the stores. Since phases are unrolled, the element that
            # each loads, such as one of a window, may be any expression.
            steps = {stride(load, axis) for load in loads}
            are_alike = steps <= {0, 1, size_of(phase)} and steps != {size_of(phase)}  # else nothing is interleaved
            if is_apart and size_of(axis) > MAX_NEAR_STEP and are_alike:
                return axis, phase
    return None


def interleave(builder: OptBuilder, axis: UOp, phase: UOp, lanes: int) -> None:
    """Vectors along the axis for each phase. The phases are unrolled, and so are windows, with the short loops that
    their masks depend on: the masks are then constants."""
    steps = math.prod(size_of(each) for each in builder.view.reduce_axes)
    masks = [mask for access in builder.view.accesses for mask in access.src[2:]]
    others = [each for each in builder.view.of_kind(AxisType.LOOP) if each not in (axis, phase)]
    short = [each for each in others if size_of(each) <= MAX_NEAR_STEP and any(each in mask.ranges for mask in masks)]
    builder.unroll(phase, size_of(phase))
    # Partly filled vectors are faster than a masked last one, and slower than one that overlaps the one before.
    amount = max(n for n in range(1, lanes + 1) if size_of(axis) % n == 0)
    overlaps = size_of(axis) > lanes and not builder.has_masks(axis) and may_be_serial(builder.view, axis)
    if not overlaps or not builder.overlap_tiles(axis, lanes):
        if 2 * amount > lanes:
            builder.upcast(axis, amount)
        else:
            builder.vectorise(axis, 1, lanes)
    if steps <= MAX_WINDOW and all(is_counted(each) for each in builder.view.reduce_axes):
        for each in (*builder.view.of_kind(AxisType.REDUCE), *short):
            builder.unroll(each, size_of(each))


def inner_vector_axes(view: KernelView) -> list[UOp]:
    """For each reduction, and for the stores, the loop with the fewest accesses at a large stride, and of these the one
    with the most of stride 1. Each of the nests of loops that a custom kernel may have has its own."""
    chosen: list[UOp] = []
    for node in view.reduces:
        inside = [n for n in view.accesses if any(axis in n.ranges for axis in node.src[1:])]
        candidates = [axis for axis in node.src[1:] if axis.arg.kind is AxisType.REDUCE]
        chosen.extend(_best_axis(candidates, inside))
    rows = frozenset(axis for node in view.reduces for axis in node.ranges)
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if axis not in rows and axis not in view.reduce_axes]
    chosen.extend(_best_axis(loops, list(view.stores)))
    if not view.reduces:
        for store in view.stores:
            nest = [axis for axis in loops if axis in store.ranges]
            if not any(axis in store.ranges for axis in chosen):
                best = _best_axis(nest, [store])
                chosen.extend(axis for axis in best if check_upcast(view, axis, 1) is None)
    return list(dict.fromkeys(chosen))


def _best_axis(candidates: list[UOp], accesses: list[UOp]) -> list[UOp]:
    def unit_strides(axis: UOp) -> int:
        return sum(stride(access, axis) == 1 for access in accesses)

    def scattered(axis: UOp) -> int:
        return sum(stride(access, axis) not in (*NEAR_STEPS, -1) for access in accesses)

    def worth(axis: UOp) -> tuple[int, int, bool, int]:
        return -scattered(axis), unit_strides(axis), is_counted(axis), size_of(axis)

    usable = [a for a in candidates if is_uniform(a) and size_of(a) > 1 and unit_strides(a) > 0]
    return [max(usable, key=worth)] if usable else []


def tile_axes(view: KernelView, vector_axis: UOp) -> list[UOp]:
    """Output loops that a load inside a reduction does not depend on: tiling them reuses the load."""
    found = []
    loads = [n for n in view.accesses if n not in view.stores and n.ranges & view.reduce_axes]
    for axis in view.of_kind(AxisType.LOOP):
        if axis is vector_axis or axis in view.reduce_axes or not loads or not is_counted(axis):
            continue
        if all(axis in node.ranges for node in view.reduces) and any(axis not in load.ranges for load in loads):
            found.append(axis)
    # A loop that a masked vector load does not depend on is tiled first, because such a load is expensive.
    masked = [load for load in loads if len(load.src) > 2 and stride(load, vector_axis) != 0]
    return sorted(found, key=lambda axis: any(axis in load.ranges for load in masked))


def register_tile(builder: OptBuilder, vector_axis: UOp, vectors: int) -> None:
    """Tiles one output loop so that accumulators fill the registers which operands leave free."""
    free = builder.target.vector_registers - OPERAND_REGISTERS - vectors
    most = max(1, free // (vectors * max(1, len(builder.view.reduces))))
    for axis in tile_axes(builder.view, vector_axis):
        most = lines_along(builder.view, axis, most)
        amount = max((d for d in range(1, min(most, MAX_TILE_ROWS) + 1) if size_of(axis) % d == 0), default=1)
        if amount > 1:
            builder.upcast(axis, amount)
            return


INTERLEAVED = Template(
    "interleaved",
    "results that interleave phases, such as gradients of strided windows",
    match_interleaved,
    interleaved_plans,
)
SELECTED = Template("selected", "loads that masks of short loops select, such as joins", match_selected, selected_plans)
COLUMNS = Template("columns", "a reduction across memory: vectors of results", match_columns, vector_plans)
ELEMENTWISE = Template("elementwise", "a loop with a small stride in every access", match_elementwise, vector_plans)
TRANSPOSE = Template(
    "transpose", "one loop is contiguous in the stores, another in the loads", crossing_axes, transpose_plans
)
ROWS = Template("rows", "a reduction along memory, and any other kernel", lambda view: True, row_plans)

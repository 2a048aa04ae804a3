"""Memory-bound kernels of work-groups. In: a kernel without a product, for a target with work-groups. Out: the plans of
its template. `group_rows.py` is for reductions along memory, `group_elements.py` for kernels without a reduction.

  transpose    an operand whose contiguous loop is not that of the stores: tiles through local memory
  columns      a reduction across memory: threads along the contiguous output loop; where these are few, several share
               each reduction"""

from __future__ import annotations

import math
from functools import partial

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.axes import KernelView, is_counted, is_uniform, stride
from tilewright.kernel.templates.group_builder import (
    GroupOptBuilder,
    divisor,
    output_loops,
    part_of,
    step_of,
    tile_groups,
    warp_threads,
)
from tilewright.kernel.templates.group_elements import fill_groups, may_pad
from tilewright.kernel.templates.group_rows import (
    is_aligned,
    keep_short_rows,
    load_short_rows,
    main_reductions,
    steps_of,
)
from tilewright.kernel.templates.measured_groups import (
    CLOCKS_PER_LOAD,
    CLOCKS_PER_PARTIAL,
    GROUP_THREADS,
    MAX_PADDED,
    SHORT_ROW,
    SUM_BYTES,
)
from tilewright.kernel.templates.streams import crossing_axes
from tilewright.kernel.templates.template import Plan, Template
from tilewright.kernel.transforms.stage import operands


def match_crossing(view: KernelView) -> tuple[UOp, UOp] | None:
    is_long = any(steps_of(node) > SHORT_ROW for node in view.reduces)  # its loads take the time, its results are few
    return None if is_long or has_effects(view) else crossing_axes(view)


def transpose_plans(view: KernelView, crossing: tuple[UOp, UOp]) -> tuple[Plan, ...]:
    reason = "one loop has stride 1 in the stores, another in the loads: tiles through local memory"
    # No opts: the tiles do not fit.
    return (Plan("local tiles", reason, lambda: tile_groups(view, transpose_tiles, *crossing) or None),)


def match_columns(view: KernelView) -> bool | None:
    return bool(view.reduces) or None


def column_plans(view: KernelView, found: bool) -> tuple[Plan, ...]:
    reason = "a reduction across memory: threads along the contiguous output loop, several per reduction if few"
    return (Plan("shared columns", reason, partial(tile_groups, view, reduce_columns)),)


def reduce_columns(builder: GroupOptBuilder) -> None:
    if not keep_short_rows(builder):
        load_short_rows(builder)
        share_columns(builder)
    fill_groups(builder)


# ---------------------------------------------------------------- transposition


def transpose_tiles(builder: GroupOptBuilder, column: UOp, row: UOp) -> bool:
    """Stages in local memory the operands whose contiguous loop is not that of the stores: each thread loads a vector
    along the operand's contiguous loop, adjacent threads store adjacent elements. Returns whether the tiles fit."""
    view = builder.view
    crossed = [load for load in operands(view) if stride(load, column) not in (0, 1)]
    lanes = max(1, builder.target.vector_bytes // max(load.dtype.itemsize for load in crossed))
    warp = warp_threads(builder.target)
    columns = min(warp, 1 << (size_of(column) - 1).bit_length())
    rows = max(1, min(builder.target.max_group_size, GROUP_THREADS) // columns)
    builder.split(OptOps.LOCAL, builder.fill_up(column, columns), columns)
    row = builder.fill_up(row, lanes * min(rows, -(-size_of(row) // lanes)))
    rest = builder.split(OptOps.UPCAST, row, lanes)
    if rest is not None:
        builder.split(OptOps.LOCAL, rest, divisor(size_of(rest), rows))
    loops = builder.view.of_kind(AxisType.LOOP)
    staged = 0
    for _ in crossed if loops else ():
        # The operands that are staged already are no longer counted.
        across = [n for n, load in enumerate(operands(builder.view)) if is_crossed(builder.view, load)]
        staged += bool(across) and builder.take(OptOps.STAGE, loops[-1], across[0])
    return staged == len(crossed) or bool(builder.opts)


def is_crossed(view: KernelView, load: UOp) -> bool:
    """Whether adjacent threads read elements that are not adjacent."""
    threads = [axis for axis in view.of_kind(AxisType.LOCAL) if any(stride(store, axis) == 1 for store in view.stores)]
    return any(stride(load, axis) not in (0, 1) for axis in threads)


# ---------------------------------------------------------------- reductions across memory


def share_columns(builder: GroupOptBuilder) -> None:
    """Threads along the contiguous output loop; where there are too few of them, several share each reduction. Where a
    reduction needs the result of another, as the index of a maximum does, or results are stored for each element, as by
    a softmax, the same number share all of these loops."""
    view, target = builder.view, builder.target
    nodes = main_reductions(view)
    loops = sorted(output_loops(view), key=lambda axis: step_of(axis, view.accesses))
    inner = [loop for loop in loops if not all(loop in node.ranges for node in nodes)]
    outer = [loop for loop in loops if loop not in inner]
    lanes = column_lanes(view, outer[0]) if outer else 1
    sharing = lanes * target.cores * target.threads_per_core // max(math.prod(map(size_of, outer)), 1)
    shared = [shared_axis(node) for node in nodes]
    axes = list(dict.fromkeys(axis for axis in shared if axis is not None))
    # Results along a contiguous loop have threads of their own, whose work-group repeats short reductions.
    is_contiguous = any(stride(store, loop) == 1 for store in view.stores for loop in inner)
    if sharing < 2 or None in shared or is_contiguous:
        return
    if outer:
        add_columns(builder, outer[0], lanes)
    amount = threads_for_columns(max(map(size_of, axes)), min(sharing, builder.room))
    if all(map(is_counted, axes)):
        common = divisor(math.gcd(*map(size_of, axes)), amount)
        amount = common if MAX_PADDED * common >= amount else amount
    for axis in axes:
        share_column(builder, axis, amount)
    for axis in sorted(inner, key=size_of)[-1:]:
        builder.split(OptOps.LOCAL, builder.fill_up(axis, amount), amount)


def column_lanes(view: KernelView, axis: UOp) -> int:
    """The adjacent columns of a thread: a vector of sums, where all accesses along the contiguous output loop are
    aligned."""
    along = [access for access in view.accesses if axis in access.ranges]
    lanes = view.target.vector_bytes // max(SUM_BYTES, *(access.dtype.itemsize for access in along))
    is_vector = all(stride(access, axis) in (0, 1) for access in along) and is_aligned(view, axis, lanes)
    return lanes if is_vector else 1


def share_column(builder: GroupOptBuilder, axis: UOp, amount: int) -> None:
    """Distributes a reduction over `amount` threads, each of which has several loads on their way at a time."""
    several = builder.target.independent_vectors
    if not may_pad(axis, several * amount):
        several = 1
    rest = builder.split(OptOps.GROUP, builder.fill_up(axis, several * amount), amount)
    if rest is not None and several > 1:
        builder.split(OptOps.UNROLL, rest, several)


def shared_axis(reduce: UOp) -> UOp | None:
    """The longest loop of a reduction that threads can share."""
    axes = [axis for axis in reduce.src[1:] if axis.arg.kind is AxisType.REDUCE and is_uniform(axis)]
    return max(axes, key=size_of, default=None)


def add_columns(builder: GroupOptBuilder, axis: UOp, lanes: int) -> None:
    """As many columns as a warp has threads along the contiguous output loop, which is padded where few divide it;
    `lanes` adjacent ones for each thread."""
    rest = builder.split(OptOps.UPCAST, axis, lanes)
    if rest is None:
        return
    axis, threads = rest, max(1, warp_threads(builder.target) // lanes)
    if is_counted(axis) and size_of(axis) > 2 * threads and 2 * divisor(size_of(axis), threads) < threads:
        axis = builder.fill_up(axis, threads)
    builder.split(OptOps.LOCAL, axis, part_of(axis, threads))


def threads_for_columns(size: int, most: int) -> int:
    """How many threads share a reduction of `size` iterations: a power of two. Each loads its part, and then one thread
    combines the results of all."""
    amounts = [1 << power for power in range(min(size, most).bit_length())]
    return min(amounts, key=lambda amount: -(-size // amount) * CLOCKS_PER_LOAD + amount * CLOCKS_PER_PARTIAL)


TRANSPOSE = Template(
    "transpose", "one loop is contiguous in the stores, another in the loads", match_crossing, transpose_plans
)
COLUMNS = Template("columns", "a reduction across memory, and a short one", match_columns, column_plans)

"""Which loop of a memory-bound kernel the cores share. In: a list of opts under construction, for a target without
work-groups. Out: the list with THREAD, and whether the last tile of a loop may overlap the one before: two cores may
not store one element, so such a loop is not shared."""

from __future__ import annotations

import math

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import check_cores
from tilewright.kernel.axes import KernelView, is_counted
from tilewright.kernel.templates.dot_tiles import capped_utilisation, utilisation
from tilewright.kernel.templates.measured import HIGH_UTILISATION, MAX_TASKS, MIN_WORK, PARTS_PER_CORE
from tilewright.kernel.templates.opt_builder import OptBuilder
from tilewright.kernel.transforms.block import check_block
from tilewright.kernel.transforms.pad import check_pad


def may_be_serial(view: KernelView, axis: UOp) -> bool:
    """Whether a loop need not be parallel, so that its last tile may overlap the one before: the kernel is brief, or
    another output loop has enough iterations for all cores."""
    cores = view.target.cores if view.target.has_threads else 1
    if cores == 1 or math.prod(map(size_of, view.axes)) < 2 * MIN_WORK:
        return True
    others = [loop for loop in view.of_kind(AxisType.LOOP) if loop is not axis and loop not in view.reduce_axes]
    others = [loop for loop in others if is_counted(loop) and size_of(loop) >= PARTS_PER_CORE * cores]
    needed = (*view.stores, *view.reduces)
    return any(all(loop in node.ranges for node in needed) and check_cores(view, loop) is None for loop in others)


def parts_for_cores(builder: OptBuilder, axis: UOp, tile: int) -> UOp:
    """Splits a loop into equal parts that the cores share. Returns the loop inside a part, whose last tile may overlap
    the one before; or the loop itself where no number of parts divides it into parts of several tiles."""
    length = 0 if size_of(axis) % tile == 0 else length_of_parts(builder, axis, PARTS_PER_CORE * tile)
    return builder.block(axis, length)[1] if length else axis


def length_of_parts(builder: OptBuilder, axis: UOp, least: int) -> int:
    """The length of equal parts of a loop, of at least some iterations, that keep the cores busy; 0 where nothing
    divides it so."""
    size, cores = size_of(axis), builder.target.cores
    most = min(MAX_TASKS, size // least)
    amounts = [amount for amount in range(PARTS_PER_CORE * cores, most + 1) if size % amount == 0]
    best = max(amounts, key=lambda n: (capped_utilisation(n, cores), -n), default=0)
    return size // best if best and check_block(builder.view, axis, size // best) is None else 0


def add_threads(builder: OptBuilder) -> None:
    """Makes the outermost output loop that every store depends on parallel. Not where accumulators are spilled: each
    task would compute all of them."""
    view = builder.view
    is_spilled = any(opt.op is OptOps.SPILL for opt in builder.opts)
    if not builder.target.has_threads or is_spilled or view.of_kind(AxisType.THREAD):
        return
    candidates = [
        axis
        for axis in view.of_kind(AxisType.LOOP)
        if axis not in view.reduce_axes and all(axis in node.ranges for node in view.stores)
        if is_counted(axis) and check_cores(view, axis) is None
    ]
    inside = [axis for axis in candidates if all(axis in node.ranges for node in view.reduces)]
    if math.prod(map(size_of, view.axes)) < 2 * MIN_WORK or not candidates:
        return
    if not inside:
        share_behind_reductions(builder, max(candidates, key=size_of))
        return
    cores = builder.target.cores
    enough = [axis for axis in inside if size_of(axis) >= (4 * cores if cores > 1 else 1)]
    axis = enough[0] if enough else max(inside, key=size_of)
    is_innermost = axis is view.of_kind(AxisType.LOOP)[-1] and not any(each.arg.kind.is_tile for each in view.axes)
    if is_innermost and axis is not inside[0]:
        # The iterations of a part stay innermost: they access adjacent elements.
        length = length_of_parts(builder, axis, PARTS_PER_CORE)
        axis = builder.block(axis, length)[0] if length else axis
    if size_of(axis) > 1:
        builder.apply(OptOps.THREAD, axis, size_of(axis))


def share_behind_reductions(builder: OptBuilder, axis: UOp) -> None:
    """Makes parts of a loop parallel. Each part repeats the reductions that do not depend on the loop, such as a sum of
    partial sums; there are so few parts that the repeated work is a fraction of a part's own."""
    view, cores = builder.view, builder.target.cores
    if cores == 1:
        return
    inner = [node.src[0] for node in view.reduces]
    repeated = sum(math.prod(map(size_of, node.ranges)) for node in inner if axis not in node.ranges)
    own = max(math.prod(map(size_of, node.ranges)) for node in (*inner, *view.stores) if axis in node.ranges)
    most = min(size_of(axis), own // (PARTS_PER_CORE * max(1, repeated)))
    amounts = [n for n in range(2, min(most, MAX_TASKS) + 1) if size_of(axis) % n == 0]
    wanted = PARTS_PER_CORE * cores
    best = max(amounts, key=lambda n: (capped_utilisation(n, cores), n >= wanted, -n), default=1)
    if utilisation(best, cores) < HIGH_UTILISATION and wanted <= most:
        if not any(axis in node.ranges for node in view.reduces) and check_pad(view, axis, wanted) is None:
            axis, best = builder.pad(axis, wanted), wanted
    if best > 1:
        builder.apply(OptOps.THREAD, axis, best)

"""Joins, slices and paddings on CPU cores: kernels without sums whose masks change at constant iterations of a loop.
In: a kernel for a target without work-groups. Out: a plan that cuts the loop there, with vectors in each part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from tilewright.base.costs import product_clocks, seconds_of
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import check_cores
from tilewright.kernel.axes import KernelView, stride, view_kernel
from tilewright.kernel.templates.measured import LOOP_COST, MIN_WORK
from tilewright.kernel.templates.opt_builder import OptBuilder, work_along
from tilewright.kernel.templates.sharing import add_threads
from tilewright.kernel.templates.template import Opts, Plan, Template
from tilewright.kernel.templates.vectors import lanes_of
from tilewright.kernel.transforms.cut import apply_cut, check_cut


def match_join(view: KernelView) -> tuple[UOp, KernelView] | None:
    """The innermost loop that may be cut, and the kernel after it, unless cores would idle."""
    for axis in reversed(view.of_kind(AxisType.LOOP)):
        if check_cut(view, axis, None) is None:
            cut = view_kernel(apply_cut(view, axis), view.target, view.trail)
            return (axis, cut) if _uses_cores(cut) and all(_contiguous_loop(cut, s) for s in cut.stores) else None
    return None


def _uses_cores(view: KernelView) -> bool:
    """Whether a loop around all parts has an iteration for each core, or the work is brief."""
    if view.target.cores == 1 or sum(math.prod(map(size_of, store.ranges)) for store in view.stores) < 2 * MIN_WORK:
        return True
    shared = [axis for axis in view.of_kind(AxisType.LOOP) if all(axis in store.ranges for store in view.stores)]
    return any(size_of(axis) >= view.target.cores and check_cores(view, axis) is None for axis in shared)


def _contiguous_loop(view: KernelView, store: UOp) -> UOp | None:
    """The longest loop of stride 1 in a store."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if stride(store, axis) == 1]
    return max(loops, key=size_of, default=None)


def join_plans(view: KernelView, found: tuple[UOp, KernelView]) -> Iterator[Plan]:
    reason = f"masks change at constant iterations of a loop: cut there into {len(found[1].stores)} parts"
    yield Plan("parts", reason, partial(_cut, view, *found), partial(_estimate, found[1]))
    yield Plan("masks", "every vector selects by its masks", None, partial(_estimate, view))


def _estimate(view: KernelView) -> float:
    """The seconds of the vectors of all stores, and of the loops around them."""
    lanes, work = lanes_of(view), 0.0
    tile = view.target.independent_vectors * lanes
    for store in view.stores:
        loop = _contiguous_loop(view, store)
        size = 1 if loop is None else size_of(loop)
        rows = math.prod(map(size_of, store.ranges)) // size
        if loop is None or size <= tile:  # the masks of a single tile are constants
            accesses = sum(loop in access.ranges for access in view.accesses)
            work += rows * accesses * (size // lanes + (size % lanes).bit_count())
        else:
            work += rows * (work_along(view, loop) * -(-size // lanes) + LOOP_COST)
    return seconds_of(product_clocks(work * lanes, lanes, view.target), view.target)


def _cut(view: KernelView, axis: UOp, cut: KernelView) -> Opts:
    builder = OptBuilder(view)
    builder.accept(OptOps.CUT, axis, None, cut.sink)
    lanes = lanes_of(cut)
    for loop in dict.fromkeys(_contiguous_loop(cut, store) for store in cut.stores):
        if loop is not None:
            builder.vectorise(loop, cut.target.independent_vectors, lanes, True)
    add_threads(builder)
    return tuple(builder.opts)


JOIN = Template("join", "masks that change at constant iterations: joins and paddings", match_join, join_plans)

"""Kernels whose iterations run in order: scans and sorts of rows. In: a kernel for a target without work-groups. Out:
plans that give rows to one core or to all of them.

An iteration depends on what the one before has left in registers or in memory, so no loop of a row is vectorised. A
scan over the slow axis of many columns is vectorised along the columns, by other templates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from tilewright.base.costs import seconds_of
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import check_cores, check_tile, has_effects
from tilewright.kernel.axes import KernelView, is_counted, stride
from tilewright.kernel.templates.dot_tiles import utilisation
from tilewright.kernel.templates.opt_builder import OptBuilder
from tilewright.kernel.templates.template import Opts, Plan, Template


def match_scan(view: KernelView) -> list[UOp] | None:
    """The parallel loops, of a kernel whose other loops store in order. None where there is a reduction or a loop of
    stride 1 that may be vectorised: other templates take these."""
    if not has_effects(view) or view.of_kind(AxisType.REDUCE):
        return None
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if any(axis in store.ranges for store in view.stores)]
    free = [axis for axis in loops if check_cores(view, axis) is None]
    lanes = min((view.target.lanes(store.dtype) for store in view.stores), default=1)
    unit = [axis for axis in loops if size_of(axis) >= lanes and any(stride(store, axis) == 1 for store in view.stores)]
    if len(free) == len(loops) or any(check_tile(view, axis) is None for axis in unit):
        return None
    return [axis for axis in free if is_counted(axis) and not _shares_lines(view, axis)]


def _shares_lines(view: KernelView, axis: UOp) -> bool:
    """Whether adjacent iterations store to the same cache lines: on different cores that is false sharing."""
    steps = [(stride(store, axis), store.dtype.itemsize) for store in view.stores]
    return any(step is not None and abs(step) * itemsize < view.target.line_bytes for step, itemsize in steps)


def scan_plans(view: KernelView, rows: list[UOp]) -> Iterator[Plan]:
    """Elements are one dependent chain: each takes the latency of an operation."""
    stored = sum(math.prod(map(size_of, store.ranges)) for store in view.stores)
    clocks = stored * view.target.independent_vectors / view.target.products_per_clock
    reason = "iterations continue from those before: rows in turn"
    yield Plan("one core", reason, tuple, partial(seconds_of, clocks, view.target))
    shared = max(rows, key=lambda axis: (min(size_of(axis), view.target.cores), -axis.arg.id[0]), default=None)
    if view.target.has_threads and shared is not None and size_of(shared) > 1:
        parallel = clocks / (view.target.cores * utilisation(size_of(shared), view.target.cores))
        make = partial(_share, view, shared)
        estimate = partial(seconds_of, parallel + view.target.launch_clocks, view.target)
        yield Plan("all cores", "rows do not depend on each other: each on a core", make, estimate)


def _share(view: KernelView, axis: UOp) -> Opts:
    builder = OptBuilder(view)
    builder.apply(OptOps.THREAD, axis, size_of(axis))
    return tuple(builder.opts)


SCAN = Template("scan", "iterations in order: a scan or a sort of rows", match_scan, scan_plans)

"""Contractions on targets with work-groups. In: a kernel for a target. Out: the plans for it.

  tensor core  a contraction that one of the target's cores takes: TC, and nothing else
  registers    a product of few rows and very many columns: all rows of a few columns in registers
  local tiles  two operands of a reduction each miss an output loop (matrix product, convolution): a tile of both loops
               per work-group, a smaller one per thread, operands through local memory

The choice follows from strides, sizes and the target's facts. An opt that a check refuses is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from tilewright.base.costs import seconds_of
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.contraction import match_contraction
from tilewright.kernel.axes import KernelView, is_counted
from tilewright.kernel.cost import contraction_clocks, repeated_clocks, single_copy_clocks
from tilewright.kernel.templates.group_builder import GroupOptBuilder, divisor, output_loops, step_of, tile_groups
from tilewright.kernel.templates.group_rows import steps_of
from tilewright.kernel.templates.measured_groups import (
    MAX_STAGED_ELEMENTS,
    MIN_PRODUCT,
    MIN_SIDE,
    SHORT_ROW,
    STAGED_DEPTH,
    TILE_THREADS,
)
from tilewright.kernel.templates.narrow_products import (
    NarrowProduct,
    match_narrow_product,
    tile_narrow_product,
)
from tilewright.kernel.templates.template import Plan, Template
from tilewright.kernel.transforms.registry import TRANSFORMS
from tilewright.kernel.transforms.stage import operands
from tilewright.kernel.transforms.tensor_core import check_bulk, find_core
from tilewright.kernel.transforms.tile_dot import plan_tiles


class Found(NamedTuple):
    """The ways to compute a contraction, with estimates in clocks: tensor cores, registers, a tile of two loops.
    `repeated` is the estimate without tiles, for a product of so few rows or columns that tiles of tensor cores would
    be mostly empty."""

    cores: list[tuple[float, Opt]]
    narrow: NarrowProduct | None
    pair: tuple[UOp, UOp] | None
    repeated: float | None


def match_product(view: KernelView) -> Found | None:
    narrow = match_narrow_product(view)
    cores, repeated = usable_cores(view, narrow)
    pair = product_axes(view) if narrow is None and (repeated is not None or not cores) else None
    return Found(cores, narrow, pair, repeated) if cores or narrow is not None or pair is not None else None


def product_plans(view: KernelView, found: Found) -> Iterator[Plan]:
    cores, narrow, pair, repeated = found
    reason = "tiles of both operands are staged, and a tensor core multiplies them"
    for clocks, opt in cores:
        yield Plan(f"tensor core {opt.arg}", reason, partial(tuple, [opt]), partial(seconds_of, clocks, view.target))
    estimate = None if repeated is None else partial(seconds_of, repeated, view.target)
    if narrow is not None:
        reason = "few rows and many columns: all rows of a few columns in registers"
        estimate = partial(seconds_of, narrow.clocks(view.target), view.target)
        yield Plan("registers", reason, partial(tile_groups, view, tile_narrow_product, narrow), estimate)
    elif pair is not None:
        reason = "two operands each miss an output loop: tiles of both in local memory"
        yield Plan("local tiles", reason, partial(tile_groups, view, tile_product, *pair), estimate)
    elif estimate is not None:
        yield Plan("repeated loads", "one operand is loaded again for each row of the other", None, estimate)


# ---------------------------------------------------------------- tensor cores


def usable_cores(view: KernelView, narrow: NarrowProduct | None) -> tuple[list[tuple[float, Opt]], float | None]:
    """The tensor cores that can compute the kernel, each with its estimate in clocks; none where it is not a
    contraction or is very small. And the estimate without tiles, where it has few rows or columns."""
    found: list[tuple[float, Opt]] = []
    repeated: float | None = None
    shortest: int | None = None  # bytes of an operand, in the shortest dtype that a core multiplies
    for axis, name in TRANSFORMS[OptOps.TC].candidates(view):
        core = find_core(view.target, name)
        assert core is not None
        contraction = match_contraction(view, core.operand, core.accumulator)
        if isinstance(contraction, str):
            continue
        if core.parts > 1 and shortest is not None and shortest < core.operand.itemsize:
            continue  # the operands are exact in a shorter dtype: all parts but one would be 0
        if core.parts == 1:
            shortest = min(shortest or core.operand.itemsize, core.operand.itemsize)
        rows, columns = contraction.rows, contraction.columns
        if rows * columns * contraction.length < MIN_PRODUCT:
            return [], None
        is_bulk = check_bulk(view, axis, core) is None
        if not is_bulk and core.rows * core.columns > MAX_STAGED_ELEMENTS * core.threads:
            continue
        clocks = contraction_clocks(contraction, core, view.target, is_bulk)
        # A core that multiplies parts does not overlap copies with other work.
        if not is_bulk and (narrow is not None or core.parts > 1):
            clocks = max(clocks, single_copy_clocks(plan_tiles(contraction, core), view.target))
        if narrow is None and min(rows, columns) < MIN_SIDE:
            repeated = repeated_clocks(contraction, core, view.target)
        found.append((clocks, Opt(OptOps.TC, view.axes.index(axis), name)))
    return found, repeated


# ---------------------------------------------------------------- products


def product_axes(view: KernelView) -> tuple[UOp, UOp] | None:
    """Two output loops: one operand of the reduction does not depend on the first, another not on the second. The
    second has the smaller stride in the stores."""
    if len(view.reduces) != 1:
        return None
    reduce = view.reduces[0]
    if steps_of(reduce) <= SHORT_ROW and any(loop not in reduce.ranges for loop in output_loops(view)):
        return None  # a short sum for many outputs: stores dominate
    closed = frozenset(reduce.src[1:])
    inside = [access for access in view.loads if access.ranges & closed]
    loops = [axis for axis in output_loops(view) if axis in reduce.ranges and is_counted(axis)]
    loops = [axis for axis in loops if size_of(axis) >= TILE_THREADS // 2]
    for access in inside:
        for other in inside:
            fast = [axis for axis in loops if axis not in access.ranges and axis in other.ranges]
            slow = [axis for axis in loops if axis in access.ranges and axis not in other.ranges]
            if fast and slow:
                column = min(fast, key=lambda axis: (step_of(axis, view.stores), axis.arg.id))
                row = min(slow, key=lambda axis: (step_of(axis, view.stores), axis.arg.id))
                is_ordered = step_of(column, view.stores) <= step_of(row, view.stores)
                return (row, column) if is_ordered else (column, row)
    return None


def tile_product(builder: GroupOptBuilder, row: UOp, column: UOp) -> None:
    """A tile of outputs per thread, a larger one per work-group, and the operands' tiles in local memory."""
    view = builder.view
    reduce = view.reduces[0]
    inside = [access for access in view.loads if access.ranges & frozenset(reduce.src[1:])]
    outputs = math.prod(size_of(loop) for loop in output_loops(view))
    side = 8 if outputs >= builder.target.cores * (8 * TILE_THREADS) ** 2 else 4
    for axis in (row, column):
        tile = side * TILE_THREADS
        if size_of(axis) % tile and size_of(axis) > TILE_THREADS:
            axis = builder.fill_up(axis, tile if size_of(axis) >= 4 * tile else TILE_THREADS)
        rest = builder.split(OptOps.UPCAST, axis, divisor(size_of(axis), min(side, max(1, size_of(axis) // 8))))
        if rest is not None:
            builder.split(OptOps.LOCAL, rest, divisor(size_of(rest), TILE_THREADS))
    axes = [axis for axis in builder.view.reduces[0].src[1:] if axis.arg.kind is AxisType.REDUCE and is_counted(axis)]
    if not axes:
        return
    deep = max(axes, key=lambda axis: (size_of(axis), axis.arg.id))
    depth = next((d for d in STAGED_DEPTH if size_of(deep) % d == 0 and size_of(deep) > d), 1)
    if depth == 1 and size_of(deep) > 64:
        deep = builder.fill_up(deep, STAGED_DEPTH[1])
        depth = STAGED_DEPTH[1]
    loop = builder.split(OptOps.UNROLL, deep, depth)
    # Only two plain operands are staged. Masked ones are read in place: half of a tile may be masked off.
    if loop is not None and depth > 1 and len(axes) == 1 and len(inside) == 2:
        for _ in inside:
            if operands(builder.view):
                builder.take(OptOps.STAGE, loop, 0)


CONTRACTION = Template("contraction", "a sum of products that shares its loads", match_product, product_plans)

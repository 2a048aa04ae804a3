"""Scans by serial loops: of CPU cores, or of one GPU thread for each column. In: a tensor's node, an axis, the device.
Out: calls of kernels of `graph/kernels/scans` (running.py, columns.py) with their gradients; None for a GPU with too
few columns, and for an axis so short that a masked reduction, which fuses with its neighbours, takes less time."""

from __future__ import annotations

import math

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import record
from tilewright.base.target import Target
from tilewright.graph import build, marks
from tilewright.graph.kernels.custom import output_node
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Devices, Op, Shape
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver

# Up to this length of the axis, and this many combinations in total, a masked reduction is as fast.
MAX_MASKED_LENGTH = 4
MAX_MASKED_STEPS = 1 << 12
# On a GPU: adjacent columns that share an access to memory; the threads per core from which on loops hide latency, and
# the number to divide columns for where there are fewer; the most parts of a column, and the fewest rows of a part.
MIN_ADJACENT = 8
MIN_THREADS = 384
DIVIDED_THREADS = 1024
MAX_PARTS = 256
MIN_PART = 16


def running_along(node: UOp, op: Op, axis: int, dtype: DType, wide: DType, device: Devices) -> UOp | None:
    """The cumulative sum or product along an axis, as `dtype`, accumulated in `wide`. CPUs accumulate floats in float64
    where they have it, so that rounding errors of a long row do not add up."""
    target = _target_with_loops(node.shape, axis, device)
    if target is None or not all(map(target.computes, (node.dtype, wide))):
        return None
    shape = _rows_of(node.shape, axis)
    if target.has_local:
        parts, carrier, given, result = _parts(shape, target), wide, node, dtype
    else:
        parts, carrier, result = 0, dtypes.float64 if wide.is_float and dtypes.float64 in target.native else wide, wide
        given = node if dtype.is_int else build.cast(node, wide)
        if not {given.dtype, wide} <= target.native:
            return None
    rows = build.contiguous(build.reshape(given, shape))
    gradient = SumGradient(carrier, parts) if op is Ops.ADD else ProductGradient(wide, parts)
    return build.cast(build.reshape(_running(rows, op, carrier, result, gradient), node.shape), dtype)


def running_by_groups(rows: UOp, op: Op, longest: int, wide: DType, dtype: DType) -> UOp:
    """The cumulative sum or product of each row by work-groups, none of which holds more than `longest` elements."""
    from tilewright.graph.kernels.scans.scanning import running_sums, scanned_rows  # only used on GPUs: imported late

    if op is Ops.ADD:
        return running_sums(rows, longest, wide, dtype)
    products = scanned_rows(rows, op, longest, wide, dtype)
    return products.replace(arg=products.arg._replace(gradient=ProductGradient(wide, 0)))


def extremes_along(node: UOp, op: Op, axis: int, device: Devices) -> tuple[UOp, UOp] | None:
    """The cumulative maximum or minimum along an axis, and its index."""
    target = _target_with_loops(node.shape, axis, device)
    if target is None or not target.computes(node.dtype) or node.dtype.is_bool:
        return None
    rows = build.contiguous(build.reshape(node, _rows_of(node.shape, axis)))
    if target.has_local:
        if _parts(rows.shape, target) > 1:
            return None
        from tilewright.graph.kernels.scans.columns import extreme_columns  # imported where needed: imports stay short

        values, _ = extreme_columns(rows, op, target.held_in(node.dtype))
    else:
        if node.dtype not in target.native:
            return None
        from tilewright.graph.kernels.scans.running import running_extremes

        values, _ = running_extremes(rows, op)
    values = values.replace(arg=values.arg._replace(gradient=ExtremeGradient()))
    return build.reshape(values, node.shape), build.reshape(output_node(values, 1), node.shape)


def _target_with_loops(shape: Shape, axis: int, device: Devices) -> Target | None:
    """The target of a device that scans an axis of this length by a serial loop; None where masked reductions are
    used."""
    if not isinstance(device, str) or is_symbolic(shape):
        return None
    target = open_driver(device).target
    is_short = shape[axis] <= MAX_MASKED_LENGTH or math.prod(shape) * shape[axis] <= MAX_MASKED_STEPS
    if is_short:
        return None
    if target.has_local:
        return target if target.warp_size > 1 and _parts(_rows_of(shape, axis), target) else None
    return target if target.has_threads else None


def _parts(rows: Shape, target: Target) -> int:
    """The parts of each column that give a card enough threads; 0 where it has better ways."""
    outer, size, inner = rows
    if inner < MIN_ADJACENT or outer * size * inner >= 1 << 31:
        return 0
    if outer * inner >= MIN_THREADS * target.cores:
        return 1
    wanted = -(-DIVIDED_THREADS * target.cores // (outer * inner))
    usable = range(wanted, min(MAX_PARTS, size // MIN_PART) + 1)
    return next((parts for parts in usable if size % parts == 0), 0)


def _rows_of(shape: Shape, axis: int) -> Shape:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _running(
    rows: UOp, op: Op, carrier: DType, dtype: DType, gradient: SumGradient | ProductGradient, is_backwards: bool = False
) -> UOp:
    if gradient.parts:
        from tilewright.graph.kernels.scans.columns import running_columns

        made = running_columns(rows, op, carrier, dtype, gradient.parts, is_backwards)
    else:
        from tilewright.graph.kernels.scans.running import running

        made = running(rows, op, carrier, dtype, is_backwards)
    return made.replace(arg=made.arg._replace(gradient=gradient))


# ---------------------------------------------------------------- gradients


@record
class SumGradient:
    """An element is part of every sum from its position on: its gradient is the cumulative sum from the other end. The
    totals before each part of a divided column come from the same elements, so they have no gradient of their own."""

    carrier: DType
    parts: int
    is_backwards: bool = False

    def __call__(self, node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
        other = SumGradient(self.carrier, self.parts, not self.is_backwards)
        source = node.src[0].dtype
        sums = _running(build.contiguous(upstream), Ops.ADD, self.carrier, source, other, other.is_backwards)
        return sums, *(None,) * (len(node.src) - 1)


@record
class ProductGradient:
    """The gradient of the products as masked reductions: a quotient would be 0 / 0 after an element that is 0."""

    wide: DType
    parts: int

    def __call__(self, node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
        from tilewright.tensor.core.gradient import Flow
        from tilewright.tensor.primitives.masked_scans import scan_axis

        factors = marks.identical(node.src[0])
        products = build.cast(scan_axis(build.cast(factors, self.wide), Ops.MUL, 1), node.dtype)
        flow = Flow(products, lambda found: found is factors, stops=True)
        return flow.propagate(upstream)[factors], *(None,) * (len(node.src) - 1)


@record
class ExtremeGradient:
    """The gradient of an extreme goes to the element at its index."""

    def __call__(self, node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
        from tilewright.graph.gradients.gather import gather_gradient

        outer, inner = (build.axis_iota(node.shape, axis) for axis in (0, 2))
        chosen = build.gather(node.src[0], outer, output_node(node, 1), inner)
        return gather_gradient(chosen, upstream)[:1]

"""Scans by serial loops, for CPUs. In: a tensor's node, an axis, the device. Out: calls of the kernels of
`graph/kernels/running.py` with their gradients; None for devices with work-groups, and for an axis so short that a
masked reduction, which fuses with its neighbours, takes less time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.base.dtype import DType, dtypes
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


def running_along(node: UOp, op: Op, axis: int, dtype: DType, device: Devices) -> UOp | None:
    """The cumulative sum or product along an axis, as `dtype`. Floats are accumulated in float64 where the device has
    it, so that rounding errors of a long row do not add up."""
    target = _walking_target(node.shape, axis, device)
    if target is None or not {node.dtype, dtype} <= target.native:
        return None
    carrier = dtypes.float64 if dtype.is_float and dtypes.float64 in target.native else dtype
    rows = build.contiguous(build.reshape(node, _rows_of(node.shape, axis)))
    gradient = SumGradient(carrier) if op is Ops.ADD else ProductGradient()
    return build.reshape(_running(rows, op, carrier, dtype, gradient), node.shape)


def extremes_along(node: UOp, op: Op, axis: int, device: Devices) -> tuple[UOp, UOp] | None:
    """The cumulative maximum or minimum along an axis, and its index."""
    target = _walking_target(node.shape, axis, device)
    if target is None or node.dtype not in target.native or node.dtype.is_bool:
        return None
    from tilewright.graph.kernels.running import running_extremes  # only used on CPUs: imported late

    rows = build.contiguous(build.reshape(node, _rows_of(node.shape, axis)))
    values, _ = running_extremes(rows, op)
    values = values.replace(arg=values.arg._replace(gradient=ExtremeGradient()))
    return build.reshape(values, node.shape), build.reshape(output_node(values, 1), node.shape)


def _walking_target(shape: Shape, axis: int, device: Devices) -> Target | None:
    """The target of a device that scans an axis of this length by a serial loop; None where masked reductions are
    used."""
    if not isinstance(device, str) or is_symbolic(shape):
        return None
    target = open_driver(device).target
    is_short = shape[axis] <= MAX_MASKED_LENGTH or math.prod(shape) * shape[axis] <= MAX_MASKED_STEPS
    return None if is_short or target.has_local or not target.has_threads else target


def _rows_of(shape: Shape, axis: int) -> Shape:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _running(
    rows: UOp, op: Op, carrier: DType, dtype: DType, gradient: SumGradient | ProductGradient, is_backwards: bool = False
) -> UOp:
    from tilewright.graph.kernels.running import running

    made = running(rows, op, carrier, dtype, is_backwards)
    return made.replace(arg=made.arg._replace(gradient=gradient))


# ---------------------------------------------------------------- gradients


@dataclass(frozen=True)
class SumGradient:
    """An element is part of every sum from its position on: its gradient is the cumulative sum from the other end."""

    carrier: DType
    is_backwards: bool = False

    def __call__(self, node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
        other = SumGradient(self.carrier, not self.is_backwards)
        rows = build.contiguous(upstream)
        return (_running(rows, Ops.ADD, self.carrier, node.dtype, other, other.is_backwards),)


@dataclass(frozen=True)
class ProductGradient:
    """The gradient of the products as masked reductions: a quotient would be 0 / 0 after an element that is 0."""

    def __call__(self, node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
        from tilewright.tensor.core.gradient import Flow
        from tilewright.tensor.primitives.masked_scans import scan_axis

        factors = marks.identical(node.src[0])
        flow = Flow(scan_axis(factors, Ops.MUL, 1), lambda found: found is factors, stops=True)
        return (flow.propagate(upstream)[factors],)


@dataclass(frozen=True)
class ExtremeGradient:
    """The gradient of an extreme goes to the element at its index."""

    def __call__(self, node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
        from tilewright.graph.gradients.gather import gather_gradient

        outer, inner = (build.axis_iota(node.shape, axis) for axis in (0, 2))
        chosen = build.gather(node.src[0], outer, output_node(node, 1), inner)
        return gather_gradient(chosen, upstream)[:1]

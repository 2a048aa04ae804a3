"""Transposed convolutions in phases. In: sizes, strides and dilations of the space axes, and the weight. Out: the
weights of ordinary convolutions of stride 1, and their results interleaved.

Along one axis an input element i times tap k of the kernel is added to result i*stride + k*dilation. Results whose
positions have the same remainder modulo the stride are one phase. Taps k and k + period reach the same phase, where
period is stride / gcd(stride, dilation), so that a phase is a convolution of the input with every period-th tap:

    kernel 4, stride 2: result[2*q + 0] = x[q] * w[0] + x[q - 1] * w[2]
                        result[2*q + 1] = x[q] * w[1] + x[q - 1] * w[3]

All phases with the same number of taps become output channels of one convolution. No products with inserted zeros are
computed, nor rows that the padding of the transposed convolution removes, and gradients are those of ordinary
convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.symbolic import capacity
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes


class Class(NamedTuple):
    """Phases start..stop-1 of an axis, each with `taps` taps."""

    taps: int
    start: int
    stop: int


class Phases(NamedTuple):
    """The phases of one axis, of which rows `first` to `last - 1` are kept: results q*stride + remainder."""

    size: int  # of the input
    taps: int  # of the kernel
    stride: int
    dilation: int
    first: int
    last: int

    @property
    def period(self) -> int:
        return self.stride // math.gcd(self.stride, self.dilation)

    @property
    def gap(self) -> int:
        """The dilation of the convolution of a phase."""
        return self.dilation // math.gcd(self.stride, self.dilation)

    @property
    def classes(self) -> list[Class]:
        """At most two: the first phases have one tap more where the period does not divide the taps."""
        most = -(-self.taps // self.period)
        longer = min(self.period, self.taps - (most - 1) * self.period)
        found = [Class(most, 0, longer)]
        if most > 1 and longer < self.period:
            found.append(Class(most - 1, longer, self.period))
        return found

    def shift(self, phase: int) -> int:
        """The row of the first result of a phase."""
        return phase * self.dilation // self.stride

    def computed(self, chosen: Class) -> tuple[int, int]:
        """The results of the phases of a class that are computed, from and up to, counted from the first one of each:
        those that are kept, and at least one."""
        count = self.size + (chosen.taps - 1) * self.gap
        if is_symbolic((count,)) or not count:
            return 0, count
        start = min(max(0, self.first - self.shift(chosen.stop - 1)), count - 1)
        return start, max(start + 1, min(count, self.last - self.shift(chosen.start)))

    def around(self, chosen: Class) -> tuple[int, int]:
        """The padding on either side of the input with which a convolution gives the computed results; where it is
        negative, elements are dropped."""
        start, stop = self.computed(chosen)
        return (chosen.taps - 1) * self.gap - start, stop - self.size


def phases_of(size: int, taps: int, stride: int, dilation: int, bounds: tuple[int, int]) -> Phases:
    """The phases of an axis whose results between bounds are kept. A single input element overlaps no other, so that
    each tap is a phase; an empty axis has no gaps."""
    if capacity(size) < 2:
        stride = dilation * (taps - 1) + 1 if size else 1
    whole = Phases(size, taps, stride, dilation, 0, 0)
    longest = size + (whole.classes[0].taps - 1) * whole.gap
    rows = longest + whole.shift(min(taps, whole.period) - 1)
    if is_symbolic((size,)) or not size:
        return whole._replace(last=rows)
    return whole._replace(first=min(bounds[0] // stride, rows - 1), last=min(-(-bounds[1] // stride), rows))


def phase_weight(weight: UOp, groups: int, axes: Sequence[Phases], classes: Sequence[Class]) -> UOp:
    """(in, out, *kernel) as the weight of an ordinary convolution, (groups * out * phases, in / groups, *taps)."""
    inputs = weight.shape[0]
    for axis, (phases, chosen) in enumerate(zip(axes, classes)):
        place = 2 + 2 * axis
        whole = chosen.taps * phases.period
        weight = nodes.slice_axis(weight, place, 0, min(whole, phases.taps))
        weight = nodes.pad_axis(weight, place, 0, whole - weight.shape[place])
        weight = build.reshape(weight, nodes.replace_axis(weight.shape, place, chosen.taps, phases.period))
        weight = nodes.slice_axis(weight, place + 1, chosen.start, chosen.stop)
    count = len(axes)
    weight = build.flip(weight, tuple(range(2, 2 + 2 * count, 2)))
    grouped = build.reshape(weight, (groups, inputs // groups, *weight.shape[1:]))
    taps, places = range(3, 3 + 2 * count, 2), range(4, 4 + 2 * count, 2)
    moved = build.permute(grouped, (0, 2, *places, 1, *taps))
    channels = math.prod(moved.shape[: 2 + count])
    weight = build.reshape(moved, (channels, *moved.shape[2 + count :]))
    if all(phases.stride == 1 for phases in axes):
        return weight
    # Stored, so that the channels of all phases are one loop over the weight.
    return stored_with_gradient(weight)


def stored_with_gradient(node: UOp) -> UOp:
    """The node, stored, and its gradient as well: interleaving stays outside the convolutions' loops."""
    return UOp(Ops.DETACH, node.dtype, (build.contiguous(node),), "contiguous_backward")


def interleave(results: dict[tuple[Class, ...], UOp], axes: Sequence[Phases], channels: int) -> UOp:
    """The kept results of all phases in the order of their positions: (batch, channels, *(rows * stride))."""
    parts = {}
    for classes, node in results.items():
        counts = tuple(chosen.stop - chosen.start for chosen in classes)
        parts[classes] = build.reshape(node, (node.shape[0], channels, *counts, *node.shape[2:]))
    for axis in reversed(range(len(axes))):
        joined = {}
        for outer in itertools.product(*(phases.classes for phases in axes[:axis])):
            found = {chosen: parts[*outer, chosen] for chosen in axes[axis].classes}
            joined[outer] = _interleave_axis(found, axes[axis], axis)
        parts = joined
    return parts[()]


def _interleave_axis(parts: dict[Class, UOp], phases: Phases, number: int) -> UOp:
    """(batch, channels, *phases of axes up to this one, *results of axes, interleaved ones last) with the phases of
    axis `number` interleaved."""
    axis, place = 2 + number, 3 + 2 * number
    blocks: dict[int, UOp] = {}
    for chosen, node in parts.items():
        # Without dilation phase p has remainder p modulo the stride; else each phase is shifted.
        step = chosen.stop - chosen.start if phases.dilation == 1 else 1
        for start in range(chosen.start, chosen.stop, step):
            block = nodes.slice_axis(node, axis, start - chosen.start, start - chosen.start + step)
            remainder = start * phases.dilation % phases.stride
            blocks[remainder] = _kept_rows(block, place, phases, phases.shift(start) + phases.computed(chosen)[0])
    joined: list[UOp] = []
    reached = 0
    for remainder, block in sorted(blocks.items()):
        if remainder > reached:
            joined.append(build.const(block.dtype, 0, nodes.replace_axis(block.shape, axis, remainder - reached)))
        joined.append(block)
        reached = remainder + block.shape[axis]
    node = nodes.pad_axis(nodes.cat(joined, axis), axis, 0, phases.stride - reached)
    order = [k for k in range(len(node.shape)) if k != axis]
    order.insert(place, axis)
    node = build.permute(node, tuple(order))
    count = phases.last - phases.first
    return build.reshape(node, (*node.shape[: place - 1], count * phases.stride, *node.shape[place + 1 :]))


def _kept_rows(block: UOp, axis: int, phases: Phases, first: int) -> UOp:
    """The rows of a phase that are kept, from those that are computed, which begin with row `first`."""
    return moved_by(block, axis, first - phases.first, phases.last - first - block.shape[axis])


def moved_by(node: UOp, axis: int, before: int, after: int) -> UOp:
    """The node with zeros on either side of an axis; elements are dropped where a count is negative."""
    if is_symbolic((before, after)):
        return nodes.pad_axis(node, axis, before, after)
    node = nodes.slice_axis(node, axis, max(0, -before), node.shape[axis] - max(0, -after))
    return nodes.pad_axis(node, axis, max(0, before), max(0, after))

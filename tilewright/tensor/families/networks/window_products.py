"""Sums of products over windows. In: a padded image and taps. Out: the result for each window, and the gradients of a
convolution that may be computed in another way."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtype import DType
from tilewright.base.records import record
from tilewright.graph import build, marks
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.core.gradient import Flow
from tilewright.tensor.families.linalg.products import multiply_and_sum


def windows_product(
    padded: UOp, taps: UOp, groups: int, steps: Sequence[int], gaps: Sequence[int], dtypes_of: tuple[DType, DType]
) -> UOp:
    """The sum over all windows of a padded image times the taps: (batch, outputs, *size). `dtypes_of` are those of the
    result and of the products."""
    result, carrier = dtypes_of
    outputs, inputs, *kernel = taps.shape
    space, batch = len(kernel), padded.shape[0]
    windows = nodes.pool(padded, tuple(kernel), tuple(steps), tuple(gaps))
    size = windows.shape[2 : 2 + space]
    # (batch, groups, out/groups, channels, *kernel, *size): pixels are the last axes, so that the gradient of the
    # windows is stored at unit stride.
    full = (batch, groups, outputs // groups, inputs, *kernel, *size)
    grouped = build.reshape(windows, (batch, groups, inputs, *size, *kernel))
    order = (0, 1, 2, *range(3 + space, 3 + 2 * space), *range(3, 3 + space))
    left = build.reshape(build.permute(grouped, order), (batch, groups, 1, inputs, *kernel, *size))
    right = build.reshape(build.cast(taps, carrier), (1, groups, outputs // groups, inputs, *kernel, *(1,) * space))
    node = multiply_and_sum(build.expand(left, full), build.expand(right, full), range(3, 4 + space), result)
    return build.reshape(node, (batch, outputs, *size))


@record
class WindowsGradient:
    """The gradients of a convolution of stride 1, whichever way it is computed: those of products of windows."""

    groups: int
    gaps: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dtypes: tuple[DType, DType]  # of the result, and of the products

    def __call__(self, upstream: UOp, image: UOp, taps: UOp) -> tuple[UOp, ...]:
        own = [marks.identical(image), marks.identical(taps)]
        padded = build.cast(build.pad(own[0], ((0, 0), (0, 0), *self.pads)), self.dtypes[1])
        steps = (1,) * len(self.gaps)
        product = windows_product(padded, own[1], self.groups, steps, self.gaps, self.dtypes)
        found = Flow(product, lambda inner: inner in own, stops=True).propagate(upstream)
        return tuple(found[each] for each in own)

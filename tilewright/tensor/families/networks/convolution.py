"""Convolution backwards, and resizing. In: tensors of (batch, channels, *space). Out: tensors with another space.
A transposed convolution is a convolution of the input with zeros put between its elements; resizing reads the one or
two nearest elements along each axis, at places that are exact fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, cast

from tilewright.base.dtype import dtypes
from tilewright.base.errors import ShapeError
from tilewright.graph import build
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import check_devices, check_whole, is_whole
from tilewright.tensor.families.linalg.einsum import EinsumMixin
from tilewright.tensor.families.linalg.matmul import Sizes, pads_of, sizes_of

if TYPE_CHECKING:
    from fractions import Fraction

_LINEAR = ("linear", "bilinear", "trilinear")
# A factor such as 0.3 is meant as 3/10, and places computed from it stay in 64 bits.
_MAX_DENOMINATOR = 1 << 20


class ConvolutionMixin(EinsumMixin):
    """conv_transpose2d, interpolate."""

    def conv_transpose2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
    ) -> Self:
        """The gradient of `conv2d` with respect to its input, as a layer: weight (in, out/groups, *kernel), over any
        number of space axes. `output_padding` makes the far side of the result larger."""
        name = "conv_transpose2d"
        check_devices(name, self, weight, *(() if bias is None else (bias,)))
        space = weight.ndim - 2
        if space < 1 or self.ndim != weight.ndim:
            message = f"input {self.shape} and weight {weight.shape} have different numbers of axes"
            raise ShapeError(name, message, "give (batch, channels, height, width) and (in, out, height, width)")
        inputs, outputs, *kernel = weight.shape
        check_whole(name, "groups", groups, least=1)
        if inputs % groups or self.shape[1] != inputs:
            message = f"input {self.shape}, weight {weight.shape}, groups {groups}: channels do not fit"
            raise ShapeError(name, message, f"the input needs {inputs} channels, which {groups} divides")
        steps = sizes_of(name, "stride", stride, space)
        gaps = sizes_of(name, "dilation", dilation, space)
        pads = pads_of(name, padding, space)
        more = sizes_of(name, "output_padding", output_padding, space, least=0)
        around = []
        for axis, (k, d, s, (before, after), extra) in enumerate(zip(kernel, gaps, steps, pads, more)):
            if extra >= max(s, d):
                message = f"output_padding {extra} of axis {axis}, whose stride is {s} and dilation {d}"
                raise ShapeError(name, message, "give less than the stride or the dilation")
            around.append((d * (k - 1) - before, d * (k - 1) - after + extra))
        apart = self._new(zeros_between(self.uop, steps)).pad(((0, 0), (0, 0), *around))
        # (in, out/groups, ...) as (out, in/groups, ...), each kernel turned around.
        grouped = weight.reshape(groups, inputs // groups, outputs, *kernel).transpose(1, 2)
        turned = grouped.reshape(groups * outputs, inputs // groups, *kernel).flip(tuple(range(2, 2 + space)))
        return apart.conv2d(turned, bias, groups, 1, dilation)

    def interpolate(
        self,
        size: int | Sequence[int] | None = None,
        mode: str = "linear",
        align_corners: bool = False,
        scale_factor: float | Sequence[float] | None = None,
    ) -> Self:
        """The last axes resized, to a size or by a factor: "linear" (also "bilinear", "trilinear") mixes the two
        nearest elements of each axis, "nearest" and "nearest-exact" take one. With `align_corners` the first and last
        elements stay where they are. One factor is that of all axes behind the first two. uint8 is rounded."""
        if mode not in (*_LINEAR, "nearest", "nearest-exact"):
            remedy = "give linear (bilinear, trilinear), nearest or nearest-exact"
            raise ShapeError("interpolate", f"mode {mode!r}", remedy)
        if align_corners and mode not in _LINEAR:
            raise ShapeError("interpolate", f"align_corners with mode {mode!r}", "leave it out, or use mode linear")
        wanted, ratios = self._new_sizes(size, scale_factor)
        first = self.ndim - len(wanted)
        if 0 in self.shape[first:]:
            raise ShapeError("interpolate", f"shape {self.shape} has no elements to read", "give sizes of at least 1")
        if mode in _LINEAR and self.dtype is dtypes.uint8:  # an image: rounded to the nearest
            return self.cast(dtypes.float32)._resized(wanted, ratios, align_corners).round().cast(dtypes.uint8)
        if mode in _LINEAR:
            self._check_float("interpolate")
            return self._in_float32(lambda x: x._resized(wanted, ratios, align_corners))
        node = self.uop
        for axis, (length, ratio) in enumerate(zip(wanted, ratios), start=first):
            number = build.iota(length, dtypes.int64)
            moved = number * ratio.numerator // ratio.denominator
            if mode == "nearest-exact":
                moved = (number * 2 + 1) * ratio.numerator // (2 * ratio.denominator)
            node = read_axis(node, axis, moved.minimum(node.shape[axis] - 1))
        return self._new(node)

    def _new_sizes(
        self, size: int | Sequence[int] | None, scale_factor: float | Sequence[float] | None
    ) -> tuple[Shape, list[Fraction]]:
        """The sizes of the last axes, and how many old elements one new element stands for, as exact fractions."""
        from fractions import Fraction  # loads `decimal`, which few programs need

        if (size is None) == (scale_factor is None):
            raise ShapeError("interpolate", f"size {size}, scale_factor {scale_factor}", "give one of the two")
        if scale_factor is not None:
            count = len(scale_factor) if isinstance(scale_factor, tuple | list) else max(self.ndim - 2, 1)
            factors = scale_factor if isinstance(scale_factor, tuple | list) else (cast(float, scale_factor),) * count
            if count > self.ndim or not all(0 < factor < math.inf for factor in factors):
                message = f"scale_factor {scale_factor} for shape {self.shape}"
                raise ShapeError("interpolate", message, "give a positive factor for each of the last axes")
            scales = [Fraction(factor).limit_denominator(_MAX_DENOMINATOR) for factor in factors]
            sizes = tuple(max(1, int(own * scale)) for own, scale in zip(self.shape[self.ndim - count :], scales))
            return sizes, [1 / scale for scale in scales]
        wanted = tuple(size) if isinstance(size, tuple | list) else (cast(int, size),)
        if not wanted or len(wanted) > self.ndim or not all(is_whole(length) and length >= 1 for length in wanted):
            message = f"size {size} for shape {self.shape}"
            raise ShapeError("interpolate", message, "give a size of at least 1 for each of the last axes")
        wanted = tuple(map(int, wanted))
        old = self.shape[self.ndim - len(wanted) :]
        return wanted, [Fraction(own, length) for own, length in zip(old, wanted)]

    def _resized(self, wanted: Shape, ratios: list[Fraction], align_corners: bool) -> Self:
        result = self
        for axis, (length, ratio) in enumerate(zip(wanted, ratios), start=self.ndim - len(wanted)):
            old = result.shape[axis]
            number = build.iota(length, dtypes.int64)
            # The place is a fraction: above / below.
            if align_corners:
                above, below = number * (old - 1), max(length - 1, 1)
            else:
                above = ((number * 2 + 1) * ratio.numerator - ratio.denominator).maximum(0)
                below = 2 * ratio.denominator
            low = (above // below).minimum(old - 1)
            high = (low + 1).minimum(old - 1)
            share = build.cast(above % below, result.dtype) * (1 / below)
            shape = tuple(length if k == axis else 1 for k in range(self.ndim))
            weight = self._new(build.reshape(share, shape))
            near, far = (result._new(read_axis(result.uop, axis, place)) for place in (low, high))
            result = near * (1 - weight) + far * weight
        return result


def zeros_between(node: UOp, steps: Shape) -> UOp:
    """The space axes with stride - 1 zeros behind each element but the last."""
    for axis, step in enumerate(steps, start=2):
        size = node.shape[axis]
        if step == 1 or size == 0:
            continue
        rows = build.reshape(node, nodes.replace_axis(node.shape, axis, size, 1))
        padded = nodes.pad_axis(rows, axis + 1, 0, step - 1)
        flat = build.reshape(padded, nodes.replace_axis(node.shape, axis, size * step))
        node = nodes.slice_axis(flat, axis, 0, (size - 1) * step + 1)
    return node


def read_axis(node: UOp, axis: int, places: UOp) -> UOp:
    """The elements at the places of one axis, all else as it is."""
    shape = nodes.replace_axis(node.shape, axis, places.shape[0])
    if 0 in shape:
        return build.const(node.dtype, 0, shape)
    aligned = build.reshape(places, tuple(size if k == axis else 1 for k, size in enumerate(shape)))
    wide = build.expand(aligned, shape)
    return build.gather(node, *(wide if k == axis else build.axis_iota(shape, k) for k in range(len(shape))))

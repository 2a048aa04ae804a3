"""Operations on images: pixel_shuffle, interpolate, grid_sample. In: (batch, channels, *space). Out: the same layout.
Resizing reads the one, two or four nearest elements along each axis, at positions that are exact fractions."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from tilewright.base.dtype import dtypes
from tilewright.base.errors import ShapeError
from tilewright.graph import build
from tilewright.graph.slices import MAX_SELECTED_PARTS
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.core.checks import check_whole, is_whole
from tilewright.tensor.families.networks.pooling import PoolingMixin
from tilewright.tensor.primitives.reduce import accumulate_dtype

if TYPE_CHECKING:
    from fractions import Fraction

_LINEAR = ("linear", "bilinear", "trilinear")
_CUBIC = ("cubic", "bicubic")
_CUBIC_SLOPE = -0.75  # coefficient of cubic convolution, as in torch
# A factor such as 0.3 is taken as 3/10, and positions computed from it fit in 64 bits.
_MAX_DENOMINATOR = 1 << 20


class ImagesMixin(PoolingMixin):
    """pixel_shuffle, interpolate, grid_sample, ..."""

    # ------------------------------------------------------------ space and channels

    def pixel_shuffle(self, upscale_factor: int) -> Self:
        """Moves channels to space: (..., c*r*r, h, w) to (..., c, h*r, w*r)."""
        check_whole("pixel_shuffle", "upscale_factor", upscale_factor, least=1)
        r = upscale_factor
        if self.ndim < 3 or self.shape[-3] % (r * r):
            message = f"shape {self.shape} with a factor of {r}"
            raise ShapeError("pixel_shuffle", message, f"give (..., channels, h, w), channels a multiple of {r * r}")
        *outer, channels, height, width = self.shape
        split = self.reshape((*outer, channels // (r * r), r, r, height, width))
        first = len(outer)
        order = (*range(first + 1), first + 3, first + 1, first + 4, first + 2)
        return split.permute(order).reshape((*outer, channels // (r * r), height * r, width * r))

    def pixel_unshuffle(self, downscale_factor: int) -> Self:
        """Moves space to channels: (..., c, h*r, w*r) to (..., c*r*r, h, w)."""
        check_whole("pixel_unshuffle", "downscale_factor", downscale_factor, least=1)
        r = downscale_factor
        if self.ndim < 3 or self.shape[-1] % r or self.shape[-2] % r:
            message = f"shape {self.shape} with a factor of {r}"
            raise ShapeError("pixel_unshuffle", message, f"give (..., channels, h, w) with h and w multiples of {r}")
        *outer, channels, height, width = self.shape
        split = self.reshape((*outer, channels, height // r, r, width // r, r))
        first = len(outer)
        order = (*range(first + 1), first + 2, first + 4, first + 1, first + 3)
        return split.permute(order).reshape((*outer, channels * r * r, height // r, width // r))

    def channel_shuffle(self, groups: int) -> Self:
        """The channels, seen as (groups, n), transposed to (n, groups)."""
        check_whole("channel_shuffle", "groups", groups, least=1)
        if self.ndim < 2 or self.shape[1] % groups:
            message = f"{groups} groups of shape {self.shape}"
            raise ShapeError("channel_shuffle", message, "give a number that divides the channels")
        batch, channels, *space = self.shape
        split = self.reshape((batch, groups, channels // groups, *space))
        return split.transpose(1, 2).reshape(self.shape)

    # ------------------------------------------------------------ resizing

    def interpolate(
        self,
        size: int | Sequence[int] | None = None,
        mode: str = "linear",
        align_corners: bool = False,
        scale_factor: float | Sequence[float] | None = None,
    ) -> Self:
        """The last axes resized, to a size or by a factor: "linear" (also "bilinear", "trilinear") interpolates between
        the two nearest elements of each axis, "cubic" (also "bicubic") between four, "nearest" and "nearest-exact" take
        one, "area" averages the elements that a new one covers, as an adaptive pool does. With `align_corners` the
        first and last elements keep their positions. A single factor applies to all axes after the first two. uint8 is
        rounded."""
        is_mixed = mode in (*_LINEAR, *_CUBIC)
        if not is_mixed and mode not in ("nearest", "nearest-exact", "area"):
            remedy = "give linear (bilinear, trilinear), cubic (bicubic), nearest, nearest-exact or area"
            raise ShapeError("interpolate", f"mode {mode!r}", remedy)
        if align_corners and not is_mixed:
            remedy = "leave it out, or use mode linear or cubic"
            raise ShapeError("interpolate", f"align_corners with mode {mode!r}", remedy)
        wanted, ratios = self._new_sizes(size, scale_factor)
        first = self.ndim - len(wanted)
        if 0 in self.shape[first:]:
            raise ShapeError("interpolate", f"shape {self.shape} has no elements to read", "give sizes of at least 1")
        if mode == "area":
            return self._adaptive_average("interpolate", wanted, len(wanted))
        resize = functools.partial(
            type(self)._resized, wanted=wanted, ratios=ratios, align_corners=align_corners, is_cubic=mode in _CUBIC
        )
        if is_mixed and self.dtype is dtypes.uint8:  # an image: rounded to nearest
            return resize(self.cast(dtypes.float32)).round().clamp(0, 255).cast(dtypes.uint8)
        if is_mixed:
            self._check_float("interpolate")
            return self._in_float32(resize)
        node = self.uop
        for axis, (length, ratio) in enumerate(zip(wanted, ratios), start=first):
            old, new = ratio.numerator, ratio.denominator

            def nearest(number: Any, old: int = old, new: int = new) -> Any:
                return (number * 2 + 1) * old // (2 * new) if mode == "nearest-exact" else number * old // new

            if length % new == 0 and node.shape[axis] == length // new * old and old <= MAX_SELECTED_PARTS:
                node = repeat_in_blocks(node, axis, old, [nearest(number) for number in range(new)])
            else:
                moved = nearest(build.iota(length, dtypes.int64))
                node = read_axis(node, axis, moved.minimum(node.shape[axis] - 1))
        return self._new(node)

    def _new_sizes(
        self, size: int | Sequence[int] | None, scale_factor: float | Sequence[float] | None
    ) -> tuple[Shape, list[Fraction]]:
        """The sizes of the last axes, and the old elements per new element, as exact fractions."""
        from fractions import Fraction  # imported late: loads `decimal`

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

    def _resized(self, wanted: Shape, ratios: list[Fraction], align_corners: bool, is_cubic: bool) -> Self:
        sizes, border, result = self.shape, 2 if is_cubic else 1, self
        resized = list(enumerate(zip(wanted, ratios), start=self.ndim - len(wanted)))
        phased = [axis for axis, to in resized if not align_corners and is_repeated(sizes[axis], *to)]
        # All ends are repeated first: the image is copied once.
        for axis in phased:
            result = result._new(repeat_ends(result.uop, axis, border))
        for axis, (length, ratio) in resized:
            if axis in phased:
                result = result._mixed_in_phases(axis, sizes[axis], ratio.denominator, border)
            elif align_corners or length != sizes[axis] or ratio != 1:
                result = result._mixed(axis, length, ratio, align_corners, is_cubic)
        return result

    def _mixed_in_phases(self, axis: int, size: int, factor: int, border: int) -> Self:
        """One axis of `size` elements between its repeated ends, each replaced by `factor` new ones. A phase, one of
        these, has the same weights for all elements: indices stay affine, and gradients are sums of slices."""
        phases = []
        for phase in range(factor):
            low, above = divmod(2 * phase + 1 - factor, 2 * factor)
            share = above / (2 * factor)
            weights = _cubic_weights(share) if border > 1 else {0: 1 - share, 1: share}
            starts = {border + low + step: weight for step, weight in weights.items()}
            parts = [
                self._new(nodes.slice_axis(self.uop, axis, start, start + size)) * weight
                for start, weight in starts.items()
                if weight
            ]
            phases.append(functools.reduce(operator.add, parts).uop)
        wide = [build.reshape(each, nodes.replace_axis(each.shape, axis, size, 1)) for each in phases]
        joined = nodes.cat(wide, axis + 1)
        return self._new(build.reshape(joined, nodes.replace_axis(self.shape, axis, size * factor)))

    def _mixed(self, axis: int, length: int, ratio: Fraction, align_corners: bool, is_cubic: bool) -> Self:
        """One axis at positions that are any fractions."""
        old, number = self.shape[axis], build.iota(length, dtypes.int64)
        # The position is a fraction: above / below.
        if align_corners:
            above, below = number * (old - 1), max(length - 1, 1)
        else:
            above = (number * 2 + 1) * ratio.numerator - ratio.denominator
            above = above if is_cubic else above.maximum(0)
            below = 2 * ratio.denominator
        low = above // below
        shape = tuple(length if k == axis else 1 for k in range(self.ndim))
        share = self._new(build.reshape(build.cast(above % below, self.dtype) * (1 / below), shape))
        weights = _cubic_weights(share) if is_cubic else {0: 1 - share, 1: share}
        parts = [
            self._new(read_axis(self.uop, axis, (low + step).maximum(0).minimum(old - 1))) * weight
            for step, weight in weights.items()
        ]
        return functools.reduce(operator.add, parts)

    # ------------------------------------------------------------ sampling

    def grid_sample(
        self, grid: Self, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
    ) -> Self:
        """The image sampled at a grid (batch, h, w, 2) of (x, y), where -1 and 1 are its borders. `padding_mode` is
        used for points outside: "zeros", the "border" elements, or the image's "reflection"."""
        check_devices("grid_sample", self, grid)
        if self.ndim != 4 or grid.ndim != 4 or grid.shape[-1] != 2 or grid.shape[0] != self.shape[0]:
            message = f"an image of shape {self.shape} with a grid of shape {grid.shape}"
            raise ShapeError("grid_sample", message, "give (batch, channels, h, w) and (batch, h, w, 2)")
        if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border", "reflection"):
            remedy = "give mode bilinear or nearest, and padding_mode zeros, border or reflection"
            raise ShapeError("grid_sample", f"mode {mode!r}, padding_mode {padding_mode!r}", remedy)
        self._check_float("grid_sample")
        positions = []
        for number, size in ((1, self.shape[2]), (0, self.shape[3])):
            position = grid[..., number].cast(accumulate_dtype(grid.dtype))
            position = (position + 1) * ((size - 1) / 2) if align_corners else ((position + 1) * size - 1) * 0.5
            positions.append(_inside(position, size, padding_mode, align_corners))
        read = self._at_positions(positions, padding_mode)
        if mode == "nearest":
            return cast(Self, read([position.round() for position in positions]))
        low = [position.floor() for position in positions]
        share = [(position - floor).unsqueeze(1) for position, floor in zip(positions, low)]
        result = None
        for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
            weight = math.prod(part if side else 1 - part for side, part in zip(corner, share))
            term = read([floor + side for side, floor in zip(corner, low)]) * weight
            result = term if result is None else result + term
        return cast(Self, result).cast(self.dtype)

    def _at_positions(self, positions: list[Any], padding_mode: str) -> Any:
        batch, _, height, width = self.shape
        number = self.arange(batch, device=self.device).reshape((batch, 1, 1))

        def read(at: list[Any]) -> Any:
            inside = (at[0] >= 0) & (at[0] <= height - 1) & (at[1] >= 0) & (at[1] <= width - 1)
            row, column = (inside.where(position, 0.0).detach().cast("int64") for position in at)
            picked = self.permute((0, 2, 3, 1))[number, row, column].permute((0, 3, 1, 2))
            return inside.unsqueeze(1).where(picked, 0.0)

        return read


def repeat_in_blocks(node: UOp, axis: int, old: int, chosen: list[int]) -> UOp:
    """One axis in blocks of `old` elements, each replaced by its chosen elements in order. Indices stay affine, while a
    table of indices would have to be loaded and checked."""
    blocks = build.reshape(node, nodes.replace_axis(node.shape, axis, node.shape[axis] // old, old))
    parts = []
    for number in sorted(set(chosen)):
        part = nodes.slice_axis(blocks, axis + 1, number, number + 1)
        parts.append(build.expand(part, nodes.replace_axis(part.shape, axis + 1, chosen.count(number))))
    joined = nodes.cat(parts, axis + 1)
    return build.reshape(joined, nodes.replace_axis(node.shape, axis, node.shape[axis] // old * len(chosen)))


def is_repeated(old: int, length: int, ratio: Fraction) -> bool:
    """Whether each element is replaced by the same few new ones."""
    factor = ratio.denominator
    return ratio.numerator == 1 and 1 < factor <= MAX_SELECTED_PARTS and length == old * factor


def repeat_ends(node: UOp, axis: int, count: int) -> UOp:
    """One axis with its first and last elements repeated `count` times more."""
    size = node.shape[axis]
    ends = [nodes.slice_axis(node, axis, start, start + 1) for start in (0, size - 1)]
    low, high = (build.expand(each, nodes.replace_axis(each.shape, axis, count)) for each in ends)
    return nodes.cat([low, node, high], axis)


def read_axis(node: UOp, axis: int, positions: UOp) -> UOp:
    """The elements of one axis at these indices."""
    shape = nodes.replace_axis(node.shape, axis, positions.shape[0])
    if 0 in shape:
        return build.const(node.dtype, 0, shape)
    aligned = build.reshape(positions, tuple(size if k == axis else 1 for k, size in enumerate(shape)))
    wide = build.expand(aligned, shape)
    return build.gather(node, *(wide if k == axis else build.axis_iota(shape, k) for k in range(len(shape))))


def _inside(position: Any, size: int, padding_mode: str, align_corners: bool) -> Any:
    """Positions outside clamped to the border, or reflected at it."""
    if padding_mode == "zeros":
        return position
    if padding_mode == "reflection":
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if span == 0:
            return position * 0
        distance = (position - low).abs()
        reflections = (distance / span).floor()
        rest = distance - reflections * span
        is_odd = reflections.mod(2.0).ne(0)
        position = is_odd.where(span - rest, rest) + low
    return position.clamp(0.0, float(size - 1))


def _cubic_weights(share: Any) -> dict[int, Any]:
    """The weights of the four elements around a position that is `share` after the second one, by their offset from
    that one: cubic convolution, whose weights add up to 1."""
    a = _CUBIC_SLOPE

    def near(x: Any) -> Any:  # up to a distance of 1
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:  # from 1 to 2
        return ((x - 5) * x + 8) * x * a - 4 * a

    return {-1: far(share + 1), 0: near(share), 1: near(1 - share), 2: far(2 - share)}

"""Operations on images: pixel_shuffle, grid_sample, adaptive pools, one- and three-dimensional names of convolutions.
In: (batch, channels, space...). Out: the same layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, cast

from tilewright.base.dtype import DType
from tilewright.base.errors import ShapeError
from tilewright.graph.build import Pairs
from tilewright.tensor.core.base import check_devices, check_whole
from tilewright.tensor.families.base import Family
from tilewright.tensor.primitives.reduce import accumulate_dtype

Sizes = int | Sequence[int | None] | None


class ImagesMixin(Family):
    """pixel_shuffle, grid_sample, adaptive_avg_pool2d, conv1d, max_pool1d, ..."""

    # ------------------------------------------------------------ space and channels

    def pixel_shuffle(self, upscale_factor: int) -> Self:
        """Channels become space: (..., c*r*r, h, w) to (..., c, h*r, w*r)."""
        check_whole("pixel_shuffle", "upscale_factor", upscale_factor, least=1)
        r = upscale_factor
        if self.ndim < 3 or self.shape[-3] % (r * r):
            message = f"shape {self.shape} with a factor of {r}"
            raise ShapeError("pixel_shuffle", message, f"give (..., channels, h, w) with channels that {r * r} divides")
        *outer, channels, height, width = self.shape
        split = self.reshape((*outer, channels // (r * r), r, r, height, width))
        first = len(outer)
        order = (*range(first + 1), first + 3, first + 1, first + 4, first + 2)
        return split.permute(order).reshape((*outer, channels // (r * r), height * r, width * r))

    def pixel_unshuffle(self, downscale_factor: int) -> Self:
        """Space becomes channels: (..., c, h*r, w*r) to (..., c*r*r, h, w)."""
        check_whole("pixel_unshuffle", "downscale_factor", downscale_factor, least=1)
        r = downscale_factor
        if self.ndim < 3 or self.shape[-1] % r or self.shape[-2] % r:
            message = f"shape {self.shape} with a factor of {r}"
            raise ShapeError("pixel_unshuffle", message, f"give (..., channels, h, w) with h and w that {r} divides")
        *outer, channels, height, width = self.shape
        split = self.reshape((*outer, channels, height // r, r, width // r, r))
        first = len(outer)
        order = (*range(first + 1), first + 2, first + 4, first + 1, first + 3)
        return split.permute(order).reshape((*outer, channels * r * r, height // r, width // r))

    def channel_shuffle(self, groups: int) -> Self:
        """Channels in groups, read across the groups."""
        check_whole("channel_shuffle", "groups", groups, least=1)
        if self.ndim < 2 or self.shape[1] % groups:
            message = f"{groups} groups of shape {self.shape}"
            raise ShapeError("channel_shuffle", message, "give a number that divides the channels")
        batch, channels, *space = self.shape
        split = self.reshape((batch, groups, channels // groups, *space))
        return split.transpose(1, 2).reshape(self.shape)

    # ------------------------------------------------------------ pools with a given result

    def _adaptive_sizes(self, name: str, output_size: Sizes, count: int) -> tuple[int, ...]:
        given = output_size if isinstance(output_size, tuple | list) else (output_size,) * count
        if len(given) != count or self.ndim not in (count + 1, count + 2):
            message = f"output_size {output_size} for shape {self.shape}"
            raise ShapeError(
                name, message, f"give {count} sizes, and (batch, channels, ...) with {count} axes of space"
            )
        check_whole(name, "output_size", *(size for size in given if size is not None), least=1)
        sizes = tuple(own if size is None else int(size) for size, own in zip(given, self.shape[-count:]))
        if 0 in self.shape[-count:]:
            raise ShapeError(name, f"shape {self.shape} has no elements to read", "give axes of at least one element")
        return sizes

    def _adaptive_average(self, name: str, output_size: Sizes, count: int) -> Self:
        """Along each axis in turn: window k reaches from floor(k*n/m) to ceil((k+1)*n/m), its mean is a product with a
        matrix of weights."""
        self._check_float(name)
        sizes = self._adaptive_sizes(name, output_size, count)
        result = self.cast(accumulate_dtype(self.dtype))
        for axis, wanted in zip(range(self.ndim - count, self.ndim), sizes):
            own = self.shape[axis]
            if own % wanted == 0:
                shape = (*result.shape[:axis], wanted, own // wanted, *result.shape[axis + 1 :])
                result = result.reshape(shape).mean(axis + 1)
            else:
                weights = result._tensor(_window_weights(own, wanted, result.dtype))
                result = result.transpose(axis, -1).matmul(weights).transpose(axis, -1)
        return result.cast(self.dtype)

    def adaptive_avg_pool1d(self, output_size: Sizes) -> Self:
        """The means of windows that give a row of this size."""
        return self._adaptive_average("adaptive_avg_pool1d", output_size, 1)

    def adaptive_avg_pool2d(self, output_size: Sizes) -> Self:
        """The means of windows that give an image of this size."""
        return self._adaptive_average("adaptive_avg_pool2d", output_size, 2)

    def adaptive_avg_pool3d(self, output_size: Sizes) -> Self:
        """The means of windows that give a volume of this size."""
        return self._adaptive_average("adaptive_avg_pool3d", output_size, 3)

    def _adaptive_maximum(self, name: str, output_size: Sizes, count: int) -> Self:
        """Along each axis in turn: the windows, all as long as the longest, are read by their places."""
        result = self
        sizes = self._adaptive_sizes(name, output_size, count)
        for axis, wanted in zip(range(self.ndim - count, self.ndim), sizes):
            own = self.shape[axis]
            spans = _spans(own, wanted)
            longest = max(end - start for start, end in spans)
            # A place past the end of its window is its last place once more.
            places = [[min(start + k, end - 1) for k in range(longest)] for start, end in spans]
            result = result[(*(slice(None),) * axis, self._tensor(places))].max(axis + 1)
        return result

    def adaptive_max_pool1d(self, output_size: Sizes) -> Self:
        """The greatest elements of windows that give a row of this size."""
        return self._adaptive_maximum("adaptive_max_pool1d", output_size, 1)

    def adaptive_max_pool2d(self, output_size: Sizes) -> Self:
        """The greatest elements of windows that give an image of this size."""
        return self._adaptive_maximum("adaptive_max_pool2d", output_size, 2)

    def adaptive_max_pool3d(self, output_size: Sizes) -> Self:
        """The greatest elements of windows that give a volume of this size."""
        return self._adaptive_maximum("adaptive_max_pool3d", output_size, 3)

    # ------------------------------------------------------------ sampling

    def grid_sample(
        self, grid: Self, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
    ) -> Self:
        """The image read at the places of a grid (batch, h, w, 2) of (x, y), where -1 and 1 are its borders.
        `padding_mode` says what lies outside: "zeros", the "border" elements, or the image's "reflection"."""
        check_devices("grid_sample", self, grid)
        if self.ndim != 4 or grid.ndim != 4 or grid.shape[-1] != 2 or grid.shape[0] != self.shape[0]:
            message = f"an image of shape {self.shape} with a grid of shape {grid.shape}"
            raise ShapeError("grid_sample", message, "give (batch, channels, h, w) and (batch, h, w, 2)")
        if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border", "reflection"):
            remedy = "give mode bilinear or nearest, and padding_mode zeros, border or reflection"
            raise ShapeError("grid_sample", f"mode {mode!r}, padding_mode {padding_mode!r}", remedy)
        self._check_float("grid_sample")
        places = []
        for number, size in ((1, self.shape[2]), (0, self.shape[3])):
            place = grid[..., number].cast(accumulate_dtype(grid.dtype))
            place = (place + 1) * ((size - 1) / 2) if align_corners else ((place + 1) * size - 1) * 0.5
            places.append(_inside(place, size, padding_mode, align_corners))
        read = self._at_places(places, padding_mode)
        if mode == "nearest":
            return cast(Self, read([place.round() for place in places]))
        low = [place.floor() for place in places]
        share = [(place - floor).unsqueeze(1) for place, floor in zip(places, low)]
        result = None
        for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
            weight = math.prod(part if side else 1 - part for side, part in zip(corner, share))
            term = read([floor + side for side, floor in zip(corner, low)]) * weight
            result = term if result is None else result + term
        return cast(Self, result).cast(self.dtype)

    def _at_places(self, places: list[Any], padding_mode: str) -> Any:
        batch, _, height, width = self.shape
        number = self.arange(batch, device=self.device).reshape((batch, 1, 1))

        def read(at: list[Any]) -> Any:
            inside = (at[0] >= 0) & (at[0] <= height - 1) & (at[1] >= 0) & (at[1] <= width - 1)
            row, column = (inside.where(place, 0.0).detach().cast("int64") for place in at)
            picked = self.permute((0, 2, 3, 1))[number, row, column].permute((0, 3, 1, 2))
            return inside.unsqueeze(1).where(picked, 0.0)

        return read

    # ------------------------------------------------------------ names by dimension

    def conv1d(
        self,
        weight: Self,
        bias: Self | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Self:
        """As `conv2d`, on (batch, channels, length)."""
        return self.conv2d(weight, bias, groups, stride, dilation, padding)

    def conv3d(
        self,
        weight: Self,
        bias: Self | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Self:
        """As `conv2d`, on (batch, channels, depth, height, width)."""
        return self.conv2d(weight, bias, groups, stride, dilation, padding)

    def max_pool1d(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Self:
        """As `max_pool2d`, on (batch, channels, length)."""
        return cast(Self, self.max_pool2d(_tuple_of(kernel_size, 1), stride, dilation, padding, ceil_mode))

    def max_pool3d(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Self:
        """As `max_pool2d`, on (batch, channels, depth, height, width)."""
        return cast(Self, self.max_pool2d(_tuple_of(kernel_size, 3), stride, dilation, padding, ceil_mode))

    def avg_pool1d(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """As `avg_pool2d`, on (batch, channels, length)."""
        return self.avg_pool2d(_tuple_of(kernel_size, 1), stride, 1, padding, ceil_mode, count_include_pad)

    def avg_pool3d(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """As `avg_pool2d`, on (batch, channels, depth, height, width)."""
        return self.avg_pool2d(_tuple_of(kernel_size, 3), stride, 1, padding, ceil_mode, count_include_pad)


# ---------------------------------------------------------------- pieces


def _tuple_of(value: Any, count: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * count


def _spans(own: int, wanted: int) -> Pairs:
    """Where each window starts and ends."""
    return tuple((k * own // wanted, -(-(k + 1) * own // wanted)) for k in range(wanted))


def _window_weights(own: int, wanted: int, dtype: DType) -> Any:
    """For each element its weight in each window."""
    import numpy as np

    spans = _spans(own, wanted)
    rows = [[1 / (end - start) if start <= k < end else 0.0 for start, end in spans] for k in range(own)]
    return np.array(rows, dtype.name)


def _inside(place: Any, size: int, padding_mode: str, align_corners: bool) -> Any:
    """Places outside moved to the border, or mirrored there."""
    if padding_mode == "zeros":
        return place
    if padding_mode == "reflection":
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if span == 0:
            return place * 0
        distance = (place - low).abs()
        turns = (distance / span).floor()
        rest = distance - turns * span
        is_odd = turns.mod(2.0).ne(0)
        place = is_odd.where(span - rest, rest) + low
    return place.clamp(0.0, float(size - 1))

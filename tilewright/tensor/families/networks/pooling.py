"""Pooling. In: tensors whose last axes are space. Out: the maximum or the mean of each window. A window's maximum is
selected by the first position that has it, so that its gradient goes to one element as in torch; a max reduction would
share the gradient among equal elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self, cast

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import larger_size, smaller_size
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.core.checks import check_whole
from tilewright.tensor.families.linalg.products import ProductsMixin
from tilewright.tensor.families.networks.window_maxima import (
    choose_among_slices,
    choose_in_windows,
    position_in_space,
)
from tilewright.tensor.families.networks.windows import Pads, Sizes, Windows, check_windows, pads_of, sizes_of
from tilewright.tensor.families.scatter import ScatterMixin
from tilewright.tensor.primitives.reduce import accumulate_dtype

AdaptiveSizes = int | Sequence[int | None] | None
# Windows of more elements than this are reduced by loops, smaller ones compared element by element. Windows that do not
# overlap gain nothing from loops over them: their elements are read at a stride either way.
_MAX_SLICES = 16
_MAX_SEPARATE_SLICES = 32


class PoolingMixin(ScatterMixin, ProductsMixin):
    """max_pool2d, avg_pool2d, max_unpool2d, adaptive_avg_pool2d, ..."""

    def _pooled(
        self, name: str, kernel_size: Sizes, stride: Sizes | None, dilation: Sizes, padding: Sizes, ceil_mode: bool
    ) -> Windows:
        """Kernel, stride, dilation and padding of every axis; `ceil_mode` adds padding at the end for a last window."""
        count = len(kernel_size) if isinstance(kernel_size, tuple | list) else 2
        kernel = sizes_of(name, "kernel_size", kernel_size, count)
        if self.ndim < count:
            message = f"shape {self.shape} has fewer than {count} axes"
            raise ShapeError(name, message, "give (batch, channels, height, width)")
        steps = kernel if stride is None else sizes_of(name, "stride", stride, count)
        gaps = sizes_of(name, "dilation", dilation, count)
        pads = list(pads_of(name, padding, count))
        sizes = self.shape[self.ndim - count :]
        for axis, (size, k, s, d) in enumerate(zip(sizes, kernel, steps, gaps)):
            before, after = pads[axis]
            if max(before, after) > (d * (k - 1) + 1) // 2:
                message = f"padding {(before, after)} around windows of {d * (k - 1) + 1}"
                raise ShapeError(name, message, "pad by at most half of the window")
            if ceil_mode:
                rest = before + size + after - d * (k - 1) - 1
                # A window that would start in the padding at the end is left out.
                windows = smaller_size(-(-rest // s) + 1, -(-(before + size) // s))
                after += larger_size(0, (windows - 1) * s + d * (k - 1) + 1 - (before + size + after))
                pads[axis] = (before, after)
            check_windows(name, (before + size + after,), (k,), (d,))
        return Windows(kernel, steps, gaps, ((0, 0),) * (self.ndim - count) + tuple(pads))

    def max_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Self | tuple[Self, Self]:
        """The maximum of each window over the last axes; with indices, also its flat position in space."""
        windows = self._pooled("max_pool2d", kernel_size, stride, dilation, padding, ceil_mode)
        is_separate = all(step >= size for step, size in zip(windows.steps, windows.kernel))
        most = _MAX_SEPARATE_SLICES if is_separate else _MAX_SLICES
        if math.prod(windows.kernel) <= most:
            # Threads of a GPU write a whole window; vectors of a CPU would store each comparison.
            is_compared = isinstance(self.device, str) and open_driver(self.device).target.has_local
            value, first = choose_among_slices(self.uop, windows, self.requires_grad, is_compared)
        else:
            value, first = choose_in_windows(self.uop, windows, self.requires_grad)
        result = self._new(value)
        if not return_indices:
            return result
        return result, self._new(position_in_space(first, self.shape, windows))

    def avg_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """The mean of each window over the last axes; padding is counted unless `count_include_pad` is False."""
        self._check_float("avg_pool2d")
        kernel, steps, gaps, pads = self._pooled("avg_pool2d", kernel_size, stride, dilation, padding, ceil_mode)
        axes = tuple(range(-len(kernel), 0))

        def windows(node: UOp, around: Pads) -> UOp:
            return nodes.pool(build.pad(node, around), kernel, steps, gaps)

        carrier = accumulate_dtype(self.dtype)
        total = self._new(windows(self.uop, pads)).sum(axes, dtype=carrier)
        asked = ((0, 0),) * (self.ndim - len(kernel)) + pads_of("avg_pool2d", padding, len(kernel))
        if count_include_pad and asked == pads:
            return (total / math.prod(kernel)).cast(self.dtype)
        # Padding added by ceil_mode is never counted; the user's padding is counted where count_include_pad is set.
        counted = asked if count_include_pad else ((0, 0),) * self.ndim
        shape = tuple(size + before + after for size, (before, after) in zip(self.shape, counted))
        outside = tuple((b - inner_b, a - inner_a) for (b, a), (inner_b, inner_a) in zip(pads, counted))
        ones = self._new(windows(build.const(carrier, 1, shape), outside)).sum(axes)
        return (total / ones).cast(self.dtype)

    def max_unpool2d(
        self,
        indices: Self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        output_size: Shape | None = None,
    ) -> Self:
        """Puts each element at the position where `max_pool2d` found it, with zeros elsewhere. Without `output_size`,
        the space is the smallest that gives as many windows."""
        check_devices("max_unpool2d", self, indices)
        if indices.shape != self.shape:
            message = f"indices of shape {indices.shape} for a tensor of shape {self.shape}"
            raise ShapeError("max_unpool2d", message, "give the indices that max_pool2d returned with this tensor")
        if not indices.dtype.is_int:
            raise DTypeError("max_unpool2d", f"indices of dtype {indices.dtype.name}", "give integers")
        count = len(kernel_size) if isinstance(kernel_size, tuple | list) else 2
        if self.ndim < count:
            message = f"shape {self.shape} has fewer than {count} axes"
            raise ShapeError("max_unpool2d", message, "give (batch, channels, height, width)")
        kernel = sizes_of("max_unpool2d", "kernel_size", kernel_size, count)
        steps = kernel if stride is None else sizes_of("max_unpool2d", "stride", stride, count)
        gaps = sizes_of("max_unpool2d", "dilation", dilation, count)
        pads = pads_of("max_unpool2d", padding, count)
        outer = self.shape[: self.ndim - count]
        if output_size is None:
            sizes = zip(self.shape[self.ndim - count :], kernel, steps, gaps, pads)
            space = tuple((n - 1) * s + d * (k - 1) + 1 - before - after for n, k, s, d, (before, after) in sizes)
        else:
            space = tuple(output_size)[-count:]
        flat = self.reshape(*outer, math.prod(self.shape[self.ndim - count :]))
        flat_indices = indices.reshape(flat.shape)
        target = self.zeros(*outer, math.prod(space), dtype=self.dtype, device=self.device)
        return target.scatter(-1, flat_indices, flat).reshape(*outer, *space)

    # ------------------------------------------------------------ variants by dimension

    def max_pool1d(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Self:
        """As `max_pool2d`, on (batch, channels, length)."""
        kernel = sizes_of("max_pool1d", "kernel_size", kernel_size, 1)
        return cast(Self, self.max_pool2d(kernel, stride, dilation, padding, ceil_mode))

    def max_pool3d(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Self:
        """As `max_pool2d`, on (batch, channels, depth, height, width)."""
        kernel = sizes_of("max_pool3d", "kernel_size", kernel_size, 3)
        return cast(Self, self.max_pool2d(kernel, stride, dilation, padding, ceil_mode))

    def avg_pool1d(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """As `avg_pool2d`, on (batch, channels, length)."""
        kernel = sizes_of("avg_pool1d", "kernel_size", kernel_size, 1)
        return self.avg_pool2d(kernel, stride, 1, padding, ceil_mode, count_include_pad)

    def avg_pool3d(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """As `avg_pool2d`, on (batch, channels, depth, height, width)."""
        kernel = sizes_of("avg_pool3d", "kernel_size", kernel_size, 3)
        return self.avg_pool2d(kernel, stride, 1, padding, ceil_mode, count_include_pad)

    # ------------------------------------------------------------ adaptive pooling

    def _adaptive_sizes(self, name: str, output_size: AdaptiveSizes, count: int) -> tuple[int, ...]:
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

    def _adaptive_average(self, name: str, output_size: AdaptiveSizes, count: int) -> Self:
        """Window k spans floor(k*n/m) to ceil((k+1)*n/m). Axes whose windows do not overlap are averaged at once, along
        the others the mean is a product with a matrix of weights."""
        self._check_float(name)
        sizes = self._adaptive_sizes(name, output_size, count)
        result = self.cast(accumulate_dtype(self.dtype))
        first = self.ndim - count
        shape, inner = list(self.shape[:first]), []
        for own, wanted in zip(self.shape[first:], sizes):
            is_even = own % wanted == 0
            inner += [len(shape) + 1] if is_even and own > wanted else []
            shape += [wanted, own // wanted] if is_even and own > wanted else [own]
        result = result.reshape(tuple(shape)).mean(tuple(inner)) if inner else result
        for axis, wanted in enumerate(sizes, first):
            own = result.shape[axis]
            if own != wanted:
                weights = result._new(_window_weights(own, wanted, result.dtype))
                before, after = result.shape[:axis], result.shape[axis + 1 :]
                # The axes after this one are the columns of the product, which are read in the order of memory.
                rows = result.reshape(*before, own, math.prod(after)) if after else result
                result = weights.T.matmul(rows) if after else result.matmul(weights)
                result = result.reshape(*before, wanted, *after)
        return result.cast(self.dtype)

    def adaptive_avg_pool1d(self, output_size: AdaptiveSizes) -> Self:
        """Averages over windows chosen for a result of this size, over one axis."""
        return self._adaptive_average("adaptive_avg_pool1d", output_size, 1)

    def adaptive_avg_pool2d(self, output_size: AdaptiveSizes) -> Self:
        """Averages over windows chosen for a result of this size, over two axes."""
        return self._adaptive_average("adaptive_avg_pool2d", output_size, 2)

    def adaptive_avg_pool3d(self, output_size: AdaptiveSizes) -> Self:
        """Averages over windows chosen for a result of this size, over three axes."""
        return self._adaptive_average("adaptive_avg_pool3d", output_size, 3)

    def _adaptive_maximum(self, name: str, output_size: AdaptiveSizes, count: int) -> Self:
        """Along each axis in turn: the windows, all of the maximum length, are read by index."""
        result = self
        sizes = self._adaptive_sizes(name, output_size, count)
        for axis, wanted in zip(range(self.ndim - count, self.ndim), sizes):
            own = self.shape[axis]
            # Over all windows, k * own modulo `wanted` takes every multiple of their common divisor.
            divisor = math.gcd(own, wanted)
            longest = (own + 2 * (wanted - divisor)) // wanted
            start, end = _window_ends((wanted, longest), 0, own)
            # An index past the end of its window repeats the last index.
            counted = build.cast(build.axis_iota((wanted, longest), 1), start.dtype)
            indices = self._new((start + counted).minimum(end - 1))
            result = result[(*(slice(None),) * axis, indices)].max(axis + 1)
        return result

    def adaptive_max_pool1d(self, output_size: AdaptiveSizes) -> Self:
        """Maxima over windows chosen for a result of this size, over one axis."""
        return self._adaptive_maximum("adaptive_max_pool1d", output_size, 1)

    def adaptive_max_pool2d(self, output_size: AdaptiveSizes) -> Self:
        """Maxima over windows chosen for a result of this size, over two axes."""
        return self._adaptive_maximum("adaptive_max_pool2d", output_size, 2)

    def adaptive_max_pool3d(self, output_size: AdaptiveSizes) -> Self:
        """Maxima over windows chosen for a result of this size, over three axes."""
        return self._adaptive_maximum("adaptive_max_pool3d", output_size, 3)


def _window_ends(shape: Shape, axis: int, own: int) -> tuple[UOp, UOp]:
    """The start and end of each window, with the windows along an axis of `shape`. They are computed on the device: a
    jitted function would copy host data again at every call."""
    window = build.axis_iota(shape, axis)
    if (own + 1) * shape[axis] > dtypes.int32.max:
        window = build.cast(window, dtypes.int64)
    return window * own // shape[axis], ((window + 1) * own + (shape[axis] - 1)) // shape[axis]


def _window_weights(own: int, wanted: int, dtype: DType) -> UOp:
    """The weight of each element in each window, stored, since a product reads it many times."""
    start, end = _window_ends((own, wanted), 1, own)
    number = build.axis_iota((own, wanted), 0)
    number = build.cast(number, start.dtype)
    inside = build.alu(Ops.AND, build.alu(Ops.CMPLT, start - 1, number), build.alu(Ops.CMPLT, number, end))
    mean = build.const(dtype, 1.0, inside.shape) / build.cast(end - start, dtype)
    return build.contiguous(build.where(inside, mean, mean.const_like(0.0)))

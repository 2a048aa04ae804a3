"""Pooling. In: tensors whose last axes are space. Out: the greatest element or the mean of each window.
A window's maximum is chosen by its place, the first one that holds it, so its gradient goes to one element as in torch;
a reduction to the maximum would share the gradient among equal elements."""

from __future__ import annotations

import math
from typing import Self

from tilewright.base.dtype import dtypes
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.tensor import nodes
from tilewright.tensor.core import check_devices
from tilewright.tensor.linalg import Sizes, pads_of, sizes_of
from tilewright.tensor.reduce import accumulate_dtype
from tilewright.tensor.sorting import SortingMixin

Pads = tuple[tuple[int, int], ...]


class PoolingMixin(SortingMixin):
    """max_pool2d, avg_pool2d, max_unpool2d."""

    def _pooled(
        self, name: str, kernel_size: Sizes, stride: Sizes | None, dilation: Sizes, padding: Sizes, ceil_mode: bool
    ) -> tuple[Shape, Shape, Shape, Pads]:
        """Kernel, stride, dilation and padding of every axis; `ceil_mode` adds padding behind for a last window."""
        count = 2 if isinstance(kernel_size, int) else len(kernel_size)
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
            self._check_windows(name, (before + size + after,), (k,), (d,))
            if ceil_mode:
                rest = before + size + after - d * (k - 1) - 1
                windows = -(-rest // s) + 1
                # A window that would start in the padding behind is left out.
                windows -= (windows - 1) * s >= before + size
                after += max(0, (windows - 1) * s + d * (k - 1) + 1 - (before + size + after))
                pads[axis] = (before, after)
        return kernel, steps, gaps, tuple(((0, 0),) * (self.ndim - count)) + tuple(pads)

    def max_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Self | tuple[Self, Self]:
        """The greatest element of each window over the last axes; with indices, where it stands in the flat space."""
        kernel, steps, gaps, pads = self._pooled("max_pool2d", kernel_size, stride, dilation, padding, ceil_mode)
        windows = nodes.pool(nodes.pad_with(self.uop, pads, self.dtype.min), kernel, steps, gaps)
        axes = tuple(range(self.ndim, self.ndim + len(kernel)))
        best = build.reduce_axis(Ops.MAX, windows, axes)
        value = best
        if self.dtype.is_float or return_indices:
            outside = None
            if any(before or after for before, after in pads):
                inside = build.pad(build.const(dtypes.bool, True, self.shape), pads)
                outside = build.alu(Ops.XOR, nodes.pool(inside, kernel, steps, gaps), build.const(dtypes.bool, True))
            number = window_number(windows.shape, axes)
            first = first_of_equal(windows, best, number, axes, outside)
        if self.dtype.is_float:
            is_first = build.alu(Ops.CMPEQ, number, build.expand(first, windows.shape))
            chosen = build.where(is_first, windows, build.const(self.dtype, 0))
            value = build.reduce_axis(Ops.ADD, chosen, axes)
            if outside is not None:
                nowhere = build.alu(Ops.CMPEQ, first, build.const(first.dtype, math.prod(kernel)))
                value = build.where(nowhere, build.const(self.dtype, self.dtype.min), value)
        result = self._new(build.reshape(value, value.shape[: self.ndim]))
        if not return_indices:
            return result
        place = place_in_space(build.reshape(first, result.shape), self.shape, kernel, steps, gaps, pads)
        return result, result._new(place).detach()

    def avg_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """The mean of each window over the last axes; padding counts unless told otherwise."""
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
        # The padding that ceil_mode adds never counts; the padding asked for counts where count_include_pad says so.
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
        """Puts each element where `max_pool2d` found it, zeros elsewhere. Without `output_size`, the space is the
        smallest that the windows come from."""
        check_devices("max_unpool2d", self, indices)
        if indices.shape != self.shape:
            message = f"indices of shape {indices.shape} for a tensor of shape {self.shape}"
            raise ShapeError("max_unpool2d", message, "give the indices that max_pool2d returned with this tensor")
        if not indices.dtype.is_int:
            raise DTypeError("max_unpool2d", f"indices of dtype {indices.dtype.name}", "give integers")
        count = 2 if isinstance(kernel_size, int) else len(kernel_size)
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
        places = indices.reshape(flat.shape)
        target = self.zeros(*outer, math.prod(space), dtype=self.dtype, device=self.device)
        return target.scatter(-1, places, flat).reshape(*outer, *space)


# ---------------------------------------------------------------- windows as numbers


def window_number(shape: Shape, axes: tuple[int, ...]) -> UOp:
    """For each element of windows, its number within the window."""
    number = build.const(dtypes.int32, 0, shape)
    for axis in axes:
        size = build.const(dtypes.int32, shape[axis])
        number = build.alu(Ops.ADD, build.alu(Ops.MUL, number, size), build.axis_iota(shape, axis))
    return number


def first_of_equal(windows: UOp, best: UOp, number: UOp, axes: tuple[int, ...], outside: UOp | None) -> UOp:
    """The number of the first element of each window that is its best, padding left out; the window's size if none."""
    is_best = build.alu(Ops.CMPEQ, windows, build.expand(best, windows.shape))
    if windows.dtype.is_float:
        is_best = build.alu(Ops.OR, is_best, build.alu(Ops.CMPNE, windows, windows))
    none = build.const(number.dtype, math.prod(windows.shape[axis] for axis in axes))
    offered = build.where(is_best, number, none)
    if outside is not None:
        offered = build.where(outside, none, offered)
    return build.reduce_axis(Ops.MIN, offered, axes)


def place_in_space(first: UOp, shape: Shape, kernel: Shape, steps: Shape, gaps: Shape, pads: Pads) -> UOp:
    """The flat position in the input's space of an element that is known by its number within its window."""
    outer = len(shape) - len(kernel)
    place = build.const(dtypes.int64, 0, first.shape)
    rest = math.prod(kernel)
    for axis, (size, step, gap) in enumerate(zip(kernel, steps, gaps)):
        rest //= size
        within = build.alu(Ops.MOD, build.alu(Ops.IDIV, first, build.const(first.dtype, rest)), first.const_like(size))
        output = build.axis_iota(first.shape, outer + axis)
        moved = build.alu(Ops.ADD, output * step, within * gap) - pads[outer + axis][0]
        place = place * shape[outer + axis] + build.cast(moved, dtypes.int64)
    return place

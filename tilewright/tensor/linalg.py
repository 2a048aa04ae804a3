"""Products of matrices, convolution and pooling. In: tensors. Out: tensors.
All are movement, a multiplication and one reduction, so the scheduler sees nothing but loops: a matrix product is a sum
over the last axis of two expanded views, a convolution a sum over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tilewright.base.dtype import DType, dtypes, promote, to_dtype
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.tensor import nodes
from tilewright.tensor.core import broadcast_shape, check_devices
from tilewright.tensor.random import RandomMixin
from tilewright.tensor.reduce import accumulate_dtype

Sizes = int | Sequence[int]


def sizes_of(operation: str, name: str, value: Sizes, count: int, least: int = 1) -> Shape:
    """One number for every axis."""
    sizes = (value,) * count if isinstance(value, int) else tuple(value)
    if len(sizes) != count or any(size < least for size in sizes):
        message = f"{name}={value!r} for {count} axes"
        raise ShapeError(operation, message, f"give one number or {count}, each at least {least}")
    return sizes


def pads_of(operation: str, padding: Sizes, count: int) -> tuple[tuple[int, int], ...]:
    """(before, after) of every axis, from one number, a number for each axis, or torch's flat pairs."""
    if not isinstance(padding, int) and len(padding) == 2 * count and count > 0:
        return tuple(reversed([(padding[k], padding[k + 1]) for k in range(0, 2 * count, 2)]))
    return tuple((size, size) for size in sizes_of(operation, "padding", padding, count, least=0))


def multiply_and_sum(left: UOp, right: UOp, axes: Sequence[int], dtype: DType, carrier: DType) -> UOp:
    """sum(left * right) over axes; factors are widened first, so that products are not rounded to a short float."""
    product = build.alu(Ops.MUL, build.cast(left, carrier), build.cast(right, carrier))
    return build.cast(build.reduce_axis(Ops.ADD, product, axes), dtype)


class LinalgMixin(RandomMixin):
    """matmul, conv2d, pooling, attention."""

    # ------------------------------------------------------------ products

    def _product_dtypes(self, name: str, other: Self, dtype: DType | str | None) -> tuple[DType, DType]:
        """The dtype of the result and the one the sum is carried in."""
        wanted = promote(self.dtype, other.dtype) if dtype is None else to_dtype(dtype)
        if wanted.is_bool:
            raise DTypeError(name, "products of bool matrices are not defined", "cast to an integer or float first")
        return wanted, accumulate_dtype(wanted)

    def dot(self, w: Self, dtype: DType | str | None = None) -> Self:
        """The matrix product: the last axis of this tensor with the last but one of `w` (or its only one), batches
        broadcast. A short float is carried in float32."""
        check_devices("matmul", self, w)
        if self.ndim == 0 or w.ndim == 0:
            message = f"shapes {self.shape} and {w.shape}: a 0-d tensor has no axis to sum over"
            raise ShapeError("matmul", message, "use * for a product with a number")
        result, carrier = self._product_dtypes("matmul", w, dtype)
        left = self.uop if self.ndim > 1 else build.reshape(self.uop, (1, *self.shape))
        right = w.uop if w.ndim > 1 else build.reshape(w.uop, (*w.shape, 1))
        if left.shape[-1] != right.shape[-2]:
            message = f"shapes {self.shape} and {w.shape}: {left.shape[-1]} columns meet {right.shape[-2]} rows"
            raise ShapeError("matmul", message, "make the last axis of the first equal the last but one of the second")
        batch = broadcast_shape("matmul", left.shape[:-2], right.shape[:-2])
        rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        count = len(right.shape)
        right = build.permute(right, (*range(count - 2), count - 1, count - 2))
        full = (*batch, rows, columns, inner)
        wide_left = build.broadcast_to(build.reshape(left, (*left.shape[:-1], 1, inner)), full)
        wide_right = build.broadcast_to(build.reshape(right, (*right.shape[:-2], 1, columns, inner)), full)
        node = multiply_and_sum(wide_left, wide_right, (len(full) - 1,), result, carrier)
        kept = (*batch, *((rows,) if self.ndim > 1 else ()), *((columns,) if w.ndim > 1 else ()))
        return self._new(build.reshape(node, kept), w)

    def matmul(self, x: Self, reverse: bool = False, dtype: DType | str | None = None) -> Self:
        """`self @ x`, or `x @ self`."""
        return x.dot(self, dtype) if reverse else self.dot(x, dtype)

    def __matmul__(self, x: Any) -> Self:
        return self.dot(self._matrix(x))

    def __rmatmul__(self, x: Any) -> Self:
        return self._matrix(x).dot(self)

    def __imatmul__(self, x: Any) -> Self:
        return self._in_place("@=", self.dot(self._matrix(x)))

    def _matrix(self, x: Any) -> Self:
        operand = self._operand("matmul", x)
        return operand if isinstance(operand, LinalgMixin) else self._tensor(operand)

    def linear(self, weight: Self, bias: Self | None = None, dtype: DType | str | None = None) -> Self:
        """x @ weight + bias (weight as (in, out)); a 1-D weight scales."""
        if dtype is not None:
            wanted = to_dtype(dtype)
            return self.cast(wanted).linear(weight.cast(wanted), None if bias is None else bias.cast(wanted))
        product = self * weight if weight.ndim == 1 else self.dot(weight)
        return product if bias is None else product + bias

    # ------------------------------------------------------------ convolution

    def conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        dtype: DType | str | None = None,
    ) -> Self:
        """(batch, channels, *space) with weight (out, channels/groups, *kernel), over any number of space axes."""
        check_devices("conv2d", self, weight, *(() if bias is None else (bias,)))
        space = weight.ndim - 2
        if space < 1 or self.ndim != weight.ndim:
            message = f"input {self.shape} and weight {weight.shape} have different numbers of axes"
            raise ShapeError("conv2d", message, "give (batch, channels, height, width) and (out, in, height, width)")
        outputs, inputs, *kernel = weight.shape
        if groups < 1 or outputs % groups or self.shape[1] != inputs * groups:
            message = f"input {self.shape}, weight {weight.shape}, groups {groups}: channels do not fit"
            raise ShapeError("conv2d", message, f"the input needs {inputs * groups} channels, {groups} divides both")
        steps = sizes_of("conv2d", "stride", stride, space)
        gaps = sizes_of("conv2d", "dilation", dilation, space)
        result, carrier = self._product_dtypes("conv2d", weight, dtype)
        padded = build.pad(self.uop, ((0, 0), (0, 0), *pads_of("conv2d", padding, space)))
        self._check_windows("conv2d", padded.shape[2:], tuple(kernel), gaps)
        windows = nodes.pool(padded, tuple(kernel), steps, gaps)
        batch, size = self.shape[0], windows.shape[2 : 2 + space]
        # (batch, groups, out/groups, *size, channels, *kernel): the axes to sum over stand last.
        full = (batch, groups, outputs // groups, *size, inputs, *kernel)
        grouped = build.reshape(windows, (batch, groups, inputs, *size, *kernel))
        order = (0, 1, *range(3, 3 + space), 2, *range(3 + space, 3 + 2 * space))
        left = build.reshape(build.permute(grouped, order), (batch, groups, 1, *size, inputs, *kernel))
        right = build.reshape(weight.uop, (1, groups, outputs // groups, *(1,) * space, inputs, *kernel))
        summed = range(3 + space, 4 + 2 * space)
        node = multiply_and_sum(build.expand(left, full), build.expand(right, full), summed, result, carrier)
        product = self._new(build.reshape(node, (batch, outputs, *size)), weight)
        if bias is None:
            return product
        if bias.shape != (outputs,):
            raise ShapeError("conv2d", f"bias {bias.shape} for {outputs} outputs", f"give a bias of shape ({outputs},)")
        return product + bias.reshape(1, outputs, *(1,) * space)

    @staticmethod
    def _check_windows(name: str, sizes: Shape, kernel: Shape, dilation: Shape) -> None:
        for size, length, gap in zip(sizes, kernel, dilation):
            if size < gap * (length - 1) + 1:
                message = f"a kernel of {gap * (length - 1) + 1} is larger than the padded input of {size}"
                raise ShapeError(name, message, "use a smaller kernel or dilation, or more padding")

    # ------------------------------------------------------------ pooling

    def _pooled(
        self, name: str, kernel_size: Sizes, stride: Sizes | None, dilation: Sizes, padding: Sizes, ceil_mode: bool
    ) -> tuple[Shape, Shape, Shape, tuple[tuple[int, int], ...]]:
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
        count = len(kernel)
        padded = nodes.pad_with(self.uop, pads, self.dtype.min)
        windows = nodes.pool(padded, kernel, steps, gaps)
        axes = tuple(range(len(windows.shape) - count, len(windows.shape)))
        best = build.reduce_axis(Ops.MAX, windows, axes)
        result = self._new(build.reshape(best, best.shape[: self.ndim]))
        if not return_indices:
            return result
        space = self.shape[self.ndim - count :]
        total = math.prod(space)
        flat = build.reshape(build.iota(total, dtypes.int64), (*(1,) * (self.ndim - count), *space))
        places = nodes.pad_with(build.expand(flat, self.shape), pads, total)
        offered = nodes.pool(places, kernel, steps, gaps)
        is_best = build.alu(Ops.CMPEQ, windows, build.expand(best, windows.shape))
        first = build.where(is_best, offered, build.const(dtypes.int64, total))
        least = build.reduce_axis(Ops.MIN, first, axes)
        return result, self._new(build.reshape(least, least.shape[: self.ndim]))

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

        def windows(node: UOp, around: tuple[tuple[int, int], ...]) -> UOp:
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

    # ------------------------------------------------------------ attention

    def scaled_dot_product_attention(
        self,
        key: Self,
        value: Self,
        attn_mask: Self | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(q @ k.T / sqrt(d) + mask) @ v; a bool mask keeps where it is true."""
        if enable_gqa:
            repeats = self.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
        carrier = accumulate_dtype(promote(self.dtype, key.dtype))
        scores = self.dot(key.transpose(-2, -1), dtype=carrier) * (1 / math.sqrt(self.shape[-1]))
        if is_causal:
            if attn_mask is not None:
                raise ShapeError("scaled_dot_product_attention", "is_causal with a mask", "give one of the two")
            keep = nodes.triangle_mask(scores.shape, 0, upper=False)
            scores = scores._new(build.where(keep, scores.uop, build.const(carrier, -math.inf)))
        elif attn_mask is not None:
            scores = attn_mask.where(scores, -math.inf) if attn_mask.dtype.is_bool else scores + attn_mask
        weights = scores.softmax(-1).cast(self.dtype)
        return weights.dropout(dropout_p).dot(value)

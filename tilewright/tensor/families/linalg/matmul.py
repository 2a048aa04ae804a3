"""Products of matrices and convolution. In: tensors. Out: tensors.
All are movement, a multiplication and one reduction, so the scheduler sees nothing but loops: a matrix product is a sum
over the last axis of two expanded views, a convolution a sum over windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tilewright.base.dtype import DType, promote, to_dtype
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import broadcast_shape, check_devices, check_whole, is_whole
from tilewright.tensor.families.random import RandomMixin
from tilewright.tensor.primitives.reduce import accumulate_dtype

Sizes = int | Sequence[int]


def sizes_of(operation: str, name: str, value: Sizes, count: int, least: int = 1) -> Shape:
    """One number for every axis."""
    sizes: tuple[Any, ...] = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(sizes) != count or not all(is_whole(size) and size >= least for size in sizes):
        message = f"{name}={value!r} for {count} axes"
        raise ShapeError(operation, message, f"give one number or {count}, each at least {least}")
    return sizes


def pads_of(operation: str, padding: Sizes, count: int) -> tuple[tuple[int, int], ...]:
    """(before, after) of every axis, from one number, a number for each axis, or torch's flat pairs."""
    if isinstance(padding, tuple | list) and len(padding) == 2 * count and count > 0:
        flat = sizes_of(operation, "padding", padding, 2 * count, least=0)
        return tuple(reversed([(flat[k], flat[k + 1]) for k in range(0, 2 * count, 2)]))
    return tuple((size, size) for size in sizes_of(operation, "padding", padding, count, least=0))


def multiply_and_sum(left: UOp, right: UOp, axes: Sequence[int], dtype: DType, carrier: DType) -> UOp:
    """sum(left * right) over axes; factors are widened first, so that products are not rounded to a short float."""
    product = build.alu(Ops.MUL, build.cast(left, carrier), build.cast(right, carrier))
    return build.cast(build.reduce_axis(Ops.ADD, product, axes), dtype)


class LinalgMixin(RandomMixin):
    """matmul, conv2d."""

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
        check_devices("linear", self, weight, *(() if bias is None else (bias,)))
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
        check_whole("conv2d", "groups", groups, least=1)
        if outputs % groups or self.shape[1] != inputs * groups:
            message = f"input {self.shape}, weight {weight.shape}, groups {groups}: channels do not fit"
            raise ShapeError("conv2d", message, f"the input needs {inputs * groups} channels, {groups} divides both")
        steps = sizes_of("conv2d", "stride", stride, space)
        gaps = sizes_of("conv2d", "dilation", dilation, space)
        result, carrier = self._product_dtypes("conv2d", weight, dtype)
        padded = build.pad(self.uop, ((0, 0), (0, 0), *pads_of("conv2d", padding, space)))
        self._check_windows("conv2d", padded.shape[2:], tuple(kernel), gaps)
        windows = nodes.pool(padded, tuple(kernel), steps, gaps)
        batch, size = self.shape[0], windows.shape[2 : 2 + space]
        # (batch, groups, out/groups, channels, *kernel, *size): pixels stand last, to be neighbours where the
        # gradient of the windows is stored.
        full = (batch, groups, outputs // groups, inputs, *kernel, *size)
        grouped = build.reshape(windows, (batch, groups, inputs, *size, *kernel))
        order = (0, 1, 2, *range(3 + space, 3 + 2 * space), *range(3, 3 + space))
        left = build.reshape(build.permute(grouped, order), (batch, groups, 1, inputs, *kernel, *size))
        right = build.reshape(weight.uop, (1, groups, outputs // groups, inputs, *kernel, *(1,) * space))
        summed = range(3, 4 + space)
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

    # ------------------------------------------------------------ attention

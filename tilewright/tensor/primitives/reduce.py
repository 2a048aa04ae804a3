"""Reductions and operations built from them. In: a tensor, axes (None is all), keepdim. Out: a tensor without those
axes. 8- and 16-bit floats are summed in float32 and rounded once; integers and bools are summed in int64, as torch
does."""

from __future__ import annotations

import math
from typing import Self

from tilewright.base.dtype import DType, Scalar, dtypes, to_dtype
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic, larger_size
from tilewright.graph.spec import Op
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.core.checks import Axes, check_axes, check_axis
from tilewright.tensor.primitives.elementwise import ElementwiseMixin
from tilewright.tensor.primitives.masked_scans import scan_axis
from tilewright.tensor.primitives.running import running_along, running_by_groups
from tilewright.tensor.primitives.shape import ShapeMixin

# The minimum length of a row whose scan runs as a kernel of work-groups.
_MIN_GROUP_SCAN = 64


def sum_dtype(dtype: DType) -> DType:
    """The dtype of a sum: the same for floats and uint64, int64 for every other integer."""
    return dtype if dtype.is_float or dtype is dtypes.uint64 else dtypes.int64


def accumulate_dtype(dtype: DType) -> DType:
    """The dtype of a sum's accumulator."""
    return dtypes.float32 if dtype.is_float and dtype.bits < 32 else dtype


def _at_least_zero(number: Scalar) -> Scalar:
    return larger_size(0, number) if isinstance(number, SymbolicInt) else max(0, number)


class ReduceMixin(ElementwiseMixin, ShapeMixin):
    """sum, max, softmax, ..."""

    def _reduce(self, name: str, op: Op, axis: Axes, keepdim: bool, dtype: DType | None = None) -> Self:
        """The reduction with an accumulator of `dtype` (by default this tensor's)."""
        axes = check_axes(name, axis, self.ndim)
        node = build.cast(self.uop, self.dtype if dtype is None else dtype)
        return self._new(_without_axes(build.reduce_axis(op, node, axes), axes, keepdim))

    def _check_not_empty(self, name: str, axis: Axes) -> None:
        for each in check_axes(name, axis, self.ndim):
            if self.shape[each] == 0:
                message = f"axis {each} of shape {self.shape} has no elements"
                raise ShapeError(name, message, "reduce over axes that have at least one element")

    def _wide(self) -> Self:
        """This tensor in the float dtype of its sums' accumulator."""
        return self.cast(accumulate_dtype(self._as_float().dtype))

    def _norm(self, p: float, axes: tuple[int, ...], keepdim: bool = True) -> Self:
        """(sum of |x| ** p) ** (1 / p) along the axes."""
        size = self.abs()
        if abs(p) == math.inf:
            return size.max(axes, keepdim) if p > 0 else size.min(axes, keepdim)
        if p == 0:
            return size.ne(0).cast(size.dtype).sum(axes, keepdim)
        if p == 1:
            return size.sum(axes, keepdim)
        total = (self * self if p == 2 else size.pow(p)).sum(axes, keepdim)
        if p < 0:
            return total.pow(1 / p)
        # The root has no finite gradient at 0, where the gradient of the norm is 0, as in torch.
        safe = total.eq(0).where(1.0, total)
        return total.eq(0).where(0.0, safe.sqrt() if p == 2 else safe.pow(1 / p))

    def _check_float(self, name: str) -> None:
        if not self.dtype.is_float:
            message = f"{name} of {self.dtype.name} is not defined"
            raise DTypeError(name, message, "cast to a float dtype first, such as `.float()`")

    # ------------------------------------------------------------ sums and extremes

    def sum(self, axis: Axes = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """The sum; `dtype` is that of the result and of the accumulator."""
        return self._accumulate("sum", Ops.ADD, axis, keepdim, dtype)

    def prod(self, axis: Axes = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """The product; `dtype` is that of the result and of the accumulator."""
        return self._accumulate("prod", Ops.MUL, axis, keepdim, dtype)

    def _accumulate(self, name: str, op: Op, axis: Axes, keepdim: bool, dtype: DType | str | None) -> Self:
        wanted = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype)
        if wanted.is_bool:
            # A sum of bools is `or`, a product `and`.
            return self._reduce(name, Ops.MAX if op is Ops.ADD else Ops.MIN, axis, keepdim, wanted)
        carried = self._reduce(name, op, axis, keepdim, accumulate_dtype(wanted))
        return carried._new(build.cast(carried.uop, wanted))

    def max(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The maximum; NaN where an element is NaN."""
        self._check_not_empty("max", axis)
        return self._reduce("max", Ops.MAX, axis, keepdim)

    def min(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The minimum; NaN where an element is NaN."""
        self._check_not_empty("min", axis)
        return self._reduce("min", Ops.MIN, axis, keepdim)

    def any(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Whether any element is not 0, over all axes or the given ones."""
        return self._reduce("any", Ops.MAX, axis, keepdim, dtypes.bool)

    def all(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Whether all elements are not 0, over all axes or the given ones."""
        return self._reduce("all", Ops.MIN, axis, keepdim, dtypes.bool)

    def allclose(self, other: Self | Scalar, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
        """Whether every element is close (see `isclose`), as a Python bool; this computes the tensors."""
        return bool(self.isclose(other, rtol, atol, equal_nan).all())

    # ------------------------------------------------------------ indices of extremes

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The index of the first maximum, along an axis or in the flattened tensor; NaN counts as the maximum."""
        return self._index_of_extreme("argmax", Ops.MAX, axis, keepdim)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The index of the first minimum; NaN counts as the minimum."""
        return self._index_of_extreme("argmin", Ops.MIN, axis, keepdim)

    def _index_of_extreme(self, name: str, op: Op, axis: int | None, keepdim: bool) -> Self:
        if axis is None:
            found = self.flatten()._index_of_extreme(name, op, 0, False)
            return found.reshape((1,) * self.ndim) if keepdim else found
        if self.ndim == 0:
            check_axis(name, axis, 0)
            return self._new(build.const(dtypes.int64, 0))
        self._check_not_empty(name, axis)
        axis = check_axis(name, axis, self.ndim)
        extreme = self._reduce(name, op, axis, True)
        is_extreme = self.eq(extreme)
        if self.dtype.is_float:
            is_extreme = is_extreme | self.isnan()
        # The result is the smallest index of an extreme; all other elements give an index that is too large.
        index = build.axis_iota(self.shape, axis)
        offered = build.where(is_extreme.uop, index, build.const(index.dtype, self.shape[axis]))
        least = build.cast(build.reduce_axis(Ops.MIN, offered, (axis,)), dtypes.int64)
        return self._new(_without_axes(least, (axis,), keepdim))

    # ------------------------------------------------------------ moments

    def mean(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The sum divided by the number of elements; for integers and bools in the default float dtype."""
        if not self.dtype.is_float:
            return self._as_float().mean(axis, keepdim)
        count = self._count("mean", axis)
        carried = self._reduce("mean", Ops.ADD, axis, keepdim, accumulate_dtype(self.dtype))
        is_power = not is_symbolic((count,)) and count & (count - 1) == 0 and count
        mean = carried * (1 / count) if is_power else carried / count
        return mean._new(build.cast(mean.uop, self.dtype))

    def _count(self, name: str, axis: Axes) -> int:
        return math.prod(self.shape[each] for each in check_axes(name, axis, self.ndim))

    def var(self, axis: Axes = None, keepdim: bool = False, correction: float = 1) -> Self:
        """The sum of squared distances from the mean, divided by n - correction."""
        return self.var_mean(axis, keepdim, correction)[0]

    def var_mean(self, axis: Axes = None, keepdim: bool = False, correction: float = 1) -> tuple[Self, Self]:
        """Variance and mean, from one pass over the distances."""
        self._check_float("var")
        wide = self._new(build.cast(self.uop, accumulate_dtype(self.dtype)))
        axes = check_axes("var", axis, self.ndim)
        shift = wide._first_along(axes)
        if shift is not None:
            wide = wide - shift
        mean = wide.mean(axis, keepdim=True)
        variance = (wide - mean).square().sum(axis, keepdim) / _at_least_zero(self._count("var", axis) - correction)
        centre = mean if shift is None else mean + shift
        centre = centre._new(_without_axes(centre.uop, axes, keepdim))
        return (variance._new(build.cast(variance.uop, self.dtype)), centre._new(build.cast(centre.uop, self.dtype)))

    def _first_along(self, axes: tuple[int, ...]) -> Self | None:
        """The first element along the axes, with sizes of 1, detached. It is subtracted before the mean is taken, so
        that a mean that is large compared with the deviation loses no precision. None for empty axes, or where the
        element is on only one of several devices."""
        if 0 in self.shape or not isinstance(self.device, str):
            return None
        bounds = tuple((0, 1 if axis in axes else size) for axis, size in enumerate(self.shape))
        return self._new(marks.detach(build.shrink(self.uop, bounds)))

    def std(self, axis: Axes = None, keepdim: bool = False, correction: float = 1) -> Self:
        """The standard deviation."""
        return self.std_mean(axis, keepdim, correction)[0]

    def std_mean(self, axis: Axes = None, keepdim: bool = False, correction: float = 1) -> tuple[Self, Self]:
        """The standard deviation and the mean."""
        variance, mean = self.var_mean(axis, keepdim, correction)
        # The root has an infinite gradient at 0; where all elements are equal the gradient is 0, as in torch.
        is_zero = variance.eq(0)
        return is_zero.where(0.0, is_zero.where(1.0, variance).sqrt()), mean

    def layernorm(self, axis: int | tuple[int, ...] = -1, eps: float = 1e-05) -> Self:
        """Normalised to mean 0 and variance 1 over the axes."""

        def function(x: Self) -> Self:
            centred = x - x.mean(axis, keepdim=True)
            return centred * (centred.square().mean(axis, keepdim=True) + eps).rsqrt()

        return self._in_float32(function)

    # ------------------------------------------------------------ exponentials

    def logsumexp(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """log(sum(exp(x))) without overflow."""

        def function(x: Self) -> Self:
            if 0 in x.shape:  # without elements the sum is 0 and there is no maximum
                return x.exp().sum(axis, keepdim).log()
            greatest = x.max(axis, keepdim=True).detach()
            safe = greatest.isfinite().where(greatest, 0.0)
            total = (x - safe).exp().sum(axis, keepdim=True).log() + safe
            return total._new(_without_axes(total.uop, check_axes("logsumexp", axis, x.ndim), keepdim))

        return self._in_float32(function)

    def softmax(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """exp(x) / sum(exp(x)) along an axis, without overflow."""

        def function(x: Self) -> Self:
            if 0 in x.shape:
                return x
            # The result does not depend on the subtracted maximum, so that has no gradient.
            powers = (x - x.max(axis, keepdim=True).detach()).exp()
            # One division per row: a division per element would take as long as the rest of the loop.
            return powers * powers.sum(axis, keepdim=True).reciprocal()

        return self._for_softmax("softmax", axis, dtype)._in_float32(function)

    def log_softmax(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """log(softmax(x)), computed without the softmax."""

        def function(x: Self) -> Self:
            if 0 in x.shape:
                return x
            moved = x - x.max(axis, keepdim=True).detach()
            return moved - moved.exp().sum(axis, keepdim=True).log()

        return self._for_softmax("log_softmax", axis, dtype)._in_float32(function)

    def softmin(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """softmax(-x)."""
        return self._for_softmax("softmin", axis, dtype).neg().softmax(axis)

    def _for_softmax(self, name: str, axis: int, dtype: DType | str | None) -> Self:
        check_axis(name, axis, self.ndim)
        source = self if dtype is None else self._new(build.cast(self.uop, to_dtype(dtype)))
        return source._as_float()

    # ------------------------------------------------------------ running reductions

    def cumsum(self, axis: int = 0) -> Self:
        """The cumulative sum."""
        return self._scan("cumsum", Ops.ADD, axis, sum_dtype(self.dtype))

    def cumprod(self, axis: int) -> Self:
        """The cumulative product."""
        return self._scan("cumprod", Ops.MUL, axis, sum_dtype(self.dtype))

    def _scan(self, name: str, op: Op, axis: int, dtype: DType) -> Self:
        axis = check_axis(name, axis, self.ndim)
        node = build.cast(self.uop, accumulate_dtype(dtype))
        if self.ndim and 0 not in self.shape:
            walked = running_along(self.uop, op, axis, dtype, node.dtype, self.device)
            if walked is not None:
                return self._new(walked)
            longest = self._longest_row(node.dtype) if axis == self.ndim - 1 else 0
            is_by_rows = longest > 0 and self.shape[-1] >= _MIN_GROUP_SCAN
            node = self._scan_last_axis(node, op, dtype, longest) if is_by_rows else scan_axis(node, op, axis)
        return self._new(build.cast(node, dtype))

    def _longest_row(self, dtype: DType) -> int:
        """The maximum length of a row that one work-group scans; 0 for devices without warps."""
        target = open_driver(self.device).target if isinstance(self.device, str) else None
        if target is None or target.warp_size == 1 or dtype not in target.native:
            return 0
        from tilewright.graph.kernels.scans.scanning import longest_row  # only used on GPUs: imported late

        return longest_row(dtype, target.max_local_bytes, target.max_group_size)

    def _scan_last_axis(self, wide: UOp, op: Op, dtype: DType, longest: int) -> UOp:
        """The cumulative sum or product by work-groups of `wide`, which is this tensor in the dtype of the accumulator.
        The kernel converts from and to memory where the device has both dtypes."""
        target = open_driver(str(self.device)).target
        converts = {self.dtype, dtype} <= target.native | target.native_casts
        source, result = (self.uop, dtype) if converts else (wide, wide.dtype)
        rows = build.reshape(source, (math.prod(wide.shape[:-1]), wide.shape[-1]))
        return build.reshape(running_by_groups(rows, op, longest, wide.dtype, result), wide.shape)


def _without_axes(node: UOp, axes: tuple[int, ...], keepdim: bool) -> UOp:
    """Without the reduced axes, which have size 1, unless keepdim is set."""
    if keepdim:
        return node
    return build.reshape(node, tuple(size for axis, size in enumerate(node.shape) if axis not in axes))

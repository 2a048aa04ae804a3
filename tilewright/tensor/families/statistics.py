"""Statistics: median, quantile, unique, counts, searches in sorted rows. In and out: tensors. Operations whose result
size depends on values (`unique`, `bincount`) read those from the device first, as `masked_select` does."""

from __future__ import annotations

import math
from typing import Any, Self

from tilewright.base.dtype import Scalar, dtypes, promote, to_dtype
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import TensorBase, check_devices
from tilewright.tensor.core.checks import Axes, check_axis, check_axis_of_some, check_whole
from tilewright.tensor.families.cumulative import CumulativeMixin
from tilewright.tensor.families.linalg.products import ProductsMixin
from tilewright.tensor.families.scatter import ScatterMixin
from tilewright.tensor.families.sorting import SortingMixin
from tilewright.tensor.primitives.indexing import ValuesAndIndices

# The most elements that are looked for by comparing with each of them, not by a search in a sorted row.
MAX_COMPARED = 64
_INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


class StatisticsMixin(CumulativeMixin, SortingMixin, ScatterMixin, ProductsMixin):
    """amax, median, quantile, unique, bincount, histc, searchsorted, nansum, diff, cov, ..."""

    # ------------------------------------------------------------ extremes, and sums without NaN

    def amax(self, dim: Axes = None, keepdim: bool = False) -> Self:
        """The maximum over axes."""
        return self.max(dim, keepdim)

    def amin(self, dim: Axes = None, keepdim: bool = False) -> Self:
        """The minimum over axes."""
        return self.min(dim, keepdim)

    def aminmax(self, dim: Axes = None, keepdim: bool = False) -> tuple[Self, Self]:
        """The minimum and the maximum."""
        return self.min(dim, keepdim), self.max(dim, keepdim)

    def count_nonzero(self, dim: Axes = None) -> Self:
        """The number of nonzero elements."""
        return self.ne(0).sum(dim)

    def nansum(self, dim: Axes = None, keepdim: bool = False) -> Self:
        """The sum, where NaN counts as 0."""
        return self.isnan().where(0, self).cast(self.dtype).sum(dim, keepdim)

    def nanmean(self, dim: Axes = None, keepdim: bool = False) -> Self:
        """The mean of the elements that are not NaN."""
        count = self.isnan().logical_not().sum(dim, keepdim)
        total = self._as_float().nansum(dim, keepdim)
        return (total / count).cast(total.dtype)

    # ------------------------------------------------------------ order statistics

    def _picked(self, name: str, position: int, dim: int, keepdim: bool) -> ValuesAndIndices[Self]:
        """The element at a position of the sorted axis."""
        axis = check_axis(name, dim, self.ndim)
        if not self.ndim:
            return ValuesAndIndices(self, self._new(build.const(dtypes.int64, 0)))
        ordered, order = self.sort(axis)
        picked = (ordered._slice_axis(axis, position, position + 1), order._slice_axis(axis, position, position + 1))
        values, indices = picked if keepdim else (picked[0].squeeze(axis), picked[1].squeeze(axis))
        return ValuesAndIndices(values, indices)

    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices[Self]:
        """The k-th smallest element (from 1) along an axis, and its index."""
        size = self.shape[check_axis("kthvalue", dim, self.ndim)] if self.ndim else 1
        check_whole("kthvalue", "k", k)
        if not 1 <= k <= size:
            raise ShapeError("kthvalue", f"k={k} of {size} elements", f"give k in 1..{size}")
        return self._picked("kthvalue", k - 1, dim, keepdim)

    def median(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The median: of an even number of elements the smaller of the middle two, and NaN where an element is NaN.
        Along an axis also its index."""
        if dim is None:
            return self.flatten().median(0)[0]
        self._check_not_empty("median", dim)
        axis = check_axis("median", dim, self.ndim)
        size = self.shape[axis] if self.ndim else 1
        middle = self._picked("median", (size - 1) // 2, dim, keepdim)
        if not self.dtype.is_float:
            return middle
        last = self._picked("median", size - 1, dim, keepdim)  # NaN sorts last
        has_nan = last.values.isnan()
        first_nan = self.isnan().cast(dtypes.int32).argmax(axis, keepdim)
        return ValuesAndIndices(has_nan.where(last.values, middle.values), has_nan.where(first_nan, middle.indices))

    def mode(self, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices[Self]:
        """The most frequent element along an axis, of several the smallest, and its last index."""
        self._check_not_empty("mode", dim)
        axis = check_axis("mode", dim, self.ndim)
        if not self.ndim:
            return ValuesAndIndices(self, self._new(build.const(dtypes.int64, 0)))
        ordered, order = self.sort(axis)
        size = self.shape[axis]
        # In a run of equal elements the last one has the highest count.
        position = self.arange(size, device=self.device).reshape(
            tuple(size if k == axis else 1 for k in range(self.ndim))
        )
        is_first = ordered.ne(ordered.roll(1, axis)) | position.eq(0)
        start = is_first.where(position, 0).cummax(axis)[0]
        last = (position - start).argmax(axis, keepdim=True)
        values, indices = ordered.gather(axis, last), order.gather(axis, last)
        return ValuesAndIndices(*(each if keepdim else each.squeeze(axis) for each in (values, indices)))

    def quantile(
        self, q: float | Self, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear"
    ) -> Self:
        """The value below which a fraction `q` of the elements lies; a 1-D `q` gives a leading axis of its size."""
        self._check_float("quantile")
        if interpolation not in _INTERPOLATIONS:
            raise ShapeError(
                "quantile", f"interpolation {interpolation!r}", f"give one of {', '.join(_INTERPOLATIONS)}"
            )
        if dim is None:
            flat = self.flatten().quantile(q, 0, False, interpolation)
            shape = flat.shape + (1,) * self.ndim
            return flat.reshape(shape) if keepdim else flat
        self._check_not_empty("quantile", dim)
        axis = check_axis("quantile", dim, self.ndim)
        if isinstance(q, TensorBase):
            shares = q.cast(self.dtype)
            if shares.ndim > 1:
                raise ShapeError("quantile", f"q of shape {q.shape}", "give a number or a 1-D tensor")
        else:
            if not 0 <= q <= 1:
                raise ShapeError("quantile", f"q={q}", "give fractions in 0..1")
            shares = self._new(build.const(self.dtype, q)).detach()
        ordered = (self if self.ndim else self.reshape(1)).sort(axis)[0]
        moved = ordered._new(nodes.move_to_last(ordered.uop, axis))
        size = moved.shape[-1]
        row = shares.flatten()
        positions = _positions_of_shares(row * (size - 1), interpolation)
        outer = moved.shape[:-1]
        found = [
            moved._new(nodes.gather_last(moved.uop, build.expand(_as_row(position, outer), (*outer, row.shape[0]))))
            for position in positions[:2]
        ]
        value = (
            found[0].lerp(found[1], positions[2].reshape((1,) * len(outer) + row.shape)) if len(found) > 1 else found[0]
        )
        has_nan = moved._slice_axis(moved.ndim - 1, size - 1, size).isnan()
        value = has_nan.where(math.nan, value).cast(self.dtype)
        result = value.permute((len(outer), *range(len(outer))))
        if keepdim and self.ndim:
            result = result.unsqueeze(axis + 1)
        return result if shares.ndim else result.squeeze(0)

    # ------------------------------------------------------------ values and their counts

    def unique(
        self, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        """The distinct values, sorted; optionally also the index of each element's value and the number of occurrences.
        With `dim`, the distinct slices of that axis. The number of values is read from the device."""
        del sorted  # the result is always sorted
        if dim is not None:
            return self._unique_slices(check_axis("unique", dim, self.ndim), return_inverse, return_counts)
        flat = self.flatten()
        count = flat.shape[0]
        if count == 0:
            nothing = self._new(build.const(dtypes.int64, 0, (0,)))
            return _chosen(flat, nothing.reshape(self.shape), nothing, return_inverse, return_counts)
        ordered, order = flat.sort()
        ordered, order = ordered.contiguous(), order.contiguous()
        is_first = ordered[1:].ne(ordered[:-1]).pad(((1, 0),), value=True)
        starts = is_first.nonzero().flatten()
        inverse = counts = None
        if return_inverse:
            number = is_first.cast(dtypes.int64).cumsum(0) - 1
            inverse = order.zeros_like().scatter(0, order, number).reshape(self.shape)
        if return_counts:
            counts = starts[1:].cat(starts.full((1,), count, dtypes.int64, self.device)) - starts
        return _chosen(ordered[starts], inverse, counts, return_inverse, return_counts)

    def _unique_slices(self, axis: int, return_inverse: bool, return_counts: bool) -> Any:
        """Slices are compared on the host, in lexicographic order."""
        import numpy as np

        values, inverse, counts = np.unique(self.detach().numpy(), axis=axis, return_inverse=True, return_counts=True)
        found = [self._tensor(np.ascontiguousarray(part)) for part in (values, inverse.reshape(-1), counts)]
        return _chosen(found[0], found[1], found[2], return_inverse, return_counts)

    def bincount(self, weights: Self | None = None, minlength: int = 0) -> Self:
        """The number of occurrences of each integer from 0 on, or the sum of its weights. The maximum is read from the
        device first."""
        if not self.dtype.is_int or self.ndim != 1:
            message = f"bincount of {self._described()}"
            raise DTypeError("bincount", message, "give one row of integers that are not negative")
        check_whole("bincount", "minlength", minlength, least=0)
        least, greatest = self._extremes() if self.numel() else (0, -1)
        if least < 0:
            raise DTypeError("bincount", f"the number {least}", "give integers that are not negative")
        size = max(minlength, greatest + 1)
        if weights is None:
            source = self.ones(*self.shape, dtype=dtypes.int64, device=self.device)
        else:
            check_devices("bincount", self, weights)
            source = weights if weights.dtype.is_float else weights.cast(dtypes.float64)
        total = source.zeros(size, dtype=source.dtype, device=self.device)
        return total.scatter_reduce(0, self.cast(dtypes.int64), source, "sum") if self.numel() else total

    def histc(self, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Self:
        """The number of elements in each of `bins` equal parts of min..max (of the elements' own range where both are
        equal); elements outside are ignored."""
        self._check_float("histc")
        check_whole("histc", "bins", bins, least=1)
        low, high = float(min), float(max)
        if low == high and self.numel():
            low, high = self._extremes()
        if low == high:
            low, high = low - 1, high + 1
        if not low < high or math.isinf(low) or math.isinf(high):
            raise ShapeError("histc", f"the range {low}..{high}", "give min < max, both finite")
        flat = self.flatten()
        position = ((flat - low) * (bins / (high - low))).floor().minimum(bins - 1)
        inside = (flat >= low) & (flat <= high)
        index = inside.where(position, 0.0).cast(dtypes.int64)
        source = inside.cast(accumulated := dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32)
        total = source.zeros(bins, dtype=accumulated, device=self.device)
        return (total.scatter_reduce(0, index, source, "sum") if self.numel() else total).cast(self.dtype)

    def _extremes(self) -> tuple[Any, Any]:
        """The minimum and the maximum as Python numbers, computed together."""
        low, high = self.aminmax()
        low.realize(high)
        return low.item(), high.item()

    # ------------------------------------------------------------ searching

    def searchsorted(self, values: Self | Scalar, right: bool = False, side: str | None = None) -> Self:
        """The index at which each value is inserted into this sorted row (or into the row with the same leading
        indices) so that it stays sorted: before equal elements, or after them where `right` is set."""
        if side not in (None, "left", "right"):
            raise ShapeError("searchsorted", f"side {side!r}", 'give "left" or "right"')
        behind = right or side == "right"
        wanted = self._operand("searchsorted", values)
        if not isinstance(wanted, TensorBase):
            return self.searchsorted(self._new(build.const(self.dtype, wanted)), behind)
        if not self.ndim or (self.ndim > 1 and self.shape[:-1] != wanted.shape[:-1]):
            message = f"rows of shape {self.shape} for values of shape {wanted.shape}"
            raise ShapeError("searchsorted", message, "give one sorted row, or the leading axes of the values")
        if 0 in wanted.shape or self.shape[-1] == 0:
            return self._new(build.const(dtypes.int64, 0, wanted.shape))
        dtype = promote(self.dtype, wanted.dtype)
        rows = build.contiguous(build.cast(self.detach().uop, dtype))
        sought = build.contiguous(build.cast(wanted.detach().uop, dtype))
        if self.ndim == 1:
            sought = build.reshape(sought, (math.prod(wanted.shape),))
        count = nodes.count_not_greater(rows, sought) if behind else count_less(rows, sought)
        return self._new(build.reshape(build.cast(count, dtypes.int64), wanted.shape)).detach()

    def bucketize(self, boundaries: Self, right: bool = False) -> Self:
        """The index of the interval between sorted boundaries that contains each element."""
        return boundaries.searchsorted(self, right)

    def isin(self, test_elements: Self) -> Self:
        """Whether each element is among `test_elements`."""
        elements = self._operand("isin", test_elements)
        if not isinstance(elements, TensorBase):
            return self.eq(elements)
        row = elements.detach().flatten()
        if row.numel() == 0:
            return self._new(build.const(dtypes.bool, False, self.shape))
        if row.numel() <= MAX_COMPARED:
            return self.unsqueeze(-1).eq(row).any(-1)
        ordered = row.sort()[0].contiguous()
        return ordered[ordered.searchsorted(self).minimum(row.numel() - 1)].eq(self)

    # ------------------------------------------------------------ neighbours and pairs

    def diff(self, n: int = 1, dim: int = -1) -> Self:
        """Each element minus the one before it, applied n times."""
        check_whole("diff", "n", n, least=0)
        axis = check_axis_of_some("diff", dim, self.shape)
        result = self
        for _ in range(min(n, self.shape[axis])):
            size = result.shape[axis]
            later, earlier = result._slice_axis(axis, min(1, size), size), result._slice_axis(axis, 0, max(0, size - 1))
            result = later.ne(earlier) if self.dtype.is_bool else later - earlier
        return result

    def trapezoid(self, x: Self | None = None, dx: float = 1.0, dim: int = -1) -> Self:
        """The integral along an axis by trapezoids, at positions `x` or `dx` apart."""
        axis = check_axis_of_some("trapezoid", dim, self.shape)
        size = self.shape[axis]
        means = (self._slice_axis(axis, min(1, size), size) + self._slice_axis(axis, 0, max(0, size - 1))) * 0.5
        if x is None:
            return means.sum(axis) * dx
        widths = x.diff(dim=-1 if x.ndim == 1 else axis)
        if x.ndim == 1:
            widths = widths.reshape(tuple(-1 if k == axis else 1 for k in range(self.ndim)))
        return (means * widths).sum(axis)

    def cov(self, correction: int = 1) -> Self:
        """The covariance matrix: rows are variables, columns observations."""
        rows = self._as_float().reshape((1, -1) if self.ndim < 2 else self.shape)
        centred = rows - rows.mean(1, keepdim=True)
        result = centred.matmul(centred.transpose(0, 1)) / max(0, rows.shape[1] - correction)
        return result if self.ndim > 1 else result.reshape(())

    def corrcoef(self) -> Self:
        """The matrix of correlation coefficients: rows are variables, columns observations."""
        covariance = self.cov()
        if covariance.ndim == 0:
            return covariance / covariance
        deviation = covariance.diagonal().sqrt()
        return (covariance / deviation.unsqueeze(1) / deviation.unsqueeze(0)).clamp(-1.0, 1.0)


# ---------------------------------------------------------------- pieces


def count_less(rows: UOp, wanted: UOp) -> UOp:
    """The number of elements of each sorted row that are less than each given value; NaN is last."""

    def is_less(element: UOp) -> UOp:
        less = element < wanted
        return less | (wanted.ne(wanted) & element.eq(element)) if rows.dtype.is_float else less

    return nodes.count_first(rows, wanted, is_less)


def _positions_of_shares(position: Any, interpolation: str) -> tuple[Any, ...]:
    """The positions to read, and the weight of the second one in an interpolation."""
    low, high = position.floor(), position.ceil()
    if interpolation in ("linear", "midpoint"):
        return low, high, (position - low) if interpolation == "linear" else (position > low).where(0.5, 0.0)
    return ({"lower": low, "higher": high, "nearest": position.round()}[interpolation],)


def _as_row(position: Any, outer: tuple[int, ...]) -> UOp:
    return build.reshape(position.detach().cast(to_dtype("int64")).uop, (1,) * len(outer) + position.shape)


def _chosen(values: Any, inverse: Any, counts: Any, return_inverse: bool, return_counts: bool) -> Any:
    extra = [found for found, is_wanted in ((inverse, return_inverse), (counts, return_counts)) if is_wanted]
    return (values, *extra) if extra else values

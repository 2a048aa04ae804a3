"""Scatters and selection by mask. In: a tensor, an index or a mask. Out: a tensor with values stored or added at the
indices; or the elements where a mask is true. Results have the same bits in every run on every device, unless
ALLOW_FLOAT_ATOMICS lets float sums be added in any order."""

from __future__ import annotations

import math
from typing import Self

from tilewright.base.config import options
from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.base.errors import DTypeError, IndexingError, ShapeError
from tilewright.base.records import record
from tilewright.graph import build, marks
from tilewright.graph.gradients.gather import flat_number, stored_if_large
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import TensorBase, check_devices
from tilewright.tensor.core.checks import broadcast_shape, check_axis, check_whole
from tilewright.tensor.families.base import Family
from tilewright.tensor.primitives.index_nodes import checked_index, positions_of_true
from tilewright.tensor.primitives.reduce import accumulate_dtype

_COMBINE: dict[str, Op] = {"sum": Ops.ADD, "mean": Ops.ADD, "prod": Ops.MUL, "amax": Ops.MAX, "amin": Ops.MIN}


class ScatterMixin(Family):
    """scatter, scatter_reduce, masked_select, nonzero."""

    # ------------------------------------------------------------ scatters

    def scatter(self, dim: int, index: Self, src: Self | Scalar, reduce: str | None = None) -> Self:
        """This tensor with src[i][j] stored at [index[i][j]][j] for dim 0, and likewise for other axes; of several
        values for one position the last is kept. `reduce` "add" or "multiply" combines them with the tensor's
        elements."""
        if reduce is not None:
            if reduce not in ("add", "multiply"):
                raise DTypeError("scatter", f"reduce {reduce!r}", 'give None, "add" or "multiply"')
            return self.scatter_reduce(dim, index, src, "sum" if reduce == "add" else "prod")
        axis, source = self._scattered("scatter", dim, index, src)
        if self.ndim == 0:
            return source if index.numel() else self
        if 0 in index.shape or 0 in self.shape:
            return self
        match, values, _ = self._matches("scatter", axis, index, source)
        turn = build.axis_iota(match.shape, axis + 1)
        is_begun = self._begins_outputs(self.dtype)
        last = _combined(Ops.MAX, match, turn, axis, is_stored=not is_begun)
        positions = [last if k == axis else build.axis_iota(self.shape, k) for k in range(self.ndim)]
        is_named = build.alu(Ops.CMPLT, last, build.const(last.dtype, 0)).logical_not()
        node = build.where(is_named, build.gather(values, *positions), self.uop)
        return self._new(stored_if_large(node, math.prod(match.shape)) if is_begun else node, source)

    def scatter_reduce(self, dim: int, index: Self, src: Self | Scalar, reduce: str, include_self: bool = True) -> Self:
        """As `scatter`, with all values for one position combined: "sum", "prod", "mean", "amax" or "amin".
        `include_self=False` leaves out the tensor's own elements."""
        if reduce not in _COMBINE:
            raise DTypeError("scatter_reduce", f"reduce {reduce!r}", f"give one of {', '.join(_COMBINE)}")
        axis, source = self._scattered("scatter_reduce", dim, index, src)
        if self.ndim == 0:
            return (
                self.reshape(1).scatter_reduce(0, index.reshape(1), source.reshape(1), reduce, include_self).reshape(())
            )
        if 0 in index.shape or 0 in self.shape:
            return self
        match, values, numbers = self._matches("scatter_reduce", axis, index, source)
        wide = accumulate_dtype(self.dtype)
        op = _COMBINE[reduce]
        if self.dtype.is_bool:
            op = {Ops.ADD: Ops.MAX, Ops.MUL: Ops.MIN}.get(op, op)
        offered = build.reshape(build.cast(values, wide), nodes.replace_axis(values.shape, axis, 1, values.shape[axis]))
        own = build.cast(self.uop, wide)
        is_begun = include_self and reduce != "mean" and self._begins_outputs(wide)
        is_kept: UOp | None = None  # where the tensor's own elements stay although they are left out
        combined = _combined(op, match, build.expand(offered, match.shape), axis, is_stored=not is_begun)
        if is_begun:
            node = stored_if_large(with_own(op, combined, own), math.prod(match.shape))
        elif include_self and reduce != "mean":
            node = with_own(op, combined, own)
        else:
            count = _combined(Ops.ADD, match, build.const(dtypes.int32, 1, match.shape), axis)
            if include_self:
                combined = build.alu(op, combined, own)
            if reduce == "mean":
                combined = _divided(combined, count + int(include_self))
            is_kept = build.alu(Ops.CMPEQ, count, build.const(count.dtype, 0))
            node = build.where(is_kept, own, combined)
        node = build.cast(node, self.dtype)
        if op is not Ops.ADD and self.dtype.is_float:
            scattered = Scattered(match, numbers, axis)
            rule = TimesOthers(scattered, is_kept) if op is Ops.MUL else SharedByTies(scattered, node, is_kept)
            node = marks.with_gradient(node, rule, self.uop, source.uop)
        return self._new(node, source)

    def _begins_outputs(self, wide: DType) -> bool:
        """Whether one kernel copies this tensor and adds to the copy: the tensor is stored, has the dtype of the sums,
        and the device loops over the terms serially."""
        if not isinstance(self.device, str) or self.dtype is not wide or not build.is_stored(self.uop):
            return False
        target = open_driver(self.device).target
        return target.has_threads and not target.has_local

    def _adds_atomically(self) -> bool:
        """Whether terms may be added to a copy of this tensor in any order."""
        if not options.ALLOW_FLOAT_ATOMICS or not isinstance(self.device, str):
            return False
        return self.dtype in open_driver(self.device).target.float_atomics

    def _scattered(self, name: str, dim: int, index: Self, src: Self | Scalar) -> tuple[int, Self]:
        """The axis, and the values as a tensor of the index's shape."""
        axis = check_axis(name, dim, self.ndim)
        source = self._operand(name, src)
        if not isinstance(source, TensorBase):
            source = self.full(index.shape, source, self.dtype, self.device)
        check_devices(name, self, index, source)
        if not index.dtype.is_int:
            raise IndexingError(name, f"an index of dtype {index.dtype.name}", "index with integers")
        if source.dtype is not self.dtype:
            message = f"{source.dtype.name} values for a tensor of {self.dtype.name}"
            raise DTypeError(name, message, f"cast them, such as `.cast({self.dtype.name!r})`")
        fits = index.ndim == self.ndim == source.ndim and all(
            size <= given and (k == axis or size <= own)
            for k, (size, given, own) in enumerate(zip(index.shape, source.shape, self.shape))
        )
        if not fits:
            message = f"index {index.shape} does not lie in src {source.shape} and in {self.shape} (axis {dim} aside)"
            raise ShapeError(name, message, "give as many axes, none larger than those of src and of the tensor")
        return axis, source.shrink([(0, size) for size in index.shape])

    def _matches(self, name: str, axis: int, index: Self, source: Self) -> tuple[UOp, UOp, UOp]:
        """A mask with (position, number) in place of the axis, true where index `number` is `position`; the values; and
        the positions of the index, -1 where they are out of range. Elements beyond the index match no position."""
        size, count = self.shape[axis], index.shape[axis]
        dtype = dtypes.int32 if size < 1 << 31 else dtypes.int64
        numbers = flat_number([checked_index(name, index.uop, axis, self.shape)], [size], dtype)
        pairs = tuple((0, 0 if k == axis else self.shape[k] - part) for k, part in enumerate(index.shape))
        table = nodes.replace_axis(self.shape, axis, size, count)
        padded = nodes.pad_with(numbers, pairs, -1)
        named = build.expand(build.reshape(padded, nodes.replace_axis(padded.shape, axis, 1, count)), table)
        position = build.cast(build.axis_iota(table, axis), dtype)
        return build.alu(Ops.CMPEQ, named, position), build.pad(source.uop, pairs), numbers

    # ------------------------------------------------------------ selection by mask

    def masked_select(self, mask: Self, size: int | None = None, fill_value: Scalar = 0) -> Self:
        """The elements where the mask is true, in order. Their number is read from the device, unless `size` is given:
        then the result has that many elements, missing ones are `fill_value`, and nothing is read."""
        check_devices("masked_select", self, mask)
        if not mask.dtype.is_bool:
            message = f"the mask has dtype {mask.dtype.name}"
            raise DTypeError("masked_select", message, "give a bool mask, such as `t > 0`")
        shape = broadcast_shape("masked_select", self.shape, mask.shape)
        flat = build.reshape(build.broadcast_to(self.uop, shape), (math.prod(shape),))
        positions, found = mask.expand(shape)._true_positions("masked_select", size)
        if positions.shape == (0,):
            return self._new(nodes.nothing_of(flat, (0,)))
        if flat.shape == (0,):
            return self._new(build.const(self.dtype, fill_value, positions.shape))
        picked = build.gather(flat, positions)
        if found is not None:
            picked = build.where(found, picked, build.const(self.dtype, fill_value))
        return self._new(picked)

    def nonzero(self, size: int | None = None, fill_value: int = 0) -> Self:
        """The indices of the nonzero elements, a row for each with a column for each axis; `size` and `fill_value` as
        in `masked_select`."""
        positions, found = self.ne(0)._true_positions("nonzero", size)
        columns = []
        stride = math.prod(self.shape)
        for length in self.shape:
            stride //= max(length, 1)
            column = build.cast((positions // max(stride, 1)) % max(length, 1), dtypes.int64)
            if found is not None:
                column = build.where(found, column, build.const(dtypes.int64, fill_value))
            columns.append(build.reshape(column, (*positions.shape, 1)))
        if not columns or positions.shape == (0,):
            return self._new(build.const(dtypes.int64, 0, (*positions.shape, self.ndim)))
        return self._new(nodes.cat(columns, 1))

    def _true_positions(self, name: str, size: int | None) -> tuple[UOp, UOp | None]:
        """The flat positions where this bool tensor is true; with a size, also which of them are valid."""
        if size is not None:
            check_whole(name, "size", size, least=0)
        if self.numel() == 0:
            positions = build.const(dtypes.int32, 0, (size or 0,))
            return positions, None if size is None else build.const(dtypes.bool, False, positions.shape)
        if size is None:
            return self._found_positions(), None
        if size == 0:
            return build.const(dtypes.int32, 0, (0,)), None
        positions = positions_of_true(self.contiguous().flatten().uop, size, self.device)
        return positions, build.alu(Ops.CMPLT, positions, positions.const_like(self.numel()))


@record
class Scattered:
    """Where values went: the mask and the positions of `_matches`."""

    match: UOp
    numbers: UOp
    axis: int

    def found(self, node: UOp) -> UOp:
        """For each value, the element of the result at its position."""
        shape = self.numbers.shape
        return build.gather(
            node, *(self.numbers if k == self.axis else build.axis_iota(shape, k) for k in range(len(shape)))
        )

    def combined(self, op: Op, values: UOp, beyond: float) -> UOp:
        """For each position, its values combined; an axis that the index does not fill has `beyond` in the rest."""
        rest = ((k, size) for k, size in enumerate(self.match.shape) if k != self.axis)
        pairs = tuple((0, size - part) for (_, size), part in zip(rest, values.shape, strict=True))
        padded = nodes.pad_with(values, pairs, beyond)
        spread = build.reshape(padded, nodes.replace_axis(padded.shape, self.axis, 1, padded.shape[self.axis]))
        return _combined(op, self.match, build.expand(spread, self.match.shape), self.axis)


@record
class SharedByTies:
    """The gradient of a scatter of extremes: each is shared equally by the elements that are equal to it."""

    scattered: Scattered
    extreme: UOp
    is_kept: UOp | None  # where the tensor's own elements stay although they are left out; None: they are not

    def __call__(self, upstream: UOp, own: UOp, values: UOp) -> tuple[UOp, UOp]:
        wide, zero = accumulate_dtype(upstream.dtype), build.const(upstream.dtype, 0)
        is_tie = build.alu(Ops.CMPEQ, values, self.scattered.found(self.extreme))
        is_own = build.alu(Ops.CMPEQ, own, self.extreme) if self.is_kept is None else self.is_kept
        ties = self.scattered.combined(Ops.ADD, build.cast(is_tie, wide), 0)
        count = build.alu(Ops.ADD, ties, build.cast(is_own, wide)).maximum(1)
        share = build.cast(build.alu(Ops.FDIV, build.cast(upstream, wide), count), upstream.dtype)
        return build.where(is_own, share, zero), build.where(is_tie, self.scattered.found(share), zero)


@record
class TimesOthers:
    """The gradient of a scatter of products: for each factor the product of the others, which is that of all factors
    but zeros divided by the factor, or 0 where another one is 0."""

    scattered: Scattered
    is_kept: UOp | None  # as in `SharedByTies`

    def __call__(self, upstream: UOp, own: UOp, values: UOp) -> tuple[UOp, UOp]:
        wide, counted = accumulate_dtype(upstream.dtype), dtypes.int32
        zero = build.const(wide, 0)

        def parts(factors: UOp) -> tuple[UOp, UOp]:
            is_zero = build.alu(Ops.CMPEQ, build.cast(factors, wide), zero)
            return build.where(is_zero, build.const(wide, 1), build.cast(factors, wide)), build.cast(is_zero, counted)

        def times_others(factors: UOp, product: UOp, zeros: UOp, upstream: UOp) -> UOp:
            factor, is_zero = parts(factors)
            has_other_zero = build.alu(Ops.CMPNE, zeros, is_zero)
            others = build.where(has_other_zero, zero, build.alu(Ops.FDIV, product, factor))
            return build.cast(build.alu(Ops.MUL, build.cast(upstream, wide), others), values.dtype)

        factors, is_zero = parts(values)
        product, zeros = self.scattered.combined(Ops.MUL, factors, 1), self.scattered.combined(Ops.ADD, is_zero, 0)
        if self.is_kept is None:
            factors, is_zero = parts(own)
            product, zeros = build.alu(Ops.MUL, product, factors), build.alu(Ops.ADD, zeros, is_zero)
            for_own = times_others(own, product, zeros, upstream)
        else:
            for_own = build.where(self.is_kept, upstream, build.const(upstream.dtype, 0))
        found = (self.scattered.found(node) for node in (product, zeros, upstream))
        return for_own, times_others(values, *found)


def _combined(op: Op, match: UOp, offered: UOp, axis: int, is_stored: bool = True) -> UOp:
    """For each position of the axis the combination of its values; the identity where there are none. `is_stored`: a
    large result is stored by itself and not fused into its user."""
    identity = build.const(offered.dtype, reduce_identity(op, offered.dtype))
    total = build.reduce_axis(op, build.where(match, offered, identity), (axis + 1,))
    shape = (*match.shape[: axis + 1], *match.shape[axis + 2 :])
    whole = build.reshape(total, shape)
    return stored_if_large(whole, math.prod(match.shape)) if is_stored else whole


def with_own(op: Op, combined: UOp, own: UOp) -> UOp:
    """The tensor plus the sums; where a sum is 0 the tensor's element is kept, so that -0.0 stays -0.0."""
    whole = build.alu(op, own, combined)
    if op is not Ops.ADD or not own.dtype.is_float:
        return whole
    kept = build.where(build.alu(Ops.CMPEQ, combined, build.const(combined.dtype, 0)), own, whole)
    return marks.with_slopes(kept, _sum_slopes, own, combined)


def _sum_slopes(_: UOp, own: UOp, combined: UOp) -> tuple[UOp, UOp]:
    return own.const_like(1.0), combined.const_like(1.0)


def _divided(total: UOp, count: UOp) -> UOp:
    """Divided by the number of values; integers are rounded down."""
    count = build.cast(count.maximum(1), total.dtype)
    return build.alu(Ops.FDIV if total.dtype.is_float else Ops.IDIV, total, count)

"""Writing by index, and picking by truth. In: a tensor, an index or a mask. Out: a tensor with values put or added at
the places the index names; or the elements a mask keeps, which are as many as the mask has true ones.
Each element of the result looks for the values that are meant for it, so a result has one order whatever runs it."""

from __future__ import annotations

import math
from typing import Self

from tilewright.base.dtype import Scalar, dtypes
from tilewright.base.errors import DTypeError, IndexingError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.tensor import nodes
from tilewright.tensor.core import TensorBase, broadcast_shape, check_axis, check_devices, check_whole
from tilewright.tensor.cumulative import CumulativeMixin
from tilewright.tensor.index_nodes import check_known_range, places_of_true, wrap_negative
from tilewright.tensor.reduce import accumulate_dtype

_COMBINE: dict[str, Op] = {"sum": Ops.ADD, "mean": Ops.ADD, "prod": Ops.MUL, "amax": Ops.MAX, "amin": Ops.MIN}


class ScatterMixin(CumulativeMixin):
    """scatter, scatter_reduce, masked_select, nonzero."""

    # ------------------------------------------------------------ writing by index

    def scatter(self, dim: int, index: Self, src: Self | Scalar, reduce: str | None = None) -> Self:
        """This tensor with src[i][j] put at [index[i][j]][j] for dim 0, and so on; of several values for a place the
        last one stays. `reduce` "add" or "multiply" combines them with what is there."""
        if reduce is not None:
            if reduce not in ("add", "multiply"):
                raise DTypeError("scatter", f"reduce {reduce!r}", 'give None, "add" or "multiply"')
            return self.scatter_reduce(dim, index, src, "sum" if reduce == "add" else "prod")
        axis, source = self._scattered("scatter", dim, index, src)
        if self.ndim == 0:
            return source if index.numel() else self
        if 0 in index.shape or 0 in self.shape:
            return self
        match, values = self._matches(axis, index, source)
        turn = build.axis_iota(match.shape, self.ndim)
        last = build.reduce_axis(Ops.MAX, build.where(match, turn, build.const(turn.dtype, -1)), (self.ndim,))
        last = build.reshape(last, last.shape[:-1])
        chosen = nodes.gather_last(values, last)
        own = nodes.move_to_last(self.uop, axis)
        node = build.where(build.alu(Ops.CMPLT, last, build.const(last.dtype, 0)), own, chosen)
        return self._new(nodes.move_from_last(node, axis), source)

    def scatter_reduce(self, dim: int, index: Self, src: Self | Scalar, reduce: str, include_self: bool = True) -> Self:
        """As `scatter`, where all the values for a place are combined: "sum", "prod", "mean", "amax" or "amin".
        `include_self=False` leaves out what was there before."""
        if reduce not in _COMBINE:
            raise DTypeError("scatter_reduce", f"reduce {reduce!r}", f"give one of {', '.join(_COMBINE)}")
        axis, source = self._scattered("scatter_reduce", dim, index, src)
        if self.ndim == 0:
            return (
                self.reshape(1).scatter_reduce(0, index.reshape(1), source.reshape(1), reduce, include_self).reshape(())
            )
        if 0 in index.shape or 0 in self.shape:
            return self
        match, values = self._matches(axis, index, source)
        wide = accumulate_dtype(self.dtype)
        op = _COMBINE[reduce]
        if self.dtype.is_bool:
            op = {Ops.ADD: Ops.MAX, Ops.MUL: Ops.MIN}.get(op, op)
        spread = build.reshape(build.cast(values, wide), (*values.shape[:-1], 1, values.shape[-1]))
        offered = build.where(match, build.expand(spread, match.shape), build.const(wide, reduce_identity(op, wide)))
        combined = _without_last(build.reduce_axis(op, offered, (self.ndim,)))
        own = build.cast(nodes.move_to_last(self.uop, axis), wide)
        touched = _without_last(build.reduce_axis(Ops.MAX, match, (self.ndim,)))
        if include_self:
            combined = build.alu(op, combined, own)
        if reduce == "mean":
            combined = _divided(combined, match, self.ndim, include_self)
        node = build.cast(build.where(touched, combined, own), self.dtype)
        return self._new(nodes.move_from_last(node, axis), source)

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
        if self.ndim and index.numel():
            check_known_range(name, index.uop, axis, self.shape)
        return axis, source.shrink([(0, size) for size in index.shape])

    def _matches(self, axis: int, index: Self, source: Self) -> tuple[UOp, UOp]:
        """With the axis written to last: (..., place, number) is true where value `number` is meant for `place`; and
        the values. What the index does not cover names the place behind the last one."""
        size, count = self.shape[axis], index.shape[axis]
        numbers = build.cast(wrap_negative(index.uop, size), dtypes.int64)
        moved = nodes.move_to_last(numbers, axis)
        outer = (*self.shape[:axis], *self.shape[axis + 1 :])
        pairs = (*((0, whole - part) for whole, part in zip(outer, moved.shape)), (0, 0))
        table = (*outer, size, count)
        padded = build.reshape(nodes.pad_with(moved, pairs, size), (*outer, 1, count))
        place = build.cast(build.axis_iota(table, len(outer)), dtypes.int64)
        match = build.alu(Ops.CMPEQ, build.expand(padded, table), place)
        return match, build.pad(nodes.move_to_last(source.uop, axis), pairs)

    # ------------------------------------------------------------ picking by truth

    def masked_select(self, mask: Self, size: int | None = None, fill_value: Scalar = 0) -> Self:
        """The elements where the mask is true, in order. How many there are is read from the mask, unless `size` says
        how many to give: then `fill_value` stands for those that are missing, and nothing is read."""
        check_devices("masked_select", self, mask)
        if not mask.dtype.is_bool:
            message = f"the mask has dtype {mask.dtype.name}"
            raise DTypeError("masked_select", message, "give a bool mask, such as `t > 0`")
        shape = broadcast_shape("masked_select", self.shape, mask.shape)
        flat = build.reshape(build.broadcast_to(self.uop, shape), (math.prod(shape),))
        places, found = mask.expand(shape)._true_places("masked_select", size)
        if places.shape == (0,):
            return self._new(nodes.nothing_of(flat, (0,)))
        if flat.shape == (0,):
            return self._new(build.const(self.dtype, fill_value, places.shape))
        picked = build.gather(flat, places)
        if found is not None:
            picked = build.where(found, picked, build.const(self.dtype, fill_value))
        return self._new(picked)

    def nonzero(self, size: int | None = None, fill_value: int = 0) -> Self:
        """The indices of the elements other than 0, a row for each with a column for each axis; `size` and `fill_value`
        as in `masked_select`."""
        places, found = self.ne(0)._true_places("nonzero", size)
        columns = []
        stride = math.prod(self.shape)
        for length in self.shape:
            stride //= max(length, 1)
            column = build.cast((places // max(stride, 1)) % max(length, 1), dtypes.int64)
            if found is not None:
                column = build.where(found, column, build.const(dtypes.int64, fill_value))
            columns.append(build.reshape(column, (*places.shape, 1)))
        if not columns or places.shape == (0,):
            return self._new(build.const(dtypes.int64, 0, (*places.shape, self.ndim)))
        return self._new(nodes.cat(columns, 1))

    def _true_places(self, name: str, size: int | None) -> tuple[UOp, UOp | None]:
        """The flat positions where this bool tensor is true; with a size, also which of them there are."""
        if size is not None:
            check_whole(name, "size", size, least=0)
        if self.numel() == 0:
            places = build.const(dtypes.int32, 0, (size or 0,))
            return places, None if size is None else build.const(dtypes.bool, False, places.shape)
        flat = self.contiguous().flatten()
        count = int(flat.sum().item()) if size is None else size
        if count == 0:
            return build.const(dtypes.int32, 0, (0,)), None
        places = places_of_true(flat.uop, count)
        return places, None if size is None else build.alu(Ops.CMPLT, places, places.const_like(self.numel()))


def _without_last(node: UOp) -> UOp:
    return build.reshape(node, node.shape[:-1])


def _divided(total: UOp, match: UOp, axis: int, include_self: bool) -> UOp:
    """Over the number of values; integers are rounded down."""
    ones = build.cast(match, dtypes.int32)
    count = _without_last(build.reduce_axis(Ops.ADD, ones, (axis,))) + int(include_self)
    count = build.cast(count.maximum(1), total.dtype)
    return build.alu(Ops.FDIV if total.dtype.is_float else Ops.IDIV, total, count)

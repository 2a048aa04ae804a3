"""Indexing. In: ints, slices, None, Ellipsis, lists, integer and bool tensors in brackets. Out: views for the first
four; one GATHER for lists and tensors, never a sum over the axis. Assignment writes through views; with index tensors
each element gets the last value assigned to its position."""

from __future__ import annotations

import math
from collections.abc import Hashable
from itertools import compress
from typing import Any, Generic, Self, TypeVar, cast

from tilewright.base.dtype import dtypes
from tilewright.base.errors import DTypeError, IndexingError, ShapeError, UnsupportedError
from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Shape
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.symbolic import state as symbolic
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import TensorBase, check_devices
from tilewright.tensor.core.checks import check_axis, number_node
from tilewright.tensor.core.convert import flatten, is_array
from tilewright.tensor.core.moves import Move, apply_moves
from tilewright.tensor.primitives.index_nodes import (
    AxisRange,
    Parsed,
    TensorIndex,
    check_position,
    check_tensor_index,
    checked_index,
    counted_positions,
    gather_axes,
    indexed_shape,
    position_of_index_axes,
    positions_of_true,
    range_moves,
    scatter_axes,
    slice_range,
)
from tilewright.tensor.primitives.masked_scans import scan_axis
from tilewright.tensor.primitives.reduce import ReduceMixin

_ALLOWED = "give ints, slices, None, ..., lists or tensors of integers or bools"

T = TypeVar("T")


class ValuesAndIndices(NamedTuple, Generic[T]):
    """Elements selected along an axis, and their indices there."""

    values: T
    indices: T


_moves: dict[tuple[Shape, Hashable], tuple[Move, ...]] = {}  # of a shape and an index of numbers and slices
_MAX_MOVES = 4096


def _plain_key(index: Any) -> Hashable | None:
    """An index of Python's integers, slices of them, None and Ellipsis, as a key; None for any other."""
    key: list[Hashable] = []
    for entry in index if index.__class__ is tuple else (index,):
        if entry.__class__ is slice:
            parts = (entry.start, entry.stop, entry.step)
            if any(part is not None and part.__class__ is not int for part in parts):
                return None
            key.append(parts)
        elif entry is None or entry is Ellipsis or entry.__class__ is int:
            key.append(entry)
        else:
            return None
    return tuple(key)


class IndexingMixin(ReduceMixin):
    """t[...], t[...] = v, gather."""

    def __getitem__(self, index: Any) -> Self:
        if _has_single_truth(index):
            widened, index = self._with_axis_per_truth(index)
            return widened[index]
        key = None if symbolic.is_used and is_symbolic(self.shape) else _plain_key(index)
        moves = None if key is None else _moves.get((self.shape, key))
        if moves is not None:
            return self._view(*moves)
        parsed = self._parse_index("getitem", index)
        if key is not None:
            if len(_moves) >= _MAX_MOVES:
                _moves.clear()
            _moves[self.shape, key] = parsed.moves
        view = self._view(*parsed.moves)
        return view._new(gather_axes(view.uop, parsed)) if parsed.tensors else view

    def __delitem__(self, index: Any) -> None:
        remedy = "join the parts to keep, as in x[:2].cat(x[3:]), or select them with a mask"
        raise UnsupportedError("delitem", "the size of a tensor does not change", remedy)

    def __setitem__(self, index: Any, value: Any) -> None:
        if _has_single_truth(index):
            widened, index = self._with_axis_per_truth(index)
            widened[index] = value
            return
        operand = self._operand("setitem", value)
        others = (operand,) if isinstance(operand, TensorBase) else ()
        node = operand.uop if isinstance(operand, TensorBase) else number_node("setitem", self.dtype, operand)
        if node.dtype.is_float and not self.dtype.is_float:
            message = f"{node.dtype.name} values do not fit into {self.dtype.name} elements"
            raise DTypeError("setitem", message, f"cast them, such as `.cast({self.dtype.name!r})`")
        node = build.cast(node, self.dtype)
        mask = self._leading_mask(index)
        if mask is not None:
            self._store((), self._with_masked_values(mask, node), *others)
            return
        parsed = self._parse_index("setitem", index)
        view = apply_moves(self.uop, parsed.moves)
        node = self._fitted("setitem", node, indexed_shape(view.shape, parsed))
        if parsed.tensors:
            node = scatter_axes(view, parsed, node)
        if node is not view:  # `t[i] += v` has already stored its result here
            self._store(parsed.moves, node, *others)

    def _leading_mask(self, index: Any) -> Self | None:
        """The mask, where the index is one bool tensor over this tensor's leading axes; None for any other index."""
        entries = [entry for entry in index if entry is not Ellipsis] if isinstance(index, tuple) else [index]
        if len(entries) != 1 or (isinstance(index, tuple) and index[0] is Ellipsis):
            return None
        mask = entries[0]
        if is_array(mask) and not isinstance(mask, TensorBase) and _is_bool_array(mask):
            mask = self._tensor(mask)
        if not isinstance(mask, TensorBase) or not mask.dtype.is_bool or mask.shape != self.shape[: mask.ndim]:
            return None
        check_devices("setitem", self, mask)
        return cast(Self, mask)

    def _with_masked_values(self, mask: Self, value: UOp) -> UOp:
        """This tensor with the value where the mask is true. Only a value with one element per true position needs the
        positions, which are counted."""
        rest = self.shape[mask.ndim :]
        if len(value.shape) > len(rest) and value.shape[0] != 1:
            count = int(mask._true_count())
            fitted = self._fitted("setitem", value, (count, *rest))
            if count == 0:
                return self.uop
            ones = build.reshape(build.cast(mask.uop, dtypes.int32), (mask._size(),))
            rank = build.contiguous(scan_axis(ones, Ops.ADD, 0)) - 1
            wide = build.expand(build.reshape(rank, (*mask.shape, *(1,) * len(rest))), self.shape)
            others = (build.axis_iota(self.shape, axis) for axis in range(mask.ndim, self.ndim))
            fitted = build.gather(fitted, wide, *others)
        else:
            fitted = self._fitted("setitem", value, (1, *rest))
            fitted = build.broadcast_to(build.reshape(fitted, rest), self.shape)
        condition = build.reshape(mask.uop, (*mask.shape, *(1,) * len(rest)))
        return build.where(build.expand(condition, self.shape), fitted, self.uop)

    def _size(self) -> int:
        return math.prod(self.shape)

    def _true_count(self) -> int:
        """The number of true elements, computed and read by the host: the result's size depends on it."""
        return int(self.sum().item()) if self._size() else 0

    def _found_positions(self) -> UOp:
        """The flat positions of the true elements. Their number is read by the host; on a CPU the loop that finds them
        counts them too. A mask is stored first, and not computed again for the positions."""
        flat = self.contiguous().reshape((self._size(),))
        found = counted_positions(flat.uop, self.device) if self._size() else None
        if found is not None:
            counted = self._new(found).realize()
            count = int(counted[self._size()].item())
            return build.shrink(counted.uop, ((0, count),)) if count else build.const(dtypes.int32, 0, (0,))
        count = flat.realize()._true_count()
        if count == 0:
            return build.const(dtypes.int32, 0, (0,))
        return build.contiguous(positions_of_true(flat.uop, count, self.device))

    def gather(self, dim: int, index: Self) -> Self:
        """out[i][j] = self[index[i][j]][j] for dim 0, and likewise for other axes: the index replaces the position
        along `dim`."""
        axis = check_axis("gather", dim, self.ndim)
        check_devices("gather", self, index)
        if not index.dtype.is_int:
            raise IndexingError("gather", f"an index of dtype {index.dtype.name}", "index with integers")
        if index.ndim != self.ndim or any(
            size > own for k, (size, own) in enumerate(zip(index.shape, self.shape)) if k != axis
        ):
            message = f"index {index.shape} does not lie in shape {self.shape} (axis {dim} aside)"
            raise ShapeError("gather", message, "give as many axes, none larger than the tensor's except the one read")
        if 0 in index.shape:
            return self._new(nodes.nothing_of(self.uop, index.shape))
        if self.ndim == 0:
            return self
        indices = [build.axis_iota(index.shape, k) for k in range(index.ndim)]
        indices[axis] = checked_index("gather", index.uop, axis, self.shape)
        return self._new(build.gather(self.uop, *indices))

    # ------------------------------------------------------------ reading the index

    def _parse_index(self, operation: str, index: Any) -> Parsed:
        entries = self._entries_per_axis(operation, index)
        ranges: list[AxisRange] = []
        sizes: list[int] = []  # axes of the result of the movements
        tensors: dict[int, UOp] = {}
        for entry in entries:
            if entry is None:
                sizes.append(1)
                continue
            axis = len(ranges)
            if isinstance(entry, slice):
                ranges.append(slice_range(operation, entry, self.shape[axis]))
                sizes.append(ranges[-1].length)
                continue
            if isinstance(entry, TensorIndex):
                check_tensor_index(operation, entry, axis, self.shape)
                is_known = entry.least is not None
                tensors[len(sizes)] = (
                    build.wrap_negative(entry.node, self.shape[axis])
                    if is_known
                    else checked_index(operation, entry.node, axis, self.shape)
                )
                ranges.append(AxisRange(0, self.shape[axis]))
                sizes.append(self.shape[axis])
            else:
                ranges.append(AxisRange(check_position(operation, entry, axis, self.shape), 1))
        moves = (*range_moves(ranges, self.shape), (Ops.RESHAPE, tuple(sizes)))
        return Parsed(moves, tensors, position_of_index_axes(tensors))

    def _entries_per_axis(self, operation: str, index: Any) -> list[Any]:
        """One entry for each axis, and the Nones: lists become index tensors, missing entries full slices."""
        given = index if isinstance(index, tuple) else (index,)
        entries = [made for entry in given for made in self._index_entry(operation, entry)]
        used = sum(entry is not None and entry is not Ellipsis for entry in entries)
        if used > self.ndim:
            message = f"{used} indices for shape {self.shape}, which has {self.ndim} axes"
            raise IndexingError(operation, message, f"give at most {self.ndim}")
        ellipses = [k for k, entry in enumerate(entries) if entry is Ellipsis]
        if len(ellipses) > 1:
            raise IndexingError(operation, "more than one Ellipsis", "use ... once")
        first = ellipses[0] if ellipses else len(entries)
        return entries[:first] + [slice(None)] * (self.ndim - used) + entries[first + 1 :]

    def _index_entry(self, operation: str, entry: Any) -> list[Any]:
        if entry is None or entry is Ellipsis or isinstance(entry, slice):
            return [entry]
        if isinstance(entry, TensorBase):
            check_devices(operation, self, entry)
            if entry.dtype.is_bool:
                return self._places_of_mask(cast(Self, entry))
            if entry.dtype.is_int:
                return [TensorIndex(entry.uop)]
            raise IndexingError(operation, f"an index of dtype {entry.dtype.name}", _ALLOWED)
        if isinstance(entry, list | tuple) or (is_array(entry) and getattr(entry, "ndim", None)):
            return self._host_index(operation, entry if isinstance(entry, list | tuple) else entry.tolist())
        if isinstance(entry, bool) or not hasattr(entry, "__index__"):
            raise IndexingError(operation, f"{entry!r} ({type(entry).__name__}) is not an index", _ALLOWED)
        return [entry if type(entry) is SymbolicInt else entry.__index__()]

    def _host_index(self, operation: str, data: Any) -> list[Any]:
        leaves, shape = flatten(data)
        if leaves and all(isinstance(leaf, bool) for leaf in leaves):
            return self._positions_of_true(leaves, shape)
        if not all(hasattr(leaf, "__index__") for leaf in leaves):
            raise IndexingError(operation, "a list that holds more than integers", _ALLOWED)
        numbers = [leaf.__index__() for leaf in leaves]
        return [self._known_index(numbers, shape)]

    def _known_index(self, numbers: list[int], shape: Shape, size: int | None = None) -> TensorIndex:
        if not numbers:
            return TensorIndex(build.const(dtypes.int32, 0, shape), size=size)
        node = build.reshape(self._tensor(numbers).uop, shape)
        return TensorIndex(node, min(numbers), max(numbers), size)

    def _places_of_mask(self, mask: Self) -> list[Any]:
        """A mask, moved to this device, as one index tensor for each of its axes."""
        flat = mask._found_positions()
        if flat.shape == (0,):
            return [TensorIndex(build.const(dtypes.int32, 0, (0,)), size=size) for size in mask.shape]
        found = []
        stride = mask._size()
        for size in mask.shape:
            stride //= size
            found.append(TensorIndex((flat // stride) % size, size=size))
        return found

    def _with_axis_per_truth(self, index: Any) -> tuple[Self, Any]:
        """For an index with scalar bools: this tensor with an axis of size 1 for each, and the index with slice 0:1 or
        0:0 of that axis in place of True or False."""
        entries = list(index) if isinstance(index, tuple) else [index]
        widened = self
        axis = 0
        for number, entry in enumerate(entries):
            if entry is Ellipsis:
                behind = sum(map(_axes_used, entries[number + 1 :]))
                axis = max(self.ndim - behind, axis) + widened.ndim - self.ndim
            elif _is_single_truth(entry):
                widened = widened.unsqueeze(axis)
                entries[number] = [0] if bool(entry) else []
                axis += 1
            else:
                axis += _axes_used(entry)
        return widened, tuple(entries)

    def _positions_of_true(self, flags: list[Any], shape: Shape) -> list[Any]:
        """A mask as one index tensor for each of its axes. Their length is the number of true elements, so the mask is
        computed here."""
        flat = list(compress(range(len(flags)), flags))
        found = []
        stride = math.prod(shape)
        for size in shape:
            stride //= max(size, 1)
            found.append(self._known_index([number // stride % size for number in flat], (len(flat),), size))
        return found


# ---------------------------------------------------------------- bools


def _is_single_truth(entry: Any) -> bool:
    is_tensor = isinstance(entry, TensorBase) and entry.dtype.is_bool and entry.ndim == 0
    return isinstance(entry, bool) or is_tensor or type(entry).__name__ in ("bool_", "bool")


def _has_single_truth(index: Any) -> bool:
    return any(map(_is_single_truth, index)) if isinstance(index, tuple) else _is_single_truth(index)


def _is_bool_array(entry: Any) -> bool:
    """A NumPy array of bools."""
    return getattr(getattr(entry, "dtype", None), "kind", "") == "b"


def _axes_used(entry: Any) -> int:
    """The number of axes that an entry indexes."""
    if entry is None or _is_single_truth(entry):
        return 0
    if isinstance(entry, TensorBase):
        return entry.ndim if entry.dtype.is_bool else 1
    if isinstance(entry, list | tuple):
        leaves, shape = flatten(entry)
        return len(shape) if leaves and all(isinstance(leaf, bool) for leaf in leaves) else 1
    return int(entry.ndim) if _is_bool_array(entry) else 1

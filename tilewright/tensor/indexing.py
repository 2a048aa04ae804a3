"""Indexing. In: ints, slices, None, Ellipsis, lists, integer and bool tensors in brackets. Out: views for the first
four; one GATHER for lists and tensors, never a sum over the axis. Assignment in brackets writes through views; with
tensor indices it selects, for each element, the last value that was meant for it."""

from __future__ import annotations

import math
from itertools import compress
from typing import Any, NamedTuple, Self

from tilewright.base.dtype import dtypes
from tilewright.base.errors import DTypeError, IndexingError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.tensor.convert import flatten, is_array
from tilewright.tensor.core import Move, TensorBase, apply_moves, broadcast_shape, check_axis, check_devices
from tilewright.tensor.linalg import LinalgMixin

_ALLOWED = "give ints, slices, None, ..., lists or tensors of integers or bools"


class TensorIndex(NamedTuple):
    """An index tensor for one axis; where the host knows its values, their range and the size the axis must have."""

    node: UOp
    least: int | None = None
    greatest: int | None = None
    size: int | None = None


class AxisRange(NamedTuple):
    """`length` elements of an axis, `step` apart; `start` is the lowest, `is_reversed` reads them backwards."""

    start: int
    length: int
    step: int = 1
    is_reversed: bool = False


class Parsed(NamedTuple):
    """An index taken apart: movements for the plain parts, then index tensors for some axes of their result."""

    moves: tuple[Move, ...]
    tensors: dict[int, UOp]  # axis after the movements -> index
    place: int  # where the axes of the index tensors stand in the result


class IndexingMixin(LinalgMixin):
    """t[...], t[...] = v, gather."""

    def __getitem__(self, index: Any) -> Self:
        parsed = self._parse_index("getitem", index)
        view = self._view(*parsed.moves)
        return view._new(gather_axes(view.uop, parsed)) if parsed.tensors else view

    def __setitem__(self, index: Any, value: Any) -> None:
        parsed = self._parse_index("setitem", index)
        operand = self._operand("setitem", value)
        if isinstance(operand, TensorBase):
            node = operand.uop
        else:
            node = build.const(self.dtype, operand)
        if node.dtype.is_float and not self.dtype.is_float:
            message = f"{node.dtype.name} values do not fit into {self.dtype.name} elements"
            raise DTypeError("setitem", message, f"cast them, such as `.cast({self.dtype.name!r})`")
        view = apply_moves(self.uop, parsed.moves)
        shape = indexed_shape(view.shape, parsed)
        while len(node.shape) > len(shape) and node.shape[0] == 1:
            node = build.reshape(node, node.shape[1:])
        self._check_fits("setitem", node.shape, shape)
        node = build.broadcast_to(build.cast(node, self.dtype), shape)
        if parsed.tensors:
            node = scatter_axes(view, parsed, node)
        if node is not view:  # `t[i] += v` has stored its result when it comes here
            self._store(parsed.moves, node)

    def _check_fits(self, operation: str, given: Shape, wanted: Shape) -> None:
        """A value broadcasts to what it is stored in, which does not grow."""
        if len(given) > len(wanted) or broadcast_shape(operation, given, wanted) != wanted:
            message = f"a value of shape {given} does not fit into shape {wanted}"
            raise ShapeError(operation, message, "give a value that broadcasts to the place it is stored in")

    def gather(self, dim: int, index: Self) -> Self:
        """out[i][j] = self[index[i][j]][j] for dim 0, and so on: along `dim` the index says where to read."""
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
            return self._new(build.const(self.dtype, 0, index.shape))
        places = [build.axis_iota(index.shape, k) for k in range(index.ndim)]
        places[axis] = wrap_negative(index.uop, self.shape[axis])
        return self._new(build.gather(self.uop, *places))

    # ------------------------------------------------------------ reading the index

    def _parse_index(self, operation: str, index: Any) -> Parsed:
        entries = self._entries_per_axis(operation, index)
        has_tensors = any(isinstance(entry, TensorIndex) for entry in entries)
        ranges: list[AxisRange] = []
        sizes: list[int] = []  # of the result of the movements
        tensors: dict[int, UOp] = {}
        advanced: list[tuple[int, int]] = []  # (number of the entry, axes of the result before it)
        for number, entry in enumerate(entries):
            if entry is None:
                sizes.append(1)
                continue
            axis = len(ranges)
            if isinstance(entry, slice):
                ranges.append(slice_range(operation, entry, self.shape[axis]))
                sizes.append(ranges[-1].length)
                continue
            advanced.append((number, len(sizes) - len(tensors)))
            if isinstance(entry, TensorIndex):
                _check_tensor_index(operation, entry, axis, self.shape)
                tensors[len(sizes)] = wrap_negative(entry.node, self.shape[axis])
                ranges.append(AxisRange(0, self.shape[axis]))
                sizes.append(self.shape[axis])
            else:
                ranges.append(AxisRange(check_position(operation, entry, axis, self.shape), 1))
        moves = (*range_moves(ranges, self.shape), (Ops.RESHAPE, tuple(sizes)))
        numbers = [number for number, _ in advanced]
        # As in NumPy, ints count here: index tensors that are not side by side put their axes in front.
        is_together = has_tensors and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        return Parsed(moves, tensors, advanced[0][1] if is_together else 0)

    def _entries_per_axis(self, operation: str, index: Any) -> list[Any]:
        """One entry for each axis, besides the Nones: lists are index tensors, what is missing is a full slice."""
        given = index if isinstance(index, tuple) else (index,)
        entries = [made for entry in given for made in self._index_entry(operation, entry)]
        used = sum(entry is not None and entry is not Ellipsis for entry in entries)
        if used > self.ndim:
            message = f"{used} indices for shape {self.shape}, which has {self.ndim} axes"
            raise IndexingError(operation, message, f"give at most {self.ndim}")
        places = [place for place, entry in enumerate(entries) if entry is Ellipsis]
        if len(places) > 1:
            raise IndexingError(operation, "more than one Ellipsis", "use ... once")
        place = places[0] if places else len(entries)
        return entries[:place] + [slice(None)] * (self.ndim - used) + entries[place + 1 :]

    def _index_entry(self, operation: str, entry: Any) -> list[Any]:
        if entry is None or entry is Ellipsis or isinstance(entry, slice):
            return [entry]
        if isinstance(entry, TensorBase):
            check_devices(operation, self, entry)
            if entry.dtype.is_bool:
                return self._places_of_true(list(entry._host_view()), entry.shape)  # type: ignore[attr-defined]
            if entry.dtype.is_int:
                return [TensorIndex(entry.uop)]
            raise IndexingError(operation, f"an index of dtype {entry.dtype.name}", _ALLOWED)
        if isinstance(entry, list | tuple) or (is_array(entry) and getattr(entry, "ndim", None)):
            return self._host_index(operation, entry if isinstance(entry, list | tuple) else entry.tolist())
        if isinstance(entry, bool) or not hasattr(entry, "__index__"):
            raise IndexingError(operation, f"{entry!r} ({type(entry).__name__}) is no index", _ALLOWED)
        return [entry.__index__()]

    def _host_index(self, operation: str, data: Any) -> list[Any]:
        leaves, shape = flatten(data)
        if leaves and all(isinstance(leaf, bool) for leaf in leaves):
            return self._places_of_true(leaves, shape)
        if not all(hasattr(leaf, "__index__") for leaf in leaves):
            raise IndexingError(operation, "a list that holds more than integers", _ALLOWED)
        numbers = [leaf.__index__() for leaf in leaves]
        return [self._known_index(numbers, shape)]

    def _known_index(self, numbers: list[int], shape: Shape, size: int | None = None) -> TensorIndex:
        if not numbers:
            return TensorIndex(build.const(dtypes.int32, 0, shape), size=size)
        node = build.reshape(self._tensor(numbers).uop, shape)
        return TensorIndex(node, min(numbers), max(numbers), size)

    def _places_of_true(self, flags: list[Any], shape: Shape) -> list[Any]:
        """A mask as one index for each of its axes. How many are true is known from the values alone, so the mask has
        been computed by now."""
        flat = list(compress(range(len(flags)), flags))
        found = []
        stride = math.prod(shape)
        for size in shape:
            stride //= max(size, 1)
            found.append(self._known_index([place // stride % size for place in flat], (len(flat),), size))
        return found


# ---------------------------------------------------------------- positions and ranges


def check_position(operation: str, position: int, axis: int, shape: Shape) -> int:
    size = shape[axis]
    if not -size <= position < size:
        message = f"index {position} is out of range for axis {axis} of shape {shape}"
        remedy = f"give an index in {-size}..{size - 1}" if size else "the axis has no elements"
        raise IndexingError(operation, message, remedy)
    return position + size if position < 0 else position


def _check_tensor_index(operation: str, index: TensorIndex, axis: int, shape: Shape) -> None:
    if index.size is not None and index.size != shape[axis]:
        message = f"a mask with an axis of {index.size} for axis {axis} of shape {shape}"
        raise IndexingError(operation, message, "give a mask of the same sizes")
    if index.least is not None and index.greatest is not None:
        check_position(operation, index.least, axis, shape)
        check_position(operation, index.greatest, axis, shape)


def slice_range(operation: str, entry: slice, size: int) -> AxisRange:
    """A slice as Python means it, with the lowest element first."""
    try:
        start, stop, step = entry.indices(size)
    except (TypeError, ValueError) as error:
        raise IndexingError(operation, f"{entry}: {error}", "give integers, and a step other than 0") from error
    count = len(range(start, stop, step))
    if count == 0:
        return AxisRange(0, 0)
    return AxisRange(start, count, step) if step > 0 else AxisRange(start + (count - 1) * step, count, -step, True)


def range_moves(ranges: list[AxisRange], shape: Shape) -> list[Move]:
    """The movements that keep those elements. With a step, each axis is cut into rows of `step` elements, of which one
    column stays; the rows reach past the last element, which padding allows where the axis ends there."""
    bounds, pads, rows, columns, kept = [], [], [], [], []
    for (start, count, step, _), size in zip(ranges, shape):
        step = step if count > 1 else 1
        over = max(0, start + count * step - size)
        # Rows may begin before the first element instead of ending behind the last one.
        back = over if over <= start else 0
        stop = min(start - back + count * step, size)
        bounds.append((start - back, stop))
        pads.append((0, start - back + count * step - stop))
        rows += [count, step]
        columns += [(0, count), (back, back + 1) if step > 1 else (0, 1)]
        kept.append(count)
    moves: list[Move] = []
    if tuple(bounds) != tuple((0, size) for size in shape):
        moves.append((Ops.SHRINK, tuple(bounds)))
    if any(entry.step > 1 and entry.length > 1 for entry in ranges):
        moves += [(Ops.PAD, tuple(pads)), (Ops.RESHAPE, tuple(rows)), (Ops.SHRINK, tuple(columns))]
        moves.append((Ops.RESHAPE, tuple(kept)))
    backwards = tuple(axis for axis, entry in enumerate(ranges) if entry.is_reversed)
    if backwards:
        moves.append((Ops.FLIP, backwards))
    return moves


# ---------------------------------------------------------------- index tensors


def wrap_negative(index: UOp, size: int) -> UOp:
    """Negative positions count from the end."""
    if index.vmin >= 0:
        return index
    dtype = index.dtype
    if dtype.bits < 64 and size > int(dtype.max):
        index = build.cast(index, dtypes.int64)
        dtype = dtypes.int64
    from_end = build.alu(Ops.ADD, index, build.const(dtype, size))
    return build.where(build.alu(Ops.CMPLT, index, build.const(dtype, 0)), from_end, index)


def _index_shape(parsed: Parsed) -> Shape:
    """The shape that all index tensors broadcast to."""
    return broadcast_shape("getitem", *(index.shape for index in parsed.tensors.values()))


def _other_axes(shape: Shape, parsed: Parsed) -> list[int]:
    return [axis for axis in range(len(shape)) if axis not in parsed.tensors]


def indexed_shape(shape: Shape, parsed: Parsed) -> Shape:
    """The shape of the result, from that after the movements."""
    if not parsed.tensors:
        return shape
    rest = [shape[axis] for axis in _other_axes(shape, parsed)]
    return (*rest[: parsed.place], *_index_shape(parsed), *rest[parsed.place :])


def gather_axes(node: UOp, parsed: Parsed) -> UOp:
    """The elements that the index tensors name; the other axes are read as they are."""
    shape = indexed_shape(node.shape, parsed)
    if 0 in shape or 0 in node.shape:
        return build.const(node.dtype, 0, shape)
    inner = _index_shape(parsed)
    others = _other_axes(node.shape, parsed)
    indices = []
    for axis in range(len(node.shape)):
        if axis in parsed.tensors:
            wide = build.broadcast_to(parsed.tensors[axis], inner)
            behind = len(shape) - parsed.place - len(inner)
            aligned = build.reshape(wide, (*(1,) * parsed.place, *inner, *(1,) * behind))
            indices.append(build.expand(aligned, shape))
        else:
            number = others.index(axis)
            indices.append(build.axis_iota(shape, number if number < parsed.place else number + len(inner)))
    return build.gather(node, *indices)


def scatter_axes(node: UOp, parsed: Parsed, value: UOp) -> UOp:
    """`node` with `value` (of the indexed shape) at the places the index tensors name; of several values for a place
    the last one stays."""
    inner = _index_shape(parsed)
    count = math.prod(inner)
    if count == 0 or 0 in node.shape:
        return node
    axes = sorted(parsed.tensors)
    sizes = tuple(node.shape[axis] for axis in axes)
    # last[p] is the number of the last index that names place p, or -1.
    table = (count, *sizes)
    matches: UOp | None = None
    for number, axis in enumerate(axes):
        flat = build.reshape(build.broadcast_to(parsed.tensors[axis], inner), (count, *(1,) * len(sizes)))
        position = build.cast(build.axis_iota(table, 1 + number), flat.dtype)
        match = build.alu(Ops.CMPEQ, build.expand(flat, table), position)
        matches = match if matches is None else build.alu(Ops.AND, matches, match)
    assert matches is not None
    turn = build.axis_iota(table, 0)
    offered = build.where(matches, turn, build.const(turn.dtype, -1))
    last = build.reduce_axis(Ops.MAX, offered, (0,))
    aligned = tuple(node.shape[axis] if axis in parsed.tensors else 1 for axis in range(len(node.shape)))
    last = build.expand(build.reshape(last, aligned), node.shape)
    # The value with the axes of the index flattened and in front.
    place, width = parsed.place, len(inner)
    order = (*range(place, place + width), *range(place), *range(place + width, len(value.shape)))
    others = _other_axes(node.shape, parsed)
    rows = build.reshape(build.permute(value, order), (count, *(node.shape[axis] for axis in others)))
    chosen = build.gather(rows, last, *(build.axis_iota(node.shape, axis) for axis in others))
    return build.where(build.alu(Ops.CMPLT, last, build.const(last.dtype, 0)), node, chosen)

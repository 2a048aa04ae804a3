"""The steps of indexing. In: a parsed index, one entry for each axis. Out: movement nodes for ints and slices, and one
GATHER, or one selection, for the index tensors. Errors about a single entry are raised here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dtype import dtypes
from tilewright.base.errors import IndexingError, ShapeError, UnsupportedError, UserError
from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.gradients.gather import flat_number, stored_if_large
from tilewright.graph.ops import CheckArg, Ops
from tilewright.graph.sizes import is_symbolic, larger_size, min_size, smaller_size
from tilewright.graph.spec import Devices, Shape
from tilewright.graph.symbolic import capacity
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.core import nodes
from tilewright.tensor.core.checks import broadcast_shape, is_whole, whole
from tilewright.tensor.core.moves import Move
from tilewright.tensor.primitives.masked_scans import scan_axis


class TensorIndex(NamedTuple):
    """An index tensor for one axis; where the host knows its values, also their range and the required size of the
    axis."""

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
    """A parsed index: movements for ints and slices, then index tensors for some axes of their result."""

    moves: tuple[Move, ...]
    tensors: dict[int, UOp]  # axis after the movements -> index
    position: int  # position in the result of the axes of the index tensors


# ---------------------------------------------------------------- positions and ranges


_KEEPING_ALL = (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.FLIP)


def check_known_range(operation: str, index: UOp, axis: int, shape: Shape) -> None:
    """Raises an error where the values of an index are known (a constant, or a list) and one is out of range for the
    axis."""
    if index.vmin >= shape[axis] or index.vmax < -shape[axis]:
        check_position(operation, int(index.vmin), axis, shape)
        check_position(operation, int(index.vmax), axis, shape)
    for limit in known_limits(index):
        check_position(operation, limit, axis, shape)


def known_limits(index: UOp) -> Sequence[int]:
    """The minimum and maximum of values that were made from host data, else None. They stay valid, since memory that is
    written to gets another node."""
    while index.op in _KEEPING_ALL:
        index = index.src[0]
    return index.cache.get("limits", ()) if index.op is Ops.BUFFER else ()


def check_position(operation: str, position: int, axis: int, shape: Shape) -> int:
    size = shape[axis]
    if not -size <= position < size:
        message = f"index {position} is out of range for axis {axis} of shape {shape}"
        remedy = f"give an index in {-size}..{size - 1}" if size else "the axis has no elements"
        raise IndexingError(operation, message, remedy)
    return position + size if position < 0 else position


def checked_index(operation: str, index: UOp, axis: int, shape: Shape) -> UOp:
    """An index into an axis, with negative values counted from the end. A value out of range is an error: at once where
    the values are known, else when the result is computed. Known values are checked again at run time, since jit may
    replay the graph with another buffer."""
    if 0 in index.shape:
        return index
    size = shape[axis]
    if size == 0:
        raise IndexingError(operation, f"axis {axis} of shape {shape} is indexed", "the axis has no elements")
    if is_symbolic((size,)):
        message = f"an index tensor along axis {axis} of shape {shape}, whose size is a variable"
        raise UnsupportedError(operation, message, "index before the tensor is sliced, or by int(...) of the sizes")
    check_known_range(operation, index, axis, shape)
    if -size <= index.vmin and index.vmax < size:
        return build.wrap_negative(index, size)
    return build.check_range(index, CheckArg(size, True, operation=operation, of_what=f"axis {axis} of shape {shape}"))


def checked_classes(operation: str, classes: UOp, count: int, ignored: int | None = None) -> UOp:
    """Class numbers, checked to lie in 0..count-1; one further number may be reserved for 'no class'."""
    if count == 0 or 0 in classes.shape or (0 <= classes.vmin and classes.vmax < min_size(count)):
        return classes
    if is_symbolic((count,)):
        if _counts_to(classes, count):
            return classes
        message = f"classes of {count}, a number that is a variable"
        raise UnsupportedError(operation, message, "give a constant number of classes, or classes by Tensor.arange")
    for limit in known_limits(classes):
        if not 0 <= limit < count and limit != ignored:
            message = f"class {limit} is out of range for {count} classes"
            raise IndexingError(operation, message, f"give numbers in 0..{count - 1}")
    valid = None
    if ignored is not None:
        valid = build.alu(Ops.CMPNE, classes, build.const(classes.dtype, ignored))
    return build.check_range(classes, CheckArg(count, operation=operation, of_what=f"{count} classes"), valid)


def _counts_to(classes: UOp, count: int) -> bool:
    """Whether the classes are 0, 1, ..., count - 1, each once."""
    while classes.op in (Ops.CAST, Ops.RESHAPE):
        classes = classes.src[0]
    return classes.op is Ops.IOTA and classes.arg == (count,)


def check_tensor_index(operation: str, index: TensorIndex, axis: int, shape: Shape) -> None:
    if index.size is not None and index.size != shape[axis]:
        message = f"a mask with an axis of {index.size} for axis {axis} of shape {shape}"
        raise IndexingError(operation, message, "give a mask of the same sizes")
    if index.least is not None and index.greatest is not None:
        check_position(operation, index.least, axis, shape)
        check_position(operation, index.greatest, axis, shape)


def _symbolic_range(operation: str, entry: slice, size: int) -> AxisRange:
    """A slice with symbolic ends, or of a symbolic axis. Each end must be in range for all values in bounds; a negative
    int counts from the end."""
    step = 1 if entry.step is None else entry.step
    if type(step) is not int or step < 1:
        message = f"a step of {step} along an axis of size {size}, from {entry.start} to {entry.stop}"
        raise UnsupportedError(operation, message, "slice with a positive step, or by int(...) of the sizes")
    ends = []
    for end, default in ((entry.start, 0), (entry.stop, size)):
        if end is None:
            ends.append(default)
            continue
        if not is_whole(end):
            raise IndexingError(operation, f"{entry}: {end!r} is not an integer", "give integers")
        plain = whole(end)
        ends.append(size + plain if capacity(plain) < 0 else plain)
    start, stop = ends
    # A plain int beyond the axis is clamped, as for a plain axis.
    if not is_symbolic((stop,)):
        stop = smaller_size(stop, size)
    try:
        if 0 <= start <= stop <= size:
            return AxisRange(start, (stop - start + step - 1) // step, step)
    except ShapeError as error:
        message = f"the slice {start}:{stop} does not lie in an axis of size {size} for all values: {error.message}"
        remedy = "give the variable bounds with 0 <= start <= stop <= size, or slice by int(...)"
        raise IndexingError(operation, message, remedy) from error
    raise IndexingError(
        operation, f"the slice {start}:{stop} does not lie in an axis of size {size}", "give 0 <= start <= stop <= size"
    )


def slice_range(operation: str, entry: slice, size: int) -> AxisRange:
    """A slice with Python's meaning, as a range whose lowest element comes first."""
    if is_symbolic((size, entry.start, entry.stop)):
        is_all = entry.start is None and entry.stop is None and entry.step in (None, 1, -1)
        if is_all:
            return AxisRange(0, size, 1, entry.step == -1)
        return _symbolic_range(operation, entry, size)
    try:
        start, stop, step = entry.indices(size)
    except UserError:  # a Variable that is not bound
        raise
    except (TypeError, ValueError) as error:
        raise IndexingError(operation, f"{entry}: {error}", "give integers, and a step other than 0") from error
    count = len(range(start, stop, step))
    if count == 0:
        return AxisRange(0, 0)
    return AxisRange(start, count, step) if step > 0 else AxisRange(start + (count - 1) * step, count, -step, True)


def range_moves(ranges: list[AxisRange], shape: Shape) -> list[Move]:
    """The movements that select those elements. With a step, an axis is reshaped into rows of `step` elements and one
    column is kept; where the last row is incomplete, the axis is padded first."""
    bounds, pads, rows, columns, kept = [], [], [], [], []
    for (start, count, step, _), size in zip(ranges, shape):
        if step == 1:
            bounds.append((start, start + count))
            pads.append((0, 0))
            rows += [count, 1]
            columns += [(0, count), (0, 1)]
            kept.append(count)
            continue
        step = step if capacity(count) > 1 else 1
        over = larger_size(0, start + count * step - size)
        # Where possible the rows start `back` elements earlier instead, and column `back` is kept.
        back = over if not is_symbolic((over, start)) and over <= start else 0
        stop = smaller_size(start - back + count * step, size)
        bounds.append((start - back, stop))
        pads.append((0, start - back + count * step - stop))
        rows += [count, step]
        columns += [(0, count), (back, back + 1) if step > 1 else (0, 1)]
        kept.append(count)
    moves: list[Move] = []
    if tuple(bounds) != tuple((0, size) for size in shape):
        moves.append((Ops.SHRINK, tuple(bounds)))
    if any(entry.step > 1 and entry.length != 1 for entry in ranges):
        moves += [(Ops.PAD, tuple(pads)), (Ops.RESHAPE, tuple(rows)), (Ops.SHRINK, tuple(columns))]
        moves.append((Ops.RESHAPE, tuple(kept)))
    backwards = tuple(axis for axis, entry in enumerate(ranges) if entry.is_reversed)
    if backwards:
        moves.append((Ops.FLIP, backwards))
    return moves


# ---------------------------------------------------------------- index tensors

# The least length of a row whose true elements are found by a kernel of its own size.
MIN_SERIAL = 1 << 12


def counted_positions(mask: UOp, device: Devices) -> UOp | None:
    """The positions of the true elements of a row of bools, the row's length for each of the others, and the number of
    true elements; None where the device is no CPU, which finds them in one serial loop, or the row is short."""
    (size,) = mask.shape
    if isinstance(device, str) and not is_symbolic(mask.shape) and MIN_SERIAL <= size < dtypes.int32.max:
        target = open_driver(device).target
        if target.has_threads and not target.has_local:
            from tilewright.graph.kernels.scans.positions import positions  # imported where needed: imports stay short

            return positions(build.contiguous(mask))
    return None


def positions_of_true(mask: UOp, count: int, device: Devices) -> UOp:
    """The positions of the first `count` true elements of a row of bools; the row's length where there are fewer."""
    found = counted_positions(mask, device) if count <= mask.shape[0] else None
    if found is not None:
        return build.shrink(found, ((0, count),))
    running = build.contiguous(scan_axis(build.cast(mask, dtypes.int32), Ops.ADD, 0))
    return nodes.count_not_greater(running, build.iota(count))


def position_of_index_axes(tensors: dict[int, UOp]) -> int:
    """The position in the result of the axes of the index tensors: that of the first one, or 0 where another axis lies
    between two of them. As in torch, ints and 0-d tensors are ignored, since they have no axes."""
    with_axes = [axis for axis in sorted(tensors) if tensors[axis].shape]
    if not with_axes:
        return 0
    without = [axis for axis in tensors if not tensors[axis].shape]
    apart = [axis - sum(other < axis for other in without) for axis in with_axes]
    if apart != list(range(apart[0], apart[0] + len(apart))):
        return 0
    return apart[0]


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
    return (*rest[: parsed.position], *_index_shape(parsed), *rest[parsed.position :])


def gather_axes(node: UOp, parsed: Parsed) -> UOp:
    """The elements at the index tensors; the other axes are read whole."""
    shape = indexed_shape(node.shape, parsed)
    if 0 in shape:
        return nodes.nothing_of(node, shape)
    if 0 in node.shape:
        return build.const(node.dtype, 0, shape)
    inner = _index_shape(parsed)
    others = _other_axes(node.shape, parsed)
    indices = []
    for axis in range(len(node.shape)):
        if axis in parsed.tensors:
            wide = build.broadcast_to(parsed.tensors[axis], inner)
            behind = len(shape) - parsed.position - len(inner)
            aligned = build.reshape(wide, (*(1,) * parsed.position, *inner, *(1,) * behind))
            indices.append(build.expand(aligned, shape))
        else:
            number = others.index(axis)
            indices.append(build.axis_iota(shape, number if number < parsed.position else number + len(inner)))
    return build.gather(node, *indices)


def scatter_axes(node: UOp, parsed: Parsed, value: UOp) -> UOp:
    """`node` with `value` (of the indexed shape) stored at the index tensors; where several values have the same
    position, the last one is kept."""
    inner = _index_shape(parsed)
    count = math.prod(inner)
    if count == 0 or 0 in node.shape:
        return node
    axes = sorted(parsed.tensors)
    sizes = tuple(node.shape[axis] for axis in axes)
    # last[p] is the number of the last index equal to p, or negative.
    dtype = dtypes.int32 if math.prod(sizes) < 1 << 31 else dtypes.int64
    wide = [build.reshape(build.broadcast_to(parsed.tensors[axis], inner), (count,)) for axis in axes]
    table = (math.prod(sizes), count)
    named = build.expand(build.reshape(flat_number(wide, list(sizes), dtype), (1, count)), table)
    matches = build.alu(Ops.CMPEQ, named, build.cast(build.axis_iota(table, 0), dtype))
    number = build.axis_iota(table, 1)
    offered = build.where(matches, number, build.const(number.dtype, number.dtype.min))
    last = stored_if_large(build.reduce_axis(Ops.MAX, offered, (1,)), math.prod(table))
    aligned = tuple(node.shape[axis] if axis in parsed.tensors else 1 for axis in range(len(node.shape)))
    last = build.expand(build.reshape(last, aligned), node.shape)
    # The value with the axes of the index flattened and moved to the front.
    position, width = parsed.position, len(inner)
    order = (*range(position, position + width), *range(position), *range(position + width, len(value.shape)))
    others = _other_axes(node.shape, parsed)
    rows = build.reshape(build.permute(value, order), (count, *(node.shape[axis] for axis in others)))
    chosen = build.gather(rows, last, *(build.axis_iota(node.shape, axis) for axis in others))
    return build.where(build.alu(Ops.CMPLT, last, build.const(last.dtype, 0)), node, chosen)

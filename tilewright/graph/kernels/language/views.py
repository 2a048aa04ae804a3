"""Views of memory, and reductions over them, in custom kernels. In: memory with a partial index, such as `x[row]` or
`x[:, 1:9]`, and elementwise expressions of such views. Out: VIEW nodes, which have offset, shape and strides; one
element of an expression; and the reduction of all of them as a REDUCE over new loops. Part of `language.py`, which
removes the VIEWs when the kernel is complete. On nodes of a tensor graph the same reductions are REDUCE_AXIS nodes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import DType, dtypes, to_dtype
from tilewright.base.errors import AxisError, IndexingError, KernelError, ShapeError
from tilewright.graph.kernels.language.values import MEMORY, checked_index, is_memory, load_of, marked, row_major
from tilewright.graph.ops import Axis, AxisType, Ops, ViewArg
from tilewright.graph.spec import Op, Shape
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import substitute, toposort

# The provisional id of loops that a reduction makes, until the kernel is complete and all other ids are known.
_OWN_LOOP = 1 << 20
_own_loops = itertools.count()


# ---------------------------------------------------------------- parts of memory


def layout_of(memory: UOp) -> tuple[UOp, Shape, tuple[int, ...]]:
    """The flat position of the first element, the shape, and the strides."""
    if memory.op is Ops.VIEW:
        return memory.src[1], memory.arg.shape, memory.arg.strides
    strides = tuple(math.prod(memory.shape[axis + 1 :]) for axis in range(len(memory.shape)))
    return index_const(0), memory.shape, strides


def moved(position: UOp, idx: UOp, stride: int) -> UOp:
    """The position `idx` elements further along an axis."""
    step = index_const(int(idx.arg) * stride) if idx.is_const else idx * stride if stride != 1 else idx
    if step.is_const and step.arg == 0:
        return position
    return step if position.is_const and position.arg == 0 else position + step


def _difference(last: UOp, first: UOp) -> int | None:
    """The difference of two positions, where it is constant."""
    from tilewright.graph.affine import affine  # imported late: few kernels need it

    form = affine(last).plus(affine(first), -1)
    return None if form.terms else form.constant


def index_memory(memory: UOp, key: Any) -> UOp:
    """One element, given by an index per axis. Fewer indices, or slices among them, give a view."""
    if not is_memory(memory) and memory.shape:
        return element(memory, _full_index(memory.shape, key))
    if not is_memory(memory):
        remedy = "index an argument of the kernel or a placeholder"
        raise IndexingError("index", f"{memory.op.name} is one value and has no axes", remedy)
    indices = entries_of(memory.shape, key)
    shape = memory.shape
    if any(isinstance(entry, slice) for entry in indices):
        return view_of(memory, indices)
    checked = [checked_index(idx, size, axis, shape) for axis, (idx, size) in enumerate(zip(indices, shape))]
    if memory.op is not Ops.VIEW:
        return marked(UOp(Ops.INDEX, memory.dtype, (memory, row_major(checked, shape))))
    position, _, strides = layout_of(memory)
    for idx, stride in zip(checked, strides, strict=True):
        position = moved(position, idx, stride)
    return marked(UOp(Ops.INDEX, memory.dtype, (memory, position)))


def _full_index(shape: Shape, key: Any) -> list[UOp]:
    """An index per axis of an expression of views."""
    indices = key if isinstance(key, tuple) else (key,)
    if len(indices) != len(shape) or any(isinstance(entry, slice) or entry is Ellipsis for entry in indices):
        message = f"{len(indices)} indices for values of shape {shape}"
        raise IndexingError("index", message, "give one integer per axis; slice the memory before computing with it")
    return [checked_index(idx, size, axis, shape) for axis, (idx, size) in enumerate(zip(indices, shape))]


def entries_of(shape: Shape, key: Any) -> list[Any]:
    """An entry for each axis; missing entries are full slices."""
    given = list(key) if isinstance(key, tuple) else [key]
    places = [place for place, entry in enumerate(given) if entry is Ellipsis]
    used = len(given) - len(places)
    if used > len(shape) or len(places) > 1:
        message = f"{used} indices for shape {shape}, which has {len(shape)} axes"
        raise IndexingError("index", message, "give at most one index per axis")
    place = places[0] if places else len(given)
    return given[:place] + [slice(None)] * (len(shape) - used) + given[place + len(places) :]


def view_of(memory: UOp, entries: Sequence[Any]) -> UOp:
    """The view that integers and slices select."""
    base, shape, strides = layout_of(memory)
    kept: list[tuple[int, int]] = []
    for axis, (entry, size, stride) in enumerate(zip(entries, shape, strides, strict=True)):
        if isinstance(entry, slice):
            first, length, step = _slice_part(entry, size, axis, shape)
            kept.append((length, stride * step))
        else:
            first = checked_index(entry, size, axis, shape)
        base = moved(base, first, stride)
    arg = ViewArg(tuple(length for length, _ in kept), tuple(step for _, step in kept))
    root = memory.src[0] if memory.op is Ops.VIEW else memory
    return marked(UOp(Ops.VIEW, memory.dtype, (root, base), arg))


def _slice_part(entry: slice, size: int, axis: int, shape: Shape) -> tuple[UOp, int, int]:
    """The start, length and step of a slice. Its ends may be expressions where the length is constant, as in x[i * 8 :
    i * 8 + 8]."""
    if isinstance(entry.start, UOp) or isinstance(entry.stop, UOp):
        start = entry.start if isinstance(entry.start, UOp) else index_const(entry.start or 0)
        stop = entry.stop if isinstance(entry.stop, UOp) else index_const(size if entry.stop is None else entry.stop)
        first, last = (checked_index(each, size + 1, axis, shape) for each in (start, stop))
        length = _difference(last, first)
        if entry.step not in (None, 1) or length is None or length < 1:
            message = f"axis {axis} of shape {shape} is sliced by expressions"
            raise IndexingError("index", message, "let their difference be constant, with a step of 1")
        return first, length, 1
    try:
        begin, end, step = entry.indices(size)
    except (TypeError, ValueError) as error:
        raise IndexingError("index", f"{entry}: {error}", "give integers, and a step other than 0") from error
    count = len(range(begin, end, step))
    if count == 0:
        message = f"the slice {entry} of axis {axis} of shape {shape} is empty"
        raise IndexingError("index", message, "keep at least one element")
    return index_const(begin), count, step


def flatten(node: UOp) -> UOp:
    """All elements along one axis; the view must be contiguous."""
    count = (math.prod(node.shape),)
    if node.op is Ops.VIEW:
        base, shape, strides = layout_of(node)
        if strides != tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))):
            raise KernelError("flatten", f"a slice of shape {shape} has gaps", "index it, or flatten before the slice")
        return marked(UOp(Ops.VIEW, node.dtype, (node.src[0], base), ViewArg(count, (1,))))
    return node if node.shape == count else marked(UOp(Ops.RESHAPE, node.dtype, (node,), count))


# ---------------------------------------------------------------- reductions


def reduce_node(op: Op, node: UOp, axis: int | Sequence[int] | None, keepdim: bool, dtype: DType | str | None) -> UOp:
    """The reduction of a tensor graph's node, or of views of a kernel's memory, over the given axes, by default all. In
    a kernel a result without axes is a value."""
    name = {Ops.ADD: "sum", Ops.MUL: "prod", Ops.MAX: "max", Ops.MIN: "min"}[op]
    rank = len(node.shape)
    axes = tuple(range(rank)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    for each in axes:
        if not isinstance(each, int) or not -rank <= each < rank:
            raise AxisError(name, f"axis {each} of shape {node.shape}", f"give axes in {-rank}..{rank - 1}")
    wanted = sorted({each % rank for each in axes}) if rank else []
    if 0 in node.shape:
        raise ShapeError(name, f"shape {node.shape} has no elements", "reduce over at least one element")
    source = node if dtype is None else node.cast(to_dtype(dtype))
    folded = UOp(Ops.REDUCE_AXIS, source.dtype, (source,), (op, tuple(wanted))) if wanted else source
    shape = folded.shape if keepdim else tuple(size for k, size in enumerate(folded.shape) if k not in wanted)
    made = folded if folded.shape == shape else UOp(Ops.RESHAPE, folded.dtype, (folded,), shape)
    is_value = not made.shape and any(leaf.op in MEMORY for leaf in toposort(made))
    return marked(element(made, ()) if is_value else made)


def sum_over(
    node: UOp, axis: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DType | str | None = None
) -> UOp:
    """The sum over axes, by default all: of views of memory, as in x[row].sum(), and of expressions of them."""
    return reduce_node(Ops.ADD, node, axis, keepdim, dtype)


def product_over(
    node: UOp, axis: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DType | str | None = None
) -> UOp:
    """The product over axes, as `sum`."""
    return reduce_node(Ops.MUL, node, axis, keepdim, dtype)


def max_over(node: UOp, axis: int | Sequence[int] | None = None, keepdim: bool = False) -> UOp:
    """The maximum over axes, as `sum`."""
    return reduce_node(Ops.MAX, node, axis, keepdim, None)


def min_over(node: UOp, axis: int | Sequence[int] | None = None, keepdim: bool = False) -> UOp:
    """The minimum over axes, as `sum`."""
    return reduce_node(Ops.MIN, node, axis, keepdim, None)


def element(node: UOp, indices: Sequence[Any]) -> UOp:
    """One element of an expression of views."""
    if is_memory(node):
        return index_memory(node, tuple(indices))
    if node.op.is_elementwise:
        wrong = [src.shape for src in node.src if src.shape and src.shape != node.shape]
        if wrong:
            message = f"{node.op.name} of shapes {node.shape} and {wrong[0]}"
            raise ShapeError("kernel", message, "give views of one shape")
        return node.with_src(tuple(element(src, indices) if src.shape else src for src in node.src))
    if node.op is Ops.RESHAPE:
        # It removes axes of size 1, whose index is 0, or inserts them.
        remaining = iter(idx for idx, size in zip(indices, node.shape, strict=True) if size != 1)
        return element(node.src[0], [index_const(0) if size == 1 else next(remaining) for size in node.src[0].shape])
    if node.op is Ops.REDUCE_AXIS:
        op, axes = node.arg
        inner, loops = list(indices) or [index_const(0)] * len(node.shape), []
        for axis in axes:
            inner[axis] = index_const(0)
            if node.src[0].shape[axis] > 1:
                loop = Axis((_OWN_LOOP, next(_own_loops)), AxisType.REDUCE)
                inner[axis] = UOp(Ops.RANGE, dtypes.index, (index_const(node.src[0].shape[axis]),), loop)
                loops.append(inner[axis])
        value = element(node.src[0], inner)
        value = load_of(value) if value.op is Ops.INDEX else value
        return UOp(Ops.REDUCE, node.dtype, (value, *loops), op) if loops else value
    raise KernelError("index", f"{node.op.name} cannot be indexed in a kernel", "use views of memory and arithmetic")


def number_own_loops(sink: UOp) -> UOp:
    """The kernel with the loops of its reductions numbered after the user's, so that equal kernels have equal nodes."""
    ranges = [node for node in toposort(sink) if node.op is Ops.RANGE]
    own = sorted((node for node in ranges if node.arg.id[0] == _OWN_LOOP), key=lambda node: node.arg.id)
    if not own:
        return sink
    first = max((node.arg.id[0] for node in ranges if node.arg.id[0] != _OWN_LOOP), default=-1) + 1
    return substitute(sink, {loop: loop.replace(arg=Axis((first + k,), loop.arg.kind)) for k, loop in enumerate(own)})

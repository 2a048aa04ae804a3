"""Movement operations: they change the position of elements and never their value. In: tensors and sizes. Out: views,
without a copy. A view knows the tensor it was made from, so an assignment to it writes to that tensor. `cat` selects
between padded parts and never adds, so that NaN payloads and -0.0 are preserved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, TypeVar, cast

from tilewright.base.dtype import Scalar, promote
from tilewright.base.errors import AxisError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import larger_size
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import TensorBase, check_devices
from tilewright.tensor.core.checks import (
    Axes,
    check_axes,
    check_axis,
    check_axis_of_some,
    check_holds,
    check_whole,
    is_whole,
    pads_from,
    resolve_minus_one,
    shape_from,
)
from tilewright.tensor.core.storage import StorageMixin

T = TypeVar("T")


def joined_tensors(first: T, others: Sequence[T | Sequence[T]]) -> list[T]:
    """The tensors of `a.cat(b, c)`, `Tensor.cat(a, b, c)` and `Tensor.cat([a, b, c])`."""
    found: list[T] = []
    for entry in (first, *others):
        found.extend(cast(Sequence[T], entry) if isinstance(entry, tuple | list) else (cast(T, entry),))
    if not found:
        raise ShapeError("cat", "no tensors", "give at least one")
    return found


def joined_along(first: T, others: tuple[Any, ...], dim: int) -> tuple[list[T], int]:
    """The tensors and the axis, which follows a list in `Tensor.cat([a, b, c], 1)`."""
    if isinstance(first, tuple | list) and len(others) == 1 and is_whole(others[0]):
        return joined_tensors(first, ()), others[0]
    return joined_tensors(first, others), dim


def check_joinable(operation: str, tensors: Sequence[TensorBase], axis: int) -> None:
    """Raises an error unless all sizes but that of the axis are equal."""
    first = tensors[0].shape
    for tensor in tensors[1:]:
        shape = tensor.shape
        if len(shape) != len(first) or nodes.replace_axis(shape, axis) != nodes.replace_axis(first, axis):
            message = f"shapes {first} and {shape} differ outside of axis {axis}"
            raise ShapeError(operation, message, "make all other sizes equal")


class ShapeMixin(StorageMixin):
    """reshape, permute, pad, cat, ..."""

    # ------------------------------------------------------------ sizes of axes

    def reshape(self, shape: Any = (), *args: Any) -> Self:
        """The same elements in row-major order under another shape; one size may be -1, and None keeps the size of the
        axis at that position."""
        given = tuple(shape) if not args and isinstance(shape, tuple | list) else (shape, *args)
        if any(size is None for size in given):
            given = self._filled_sizes("reshape", given)
        sizes = resolve_minus_one("reshape", shape_from("reshape", (given,)), math.prod(self.shape), self.shape)
        return self._view((Ops.RESHAPE, sizes))

    def _filled_sizes(self, operation: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sizes with each None replaced by the size of this tensor's axis at the same position."""
        if any(size is None for size in given[self.ndim :]):
            message = f"sizes {given} for shape {self.shape}, which has no axis at the last None"
            raise ShapeError(operation, message, "give None only at positions of axes of the tensor")
        return tuple(self.shape[axis] if size is None else size for axis, size in enumerate(given))

    def view(self, shape: Any = (), *args: Any) -> Self:
        """As `reshape`."""
        return self.reshape(shape, *args)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The axes `start_dim` to `end_dim` merged into one."""
        start = check_axis("flatten", start_dim, self.ndim)
        end = check_axis("flatten", end_dim, self.ndim)
        if start > end:
            message = f"axis {start_dim} is after axis {end_dim} in shape {self.shape}"
            raise AxisError("flatten", message, "give start_dim <= end_dim")
        return self.reshape(*self.shape[:start], math.prod(self.shape[start : end + 1]), *self.shape[end + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """The axis `dim` split into several; one size may be -1."""
        axis = check_axis("unflatten", dim, self.ndim)
        wanted = shape_from("unflatten", (sizes,))
        parts = resolve_minus_one("unflatten", wanted, self.shape[axis], self.shape[axis : axis + 1])
        return self.reshape(*self.shape[:axis], *parts, *self.shape[axis + 1 :])

    def squeeze(self, dim: Axes = None) -> Self:
        """Without the axes of size 1, or without those of `dim` that have size 1."""
        axes = check_axes("squeeze", dim, self.ndim)
        return self.reshape(tuple(size for axis, size in enumerate(self.shape) if axis not in axes or size != 1))

    def unsqueeze(self, dim: int) -> Self:
        """With an axis of size 1 inserted at `dim`."""
        axis = check_axis("unsqueeze", dim, self.ndim + 1)
        return self.reshape(*self.shape[:axis], 1, *self.shape[axis:])

    def expand(self, shape: Any = (), *args: Any) -> Self:
        """Axes of size 1 repeated without a copy; -1 keeps a size, new axes come in front."""
        wanted = shape_from("expand", (shape, *args))
        missing = len(wanted) - self.ndim
        aligned = (1,) * missing + self.shape
        if missing < 0 or any(new not in (-1, old) and old != 1 for old, new in zip(aligned, wanted)):
            remedy = "only axes of size 1 can be expanded; every other size stays as it is (or -1)"
            raise ShapeError("expand", f"shape {self.shape} does not expand to {wanted}", remedy)
        sizes = tuple(old if new == -1 else new for old, new in zip(aligned, wanted))
        return self._view((Ops.RESHAPE, aligned), (Ops.EXPAND, sizes))

    # ------------------------------------------------------------ order of axes

    def permute(self, order: Any = (), *args: Any) -> Self:
        """The axes in another order."""
        wanted = shape_from("permute", (order, *args))
        axes = check_axes("permute", wanted, self.ndim)
        if len(axes) != self.ndim:
            remedy = f"name each of the {self.ndim} axes once"
            raise AxisError("permute", f"order {wanted} is not a permutation of the axes of shape {self.shape}", remedy)
        return self._view((Ops.PERMUTE, axes))

    def transpose(self, dim0: int | tuple[int, ...] | list[int] | None = 1, dim1: int = 0) -> Self:
        """With two axes exchanged. `numpy.transpose` asks for all axes in reverse order (None) or in any (a list)."""
        if dim0 is None or isinstance(dim0, tuple | list):
            return self.T if dim0 is None else self.permute(*dim0)
        order = list(range(self.ndim))
        first, second = (check_axis("transpose", dim, self.ndim) for dim in (dim0, dim1))
        if order:
            order[first], order[second] = order[second], order[first]
        return self._view((Ops.PERMUTE, tuple(order)))

    @property
    def T(self) -> Self:
        """The axes in reverse order."""
        return self._view((Ops.PERMUTE, tuple(reversed(range(self.ndim)))))

    @property
    def mT(self) -> Self:
        """Each matrix transposed."""
        return self.transpose(-2, -1)

    def flip(self, axis: Any = (), *args: Any) -> Self:
        """With some axes reversed."""
        return self._view((Ops.FLIP, check_axes("flip", shape_from("flip", (axis, *args)), self.ndim)))

    # ------------------------------------------------------------ ranges of elements

    def shrink(self, arg: Sequence[tuple[int, int] | None]) -> Self:
        """The elements from `start` to `stop` of each axis; None keeps an axis."""
        if not isinstance(arg, tuple | list) or len(arg) != self.ndim:
            message = f"ranges {arg!r} for the {self.ndim} axes of shape {self.shape}"
            raise ShapeError("shrink", message, "give (start, stop) or None for every axis")
        if not all(pair is None or isinstance(pair, tuple | list) for pair in arg):
            raise ShapeError("shrink", f"ranges {arg!r}", "give (start, stop) or None for every axis")
        pairs = tuple((0, size) if pair is None else tuple(pair) for pair, size in zip(arg, self.shape))
        check_whole("shrink", "range", *(number for pair in pairs for number in pair))
        for pair, size in zip(pairs, self.shape):
            if len(pair) != 2 or not 0 <= pair[0] <= pair[1] <= size:
                message = f"range {pair} does not lie in an axis of size {size} (shape {self.shape})"
                raise ShapeError("shrink", message, "give 0 <= start <= stop <= size")
        return self._view((Ops.SHRINK, pairs))

    def _slice_axis(self, axis: int, start: int, stop: int) -> Self:
        pairs = tuple((start, stop) if k == axis else (0, size) for k, size in enumerate(self.shape))
        return self._view((Ops.SHRINK, pairs))

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Pieces along an axis: all of one size (the last may be smaller), or of the given sizes."""
        axis = check_axis_of_some("split", dim, self.shape)
        length = self.shape[axis]
        if not isinstance(sizes, tuple | list):
            check_whole("split", "sizes", sizes, least=1)
            size = int(cast(int, sizes))
            sizes = [min(size, length - start) for start in range(0, max(length, 1), size)]
        check_whole("split", "sizes", *sizes, least=0)
        if sum(sizes) != length:
            message = f"sizes {tuple(sizes)} add up to {sum(sizes)}, but axis {dim} of shape {self.shape} has {length}"
            raise ShapeError("split", message, f"give sizes that add up to {length}")
        starts = [sum(sizes[:k]) for k in range(len(sizes))]
        return tuple(self._slice_axis(axis, start, start + size) for start, size in zip(starts, sizes))

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """At most `chunks` pieces of equal size along an axis; the last may be smaller."""
        axis = check_axis_of_some("chunk", dim, self.shape)
        check_whole("chunk", "chunks", chunks, least=1)
        return self.split(max(1, -(-self.shape[axis] // chunks)), axis)

    # ------------------------------------------------------------ padding

    def pad(self, padding: Sequence[Any], mode: str = "constant", value: Scalar = 0.0) -> Self:
        """Elements added around the axes: `padding` is in torch's flat order (last axis first) or has a pair for every
        axis; a negative number removes elements. Modes are constant, reflect, replicate and circular."""
        pairs = pads_from("pad", padding, self.shape)
        if mode not in ("constant", "reflect", "replicate", "circular"):
            raise ShapeError("pad", f"mode {mode!r}", "give constant, reflect, replicate or circular")
        grown = tuple((larger_size(before, 0), larger_size(after, 0)) for before, after in pairs)
        # Written so that a size of unknown sign is added as it is: max(after, 0) cancels out of the result's size.
        cut = tuple((more - before, less - after) for (more, less), (before, after) in zip(grown, pairs))
        if mode == "constant":
            value = check_holds("pad", self.dtype, value)
            return self._new(nodes.pad_with(self._cut("pad", self.uop, cut), grown, value))
        # reflect and replicate read the tensor before negative padding is cut off, circular reads it after.
        node = self._cut("pad", self.uop, cut) if mode == "circular" else self.uop
        for axis, (before, after) in enumerate(grown):
            size = node.shape[axis]
            limit = size if mode == "circular" else size - 1
            if (before or after) and (limit < 0 or (mode != "replicate" and max(before, after) > limit)):
                message = f"padding {(before, after)} of axis {axis} of shape {node.shape} in mode {mode}"
                raise ShapeError("pad", message, f"pad this axis by at most {max(limit, 0)} on each side")
            if before or after:
                node = nodes.pad_by_mode(node, axis, before, after, mode)
        return self._new(node if mode == "circular" else self._cut("pad", node, cut))

    @staticmethod
    def _cut(operation: str, node: UOp, pairs: tuple[tuple[int, int], ...]) -> UOp:
        """The node without the first and the last elements of each axis."""
        kept = tuple((before, size - after) for (before, after), size in zip(pairs, node.shape))
        if any(start > stop for start, stop in kept):
            message = f"negative padding {pairs} removes more elements than shape {node.shape} has"
            raise ShapeError(operation, message, "remove no more elements than an axis has")
        return build.shrink(node, kept)

    # ------------------------------------------------------------ repetition

    def repeat(self, repeats: Any = (), *args: Any) -> Self:
        """The whole tensor repeated along each axis; further counts add leading axes."""
        counts = shape_from("repeat", (repeats, *args))
        if len(counts) < self.ndim or any(count < 0 for count in counts):
            message = f"counts {counts} for shape {self.shape}"
            raise ShapeError("repeat", message, f"give at least {self.ndim} counts, none of them negative")
        return self._new(nodes.repeat(self.uop, counts))

    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
        """Each element repeated, next to itself."""
        check_whole("repeat_interleave", "repeats", repeats, least=0)
        if dim is None:
            return self.flatten().repeat_interleave(repeats, 0)
        axis = check_axis_of_some("repeat_interleave", dim, self.shape)
        before, size, after = self.shape[:axis], self.shape[axis], self.shape[axis + 1 :]
        widened = build.reshape(self.uop, (*before, size, 1, *after))
        expanded = build.expand(widened, (*before, size, repeats, *after))
        return self._new(build.reshape(expanded, (*before, size * repeats, *after)))

    def roll(self, shifts: int | Sequence[int], dims: Axes = None) -> Self:
        """Elements shifted along axes, with wrap-around."""
        if dims is None:
            return self.flatten().roll(shifts, 0).reshape(self.shape)
        axes = check_axes("roll", dims, self.ndim)
        amounts = tuple(shifts) if isinstance(shifts, tuple | list) else (cast(int, shifts),)
        check_whole("roll", "shifts", *amounts)
        if len(amounts) != len(axes):
            raise ShapeError("roll", f"{len(amounts)} shifts for {len(axes)} axes", "give one shift for each axis")
        node = self.uop
        for amount, axis in zip(amounts, axes):
            size = self.shape[axis]
            start = -amount % size if size else 0
            if start:
                # A repeated axis has a remainder as its index, which vectors along that axis would have to compute: the
                # last axis is concatenated from two parts instead, each at stride 1.
                parts = (nodes.slice_axis(node, axis, start, size), nodes.slice_axis(node, axis, 0, start))
                doubled = nodes.repeat(node, tuple(2 if k == axis else 1 for k in range(self.ndim)))
                is_last = axis == self.ndim - 1
                node = nodes.cat(parts, axis) if is_last else nodes.slice_axis(doubled, axis, start, start + size)
        return self._new(node)

    # ------------------------------------------------------------ windows

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """Windows of `size` elements, `step` apart, along an axis; the windows' elements become the last axis. Windows
        may share elements, so an assignment to them does not reach this tensor."""
        axis = check_axis("unfold", dim, self.ndim)
        check_whole("unfold", "size and step", size, step)
        if self.ndim == 0:
            return self.reshape(1).unfold(0, size, step).reshape(size)
        if not 0 <= size <= self.shape[axis] or step <= 0:
            message = f"windows of {size} with step {step} along an axis of size {self.shape[axis]}"
            raise ShapeError("unfold", message, "give 0 <= size <= the axis's size and step >= 1")
        order = tuple(k for k in range(self.ndim) if k != axis)
        windows = nodes.pool(build.permute(self.uop, (*order, axis)), (size,), (step,), (1,))
        back = list(range(self.ndim - 1))
        back.insert(axis, self.ndim - 1)
        return self._new(build.permute(windows, (*back, self.ndim)))

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The elements (i, i + offset) of two axes, as the last axis; it is a view."""
        if self.ndim < 2:
            raise ShapeError("diagonal", f"shape {self.shape} has no two axes", "give a tensor of at least 2 axes")
        first, second = check_axes("diagonal", (dim1, dim2), self.ndim)
        check_whole("diagonal", "offset", offset)
        rest = tuple(axis for axis in range(self.ndim) if axis not in (first, second))
        outer = tuple(self.shape[axis] for axis in rest)
        keep = tuple((0, size) for size in outer)
        down, right = max(-offset, 0), max(offset, 0)
        length = max(0, min(self.shape[first] - down, self.shape[second] - right))
        if length == 0:
            return self._new(nodes.nothing_of(self.uop, (*outer, 0)))
        # In row-major order the diagonal has a stride of length + 1: reshaped to rows of that length, it is the first
        # column.
        return self._view(
            (Ops.PERMUTE, (*rest, first, second)),
            (Ops.SHRINK, (*keep, (down, down + length), (right, right + length))),
            (Ops.RESHAPE, (*outer, length * length)),
            (Ops.PAD, (*((0, 0) for _ in outer), (0, length))),
            (Ops.RESHAPE, (*outer, length, length + 1)),
            (Ops.SHRINK, (*keep, (0, length), (0, 1))),
            (Ops.RESHAPE, (*outer, length)),
        )

    # ------------------------------------------------------------ triangles

    def tril(self, diagonal: int = 0) -> Self:
        """The lower triangle of the last two axes, zero above."""
        return self._triangle("tril", diagonal, upper=False)

    def triu(self, diagonal: int = 0) -> Self:
        """The upper triangle of the last two axes, zero below."""
        return self._triangle("triu", diagonal, upper=True)

    def _triangle(self, operation: str, diagonal: int, upper: bool) -> Self:
        if self.ndim < 2:
            remedy = "give a tensor of at least 2 axes, for instance with unsqueeze"
            raise ShapeError(operation, f"shape {self.shape} has no two axes", remedy)
        check_whole(operation, "diagonal", diagonal)
        mask = nodes.triangle_mask(self.shape, diagonal, upper)
        return self._new(build.where(mask, self.uop, build.const(self.dtype, 0)))

    # ------------------------------------------------------------ joining

    def cat(self, *args: Any, dim: int = 0) -> Self:
        """Tensors concatenated along an axis: `Tensor.cat(a, b, dim=1)`, `a.cat(b, dim=1)` or `Tensor.cat([a, b],
        1)`."""
        tensors, dim = joined_along(self, args, dim)
        check_devices("cat", *tensors)
        # As in torch, a tensor of shape (0,) can be concatenated with any other.
        parts = [tensor for tensor in tensors if tensor.shape != (0,)] or tensors[:1]
        axis = check_axis_of_some("cat", dim, parts[0].shape)
        check_joinable("cat", parts, axis)
        dtype = promote(*(tensor.dtype for tensor in tensors))
        joined = nodes.cat([build.cast(tensor.uop, dtype) for tensor in parts], axis)
        return tensors[0]._new(joined, *tensors[1:])

    def stack(self, *args: Any, dim: int = 0) -> Self:
        """Tensors of one shape stacked along a new axis."""
        tensors, dim = joined_along(self, args, dim)
        check_devices("stack", *tensors)
        for tensor in tensors[1:]:
            if tensor.shape != tensors[0].shape:
                message = f"shapes {tensors[0].shape} and {tensor.shape} differ"
                raise ShapeError("stack", message, "stack tensors of one shape, or join them with cat")
        axis = check_axis("stack", dim, tensors[0].ndim + 1)
        return tensors[0].unsqueeze(axis).cat(*(tensor.unsqueeze(axis) for tensor in tensors[1:]), dim=axis)

    def meshgrid(self, *args: Self, indexing: str = "ij") -> tuple[Self, ...]:
        """Coordinates of a grid from 1-D tensors: the k-th result varies along axis k ("ij"), or with the first two
        axes exchanged ("xy")."""
        if indexing not in ("ij", "xy"):
            raise ShapeError("meshgrid", f"indexing {indexing!r}", 'give "ij" or "xy"')
        check_devices("meshgrid", self, *args)
        for tensor in (self, *args):
            if tensor.ndim > 1:
                raise ShapeError("meshgrid", f"a tensor of shape {tensor.shape}", "give one axis of coordinates each")
        tensors = [tensor.flatten() for tensor in (self, *args)]
        order = list(range(len(tensors)))
        if indexing == "xy" and len(order) > 1:
            order[0], order[1] = 1, 0
        shape = tuple(tensors[k].shape[0] for k in order)
        positions = [order.index(k) for k in range(len(tensors))]
        return tuple(
            tensor.reshape(tuple(-1 if axis == position else 1 for axis in range(len(order)))).expand(shape)
            for tensor, position in zip(tensors, positions)
        )

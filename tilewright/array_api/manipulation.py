"""Arrays reshaped, joined and split; elements read by index; searching, sorting and sets."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewright.array_api.dtypes import as_dtype, number_in, promote_dtypes, result_type
from tilewright.base.dtype import dtypes
from tilewright.base.errors import AxisError, ShapeError
from tilewright.tensor.complex.tensor import ComplexTensor, as_complex
from tilewright.tensor.core.checks import broadcast_shape, check_axis
from tilewright.tensor.tensor import Tensor

# ---------------------------------------------------------------- layout


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all broadcast to."""
    return broadcast_shape("broadcast_shapes", *shapes) if shapes else ()


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Arrays expanded to one shape."""
    shape = broadcast_shapes(*(array.shape for array in arrays))
    return [array.expand(shape) for array in arrays]


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """An array expanded to a shape."""
    return x.expand(tuple(shape))


def _alike(arrays: Any) -> list[Tensor]:
    dtype = promote_dtypes(*(array.dtype for array in arrays))
    return [array if array.dtype is dtype else as_dtype(array, dtype) for array in arrays]


def concat(arrays: Any, /, *, axis: int | None = 0) -> Tensor:
    """Arrays joined along an axis; None joins them as rows."""
    parts = _alike(arrays)
    if axis is None:
        parts, axis = [part.flatten() for part in parts], 0
    return parts[0].cat(*parts[1:], dim=axis)


def stack(arrays: Any, /, *, axis: int = 0) -> Tensor:
    """Arrays of one shape joined along a new axis."""
    parts = _alike(arrays)
    return parts[0].stack(*parts[1:], dim=axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis."""
    return x.unbind(axis)


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """A new axis of size 1."""
    if not -x.ndim - 1 <= axis <= x.ndim:
        raise AxisError("expand_dims", f"axis {axis} for {x.ndim} axes", f"give one in {-x.ndim - 1}..{x.ndim}")
    return x.unsqueeze(axis)


def flip(x: Tensor, /, *, axis: Any = None) -> Tensor:
    """Elements of axes in the opposite order."""
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return x.flip(axes) if axes else x


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """Axes moved to other positions."""
    return x.movedim(source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Axes in another order."""
    return x.permute(tuple(axes))


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The elements in another shape."""
    made = x.reshape(tuple(shape))
    return made.clone() if copy else made


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Elements moved along axes, those that leave coming in again."""
    if axis is None:
        return x.flatten().roll(shift, 0).reshape(x.shape)
    if isinstance(shift, tuple) and not isinstance(axis, tuple):
        axis = (axis,) * len(shift)
    for amount, each in zip(
        shift if isinstance(shift, tuple) else (shift,) * (len(axis) if isinstance(axis, tuple) else 1),
        axis if isinstance(axis, tuple) else (axis,),
    ):
        x = x.roll(amount, each)
    return x


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Axes of size 1 taken away."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    for each in axes:
        if x.shape[check_axis("squeeze", each, x.ndim)] != 1:
            raise ValueError(f"squeeze: axis {each} of shape {x.shape} has another size than 1")
    return x.squeeze(axes)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The array repeated as a whole."""
    return x.tile(tuple(repetitions)) if repetitions else x


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Each element repeated, by one number or by one for each; how many there are is read first."""
    if axis is None:
        x, axis = x.flatten(), 0
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats.item())
    if not isinstance(repeats, Tensor):
        return x.repeat_interleave(repeats, axis)
    indices = [number for number, count in enumerate(repeats.tolist()) for _ in range(count)]
    return x.index_select(axis, Tensor(indices, dtype=dtypes.int64, device=x.device))


# ---------------------------------------------------------------- elements by index


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The slices of an axis that a row of integers names."""
    if axis is None:
        if x.ndim != 1:
            raise ShapeError("take", f"no axis for shape {x.shape}", "give the axis")
        axis = 0
    return x.index_select(axis, indices)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Elements read along an axis at the given indices."""
    return x.take_along_dim(indices, axis)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """For each axis the indices of the elements other than 0."""
    if not x.ndim:
        raise ShapeError("nonzero", "a 0-d array has no axes", "reshape it to one axis first")
    found = x.nonzero()
    return tuple(found[:, axis] for axis in range(x.ndim))


def count_nonzero(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """How many elements are other than 0."""
    return x.ne(0).sum(axis, keepdims)


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """`x1` where the condition is true, else `x2`."""
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        x1, x2 = (Tensor(x, device=condition.device) if not isinstance(x, complex) else as_complex(x) for x in (x1, x2))
    dtype = result_type(x1, x2)
    left, right = (
        as_dtype(x, dtype) if isinstance(x, Tensor) else number_in(x, dtype, condition.device) for x in (x1, x2)
    )
    if isinstance(left, ComplexTensor) and isinstance(right, ComplexTensor):
        return ComplexTensor(condition.where(left.real, right.real), condition.where(left.imag, right.imag))
    return condition.where(left, right)


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first greatest element."""
    return x.argmax(axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first least element."""
    return x.argmin(axis, keepdims)


def searchsorted(x1: Tensor, x2: Any, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Where elements would be put into a sorted row so that it stays sorted."""
    row = x1 if sorter is None else x1[sorter]
    return row.searchsorted(x2, side=side)


# ---------------------------------------------------------------- sorting


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Where the elements in order come from; equal ones keep their order in any case."""
    del stable
    return x.argsort(axis, descending)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order."""
    del stable
    return x.sort(axis, descending)[0]


# ---------------------------------------------------------------- sets


class UniqueAll(NamedTuple):
    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """The different values, where each occurs first, which of them each element is, and how often each occurs."""
    flat = x.flatten()
    if isinstance(flat, ComplexTensor):
        return _unique_complex(flat, x.shape)
    values, inverse, counts = flat.unique(return_inverse=True, return_counts=True)
    positions = Tensor.arange(flat.numel(), dtype=dtypes.int64, device=x.device)
    first = Tensor.full((values.numel(),), flat.numel(), dtypes.int64, x.device)
    if flat.numel():
        first = first.scatter_reduce(0, inverse, positions, "amin")
    return UniqueAll(values, first, inverse.reshape(x.shape), counts)


def _unique_complex(flat: ComplexTensor, shape: tuple[int, ...]) -> UniqueAll:
    """On the host: each value that is not equal to one before it, as it comes; NaN is equal to nothing."""
    import numpy as np

    values = flat.numpy()
    known: dict[complex, int] = {}
    firsts: list[int] = []
    counts: list[int] = []
    inverse: list[int] = []
    for position, value in enumerate(values.tolist()):
        number = known.get(value) if value == value else None
        if number is None:
            number = known[value] = len(firsts)
            firsts.append(position)
            counts.append(0)
        counts[number] += 1
        inverse.append(number)
    found = as_complex(values[firsts] if firsts else values[:0], flat.device)
    rows = [Tensor(np.array(row, np.int64), device=flat.device) for row in (firsts, inverse, counts)]
    return UniqueAll(found, rows[0], rows[1].reshape(shape), rows[2])


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The different values, and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The different values, and which of them each element is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """The different values."""
    return unique_all(x).values if isinstance(x, ComplexTensor) else x.unique()

"""Gathers and scatters along one axis, and parts of a tensor: index_select, index_add, take_along_dim, unbind, narrow,
... In: tensors and indices. Out: tensors."""

from __future__ import annotations

from typing import Any, Self

from tilewright.base.dtype import Scalar, dtypes, to_dtype
from tilewright.base.errors import DTypeError, IndexingError, ShapeError
from tilewright.graph import build
from tilewright.graph.gradients.gather import gather_gradient
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import TensorBase, check_devices
from tilewright.tensor.core.checks import Axes, broadcast_shape, check_axes, check_axis, check_axis_of_some, check_whole
from tilewright.tensor.families.scatter import ScatterMixin, with_own
from tilewright.tensor.primitives.index_nodes import checked_index
from tilewright.tensor.primitives.reduce import accumulate_dtype


class SelectingMixin(ScatterMixin):
    """index_select, index_add, take_along_dim, scatter_add, unbind, tile, movedim, narrow, ..."""

    # ------------------------------------------------------------ by index

    def _row_index(self, name: str, index: Self) -> Self:
        index = self._tensor(index) if not isinstance(index, TensorBase) else index
        check_devices(name, self, index)
        if not index.dtype.is_int or index.ndim > 1:
            message = f"an index of {index._described()}"
            raise IndexingError(name, message, "give a 1-D tensor of integers")
        return index.reshape(1) if index.ndim == 0 else index

    def index_select(self, dim: int, index: Self) -> Self:
        """The slices of an axis at a 1-D index."""
        axis = check_axis("index_select", dim, self.ndim)
        row = self._row_index("index_select", index)
        source = self if self.ndim else self.reshape(1)
        picked = source[(*(slice(None),) * axis, row)]
        return picked if self.ndim else picked.reshape(())

    def take(self, index: Self) -> Self:
        """The elements of the flattened tensor at an index."""
        return self.flatten()[index]

    def take_along_dim(self, indices: Self, dim: int | None = None) -> Self:
        """out[i][j] = self[indices[i][j]][j] for dim 0, and likewise for other axes; those broadcast."""
        if dim is None:
            return self.flatten().gather(0, indices.flatten())
        axis = check_axis("take_along_dim", dim, self.ndim)
        if indices.ndim != self.ndim:
            message = f"indices of shape {indices.shape} for shape {self.shape}"
            raise ShapeError("take_along_dim", message, "give as many axes")
        own, given = list(self.shape), list(indices.shape)
        own[axis] = given[axis] = 1
        shape = list(broadcast_shape("take_along_dim", tuple(own), tuple(given)))
        wide = self.expand(tuple(self.shape[axis] if k == axis else size for k, size in enumerate(shape)))
        return wide.gather(
            axis, indices.expand(tuple(indices.shape[axis] if k == axis else size for k, size in enumerate(shape)))
        )

    def scatter_add(self, dim: int, index: Self, src: Self) -> Self:
        """This tensor with src[i][j] added at [index[i][j]][j] for dim 0, and likewise for other axes."""
        return self.scatter_reduce(dim, index, src, "sum")

    def index_add(self, dim: int, index: Self, source: Self, alpha: Scalar = 1) -> Self:
        """This tensor with the slices of `source`, times alpha, added to the slices of an axis at the index."""
        axis, row, values = self._indexed("index_add", dim, index, source)
        scaled = values if alpha == 1 else (values * alpha).cast(self.dtype)
        if 0 in values.shape:
            return self
        added = gather_gradient(self._slices("index_add", axis, row), scaled.uop)[0]
        if added is None:
            return self + scaled
        if self._begins_outputs(accumulate_dtype(self.dtype)):
            # The kernel of the sums starts from a copy of this tensor.
            return self._new(build.contiguous(self.uop + nodes.without_storing(added)), scaled)
        if self._adds_atomically():
            return self._new(with_own(Ops.ADD, added, self.uop), scaled)
        return self + self._new(added, scaled)

    def index_copy(self, dim: int, index: Self, source: Self) -> Self:
        """This tensor with the slices of an axis at the index replaced by those of `source`."""
        axis, row, values = self._indexed("index_copy", dim, index, source)
        return self._with_slices(axis, row, values)

    def index_fill(self, dim: int, index: Self, value: Scalar) -> Self:
        """This tensor with the slices of an axis at the index set to one value."""
        axis = check_axis("index_fill", dim, self.ndim)
        return self._with_slices(axis, self._row_index("index_fill", index), value)

    def index_put(self, indices: tuple[Self, ...], values: Self | Scalar, accumulate: bool = False) -> Self:
        """This tensor with `values` stored at `t[indices]`, or added to it."""
        result = self.clone()
        if not accumulate:
            result[tuple(indices)] = values
            return result
        picked = self[tuple(indices)]
        source = values if isinstance(values, TensorBase) else self.full(picked.shape, values, self.dtype, self.device)
        number = self.arange(self.numel(), dtype="int64", device=self.device).reshape(self.shape)[tuple(indices)]
        added = self.flatten().scatter_reduce(0, number.flatten(), source.expand(picked.shape).flatten(), "sum")
        return added.reshape(self.shape)

    def masked_scatter(self, mask: Self, source: Self) -> Self:
        """This tensor with the elements of `source`, in order, where the mask is true."""
        check_devices("masked_scatter", self, mask, source)
        if not mask.dtype.is_bool:
            message = f"the mask has dtype {mask.dtype.name}"
            raise DTypeError("masked_scatter", message, "give a bool mask, such as `t > 0`")
        shape = broadcast_shape("masked_scatter", self.shape, mask.shape)
        where = mask.expand(shape)
        turn = (where.flatten().cast("int64").cumsum(0) - 1).maximum(0).reshape(shape)
        count = int(where.sum())
        if count > source.numel():
            message = f"{source.numel()} elements for {count} true positions"
            raise ShapeError("masked_scatter", message, "give an element for each true position")
        if not count:
            return self.expand(shape)
        return where.where(source.flatten()[turn.minimum(source.numel() - 1)], self)

    def _indexed(self, name: str, dim: int, index: Self, source: Self) -> tuple[int, Self, Self]:
        axis = check_axis(name, dim, self.ndim)
        row = self._row_index(name, index)
        check_devices(name, self, source)
        wanted = tuple(row.shape[0] if k == axis else size for k, size in enumerate(self.shape))
        if source.shape != wanted or source.dtype is not self.dtype:
            message = (
                f"a source of {source._described()} for {row.shape[0]} slices of axis {dim} of {self._described()}"
            )
            raise ShapeError(name, message, f"give {self.dtype.name}{list(wanted)}")
        return axis, row, source

    def _slices(self, name: str, axis: int, row: Self) -> UOp:
        """The gather of the slices of an axis at a 1-D index."""
        shape = tuple(row.shape[0] if k == axis else size for k, size in enumerate(self.shape))
        index = checked_index(name, row.uop, axis, self.shape)
        along = build.reshape(index, tuple(row.shape[0] if k == axis else 1 for k in range(self.ndim)))
        indices = [build.axis_iota(shape, k) for k in range(self.ndim)]
        indices[axis] = build.expand(along, shape)
        return build.gather(self.uop, *indices)

    def _with_slices(self, axis: int, row: Self, values: Self | Scalar) -> Self:
        result = self.clone()
        result[(*(slice(None),) * axis, row)] = values
        return result

    # ------------------------------------------------------------ parts and orders of axes

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The slices along an axis, which is removed."""
        axis = check_axis("unbind", dim, self.ndim)
        if not self.ndim:
            raise ShapeError("unbind", "a 0-d tensor has no axis", "give a tensor with axes")
        return tuple(self._slice_axis(axis, k, k + 1).squeeze(axis) for k in range(self.shape[axis]))

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """`length` elements of an axis, starting at `start`."""
        axis = check_axis("narrow", dim, self.ndim)
        size = self.shape[axis]
        begin = start + size if start < 0 else start
        if not 0 <= begin <= begin + length <= size:
            message = f"{length} elements from {start} of axis {dim}, which has {size}"
            raise IndexingError("narrow", message, "stay within the axis")
        return self._slice_axis(axis, begin, begin + length)

    def select(self, dim: int, index: int) -> Self:
        """One slice of an axis, which is removed."""
        axis = check_axis("select", dim, self.ndim)
        return self[(*(slice(None),) * axis, index)]

    def tensor_split(self, indices_or_sections: int | list[int] | tuple[int, ...], dim: int = 0) -> tuple[Self, ...]:
        """Parts of an axis: a number of nearly equal parts, the first ones longer by one, or parts split at the given
        indices."""
        axis = check_axis_of_some("tensor_split", dim, self.shape)
        size = self.shape[axis]
        if isinstance(indices_or_sections, int):
            check_whole("tensor_split", "sections", indices_or_sections, least=1)
            short, longer = divmod(size, indices_or_sections)
            ends = [k * short + min(k, longer) for k in range(1, indices_or_sections + 1)]
        else:
            check_whole("tensor_split", "indices", *indices_or_sections)
            ends = [*(slice(0, end).indices(size)[1] for end in indices_or_sections), size]
        starts = [0, *ends[:-1]]
        return tuple(self._slice_axis(axis, start, max(start, end)) for start, end in zip(starts, ends))

    def tile(self, dims: Any = (), *args: int) -> Self:
        """The tensor repeated along its last axes, as NumPy's tile."""
        counts = tuple(dims) if isinstance(dims, tuple | list) else (dims, *args)
        return self.repeat((1,) * (self.ndim - len(counts)) + counts)

    def movedim(self, source: Axes, destination: Axes) -> Self:
        """Axes moved to other positions; the others keep their order."""
        if source is None or destination is None:
            raise ShapeError("movedim", "no axes", "give the axes to move and their new positions")
        moved = [check_axis("movedim", axis, self.ndim) for axis in _listed(source)]
        wanted = [check_axis("movedim", axis, self.ndim) for axis in _listed(destination)]
        check_axes("movedim", tuple(moved), self.ndim)
        check_axes("movedim", tuple(wanted), self.ndim)
        if len(moved) != len(wanted):
            raise ShapeError("movedim", f"axes {source} to {destination}", "give a position for each axis")
        rest = iter(axis for axis in range(self.ndim) if axis not in moved)
        sources = dict(zip(wanted, moved))
        return self.permute(tuple(sources[k] if k in sources else next(rest) for k in range(self.ndim)))

    def rot90(self, k: int = 1, dims: tuple[int, int] = (0, 1)) -> Self:
        """Rotated by k * 90 degrees in the plane of two axes."""
        first, second = (check_axis("rot90", axis, self.ndim) for axis in dims)
        if k % 4 == 0:
            return self
        if k % 4 == 2:
            return self.flip((first, second))
        exchanged = self.transpose(first, second)
        return exchanged.flip(first) if k % 4 == 1 else exchanged.flip(second)

    def fliplr(self) -> Self:
        """Columns in reverse order."""
        return self.flip(1)

    def flipud(self) -> Self:
        """Rows in reverse order."""
        return self.flip(0)

    def ravel(self) -> Self:
        """All elements as one axis."""
        return self.flatten()

    def expand_as(self, other: Self) -> Self:
        """Expanded to the shape of another tensor."""
        return self.expand(other.shape)

    def view_as(self, other: Self) -> Self:
        """Reshaped to the shape of another."""
        return self.reshape(other.shape)

    def reshape_as(self, other: Self) -> Self:
        """Reshaped to the shape of another."""
        return self.reshape(other.shape)

    def type_as(self, other: Self) -> Self:
        """Cast to the dtype of another tensor."""
        return self.cast(other.dtype)

    def broadcast_to(self, *shape: Any) -> Self:
        """As `expand`."""
        return self.expand(*shape)

    def argwhere(self) -> Self:
        """As `nonzero`."""
        return self.nonzero()

    def t(self) -> Self:
        """A matrix transposed; 1-D and 0-d tensors unchanged."""
        if self.ndim > 2:
            raise ShapeError("t", f"shape {self.shape} is not a matrix", "use transpose or mT")
        return self.transpose(0, 1) if self.ndim == 2 else self

    # ------------------------------------------------------------ sizes

    def pad_to(self, *shape: Any, value: Scalar = 0.0) -> Self:
        """Each axis padded at its end to a size, with zeros or another value; None keeps an axis."""
        wanted = self._sizes_to("pad_to", shape)
        return self.pad(tuple((0, size - own) for size, own in zip(wanted, self.shape)), value=value)

    def shrink_to(self, *shape: Any) -> Self:
        """Each axis shrunk to its first elements; None keeps an axis."""
        return self.shrink(tuple((0, size) for size in self._sizes_to("shrink_to", shape)))

    def _sizes_to(self, name: str, shape: Any) -> tuple[int, ...]:
        given = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else tuple(shape)
        if len(given) != self.ndim:
            raise ShapeError(name, f"sizes {given} for shape {self.shape}", "give a size, or None, for each axis")
        check_whole(name, "size", *(size for size in given if size is not None))
        wanted = tuple(own if size is None else int(size) for size, own in zip(given, self.shape))
        if any(size < own if name == "pad_to" else size > own or size < 0 for size, own in zip(wanted, self.shape)):
            direction = "smaller" if name == "pad_to" else "larger"
            raise ShapeError(name, f"sizes {wanted} for shape {self.shape}", f"give none that is {direction}")
        return wanted

    def const_like(self, value: Scalar) -> Self:
        """A constant of this tensor's shape and dtype, which takes no memory."""
        return self.full_like(value)

    def new_zeros(self, *shape: Any, dtype: Any = None) -> Self:
        """Zeros with the dtype and device of this tensor."""
        return self.zeros(*shape, dtype=dtype or self.dtype, device=self.device)

    def new_ones(self, *shape: Any, dtype: Any = None) -> Self:
        """Ones with the dtype and device of this tensor."""
        return self.ones(*shape, dtype=dtype or self.dtype, device=self.device)

    def new_full(self, shape: Any, fill_value: Scalar, dtype: Any = None) -> Self:
        """A constant with the dtype and device of this tensor."""
        return self.full(shape, fill_value, dtype or self.dtype, self.device)

    def new_empty(self, *shape: Any, dtype: Any = None) -> Self:
        """Uninitialised memory with the dtype and device of this tensor."""
        return self.empty(*shape, dtype=dtype or self.dtype, device=self.device)

    def new_tensor(self, data: Any, dtype: Any = None) -> Self:
        """A tensor of `data` with the dtype and device of this tensor."""
        return self._tensor(data).cast(dtype or self.dtype)

    @classmethod
    def logspace(
        cls, start: Scalar, stop: Scalar, steps: int, base: float = 10.0, dtype: Any = None, device: Any = None
    ) -> Self:
        """`steps` powers of a base, with exponents evenly spaced from start to stop."""
        wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
        exponents = cls.linspace(start, stop, steps, wanted if wanted.is_float else None, device)
        return (base**exponents).cast(wanted)

    @classmethod
    def tril_indices(cls, row: int, col: int, offset: int = 0, device: Any = None) -> Self:
        """Rows and columns of the elements of a matrix on the diagonal and below."""
        return cls.ones(row, col, dtype=dtypes.bool, device=device).tril(offset).nonzero().transpose()

    @classmethod
    def triu_indices(cls, row: int, col: int, offset: int = 0, device: Any = None) -> Self:
        """Rows and columns of the elements of a matrix on the diagonal and above."""
        return cls.ones(row, col, dtype=dtypes.bool, device=device).triu(offset).nonzero().transpose()


def _listed(axes: Axes) -> tuple[int, ...]:
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)  # type: ignore[return-value]

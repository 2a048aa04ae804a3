"""Concatenation and splitting along named directions: hstack, vstack, dstack, hsplit, ... In: tensors, as arguments or
as a list. Out: tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from tilewright.base.errors import ShapeError
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.families.selecting import SelectingMixin
from tilewright.tensor.primitives.shape import joined_tensors

Sections = int | list[int] | tuple[int, ...]
if TYPE_CHECKING:
    T = TypeVar("T", bound="StackingMixin")


class StackingMixin(SelectingMixin):
    """hstack, vstack, dstack, column_stack, block_diag, cartesian_prod, hsplit, vsplit, dsplit."""

    # ------------------------------------------------------------ joining

    def hstack(self, *args: Self | Sequence[Self]) -> Self:
        """Tensors concatenated along axis 1, vectors along axis 0."""
        tensors = _with_axes("hstack", self, args, 1)
        return tensors[0].cat(*tensors[1:], dim=0 if tensors[0].ndim == 1 else 1)

    def vstack(self, *args: Self | Sequence[Self]) -> Self:
        """Tensors concatenated along axis 0, a vector as one row."""
        tensors = _with_axes("vstack", self, args, 2)
        return tensors[0].cat(*tensors[1:], dim=0)

    def dstack(self, *args: Self | Sequence[Self]) -> Self:
        """Tensors concatenated along axis 2, a vector as one row."""
        tensors = _with_axes("dstack", self, args, 2)
        tensors = [tensor.unsqueeze(-1) if tensor.ndim == 2 else tensor for tensor in tensors]
        return tensors[0].cat(*tensors[1:], dim=2)

    def column_stack(self, *args: Self | Sequence[Self]) -> Self:
        """Tensors concatenated along axis 1, a vector as one column."""
        tensors = _with_axes("column_stack", self, args, 1)
        columns = [tensor.unsqueeze(1) if tensor.ndim == 1 else tensor for tensor in tensors]
        return columns[0].cat(*columns[1:], dim=1)

    def block_diag(self, *args: Self | Sequence[Self]) -> Self:
        """A block-diagonal matrix of the given matrices."""
        blocks = _with_axes("block_diag", self, args, 2)
        if any(block.ndim > 2 for block in blocks):
            raise ShapeError("block_diag", "a block of more than two axes", "give matrices, vectors or numbers")
        width, start, rows = sum(block.shape[1] for block in blocks), 0, []
        for block in blocks:
            rows.append(block.pad(((0, 0), (start, width - start - block.shape[1]))))
            start += block.shape[1]
        return rows[0].cat(*rows[1:], dim=0)

    def cartesian_prod(self, *args: Self | Sequence[Self]) -> Self:
        """A row for every choice of one element from each of the vectors."""
        tensors = joined_tensors(self, args)
        if len(tensors) == 1:
            return tensors[0]
        grids = tensors[0].meshgrid(*tensors[1:])
        return grids[0].stack(*grids[1:], dim=-1).reshape((-1, len(tensors)))

    # ------------------------------------------------------------ splitting

    def hsplit(self, indices_or_sections: Sections) -> tuple[Self, ...]:
        """Split along the axis of `hstack`."""
        return self._split_along("hsplit", indices_or_sections, 0 if self.ndim == 1 else 1)

    def vsplit(self, indices_or_sections: Sections) -> tuple[Self, ...]:
        """Split along the axis of `vstack`."""
        return self._split_along("vsplit", indices_or_sections, 0)

    def dsplit(self, indices_or_sections: Sections) -> tuple[Self, ...]:
        """Split along the axis of `dstack`."""
        return self._split_along("dsplit", indices_or_sections, 2)

    def _split_along(self, name: str, indices_or_sections: Sections, axis: int) -> tuple[Self, ...]:
        if self.ndim <= max(axis, name == "vsplit"):
            raise ShapeError(name, f"shape {self.shape} has no axis for it", "give a tensor with more axes")
        if isinstance(indices_or_sections, int) and indices_or_sections and self.shape[axis] % indices_or_sections:
            message = f"axis {axis} of size {self.shape[axis]} in {indices_or_sections} equal parts"
            raise ShapeError(name, message, "give a number that divides it, or use tensor_split")
        return self.tensor_split(indices_or_sections, axis)


def _with_axes(name: str, first: T, others: Sequence[T | Sequence[T]], least: int) -> list[T]:
    """The tensors, each with at least that many axes; new axes are added in front."""
    tensors = joined_tensors(first, others)
    check_devices(name, *tensors)
    return [tensor.reshape((*(1,) * (least - tensor.ndim), *tensor.shape)) for tensor in tensors]

"""Norms, and products of vectors and of several matrices. In: tensors. Out: tensors. All are built from other
operations; norms that need singular values take them from `decompositions`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from tilewright.base.dtype import DType, to_dtype
from tilewright.base.errors import ShapeError
from tilewright.tensor.core.checks import Axes, check_axes
from tilewright.tensor.families.linalg.solvers import SolveMixin

Order = int | float | str | None


class NormsMixin(SolveMixin):
    """norm, trace, outer, cross, multi_dot."""

    # ------------------------------------------------------------ norms

    def norm(self, p: Order = "fro", dim: Axes = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """The norm of all elements, or along `dim`: (sum of |x| ** p) ** (1 / p). "fro" is p=2; inf, -inf and 0 give
        the maximum, the minimum and the number of nonzero elements; "nuc" is the sum of the singular values of the
        matrices that two axes make."""
        if p == "nuc":
            axes = (0, 1) if dim is None and self.ndim == 2 else dim if isinstance(dim, tuple | list) else None
            return self.matrix_norm("nuc", axes, keepdim, dtype=dtype)
        if isinstance(p, str) and p != "fro":
            raise ShapeError("norm", f"p={p!r}", "give a number, 'fro' or 'nuc'")
        return self.vector_norm(2 if p is None or isinstance(p, str) else p, dim, keepdim, dtype=dtype)

    def _for_norm(self, name: str, dtype: DType | str | None) -> Self:
        wide = self if dtype is None else self.cast(to_dtype(dtype))
        wide._check_float(name)
        return wide

    def vector_norm(
        self, ord: Order = 2, dim: Axes = None, keepdim: bool = False, *, dtype: DType | str | None = None
    ) -> Self:
        """(sum of |x| ** ord) ** (1 / ord) of all elements, or along `dim`; inf, -inf and 0 give the maximum, the
        minimum and the number of nonzero elements. The gradient at 0 is 0."""
        if not isinstance(ord, int | float):
            raise ShapeError("vector_norm", f"ord={ord!r}", "give a number; matrix_norm knows 'fro' and 'nuc'")
        given = self._for_norm("vector_norm", dtype)
        axes = check_axes("vector_norm", dim, self.ndim)
        if ord in (math.inf, -math.inf):
            self._check_extreme("vector_norm", axes, ord)
        return given._wide()._norm(ord, axes, keepdim).cast(given.dtype)

    def _check_extreme(self, name: str, axes: Sequence[int], ord: Order) -> None:
        if any(self.shape[axis] == 0 for axis in axes):
            raise ShapeError(name, f"ord={ord} of no elements, shape {self.shape}", "give at least one element")

    def matrix_norm(
        self,
        ord: Order = "fro",
        dim: Sequence[int] | None = (-2, -1),
        keepdim: bool = False,
        *,
        dtype: DType | str | None = None,
    ) -> Self:
        """The norm of the matrices of two axes. "fro": the root of the sum of squares; "nuc": the sum of the singular
        values; 2 and -2: the largest and the smallest of them; 1 and -1: the largest and smallest sum of absolute
        values of a column; inf and -inf: of a row."""
        axes = dim if isinstance(dim, tuple | list) else ()
        if len(axes) != 2:
            raise ShapeError("matrix_norm", f"dim={dim!r}", "name the two axes of the matrices, such as (-2, -1)")
        given = self._for_norm("matrix_norm", dtype)
        row, column = check_axes("matrix_norm", tuple(axes), self.ndim)
        if ord == "fro":
            return given.vector_norm(2, (row, column), keepdim)
        if ord in ("nuc", 2, -2):
            rest = [axis for axis in range(self.ndim) if axis not in (row, column)]
            values = given.permute(*rest, row, column).svdvals()
            if ord == "nuc":
                found = values.sum(-1)
            else:
                values._check_extreme("matrix_norm", (values.ndim - 1,), ord)
                found = values.max(-1) if ord == 2 else values.min(-1)
            return found.reshape(*given._kept_shape(row, column)) if keepdim else found
        if isinstance(ord, str) or ord not in (1, -1, math.inf, -math.inf):
            raise ShapeError("matrix_norm", f"ord={ord!r}", "give 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
        summed, compared = (row, column) if ord in (1, -1) else (column, row)
        self._check_extreme("matrix_norm", (compared,), ord)
        sums = given.abs().sum(summed, keepdim=True)
        found = sums.max(compared, keepdim=True) if ord in (1, math.inf) else sums.min(compared, keepdim=True)
        return found if keepdim else found.reshape(*given._kept_shape(row, column, is_kept=False))

    def _kept_shape(self, *axes: int, is_kept: bool = True) -> tuple[int, ...]:
        shape = (1 if axis in axes else size for axis, size in enumerate(self.shape))
        return tuple(shape) if is_kept else tuple(s for axis, s in enumerate(self.shape) if axis not in axes)

    def cond(self, p: Order = None) -> Self:
        """The condition number of a matrix in a norm of `matrix_norm`, by default 2."""
        self._check_matrices("cond", is_square=p not in (None, 2, -2))
        if p in (None, 2, -2):
            values = self.svdvals()
            values._check_extreme("cond", (values.ndim - 1,), p)
            largest, smallest = values.max(-1), values.min(-1)
            return smallest / largest if p == -2 else largest / smallest
        return self.matrix_norm(p) * self.inv().matrix_norm(p)

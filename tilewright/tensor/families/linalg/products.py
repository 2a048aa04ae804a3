"""Products of matrices under torch's names, and distances between rows. In: tensors. Out: tensors; all of them are
`dot`, `einsum` and sums, so every product goes through one path of the compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from tilewright.base.dtype import Scalar
from tilewright.base.errors import ShapeError
from tilewright.tensor.core.base import check_axis, check_devices
from tilewright.tensor.families.base import Family


class ProductsMixin(Family):
    """mm, bmm, addmm, baddbmm, mv, inner, tensordot, kron, cdist, cosine_similarity, ..."""

    def _check_axes_of(self, name: str, own: int, other: Self, wanted: int) -> None:
        check_devices(name, self, other)
        if self.ndim != own or other.ndim != wanted:
            message = f"shapes {self.shape} and {other.shape}"
            raise ShapeError(name, message, f"give tensors of {own} and {wanted} axes, or use matmul")

    def mm(self, mat2: Self) -> Self:
        """The product of two matrices."""
        self._check_axes_of("mm", 2, mat2, 2)
        return self.matmul(mat2)

    def bmm(self, mat2: Self) -> Self:
        """The products of two batches of matrices, one by one."""
        self._check_axes_of("bmm", 3, mat2, 3)
        if self.shape[0] != mat2.shape[0]:
            raise ShapeError("bmm", f"batches of {self.shape[0]} and {mat2.shape[0]}", "give batches of one size")
        return self.matmul(mat2)

    def mv(self, vec: Self) -> Self:
        """A matrix times a vector."""
        self._check_axes_of("mv", 2, vec, 1)
        return self.matmul(vec)

    def addmm(self, mat1: Self, mat2: Self, *, beta: Scalar = 1, alpha: Scalar = 1) -> Self:
        """beta * self + alpha * (mat1 @ mat2)."""
        return self._added(mat1.mm(mat2), beta, alpha)

    def addmv(self, mat: Self, vec: Self, *, beta: Scalar = 1, alpha: Scalar = 1) -> Self:
        """beta * self + alpha * (mat @ vec)."""
        return self._added(mat.mv(vec), beta, alpha)

    def baddbmm(self, batch1: Self, batch2: Self, *, beta: Scalar = 1, alpha: Scalar = 1) -> Self:
        """beta * self + alpha * (batch1 @ batch2), matrix by matrix."""
        return self._added(batch1.bmm(batch2), beta, alpha)

    def _added(self, product: Self, beta: Scalar, alpha: Scalar) -> Self:
        """With a beta of 0 this tensor does not count, not even its NaN."""
        scaled = product if alpha == 1 else product * alpha
        if beta == 0:
            return scaled
        return (self if beta == 1 else self * beta) + scaled

    def inner(self, other: Self) -> Self:
        """The sums of products over the last axis of both."""
        check_devices("inner", self, other)
        if not self.ndim or not other.ndim:
            return self * other
        return self.tensordot(other, ([-1], [-1]))

    def vdot(self, other: Self) -> Self:
        """The sum of the products of two rows."""
        self._check_axes_of("vdot", 1, other, 1)
        return self.matmul(other)

    def tensordot(self, other: Self, dims: int | Sequence[Sequence[int]] = 2) -> Self:
        """The sum of products over pairs of axes: the last `dims` of this tensor with the first of the other, or the
        axes of two lists."""
        check_devices("tensordot", self, other)
        if isinstance(dims, int):
            if not 0 <= dims <= min(self.ndim, other.ndim):
                message = f"{dims} axes of shapes {self.shape} and {other.shape}"
                raise ShapeError("tensordot", message, f"give 0..{min(self.ndim, other.ndim)}")
            pairs = [(self.ndim - dims + k, k) for k in range(dims)]
        else:
            mine, theirs = ([axes] if isinstance(axes, int) else list(axes) for axes in dims)
            if len(mine) != len(theirs):
                raise ShapeError("tensordot", f"axes {mine} and {theirs}", "give as many axes for both")
            pairs = [
                (check_axis("tensordot", left, self.ndim), check_axis("tensordot", right, other.ndim))
                for left, right in zip(mine, theirs)
            ]
        if any(self.shape[left] != other.shape[right] for left, right in pairs):
            message = f"axes {pairs} of shapes {self.shape} and {other.shape} differ in size"
            raise ShapeError("tensordot", message, "sum over axes of equal sizes")
        left_rest = [axis for axis in range(self.ndim) if axis not in [left for left, _ in pairs]]
        right_rest = [axis for axis in range(other.ndim) if axis not in [right for _, right in pairs]]
        summed = math.prod(self.shape[left] for left, _ in pairs)
        rows = [self.shape[axis] for axis in left_rest]
        columns = [other.shape[axis] for axis in right_rest]
        left_matrix = self.permute((*left_rest, *(left for left, _ in pairs))).reshape((math.prod(rows), summed))
        right_matrix = other.permute((*(right for _, right in pairs), *right_rest)).reshape(
            (summed, math.prod(columns))
        )
        return left_matrix.matmul(right_matrix).reshape((*rows, *columns))

    def kron(self, other: Self) -> Self:
        """Each element times the whole of the other tensor, laid out block by block."""
        check_devices("kron", self, other)
        ndim = max(self.ndim, other.ndim)
        left, right = ((1,) * (ndim - len(shape)) + shape for shape in (self.shape, other.shape))
        wide = self.reshape(tuple(size for own in left for size in (own, 1)))
        narrow = other.reshape(tuple(size for own in right for size in (1, own)))
        return (wide * narrow).reshape(tuple(a * b for a, b in zip(left, right)))

    # ------------------------------------------------------------ distances

    def cdist(self, x2: Self, p: float = 2.0) -> Self:
        """The distance of each row from each row of the other tensor, in the p-norm."""
        check_devices("cdist", self, x2)
        if self.ndim < 2 or x2.ndim < 2 or self.shape[-1] != x2.shape[-1]:
            raise ShapeError("cdist", f"shapes {self.shape} and {x2.shape}", "give (..., n, d) and (..., m, d)")
        return (self.unsqueeze(-2) - x2.unsqueeze(-3))._norm(p, (max(self.ndim, x2.ndim),)).squeeze(-1)

    def dist(self, other: Self, p: float = 2.0) -> Self:
        """The p-norm of the difference of all elements."""
        return (self - other).flatten()._norm(p, (0,)).squeeze(-1)

    def pairwise_distance(self, x2: Self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Self:
        """The distance of rows from rows, one by one, in the p-norm."""
        length = (self - x2 + eps)._norm(p, (max(self.ndim, x2.ndim) - 1,))
        return length if keepdim else length.squeeze(-1)

    def cosine_similarity(self, x2: Self, dim: int = 1, eps: float = 1e-8) -> Self:
        """The cosine of the angle between vectors along an axis."""
        self._check_float("cosine_similarity")
        axis = check_axis("cosine_similarity", dim, max(self.ndim, x2.ndim))
        lengths = [(x * x).sum(axis).sqrt().maximum(eps) for x in (self, x2)]
        return (self * x2).sum(axis) / (lengths[0] * lengths[1])

"""Products of matrices under torch's names, and distances between rows. In: tensors. Out: tensors; all of them are
`dot`, `einsum` and sums, so every product goes through one path of the compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tilewright.base.dtype import DType, Scalar, promote, to_dtype
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.core.checks import broadcast_shape, check_axis
from tilewright.tensor.families.base import Family
from tilewright.tensor.primitives.reduce import accumulate_dtype


def multiply_and_sum(left: UOp, right: UOp, axes: Sequence[int], dtype: DType) -> UOp:
    """sum(left * right) over axes, with both converted to the accumulator's dtype. They are converted before they are
    broadcast, so that their gradients are summed in that dtype too and rounded once."""
    return build.cast(build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, left, right), axes), dtype)


class ProductsMixin(Family):
    """matmul, linear, mm, bmm, addmm, baddbmm, mv, inner, tensordot, kron, cdist, cosine_similarity, ..."""

    # ------------------------------------------------------------ products

    def _product_dtypes(self, name: str, other: Self, dtype: DType | str | None) -> tuple[DType, DType]:
        """The dtype of the result and that of the accumulator."""
        wanted = promote(self.dtype, other.dtype) if dtype is None else to_dtype(dtype)
        if wanted.is_bool:
            raise DTypeError(name, "products of bool matrices are not defined", "cast to an integer or float first")
        return wanted, accumulate_dtype(wanted)

    def dot(self, w: Self, dtype: DType | str | None = None) -> Self:
        """The matrix product: the last axis of this tensor with the last but one of `w` (or its only one), batches
        broadcast. 8- and 16-bit floats are accumulated in float32."""
        check_devices("matmul", self, w)
        if self.ndim == 0 or w.ndim == 0:
            message = f"shapes {self.shape} and {w.shape}: a 0-d tensor has no axis to sum over"
            raise ShapeError("matmul", message, "use * for a product with a number")
        result, carrier = self._product_dtypes("matmul", w, dtype)
        left, right = build.cast(self.uop, carrier), build.cast(w.uop, carrier)
        left = left if self.ndim > 1 else build.reshape(left, (1, *self.shape))
        right = right if w.ndim > 1 else build.reshape(right, (*w.shape, 1))
        if left.shape[-1] != right.shape[-2]:
            message = f"shapes {self.shape} and {w.shape}: {left.shape[-1]} columns and {right.shape[-2]} rows"
            raise ShapeError("matmul", message, "make the last axis of the first equal the last but one of the second")
        batch = broadcast_shape("matmul", left.shape[:-2], right.shape[:-2])
        rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        count = len(right.shape)
        right = build.permute(right, (*range(count - 2), count - 1, count - 2))
        full = (*batch, rows, columns, inner)
        wide_left = build.broadcast_to(build.reshape(left, (*left.shape[:-1], 1, inner)), full)
        wide_right = build.broadcast_to(build.reshape(right, (*right.shape[:-2], 1, columns, inner)), full)
        node = multiply_and_sum(wide_left, wide_right, (len(full) - 1,), result)
        kept = (*batch, *((rows,) if self.ndim > 1 else ()), *((columns,) if w.ndim > 1 else ()))
        return self._new(build.reshape(node, kept), w)

    def matmul(self, x: Self, reverse: bool = False, dtype: DType | str | None = None) -> Self:
        """`self @ x`, or `x @ self`."""
        return x.dot(self, dtype) if reverse else self.dot(x, dtype)

    def __matmul__(self, x: Any) -> Self:
        return self.dot(self._matrix(x))

    def __rmatmul__(self, x: Any) -> Self:
        return self._matrix(x).dot(self)

    def __imatmul__(self, x: Any) -> Self:
        return self._in_place("@=", self.dot(self._matrix(x)))

    def _matrix(self, x: Any) -> Self:
        operand = self._operand("matmul", x)
        return operand if isinstance(operand, ProductsMixin) else self._tensor(operand)

    def linear(self, weight: Self, bias: Self | None = None, dtype: DType | str | None = None) -> Self:
        """x @ weight + bias, with a weight of (in, out); a 1-D weight multiplies elementwise."""
        check_devices("linear", self, weight, *(() if bias is None else (bias,)))
        if dtype is not None:
            wanted = to_dtype(dtype)
            return self.cast(wanted).linear(weight.cast(wanted), None if bias is None else bias.cast(wanted))
        product = self * weight if weight.ndim == 1 else self.dot(weight)
        return product if bias is None else product + bias

    # ------------------------------------------------------------ torch's names

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
        """The matrix products of two batches."""
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
        """With a beta of 0 this tensor is ignored, also where it is NaN."""
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
        """The inner product of two vectors."""
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
        """The Kronecker product: each element times the other tensor, as blocks."""
        check_devices("kron", self, other)
        ndim = max(self.ndim, other.ndim)
        left, right = ((1,) * (ndim - len(shape)) + shape for shape in (self.shape, other.shape))
        wide = self.reshape(tuple(size for own in left for size in (own, 1)))
        narrow = other.reshape(tuple(size for own in right for size in (1, own)))
        return (wide * narrow).reshape(tuple(a * b for a, b in zip(left, right)))

    # ------------------------------------------------------------ sums and products

    def trace(self, offset: int = 0) -> Self:
        """The sum of a diagonal of each matrix: the main one, or one `offset` to the right of it."""
        if self.ndim < 2:
            raise ShapeError("trace", f"shape {self.shape} is not a matrix", "give a tensor of at least 2 axes")
        return self.diagonal(offset, -2, -1).sum(-1)

    def outer(self, vec2: Self) -> Self:
        """The products of each element of this vector with each of another: (n,) and (m,) give (n, m)."""
        check_devices("outer", self, vec2)
        if self.ndim != 1 or vec2.ndim != 1:
            message = f"shapes {self.shape} and {vec2.shape} are not both vectors"
            raise ShapeError("outer", message, "flatten() them first")
        return self.unsqueeze(-1) * vec2.unsqueeze(0)

    def cross(self, other: Self, dim: int = -1) -> Self:
        """The cross product of vectors of 3 elements along `dim`; all other axes broadcast."""
        check_devices("cross", self, other)
        axis = check_axis("cross", dim, max(self.ndim, other.ndim))
        for tensor in (self, other):
            from_end = axis - max(self.ndim, other.ndim)
            if tensor.ndim < -from_end or tensor.shape[from_end] != 3:
                message = f"shapes {self.shape} and {other.shape}: axis {dim} does not have size 3 in both"
                raise ShapeError("cross", message, "give vectors of 3 elements, and their axis as dim=")
        from_end = axis - max(self.ndim, other.ndim)
        return self.roll(-1, from_end) * other.roll(1, from_end) - self.roll(1, from_end) * other.roll(-1, from_end)

    def vecdot(self, other: Self, dim: int = -1) -> Self:
        """The sum of products along an axis; all other axes broadcast."""
        check_devices("vecdot", self, other)
        return (self * other).sum(dim)

    def multi_dot(self, *others: Self) -> Self:
        """The product of this and further matrices, in the order with the fewest multiplications. The first and the
        last may be vectors."""
        matrices: list[Any] = [self, *others]
        check_devices("multi_dot", *matrices)
        if len(matrices) < 2:
            raise ShapeError("multi_dot", "one matrix", "give two or more")
        is_row, is_column = self.ndim == 1, matrices[-1].ndim == 1
        if is_row:
            matrices[0] = self.unsqueeze(0)
        if is_column:
            matrices[-1] = matrices[-1].unsqueeze(-1)
        for number, matrix in enumerate(matrices):
            if matrix.ndim != 2 or (number and matrices[number - 1].shape[1] != matrix.shape[0]):
                shapes = ", ".join(str(each.shape) for each in matrices)
                raise ShapeError("multi_dot", f"shapes {shapes} do not chain", "give matrices that can be multiplied")
        found: Any = _chain(matrices)
        if is_row:
            found = found.squeeze(0)
        return found.squeeze(-1) if is_column else found  # type: ignore[no-any-return]

    # ------------------------------------------------------------ distances

    def cdist(self, x2: Self, p: float = 2.0) -> Self:
        """The p-norm distance between each row and each row of the other tensor."""
        check_devices("cdist", self, x2)
        if self.ndim < 2 or x2.ndim < 2 or self.shape[-1] != x2.shape[-1]:
            raise ShapeError("cdist", f"shapes {self.shape} and {x2.shape}", "give (..., n, d) and (..., m, d)")
        return (self.unsqueeze(-2) - x2.unsqueeze(-3))._norm(p, (max(self.ndim, x2.ndim),)).squeeze(-1)

    def dist(self, other: Self, p: float = 2.0) -> Self:
        """The p-norm of the difference of all elements."""
        return (self - other).flatten()._norm(p, (0,)).squeeze(-1)

    def pairwise_distance(self, x2: Self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Self:
        """The p-norm distance between corresponding rows."""
        length = (self - x2 + eps)._norm(p, (max(self.ndim, x2.ndim) - 1,))
        return length if keepdim else length.squeeze(-1)

    def cosine_similarity(self, x2: Self, dim: int = 1, eps: float = 1e-8) -> Self:
        """The cosine of the angle between vectors along an axis."""
        self._check_float("cosine_similarity")
        axis = check_axis("cosine_similarity", dim, max(self.ndim, x2.ndim))
        lengths = [(x * x).sum(axis).sqrt().maximum(eps) for x in (self, x2)]
        return (self * x2).sum(axis) / (lengths[0] * lengths[1])


def _chain(matrices: list[Any]) -> Any:
    """The product, split at the point of minimum cost."""
    sizes = [matrices[0].shape[0], *(matrix.shape[1] for matrix in matrices)]
    count = len(matrices)
    cost = {(k, k): (0, k) for k in range(count)}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            cost[first, last] = min(
                (cost[first, k][0] + cost[k + 1, last][0] + sizes[first] * sizes[k + 1] * sizes[last + 1], k)
                for k in range(first, last)
            )

    def product(first: int, last: int) -> Any:
        if first == last:
            return matrices[first]
        split = cost[first, last][1]
        return product(first, split) @ product(split + 1, last)

    return product(0, count - 1)

"""Linear algebra as functions, under the names and with the arguments of `torch.linalg` and `numpy.linalg`. In: tensors
whose last two axes are matrices, with any number of batch axes before them. Out: tensors, lazy like any others. Each is
the method of `Tensor` with that name.

Float32 and float64 are computed in their own precision, float16 and bfloat16 in float32. Whether a matrix is singular,
or not positive definite, is known only when the kernel has run, and is not an error: divisions by a pivot of 0 give inf
and NaN, and the root of a negative pivot gives NaN. Integers are refused: cast them to a float dtype."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtype import DType
from tilewright.base.errors import ShapeError
from tilewright.tensor.families.linalg.norms import Order
from tilewright.tensor.families.linalg.solvers import Lstsq, Slogdet
from tilewright.tensor.tensor import Tensor

__all__ = [
    "cholesky",
    "cholesky_solve",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "lu",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "triangular_solve",
    "vecdot",
    "vector_norm",
]


# ---------------------------------------------------------------- factors


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The triangular factor of symmetric positive definite matrices: see `Tensor.cholesky`."""
    return A.cholesky(upper=upper)


def qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Orthonormal columns and an upper triangle: see `Tensor.qr`."""
    return A.qr(mode)


def lu(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U with A = P @ L @ U: see `Tensor.lu`."""
    return A.lu()


def eigh(A: Tensor, UPLO: str = "L") -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors, in columns, of symmetric matrices: see `Tensor.eigh`."""
    return A.eigh(UPLO)


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric matrices, ascending: see `Tensor.eigvalsh`."""
    return A.eigvalsh(UPLO)


def svd(A: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and V.T with A = U @ diag(S) @ V.T: see `Tensor.svd`."""
    return A.svd(full_matrices)


def svdvals(A: Tensor) -> Tensor:
    """Singular values, descending: see `Tensor.svdvals`."""
    return A.svdvals()


# ---------------------------------------------------------------- systems


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A @ X = B: see `Tensor.solve`."""
    return A.solve(B, left=left)


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X with A @ X = B for a triangular A: see `Tensor.solve_triangular`."""
    return A.solve_triangular(B, upper=upper, left=left, unitriangular=unitriangular)


def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """X with A @ X = b for a triangular A, and A: see `Tensor.triangular_solve`."""
    return b.triangular_solve(A, upper, transpose, unitriangular)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with L @ L.T @ X = B: see `Tensor.cholesky_solve`."""
    return B.cholesky_solve(L, upper)


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Lstsq:
    """The X with the least squares of A @ X - B: see `Tensor.lstsq`."""
    return A.lstsq(B, rcond, driver=driver)


def inv(A: Tensor) -> Tensor:
    """The inverse: see `Tensor.inv`."""
    return A.inv()


def pinv(A: Tensor, rtol: float | None = None, *, atol: float | None = None) -> Tensor:
    """The pseudo-inverse: see `Tensor.pinv`."""
    return A.pinv(rtol, atol=atol)


def det(A: Tensor) -> Tensor:
    """The determinant: see `Tensor.det`."""
    return A.det()


def slogdet(A: Tensor) -> Slogdet:
    """The sign and the logarithm of the determinant: see `Tensor.slogdet`."""
    return A.slogdet()


def matrix_power(A: Tensor, n: int) -> Tensor:
    """The product of n matrices A: see `Tensor.matrix_power`."""
    return A.matrix_power(n)


def matrix_rank(A: Tensor, rtol: float | None = None, *, atol: float | None = None, tol: float | None = None) -> Tensor:
    """The number of singular values that count: see `Tensor.matrix_rank`."""
    return A.matrix_rank(rtol, atol=atol, tol=tol)


def cond(A: Tensor, p: Order = None) -> Tensor:
    """The condition number: see `Tensor.cond`."""
    return A.cond(p)


# ---------------------------------------------------------------- norms


def norm(
    A: Tensor,
    ord: Order = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | str | None = None,
) -> Tensor:
    """The norm of vectors along one axis, or of matrices along two. Without `ord` it is that of all elements along
    `dim`; with `ord` and without `dim` the tensor itself is the vector or the matrix."""
    axes = (dim,) if isinstance(dim, int) else None if dim is None else tuple(dim)
    if ord is None:
        return A.vector_norm(2, axes, keepdim, dtype=dtype)
    if axes is None:
        if A.ndim not in (1, 2):
            raise ShapeError("norm", f"ord={ord!r} of a tensor of {A.ndim} axes", "name one axis or two as dim=")
        axes = tuple(range(A.ndim))
    if len(axes) == 1:
        return A.vector_norm(ord, axes, keepdim, dtype=dtype)
    return A.matrix_norm(ord, axes, keepdim, dtype=dtype)


def vector_norm(
    x: Tensor,
    ord: Order = 2,
    dim: int | tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | str | None = None,
) -> Tensor:
    """The norm of all elements, or along axes: see `Tensor.vector_norm`."""
    return x.vector_norm(ord, dim, keepdim, dtype=dtype)


def matrix_norm(
    A: Tensor,
    ord: Order = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | str | None = None,
) -> Tensor:
    """The norm of the matrices that two axes make: see `Tensor.matrix_norm`."""
    return A.matrix_norm(ord, dim, keepdim, dtype=dtype)


# ---------------------------------------------------------------- products


def matmul(A: Tensor, B: Tensor) -> Tensor:
    """The matrix product: see `Tensor.matmul`."""
    return A.matmul(B)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices: see `Tensor.multi_dot`."""
    if not isinstance(tensors, tuple | list) or len(tensors) < 2:
        raise ShapeError("multi_dot", "fewer than two matrices", "give a list of two or more")
    first: Tensor = tensors[0]
    return first.multi_dot(*tensors[1:])


def outer(x: Tensor, y: Tensor) -> Tensor:
    """The products of all pairs of elements: see `Tensor.outer`."""
    return x.outer(y)


def cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product: see `Tensor.cross`."""
    return x.cross(y, dim)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The sum of products along an axis: see `Tensor.vecdot`."""
    return x.vecdot(y, dim)


def tensordot(x: Tensor, y: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """The sum of products over the last `dims` axes of x and the first of y, or over the pairs of axes that two lists
    name."""
    return x.tensordot(y, dims)


def matrix_transpose(A: Tensor) -> Tensor:
    """The last two axes exchanged."""
    return A.transpose(-2, -1)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonal of each matrix: see `Tensor.diagonal`."""
    return A.diagonal(offset, dim1, dim2)


def trace(A: Tensor, *, offset: int = 0) -> Tensor:
    """The sum of the diagonal of each matrix: see `Tensor.trace`."""
    return A.trace(offset)

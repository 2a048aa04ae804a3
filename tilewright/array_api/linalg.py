"""Products of arrays, and the linear algebra extension of the array API: `tilewright.linalg` under the standard's
signatures. Decompositions take real matrices; complex ones raise an error that says what to do."""

from __future__ import annotations

from typing import Any, NamedTuple

import tilewright.linalg as algebra
from tilewright.array_api.dtypes import as_dtype, promote_dtypes
from tilewright.array_api.elementwise import conj, operands, unary
from tilewright.array_api.manipulation import broadcast_shapes
from tilewright.array_api.statistics import sum as sum_of
from tilewright.base.errors import ShapeError
from tilewright.tensor.complex.tensor import ComplexTensor
from tilewright.tensor.tensor import Tensor

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


class EighResult(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


det = unary("det", "det")
eigvalsh = unary("eigvalsh", "eigvalsh")
inv = unary("inv", "inv")
svdvals = unary("svdvals", "svdvals")


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The triangular root of positive definite matrices."""
    return algebra.cholesky(x, upper=upper)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements."""
    dtype = promote_dtypes(x1.dtype, x2.dtype)
    left, right = as_dtype(x1, dtype), as_dtype(x2, dtype)
    if left.shape[axis] != 3 or right.shape[axis] != 3:
        raise ShapeError("cross", f"shapes {x1.shape} and {x2.shape}", f"give axes {axis} of three elements")
    if not isinstance(left, ComplexTensor):
        return algebra.cross(left, right, dim=axis)
    parts = [left.unbind(axis), right.unbind(axis)]
    (a, b, c), (d, e, f) = parts
    found = [b * f - c * e, c * d - a * f, a * e - b * d]
    return found[0].stack(*found[1:], dim=axis if axis >= 0 else axis + max(x1.ndim, x2.ndim))


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The diagonals of matrices."""
    return x.diagonal(offset, -2, -1)


def eigh(x: Tensor, /) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric matrices."""
    return EighResult(*algebra.eigh(x))


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """Norms of matrices."""
    if isinstance(x, ComplexTensor):
        x = x.abs()
    return algebra.matrix_norm(x, ord, keepdim=keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Matrices multiplied with themselves."""
    return algebra.matrix_power(x, n)


def matrix_rank(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """How many singular values are above the tolerance."""
    return algebra.matrix_rank(x, rtol=rtol)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The products of all pairs of elements."""
    dtype = promote_dtypes(x1.dtype, x2.dtype)
    return as_dtype(x1, dtype).reshape((-1, 1)) * as_dtype(x2, dtype).reshape((1, -1))


def pinv(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """Pseudo-inverse matrices."""
    return algebra.pinv(x, rtol)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """Orthogonal and triangular factors."""
    return QRResult(*algebra.qr(x, mode))


def slogdet(x: Tensor, /) -> SlogdetResult:
    """Signs and logarithms of determinants."""
    return SlogdetResult(*algebra.slogdet(x))


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The solutions of linear equations."""
    dtype = promote_dtypes(x1.dtype, x2.dtype)
    return algebra.solve(as_dtype(x1, dtype), as_dtype(x2, dtype))


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular values and vectors."""
    return SVDResult(*algebra.svd(x, full_matrices))


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """Sums of the diagonals of matrices."""
    return sum_of(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    """Norms of vectors along axes, or of all elements."""
    if isinstance(x, ComplexTensor):
        x = x.abs()
    return algebra.vector_norm(x, ord, axis, keepdims)


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The product of matrices; axes before them broadcast."""
    left, right = operands("matmul", x1, x2)
    if not left.ndim or not right.ndim:
        raise ShapeError("matmul", f"shapes {x1.shape} and {x2.shape}", "give arrays with axes, or multiply")
    return left.matmul(right).cast(left.dtype)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Each matrix transposed."""
    return x.mT


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """The sum of products over pairs of axes."""
    left, right = operands("tensordot", x1, x2)
    if not isinstance(left, ComplexTensor) or not isinstance(right, ComplexTensor):
        return left.tensordot(right, axes).cast(left.dtype)
    a, b, c, d = left.real, left.imag, right.real, right.imag
    return ComplexTensor(a.tensordot(c, axes) - b.tensordot(d, axes), a.tensordot(d, axes) + b.tensordot(c, axes))


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The sums of products of vectors along an axis, of the first one's conjugate."""
    left, right = operands("vecdot", x1, x2)
    if axis >= 0 or -axis > min(left.ndim, right.ndim) or left.shape[axis] != right.shape[axis]:
        message = f"axis {axis} of shapes {x1.shape} and {x2.shape}"
        raise ShapeError("vecdot", message, "give a negative axis that has one size in both")
    shape = broadcast_shapes(left.shape, right.shape)
    product = conj(left).expand(shape) * right.expand(shape)
    return product.sum(axis, dtype=left.dtype)

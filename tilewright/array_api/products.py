"""Products of arrays: matmul, tensordot, vecdot, and transposed matrices."""

from __future__ import annotations

from typing import Any

from tilewright.array_api.elementwise import conj, operands
from tilewright.array_api.manipulation import broadcast_shapes
from tilewright.base.errors import ShapeError
from tilewright.tensor.complex.tensor import ComplexTensor
from tilewright.tensor.tensor import Tensor


def _in_own_dtype(name: str, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    return operands(name, x1, x2)


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The product of matrices; axes before them broadcast."""
    left, right = _in_own_dtype("matmul", x1, x2)
    if not left.ndim or not right.ndim:
        raise ShapeError("matmul", f"shapes {x1.shape} and {x2.shape}", "give arrays with axes, or multiply")
    return left.matmul(right).cast(left.dtype)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Each matrix transposed."""
    return x.mT


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """The sum of products over pairs of axes."""
    left, right = _in_own_dtype("tensordot", x1, x2)
    if not isinstance(left, ComplexTensor) or not isinstance(right, ComplexTensor):
        return left.tensordot(right, axes).cast(left.dtype)
    a, b, c, d = left.real, left.imag, right.real, right.imag
    return ComplexTensor(a.tensordot(c, axes) - b.tensordot(d, axes), a.tensordot(d, axes) + b.tensordot(c, axes))


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The sums of products of vectors along an axis, of the first one's conjugate."""
    left, right = _in_own_dtype("vecdot", x1, x2)
    if axis >= 0 or -axis > min(left.ndim, right.ndim) or left.shape[axis] != right.shape[axis]:
        message = f"axis {axis} of shapes {x1.shape} and {x2.shape}"
        raise ShapeError("vecdot", message, "give a negative axis that has one size in both")
    shape = broadcast_shapes(left.shape, right.shape)
    product = conj(left).expand(shape) * right.expand(shape)
    return product.sum(axis, dtype=left.dtype)

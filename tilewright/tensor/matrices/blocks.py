"""Factorisations of large matrices, in blocks: the kernels factorise blocks of `BLOCK` rows or columns, and products of
matrices do the rest. In: batches (batch, rows, columns) without gradients. Out: what the kernels give for the whole.

Each is a recursion over halves, so that most work is in few, large products, and a matrix of n blocks takes about
log n different kernels."""

from __future__ import annotations

import functools
from typing import Any

from tilewright.base.dtype import dtypes
from tilewright.tensor.matrices import factors, householder
from tilewright.tensor.matrices.launch import empty, run_kernel

BLOCK = 64


def _half(size: int) -> int:
    """About half of a size, in whole blocks."""
    blocks = -(-size // BLOCK)
    return (blocks + 1) // 2 * BLOCK


def _join(rows: list[list[Any]]) -> Any:
    """One matrix of blocks."""
    return _cat([_cat(row, 2) for row in rows], 1)


def _cat(parts: list[Any], axis: int) -> Any:
    return parts[0].cat(*parts[1:], dim=axis) if len(parts) > 1 else parts[0]


# ---------------------------------------------------------------- triangles


def solve_triangle(matrix: Any, right: Any, is_upper: bool, is_unit: bool) -> Any:
    """X with matrix @ X = right."""
    size, columns = right.shape[1:]
    if size <= BLOCK:
        kernel = factors.TRIANGULAR_KERNELS[is_upper, is_unit]
        if columns <= BLOCK:
            return run_kernel(kernel, right.shape, matrix.contiguous(), right.contiguous())[0]
        inverse = run_kernel(kernel, matrix.shape, matrix.contiguous(), _identities(matrix))[0]
        return inverse @ right
    half = _half(size)
    first, second = (slice(half, None), slice(None, half)) if is_upper else (slice(None, half), slice(half, None))
    begun = solve_triangle(matrix[:, first, first], right[:, first], is_upper, is_unit).contiguous()
    rest = right[:, second] - matrix[:, second, first] @ begun
    ended = solve_triangle(matrix[:, second, second], rest, is_upper, is_unit)
    return _cat([ended, begun] if is_upper else [begun, ended], 1)


def _solution(matrix: Any, right: Any, is_upper: bool, is_unit: bool) -> list[Any]:
    return [solve_triangle(matrix, right, is_upper, is_unit).contiguous()]


# (is_upper, is_unit) -> what `TRIANGULAR_KERNELS` has for one block.
TRIANGULAR = {
    (is_upper, is_unit): functools.partial(_solution, is_upper=is_upper, is_unit=is_unit)
    for is_upper in (False, True)
    for is_unit in (False, True)
}


def _identities(matrix: Any) -> Any:
    batch, size, _ = matrix.shape
    return matrix.eye(size, dtype=matrix.dtype, device=matrix.device).expand(batch, size, size).contiguous()


def cholesky(matrix: Any) -> list[Any]:
    """The upper factor, as that of `cholesky_kernel`."""
    size = matrix.shape[1]
    if size <= BLOCK:
        return run_kernel(factors.cholesky_kernel, matrix.shape, matrix.contiguous())[:1]
    half = _half(size)
    (above,) = cholesky(matrix[:, :half, :half])
    beside = solve_triangle(above.mT, matrix[:, :half, half:], False, False).contiguous()
    (below,) = cholesky((matrix[:, half:, half:] - beside.mT @ beside).contiguous())
    corner = below.zeros(below.shape[0], size - half, half, dtype=below.dtype, device=below.device)
    return [_join([[above, beside], [corner, below]]).contiguous()]


# ---------------------------------------------------------------- rows in the order of pivots


def lu(matrix: Any) -> list[Any]:
    """The factors, the order of the rows and its sign, as those of `lu_kernel`."""
    batch, rows, columns = matrix.shape
    if columns <= BLOCK or rows <= BLOCK:
        order = empty(matrix, (batch, rows), dtypes.int32)
        return run_kernel(factors.lu_kernel, matrix.shape, order, (batch,), matrix.contiguous())[:3]
    half = min(_half(columns), rows)
    left, order, sign = lu(matrix[:, :, :half])
    right = _ordered(matrix[:, :, half:], order)
    above = solve_triangle(left[:, :half], right[:, :half], False, True).contiguous()
    if half == rows:
        return [_cat([left, above], 2).contiguous(), order, sign]
    rest = (right[:, half:] - left[:, half:] @ above).contiguous()
    below, later, other = lu(rest)
    moved = _ordered(left[:, half:], later)
    order = _cat([order[:, :half], order[:, half:].gather(1, later)], 1).contiguous()
    return [_join([[left[:, :half], above], [moved, below]]).contiguous(), order, sign * other]


def _ordered(matrix: Any, order: Any) -> Any:
    """The rows of each matrix in an order."""
    return matrix.gather(1, order.unsqueeze(2).expand(*order.shape, matrix.shape[2])).contiguous()


def solve(matrix: Any, right: Any) -> list[Any]:
    """The solution, and the factors of the matrix, as those of `solve_kernel`."""
    found = lu(matrix)
    begun = solve_triangle(found[0], _ordered(right, found[1]), False, True).contiguous()
    return [solve_triangle(found[0], begun, True, False).contiguous(), *found]


def determinant(matrix: Any) -> list[Any]:
    """The determinant, and the factors of the matrix, as those of `determinant_kernel`."""
    found = lu(matrix)
    return [found[2] * found[0].diagonal(0, 1, 2).prod(1), *found]


# ---------------------------------------------------------------- reflections


def orthogonal(matrix: Any, width: int) -> tuple[Any, Any]:
    """The first `width` columns of Q, and R."""
    batch, rows, columns = matrix.shape
    least = min(rows, columns)
    reflected, rest, tops = [], matrix, []
    for start in range(0, least, BLOCK):
        size = min(BLOCK, least - start)
        panel = rest[:, :, :size].contiguous()
        packed, scales, _ = run_kernel(householder.qr_kernel, panel.shape, (batch, size), panel)
        ones = packed.eye(rows - start, size, dtype=packed.dtype, device=packed.device)
        vectors = (packed.tril(-1) + ones).contiguous()
        weights = _weights(vectors, scales)
        further = rest[:, :, size:]
        if further.shape[2]:
            further = (further - vectors @ (weights.mT @ (vectors.mT @ further))).contiguous()
        top = packed[:, :size].triu()
        top = _cat([top, further[:, :size]], 2) if further.shape[2] else top
        tops.append(top.pad((start, 0)) if start else top)
        rest = further[:, size:]
        reflected.append((start, vectors, weights))
    made = matrix.eye(rows, width, dtype=matrix.dtype, device=matrix.device).expand(batch, rows, width)
    for start, vectors, weights in reversed(reflected):
        part = made[:, start:]
        part = part - vectors @ (weights @ (vectors.mT @ part))
        made = (_cat([made[:, :start], part], 1) if start else part).contiguous()
    return made, _cat(tops, 1).contiguous()


def _weights(vectors: Any, scales: Any) -> Any:
    """The triangle T with H1 @ H2 @ ... = 1 - V @ T @ V.T, for the reflections 1 - scale * v @ v.T. Its inverse has the
    products of the vectors above the diagonal, and on it one by the scales: infinite for what is not reflected."""
    products = vectors.mT @ vectors
    diagonal = (1 / scales).unsqueeze(2).expand(*products.shape)
    is_diagonal = _identities(products) > 0
    inverse = is_diagonal.where(diagonal, products.triu(1)).contiguous()
    return solve_triangle(inverse, _identities(products), True, False).contiguous()

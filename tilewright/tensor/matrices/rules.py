"""Gradients of factorisations. In: the gradients of the factors (None for an unused one), the factors and the inputs,
all of shape (batch, ...). Out: a gradient for each input. All are tensor operations, so that they can be differentiated
in turn. Where a rule divides by a difference that is 0, the quotient is taken as 0: equal eigenvalues and singular
values have no unique vectors.

The rules are those of Giles, An extended collection of matrix derivative results for forward and reverse mode (2008),
and of Golub and Pereyra for pseudo-inverses; torch's gradients are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.tensor.matrices.loops import ROUNDING

Given = Sequence[Any]


def transposed(matrix: Any) -> Any:
    return matrix.transpose(-2, -1)


def _reciprocal(values: Any) -> Any:
    """1 / values, and 0 where they are 0."""
    is_zero = values.eq(0)
    return is_zero.where(0.0, 1.0 / is_zero.where(1.0, values))


def _diagonal_matrix(values: Any) -> Any:
    size = values.shape[-1]
    return values.unsqueeze(-1) * values.eye(size, dtype=values.dtype, device=values.device)


def _lower_half(matrix: Any) -> Any:
    """The lower triangle with half of the diagonal."""
    return (matrix.tril() + matrix.tril(-1)) * 0.5


def cholesky_rule(gradient: Any, upper: Any) -> Any:
    """Of the upper factor R of R.T @ R, for the symmetric matrix."""
    inner = _lower_half(upper @ transposed(gradient))
    half = upper._solve_triangle(inner, True, False)
    found = upper._solve_triangle(transposed(half), True, False)
    return (found + transposed(found)) * 0.5


def qr_rule(gradients: Given, values: Given, inputs: Given) -> list[Any]:
    """Of the reduced Q and R."""
    (matrix,) = inputs
    q, r = values
    rows, columns = matrix.shape[-2:]
    q_gradient, r_gradient = (
        value.zeros(*value.shape, dtype=value.dtype, device=value.device) if gradient is None else gradient
        for gradient, value in zip(gradients, values)
    )
    if rows >= columns:
        return [_square_qr(q, r, q_gradient, r_gradient)]
    head, tail = r._columns(0, rows), matrix._columns(rows, columns)
    tail_gradient = r_gradient._columns(rows, columns)
    q_gradient = q_gradient + tail @ transposed(tail_gradient)
    first = _square_qr(q, head, q_gradient, r_gradient._columns(0, rows))
    return [first.cat(q @ tail_gradient, dim=-1)]


def _square_qr(q: Any, r: Any, q_gradient: Any, r_gradient: Any) -> Any:
    inner = r @ transposed(r_gradient) - transposed(q_gradient) @ q
    symmetric = inner.tril() + transposed(inner.tril(-1))
    return transposed(r._solve_triangle(transposed(q_gradient + q @ symmetric), True, False))


def eigh_rule(gradients: Given, values: Given, inputs: Given) -> list[Any]:
    """Of the eigenvalues and the eigenvectors in columns."""
    eigenvalues, vectors = values
    inner = None
    if gradients[1] is not None:
        gaps = eigenvalues.unsqueeze(-2) - eigenvalues.unsqueeze(-1)
        product = transposed(vectors) @ gradients[1]
        inner = (product - transposed(product)) * 0.5 * _reciprocal(gaps)
    if gradients[0] is not None:
        diagonal = _diagonal_matrix(gradients[0])
        inner = diagonal if inner is None else inner + diagonal
    return [None if inner is None else vectors @ inner @ transposed(vectors)]


def eigvalsh_rule(gradients: Given, values: Given, inputs: Given) -> list[Any]:
    """Of the eigenvalues alone; the vectors are computed here."""
    (matrix,) = inputs
    _, vectors = matrix.eigh()
    return [(vectors * gradients[0].unsqueeze(-2)) @ transposed(vectors)]


def svd_rule(gradients: Given, values: Given, inputs: Given) -> list[Any]:
    """Of the reduced U, S and V.T."""
    u, s, vt = values
    u_gradient, s_gradient, vt_gradient = gradients
    v = transposed(vt)
    across, down = s.unsqueeze(-2), s.unsqueeze(-1)
    inverse_gaps = _reciprocal((across - down) * (across + down))
    parts = []
    inner = None if s_gradient is None else _diagonal_matrix(s_gradient)
    if u_gradient is not None:
        product = transposed(u) @ u_gradient
        rotated = (product - transposed(product)) * inverse_gaps * across
        inner = rotated if inner is None else inner + rotated
        if u.shape[-2] > u.shape[-1]:
            parts.append(((u_gradient - u @ product) * _reciprocal(across)) @ vt)
    if vt_gradient is not None:
        v_gradient = transposed(vt_gradient)
        product = vt @ v_gradient
        rotated = down * ((product - transposed(product)) * inverse_gaps)
        inner = rotated if inner is None else inner + rotated
        if v.shape[-2] > v.shape[-1]:
            parts.append(u @ transposed((v_gradient - v @ product) * _reciprocal(across)))
    found = u @ inner @ vt
    for part in parts:
        found = found + part
    return [found]


def svdvals_rule(gradients: Given, values: Given, inputs: Given) -> list[Any]:
    """Of the singular values alone; the vectors are computed here."""
    (matrix,) = inputs
    u, _, vt = matrix.svd(full_matrices=False)
    return [(u * gradients[0].unsqueeze(-2)) @ vt]


# ---------------------------------------------------------------- systems of equations


def lu_rule(gradient: Any, factors: Any, order: Any) -> Any:
    """Of L below the diagonal and U above it, for the square matrix whose rows they hold in `order`."""
    lower = factors.tril(-1) + factors.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
    upper = factors.triu()
    inner = (transposed(lower) @ gradient.tril(-1)).tril(-1) + (gradient.triu() @ transposed(upper)).triu()
    left = transposed(lower)._solve_triangle(inner, True, True)
    found = transposed(upper._solve_triangle(transposed(left), True, False))
    return _rows_back(found, order)


def _rows_back(matrix: Any, order: Any) -> Any:
    """The inverse permutation of rows: row order[i] of the result is row i of the matrix."""
    index = order.unsqueeze(-1).expand(*matrix.shape)
    return matrix.zeros(*matrix.shape, dtype=matrix.dtype, device=matrix.device).scatter(-2, index, matrix)


def cofactors(factors: Any, order: Any, sign: Any) -> Any:
    """The derivative of the determinant by the matrix. A pivot of 0 is replaced by a tiny one, which gives the limit
    for a matrix of rank n - 1."""
    size = factors.shape[-1]
    pivots = factors.diagonal(0, -2, -1)
    safe = pivots.eq(0).where(ROUNDING[factors.dtype], pivots)
    factors = factors + _diagonal_matrix(safe - pivots)
    right = factors.eye(size, dtype=factors.dtype, device=factors.device).expand(*factors.shape)
    # inverse(A) = inverse(U) @ inverse(L) @ P, so that its transpose has the rows in their original order.
    solved = factors._solve_triangle(factors._solve_triangle(right, False, True), True, False)
    return _rows_back(transposed(solved), order) * (sign * safe.prod(-1)).reshape(-1, 1, 1)


def solve_rule(gradient: Any, solution: Any, matrix: Any) -> tuple[Any, Any]:
    """(for the matrix, for the right-hand side)."""
    right = transposed(matrix)._solve_batch(gradient)
    return -(right @ transposed(solution)), right


def triangular_rule(gradient: Any, solution: Any, matrix: Any, is_upper: bool, is_unit: bool) -> tuple[Any, Any]:
    """(for the triangle, for the right-hand side)."""
    right = transposed(matrix)._solve_triangle(gradient, not is_upper, is_unit)
    whole = -(right @ transposed(solution))
    offset = 1 if is_unit else 0
    return whole.triu(offset) if is_upper else whole.tril(-offset), right


def pinv_rule(gradients: Given, values: Given, inputs: Given) -> list[Any]:
    """Of the pseudo-inverse, for a matrix whose rank does not change."""
    (matrix,) = inputs
    return [_pinv_gradient(gradients[0], values[0], matrix)]


def _pinv_gradient(gradient: Any, inverse: Any, matrix: Any) -> Any:
    back, upstream = transposed(inverse), transposed(gradient)
    left = upstream @ inverse @ back
    right = back @ inverse @ upstream
    return left - matrix @ (inverse @ left) + right - (right @ inverse) @ matrix - back @ gradient @ back


def lstsq_rule(gradients: Given, values: Given, inputs: Given) -> list[Any]:
    """Of the solution, for the matrix and for the right-hand side."""
    matrix, right = inputs
    inverse = matrix.pinv()
    upstream = gradients[0]
    return [_pinv_gradient(upstream @ transposed(right), inverse, matrix), transposed(inverse) @ upstream]

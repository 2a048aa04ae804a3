"""Systems of linear equations, inverses and determinants. In: tensors whose last two axes are matrices. Out: tensors.
Solvers use LU with partial pivoting, or SVD where the matrix may be rank-deficient; the kernels are in
`tensor/matrices`. A singular matrix is not an error, since that is known only after the kernel has run: solutions are
inf and NaN, from a pivot of 0, and the determinant is 0."""

from __future__ import annotations

import math
from typing import Any, Self

from tilewright.base.dtype import dtypes, promote
from tilewright.base.errors import ShapeError
from tilewright.base.records import NamedTuple
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.core.checks import broadcast_shape, check_whole
from tilewright.tensor.core.modes import modes
from tilewright.tensor.families.linalg.decompositions import DecomposeMixin

LU_WORK = 0.4  # see `launch.is_large`


class Slogdet(NamedTuple):
    """The result of `slogdet`."""

    sign: Any
    logabsdet: Any


class Lstsq(NamedTuple):
    """The result of `lstsq`."""

    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


class SolveMixin(DecomposeMixin):
    """solve, inv, det, lstsq, pinv."""

    # ------------------------------------------------------------ systems

    def solve(self, B: Self, *, left: bool = True) -> Self:
        """X with `self @ X == B`, or with left=False `X @ self == B`. B is a matrix, or a vector for each matrix;
        batches broadcast. For a singular matrix X is inf or NaN."""
        check_devices("solve", self, B)
        self._check_matrices("solve", is_square=True)
        is_vector = B.ndim == 1 or (B.ndim == self.ndim - 1 and B.shape == self.shape[:-1])
        matrix, right = self._pair("solve", B.unsqueeze(-1) if is_vector else B, left or is_vector)
        found = matrix._solve_batch(right) if left else matrix.mT._solve_batch(right.mT)
        return self._solution(B, found if left else found.mT, is_vector)

    def _pair(self, name: str, right: Self, is_left: bool) -> tuple[Self, Self]:
        """This matrix and a right-hand side as batches of equal length in one dtype."""
        right._check_matrices(name)
        size = self.shape[-1]
        if right.shape[-2 if is_left else -1] != size:
            message = f"matrices of shape {self.shape} and a right-hand side of shape {right.shape}"
            raise ShapeError(name, message, f"give {size} {'rows' if is_left else 'columns'} on the right-hand side")
        dtype = promote(self.dtype, right.dtype)
        batch = broadcast_shape(name, self.shape[:-2], right.shape[:-2])
        pair = (
            each.cast(dtype).expand(*batch, *each.shape[-2:])._batch(name) if batch else each.cast(dtype)._batch(name)
            for each in (self, right)
        )
        return next(pair), next(pair)

    def _solution(self, right: Self, found: Self, is_vector: bool) -> Self:
        """The solution in the shape and dtype of the operands."""
        operand = right.unsqueeze(-1) if is_vector else right
        batch = broadcast_shape("solve", self.shape[:-2], operand.shape[:-2])
        shaped = found.reshape(*batch, *found.shape[1:]).cast(promote(self.dtype, right.dtype))
        return shaped.squeeze(-1) if is_vector else shaped

    def _solve_batch(self, right: Self) -> Self:
        """The solution for a batch of matrices and of right-hand sides."""
        from tilewright.tensor.matrices import blocks, factors, launch

        if 0 in right.shape:
            return right * 0.0
        batch, size, _ = self.shape
        order = launch.empty(self, (batch, size), dtypes.int32)
        arguments = (right.shape, self.shape, order, (batch,), self, right)
        found: list[Self] = launch.factorise(
            factors.solve_kernel, *arguments, blocked=blocks.solve, gradient=_solve_rule, work=LU_WORK
        )
        return found[0]

    def solve_triangular(self, B: Self, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Self:
        """X with `self @ X == B`, or with left=False `X @ self == B`, for a triangular matrix, of which one triangle is
        read. `unitriangular`: the diagonal is taken as 1 and not read."""
        check_devices("solve_triangular", self, B)
        self._check_matrices("solve_triangular", is_square=True)
        is_vector = B.ndim == 1
        matrix, right = self._pair("solve_triangular", B.unsqueeze(-1) if is_vector else B, left or is_vector)
        if left:
            found = matrix._solve_triangle(right, upper, unitriangular)
        else:
            found = matrix.mT._solve_triangle(right.mT, not upper, unitriangular).mT
        return self._solution(B, found, is_vector)

    def triangular_solve(
        self, A: Self, upper: bool = True, transpose: bool = False, unitriangular: bool = False
    ) -> tuple[Self, Self]:
        """X with `A @ X == self`, or with `transpose` `A.T @ X == self`, for a triangular A; and A."""
        check_devices("triangular_solve", self, A)
        A._check_matrices("triangular_solve", is_square=True)
        matrix = A.mT if transpose else A
        is_upper = upper != transpose
        return matrix.solve_triangular(self, upper=is_upper, unitriangular=unitriangular), A

    def _solve_triangle(self, right: Self, is_upper: bool, is_unit: bool) -> Self:
        """The solution for a batch of triangular matrices and of right-hand sides."""
        from tilewright.tensor.matrices import blocks, factors, launch

        if 0 in right.shape:
            return right * 0.0
        kernel, rule = factors.TRIANGULAR_KERNELS[is_upper, is_unit], _TRIANGULAR_RULES[is_upper, is_unit]
        ways: dict[str, Any] = {"blocked": blocks.TRIANGULAR[is_upper, is_unit], "gradient": rule}
        share = min(1.0, right.shape[2] / self.shape[2])
        found: list[Self] = launch.factorise(kernel, right.shape, self, right, **ways, work=share)
        return found[0]

    def cholesky_solve(self, L: Self, upper: bool = False) -> Self:
        """X with `L @ L.T @ X == self` for a factor L from `cholesky`, or with `upper` `L.T @ L @ X == self`."""
        check_devices("cholesky_solve", self, L)
        L._check_matrices("cholesky_solve", is_square=True)
        first = L.mT if upper else L
        inner = first.solve_triangular(self, upper=False)
        return first.mT.solve_triangular(inner, upper=True)

    # ------------------------------------------------------------ inverses and determinants

    def inv(self) -> Self:
        """The inverse of a square matrix; inf and NaN where it is singular."""
        self._check_matrices("inv", is_square=True)
        if 0 in self.shape:
            return self * 0.0
        batch = self._batch("inv")
        return self._from_batch(batch._solve_batch(batch._identities(self.shape[-1])))

    def inverse(self) -> Self:
        """The inverse of a square matrix, as `inv`."""
        return self.inv()

    def det(self) -> Self:
        """The determinant of a square matrix. Its gradient is the matrix of cofactors, also for a singular matrix of
        rank n - 1."""
        from tilewright.tensor.matrices import blocks, factors, launch

        self._check_matrices("det", is_square=True)
        if 0 in self.shape:
            return self.ones(*self.shape[:-2], dtype=self.dtype, device=self.device)
        matrix = self._batch("det")
        batch, size, _ = matrix.shape
        order = launch.empty(matrix, (batch, size), dtypes.int32)
        arguments: tuple[Any, ...] = ((batch,), matrix.shape, order, (batch,), matrix)
        return self._from_batch(
            launch.factorise(
                factors.determinant_kernel,
                *arguments,
                blocked=blocks.determinant,
                gradient=_determinant_rule,
                work=LU_WORK,
            )[0]
        )

    def slogdet(self) -> Slogdet:
        """The sign of the determinant of a square matrix and the logarithm of its absolute value: 0 and -inf where the
        matrix is singular."""
        self._check_matrices("slogdet", is_square=True)
        if 0 in self.shape:
            ones = self.ones(*self.shape[:-2], dtype=self.dtype, device=self.device)
            return Slogdet(ones, ones * 0.0)
        pivots, _, sign = self._lu("slogdet")
        pivots = pivots.diagonal(0, -2, -1)
        return Slogdet(
            self._from_batch(sign * pivots.detach().sign().prod(-1)), self._from_batch(pivots.abs().log().sum(-1))
        )

    def logdet(self) -> Self:
        """The logarithm of the determinant; NaN where that is negative."""
        sign, logabsdet = self.slogdet()
        found: Self = (sign < 0).where(math.nan, logabsdet)
        return found

    def _lu(self, name: str) -> tuple[Self, Self, Self]:
        """For a batch: L below the diagonal and U above it, the permutation of the rows, and its sign."""
        from tilewright.tensor.matrices import blocks, factors, launch

        matrix = self._batch(name)
        batch, rows, _ = matrix.shape
        order = launch.empty(matrix, (batch, rows), dtypes.int32)
        outputs = (matrix.shape, order, (batch,))
        found = launch.factorise(
            factors.lu_kernel, *outputs, matrix, blocked=blocks.lu, gradient=_lu_rule, work=LU_WORK
        )
        return found[0], found[1], found[2]

    def lu(self) -> tuple[Self, Self, Self]:
        """P, L and U with `P @ L @ U` equal to this matrix: a permutation, a unit lower and an upper triangular matrix.
        Gradients are defined for square matrices."""
        self._check_matrices("lu")
        rows, columns = self.shape[-2:]
        least = min(rows, columns)
        if 0 in self.shape:
            is_square = 0 not in self.shape[:-1]
            p = self._identities(rows) if is_square else self._no_elements(rows, rows)
            return p, self._no_elements(rows, least), self._no_elements(least, columns)
        factors, order, _ = self._lu("lu")
        identity = factors.eye(rows, dtype=factors.dtype, device=factors.device)
        numbers = factors.arange(rows, device=factors.device).reshape(1, rows, 1)
        p = order.unsqueeze(-2).eq(numbers).cast(factors.dtype)
        lower = factors._columns(0, least).tril(-1) + identity._columns(0, least)
        return self._from_batch(p), self._from_batch(lower), self._from_batch(factors._rows(0, least).triu())

    def matrix_power(self, n: int) -> Self:
        """The n-th power of a square matrix; of its inverse where n is negative."""
        self._check_matrices("matrix_power", is_square=True)
        check_whole("matrix_power", "n", n)
        if n == 0:
            return self._identities(self.shape[-1]) if 0 not in self.shape else self
        base, exponent = (self.inv(), -n) if n < 0 else (self, n)
        found: Self | None = None
        while True:
            if exponent & 1:
                found = base if found is None else found @ base
            exponent >>= 1
            if not exponent:
                break
            base = base @ base
        assert found is not None
        return found

    # ------------------------------------------------------------ matrices of any rank

    def _rank_limit(self, values: Self, atol: float | None, rtol: float | None) -> Self:
        """The limit below which singular values are taken as 0."""
        rounding = {dtypes.float64: 2.0**-52}.get(values.dtype, 2.0**-23)
        relative = rtol if rtol is not None else (0.0 if atol else max(self.shape[-2:]) * rounding)
        largest = values.max(-1, keepdim=True)
        return (largest * relative).maximum(0.0 if atol is None else atol)

    def pinv(self, rtol: float | Self | None = None, *, atol: float | None = None) -> Self:
        """The pseudo-inverse (Moore and Penrose). Singular values up to max(atol, rtol * the largest) are taken as 0;
        by default `rtol` is max(rows, columns) * epsilon. A tensor gives one value for each matrix."""
        from tilewright.tensor.matrices import launch, rules

        self._check_matrices("pinv")
        if 0 in self.shape:
            return self._no_elements(self.shape[-1], self.shape[-2])
        batch = self._batch("pinv")
        u, s, vt = batch.detach()._singular(False)
        inverses = _inverse_where(s, self._rank_limit(s, atol, self._per_matrix(rtol)))
        found = (vt.mT * inverses.unsqueeze(-2)) @ u.mT
        if modes.grad_enabled:
            (found,) = launch.with_gradient([found], [batch], rules.pinv_rule)
        return self._from_batch(found)

    def _per_matrix(self, limit: Any) -> Any:
        """A limit for each matrix of a batch, as a column; a number is used for all of them."""
        if not hasattr(limit, "expand"):
            return limit
        broadcast_shape("pinv", self.shape[:-2], limit.shape)
        return limit.expand(*self.shape[:-2]).reshape(-1, 1)

    def pinverse(self, rcond: float | None = None) -> Self:
        """The pseudo-inverse, as `pinv`."""
        return self.pinv(rcond)

    def matrix_rank(self, rtol: float | None = None, *, atol: float | None = None, tol: float | None = None) -> Self:
        """The number of singular values above max(atol, rtol * the largest); `tol` is an alias of `atol`."""
        self._check_matrices("matrix_rank")
        if 0 in self.shape:
            return self.zeros(*self.shape[:-2], dtype="int64", device=self.device)
        values = self.detach().svdvals()
        return (values > self._rank_limit(values, tol if atol is None else atol, rtol)).cast("int64").sum(-1)

    def lstsq(self, B: Self, rcond: float | None = None, *, driver: str | None = None) -> Lstsq:
        """The least-squares solution of `self @ X == B` with minimum norm; the sum of squared residuals of each column
        (empty where the matrix is rank-deficient or the system is not overdetermined), the rank, and the singular
        values. `driver` accepts LAPACK's names; all of them use the SVD here."""
        from tilewright.tensor.matrices import launch, rules

        if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
            raise ShapeError("lstsq", f"driver={driver!r}", "give 'gels', 'gelsy', 'gelsd', 'gelss' or None")
        check_devices("lstsq", self, B)
        self._check_matrices("lstsq")
        is_vector = B.ndim == 1 or (B.ndim == self.ndim - 1 and B.shape == self.shape[:-1])
        operand = B.unsqueeze(-1) if is_vector else B
        operand._check_matrices("lstsq")
        rows, columns = self.shape[-2:]
        if operand.shape[-2] != rows:
            message = f"matrices of shape {self.shape} and a right-hand side of shape {B.shape}"
            raise ShapeError("lstsq", message, f"give {rows} rows on the right-hand side")
        outer = broadcast_shape("lstsq", self.shape[:-2], operand.shape[:-2])
        dtype = promote(self.dtype, B.dtype)
        matrix, right = (each.cast(dtype).expand(*outer, *each.shape[-2:]) for each in (self, operand))
        if 0 in matrix.shape or 0 in right.shape:
            nothing = matrix._no_elements(columns, operand.shape[-1])
            rank = matrix.matrix_rank()
            return Lstsq(
                nothing.squeeze(-1) if is_vector else nothing, matrix.zeros(0), rank, matrix.detach().svdvals()
            )
        batch, targets = matrix._batch("lstsq"), right._batch("lstsq")
        u, s, vt = batch.detach()._singular(False)
        limit = self._rank_limit(s, None, rcond)
        inner = (u.mT @ targets.detach()) * _inverse_where(s, limit).unsqueeze(-1)
        found = vt.mT @ inner
        if modes.grad_enabled:
            (found,) = launch.with_gradient([found], [batch, targets], rules.lstsq_rule)
        rank = (s > limit).cast("int64").sum(-1)
        residuals = (batch @ found - targets).square().sum(-2)
        shaped = matrix._from_batch(found)
        sums = matrix._from_batch(residuals) if rows > columns else matrix.zeros(0, dtype=dtype, device=self.device)
        return Lstsq(
            shaped.squeeze(-1) if is_vector else shaped,
            sums.squeeze(-1) if is_vector and rows > columns else sums,
            rank.reshape(*outer),
            matrix._from_batch(s),
        )


def _inverse_where(values: Any, limit: Any) -> Any:
    """1 / values where they are above the limit, else 0."""
    counts = values > limit
    return counts.where(1.0 / counts.where(values, 1.0), 0.0)


# ---------------------------------------------------------------- gradients of single kernels


def _solve_rule(gradients: list[Any], solution: Any, _f: Any, _o: Any, _s: Any, matrix: Any, _right: Any) -> list[Any]:
    from tilewright.tensor.matrices import rules

    for_matrix, for_right = rules.solve_rule(gradients[0], solution, matrix)
    return [None, None, None, None, for_matrix, for_right]


def _lu_rule(gradients: list[Any], factors: Any, order: Any, sign: Any, _matrix: Any) -> list[Any]:
    from tilewright.tensor.matrices import launch, rules

    is_used = not launch.is_zero(gradients[0])
    return [None, None, None, rules.lu_rule(gradients[0], factors, order) if is_used else None]


def _determinant_rule(
    gradients: list[Any], product: Any, factors: Any, order: Any, sign: Any, matrix: Any
) -> list[Any]:
    from tilewright.tensor.matrices import launch, rules

    found = None
    if not launch.is_zero(gradients[0]):
        found = rules.cofactors(factors, order, sign) * gradients[0].reshape(-1, 1, 1)
    if not launch.is_zero(gradients[1]):
        other = rules.lu_rule(gradients[1], factors, order)
        found = other if found is None else found + other
    return [None, None, None, None, found]


def _triangular_rule(is_upper: bool, is_unit: bool) -> Any:
    def rule(gradient: Any, solution: Any, matrix: Any, _right: Any) -> list[Any]:
        from tilewright.tensor.matrices import rules

        return [None, *rules.triangular_rule(gradient, solution, matrix, is_upper, is_unit)]

    return rule


_TRIANGULAR_RULES = {(up, unit): _triangular_rule(up, unit) for up in (False, True) for unit in (False, True)}

"""Decompositions of matrices. In: tensors whose last two axes are matrices. Out: their factors. Each is a few kernels
with serial loops (`tensor/matrices`), over all matrices of a batch; the gradients are formulas on whole factors
(`matrices/rules.py`). 8- and 16-bit floats are factorised in float32."""

from __future__ import annotations

import math
from typing import Any, Self

from tilewright.base.errors import ShapeError
from tilewright.graph.spec import Shape
from tilewright.tensor.core.modes import modes
from tilewright.tensor.families.linalg.products import ProductsMixin


class DecomposeMixin(ProductsMixin):
    """cholesky, qr, eigh, svd."""

    # ------------------------------------------------------------ batches of matrices

    def _check_matrices(self, name: str, is_square: bool = False) -> None:
        self._check_float(name)
        if self.ndim < 2:
            raise ShapeError(name, f"shape {self.shape} is not a matrix", "give a tensor of at least 2 axes")
        if is_square and self.shape[-1] != self.shape[-2]:
            raise ShapeError(name, f"matrices of shape {self.shape} are not square", "give as many rows as columns")

    def _batch(self, name: str) -> Self:
        """The matrices as (batch, rows, columns), in the float dtype of the computation."""
        from tilewright.tensor.matrices.launch import check_layout

        check_layout(name, self)
        wide = self.cast(self._wide().dtype)
        return wide if self.ndim == 3 else wide.reshape(math.prod(self.shape[:-2]), *self.shape[-2:])

    def _from_batch(self, found: Self) -> Self:
        """A result for each matrix of this tensor, in its dtype."""
        shaped = found if self.ndim == 3 else found.reshape(*self.shape[:-2], *found.shape[1:])
        return shaped.cast(self.dtype)

    def _no_elements(self, *shape: int) -> Self:
        return self.zeros(*self.shape[:-2], *shape, dtype=self.dtype, device=self.device)

    def _identities(self, size: int) -> Self:
        """Identity matrices, for a tensor whose matrices have no elements."""
        found = self.eye(size, dtype=self.dtype, device=self.device)
        return found.expand(*self.shape[:-2], size, size)

    def _rows(self, start: int, stop: int) -> Self:
        return self._slice_axis(self.ndim - 2, start, stop)

    def _columns(self, start: int, stop: int) -> Self:
        return self._slice_axis(self.ndim - 1, start, stop)

    # ------------------------------------------------------------ Cholesky

    def cholesky(self, upper: bool = False) -> Self:
        """The lower triangular L with L @ L.T equal to this symmetric positive definite matrix, or with `upper` the
        upper triangular R with R.T @ R. Only that triangle is read. Where the matrix is not positive definite, the
        factor is NaN from the first row that shows it."""
        from tilewright.tensor.matrices import blocks, factors, launch

        self._check_matrices("cholesky", is_square=True)
        if 0 in self.shape:
            return self._no_elements(*self.shape[-2:])
        batch = self._batch("cholesky")
        source = batch if upper else batch.mT
        ways: dict[str, Any] = {"blocked": blocks.cholesky, "gradient": _cholesky_rule, "work": 0.75}
        factor, _ = launch.factorise(factors.cholesky_kernel, source.shape, source, **ways)
        return self._from_batch(factor if upper else factor.mT)

    # ------------------------------------------------------------ QR

    def qr(self, mode: str = "reduced") -> tuple[Self, Self]:
        """Q with orthonormal columns and an upper triangular R whose product is this matrix, with LAPACK's signs.
        `mode`: "reduced" for the smallest factors; "complete" for a square Q; "r" for R alone, with an empty Q.
        Gradients are those of the reduced factors."""
        from tilewright.tensor.matrices import launch, rules

        self._check_matrices("qr")
        if mode not in ("reduced", "complete", "r"):
            raise ShapeError("qr", f"mode={mode!r}", "give 'reduced', 'complete' or 'r'")
        rows, columns = self.shape[-2:]
        least = min(rows, columns)
        width = rows if mode == "complete" else least
        nothing = self.zeros(0, dtype=self.dtype, device=self.device)
        if 0 in self.shape:
            is_complete = mode == "complete" and 0 not in self.shape[:-1]
            q = self._identities(rows) if is_complete else self._no_elements(rows, width)
            return nothing if mode == "r" else q, self._no_elements(width, columns)
        batch = self._batch("qr")
        q, r = batch.detach()._orthogonal(width)
        if modes.grad_enabled:
            kept, r = launch.with_gradient([q._columns(0, least), r], [batch], rules.qr_rule)
            q = kept if width == least else kept.cat(q._columns(least, width), dim=-1)
        if width > least:
            r = r.pad((0, 0, 0, width - least))
        return nothing if mode == "r" else self._from_batch(q), self._from_batch(r)

    def _orthogonal(self, width: int) -> tuple[Self, Self]:
        """The first `width` columns of Q, and R, of a batch."""
        from tilewright.tensor.matrices import blocks, householder, launch

        if launch.is_large(8.0, self):
            return blocks.orthogonal(self, width)
        if launch.prefers_host(self):
            return launch.on_host(self, lambda moved: moved._orthogonal(width))  # type: ignore[no-any-return]
        batch, rows, columns = self.shape
        least = min(rows, columns)
        reflections, scales, _ = launch.run_kernel(householder.qr_kernel, self.shape, (batch, least), self)
        q, *_ = launch.run_kernel(householder.qr_vectors_kernel, (batch, rows, width), reflections, scales)
        return q, reflections._rows(0, least).triu()

    # ------------------------------------------------------------ eigenvalues

    def eigh(self, UPLO: str = "L") -> tuple[Self, Self]:
        """The eigenvalues of a symmetric matrix in ascending order, and its eigenvectors in the columns of a second
        matrix. Only the lower triangle is read, or with UPLO="U" the upper one."""
        from tilewright.tensor.matrices import launch, rules

        batch = self._symmetric("eigh", UPLO)
        if batch is None:
            return self._no_elements(self.shape[-1]), self._no_elements(*self.shape[-2:])
        values, vectors = batch.detach()._eigen(True)
        values, vectors = values, vectors.mT
        if modes.grad_enabled:
            values, vectors = launch.with_gradient([values, vectors], [batch], rules.eigh_rule)
        return self._from_batch(values), self._from_batch(vectors)

    def eigvalsh(self, UPLO: str = "L") -> Self:
        """The eigenvalues of a symmetric matrix in ascending order."""
        from tilewright.tensor.matrices import launch, rules

        batch = self._symmetric("eigvalsh", UPLO)
        if batch is None:
            return self._no_elements(self.shape[-1])
        (values,) = batch.detach()._eigen(False)
        if modes.grad_enabled:
            (values,) = launch.with_gradient([values], [batch], rules.eigvalsh_rule)
        return self._from_batch(values)

    def _symmetric(self, name: str, triangle: str) -> Self | None:
        """The batch with the triangle to read below the diagonal; None where there are no elements."""
        self._check_matrices(name, is_square=True)
        if triangle not in ("L", "U", "l", "u"):
            raise ShapeError(name, f"UPLO={triangle!r}", "give 'L' for the lower triangle or 'U' for the upper one")
        if 0 in self.shape:
            return None
        batch = self._batch(name)
        return batch if triangle in "Ll" else batch.mT

    def _eigen(self, has_vectors: bool) -> list[Self]:
        """The sorted eigenvalues of a batch and, as rows, the eigenvectors."""
        from tilewright.tensor.matrices import householder, launch, rotations

        if launch.prefers_host(self):
            return launch.on_host(self, lambda moved: moved._eigen(has_vectors))  # type: ignore[no-any-return]
        batch, size, _ = self.shape
        row = (batch, size)
        work, diagonal, beside, scales, unit, _ = launch.run_kernel(
            householder.tridiagonal_kernel, self.shape, row, row, row, (batch,), self
        )
        vectors = []
        if has_vectors:
            q, *_ = launch.run_kernel(householder.row_vectors_kernel, self.shape, work, scales)
            vectors = [q._in_rows()]
        if size > 1:
            diagonal, _, *vectors = launch.run_kernel(rotations.tridiagonal_values_kernel, diagonal, beside, *vectors)
        outputs: list[Shape] = [row, *(self.shape for _ in vectors)]
        return launch.run_kernel(rotations.ordered_kernel, *outputs, diagonal, *vectors, unit)[: len(outputs)]

    def _in_rows(self) -> Self:
        """The columns as rows, padded to a multiple of the vector width."""
        from tilewright.tensor.matrices.rotations import LANES

        return self.mT.pad((0, -self.shape[-2] % LANES))

    # ------------------------------------------------------------ SVD

    def svd(self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
        """U, S and V.T: orthonormal columns, singular values in descending order, orthonormal rows, whose product
        U @ diag(S) @ V.T is this matrix. `full_matrices` makes U and V square. Gradients are those of the reduced
        factors."""
        from tilewright.tensor.matrices import launch, rules

        self._check_matrices("svd")
        rows, columns = self.shape[-2:]
        least = min(rows, columns)
        if 0 in self.shape:
            return self._empty_svd(rows, columns, full_matrices)
        batch = self._batch("svd")
        u, s, vt = batch.detach()._singular(full_matrices)
        if modes.grad_enabled:
            reduced = [u._columns(0, least), s, vt._rows(0, least)]
            left, s, right = launch.with_gradient(reduced, [batch], rules.svd_rule)
            u = left if u.shape[-1] == least else left.cat(u._columns(least, rows), dim=-1)
            vt = right if vt.shape[-2] == least else right.cat(vt._rows(least, columns), dim=-2)
        return self._from_batch(u), self._from_batch(s), self._from_batch(vt)

    def _empty_svd(self, rows: int, columns: int, is_full: bool) -> tuple[Self, Self, Self]:
        least = min(rows, columns)
        values = self._no_elements(least)
        if not is_full or 0 in self.shape[:-2]:
            height, width = (rows, columns) if is_full else (least, least)
            return self._no_elements(rows, height), values, self._no_elements(width, columns)
        return self._identities(rows), values, self._identities(columns)

    def svdvals(self) -> Self:
        """The singular values in descending order."""
        from tilewright.tensor.matrices import launch, rules

        self._check_matrices("svdvals")
        if 0 in self.shape:
            return self._no_elements(min(self.shape[-2:]))
        batch = self._batch("svdvals")
        (values,) = batch.detach()._triangle_values()
        if modes.grad_enabled:
            (values,) = launch.with_gradient([values], [batch], rules.svdvals_rule)
        return self._from_batch(values)

    def _triangle_values(self) -> list[Self]:
        """The singular values of a batch; those of R where there are more rows than columns."""
        rows, columns = self.shape[-2:]
        if rows < columns:
            return self.mT._triangle_values()
        square = self if rows == columns else self._orthogonal(columns)[1]
        return square._square_singular(False)

    def _singular(self, is_full: bool) -> tuple[Self, Self, Self]:
        rows, columns = self.shape[-2:]
        if rows < columns:
            v, s, ut = self.mT._singular(is_full)
            return ut.mT, s, v.mT
        if rows == columns:
            s, ut, vt = self._square_singular(True)
            return ut.mT, s, vt
        q, r = self._orthogonal(rows if is_full else columns)
        s, ut, vt = r._square_singular(True)
        u = q._columns(0, columns) @ ut.mT
        return u.cat(q._columns(columns, rows), dim=-1) if is_full else u, s, vt

    def _square_singular(self, has_vectors: bool) -> list[Self]:
        """S, U.T and V.T of a batch of square matrices, or S alone."""
        from tilewright.tensor.matrices import householder, launch, rotations

        if launch.prefers_host(self):
            return launch.on_host(self, lambda moved: moved._square_singular(has_vectors))  # type: ignore[no-any-return]
        batch, size, _ = self.shape
        row = (batch, size)
        work, diagonal, beside, left, right, unit, _ = launch.run_kernel(
            householder.bidiagonal_kernel, self.shape, row, row, row, row, (batch,), self
        )
        vectors: list[Self] = []
        if has_vectors:
            u, *_ = launch.run_kernel(householder.qr_vectors_kernel, self.shape, work, left)
            v, *_ = launch.run_kernel(householder.row_vectors_kernel, self.shape, work, right)
            vectors = [u._in_rows(), v._in_rows()]
        if size > 1:
            diagonal, _, *vectors = launch.run_kernel(rotations.bidiagonal_values_kernel, diagonal, beside, *vectors)
        outputs: list[Shape] = [row, *(self.shape for _ in vectors)]
        arguments: list[Any] = [*outputs, diagonal, *vectors, unit]
        return launch.run_kernel(rotations.ordered_singular_kernel, *arguments)[: len(outputs)]


def _cholesky_rule(gradient: Any, factor: Any, _matrix: Any) -> list[Any]:
    from tilewright.tensor.matrices import rules

    return [None, rules.cholesky_rule(gradient, factor)]

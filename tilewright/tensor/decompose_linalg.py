"""Decompositions of matrices. In: tensors whose last two axes are matrices. Out: their factors.
The steps of a decomposition are one kernel run again and again: rows and columns move on after each step, so that the
next one finds its own in the same place. QR is differentiated step by step; the factors of an SVD are found without
gradients, and then moved by what a change of the matrix would change, which is zero and has the right derivative."""

from __future__ import annotations

from typing import Self

from tilewright.base.dtype import dtypes
from tilewright.base.errors import ShapeError
from tilewright.graph import build
from tilewright.tensor import nodes
from tilewright.tensor.convolution import read_axis
from tilewright.tensor.core import modes
from tilewright.tensor.losses import LossesMixin


class DecomposeMixin(LossesMixin):
    """qr, svd."""

    def _check_matrices(self, name: str) -> None:
        self._check_float(name)
        if self.ndim < 2:
            raise ShapeError(name, f"shape {self.shape} is no matrix", "give a tensor of at least 2 axes")

    def _exchanged(self) -> Self:
        return self.transpose(-2, -1)

    # ------------------------------------------------------------ QR

    def qr(self) -> tuple[Self, Self]:
        """Q with orthonormal columns and an upper triangular R whose product is this matrix, as small as they can be;
        signs as LAPACK gives them."""
        self._check_matrices("qr")
        rows, columns = self.shape[-2:]
        least = min(rows, columns)
        whole, upper = self.cast(self._wide().dtype)._householder()
        q = whole._columns(0, least)
        r = upper._rows(0, least).triu()
        return q.cast(self.dtype), r.cast(self.dtype)

    def _rows(self, start: int, stop: int) -> Self:
        return self._slice_axis(self.ndim - 2, start, stop)

    def _columns(self, start: int, stop: int) -> Self:
        return self._slice_axis(self.ndim - 1, start, stop)

    def _householder(self) -> tuple[Self, Self]:
        """The square orthogonal matrix Q and Q.T @ self, which is upper triangular up to rounding."""
        *outer, rows, columns = self.shape
        steps = min(rows, columns)
        identity = self.eye(rows, dtype=self.dtype, device=self.device)
        if steps == 0:
            return identity.expand(*outer, rows, rows), self
        work = self.cat(identity.expand(*outer, rows, rows), dim=-1)
        # Rows that have become rows of R wander below those still to be done, and take no part.
        is_open = self.ones(rows, dtype=self.dtype, device=self.device).contiguous()
        for _ in range(steps):
            work = work.contiguous()._reflected(is_open).roll((-1, -1), (-2, -1))
            is_open = is_open._slice_axis(0, 1, rows).pad((0, 1)).contiguous()
        work = work.contiguous().roll((steps, steps), (-2, -1)).contiguous()
        return work._columns(columns, columns + rows)._exchanged(), work._columns(0, columns)

    def _reflected(self, is_open: Self) -> Self:
        """With the open rows reflected so that the first column is zero below the first row."""
        column = self._columns(0, 1) * is_open.unsqueeze(-1)
        first = column._rows(0, 1)
        square = column._rows(1, self.shape[-2]).square().sum(-2, keepdim=True)
        is_done = square.eq(0)
        length = is_done.where(1.0, square + first.square()).sqrt()
        target = (first < 0).where(length, -length)
        row = nodes.replace_axis(column.shape, column.ndim - 2, column.shape[-2])
        is_first = column._new(build.axis_iota(row, column.ndim - 2)).eq(0)
        safe = is_done.where(1.0, first - target)
        vector = is_first.where(1.0, column / safe)
        scale = is_done.where(0.0, (target - first) / target)
        product = (vector * self).sum(-2, keepdim=True)
        return self - vector * (scale * product)

    # ------------------------------------------------------------ SVD

    def svd(self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
        """U, S and V.T: orthonormal columns, singular values in descending order, orthonormal rows, whose product
        U @ diag(S) @ V.T is this matrix. `full_matrices` makes U and V square. Gradients are those of the reduced
        factors, and of first order."""
        self._check_matrices("svd")
        rows, columns = self.shape[-2:]
        matrix = self.cast(self._wide().dtype)
        if rows < columns:
            v, s, u = (part.detach() for part in matrix.detach()._exchanged()._jacobi())
            u, vt = u, v._exchanged()
        else:
            u, s, v = (part.detach() for part in matrix.detach()._jacobi())
            vt = v._exchanged()
        least = min(rows, columns)
        if modes.grad_enabled and 0 not in self.shape:
            u, s, vt = matrix._moved_factors(u, s, vt, least)
        if not full_matrices:
            u, vt = u._columns(0, least), vt._rows(0, least)
        return u.cast(self.dtype), s.cast(self.dtype), vt.cast(self.dtype)

    def _jacobi(self) -> tuple[Self, Self, Self]:
        """U (square), S, V of a matrix with at least as many rows as columns: its columns are turned in pairs until all
        are orthogonal (M. R. Hestenes)."""
        *outer, rows, columns = self.shape
        if 0 in self.shape:
            left = self.eye(rows, dtype=self.dtype, device=self.device).expand(*outer, rows, rows)
            right = self.eye(columns, dtype=self.dtype, device=self.device).expand(*outer, columns, columns)
            return left, self.zeros(*outer, columns, dtype=self.dtype, device=self.device), right
        identity = self.eye(columns, dtype=self.dtype, device=self.device).expand(*outer, columns, columns)
        work = self._exchanged().cat(identity, dim=-1)
        if columns % 2:
            work = work.pad((0, 0, 0, 1))
        count = columns + columns % 2
        if columns > 1:
            sweeps = (6 if self.dtype is not dtypes.float64 else 8) + (columns - 1).bit_length()
            for _ in range(sweeps * (count - 1)):
                # Each round is the same kernels on other memory, so they are planned and compiled once.
                work = work.contiguous().realize()._turned_pairs(rows)
        work = work.contiguous().realize()
        norms = work._columns(0, rows).square().sum(-1).sqrt()
        order = norms.argsort(-1, descending=True)._slice_axis(len(outer), 0, columns)
        s = norms.gather(-1, order)
        # A row of padding has no part in V, and comes last among the singular values that are 0.
        index = order.unsqueeze(-1).expand(*outer, columns, rows + columns)
        work = work.gather(-2, index)
        safe = s.eq(0).where(1.0, s).unsqueeze(-1)
        left = (work._columns(0, rows) / safe)._exchanged()
        whole, upper = left.contiguous()._householder()
        signs = upper.diagonal(0, -2, -1)
        signs = (signs < 0).where(-1.0, 1.0).cast(self.dtype).unsqueeze(-2)
        if rows > columns:
            signs = signs.pad((0, rows - columns), value=1.0)
        return whole * signs, s, work._columns(rows, rows + columns)._exchanged()

    def _turned_pairs(self, width: int) -> Self:
        """Row k turned with row k + half until the two are orthogonal in their first `width` columns; then the rows in
        the order of the next round of a tournament, in which each meets every other once."""
        half = self.shape[-2] // 2
        top, bottom = self._rows(0, half), self._rows(half, 2 * half)
        first, second = top._columns(0, width), bottom._columns(0, width)
        product = (first * second).sum(-1, keepdim=True)
        difference = (second * second).sum(-1, keepdim=True) - (first * first).sum(-1, keepdim=True)
        is_done = product.eq(0)
        ratio = difference / (is_done.where(1.0, product) * 2)
        tangent = (ratio < 0).where(-1.0, 1.0) / (ratio.abs() + (ratio.square() + 1).sqrt())
        tangent = is_done.where(0.0, tangent).contiguous()
        cosine = (tangent.square() + 1).rsqrt()
        sine = cosine * tangent
        turned = (top * cosine - bottom * sine).cat(top * sine + bottom * cosine, dim=-2).contiguous()
        # The first row stays; the others go round: along the upper half, back along the lower one.
        number = build.iota(2 * half)
        source = build.where(number < half, number - 1, number + 1)
        source = build.where(number.eq(1), number.const_like(half), source)
        source = build.where(number.eq(2 * half - 1), number.const_like(half - 1), source)
        source = build.where(number.eq(0), number.const_like(0), source)
        if half == 1:
            return turned
        return turned._new(read_axis(turned.uop, self.ndim - 2, source))

    def _moved_factors(self, u: Self, s: Self, vt: Self, least: int) -> tuple[Self, Self, Self]:
        """The factors plus their first-order change by `self - self.detach()`, which is zero."""
        change = self - self.detach()
        left, right = u._columns(0, least), vt._rows(0, least)._exchanged()
        inner = left._exchanged() @ change @ right
        across, down = s.unsqueeze(-2), s.unsqueeze(-1)
        gap = (across - down) * (across + down)
        inverse = gap.eq(0).where(0.0, 1.0 / gap.eq(0).where(1.0, gap))
        one_over = s.eq(0).where(0.0, 1.0 / s.eq(0).where(1.0, s)).unsqueeze(-2)
        turn_left = inverse * (inner * across + down * inner._exchanged())
        turn_right = inverse * (down * inner + inner._exchanged() * across)
        rest_left = change @ right - left @ inner
        rest_right = change._exchanged() @ left - right @ inner._exchanged()
        left_change = left @ turn_left + rest_left * one_over
        right_change = right @ turn_right + rest_right * one_over
        moved_u = u + left_change.pad((0, u.shape[-1] - least))
        moved_vt = vt + right_change._exchanged().pad((0, 0, 0, vt.shape[-2] - least))
        return moved_u, s + inner.diagonal(0, -2, -1), moved_vt

"""Cases of linear algebra: what ours and torch compute of the same matrices. Vectors of eigh and svd have free signs,
so their absolute values are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

GENERATOR = np.random.default_rng(11)


class Case(NamedTuple):
    """`ours` of tensors and `torchs` of torch.linalg and its tensors; the arrays that both are given."""

    ours: Callable[..., Any]
    torchs: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape)


def positive(*shape: int) -> np.ndarray:
    matrix = normal(*shape)
    return matrix @ matrix.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])


def without_signs(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.abs() for each in values)


CASES: dict[str, Case] = {
    "cholesky": Case(lambda x: x.cholesky(), lambda t, x: t.cholesky(x), (positive(4, 4),)),
    "cholesky upper": Case(
        lambda x: x.cholesky(upper=True), lambda t, x: t.cholesky(x, upper=True), (positive(2, 3, 3),)
    ),
    "solve": Case(lambda a, b: a.solve(b), lambda t, a, b: t.solve(a, b), (normal(4, 4), normal(4, 2))),
    "solve vector": Case(lambda a, b: a.solve(b), lambda t, a, b: t.solve(a, b), (normal(4, 4), normal(4))),
    "solve vectors": Case(lambda a, b: a.solve(b), lambda t, a, b: t.solve(a, b), (normal(3, 4, 4), normal(3, 4))),
    "solve broadcast": Case(
        lambda a, b: a.solve(b), lambda t, a, b: t.solve(a, b), (normal(3, 1, 4, 4), normal(2, 4, 5))
    ),
    "solve right": Case(
        lambda a, b: a.solve(b, left=False), lambda t, a, b: t.solve(a, b, left=False), (normal(4, 4), normal(2, 4))
    ),
    "solve 1x1": Case(lambda a, b: a.solve(b), lambda t, a, b: t.solve(a, b), (normal(2, 1, 1), normal(2, 1, 3))),
    "inv": Case(lambda x: x.inv(), lambda t, x: t.inv(x), (normal(2, 4, 4),)),
    "det": Case(lambda x: x.det(), lambda t, x: t.det(x), (normal(2, 4, 4),)),
    "det 1x1": Case(lambda x: x.det(), lambda t, x: t.det(x), (normal(1, 1),)),
    "slogdet": Case(lambda x: x.slogdet()[1], lambda t, x: t.slogdet(x)[1], (normal(2, 4, 4),)),
    "triangular": Case(
        lambda a, b: a.solve_triangular(b, upper=True),
        lambda t, a, b: t.solve_triangular(a, b, upper=True),
        (positive(4, 4), normal(4, 2)),
    ),
    "triangular right": Case(
        lambda a, b: a.solve_triangular(b, upper=False, left=False, unitriangular=True),
        lambda t, a, b: t.solve_triangular(a, b, upper=False, left=False, unitriangular=True),
        (normal(4, 4), normal(2, 4)),
    ),
    "lu": Case(lambda x: x.lu()[1:], lambda t, x: t.lu(x)[1:], (normal(2, 4, 4),)),
    "qr": Case(lambda x: x.qr(), lambda t, x: t.qr(x), (normal(5, 3),)),
    "qr wide": Case(lambda x: x.qr(), lambda t, x: t.qr(x), (normal(2, 3, 5),)),
    "eigvalsh": Case(lambda x: x.eigvalsh(), lambda t, x: t.eigvalsh(x), (positive(4, 4),)),
    "eigh": Case(lambda x: without_signs(x.eigh()), lambda t, x: without_signs(t.eigh(x)), (positive(2, 4, 4),)),
    "eigh upper": Case(
        lambda x: without_signs(x.eigh("U")), lambda t, x: without_signs(t.eigh(x, "U")), (normal(2, 3, 3),)
    ),
    "svdvals": Case(lambda x: x.svdvals(), lambda t, x: t.svdvals(x), (normal(4, 3),)),
    "svd": Case(lambda x: without_signs(x.svd(False)), lambda t, x: without_signs(t.svd(x, False)), (normal(5, 3),)),
    "svd wide": Case(
        lambda x: without_signs(x.svd(False)), lambda t, x: without_signs(t.svd(x, False)), (normal(2, 2, 4),)
    ),
    "pinv": Case(lambda x: x.pinv(), lambda t, x: t.pinv(x), (normal(4, 3),)),
    "lstsq": Case(lambda a, b: a.lstsq(b)[0], lambda t, a, b: t.lstsq(a, b)[0], (normal(5, 3), normal(5, 2))),
    "lstsq wide": Case(lambda a, b: a.lstsq(b)[0], lambda t, a, b: t.lstsq(a, b)[0], (normal(3, 5), normal(3, 2))),
    "matrix_power": Case(lambda x: x.matrix_power(5), lambda t, x: t.matrix_power(x, 5), (normal(2, 3, 3),)),
    "matrix_power -2": Case(lambda x: x.matrix_power(-2), lambda t, x: t.matrix_power(x, -2), (normal(3, 3),)),
    "cross": Case(lambda a, b: a.cross(b, 1), lambda t, a, b: t.cross(a, b, dim=1), (normal(2, 3, 4), normal(2, 3, 1))),
    "norm nuc": Case(lambda x: x.norm("nuc"), lambda t, x: t.matrix_norm(x, "nuc"), (normal(3, 4),)),
    "norm 3": Case(lambda x: x.norm(3, 1), lambda t, x: t.vector_norm(x, 3, 1), (normal(3, 4),)),
}

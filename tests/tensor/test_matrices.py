"""Factorisations, systems of equations, norms: values against NumPy and SciPy, gradients against differences and torch,
on the emulator too; matrices without elements, singular ones, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from tests.computed import computed
from tests.tensor.matrix_cases import CASES, GENERATOR, normal, positive
from tilewright import Tensor, linalg
from tilewright.base.errors import DTypeError, ShapeError, UnsupportedError


def listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def transposed(array: np.ndarray) -> np.ndarray:
    return array.swapaxes(-1, -2)


# ---------------------------------------------------------------- against torch and against differences


@pytest.mark.torch
@pytest.mark.parametrize("name", CASES)
def test_torch_gives_the_same(name: str) -> None:
    import torch

    case = CASES[name]
    ours = [Tensor(array, requires_grad=True) for array in case.arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in case.arrays]
    found, expected = listed(case.ours(*ours)), listed(case.torchs(torch.linalg, *theirs))
    weights = [GENERATOR.standard_normal(each.shape) for each in found]
    sum((each * Tensor(weight)).sum() for each, weight in zip(found, weights)).backward()
    sum((each * torch.tensor(weight)).sum() for each, weight in zip(expected, weights)).backward()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-9)
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-8, atol=1e-8)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_differences(name: str) -> None:
    """Along one direction, which keeps symmetric matrices symmetric."""
    case = CASES[name]
    is_symmetric = name.startswith(("cholesky", "eig"))
    directions = [normal(*array.shape) for array in case.arrays]
    arrays = list(case.arrays)
    if is_symmetric:
        directions = [each + transposed(each) for each in directions]
        arrays = [array + transposed(array) for array in arrays]
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    found = listed(case.ours(*tensors))
    weights = [normal(*each.shape) for each in found]
    total = sum((each * Tensor(weight)).sum() for each, weight in zip(found, weights))
    gradients = total.gradient(*tensors)
    slope = sum((each * direction).sum() for each, direction in zip(computed(gradients), directions))

    def value(step: float) -> float:
        moved = [Tensor(array + step * direction) for array, direction in zip(arrays, directions)]
        return sum((each * weight).sum() for each, weight in zip(computed(listed(case.ours(*moved))), weights))

    step = 1e-5
    expected = (8 * (value(step) - value(-step)) - (value(2 * step) - value(-2 * step))) / (12 * step)
    assert slope == pytest.approx(expected, rel=1e-5, abs=1e-6)


EMULATED = ("cholesky", "solve vectors", "det", "triangular right", "qr wide", "eigh upper", "svd wide", "lstsq wide")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EMULATED)
def test_the_emulator_gives_the_same(name: str) -> None:
    case = CASES[name]
    on_cpu = listed(case.ours(*(Tensor(array) for array in case.arrays)))
    emulated = listed(case.ours(*(Tensor(array, device="PYTHON") for array in case.arrays)))
    for one, other in zip(emulated, on_cpu):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-9, atol=1e-9)


def test_second_derivatives() -> None:
    """Of log det A, whose first derivative is the inverse."""
    matrix = Tensor(positive(3, 3), requires_grad=True)
    (first,) = matrix.slogdet()[1].gradient(matrix)
    (second,) = first[0, 1].gradient(matrix)
    inverse = np.linalg.inv(matrix.numpy())
    np.testing.assert_allclose(second.numpy(), -np.outer(inverse[1, :], inverse[:, 0]), rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------- factors multiply to the matrix


SHAPES = [(1, 1), (2, 2), (7, 3), (3, 7), (1, 4), (2, 3, 6, 4), (33, 33)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "dtype"), [*((shape, "float32") for shape in SHAPES), ((2, 3, 6, 4), "float64")])
def test_svd_and_qr(shape: tuple[int, ...], dtype: str) -> None:
    matrix = normal(*shape).astype(dtype)
    limit = max(shape) * np.finfo(dtype).eps * 4
    for is_full in (False, True):
        u, s, vt = computed(Tensor(matrix).svd(is_full))
        least = s.shape[-1]
        np.testing.assert_allclose(
            (u[..., :least] * s[..., None, :]) @ vt[..., :least, :], matrix, atol=limit * s.max(), rtol=0
        )
        np.testing.assert_allclose(s, np.linalg.svd(matrix, compute_uv=False), atol=limit * s.max(), rtol=0)
        assert_orthonormal(u, limit)
        assert_orthonormal(transposed(vt), limit)
        assert (np.diff(s, axis=-1) <= 0).all()
    for mode in ("reduced", "complete"):
        q, r = computed(Tensor(matrix).qr(mode))
        expected = np.linalg.qr(matrix.astype("float64"), mode=mode)
        np.testing.assert_allclose(q @ r, matrix, atol=limit * 4, rtol=0)
        np.testing.assert_allclose(r, expected[1], atol=limit * 40, rtol=0)
        assert_orthonormal(q, limit)


def assert_orthonormal(columns: np.ndarray, limit: float) -> None:
    identity = np.broadcast_to(np.eye(columns.shape[-1]), (*columns.shape[:-2], columns.shape[-1], columns.shape[-1]))
    np.testing.assert_allclose(transposed(columns) @ columns, identity, atol=limit, rtol=0)


SIZE = 12  # of all of them, so that they are the same kernels


def graded(is_rising: bool) -> np.ndarray:
    scales = np.logspace(0, -12, SIZE)
    scales = scales[::-1] if is_rising else scales
    return scales[:, None] * normal(SIZE, SIZE) * scales[None, :]


HARD = {
    "zero": np.zeros((SIZE, SIZE)),
    "identity": np.eye(SIZE),
    "equal values": np.linalg.qr(normal(SIZE, SIZE))[0] * 3.0,
    "rank one": np.outer(np.arange(1.0, SIZE + 1), np.arange(SIZE)),
    "rank half": normal(SIZE, SIZE // 2) @ normal(SIZE // 2, SIZE),
    "falling": graded(False),
    "rising": graded(True),
    "zeros inside": np.diag([3.0, 0, 2, 0, 1, 5, 4, 0, 1, 1, 0, 2]) + np.diag([1.0, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1], 1),
    "huge": normal(SIZE, SIZE) * 1e150,
    "tiny": normal(SIZE, SIZE) * 1e-150,
    "Hilbert": scipy.linalg.hilbert(SIZE),
    "Kahan": np.triu(-np.ones((SIZE, SIZE)), 1) * 0.9 + np.eye(SIZE),
    "zero column": np.pad(normal(SIZE, SIZE - 1), ((0, 0), (1, 0))),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_matrices(name: str) -> None:
    matrix = HARD[name]
    u, s, vt = computed(Tensor(matrix).svd())
    limit = 1e-13 * max(abs(matrix).max(), np.finfo("float64").tiny) * len(matrix)
    np.testing.assert_allclose((u * s) @ vt, matrix, atol=limit, rtol=0)
    np.testing.assert_allclose(s, np.linalg.svd(matrix, compute_uv=False), atol=limit, rtol=0)
    assert_orthonormal(u, 1e-13)
    assert_orthonormal(vt, 1e-13)
    symmetric = matrix + matrix.T
    values, vectors = computed(Tensor(symmetric).eigh())
    np.testing.assert_allclose((vectors * values) @ vectors.T, symmetric, atol=4 * limit, rtol=0)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(symmetric), atol=4 * limit, rtol=0)
    assert_orthonormal(vectors, 1e-13)
    q, r = computed(Tensor(matrix).qr())
    np.testing.assert_allclose(q @ r, matrix, atol=limit, rtol=0)
    assert_orthonormal(q, 1e-13)


def test_nan_ends() -> None:
    matrix = normal(4, 4)
    matrix[1, 2] = math.nan
    assert np.isnan(Tensor(matrix).svdvals().numpy()).any()
    assert np.isnan(Tensor(matrix + matrix.T).eigvalsh().numpy()).any()
    assert np.isnan(Tensor(matrix).det().numpy())


def test_only_one_triangle_is_read() -> None:
    matrix, rubbish = positive(4, 4), normal(4, 4) * 1e3
    lower, upper = np.tril(matrix) + np.triu(rubbish, 1), np.triu(matrix) + np.tril(rubbish, -1)
    np.testing.assert_allclose(Tensor(lower).cholesky().numpy(), np.linalg.cholesky(matrix))
    np.testing.assert_allclose(Tensor(upper).cholesky(upper=True).numpy(), np.linalg.cholesky(matrix).T)
    expected = np.linalg.eigvalsh(matrix)
    np.testing.assert_allclose(Tensor(lower).eigvalsh().numpy(), expected)
    np.testing.assert_allclose(Tensor(upper).eigvalsh("U").numpy(), expected)
    right = normal(4, 3)
    found = Tensor(upper).solve_triangular(Tensor(right), upper=True).numpy()
    np.testing.assert_allclose(found, scipy.linalg.solve_triangular(matrix, right))


# ---------------------------------------------------------------- singular, empty, wrong


def test_singular_matrices() -> None:
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert Tensor(singular).det().item() == 0
    assert [each.item() for each in Tensor(singular).slogdet()] == [0, -math.inf]
    assert not np.isfinite(Tensor(singular).inv().numpy()).all()
    assert np.isnan(Tensor(-np.eye(2)).cholesky().numpy()[0, 0])
    np.testing.assert_allclose(Tensor(singular).pinv().numpy(), np.linalg.pinv(singular), atol=1e-14)
    assert Tensor(singular).matrix_rank().item() == 1
    solution, _, rank, values = Tensor(singular).lstsq(Tensor([1.0, 1.0], dtype="float64"))
    expected = np.linalg.lstsq(singular, np.ones(2), rcond=None)
    np.testing.assert_allclose(solution.numpy(), expected[0], atol=1e-14)
    assert rank.item() == expected[2]
    np.testing.assert_allclose(values.numpy(), expected[3], atol=1e-14)


@pytest.mark.parametrize("matrix", [[[1.0, 2], [2, 4]], [[1.0, 2, 3], [4, 5, 6], [7, 8, 9]], np.diag([1.0, 2, 0])])
def test_the_gradient_of_a_determinant_that_is_zero_is_the_cofactors(matrix: Any) -> None:
    matrix = np.array(matrix)
    size = len(matrix)
    minors = [[np.delete(np.delete(matrix, i, 0), j, 1) for j in range(size)] for i in range(size)]
    expected = [[(-1) ** (i + j) * np.linalg.det(minors[i][j]) for j in range(size)] for i in range(size)]
    tensor = Tensor(matrix, requires_grad=True)
    tensor.det().backward()
    assert tensor.grad is not None
    np.testing.assert_allclose(tensor.grad.numpy(), expected, atol=1e-9)


EMPTY: list[tuple[Callable[..., Any], tuple[int, ...], list[tuple[int, ...]]]] = [
    (lambda x: x.cholesky(), (0, 0), [(0, 0)]),
    (lambda x: x.cholesky(), (0, 3, 3), [(0, 3, 3)]),
    (lambda x: x.inv(), (2, 0, 0), [(2, 0, 0)]),
    (lambda x: x.det(), (2, 0, 0), [(2,)]),
    (lambda x: x.slogdet(), (0, 0), [(), ()]),
    (lambda x: x.eigh(), (0, 0), [(0,), (0, 0)]),
    (lambda x: x.qr(), (3, 0), [(3, 0), (0, 0)]),
    (lambda x: x.qr("complete"), (3, 0), [(3, 3), (3, 0)]),
    (lambda x: x.qr(), (0, 3), [(0, 0), (0, 3)]),
    (lambda x: x.svd(), (3, 0), [(3, 3), (0,), (0, 0)]),
    (lambda x: x.svd(), (0, 2, 3), [(0, 2, 2), (0, 2), (0, 3, 3)]),
    (lambda x: x.svd(False), (2, 0, 3), [(2, 0, 0), (2, 0), (2, 0, 3)]),
    (lambda x: x.pinv(), (3, 0), [(0, 3)]),
    (lambda x: x.matrix_rank(), (2, 3, 0), [(2,)]),
    (lambda x: x.solve(x), (0, 0), [(0, 0)]),
    (lambda x: x.lu(), (3, 0), [(3, 3), (3, 0), (0, 0)]),
]


@pytest.mark.parametrize(("call", "shape", "expected"), EMPTY)
def test_matrices_without_elements(call: Callable[..., Any], shape: tuple[int, ...], expected: list[Any]) -> None:
    found = listed(call(Tensor.zeros(*shape)))
    assert [each.shape for each in found] == expected
    assert [each.numpy().shape for each in found] == expected


def test_what_empty_matrices_are() -> None:
    assert Tensor.zeros(0, 0).det().item() == 1
    np.testing.assert_array_equal(Tensor.zeros(3, 0).svd()[0].numpy(), np.eye(3))


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Tensor.ones(2, 3).cholesky(), ShapeError, "not square"),
    (lambda: Tensor.ones(3).svd(), ShapeError, "not a matrix"),
    (lambda: Tensor([[1, 2], [3, 4]]).det(), DTypeError, "int32"),
    (lambda: Tensor.ones(2, 2).solve(Tensor.ones(3, 2)), ShapeError, "give 2 rows"),
    (lambda: Tensor.ones(2, 2).qr("full"), ShapeError, "mode='full'"),
    (lambda: Tensor.ones(2, 2).eigh("X"), ShapeError, "UPLO='X'"),
    (lambda: Tensor.ones(2, 2).matrix_power(0.5), ShapeError, "n=0.5"),
    (lambda: Tensor.ones(2, 2).cross(Tensor.ones(2, 2)), ShapeError, "not have size 3"),
    (lambda: Tensor.ones(2, 2).outer(Tensor.ones(2)), ShapeError, "not both vectors"),
    (lambda: Tensor.ones(2, 2).matrix_norm(7), ShapeError, "ord=7"),
    (lambda: linalg.norm(Tensor.ones(2, 2, 2), 2), ShapeError, "3 axes"),
    (lambda: linalg.multi_dot([Tensor.ones(2, 3), Tensor.ones(2, 3)]), ShapeError, "do not chain"),
    (lambda: Tensor.ones(2, 2).lstsq(Tensor.ones(3)), ShapeError, "give 2 rows"),
    (lambda: Tensor.ones(4, 4).shard(("CPU:0", "CPU:1"), 0).det(), UnsupportedError, "sharded along axis 0"),
]


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_mistakes_are_named_at_the_line(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    assert caught.value.location is not None
    assert caught.value.location[0] == __file__


# ---------------------------------------------------------------- dtypes, devices


def test_short_floats_are_computed_in_float32() -> None:
    matrix = positive(6, 6).astype(np.float16)
    found = Tensor(matrix).inv()
    assert found.dtype.name == "float16"
    np.testing.assert_allclose(found.numpy(), np.linalg.inv(matrix.astype(np.float64)), rtol=2e-3, atol=2e-3)


def test_a_batch_on_several_devices() -> None:
    matrices = positive(4, 3, 3)
    divided = Tensor(matrices).shard(("CPU:0", "CPU:1"), 0)
    np.testing.assert_allclose(divided.inv().numpy(), np.linalg.inv(matrices), rtol=1e-9)
    np.testing.assert_allclose(divided.eigvalsh().numpy(), np.linalg.eigvalsh(matrices), rtol=1e-9)
    np.testing.assert_allclose(divided.svd()[1].numpy(), np.linalg.svd(matrices)[1], rtol=1e-9)


def test_batches_are_shared_among_threads() -> None:
    """Matrices of a batch are independent, and the compiler proves it: rows of computed length stay inside theirs."""
    from tilewright.base.dtype import dtypes
    from tilewright.graph.kernels.language.language import make_argument
    from tilewright.kernel.analysis.dependence import check_cores
    from tilewright.kernel.axes import view_kernel
    from tilewright.kernel.prepare.accumulators import recognise_accumulators
    from tilewright.tensor.matrices import factors, householder, rotations

    matrix, row, order, one = (4, 20, 20), (4, 20), (4, 20), (4,)
    padded = (4, 20, 32)
    kernels: list[tuple[Any, list[tuple[int, ...]]]] = [
        (factors.cholesky_kernel, [matrix, matrix]),
        (factors.lu_kernel, [matrix, order, one, matrix]),
        (householder.qr_kernel, [matrix, row, matrix]),
        (householder.tridiagonal_kernel, [matrix, row, row, row, one, matrix]),
        (householder.bidiagonal_kernel, [matrix, row, row, row, row, one, matrix]),
        (rotations.tridiagonal_values_kernel, [row, row, padded]),
        (rotations.bidiagonal_values_kernel, [row, row, padded, padded]),
    ]
    for kernel, shapes in kernels:
        types = [dtypes.int32 if kernel is factors.lu_kernel and k == 1 else dtypes.float32 for k in range(len(shapes))]
        arguments = [make_argument(slot, dtype, shape) for slot, (dtype, shape) in enumerate(zip(types, shapes))]
        view = view_kernel(recognise_accumulators(kernel(*arguments)))
        assert check_cores(view, view.axes[0]) is None, kernel


# ---------------------------------------------------------------- norms and products


ORDERS: list[tuple[Any, Any]] = [
    (o, d) for o in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf) for d in ((0, 1), (2, 0))
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("order", "axes"), ORDERS)
def test_matrix_norms(order: Any, axes: tuple[int, int]) -> None:
    array = normal(3, 4, 5)
    for keepdim in (False, True):
        found = linalg.matrix_norm(Tensor(array), order, axes, keepdim).numpy()
        np.testing.assert_allclose(found, np.linalg.norm(array, order, axes, keepdim))


@pytest.mark.parametrize("order", [0, 0.5, 1, 2, 3, -1, math.inf, -math.inf])
def test_vector_norms(order: float) -> None:
    array = normal(3, 4)
    array[0, 1] = 0.25
    for axis in (None, 0, 1):
        found = linalg.vector_norm(Tensor(array), order, axis).numpy()
        flat = array.reshape(-1) if axis is None else array
        np.testing.assert_allclose(found, np.linalg.norm(flat, order, axis))
    assert Tensor.zeros(3).norm().item() == 0
    zero = Tensor.zeros(3).contiguous().requires_grad_()
    assert zero.norm().gradient(zero)[0].tolist() == [0, 0, 0]


def test_products() -> None:
    a, b, c = normal(3, 4), normal(4, 5), normal(5)
    tensors = [Tensor(each) for each in (a, b, c)]
    np.testing.assert_allclose(linalg.multi_dot(tensors).numpy(), a @ b @ c)
    np.testing.assert_allclose(linalg.outer(tensors[2], tensors[2]).numpy(), np.outer(c, c))
    np.testing.assert_allclose(linalg.trace(tensors[0], offset=1).numpy(), np.trace(a, 1))
    np.testing.assert_allclose(linalg.tensordot(tensors[0], tensors[1], 1).numpy(), a @ b)
    cube = normal(2, 3, 4)
    np.testing.assert_allclose(
        linalg.tensordot(Tensor(cube), tensors[0], [[1, 2], [0, 1]]).numpy(), np.tensordot(cube, a, [[1, 2], [0, 1]])
    )
    np.testing.assert_allclose(linalg.vecdot(tensors[0], tensors[0], dim=0).numpy(), (a * a).sum(0))
    np.testing.assert_allclose(linalg.cond(Tensor(positive(3, 3))).ndim, 0)


def test_every_name_of_the_module_is_documented() -> None:
    assert linalg.__all__ == sorted(linalg.__all__)
    assert [name for name in linalg.__all__ if not getattr(linalg, name).__doc__] == []

"""Linear algebra of large matrices. A factorisation was scalar code in one thread: the inverse of 1024 rows took 1.1 s
(torch 0.03), and a Cholesky factor of 1024 rows minutes on a card. Blocks and products of matrices give the same
results, gradients included, and so does the host for a card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.computed import computed
from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor, jit
from tilewright.backends.cpu.device import cpu_target
from tilewright.engine.execution.realize import schedule
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import optimise
from tilewright.tensor.matrices import blocks, launch

generator = np.random.default_rng(12)


def matrices(batch: int, rows: int, columns: int) -> np.ndarray:
    return generator.standard_normal((batch, rows, columns))


def definite(batch: int, size: int) -> np.ndarray:
    x = matrices(batch, size, size)
    return x @ x.transpose(0, 2, 1) + size * np.eye(size)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 4)
    monkeypatch.setattr(launch, "MIN_STEPS", 0)


def given(array: np.ndarray, device: str = "CPU") -> Tensor:
    return Tensor(array, device=device, requires_grad=True)


SIZES = [4, 11, 17]
# Each with its operands: a matrix, a symmetric positive definite one, right-hand sides.
FACTORISATIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "cholesky": ("s", lambda s: s.cholesky()),
    "upper cholesky": ("s", lambda s: s.cholesky(upper=True)),
    "solve": ("ab", lambda a, b: a.solve(b)),
    "inverse": ("a", lambda a: a.inv()),
    "determinant": ("a", lambda a: a.det()),
    "slogdet": ("a", lambda a: a.slogdet().logabsdet),
    "lower": ("sb", lambda s, b: s.solve_triangular(b, upper=False)),
    "upper": ("sb", lambda s, b: s.solve_triangular(b, upper=True)),
    "unit lower": ("sb", lambda s, b: (s * 0.01).solve_triangular(b, upper=False, unitriangular=True)),
    "many right-hand sides": ("asb", lambda a, s, b: s.solve_triangular(a.cat(a, b, dim=-1), upper=False)),
    "from the right": ("sb", lambda s, b: s.solve_triangular(b.mT, upper=True, left=False)),
    "lu": ("a", lambda a: a.lu()[2]),
    "qr": ("a", lambda a: a.qr()[1]),
    "q": ("a", lambda a: a.qr()[0]),
    "least squares": ("ab", lambda a, b: a.lstsq(b)[0]),
}


def results(name: str, size: int, batch: int, device: str) -> list[np.ndarray]:
    """The result and the gradients of the operands, of float64 numbers that the sizes give."""
    random = np.random.default_rng(size)
    x = random.standard_normal((batch, size, size))
    operands = x, x @ x.transpose(0, 2, 1) + size * np.eye(size), random.standard_normal((batch, size, 3))
    letters, function = FACTORISATIONS[name]
    tensors = [given(operands["asb".index(letter)], device) for letter in letters]
    found = function(*tensors)
    weights = Tensor(np.cos(np.arange(found.numel())).reshape(found.shape), device=device)
    return computed([found, *(found * weights).sum().gradient(*tensors)])


def factorised() -> list[Any]:
    """One block, and one of the sizes with several, in turns; the other one is slow."""
    return [
        pytest.param(name, size, id=f"{name}-{size}", marks=[pytest.mark.slow] * (at > 0 and (number + at) % 2))
        for number, name in enumerate(FACTORISATIONS)
        for at, size in enumerate(SIZES)
    ]


@pytest.mark.parametrize(("name", "size"), factorised())
def test_blocks_give_what_one_kernel_gives(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = results(name, size, 2, "CPU")
    monkeypatch.setattr(blocks, "BLOCK", 4)
    monkeypatch.setattr(launch, "MIN_STEPS", 0)
    found = results(name, size, 2, "CPU")
    assert len(found) == len(expected) > 1
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-9, atol=1e-9 * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("shape", [(13, 6), (6, 13), (9, 9), (5, 21), (21, 5)], ids=str)
@pytest.mark.usefixtures("small_blocks")
def test_matrices_that_are_not_square(shape: tuple[int, int]) -> None:
    x = matrices(2, *shape)
    p, lower, upper, q, r = computed([*Tensor(x).lu(), *Tensor(x).qr()])
    np.testing.assert_allclose(p @ lower @ upper, x, atol=1e-12)
    assert np.abs(lower).max() <= 1 + 1e-12, "the largest element of a column is its pivot"
    np.testing.assert_allclose(q @ r, x, atol=1e-12)
    np.testing.assert_allclose(
        q.transpose(0, 2, 1) @ q, np.broadcast_to(np.eye(q.shape[2]), (2, *[q.shape[2]] * 2)), atol=1e-12
    )
    assert np.abs(np.tril(r, -1)).max() == 0


@pytest.mark.usefixtures("small_blocks")
def test_what_has_no_factor() -> None:
    """NaN from the first row that shows it; inf and NaN of singular matrices; columns that need no reflection."""
    x = definite(1, 12)
    x[0, 7, 7] = -1
    factor = Tensor(x).cholesky().numpy()[0]
    np.testing.assert_allclose(factor[:7, :7], np.linalg.cholesky(x[0, :7, :7]), atol=1e-12)
    assert np.isnan(factor[7, 7])
    singular = matrices(1, 12, 12)
    singular[0, 9] = singular[0, 2]
    assert abs(Tensor(singular).det().item()) < 1e-10
    assert not np.isfinite(Tensor(np.zeros((1, 12, 12))).inv().numpy()).all()
    assert Tensor(np.zeros((1, 12, 12))).det().item() == 0
    upper = np.triu(matrices(1, 12, 12))
    q, r = computed(Tensor(upper).qr())
    np.testing.assert_allclose(q @ r, upper, atol=1e-12)
    assert np.isfinite(q).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["cholesky", "inverse", "lower"])
def test_large_matrices_are_as_accurate_as_in_one_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are factorised in blocks by themselves, in float32."""
    x, size = matrices(3, 900, 900).astype(np.float32), 900
    operands = x[0], x[1] @ x[1].T + size * np.eye(size, dtype=np.float32), x[2]
    letters, function = FACTORISATIONS[name]
    wide = [operands["asb".index(letter)].astype(np.float64) for letter in letters]
    exact = {
        "cholesky": np.linalg.cholesky,
        "inverse": np.linalg.inv,
        "lower": lambda s, b: np.linalg.solve(np.tril(s), b),
    }

    def error() -> float:
        found = function(*(Tensor(each.astype(np.float32)) for each in wide))
        items = schedule([found.uop], "CPU").items
        assert (len(items) > 20) is (launch.MIN_STEPS == 1 << 28)
        return float(np.abs(found.numpy() - exact[name](*wide)).max())

    in_blocks = error()
    monkeypatch.setattr(launch, "MIN_STEPS", 1 << 60)
    assert in_blocks < 4 * error()


# ---------------------------------------------------------------- the host, for a card


@pytest.fixture
def slow_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "CARD_STEP", 1.0)


@pytest.mark.parametrize("name", FACTORISATIONS)
@pytest.mark.usefixtures("slow_card")
def test_the_host_factorises_for_a_card(name: str) -> None:
    with emulated_card(is_reference=False) as card:
        found = results(name, 6, 2, NAME)
        names = {program.name for program in card.programs}
    expected = results(name, 6, 2, "CPU")
    assert not any(each.startswith(("cholesky", "lu_factor", "solve", "determinant", "qr")) for each in names)
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("slow_card")
def test_eigenvalues_and_singular_values_of_a_card() -> None:
    x = matrices(2, 6, 6)
    with emulated_card(is_reference=False) as card:
        values = Tensor(x + x.transpose(0, 2, 1), device=NAME).eigh()[0]
        singular = Tensor(x, device=NAME).svd()[1]
        assert values.device == singular.device == NAME
        np.testing.assert_allclose(values.numpy(), np.linalg.eigvalsh(x + x.transpose(0, 2, 1)), atol=1e-12)
        np.testing.assert_allclose(singular.numpy(), np.linalg.svd(x)[1], atol=1e-12)
        assert not any("diagonal" in program.name for program in card.programs)


@pytest.mark.usefixtures("slow_card")
def test_a_jitted_step_goes_to_the_host_and_back() -> None:
    x = definite(3, 5)
    with emulated_card(is_reference=False):
        call = jit(lambda s: (s * 2).cholesky().sum(-1))
        for scale in (1.0, 1.0, 2.0, 3.0):
            found = call(Tensor(x * scale, device=NAME)).numpy()
            np.testing.assert_allclose(found, np.linalg.cholesky(2 * scale * x).sum(-1), atol=1e-12)
        assert call.last_reason == ""


def test_small_matrices_stay_on_the_card() -> None:
    with emulated_card(is_reference=False) as card:
        Tensor(definite(3, 4), device=NAME).cholesky().numpy()
        assert "cholesky" in {program.name for program in card.programs}


# ---------------------------------------------------------------- vectors


@pytest.mark.parametrize("name", ["cholesky", "solve", "lower", "inverse"])
def test_each_nest_of_a_factorisation_is_vectorised(name: str) -> None:
    letters, function = FACTORISATIONS[name]
    tensors = [Tensor(np.zeros((96, 96), np.float32)).realize() for _ in letters]
    kernels = [item.ast for item in schedule([function(*tensors).uop], "CPU").items if item.ast is not None]
    (kernel,) = [ast for ast in kernels if ast.arg.name in ("cholesky", "solve", "solve_lower")]
    chosen = optimise(kernel, cpu_target())
    along_rows = sum(opt.op is OptOps.UPCAST for opt in chosen.arg.applied)
    nests = {"cholesky": 3, "solve_lower": 3, "solve": 7}
    assert along_rows >= nests[kernel.arg.name]
    assert view_kernel(chosen).of_kind(AxisType.UPCAST)

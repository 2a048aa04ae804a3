"""Contractions of symbolic sizes on tensor cores: one kernel for all values of a variable, for sizes of rows, of
columns, of the sum and of batches. On the emulator, which has the facts of a card, against numpy in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, CardDriver, emulated_card
from tilewright import Tensor, Variable, dtypes
from tilewright.backends.cuda.device import cuda_target
from tilewright.base.dtype import DType
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import toposort
from tilewright.kernel.analysis.contraction import count, extent

BF16, F32 = dtypes.bfloat16, dtypes.float32
LEAST, GREATEST = 2, 96
BATCH = 3
SMALL = 24  # as the greatest number of batches and images
TOLERANCE = {BF16: 0.01, F32: 2e-6}  # of the largest result; bfloat16 has 8 digits
Array = np.ndarray[Any, Any]


def cores(*names: str) -> dict[str, Any]:
    """The facts of a card, with those of its tensor cores whose names begin so."""
    target = cuda_target()
    found = tuple(core for core in target.tensor_cores if core.name.startswith(names or ""))
    return {"tensor_cores": found, "max_local_bytes": target.max_local_bytes, "cores": target.cores}


@pytest.fixture
def card() -> Iterator[CardDriver]:
    with emulated_card(**cores()) as driver:
        yield driver


@dataclass(frozen=True)
class Case:
    """A product of the first `n` of its operands. `op` is that of the kernel for bfloat16: DOT where the copy engine
    fetches the operands, TILE_DOT where threads stage them. Cores for float32 have no copy engine."""

    ours: Callable[..., Tensor]
    theirs: Callable[..., Array]
    shapes: tuple[tuple[int, ...], ...]
    op: Op = Ops.TILE_DOT
    greatest: int = GREATEST

    @property
    def values(self) -> tuple[int, ...]:
        """Both ends of the variable, and two thirds of it, which are a tile, and a bit more, which divides nothing."""
        return (LEAST, self.greatest * 2 // 3, self.greatest * 4 // 5 + 1, self.greatest)


def heads(x: Any, n: int) -> Any:
    return x[:, :n].reshape(BATCH, n, 2, 32)


def windows(image: Array) -> Array:
    """The windows of 3 x 3 of images padded by one: (n, channels, rows, columns, 3, 3)."""
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))


CASES = {
    "rows of batches, an epilogue": Case(
        lambda n, x, w: (x[:, :n].contiguous() @ w + 1).relu(),
        lambda n, x, w: np.maximum(x[:, :n] @ w + 1, 0),
        ((BATCH, GREATEST, 64), (64, 80)),
        Ops.DOT,
    ),
    "rows, a sum below a step": Case(
        lambda n, x, w: x[:n].contiguous() @ w, lambda n, x, w: x[:n] @ w, ((GREATEST, 40), (40, 72)), Ops.DOT
    ),
    "columns": Case(
        lambda n, x, w: x @ w[:n].contiguous().T, lambda n, x, w: x @ w[:n].T, ((80, 64), (GREATEST, 64)), Ops.DOT
    ),
    "a batch": Case(
        lambda n, x, w: Tensor.einsum("bnk,nko->nbo", x[:, :n], w[:n]),
        lambda n, x, w: np.einsum("bnk,nko->nbo", x[:, :n], w[:n]),
        ((64, SMALL, 64), (SMALL, 64, 64)),
        Ops.DOT,
        SMALL,
    ),
    "a sum over batches and a size": Case(
        lambda n, x, g: x[:, :n].contiguous().reshape(BATCH * n, 64).T @ g[:, :n].contiguous().reshape(BATCH * n, 72),
        lambda n, x, g: np.einsum("bnk,bno->ko", x[:, :n], g[:, :n]),
        ((BATCH, GREATEST, 64), (BATCH, GREATEST, 72)),
    ),
    "rows and columns": Case(
        lambda n, x: x[:, :n].contiguous() @ x[:, :n].contiguous().transpose(1, 2),
        lambda n, x: x[:, :n] @ x[:, :n].transpose(0, 2, 1),
        ((BATCH, GREATEST, 64),),
    ),
    "rows and the sum": Case(
        lambda n, s, x: s[:, :n, :n].contiguous() @ x[:, :n].contiguous(),
        lambda n, s, x: s[:, :n, :n] @ x[:, :n],
        ((BATCH, GREATEST, GREATEST), (BATCH, GREATEST, 64)),
    ),
    "parts of memory": Case(
        lambda n, s, x: s[:, :n, :n] @ x[:, :n],
        lambda n, s, x: s[:, :n, :n] @ x[:, :n],
        ((BATCH, GREATEST, GREATEST), (BATCH, GREATEST, 64)),
    ),
    "heads": Case(
        lambda n, x: heads(x, n).transpose(1, 2) @ heads(x, n).transpose(1, 2).transpose(2, 3),
        lambda n, x: np.einsum("bnhk,bmhk->bhnm", heads(x, n), heads(x, n)),
        ((BATCH, GREATEST, 64),),
        Ops.DOT,
    ),
    "images": Case(
        lambda n, x, w: x[:n].contiguous().conv2d(w, padding=1),
        lambda n, x, w: np.einsum("nchwij,ocij->nohw", windows(x[:n]), w),
        ((SMALL, 16, 5, 5), (16, 16, 3, 3)),
        greatest=SMALL,
    ),
}


def operands(case: Case, dtype: DType) -> list[Tensor]:
    """Held on the card in a dtype."""
    generator = np.random.default_rng(11)
    arrays = [generator.uniform(-1, 1, shape).astype(np.float32) for shape in case.shapes]
    return [Tensor(each, device=NAME).cast(dtype).realize() for each in arrays]


def products(card: CardDriver) -> list[UOp]:
    """The products of tiles in all kernels so far."""
    return [node for program in card.programs for node in program.body if node.op in (Ops.DOT, Ops.TILE_DOT)]


def compare(case: Case, given: list[Tensor], size: Any) -> None:
    found = case.ours(size, *given)
    assert found.dtype is given[0].dtype
    wanted = case.theirs(int(size), *(each.float().numpy().astype(np.float64) for each in given))
    assert tuple(map(int, found.shape)) == wanted.shape
    assert np.abs(found.float().numpy() - wanted).max() <= TOLERANCE[found.dtype] * np.abs(wanted).max()


# Threads multiply short sums of float32 by themselves; tensor cores multiply parts of its numbers.
KINDS = {"bfloat16": (BF16, "wgmma_bfloat16"), "float32": (F32, "fma_float32"), "parts": (F32, "wgmma_float32x3")}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_multiplies_tiles_for_all_values(name: str, kind: str) -> None:
    case, (dtype, core) = CASES[name], KINDS[kind]
    with emulated_card(**cores(core)) as card:
        given, variable = operands(case, dtype), Variable("n", LEAST, case.greatest)
        for value in case.values:
            compare(case, given, variable.bind(value))
        (product,) = products(card)
    assert product.op is (case.op if dtype is BF16 else Ops.TILE_DOT)
    assert product.arg.core.startswith(core)


@pytest.mark.parametrize("name", ["rows and the sum", "rows of batches, an epilogue"])
@pytest.mark.parametrize("value", [1, 64, 70])
def test_a_variable_of_one_value(name: str, value: int, card: CardDriver) -> None:
    given = operands(CASES[name], BF16)
    compare(CASES[name], given, Variable("n", value, value).bind(value))


def test_rows_and_columns_of_two_variables(card: CardDriver) -> None:
    """Each has its own limit: the last tiles of both are masked."""
    case = Case(lambda n, x, w: x, lambda n, x, w: x, ((GREATEST, 64), (130, 64)))
    for op, dtype in ((Ops.DOT, BF16), (Ops.TILE_DOT, F32)):
        x, w = operands(case, dtype)
        card.programs.clear()
        for rows, columns in ((2, 130), (64, 3), (77, 128), (GREATEST, 65)):
            n, m = Variable("n", 2, GREATEST).bind(rows), Variable("m", 3, 130).bind(columns)
            found = (x[:n].contiguous() @ w[:m].contiguous().T).float().numpy()
            wanted = x.float().numpy()[:rows] @ w.float().numpy()[:columns].T
            assert found.shape == (rows, columns)
            assert np.abs(found - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max()
        (product,) = products(card)
        assert product.op is op


def test_a_product_of_two_sizes_is_summed(card: CardDriver) -> None:
    """Batches and times, both symbolic, are one sum of `n * m` terms."""
    x, g = operands(Case(lambda: 0, lambda: 0, ((5, 40, 64), (5, 40, 64))), F32)  # type: ignore[arg-type,return-value]
    for batch, time in ((1, 40), (5, 7), (3, 32)):
        n, m = Variable("n", 1, 5).bind(batch), Variable("m", 2, 40).bind(time)
        left, right = (each[:n, :m].contiguous().reshape(n * m, 64) for each in (x, g))
        found = (left.T @ right).numpy()
        wanted = np.einsum("nmk,nmo->ko", x.numpy()[:batch, :time], g.numpy()[:batch, :time])
        assert np.abs(found - wanted).max() <= TOLERANCE[F32] * np.abs(wanted).max()
    (product,) = products(card)
    assert product.op is Ops.TILE_DOT


def test_the_iterations_of_loops_are_an_expression() -> None:
    n = UOp(Ops.VARIABLE, dtypes.index, (), ("n", LEAST, GREATEST))
    counted, open_loop, twice = (
        UOp(Ops.RANGE, dtypes.index, (size,), Axis((number,), AxisType.LOOP))
        for number, size in enumerate((index_const(6), n, n * 2 + 1))
    )
    assert extent((counted, counted)) is index_const(36)
    assert extent((open_loop,)) is n
    found = extent((counted, open_loop, twice))
    assert count((counted, open_loop, twice)) == math.prod((6, GREATEST, 2 * GREATEST + 1)) == found.vmax
    assert n in toposort(found)

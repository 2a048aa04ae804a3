"""Operations outside the families of `bench/sweep.py` that took far longer than torch's on the CPU: what their kernels
look like, and their values beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.issues.test_cpu_cliffs import kernels_of
from tests.kernel.kernels import F32, axis, load, param, store
from tilewright import GlobalCounters, Tensor
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.codegen.loops.zero_tiles import MIN_TILES, skip_zero_tiles
from tilewright.graph.kernels.slow_path import SLOW_PATH, has_slow_path
from tilewright.graph.kernels.sorting.serial_sort import order_of_rows
from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import toposort
from tilewright.tensor.families.statistics import MAX_COMPARED


def test_a_stored_constant_is_written_once() -> None:
    """`full(...).contiguous()` had been stored in a temporary and copied."""
    constant = Tensor.full((40, 25), 3.5).contiguous()
    before = GlobalCounters.kernel_count
    assert constant.tolist() == [[3.5] * 25] * 40
    assert GlobalCounters.kernel_count == before + 1


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
def test_rows_of_long_integers_are_sorted_by_both_halves(device: str) -> None:
    """Rows whose upper halves are all alike are sorted by the lower ones, rows of either kind in one tensor."""
    rng = np.random.default_rng(4)
    small, wide = rng.integers(-40, 40, 70), rng.integers(-(1 << 62), 1 << 62, 70)
    rows = np.stack([np.abs(small), small, wide, wide >> 40, np.full(70, 1 << 33), wide & 7 | 1 << 60])
    found = Tensor._from_uop(order_of_rows(Tensor(rows, device=device).realize().uop), device).numpy()
    np.testing.assert_array_equal(found, np.argsort(rows, axis=1, kind="stable"))


@pytest.mark.parametrize("count", [MAX_COMPARED, MAX_COMPARED + 1])
def test_many_elements_are_looked_for_in_a_sorted_row(count: int) -> None:
    rng = np.random.default_rng(count)
    x = rng.standard_normal((7, 9)).round(1).astype(np.float32)
    x[2] = np.nan
    elements = rng.standard_normal(count).round(1).astype(np.float32)
    elements[3] = np.nan
    np.testing.assert_array_equal(Tensor(x).isin(Tensor(elements)).numpy(), np.isin(x, elements))
    assert Tensor([1, 2]).isin(Tensor(np.arange(2, 2 + count))).tolist() == [False, True]


@pytest.mark.parametrize("classes", [13, 64, 100, 170, 257])
def test_tiles_of_zeros_are_not_compared(classes: int) -> None:
    """one_hot compared every vector with the index; now a tile that does not contain the index is stored as it is."""
    labels = np.array([*range(classes), 0, classes - 1, 7, 8])
    np.testing.assert_array_equal(Tensor(labels).one_hot(classes).numpy(), np.eye(classes, dtype=np.int64)[labels])
    diagonal = np.linspace(-1, 1, classes).astype(np.float32)
    np.testing.assert_array_equal(Tensor(diagonal).diag_embed().numpy(), np.diag(diagonal))
    np.testing.assert_array_equal(Tensor(diagonal).diag_embed().flip(0).numpy(), np.diag(diagonal)[::-1])


def skipped_tiles(size: int, value: str = "cast") -> bool:
    """Whether a kernel with tiles of 8 along a row of `size` elements branches around those without the index."""
    row, step, tile = axis(5, 0), axis(size // 8, 1), axis(8, 2, AxisType.UPCAST)
    position = step * 8 + tile
    is_here = load(param(1, 5, dtypes.int64), row).eq(position.cast(dtypes.int64))
    chosen = {"cast": is_here.cast(F32), "zero": is_here.where(const(F32, 2.0), 0.0)}
    chosen["minus zero"] = is_here.where(const(F32, 2.0), -0.0)
    sink = UOp.sink(store(param(0, 5 * size), row * size + position, chosen[value]))
    made = skip_zero_tiles(sink, Target("t", native_ops=frozenset({SLOW_PATH})))
    assert skip_zero_tiles(sink, Target("t")) is sink
    return made is not sink and any(map(has_slow_path, toposort(made)))


def test_rows_of_few_tiles_and_other_values_are_compared_everywhere() -> None:
    assert skipped_tiles(8 * MIN_TILES)
    assert skipped_tiles(8 * MIN_TILES, "zero")
    assert not skipped_tiles(8 * MIN_TILES - 8)
    assert not skipped_tiles(8 * MIN_TILES, "minus zero")


def test_a_scatter_is_one_kernel() -> None:
    """The number of the last term is used twice by its kernel; it is no product, and its own kernel gains nothing."""
    x, index = Tensor.empty(28, 700), Tensor.empty(28, 700, dtype="int64")
    assert len(kernels_of(x.scatter(1, index, Tensor.empty(28, 700)))) == 1

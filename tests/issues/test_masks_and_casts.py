"""Found by `tests.fuzz.run` with fresh seeds: masks of windows, indices that only uint64 represents, and a conversion
at which LLVM 22 failed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.kernels import kernel_of
from tilewright import Tensor, Variable
from tilewright.backends.cpu.device import cpu_target
from tilewright.base.dtype import dtypes
from tilewright.codegen.pipeline import lower
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.uop import const
from tilewright.kernel.optimise import prepare_kernel


@pytest.mark.sampled(2)
@pytest.mark.parametrize("padding", [(0, 9), (1, 4), (3, 15), (0, 1)])
@pytest.mark.parametrize("windows", [1, 4, 6, 9])
@pytest.mark.parametrize("filled", [2, 5, 7])
def test_windows_that_reach_over_the_edge(filled: int, windows: int, padding: tuple[int, int]) -> None:
    """No iteration of the loop over a window is without its mask, and a loop of no iterations ran once."""
    values = np.arange(1, filled + 1, dtype=np.int16)
    size = filled + sum(padding)
    width = size + 1
    repeated = Tensor(values).pad((padding,)).reshape(1, size).expand(6, size).reshape(6 * size)
    shifted = repeated.shrink(((0, 4 * width),)).reshape(4, width).shrink(((0, 4), (0, min(windows, width))))
    expected = np.resize(np.pad(values, padding), 4 * width).reshape(4, width)[:, :windows]
    assert (shifted.sum(0, dtype="int16").numpy() == expected.sum(0)).all()
    assert (shifted.max(0).numpy() == expected.max(0)).all()


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("pads", [0, 3])
def test_a_place_that_only_uint64_represents_is_outside(device: str, pads: int) -> None:
    """-7 as uint64 is no row; as an index it was -7, and below the number of rows."""
    places = np.array([-7, 1, 0, 5, -1, 1 << 62, -(1 << 63)], np.int64)
    rows = np.array([10, 20], np.int16)
    given = Tensor(places, device=device).cast("uint64").pad(((0, pads),)).reshape(-1, 1)
    is_row = given == Tensor.arange(2, device=device).cast("uint64").reshape(1, 2)
    found = is_row.where(Tensor(rows, device=device).reshape(1, 2), 0).sum(1)
    expected = [rows[place] if place in (0, 1) else 0 for place in [*places.tolist(), *[0] * pads]]
    assert found.tolist() == expected


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_numbers_below_one_that_only_uint64_represents_are_counted_so(device: str) -> None:
    """The sum over r of (r < x) is 0 for a small x, and all of them for one beyond int64."""
    limits = np.array([0, 2, -1, 9], np.int64)
    given = Tensor(limits, device=device).cast("uint64").reshape(-1, 1)
    counted = (Tensor.arange(5, device=device).cast("uint64").reshape(1, 5) < given).sum(1)
    assert counted.tolist() == [0, 2, 5, 5]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("shape", [(4, 6), (3, 11), (1, 40)])
def test_the_minimum_of_a_conversion_and_a_padded_one(shape: tuple[int, int], dtype: str) -> None:
    """LLVM failed at the minimum of an unsigned conversion and 0, and ended the process."""
    random = np.random.default_rng(0)
    count = shape[0] * shape[1]
    one, other = (random.uniform(0, 200, size).astype(np.float32) for size in (9, count))
    padded = Tensor(one).cast(dtype).pad(((count - 11, 2),)).reshape(*shape)
    found = padded.minimum(Tensor(other).reshape(*shape).cast(dtype)).numpy()
    expected = np.pad(one.astype(dtype), (count - 11, 2)).reshape(shape)
    assert (found == np.minimum(expected, other.astype(dtype).reshape(shape))).all()


@pytest.mark.parametrize("columns", [2, 3, 7])
@pytest.mark.parametrize("rows", [100_000, 99_999, 65_536, 131_071])
def test_a_long_axis_merged_from_axes_that_do_not_divide_it(rows: int, columns: int) -> None:
    """The largest number of parts was looked for among none."""
    values = np.random.default_rng(0).integers(-9, 10, (rows, columns)).astype(np.float32)
    merged = (Tensor(values) * 2).reshape(columns, rows)
    expected = (values * 2).reshape(columns, rows)
    assert (merged.max(1).numpy() == expected.max(1)).all()
    assert (merged.sum(1).numpy() == expected.sum(1)).all()
    assert (merged.sum(0)[:5].numpy() == expected.sum(0)[:5]).all()
    assert merged.sum().item() == expected.sum()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "bfloat16", "bool"])
@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_a_product_of_equal_elements_is_a_power(count: int, dtype: str, device: str) -> None:
    """A factor that an unrolled loop does not change was taken once."""
    values = np.array([1, 2, 3, 0], np.float32)
    given = Tensor(values, device=device).cast(dtype).reshape(2, 2, 1).expand(2, 2, count).permute(0, 2, 1)
    shifted = given + given.max((0, 2), keepdim=True)
    found = shifted.pad(((0, 9), (0, 0), (0, 0))).prod(1, dtype=dtype).float().numpy()
    base = values.astype(bool) | True if dtype == "bool" else values + 3
    expected = base.astype(np.float64) ** count
    if dtype == "uint8":
        expected %= 256
    assert found.shape == (11, 2)
    np.testing.assert_allclose(found[:2].reshape(4), expected, rtol=4e-3 if dtype == "bfloat16" else 1e-6)
    assert not found[2:].any()


@pytest.mark.parametrize("size", [0, 2, 5])
def test_the_mask_of_a_row_is_not_kept_for_all_rows(size: int) -> None:
    """The mask costs more than a load and is the same in each row: stored outside of the rows, in a loop that the sum
    of a row has as well, it left no order of the loops."""
    values = np.random.default_rng(0).standard_normal((12, 12)).astype(np.float32)
    before = Variable("before", 0, 5).bind(size)
    padded = Tensor(values).pad(((0, 0), (before, 1)))
    found = (padded.mean(1, keepdim=True) + padded).contiguous() + 1
    expected = np.pad(values, ((0, 0), (size, 1)))
    np.testing.assert_allclose(found.numpy(), expected.mean(1, keepdims=True) + expected + 1, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [2, 4, 8, 16])
@pytest.mark.parametrize("columns", [3, 17, 18, 19, 20, 36, 48])
def test_short_rows_of_bytes_are_transposed(columns: int, rows: int) -> None:
    """LLVM 22 did not come to an end with 17 to 20 columns."""
    values = np.arange(rows * columns).astype(np.int8).reshape(rows, columns)
    assert ((Tensor(values) + 1).T.contiguous().numpy() == (values + 1).T).all()


def test_a_long_sum_of_equal_small_floats_has_an_order() -> None:
    """265 is no number of float8_e5m2, so the sum is no product; in levels, its loops had no order."""
    terms = build.expand(build.reshape(const(dtypes.float8_e5m2, 1.25), (1, 1)), (265, 1))
    program = lower(prepare_kernel(kernel_of(build.reduce_axis(Ops.ADD, terms, (0,)))), cpu_target())
    assert any(node.op is Ops.ACCUMULATE for node in program.body)

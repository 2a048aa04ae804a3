"""Products of few rows with a large matrix: the matrix is read in its own order, sums are right on the emulator and
have the same blocks for any number of cores; narrow columns fill whole registers; partial sums lie side by side."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from tests.fuzz.opts import Pair, check_pair
from tests.kernel.kernels import leaf
from tests.kernel.properties import Chosen, fits_the_registers, keeps_the_cores_busy, stores_vectors
from tests.kernel.test_products import TARGETS, matrices
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.templates import products, streamed_products
from tilewright.kernel.transforms.stage import operands
from tilewright.schedule.preparation.reduction import split_reduction

WIDE = replace(TARGETS["AVX-512"], core_cache_bytes=1 << 20, l1_bytes=1 << 15, page_bytes=1 << 12)


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(streamed_products, "MIN_STREAMED", 1)


def product(rows: int, depth: int, columns: int) -> UOp:
    return matrices(rows, depth, columns, (depth, 1, columns, 1))


def blocks_of(made: Chosen) -> list[object]:
    return [opt.arg for opt, after in itertools.pairwise(made.opts) if after.op is OptOps.SPILL]


@pytest.mark.parametrize(
    "shape",
    [(5, 4096, 1000), (7, 4096, 777), (6, 1999, 2000), (7, 1000, 3001)],
    ids=str,
)
def test_a_large_matrix_is_read_row_after_row_a_few_rows_at_a_time(shape: tuple[int, int, int]) -> None:
    """The columns are inside of the blocks of the sum, which are as short for one core as for sixteen."""
    made = Chosen(product(*shape), WIDE)
    assert made.uses(OptOps.SPILL) == 1
    fits_the_registers(made)
    keeps_the_cores_busy(made)
    for cores in (1, 16):
        assert blocks_of(Chosen(product(*shape), replace(WIDE, cores=cores))) == blocks_of(made)
    assert all(isinstance(found, int) and 8 <= found <= 16 for found in blocks_of(made))


@pytest.mark.parametrize("shape", [(64, 4096, 1000), (5, 200, 1000), (5, 24, 100000)], ids=str)
def test_many_rows_a_matrix_in_the_cache_and_a_short_sum_are_not_streamed(shape: tuple[int, int, int]) -> None:
    assert not any(isinstance(found, int) and found <= 16 for found in blocks_of(Chosen(product(*shape), WIDE)))


@pytest.mark.parametrize(("rows", "depth"), [(16, 453), (12, 1021), (20, 457)])
def test_a_sum_that_no_block_divides_is_streamed(rows: int, depth: int) -> None:
    """The last block is shorter and has no mask: 16x453x6944 was packed, 1.9 ms in place of 0.95 (torch 1.1)."""
    made = Chosen(product(rows, depth, 6944), WIDE)
    assert made.uses(OptOps.SPILL) == 1
    assert made.uses(OptOps.STAGE) == 0


@pytest.mark.parametrize(("rows", "depth"), [(16, 24), (12, 31), (31, 16)])
def test_a_short_sum_of_few_rows_is_one_block(rows: int, depth: int) -> None:
    """All rows for one tile of columns, from rows of the matrix that are prefetched: 16x24x32768 was packed, 0.49 ms in
    place of 0.32 (torch 0.31)."""
    made = Chosen(product(rows, depth, 6000), WIDE)
    assert made.uses(OptOps.SPILL) == made.uses(OptOps.STAGE) == 0
    (*_, innermost), (_, right) = made.view.of_kind(AxisType.LOOP, AxisType.THREAD), operands(made.view)
    assert innermost not in right.ranges
    keeps_the_cores_busy(made)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("shape", [(5, 48, 300), (11, 37, 261), (6, 33, 57), (13, 24, 700), (16, 31, 530)], ids=str)
def test_streamed_and_padded_products_are_right(shape: tuple[int, int, int], target: Target) -> None:
    made = Chosen(product(*shape), target)
    assert made.opts
    assert check_pair(Pair(0, "streamed", product(*shape), None, target)) is None


@pytest.mark.parametrize("columns", [24, 40, 56, 60])
def test_narrow_columns_fill_whole_registers(columns: int) -> None:
    """A divisor of 8 lanes would use half of each register, and seven passes over the matrix."""
    made = Chosen(product(6, 1024, columns), WIDE)
    stores_vectors(made)
    tiles = max(made.sizes(AxisType.UPCAST))
    assert tiles % 16 == 0
    assert math.prod(size_of(axis) for axis in made.view.of_kind(AxisType.LOOP, AxisType.THREAD)) <= -(-columns // 32)


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (1, 60), (2, 16), (6, 56), (14, 28)])
def test_parts_of_a_long_sum_of_products_are_outside_of_its_columns(rows: int, columns: int) -> None:
    """Innermost, they would place neighbouring columns apart, and nothing could be a vector."""
    depth = 32768
    left = build.expand(build.reshape(leaf(0, rows, depth), (rows, 1, depth)), (rows, columns, depth))
    right = build.reshape(build.permute(leaf(1, depth, columns), (1, 0)), (1, columns, depth))
    node = build.reduce_axis(Ops.ADD, left * build.expand(right, (rows, columns, depth)), (2,))
    split = split_reduction(node)
    assert split is not None
    sums = split.src[0].src[0]
    assert sums.op is Ops.REDUCE_AXIS
    parts, *rest = sums.shape
    assert parts >= 16
    assert rest[-2:] == [columns, 1] or rest[-1] == columns

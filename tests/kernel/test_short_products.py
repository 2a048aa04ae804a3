"""Products with a short sum, whose results take longer to write than to compute: both factors in place, and as many
rows at a time as there are streams to memory; right on the emulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fuzz.opts import Pair, check_pair
from tests.kernel.properties import Chosen, fits_the_registers, keeps_the_cores_busy, stores_vectors
from tests.kernel.test_products import TARGETS, matrices
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.templates import products, short_products

CACHES = {"l1_bytes": 1 << 16, "core_cache_bytes": 1 << 20, "cache_bytes": 1 << 25}
MACHINES = {name: replace(target, **CACHES) for name, target in TARGETS.items()}


def product(rows: int, depth: int, columns: int) -> UOp:
    return matrices(rows, depth, columns, (depth, 1, columns, 1))


def tile_rows(made: Chosen) -> set[object]:
    return {opt.arg for opt in made.opts if opt.op is OptOps.UPCAST}


@pytest.mark.parametrize("shape", [(160, 3, 9421), (159, 7, 9421), (26, 7, 31373), (2000, 7, 1001)], ids=str)
@pytest.mark.parametrize("cores", [1, 2, 7])
def test_few_rows_are_written_at_a_time(shape: tuple[int, int, int], cores: int) -> None:
    """160x3x9421 took 1.4 ms on a Neoverse N1 in tiles of 8 rows, and takes 0.54."""
    target = replace(MACHINES["NEON"], cores=cores)
    made = Chosen(product(*shape), target)
    assert made.uses(OptOps.STAGE) == 0
    assert target.memory_streams in tile_rows(made)
    fits_the_registers(made)
    keeps_the_cores_busy(made)
    stores_vectors(made)


@pytest.mark.parametrize("shape", [(160, 28, 9421), (160, 7, 9424), (64, 7, 1001)], ids=str)
def test_longer_sums_whole_lines_and_cached_results_have_larger_tiles(shape: tuple[int, int, int]) -> None:
    target = MACHINES["NEON"]
    assert target.memory_streams not in tile_rows(Chosen(product(*shape), target))


def test_converted_and_strided_columns_are_not_read_in_place() -> None:
    for ast in (matrices(160, 3, 9421, (3, 1, 9421, 1), dtypes.bfloat16), matrices(160, 3, 9421, (3, 1, 1, 3))):
        view = Chosen(ast, MACHINES["NEON"]).before
        found = products.find_product(view)
        assert found is not None
        assert short_products.match_short(view, found) is None


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("shape", [(8, 3, 64), (9, 7, 67), (5, 2, 129), (31, 5, 66)], ids=str)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_short_products_are_right(
    shape: tuple[int, int, int], target: Target, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(short_products, "MIN_STREAMED", 1)
    machine = replace(target, cores=cores)
    view = Chosen(product(*shape), machine).before
    found = products.find_product(view)
    assert found is not None
    short = short_products.match_short(view, found)
    assert short is not None
    opts = short_products.make_short_opts(view, short)
    assert opts is not None
    assert check_pair(Pair(0, "short", product(*shape), opts, machine)) is None

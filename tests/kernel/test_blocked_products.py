"""Products of two small sides and a long sum, both factors with rows along the sum: read in place, in blocks that the
L1 holds, which are the same for any number of cores; right on the emulator."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.fuzz.opts import Pair, check_pair
from tests.kernel.properties import Chosen, fits_the_registers, keeps_the_cores_busy, stores_vectors
from tests.kernel.test_products import TARGETS, matrices
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.templates import blocked_products, products

CACHES = {"l1_bytes": 1 << 15, "core_cache_bytes": 1 << 20, "cache_bytes": 1 << 25}
MACHINES = {name: replace(target, **CACHES) for name, target in TARGETS.items()}


def product(rows: int, depth: int, columns: int) -> UOp:
    return matrices(rows, depth, columns, (1, rows, columns, 1))


def blocks_of(made: Chosen) -> list[object]:
    return [opt.arg for opt, after in itertools.pairwise(made.opts) if after.op is OptOps.SPILL]


@pytest.mark.parametrize("target", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("shape", [(64, 4096, 64), (32, 6800, 32), (50, 3001, 70), (48, 9000, 16)], ids=str)
def test_a_block_of_both_factors_is_in_the_first_cache(shape: tuple[int, int, int], target: Target) -> None:
    """Packed panels of the whole sum were copied again for every tile of columns."""
    made = Chosen(product(*shape), target)
    assert made.uses(OptOps.STAGE) == 0
    (block,) = blocks_of(made)
    assert isinstance(block, int)
    assert block * (shape[0] + shape[2]) * 4 <= target.l1_bytes
    fits_the_registers(made)
    keeps_the_cores_busy(made)
    stores_vectors(made)
    for cores in (1, 3, 16):
        assert blocks_of(Chosen(product(*shape), replace(target, cores=cores))) == [block]


@pytest.mark.parametrize("shape", [(512, 4096, 512), (64, 60, 64), (40, 9000, 200)], ids=str)
def test_wide_sides_and_short_sums_are_packed(shape: tuple[int, int, int]) -> None:
    made = Chosen(product(*shape), MACHINES["NEON"])
    assert made.uses(OptOps.STAGE) > 0


def test_rows_far_apart_and_converted_factors_are_not_read_in_place() -> None:
    apart = Chosen(matrices(32, 4096, 32, (1, 32 * 4, 32, 1)), MACHINES["NEON"])
    converted = Chosen(matrices(32, 4096, 32, (1, 32, 32, 1), dtypes.bfloat16), MACHINES["NEON"])
    assert min(apart.uses(OptOps.STAGE), converted.uses(OptOps.STAGE)) > 0


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("shape", [(12, 40, 20), (9, 37, 21), (12, 33, 3), (26, 34, 5)], ids=str)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_blocked_products_are_right(
    shape: tuple[int, int, int], target: Target, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (products, "MIN_PRODUCTS"),
        (blocked_products, "MIN_L1_BLOCK"),
        (blocked_products, "MIN_STREAMED"),
    ):
        monkeypatch.setattr(module, name, 1)
    machine = replace(target, cores=cores, l1_bytes=2 * 8 * 4 * (shape[0] + shape[2]))
    view = Chosen(product(*shape), machine).before
    found = products.find_product(view)
    assert found is not None
    blocked = blocked_products.match_blocked(view, found)
    if blocked is not None:
        opts = blocked_products.make_blocked_opts(view, blocked)
        assert opts is not None
        assert check_pair(Pair(0, "blocked", product(*shape), opts, machine)) is None

"""Vectors along a loop that no whole number of them fills. Where a processor has no masked loads and stores, the last
tile overlaps the one before: values, and what the choice depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fuzz.opts import Pair, check_pair
from tests.kernel.kernels import kernel_of, leaf, mul
from tests.kernel.properties import Chosen, chosen_for, keeps_the_cores_busy, stores_vectors
from tests.kernel.test_products import TARGETS
from tests.kernel.test_streams import column_sums, transposed
from tests.kernel.test_transforms import check
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.optimise import optimise
from tilewright.kernel.templates.measured import MIN_WORK
from tilewright.kernel.templates.opt_builder import covering_tile

NEON = TARGETS["NEON"]
ONE_CORE = replace(NEON, cores=1)
WITH_MASKS = replace(TARGETS["AVX-512"], masked_itemsizes=(1, 2, 4, 8))


def scaled(rows: int, columns: int) -> UOp:
    """Every row times one vector: its loops are not one."""
    vector = build.expand(build.reshape(leaf(1, columns), (1, columns)), (rows, columns))
    return mul(leaf(0, rows, columns), vector)


def doubled(size: int) -> UOp:
    return build.alu(Ops.NEG, leaf(0, size))


GRAPHS = {
    "rows of 190": lambda: scaled(43, 190),
    "rows of 21": lambda: scaled(700, 21),
    "rows of 5": lambda: scaled(4100, 5),
    "one row of a prime length": lambda: doubled(8209),
    "columns of sums": lambda: column_sums(30, 407),
    "transposed": lambda: transposed(213, 75),
}


def masks_of(graph: UOp, target: Target) -> int:
    program = lower(optimise(kernel_of(graph), target), target)
    return sum(node.op is Ops.INDEX and len(node.src) > 2 for node in program.body)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("target", ["NEON", "AVX2", "AVX-512"])
def test_covering_tiles_are_right(name: str, target: str) -> None:
    ast = kernel_of(GRAPHS[name]())
    for cores in (1, 2):
        facts = replace(TARGETS[target], cores=cores)
        assert check_pair(Pair(0, name, ast, None, facts)) is None  # type: ignore[arg-type]
    check(ast, None, ("CPU",), seed=3)


@pytest.mark.parametrize("name", ["rows of 190", "rows of 21", "one row of a prime length", "columns of sums"])
def test_no_access_is_masked_on_one_core(name: str) -> None:
    made = chosen_for(GRAPHS[name](), ONE_CORE)
    assert made.uses(OptOps.BLOCK) >= 1
    assert made.uses(OptOps.PADTO) == 0
    stores_vectors(made)
    assert masks_of(GRAPHS[name](), ONE_CORE) == 0


@pytest.mark.parametrize("name", GRAPHS)
def test_a_processor_with_masks_pads(name: str) -> None:
    assert Chosen(kernel_of(GRAPHS[name]()), WITH_MASKS).uses(OptOps.BLOCK) == 0


def test_a_loop_that_cores_share_does_not_overlap() -> None:
    """Two cores may not store one element. Of several loops the one without overlaps is shared."""
    long = chosen_for(doubled(2 * MIN_WORK + 3), NEON)  # a prime number
    assert long.uses(OptOps.PADTO) == long.uses(OptOps.THREAD) == 1
    assert chosen_for(doubled(MIN_WORK + 1), NEON).uses(OptOps.BLOCK) == 1
    rows = chosen_for(scaled(500, 190), NEON)
    assert rows.uses(OptOps.BLOCK) == rows.uses(OptOps.THREAD) == 1
    assert rows.sizes(AxisType.THREAD) == [500]
    few = chosen_for(scaled(3, 50021), NEON)
    assert few.uses(OptOps.BLOCK) == 0
    parts = chosen_for(doubled(9 * 7919), NEON)
    assert parts.sizes(AxisType.THREAD) == [9]
    assert parts.uses(OptOps.PADTO) == 0


def test_expensive_work_is_not_done_twice_to_save_iterations() -> None:
    """56 elements are seven tiles of two vectors, or four of four vectors, of which one is computed twice."""
    assert covering_tile(56, 4, 4, divisor=8, work=1.0) == 16
    assert covering_tile(56, 4, 4, divisor=8, work=20.0) is None
    assert covering_tile(57, 4, 4, divisor=None, work=20.0) == 12
    assert covering_tile(4, 4, 4, divisor=4, work=1.0) is None


def test_elements_are_not_stored_twice_to_save_few_iterations() -> None:
    assert covering_tile(164, 4, 4, divisor=4, work=1.0, again=400.0) is None
    assert covering_tile(16004, 4, 4, divisor=4, work=1.0, again=400.0) == 16
    assert chosen_for(scaled(500, 164), ONE_CORE).uses(OptOps.BLOCK) == 0
    assert chosen_for(scaled(4100, 5), ONE_CORE).uses(OptOps.BLOCK) == 0
    assert chosen_for(column_sums(30, 5), ONE_CORE).uses(OptOps.BLOCK) == 1


def test_an_iteration_of_a_sum_does_not_count_twice() -> None:
    summed = build.reduce_axis(Ops.ADD, leaf(0, 700, 45), (1,))
    made = chosen_for(summed, ONE_CORE)
    assert all(size_of(axis) <= 48 for axis in made.view.reduce_axes)
    assert check_pair(Pair(0, "rows", kernel_of(summed), None, ONE_CORE)) is None  # type: ignore[arg-type]


def scaled_by_a_sum(size: int, terms: int) -> UOp:
    total = build.reduce_axis(Ops.ADD, leaf(1, terms), (0,))
    return mul(leaf(0, size), build.expand(build.reshape(total, (1,)), (size,)))


@pytest.mark.parametrize("size", [1 << 17, 104100, 104729])
def test_cores_share_a_loop_behind_a_brief_sum(size: int) -> None:
    """Each of a few parts repeats the sum: one core did all of the loop."""
    made = chosen_for(scaled_by_a_sum(size, 60), NEON)
    keeps_the_cores_busy(made)
    assert made.count(AxisType.THREAD) * 60 * 4 <= size
    assert chosen_for(scaled_by_a_sum(size, 60), ONE_CORE).uses(OptOps.THREAD) == 0
    ast = kernel_of(scaled_by_a_sum(size // 16, 60))
    assert check_pair(Pair(0, "scaled", ast, None, NEON)) is None  # type: ignore[arg-type]

"""What the heuristic chooses for memory-bound kernels, on targets without work-groups: by their registers, cores and
caches. That the choice is right is tested in test_transforms.py, that it is fast in bench/memory_rows.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.kernel.kernels import leaf, matrix_product, mul, row_sums
from tests.kernel.properties import (
    chosen_for,
    does_not_spill,
    fits_the_registers,
    keeps_the_cores_busy,
    loads_vectors,
    spills,
    stores_vectors,
    streams,
)
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import stride
from tilewright.kernel.templates.measured import BRIEF_WORK, MIN_WORK

# What is spilled needs local memory, as every CPU has.
WIDE = Target(
    "wide",
    vector_bytes=64,
    vector_registers=32,
    cores=2,
    has_threads=True,
    cache_bytes=16 << 20,
    max_local_bytes=8 << 20,
)
TARGETS = {
    "64-byte vectors": WIDE,
    "16-byte vectors": replace(WIDE, vector_bytes=16),
    "few registers": replace(WIDE, vector_bytes=32, vector_registers=16),
    "many cores": replace(WIDE, cores=8),
    "long lines and a large L1": replace(WIDE, vector_bytes=16, line_bytes=128, page_bytes=1 << 14, l1_bytes=128 << 10),
}


def transposed(*shape: int) -> UOp:
    return build.alu(Ops.NEG, build.permute(leaf(0, *shape), (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)))


def column_sums(rows: int, columns: int) -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, rows, columns), (0,))


def vector_times_matrix(rows: int, columns: int) -> UOp:
    vector = build.expand(build.reshape(leaf(0, rows), (rows, 1)), (rows, columns))
    return build.reduce_axis(Ops.ADD, mul(vector, leaf(1, rows, columns)), (0,))


def channel_sums(images: int, channels: int, pixels: int) -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, images, channels, pixels), (0, 2))


def every_second(rows: int, columns: int) -> UOp:
    pairs = build.reshape(leaf(0, rows, columns * 2), (rows, columns, 2))
    return build.alu(Ops.NEG, build.shrink(pairs, ((0, rows), (0, columns), (0, 1))))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("shape", [(4096, 2048), (64, 128, 32), (1024, 1024), (224, 240)], ids=str)
def test_a_transposition_stores_lines_and_reads_what_registers_hold(shape: tuple[int, ...], target: Target) -> None:
    made = chosen_for(transposed(*shape), target)
    keeps_the_cores_busy(made)
    (store,), (load,) = made.view.stores, made.buffers
    stored, loaded = (
        [size_of(axis) for axis in made.view.of_kind(AxisType.UPCAST) if stride(access, axis) == 1]
        for access in (store, load)
    )
    assert len(stored) == len(loaded) == 1
    assert stored[0] * store.dtype.itemsize == target.line_bytes or stored[0] == shape[-2]
    assert 4 <= loaded[0] <= target.vector_registers // 2
    # What the L1 keeps of the lines is read later: a tile that registers do not hold is spilled, and takes LLVM long.
    if target.l1_lines((stride(load, made.view.axes[0]) or 0) * load.dtype.itemsize) >= 2 * stored[0]:
        held = stored[0] * loaded[0] // target.lanes(load.dtype)
        assert held <= max(target.vector_registers // 2, stored[0])
    # The loop along which is read is inside, where the other has enough tasks: the prefetcher follows it.
    loops = [axis for axis in made.view.axes if axis.arg.kind in (AxisType.LOOP, AxisType.THREAD)]
    if min(shape[-2:]) > 512:
        assert (stride(load, loops[-1]) or 0) < (stride(store, loops[-1]) or 0)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("make", [column_sums, vector_times_matrix])
@pytest.mark.parametrize("shape", [(4096, 4096), (8192, 3000), (4100, 8192), (16384, 1877)], ids=str)
def test_sums_over_large_rows_are_spilled(make: object, shape: tuple[int, int], target: Target) -> None:
    """Whole lines of several rows at a time, in parts of about a page for each core."""
    assert callable(make)
    made = chosen_for(make(*shape), target)
    spills(made)
    stores_vectors(made)
    keeps_the_cores_busy(made)
    assert streams(made) == target.read_streams // 2


@pytest.mark.parametrize("rows", [7402, 7403, 7411, 16411])
@pytest.mark.parametrize("cores", [1, 2])
def test_no_task_sums_the_spilled_accumulators_of_others(rows: int, cores: int) -> None:
    """Rows without a divisor became tasks each of which summed all columns: 48 times the work."""
    made = chosen_for(column_sums(rows, 768), replace(WIDE, cores=cores))
    spills(made)
    opts = [opt.op for opt in made.opts]
    assert OptOps.THREAD not in opts[opts.index(OptOps.SPILL) :]


def test_rows_that_no_number_of_streams_divides_are_summed_one_by_one() -> None:
    made = chosen_for(column_sums(4099, 4096), WIDE)
    spills(made)
    assert streams(made) == 1


def functions_of_row_sums(rows: int, columns: int) -> UOp:
    """Four expensive functions, one after the other, of the sum of each row."""
    found = build.reduce_axis(Ops.ADD, leaf(0, rows, columns), (1,))
    for op in (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.EXP2):
        found = build.alu(op, found)
    return found


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("rows", [32768, 4099, 37])
@pytest.mark.parametrize("columns", [5, 17, 128])
def test_functions_of_the_sums_of_short_rows_are_computed_in_vectors(rows: int, columns: int, target: Target) -> None:
    """They were computed one by one: a linear layer with one result and a tanh took four times as long as torch's."""
    made = chosen_for(functions_of_row_sums(rows, columns), target)
    stores_vectors(made)
    fits_the_registers(made)


@pytest.mark.parametrize("graph", [lambda: row_sums(4096, 64), lambda: functions_of_row_sums(4096, 8192)])
def test_rows_are_streams_where_little_follows_their_sums_or_they_are_long(graph: Callable[[], UOp]) -> None:
    target = replace(WIDE, page_bytes=1 << 10)
    assert streams(chosen_for(graph(), target)) == target.memory_streams


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    "graph",
    [lambda: column_sums(24, 2048), lambda: matrix_product(4, 31, 4096)],
    ids=["a matrix that a cache holds", "rows that share a load"],
)
def test_sums_that_registers_hold_are_not_spilled(graph: object, target: Target) -> None:
    assert callable(graph)
    made = chosen_for(graph(), target)
    does_not_spill(made)
    stores_vectors(made)
    fits_the_registers(made)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_columns_that_half_of_the_registers_hold_are_not_spilled(target: Target) -> None:
    made = chosen_for(column_sums(65536, 256), target)
    is_held = 256 <= target.vector_registers // 2 * target.lanes(made.view.reduces[0].dtype)
    (does_not_spill if is_held else spills)(made)


@pytest.mark.parametrize("columns", [42, 57, 33])
def test_a_row_that_registers_hold_is_read_once(columns: int) -> None:
    """A core read 16384 rows of 42 floats twice, 24 columns at a time: 223 us, with vectors that overlap 106."""
    made = chosen_for(column_sums(16384, columns), replace(WIDE, vector_bytes=16, cores=1))
    does_not_spill(made)
    assert made.count(AxisType.UPCAST) == -(-columns // 4) * 4
    assert not made.view.of_kind(AxisType.LOOP)
    assert not any(len(access.src) > 2 for access in made.view.accesses)


@pytest.mark.parametrize("rows", [31, 32, 33])
def test_rows_are_spilled_from_half_of_a_cores_cache_on(rows: int) -> None:
    """The threshold is a fact of the target: half of 1 MiB are 32 rows of 4096 floats. Larger matrices that the last
    cache holds took twice as long by columns, each element of which is on a page of its own."""
    made = chosen_for(column_sums(rows, 4096), replace(WIDE, core_cache_bytes=1 << 20))
    (spills if rows >= 32 else does_not_spill)(made)


@pytest.mark.parametrize(
    ("rows", "columns", "is_prefetched"),
    [
        (24, 32768, False),  # more rows than the processor prefetches at a time: 0.57 ms, spilled 0.15
        (16, 30000, False),
        (15, 30000, True),
        (4, 32768, True),
        (12, 32768, False),  # their lines share a set of the L1, which has four
    ],
)
def test_more_rows_than_are_prefetched_are_spilled(rows: int, columns: int, is_prefetched: bool) -> None:
    target = replace(WIDE, vector_bytes=16, prefetch_streams=8, l1_bytes=1 << 16, l1_ways=4, core_cache_bytes=1 << 19)
    made = chosen_for(vector_times_matrix(rows, columns), target)
    (does_not_spill if is_prefetched else spills)(made)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("columns", [32784, 33344, 12345, 100000])
def test_parts_of_a_row_are_pages(columns: int, cores: int) -> None:
    """2049 lines have the divisors 3 and 683, of which only 3 are held in the L1: a page has 64 lines."""
    target = replace(WIDE, vector_bytes=16, cores=cores)
    made = chosen_for(column_sums(64, columns), target)
    spills(made)
    (part,) = [size_of(axis) for axis in made.view.of_kind(AxisType.LOOP)[:1]]
    assert part * made.count(AxisType.UPCAST) * 4 >= target.page_bytes


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("shape", [(4096, 4096), (64, 2048), (1000, 512)], ids=str)
def test_sums_of_rows_take_several_rows_at_a_large_stride(shape: tuple[int, int], target: Target) -> None:
    made = chosen_for(row_sums(*shape), target)
    loads_vectors(made)
    keeps_the_cores_busy(made)
    (load,) = made.buffers
    most = target.memory_streams
    rows = [a for a in made.view.of_kind(AxisType.UPCAST) if (stride(load, a) or 0) >= shape[0] // most * shape[1]]
    assert [size_of(axis) in range(2, most + 1) for axis in rows] == [True]
    # Their vectors of partial sums leave half of the registers to others.
    assert 2 * made.count(AxisType.UPCAST) <= target.vector_registers * target.lanes(load.dtype)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_two_sums_of_a_row_of_large_arrays_share_half_of_the_registers(target: Target) -> None:
    """Four vectors of each, as of arrays that a cache holds, left registers unused: the gate and the input of a large
    language model's layer, for one token."""
    one, other = (build.reduce_axis(Ops.ADD, leaf(slot, 8192, 2048), (1,)) for slot in (0, 1))
    made = chosen_for(mul(one, other), replace(target, cache_bytes=1 << 22, memory_streams=2))
    vectors = made.count(AxisType.UPCAST) // target.lanes(made.view.reduces[0].dtype)
    assert vectors == max(target.independent_vectors, target.vector_registers // 4)


def test_few_rows_are_read_one_by_one() -> None:
    assert streams(chosen_for(row_sums(63, 2048), WIDE)) == 1


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_short_vector_axis_gets_more_accumulators(target: Target) -> None:
    """32 pixels are less than four vectors of 16 lanes."""
    made = chosen_for(channel_sums(64, 32, 32), target)
    vectors = made.count(AxisType.UPCAST) // target.lanes(made.view.reduces[0].dtype)
    assert vectors >= 4


def test_small_strides_are_vectors() -> None:
    made = chosen_for(every_second(64, 1024), WIDE)
    stores_vectors(made)
    assert all(stride(load, axis) == 2 for load in made.buffers for axis in made.view.of_kind(AxisType.UPCAST))


@pytest.mark.parametrize("columns", [4096, 4099])
@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_the_order_of_a_sum_does_not_follow_the_cores(cores: int, columns: int) -> None:
    """Columns are divided among cores; each is summed in the same loops, with as many rows at a time."""
    made, alone = (chosen_for(column_sums(4096, columns), replace(WIDE, cores=count)) for count in (cores, 1))
    assert made.sizes(AxisType.REDUCE) == alone.sizes(AxisType.REDUCE)
    assert streams(made) == streams(alone)
    (node,), (other,) = made.view.reduces, alone.view.reduces
    assert [size_of(axis) for axis in node.src[1:]] == [size_of(axis) for axis in other.src[1:]]


@pytest.mark.parametrize(("size", "is_parallel"), [(2 * MIN_WORK - 64, False), (2 * MIN_WORK, True)])
def test_work_below_the_threshold_has_no_threads(size: int, is_parallel: bool) -> None:
    made = chosen_for(build.alu(Ops.NEG, leaf(0, size)), WIDE)
    stores_vectors(made)
    assert (made.uses(OptOps.THREAD) == 1) is is_parallel


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_brief_kernel_has_a_tile_of_one_vector(target: Target) -> None:
    """LLVM takes longer for a larger one than it saves in a thousand runs."""
    lanes = target.lanes(leaf(0, 1).dtype)
    brief, long = (chosen_for(build.alu(Ops.NEG, leaf(0, size)), target) for size in (BRIEF_WORK, 1 << 20))
    assert brief.tile == lanes
    assert long.tile > lanes

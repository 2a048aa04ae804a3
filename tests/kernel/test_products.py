"""Matrix products and convolutions as the heuristic cuts them for registers and caches: right for every instruction set
on the emulator, right on this machine, and cut as meant. The limits are low here, so that small products reach all of
it. That it is fast is measured by bench/."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.fuzz.opts import Pair, check_pair
from tests.kernel.kernels import axis, load, param, store, summed
from tests.kernel.properties import (
    Chosen,
    fits_the_registers,
    keeps_the_cores_busy,
    opts_of,
    packs,
    reuses_its_loads,
    stays_in_limits,
    stores_vectors,
)
from tests.kernel.test_transforms import check
from tilewright.backends.cpu.host import panels
from tilewright.backends.cpu.rendering import prefetch
from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.engine.compilation.compile import compile_kernel, forget_kernels
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates import packed_products, product_sizes, products
from tilewright.kernel.templates.choose import choose_opts, consider_plans, make_least
from tilewright.kernel.templates.dot_tiles import utilisation
from tilewright.kernel.templates.product_sizes import best_block, choose_tile, row_parts
from tilewright.kernel.transforms.stage import operands

CPU = Target("CPU", cores=2, has_threads=True, max_local_bytes=1 << 20, core_cache_bytes=1 << 12)
TARGETS = {
    "AVX-512": replace(CPU, vector_bytes=64, vector_registers=32),
    "AVX2": replace(CPU, vector_bytes=32, vector_registers=16),
    "NEON": replace(CPU, vector_bytes=16, vector_registers=32),
}


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(packed_products, "MIN_SHARED", 1)
    monkeypatch.setattr(product_sizes, "MIN_SUM_BLOCK", 2)
    forget_kernels()


def kernel(*effects: UOp) -> UOp:
    return UOp(Ops.SINK, dtypes.void, effects, KernelInfo("product"))


def matrices(
    rows: int,
    depth: int,
    columns: int,
    steps: tuple[int, int, int, int],
    dtype: DType = dtypes.float32,
    total: DType = dtypes.float32,
    epilogue: Callable[[UOp, UOp, UOp], UOp] = lambda value, i, j: value,
) -> UOp:
    """`steps` are those of the left factor along rows and depth, and of the right one along depth and columns."""
    i, j, k = axis(rows, 0), axis(columns, 1), axis(depth, 2, AxisType.REDUCE)
    left = load(param(1, rows * depth, dtype), i * steps[0] + k * steps[1])
    right = load(param(2, depth * columns, dtype), k * steps[2] + j * steps[3])
    if dtype is not total:
        left, right = left.cast(total), right.cast(total)
    return kernel(store(param(0, rows * columns, total), i * columns + j, epilogue(summed(left * right, k), i, j)))


def batched(columns: int = 32) -> UOp:
    b, i, j, k = axis(4, 0), axis(16, 1), axis(columns, 2), axis(9, 3, AxisType.REDUCE)
    left = load(param(1, 576), b * 144 + i * 9 + k)
    right = load(param(2, 36 * columns), b * (9 * columns) + k * columns + j)
    return kernel(store(param(0, 64 * columns), b * (16 * columns) + i * columns + j, summed(left * right, k)))


def of_channels(batch: int = 3, depth: int = 10) -> UOp:
    """out[i, j] = sum over b and k of a[b, i, k] * c[b, j, k]: the gradient of the weights of single pixels."""
    i, j, b, k = axis(40, 0), axis(24, 1), axis(batch, 2, AxisType.REDUCE), axis(depth, 3, AxisType.REDUCE)
    left = load(param(1, 40 * batch * depth), b * (40 * depth) + i * depth + k)
    right = load(param(2, 24 * batch * depth), b * (24 * depth) + j * depth + k)
    return kernel(store(param(0, 960), i * 24 + j, summed(left * right, b, k)))


def convolution(step: int = 1) -> UOp:
    """Two images of 3 channels, 8 results a point, windows of 3 by 3."""
    width = 10
    across = (width - 3) // step + 1
    n, f, y, x = axis(2, 0), axis(8, 1), axis(8, 2), axis(across, 3)
    c, v, u = (axis(3, number, AxisType.REDUCE) for number in (4, 5, 6))
    image = load(param(1, 600), n * 300 + c * 100 + (y + v) * width + x * step + u)
    weight = load(param(2, 216), f * 27 + c * 9 + v * 3 + u)
    place = n * (64 * across) + f * (8 * across) + y * across + x
    return kernel(store(param(0, 128 * across), place, summed(image * weight, c, v, u)))


def weight_gradient() -> UOp:
    """Few results, in runs of 3, each a sum over whole images."""
    f, c, v, u = axis(8, 0), axis(2, 1), axis(3, 2), axis(3, 3)
    n, y, x = axis(2, 4, AxisType.REDUCE), axis(18, 5, AxisType.REDUCE), axis(18, 6, AxisType.REDUCE)
    image = load(param(1, 1600), n * 800 + c * 400 + (y + v) * 20 + x + u)
    grown = load(param(2, 5184), n * 2592 + f * 324 + y * 18 + x)
    return kernel(store(param(0, 144), f * 18 + c * 9 + v * 3 + u, summed(image * grown, n, y, x)))


def image_gradient() -> UOp:
    """The sum over channels counts only where the window lies inside: a sum of sums."""
    c, y, x = axis(8, 0), axis(6, 1), axis(16, 2)
    v, u, f = (axis(size, number, AxisType.REDUCE) for size, number in ((3, 3), (3, 4), (5, 5)))
    inside = (y >= v) & (y < v + 4) & (x >= u) & (x < u + 14)
    place = UOp(Ops.INDEX, dtypes.float32, (param(1, 280), f * 56 + (y - v) * 14 + (x - u), inside))
    grown = UOp(Ops.LOAD, dtypes.float32, (place,))
    total = summed(grown * load(param(2, 360), f * 72 + c * 9 + v * 3 + u), f)
    return kernel(store(param(0, 768), c * 96 + y * 16 + x, summed(inside.where(total, total.const_like(0)), v, u)))


def bias_and_residual(value: UOp, i: UOp, j: UOp) -> UOp:
    total = value + load(param(3, 40), j)
    return total.maximum(total.const_like(0)) + load(param(4, 40 * int(i.src[0].arg)), i * 40 + j)


PRODUCTS: dict[str, Callable[[], UOp]] = {
    "plain": lambda: matrices(24, 10, 64, (10, 1, 64, 1)),
    "many rows, one tile of columns": lambda: matrices(64, 10, 16, (10, 1, 16, 1)),
    "no size divides": lambda: matrices(37, 7, 53, (7, 1, 53, 1)),
    "a prime number of rows": lambda: matrices(67, 20, 64, (20, 1, 64, 1)),
    "left transposed": lambda: matrices(48, 10, 64, (1, 48, 64, 1)),
    "right transposed": lambda: matrices(40, 33, 64, (33, 1, 1, 33)),
    "both transposed": lambda: matrices(40, 17, 48, (1, 40, 1, 17)),
    "with an epilogue": lambda: matrices(24, 10, 40, (10, 1, 40, 1), epilogue=bias_and_residual),
    "a long sum": lambda: matrices(39, 96, 80, (96, 1, 80, 1)),
    "a long sum with an epilogue": lambda: matrices(36, 80, 40, (80, 1, 40, 1), epilogue=bias_and_residual),
    "a long sum of a prime length": lambda: matrices(39, 97, 80, (97, 1, 80, 1)),
    "a prime sum with an epilogue": lambda: matrices(36, 83, 40, (83, 1, 40, 1), epilogue=bias_and_residual),
    "a prime sum, right transposed": lambda: matrices(40, 101, 64, (101, 1, 1, 101)),
    "a prime number of rows of stride 1": lambda: matrices(211, 20, 64, (1, 211, 64, 1)),
    "right transposed, one tile of columns": lambda: matrices(43, 33, 16, (33, 1, 1, 33)),
    "right transposed, few rows": lambda: matrices(5, 11, 70, (11, 1, 1, 11)),
    "few rows of a long sum, right transposed": lambda: matrices(13, 300, 21, (300, 1, 1, 300)),
    "few columns, right transposed": lambda: matrices(21, 40, 3, (40, 1, 1, 40)),
    "few columns of a short sum, right transposed": lambda: matrices(43, 11, 7, (11, 1, 1, 11)),
    "few columns of a short sum, both transposed": lambda: matrices(37, 13, 3, (1, 37, 1, 13)),
    "few rows with parts, right transposed": lambda: matrices(35, 16, 95, (16, 1, 1, 16)),
    "both transposed, one tile of columns": lambda: matrices(40, 17, 16, (1, 40, 1, 17)),
    "float16": lambda: matrices(40, 12, 64, (12, 1, 64, 1), dtypes.float16),
    "bfloat16, right transposed": lambda: matrices(24, 12, 32, (12, 1, 1, 12), dtypes.bfloat16),
    "int8 into int32": lambda: matrices(40, 12, 64, (12, 1, 64, 1), dtypes.int8, dtypes.int32),
    "batched": batched,
    "summed over two axes": of_channels,
    "summed over two axes, the inner one odd": lambda: of_channels(depth=11),
    "convolution": convolution,
    "convolution in steps of 2": lambda: convolution(2),
    "gradient of weights": weight_gradient,
    "gradient of images": image_gradient,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_on_the_emulator_for_every_instruction_set(name: str, target: str) -> None:
    ast = PRODUCTS[name]()
    opts = choose_opts(view_kernel(prepare_kernel(ast), TARGETS[target]))
    assert sum(opt.op is OptOps.UPCAST for opt in opts) >= 2
    assert check_pair(Pair(0, name, ast, None, TARGETS[target])) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("depth", "amount"), [(10, 2), (9, 3), (11, None)])
def test_the_innermost_loop_of_a_sum_is_unrolled(depth: int, amount: int | None) -> None:
    """A sum over two axes ran at 11 GFLOP/s where one over a single axis ran at 26."""
    sink = prepare_kernel(of_channels(depth=depth))
    found = []
    for opt in choose_opts(view_kernel(sink, TARGETS["NEON"])):
        if opt.op is OptOps.UNROLL:
            found.append((view_kernel(sink, TARGETS["NEON"]).axes[opt.axis or 0].arg.id, opt.arg))
        sink = apply_opt(sink, opt, TARGETS["NEON"])
    assert found == ([] if amount is None else [((3,), amount)])


@pytest.mark.parametrize("name", PRODUCTS)
def test_on_this_machine(name: str) -> None:
    check(PRODUCTS[name](), None, ("CPU",), seed=1)


def test_a_panel_beyond_the_stack_is_taken_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "STACK_BYTES", 1 << 12)  # a panel of narrow registers is small
    ast = matrices(32, 1100, 256, (1100, 1, 256, 1))
    check(ast, None, ("CPU",), seed=2)
    source = compile_kernel(ast.replace(arg=KernelInfo("test")), "CPU").source
    assert source.count("call ptr @take_panel(") == source.count("call void @give_panel(") == 1


def test_a_copy_asks_for_rows_further_on_where_it_takes_less_than_a_page_of_each() -> None:
    row, lane = axis(64, 0), axis(16, 1, AxisType.UPCAST)

    def ahead(step: int) -> int:
        place = UOp(Ops.INDEX, dtypes.float32, (param(1, 64 * step), row * step + lane))
        return prefetch.rows_ahead(place, 16 * 4, [row], 4096)

    assert ahead(256) == prefetch.ROWS_AHEAD * 256 * 4
    assert ahead(16) == 0  # the copy walks all of every row


def test_the_vectors_of_a_copied_row_prefetch_the_same_part_of_a_later_row() -> None:
    """A row of 3 vectors is 3 loads, each shorter than the step of the loop over tiles."""
    row, tile, vector, lane = axis(64, 0), axis(5, 1), axis(3, 2, AxisType.UPCAST), axis(16, 3, AxisType.UPCAST)
    place = UOp(Ops.INDEX, dtypes.float32, (param(1, 64 * 1024), row * 1024 + tile * 48 + (vector * 16 + lane)))
    assert prefetch.rows_ahead(place, 16 * 4, [row, tile], 4096) == prefetch.ROWS_AHEAD * 1024 * 4


LARGE_CACHES = replace(TARGETS["AVX-512"], core_cache_bytes=1 << 20, cache_bytes=16 << 20)
CACHES = {name: replace(target, core_cache_bytes=1 << 20, cache_bytes=16 << 20) for name, target in TARGETS.items()}


def panel_bytes(made: Chosen) -> list[int]:
    return [n.arg.size * n.dtype.itemsize for n in made.view.nodes if n.op is Ops.DEFINE_LOCAL]


@pytest.mark.parametrize("target", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("shape", [(512, 512, 512), (1000, 300, 700), (256, 1024, 2048), (96, 96, 96)], ids=str)
def test_a_product_is_blocked_for_registers_and_caches(shape: tuple[int, int, int], target: Target) -> None:
    """Blocks of columns are parallel, the right factor is packed in each, the left one is read in place."""
    rows, depth, columns = shape
    made = Chosen(matrices(rows, depth, columns, (depth, 1, columns, 1)), target)
    stays_in_limits(made)
    stores_vectors(made)
    fits_the_registers(made)
    keeps_the_cores_busy(made)
    reuses_its_loads(made, least=1.5)
    assert packs(made) == 1
    assert max(panel_bytes(made)) <= target.core_cache_bytes // packed_products.PANEL_SHARE + depth * target.line_bytes
    assert not any(memory_of(load).arg.slot == 2 and AxisType.REDUCE in kinds(load) for load in operands(made.view))


def kinds(access: UOp) -> set[AxisType]:
    return {axis.arg.kind for axis in access.ranges}


@pytest.mark.parametrize(("size", "is_whole"), [(256, True), (768, False)])
def test_rows_of_stride_1_are_packed_too(size: int, is_whole: bool) -> None:
    """Whole where half of the memory for panels holds them, else block by block."""
    made = Chosen(matrices(size, size, size, (1, size, size, 1)), LARGE_CACHES)
    assert packs(made) == 2
    left = max(panel_bytes(made)) if is_whole else min(panel_bytes(made))
    assert (left >= size * size * 4) is is_whole
    stays_in_limits(made)


@pytest.mark.parametrize("target", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("depth", [4096, 8192, 30000, 8191, 30011, 50257, 2 * 15013])
def test_a_sum_whose_panel_is_too_long_is_blocked_outside_of_the_rows(depth: int, target: Target) -> None:
    made = Chosen(matrices(512, depth, 512, (depth, 1, 512, 1)), target)
    is_long = packed_products.LONG_SHARE * depth * product_sizes.MAX_VECTORS * target.vector_bytes > 1 << 20
    assert (made.uses(OptOps.SPILL) == 1) is is_long
    assert packs(made) == 1
    assert max(panel_bytes(made)) <= 1 << 20
    if is_long:
        blocks = next(before.arg for before, after in itertools.pairwise(made.opts) if after.op is OptOps.SPILL)
        room = (
            target.core_cache_bytes // packed_products.PANEL_SHARE // (product_sizes.MAX_VECTORS * target.vector_bytes)
        )
        assert room // 2 <= blocks <= room


@pytest.mark.parametrize("rows", [8192, 8191, 50257, 10007])
def test_rows_of_stride_1_are_packed_in_large_blocks_whatever_their_number(rows: int) -> None:
    """A prime number of tiles has no divisor: blocks of equal length cover them, and the last one overlaps."""
    made = Chosen(matrices(rows, 256, 768, (1, rows, 768, 1)), LARGE_CACHES)
    assert packs(made) == 2
    room = LARGE_CACHES.core_cache_bytes // packed_products.PANEL_SHARE
    assert room // 4 <= min(panel_bytes(made)) <= 2 * room
    stays_in_limits(made)


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("shape", [(10000, 700, 650), (2600, 680, 650), (1999, 697, 333), (512, 1000, 528)], ids=str)
def test_rows_too_large_to_be_packed_whole_are_packed_once(shape: tuple[int, int, int], cores: int) -> None:
    """Not once for each block of columns: the gradient of a linear layer's weight reads both factors across."""
    rows, depth, columns = shape
    target = replace(LARGE_CACHES, max_local_bytes=8 << 20, cores=cores)
    made = Chosen(matrices(rows, depth, columns, (1, rows, columns, 1)), target)
    stays_in_limits(made)
    keeps_the_cores_busy(made)
    tasks = made.count(AxisType.THREAD)
    assert packs(made) == 2
    assert copied(made, 0) <= 1.2 * rows * depth
    assert copied(made, 1) <= 1.2 * tasks * depth * columns
    assert tasks <= max(2, 2 * cores)


def copied(made: Chosen, number: int) -> int:
    """Elements that are packed of a factor, 0 the left one: the size of a copy, times the iterations of all loops that
    it is made in."""
    stages = [opt.axis for opt in made.opts if opt.op is OptOps.STAGE]
    memories = sorted((n for n in made.view.nodes if n.op is Ops.DEFINE_LOCAL), key=lambda node: node.arg.slot)
    axes, position = made.view.axes, stages[number]
    outer = [axis for axis in axes[: position + 1] if axis.arg.kind in (AxisType.LOOP, AxisType.THREAD)]
    if made.uses(OptOps.SPILL):  # the loops of the tasks and of the blocks of the sum, and of the moved rows
        blocks = made.view.of_kind(AxisType.REDUCE)[0]
        outer = list(dict.fromkeys([*made.view.of_kind(AxisType.THREAD), blocks, axes[position]]))
    return int(memories[number - len(stages)].arg.size * math.prod(size_of(axis) for axis in outer))


@pytest.mark.parametrize("shape", [(768, 4096, 768), (512, 2048, 500), (700, 5003, 333), (4096, 4096, 1000)], ids=str)
def test_long_sums_of_packed_rows_are_taken_in_blocks(shape: tuple[int, int, int]) -> None:
    """A weight's gradient over many tokens. Blocks are as long for any number of cores, so the order of additions is
    the same; both factors are packed once for each block, and accumulators of a task fit beside them."""
    rows, depth, columns = shape
    blocks = set()
    for cores in (1, 2, 7, 16):
        target = replace(LARGE_CACHES, max_local_bytes=8 << 20, cores=cores)
        made = Chosen(matrices(rows, depth, columns, (1, rows, columns, 1)), target)
        stays_in_limits(made)
        keeps_the_cores_busy(made)
        assert packs(made) == 2
        assert copied(made, 0) <= 1.4 * rows * depth  # few rows for many cores are padded
        blocks.update(before.arg for before, after in itertools.pairwise(made.opts) if after.op is OptOps.SPILL)
    assert len(blocks) == 1
    assert 256 <= min(blocks) <= 1024


@pytest.mark.parametrize(("shape", "target"), [*zip([(97, 6, 64), (90, 11, 53), (97, 13, 16)], TARGETS)])
def test_rows_packed_in_blocks_outside_of_the_columns(
    shape: tuple[int, int, int], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_products, "SHORT_SUM", 1)
    monkeypatch.setattr(products, "match_short", lambda view, product: None)
    rows, depth, columns = shape
    ast = matrices(rows, depth, columns, (1, rows, columns, 1))
    small = replace(TARGETS[target], max_local_bytes=(4 * columns + 4 * rows) * depth, core_cache_bytes=1 << 20)
    assert copied(Chosen(ast, small), 0) <= 1.4 * rows * depth
    assert check_pair(Pair(0, str(shape), ast, None, small)) is None  # type: ignore[arg-type]
    # A core's cache whose share for a panel holds half of the sum: it is taken in blocks.
    cache = 2 * product_sizes.MAX_VECTORS * small.vector_bytes * depth
    blocked = replace(small, core_cache_bytes=cache, max_local_bytes=1 << 20)
    assert Chosen(ast, blocked).uses(OptOps.SPILL) == 1
    assert check_pair(Pair(0, str(shape), ast, None, blocked)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [255, 256, 1000, 1024, 4096])
def test_a_block_of_a_sum_is_long_and_covers_it_with_little_waste(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_sizes, "MIN_SUM_BLOCK", 256)
    for depth in (300, 1023, 1024, 2047, 4099, 8191, 8192, 30000, 50257, 99991):
        block = product_sizes.best_sum_block(depth, most)
        if min(most, depth) < 256:
            assert block is None
        else:
            assert block is not None
            assert min(most, depth) // 2 <= block <= most
            assert product_sizes.padded(depth, block) <= 1.1 * depth + 16


def test_rows_that_no_cache_holds_between_blocks_of_columns_have_parts() -> None:
    """4096 rows of 2048 floats are 32 MiB; 16 MiB are half of them."""
    made = Chosen(matrices(4096, 2048, 512, (2048, 1, 512, 1)), LARGE_CACHES)
    rows = [a for a in made.view.of_kind(AxisType.THREAD) if stride(made.view.stores[0], a) == 2048 * 512]
    assert [size_of(axis) for axis in rows] == [2]
    small = Chosen(matrices(1024, 2048, 512, (2048, 1, 512, 1)), LARGE_CACHES)
    assert len(small.view.of_kind(AxisType.THREAD)) == 1


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("rows", "depth"), [(4072, 40), (896, 20), (600, 300)])
def test_results_of_short_sums_are_written_by_whole_rows(rows: int, depth: int, cores: int) -> None:
    """Blocks of columns wrote a piece of each row at a time: it took three times as long as the whole rows."""
    made = Chosen(matrices(rows, depth, 1236, (depth, 1, 1236, 1)), replace(LARGE_CACHES, cores=cores))
    outermost = stride(made.view.stores[0], made.view.axes[0])
    assert outermost is not None
    assert (outermost % 1236 == 0) is (depth <= packed_products.SHORT_SUM)
    assert packs(made) == 1
    keeps_the_cores_busy(made)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(192, 28, 15603), (1879, 22, 3087)])
def test_results_of_short_sums_of_packed_rows_are_written_row_by_row(
    rows: int, depth: int, columns: int, cores: int
) -> None:
    """The gradient of a weight for a few examples: a column of tiles touched a page of memory for each of its rows."""
    target = replace(LARGE_CACHES, cores=cores, max_local_bytes=8 << 20, core_cache_bytes=2 << 20)
    made = Chosen(matrices(rows, depth, columns, (1, rows, columns, 1)), target)
    results = made.view.stores[-1]
    innermost = [axis for axis in made.view.of_kind(AxisType.LOOP) if axis in results.ranges][-1]
    assert 0 < (stride(results, innermost) or 0) < columns


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_many_products_of_short_sums_pack_each_right_factor_once(cores: int) -> None:
    """The scores of 8 heads were made by halves of rows, and each half packed the keys again."""
    head, i, j, k = axis(8, 0), axis(256, 1), axis(256, 2), axis(64, 3, AxisType.REDUCE)
    left = load(param(1, 8 * 256 * 64, dtypes.float32), (head * 256 + i) * 64 + k)
    right = load(param(2, 8 * 256 * 64, dtypes.float32), (head * 256 + j) * 64 + k)
    place = store(param(0, 8 * 256 * 256, dtypes.float32), (head * 256 + i) * 256 + j, summed(left * right, k))
    made = Chosen(UOp(Ops.SINK, dtypes.void, (place,), KernelInfo("product")), replace(LARGE_CACHES, cores=cores))
    outermost = made.view.axes[0]
    assert stride(made.view.stores[0], outermost) == 256 * 256
    assert all(stride(made.view.stores[0], a) == 256 * 256 for a in made.view.of_kind(AxisType.THREAD))
    assert packs(made) == 1
    keeps_the_cores_busy(made)


@pytest.mark.parametrize("cores", [1, 2])
def test_two_loops_over_rows_pack_the_right_factor_once(cores: int) -> None:
    """Rows of 35 steps of 20 sequences, stored in the other order: each packed the whole right factor again."""
    sequence, step, j, k = axis(20, 0), axis(35, 1), axis(640, 2), axis(65, 3, AxisType.REDUCE)
    left = load(param(1, 700 * 65), (step * 20 + sequence) * 65 + k)
    right = load(param(2, 640 * 65), j * 65 + k)
    place = store(param(0, 700 * 640), (sequence * 35 + step) * 640 + j, summed(left * right, k))
    made = Chosen(UOp(Ops.SINK, dtypes.void, (place,), KernelInfo("product")), replace(LARGE_CACHES, cores=cores))
    outermost = made.view.axes[0]
    assert 0 < (stride(made.view.stores[0], outermost) or 0) < 640
    assert [opt.axis for opt in made.opts if opt.op is OptOps.STAGE] == [0]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(300, 100, 60), (307, 40, 16), (5, 20, 3000), (24, 40, 64)])
def test_columns_at_a_stride_are_packed(rows: int, depth: int, columns: int, cores: int) -> None:
    """Also where there is one tile of columns and one core, so that no loop is outside the rows; or one of rows."""
    made = Chosen(matrices(rows, depth, columns, (depth, 1, 1, depth)), replace(LARGE_CACHES, cores=cores))
    assert packs(made) >= 1
    assert not any(memory_of(load).arg.slot == 2 and AxisType.REDUCE in kinds(load) for load in operands(made.view))


@pytest.mark.parametrize(("rows", "columns"), [(8738, 5), (6533, 3), (1000, 2)])
def test_few_columns_are_tiles_of_dot_products(rows: int, columns: int) -> None:
    """What follows the sum was computed for one result at a time: tanh took twice as long as the product."""
    made = Chosen(matrices(rows, 48, columns, (48, 1, 1, 48)), LARGE_CACHES)
    tiles = [axis for axis in made.view.of_kind(AxisType.UPCAST) if stride(made.view.stores[0], axis) == 1]
    assert [size_of(axis) for axis in tiles] == [columns]
    assert made.tile >= 8


@pytest.mark.parametrize(("depth", "columns"), [(12, 7), (5, 3), (16, 6)])
def test_few_columns_of_a_short_sum_are_packed(depth: int, columns: int) -> None:
    """Every result was a vector of a few products that was reduced to a scalar."""
    target = replace(LARGE_CACHES, vector_bytes=64, vector_registers=32)
    made = Chosen(matrices(8192, depth, columns, (depth, 1, 1, depth)), target)
    assert packs(made) == 1
    assert stride(made.view.stores[0], max(made.view.of_kind(AxisType.UPCAST), key=size_of)) == 1


@pytest.mark.parametrize("rows", [35, 33, 45, 62])
def test_few_rows_pack_the_right_factor_once(rows: int) -> None:
    """35 rows were five parts of 7, each of which packed the matrix again, and two tiles of 6."""
    target = replace(LARGE_CACHES, vector_bytes=64, vector_registers=32, cores=1)
    made = Chosen(matrices(rows, 64, 955, (64, 1, 1, 64)), target)
    assert packs(made) == 1
    assert made.count(AxisType.THREAD) == 1


@pytest.mark.parametrize(("rows", "depth", "columns"), [(6, 2560, 3822), (20, 8192, 64), (13, 512, 501), (4, 66, 999)])
def test_few_rows_of_a_long_sum_are_dot_products(rows: int, depth: int, columns: int) -> None:
    """The matrix was read once for each row, or gathered; it is the outer one, and read once for each tile of rows."""
    made = Chosen(matrices(rows, depth, columns, (depth, 1, 1, depth)), replace(LARGE_CACHES, cores=1))
    assert packs(made) == 0
    assert made.tile >= 8
    assert all(stride(load, made.view.reduces[0].src[-1]) == 1 for load in made.buffers)
    right = next(load for load in made.buffers if memory_of(load).arg.slot == 2)
    assert made.view.of_kind(AxisType.LOOP)[0] in right.ranges


def test_windows_that_overlap_are_read_in_place() -> None:
    made = Chosen(convolution(), LARGE_CACHES)
    assert packs(made) == 0
    stores_vectors(made)
    reuses_its_loads(made, least=1.0)


def test_long_sums_of_few_results_are_tiles_of_dot_products() -> None:
    """Vectors go along the sum, for which both factors have stride 1; a tile has several sums."""
    made = Chosen(weight_gradient(), LARGE_CACHES)
    summed_tiles = [axis for axis in made.view.reduces[0].src[1:] if axis.arg.kind is AxisType.UPCAST]
    assert all(stride(load, axis) == 1 for load in made.buffers for axis in summed_tiles)
    assert [size_of(axis) for axis in summed_tiles] == [16]
    assert made.tile >= 8
    assert packs(made) == 0


# ---------------------------------------------------------------- thresholds as they ship


@pytest.mark.parametrize("size", [40, 41, 101, 102])
def test_the_thresholds_of_products(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From MIN_PRODUCTS on a product is tiled as one, from MIN_SHARED on it is packed and parallel; right on either
    side of both."""
    monkeypatch.undo()
    assert (products.MIN_PRODUCTS, packed_products.MIN_SHARED) == (1 << 16, 1 << 20)
    forget_kernels()
    ast = matrices(size, size, size, (size, 1, size, 1))
    plan = opts_of(products.CONTRACTION, view_kernel(prepare_kernel(ast), LARGE_CACHES))
    assert (plan is not None) is (size**3 >= products.MIN_PRODUCTS)
    opts = {opt.op for opt in plan or ()}
    is_large = size**3 >= packed_products.MIN_SHARED
    assert ({OptOps.THREAD, OptOps.STAGE} <= opts) is is_large
    assert ({OptOps.THREAD, OptOps.STAGE} & opts != set()) is is_large
    check(ast, None, ("CPU",), seed=size)


@pytest.mark.parametrize("rows", [7, 8, 15, 31, 32])
def test_the_threshold_of_packed_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows read the right factor in place; from half of MIN_PACKED_ROWS on a matrix of this size is packed."""
    monkeypatch.undo()
    forget_kernels()
    ast = matrices(rows, 256, 256, (256, 1, 256, 1))
    plan = opts_of(products.CONTRACTION, view_kernel(prepare_kernel(ast), LARGE_CACHES))
    assert (OptOps.STAGE in {opt.op for opt in plan or ()}) is (2 * rows >= products.MIN_PACKED_ROWS == 32)
    check(ast, None, ("CPU",), seed=rows)


# What is chosen for rows x depth x columns, of float32 on LARGE_CACHES, whose core's cache holds 512 x 512.
CHOSEN = {
    "a large matrix and few rows": ((17, 1024, 1024), (1024, 1, 1024, 1), "streamed"),
    "a large matrix and many rows": ((128, 1024, 1024), (1024, 1, 1024, 1), "packed panels"),
    "a large matrix, the left factor transposed": ((17, 1024, 1024), (1, 17, 1024, 1), "streamed"),
    "few rows, stride 1 along the sum": ((5, 512, 300), (512, 1, 1, 512), "dot products"),
    "many rows, stride 1 along the sum": ((512, 512, 300), (512, 1, 1, 512), "packed panels"),
    "a short sum of stride 1": ((64, 24, 3000), (24, 1, 1, 24), "packed panels"),
    "a matrix in the cache and few rows": ((4, 256, 256), (256, 1, 256, 1), "packed panels"),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_plan_with_the_least_estimate_does_not_depend_on_the_cores(name: str) -> None:
    """Plans add in different orders, and sums have the same bits for any number of cores."""
    (rows, depth, columns), strides, plan = CHOSEN[name]
    view = view_kernel(prepare_kernel(matrices(rows, depth, columns, strides)), LARGE_CACHES)
    found = []
    for cores in (1, 2, 3, 16):
        choice = make_least(
            consider_plans(products.CONTRACTION, replace(view, target=replace(LARGE_CACHES, cores=cores)))
        )
        found.append("columns" if choice is None else choice.plan.name)
    assert found == [plan] * 4


@pytest.mark.parametrize("images", [2, 3, 5])
def test_images_that_share_weights_do_not_take_the_place_of_rows(images: int) -> None:
    """A 1x1 convolution of 12 channels: the template of columns would tile the loop over the images."""
    channels, pixels = 12, 16384
    b, o, p, c = axis(images, 0), axis(channels, 1), axis(pixels, 2), axis(channels, 3, AxisType.REDUCE)
    weights, image = param(1, channels * channels), param(2, images * channels * pixels)
    value = load(weights, o * channels + c) * load(image, (b * channels + c) * pixels + p)
    result = param(0, images * channels * pixels)
    ast = kernel(store(result, (b * channels + o) * pixels + p, summed(value, c)))
    choice = make_least(consider_plans(products.CONTRACTION, view_kernel(prepare_kernel(ast), LARGE_CACHES)))
    assert choice is not None
    assert choice.plan.name == "packed panels"


# ---------------------------------------------------------------- cores


# A kernel, the cores, and how many loops are parallel.
MANY_CORES: dict[str, tuple[Callable[[], UOp], int, int]] = {
    "blocks of columns are few: rows too": (lambda: matrices(256, 64, 256, (64, 1, 256, 1)), 16, 2),
    "matrices are few: blocks of columns too": (lambda: batched(128), 16, 2),
    "a short matrix for each core: those alone": (lambda: batched(128), 4, 1),
}


@pytest.mark.parametrize("name", MANY_CORES)
def test_what_many_cores_share(name: str) -> None:
    graph, cores, loops = MANY_CORES[name]
    ast, target = graph(), replace(TARGETS["AVX-512"], cores=cores, core_cache_bytes=1 << 13)
    sink = prepare_kernel(ast)
    for opt in choose_opts(view_kernel(sink, target)):
        sink = apply_opt(sink, opt)
    found = view_kernel(sink).of_kind(AxisType.THREAD)
    assert len(found) == loops
    assert math.prod(size_of(axis) for axis in found) >= cores // 2
    (joined,) = lower(sink, target).global_ranges
    assert size_of(joined) == math.prod(size_of(axis) for axis in found)
    assert check_pair(Pair(0, name, ast, None, target)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("ast", [matrices(4, 64, 64, (64, 1, 64, 1)), matrices(64, 64, 1, (64, 1, 1, 1))])
def test_what_is_no_product_of_matrices_is_left_to_others(ast: UOp) -> None:
    assert opts_of(products.CONTRACTION, view_kernel(ast, TARGETS["AVX2"])) is None


def test_a_small_product_is_neither_packed_nor_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_products, "MIN_SHARED", 64**3 + 1)
    opts = choose_opts(view_kernel(matrices(64, 64, 64, (64, 1, 64, 1)), LARGE_CACHES))
    assert {opt.op for opt in opts} == {OptOps.UPCAST, OptOps.SWAP}


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("rows", [8, 67, 1000, 1024])
@pytest.mark.parametrize("columns", [24, 333, 1024])
def test_a_tile_fits_the_registers_and_keeps_them_busy(rows: int, columns: int, registers: int) -> None:
    tile = choose_tile(rows, columns, 8, registers, max_rows=8)
    assert tile.rows * tile.vectors + tile.vectors + 1 <= registers
    assert tile.rows * tile.vectors >= 8
    padded = math.prod(-(-size // part) * part for size, part in ((rows, tile.rows), (columns, tile.vectors * 8)))
    assert padded <= 1.1 * rows * columns


def test_blocks_fit_and_are_shared_evenly() -> None:
    assert best_block(32, 8, 2) == 8
    assert best_block(8, 8, 2) == 2  # four blocks: one of two cores that is late leaves some to the other
    assert best_block(7, 8, 2) == 1
    assert best_block(16, 0, 4) == 1
    assert best_block(32, 8, 2, parts=4) == 4
    assert best_block(6, 8, 2, parts=4) == 1  # as many as there are
    assert utilisation(7, 2) == 7 / 8


def test_rows_are_parted_where_blocks_are_too_few_for_the_cores() -> None:
    assert row_parts(256, 4, 2) == row_parts(256, 1, 1) == 1  # there are enough
    assert row_parts(256, 4, 16) == 4
    assert row_parts(1000, 7, 2) == 2
    assert row_parts(997, 1, 2) == 1  # none divides them
    assert row_parts(64, 1, 16) == 2  # fewer rows would not repay what is packed for each part


def test_a_long_part_is_shared_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_products, "LONG_TASK", 1)
    sink = prepare_kernel(batched(128))
    for opt in choose_opts(view_kernel(sink, replace(LARGE_CACHES, cores=4))):
        sink = apply_opt(sink, opt)
    tasks = [size_of(axis) for axis in view_kernel(sink).of_kind(AxisType.THREAD)]
    assert tasks[0] == 4
    assert math.prod(tasks) > 4


def test_the_order_of_a_long_sum_does_not_depend_on_the_number_of_cores() -> None:
    def blocks(rows: int, depth: int, columns: int, cores: int) -> list[int]:
        ast = prepare_kernel(matrices(rows, depth, columns, (depth, 1, columns, 1)))
        target = TARGETS["AVX-512"] if depth < 4096 else LARGE_CACHES
        opts = choose_opts(view_kernel(ast, replace(target, cores=cores)))
        held = [opt for opt in opts if opt.op is OptOps.SPILL]
        return [opt.arg for opt, after in itertools.pairwise(opts) if after in held]

    few_rows = ((32, 4096, 16), (36, 4096, 128), (48, 4096, 48), (36, 8192, 512))
    for shape in ((36, 96, 64), (100, 48, 304), (67, 60, 16), (64, 90, 333), (36, 97, 64), (48, 4099, 48), *few_rows):
        assert len({tuple(blocks(*shape, cores)) for cores in (1, 2, 3, 7, 16)}) == 1, shape
        assert blocks(*shape, 2)


def test_elements_are_converted_once_as_they_are_packed() -> None:
    ast = prepare_kernel(matrices(40, 12, 64, (12, 1, 64, 1), dtypes.float16))
    sink = apply_opt(ast, Opt(OptOps.UPCAST, 1, 16))
    sink = apply_opt(sink, Opt(OptOps.STAGE, 1, 1))
    view = view_kernel(sink)
    (panel,) = (node for node in view.nodes if node.op is Ops.DEFINE_LOCAL)
    assert panel.dtype is dtypes.float32
    # One of the left factor's elements where they are multiplied, one of the right factor's where they are copied.
    assert sum(node.op is Ops.CAST and node.src[0].op is Ops.LOAD for node in view.nodes) == 2

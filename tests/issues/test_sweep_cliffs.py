"""Rows of `bench/sweep.py` that took far longer than their neighbours on the CPU: what their kernels look like, and
their values beside sums written out in NumPy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.issues.test_cpu_cliffs import kernels_of
from tests.kernel.properties import Chosen, stores_vectors
from tests.kernel.test_products import CACHES, LARGE_CACHES, matrices
from tilewright import Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.base.dtype import dtypes
from tilewright.base.errors import IndexingError
from tilewright.codegen.pipeline import lower
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, stride, view_kernel
from tilewright.kernel.optimise import optimise, prepare_kernel
from tilewright.kernel.templates.convolution_windows import find_windows
from tilewright.kernel.templates.convolutions import tile_speed
from tilewright.kernel.templates.product_match import find_product

# ---------------------------------------------------------------- gradients of windows at a stride

# A loop that has at most this many iterations is unrolled, and its accesses may be anything.
MAX_PHASES = 5


def prepared(ast: UOp) -> KernelView:
    return view_kernel(prepare_kernel(ast), cpu_target())


def image_gradient(x: Tensor, weight: Tensor, upstream: Tensor, step: int, gap: int, padding: int) -> Tensor:
    convolved = x.conv2d(weight, None, 1, step, gap, padding)
    return convolved.gradient(x, gradient=upstream)[0]


def windows(size: int, window: int, step: int, gap: int, padding: int) -> int:
    return (size + 2 * padding - gap * (window - 1) - 1) // step + 1


@pytest.mark.parametrize("size", [66, 67])
@pytest.mark.parametrize(
    ("window", "step", "gap", "padding"),
    [(5, 3, 1, 0), (4, 2, 1, 0), (7, 4, 1, 0), (9, 3, 1, 0), (7, 5, 1, 0), (3, 3, 2, 0), (5, 3, 2, 4), (7, 3, 2, 6)],
)
def test_the_gradient_of_windows_at_a_stride_is_affine_and_right(
    window: int, step: int, gap: int, padding: int, size: int
) -> None:
    """The positions of the repeated axis that no window reads do not keep the others from a plain index."""
    random = np.random.default_rng(0)
    count = windows(size, window, step, gap, padding)
    weight, upstream = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((4, 3, window), (2, 4, count)))
    x = Tensor(np.zeros((2, 3, size), np.float32)).realize()
    found = image_gradient(x, Tensor(weight).realize(), Tensor(upstream).realize(), step, gap, padding)
    for ast in kernels_of(found):
        view = prepared(ast)
        long = [loop for loop in view.axes if size_of(loop) > MAX_PHASES]
        assert all(stride(access, loop) is not None for access in view.accesses for loop in long)
    expected = np.zeros((2, 3, size + 2 * padding), np.float32)
    for tap in range(window):
        start = tap * gap
        terms = np.einsum("boi,oc->bci", upstream, weight[:, :, tap])
        expected[:, :, start : start + (count - 1) * step + 1 : step] += terms
    np.testing.assert_array_equal(found.numpy(), expected[:, :, padding : padding + size])


@pytest.mark.parametrize(("channels", "is_product"), [(64, True), (12, True), (4, False)])
def test_a_contraction_that_windows_at_a_stride_read_is_a_product_of_its_own(channels: int, is_product: bool) -> None:
    """Inside the sum over windows it had an accumulator for each lane and no tile of registers. Few channels are summed
    where they are read."""
    x, weight = Tensor.empty(2, 40, 130).contiguous(), Tensor.empty(channels, 40, 3)
    upstream = Tensor.empty(2, channels, 64)
    kernels = [prepared(ast) for ast in kernels_of(image_gradient(x, weight, upstream, 2, 1, 0))]
    assert any(find_product(view) is not None for view in kernels) is is_product
    assert (len(kernels) == 2) is is_product


# ---------------------------------------------------------------- rows at a stride, and results of short sums


@pytest.mark.parametrize(
    ("step", "padding", "is_by_channels"), [(3, 3, True), (4, 3, True), (1, 3, False), (3, 0, False)]
)
def test_masked_rows_at_a_stride_are_vectorised_over_channels(step: int, padding: int, is_by_channels: bool) -> None:
    """Each vector of such a row is three masked loads and two shuffles, of which a channel's vector has none."""
    images, weight = Tensor.empty(5, 3, 36, 32 * step), Tensor.empty(24, 3, 7, 7)
    (ast,) = kernels_of(images.contiguous().realize().conv2d(weight.contiguous().realize(), None, 1, step, 1, padding))
    made = Chosen(ast, replace(LARGE_CACHES, cores=1))
    vectors = [axis for axis in made.view.of_kind(AxisType.UPCAST) if size_of(axis) % 16 == 0]
    weights = [axis for axis in vectors if stride(made.view.stores[0], axis) != 1]
    assert bool(weights) is is_by_channels


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(37, 4, 32768), (640, 48, 1966), (300, 20, 7777)])
def test_short_sums_of_a_prime_number_of_tiles_are_written_in_wide_blocks(
    rows: int, depth: int, columns: int, cores: int
) -> None:
    """A block of one tile wrote a piece of each row, on a page of its own."""
    made = Chosen(matrices(rows, depth, columns, (depth, 1, columns, 1)), replace(LARGE_CACHES, cores=cores))
    blocks = [opt.arg for opt in made.opts if opt.op is OptOps.BLOCK and isinstance(opt.arg, int)]
    assert blocks
    assert blocks[0] >= 4 // cores
    assert len(made.view.of_kind(AxisType.THREAD)) == (cores > 1)


@pytest.mark.parametrize(("length", "kernels"), [(2576, 2), (2577, 2)])
def test_pixels_behind_the_last_window_get_their_zeros_in_a_kernel_of_their_own(length: int, kernels: int) -> None:
    """The phases of one stride were padded to a vector, under a mask: it took 12 times as long as 2577 pixels."""
    images, weight = Tensor.empty(2, 48, length).contiguous().realize(), Tensor.empty(192, 48, 3).contiguous().realize()
    images.requires_grad_()
    result = images.conv2d(weight, stride=3)
    found = kernels_of(result.gradient(images, gradient=Tensor.empty(*result.shape).contiguous().realize())[0])
    assert len(found) == kernels


def test_the_gradients_of_pixels_behind_the_last_window_are_zero() -> None:
    numbers = np.random.default_rng(3)
    given, weight, slopes = (
        numbers.standard_normal(shape, np.float32) for shape in ((2, 3, 77), (5, 3, 3), (2, 5, 25))
    )
    images = Tensor(given).requires_grad_()
    found = images.conv2d(Tensor(weight), stride=3).gradient(images, gradient=Tensor(slopes))[0].numpy()
    expected = np.einsum("bop,ock->bcpk", slopes, weight).reshape(2, 3, 75)
    np.testing.assert_allclose(found[..., :75], expected, atol=1e-5)
    assert not found[..., 75:].any()


@pytest.mark.parametrize(("columns", "width"), [(12544, 16), (12288, 12), (3136, 16)])
def test_tiles_divide_the_columns_of_a_packed_matrix(columns: int, width: int) -> None:
    """A processor without masked vectors stores the results of all tiles one by one where the last ends beyond."""
    made = Chosen(matrices(64, 64, columns, (64, 1, columns, 1)), CACHES["NEON"])
    tiles = [size_of(axis) for axis in made.view.of_kind(AxisType.UPCAST) if stride(made.view.stores[0], axis) == 1]
    assert tiles == [width]
    assert not any(len(store.src) > 2 for store in made.view.stores)


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(24, 144, 3136), (20, 1024, 3000), (18, 40, 5000), (16, 29, 13547), (16, 64, 8191)],
)
def test_a_matrix_that_few_rows_read_is_packed(rows: int, depth: int, columns: int) -> None:
    """16x29x13547 in blocks of the sum, with masked rows and columns, took 1.08 ms, packed 0.60 (torch 0.54)."""
    target = replace(CACHES["NEON"], prefetch_streams=8, memory_bytes_per_clock=5.0)
    opts = Chosen(matrices(rows, depth, columns, (depth, 1, columns, 1)), target).opts
    assert OptOps.STAGE in {opt.op for opt in opts}


@pytest.mark.parametrize("shape", [(50, 2, 80, 716), (20, 4, 200, 300), (30, 10, 100, 500)], ids=str)
def test_many_matrices_of_few_rows_are_not_read_in_strips(shape: tuple[int, int, int, int]) -> None:
    """The core's cache holds each matrix, but not all of them: 50 products 2x80x716 took 4.6 ms by strips of columns,
    which nothing prefetches, and take 1.2 in the order of memory (torch 1.4)."""
    count, rows, depth, columns = shape
    target = replace(CACHES["NEON"], prefetch_streams=8, memory_bytes_per_clock=5.0)
    (ast,) = kernels_of(Tensor.empty(count, rows, depth) @ Tensor.empty(count, depth, columns))
    made = Chosen(ast, target)
    assert made.uses(OptOps.SPILL) + made.uses(OptOps.STAGE) > 0


@pytest.mark.parametrize(("rows", "depth", "columns"), [(10, 10, 50000), (24, 10, 40000), (31, 14, 20000)])
def test_few_rows_of_a_short_sum_read_a_matrix_in_place(rows: int, depth: int, columns: int) -> None:
    """Each row of the matrix is a stream: 24x10x40000 took 0.85 ms packed and takes 0.67 (torch 0.97)."""
    target = replace(CACHES["NEON"], prefetch_streams=8, memory_bytes_per_clock=5.0)
    opts = Chosen(matrices(rows, depth, columns, (depth, 1, columns, 1)), target).opts
    assert OptOps.STAGE not in {opt.op for opt in opts}


@pytest.mark.parametrize("shape", [(20, 23, 500, 233), (8, 30, 400, 160)], ids=str)
def test_so_are_several_matrices_where_the_left_factors_are_transposed(shape: tuple[int, int, int, int]) -> None:
    """Strips of columns were read once for each tile of rows: 20x23x500x233 took 9.9 ms, packed 4.9 (torch 4.3)."""
    count, rows, depth, columns = shape
    left, right = Tensor.empty(count, depth, rows), Tensor.empty(count, depth, columns)
    target = replace(CACHES["NEON"], prefetch_streams=8, memory_bytes_per_clock=5.0)
    (ast,) = kernels_of(left.transpose(1, 2) @ right)
    assert Chosen(ast, target).uses(OptOps.STAGE) == 2


@pytest.mark.parametrize("rows", [29, 31, 24])
def test_few_columns_take_several_rows_at_a_time(rows: int) -> None:
    """29x32768x3 had a tile of one row, a chain of additions: nothing divides 29. The last tile overlaps another."""
    made = Chosen(matrices(rows, 1024, 3, (1024, 1, 3, 1)), replace(CACHES["AVX-512"], cores=1))
    assert math.prod(made.sizes(AxisType.UPCAST)) >= 3 * 8


@pytest.mark.parametrize(("depth", "most"), [(1024, 4), (1000, 12)])
def test_rows_of_a_tile_have_lines_in_the_first_cache(depth: int, most: int) -> None:
    """12x32768x2 took 0.80 ms, 12x32001x2 0.13: twelve rows at a stride of a power of two share a set of four lines."""
    target = replace(CACHES["NEON"], l1_bytes=1 << 16, l1_ways=4)
    made = Chosen(matrices(12, depth, 2, (32 * depth, 1, 2, 1)), target)
    assert made.sizes(AxisType.UPCAST) == [most, 2]


@pytest.mark.parametrize(("rows", "columns"), [(49, 2), (56, 3), (64, 2)])
def test_rows_and_parts_of_a_tile_have_lines_in_the_first_cache_together(rows: int, columns: int) -> None:
    """49x32768x2 took 1.1 ms, and 0.36 since: 7 rows at 128 KB in each of 8 parts at 4 KB share a set of 12 lines."""
    target = replace(CACHES["AVX-512"], cores=1, l1_bytes=48 << 10, l1_ways=12)
    made = Chosen(kernels_of(Tensor.empty(rows, 32768) @ Tensor.empty(32768, columns))[0], target)
    left = next(load for load in made.view.loads if memory_of(load).arg.size == rows * 32768)
    tiled = [loop for loop in made.view.of_kind(AxisType.UPCAST) if stride(left, loop) not in (None, 0, 1)]
    assert 1 < math.prod(map(size_of, tiled)) <= target.l1_ways


# ---------------------------------------------------------------- rows that a cache holds


def standardised(x: Tensor, axes: int | tuple[int, ...]) -> Tensor:
    return (x - x.mean(axes, keepdim=True)) / (x.var(axes, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize(("shape", "axes"), [((12, 50000), 1), ((2, 16, 181, 181), (0, 2, 3)), ((24, 43264), 1)])
def test_statistics_of_rows_that_a_cache_holds_are_one_kernel(shape: tuple[int, ...], axes: int) -> None:
    """Each was divided into parts, so three kernels read the values from memory: 0.31 ms for 12 rows, now 0.22."""
    assert len(kernels_of(standardised(Tensor.empty(*shape), axes))) == 1


@pytest.mark.parametrize("shape", [(20000, 16), (30000, 9)], ids=str)
def test_statistics_of_few_columns_are_shared_by_cores(shape: tuple[int, int]) -> None:
    """One kernel would have one task, all columns being lanes of a vector."""
    assert len(kernels_of(standardised(Tensor.empty(*shape), 0))) > 1


def test_several_rows_are_read_at_a_time_behind_a_short_sum() -> None:
    """The squares about a mean of 32 partial sums: 214 us for 4 MB, now 140."""
    _, squares, *_ = kernels_of(Tensor.empty(6, 43264).var(1))
    made = Chosen(squares, CACHES["AVX-512"])
    rows = [loop for loop in made.view.of_kind(AxisType.UPCAST) if loop not in made.view.reduce_axes]
    assert math.prod(map(size_of, rows)) >= 2


# ---------------------------------------------------------------- lookups behind sums


@pytest.mark.parametrize("shape", [(4, 21, 48, 48), (2, 5, 300)], ids=str)
def test_the_loss_of_every_pixel_is_computed_in_vectors(shape: tuple[int, ...]) -> None:
    """The logit of a pixel's class is loaded at a computed index, once for the sum over classes: without vectors
    4x21x48x48 took 1.8 ms, with vectors along pixels 0.49 (torch 0.95)."""
    labels = Tensor.empty(shape[0], *shape[2:], dtype=dtypes.int64)
    losses, *_ = kernels_of(Tensor.empty(*shape).cross_entropy(labels, reduction="none"))
    made = Chosen(losses, CACHES["NEON"])
    assert made.uses(OptOps.UPCAST) >= 1
    stores_vectors(made)


# ---------------------------------------------------------------- scatters


def scattered(rows: int, columns: int, dtype: type) -> tuple[Tensor, Tensor, Tensor]:
    random = np.random.default_rng(0)
    order = np.argsort(random.random((rows, columns)), axis=1).astype(dtype)
    order[1] -= columns  # negative indices count from the end
    values = (random.random((rows, columns), dtype=np.float32) for _ in range(2))
    table, source = (Tensor(value).realize() for value in values)
    return table, Tensor(order).realize(), source


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_term_of_a_scatter_has_one_branch_and_no_clamp(dtype: type) -> None:
    table, order, source = scattered(5, 70, dtype)
    made = table.scatter(1, order, source)
    (ast,) = kernels_of(made)
    text = render(lower(optimise(ast, cpu_target()), cpu_target()), "kernel")
    assert ".skipped:" in text
    assert not any(word in text for word in ("put", "llvm.smax", "llvm.smin"))
    expected = table.numpy()
    np.put_along_axis(expected, order.numpy() % 70, source.numpy(), 1)
    np.testing.assert_array_equal(made.numpy(), expected)


@pytest.mark.parametrize("bad", [70, -71, 1 << 40, -(1 << 63), (1 << 63) - 1])
def test_an_index_out_of_range_stores_nothing(bad: int) -> None:
    """Neither the term itself nor memory around the table, whatever the number, and the other terms are checked too."""
    table, order, source = scattered(5, 70, np.int64)
    numbers = order.numpy()
    numbers[3, 7] = bad
    with pytest.raises(IndexingError, match=str(bad)):
        table.scatter(1, Tensor(numbers), source).realize()


def test_sums_by_index_read_their_element_at_a_clamped_address() -> None:
    """Without a clamp and a mask they took longer: each term reads what an earlier one may have stored."""
    table, order, source = scattered(5, 70, np.int64)
    made = table.scatter_add(1, order, source)
    (ast,) = kernels_of(made)
    text = render(lower(optimise(ast, cpu_target()), cpu_target()), "kernel")
    assert "llvm.smin" in text
    expected = table.numpy()
    np.add.at(expected, (np.arange(5)[:, None], order.numpy() % 70), source.numpy())
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-6)


# ---------------------------------------------------------------- rows without divisors


@pytest.mark.parametrize(("channels", "side"), [(16, 181), (88, 77)])
def test_rows_without_divisors_are_not_padded_where_they_are_enough(channels: int, side: int) -> None:
    """Padded parts of a row of two channels divided to find the channel of each element, and so did parts that begin
    inside of a channel and end in another: 49 of 11 channels of 77 x 77."""
    x, weight = Tensor.empty(2, channels, side, side).contiguous(), Tensor.empty(channels)
    normalised = x.reshape(2, 8, -1).layernorm(-1, 1e-5).reshape(x.shape) * weight.reshape(1, -1, 1, 1)
    gradient = normalised.gradient(x, gradient=normalised.detach())[0]
    for ast in kernels_of(gradient):
        view = prepared(ast)
        assert all(stride(access, loop) is not None for access in view.accesses for loop in view.axes)


@pytest.mark.parametrize(("rows", "columns"), [(2, 9), (9, 2), (3, 10), (2, 15)])
def test_few_rows_and_columns_of_a_long_sum_are_dot_products(rows: int, columns: int) -> None:
    """The tile of least cost, 2 by 3 of 2 by 9, has too few accumulators: a larger one is taken, and nothing packed."""
    made = Chosen(matrices(rows, 8192, columns, (8192, 1, 1, 8192)), replace(LARGE_CACHES, cores=1))
    assert made.uses(OptOps.STAGE) == 0
    assert made.count(AxisType.UPCAST) >= 8 * 16


# ---------------------------------------------------------------- vectors along the rows of what is large


@pytest.mark.parametrize(("batch", "groups", "channels", "side"), [(5, 8, 5, 72), (2, 6, 12, 30)])
def test_sums_are_vectorised_along_pixels_and_not_along_channels(
    batch: int, groups: int, channels: int, side: int
) -> None:
    """Weights and biases have stride 1 along the channels: there are more of them than of the image, which was gathered
    element by element."""
    x = Tensor.empty(batch, groups * channels, side, side).contiguous().realize()
    weight, bias = (Tensor.empty(groups * channels).contiguous().realize().reshape(1, -1, 1, 1) for _ in range(2))
    made = x.reshape(batch, groups, -1).layernorm(-1, 1e-5).reshape(x.shape) * weight + bias
    for ast in kernels_of(*made.gradient(x, gradient=made.detach())):
        chosen = Chosen(ast, replace(LARGE_CACHES, cores=1))
        vectors = chosen.view.of_kind(AxisType.UPCAST)
        for load in chosen.view.loads:
            if len(load.ranges) > 3:
                assert max(size_of(axis) for axis in vectors if stride(load, axis) == 1) >= 16


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint8])
def test_classes_are_compared_in_the_dtype_of_the_result(dtype: type) -> None:
    """1000 of 1000 classes took 428 us with 32 bits, whose vectors are widened, and 330 with 64 bits."""
    labels = np.array([2, 0, 6, 5], dtype)
    made = Tensor(labels).one_hot(7)
    np.testing.assert_array_equal(made.numpy(), np.eye(7, dtype=np.int64)[labels.astype(np.int64)])
    (ast,) = kernels_of(Tensor.empty(4000, dtype="int64").contiguous().realize().one_hot(300))
    compared = [node for node in view_kernel(ast).nodes if node.op is Ops.CMPEQ]
    assert all(node.src[0].dtype is dtypes.int64 for node in compared)


@pytest.mark.parametrize(("batch", "is_fast"), [(1, False), (4, True)])
def test_a_tile_of_one_pixel_is_not_taken_for_a_fast_one(batch: int, is_fast: bool) -> None:
    """Rows and columns of a prime length leave one image a tile with too few accumulators."""
    images, weight = Tensor.empty(batch, 64, 61, 61), Tensor.empty(64, 64, 3, 3)
    (ast,) = kernels_of(images.contiguous().realize().conv2d(weight.contiguous().realize()))
    view = view_kernel(prepare_kernel(ast), replace(LARGE_CACHES, vector_bytes=16))
    windows = find_windows(view, 4)
    assert windows is not None
    assert (tile_speed(view, windows, 4) == 1) is is_fast


def test_a_matrix_that_is_read_in_place_has_no_masks() -> None:
    """Tiles of 12 columns do not fill 32768, and every load had a mask. The last one overlaps the one before."""
    left, right = Tensor.empty(14, 28, 12).contiguous().realize(), Tensor.empty(14, 12, 32768).contiguous().realize()
    (ast,) = kernels_of(left @ right)
    for cores in (1, 2):
        made = Chosen(ast, replace(LARGE_CACHES, cores=cores, vector_bytes=16))
        assert made.uses(OptOps.PADTO) == 0
        assert made.uses(OptOps.BLOCK) >= 1


@pytest.mark.parametrize(("masked_itemsizes", "is_vector"), [((), False), ((1, 2, 4, 8), True)])
def test_elements_at_loaded_indices_are_read_one_by_one_without_masks(
    masked_itemsizes: tuple[int, ...], is_vector: bool
) -> None:
    """Without masked accesses there are no gathers: a vector of addresses was taken apart lane by lane."""
    table, index = Tensor.empty(14, 3000).contiguous().realize(), Tensor.empty(14, 3000, dtype="int64")
    (ast,) = kernels_of(table.gather(1, index.contiguous().realize()))
    made = Chosen(ast, replace(LARGE_CACHES, masked_itemsizes=masked_itemsizes))
    assert (made.uses(OptOps.UPCAST) > 0) is is_vector


# ---------------------------------------------------------------- sorts of short rows


def test_ranks_are_counted_in_wide_vectors_and_inverted_in_one_pass() -> None:
    """Logic on vectors of booleans packs comparisons into bytes and unpacks them, in every pair of keys; and the
    position of each rank was searched among all ranks."""
    x = Tensor.empty(720, 43).contiguous().realize()
    _, ranks, order, _ = kernels_of(x.sort(1)[0])
    logic = [node for node in view_kernel(ranks).nodes if node.op in (Ops.AND, Ops.OR) and node.dtype.is_bool]
    assert not logic
    assert Chosen(order, replace(LARGE_CACHES, vector_bytes=16)).uses(OptOps.SCATTER) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 2, 9, 43, 64, 130])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "float32", "int64"])
def test_short_rows_are_sorted_stably(size: int, dtype: str) -> None:
    values = np.random.default_rng(size).integers(0, 12, (7, size)).astype(dtype)
    if dtype == "float32":
        values[values == 3] = np.nan
        values[values == 4] = -0.0
        values[values == 5] = -np.inf
    found = Tensor(values).sort(1)
    np.testing.assert_array_equal(found.indices.numpy(), np.argsort(values, axis=1, kind="stable"))
    np.testing.assert_array_equal(found.values.numpy(), np.sort(values, axis=1))


# ---------------------------------------------------------------- sums by index of short rows


@pytest.mark.parametrize("vectors", [4, 11])
def test_an_index_of_short_rows_is_computed_where_its_term_is_added(vectors: int) -> None:
    """An index that every output compares itself with is stored first. A loop over the terms computes it once."""
    width = vectors * cpu_target().lanes(dtypes.float32)
    x, values = Tensor.empty(1536, width), Tensor.empty(1536, width)
    index = Tensor.empty(1536, width, dtype="int64")
    tensors = [each.contiguous().realize() for each in (x, index, values)]
    assert len(kernels_of(tensors[0].scatter_add(1, *tensors[1:]))) == 1


@pytest.mark.parametrize("width", [3, 15, 16, 42])
def test_sums_by_index_of_short_rows(width: int) -> None:
    random = np.random.default_rng(width)
    x, values = random.integers(-9, 9, (2, 37, width)).astype(np.float32)
    index = random.integers(-width, width, (37, width))
    expected = x.copy()
    np.add.at(expected, (np.arange(37)[:, None], index), values)
    found = Tensor(x).scatter_add(1, Tensor(index), Tensor(values))
    np.testing.assert_array_equal(found.numpy(), expected)
    index[5, 2] = width
    with pytest.raises(IndexingError, match=f"index {width} is out of range"):
        Tensor(x).scatter_add(1, Tensor(index), Tensor(values)).numpy()


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(7, 16, 32768), (7, 64, 8192), (6533, 48, 5)])
def test_products_of_few_rows_or_columns_have_tasks_for_all_cores(
    rows: int, depth: int, columns: int, cores: int
) -> None:
    """Tiles of three columns overlapped at the end of the row, or no small number divided the tiles of rows, and one
    core did all of it."""
    target = replace(CACHES["NEON"], cores=cores)
    made = Chosen(matrices(rows, depth, columns, (depth, 1, 1, depth)), target)
    assert math.prod(size_of(axis) for axis in made.view.of_kind(AxisType.THREAD)) >= cores


# ---------------------------------------------------------------- two sums of the same arrays


def test_sums_in_two_stages_share_their_first_pass() -> None:
    """Between the first stages of two sums was the second stage of one, which kept them apart: the gradients of the
    weight and the bias of a normalisation each read the whole array."""
    values = np.random.default_rng(0).standard_normal((2, 12, 8, 105, 105), dtype=np.float32)
    x, y = (Tensor(each).realize() for each in values)
    totals = (x * y).sum((0, 2, 3)), (x + y).sum((0, 2, 3))
    sizes = [sum(access.src[0].arg.size for access in view_kernel(ast).accesses) for ast in kernels_of(*totals)]
    assert sum(size > x.numel() for size in sizes) == 1
    together = Tensor.stack(*totals).numpy()
    assert together[0].tobytes() == (x * y).sum((0, 2, 3)).numpy().tobytes()
    assert together[1].tobytes() == (x + y).sum((0, 2, 3)).numpy().tobytes()
    np.testing.assert_allclose(together[0], np.prod(values.astype(np.float64), 0).sum((0, 2, 3)), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("shape", [(23460, 52), (23460, 33), (9001, 64), (2, 9001, 40)], ids=str)
def test_counts_of_short_rows(shape: tuple[int, ...]) -> None:
    """A line of bools is more vectors of 64-bit counts than the row has: no loop was left to be spilled in (an error of
    the compiler's own)."""
    values = np.random.default_rng(4).standard_normal(shape) > 1
    assert np.array_equal(Tensor(values).sum(-2).numpy(), values.sum(-2))


# ---------------------------------------------------------------- functions of short rows


@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (15, 3), (33, 10), (1000, 17), (257, 130), (64, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_linear_layer_with_one_result_and_an_activation_is_right(rows: int, columns: int, dtype: str) -> None:
    random = np.random.default_rng(rows)
    x, w = (random.integers(-8, 9, shape).astype(np.float32) / 8 for shape in ((rows, columns), (1, columns)))
    made = (Tensor(x).cast(dtype) @ Tensor(w).cast(dtype).T + 0.125).tanh()
    expected = np.tanh(x @ w.T + 0.125)
    assert np.allclose(made.float().numpy(), expected, atol=4e-3 if dtype == "bfloat16" else 1e-6)

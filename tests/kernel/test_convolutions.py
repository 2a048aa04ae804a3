"""Convolutions whose lanes are channels: right for every instruction set on the emulator, right on this machine, and
cut as meant; the box that overlapping windows cover; and sums of products that are parted. The limit is low here, so
that small convolutions reach all of it. That it is fast is measured by bench/."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.fuzz.opts import Pair, check_pair
from tests.kernel.kernels import axis, load, param, store, summed
from tests.kernel.properties import opts_of
from tests.kernel.test_products import TARGETS, convolution, image_gradient, kernel, matrices, weight_gradient
from tests.kernel.test_transforms import check
from tilewright import Tensor
from tilewright.base.dtype import DType, dtypes
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates import convolution_sizes, convolution_windows, convolutions
from tilewright.kernel.templates.convolution_sizes import ChannelBlocks, SumBlock, choose_sum_block, choose_tile
from tilewright.kernel.templates.convolutions import CONVOLUTION
from tilewright.kernel.transforms.halo import find_sides
from tilewright.schedule.preparation.reduction import split_reduction


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "MIN_GAIN", float("-inf"))
    monkeypatch.setattr(convolutions, "SMALL_GAIN", float("-inf"))
    forget_kernels()


def padded(
    step: int = 1, gap: int = 1, channels: int = 20, dtype: DType = dtypes.float32, row: int = 11, rows: int = 9
) -> UOp:
    """Two images of 3 channels and 9 by 11 points with a border of 1, a bias and a residual."""
    height, width = (rows - 2 * gap + 1) // step + 1, (row - 2 * gap + 1) // step + 1
    n, f, y, x = axis(2, 0), axis(channels, 1), axis(height, 2), axis(width, 3)
    c, v, u = (axis(3, number, AxisType.REDUCE) for number in (4, 5, 6))
    down, across = y * step + v * gap, x * step + u * gap
    inside = (down >= 1) & (down < rows + 1) & (across >= 1) & (across < row + 1)
    where = (n * 3 + c) * (rows * row) + (down - 1) * row + (across - 1)
    image = UOp(Ops.LOAD, dtype, (UOp(Ops.INDEX, dtype, (param(1, 6 * rows * row, dtype), where, inside)),))
    weight = load(param(2, 27 * channels, dtype), f * 27 + c * 9 + v * 3 + u)
    count = 2 * channels * height * width
    place = n * (count // 2) + f * (height * width) + y * width + x
    total = summed(image.cast(dtypes.float32) * weight.cast(dtypes.float32), c, v, u)
    value = total + load(param(3, channels), f) + load(param(4, count), place)
    return kernel(store(param(0, count), place, value))


CONVOLUTIONS: dict[str, Callable[[], UOp]] = {
    "plain": convolution,
    "in steps of 2": lambda: convolution(2),
    "padded, no number divides": padded,
    "padded, in steps of 2": lambda: padded(step=2),
    "padded, with gaps": lambda: padded(gap=2),
    "padded, few channels": lambda: padded(channels=5),
    "padded, more channels than a block": lambda: padded(channels=96),
    "bfloat16": lambda: padded(dtype=dtypes.bfloat16),
    "padded, a prime row longer than a tile": lambda: padded(row=31, rows=3),
    "padded, such a row in steps of 2": lambda: padded(step=2, row=61, rows=4),
    "gradient of weights": weight_gradient,
    "gradient of images": image_gradient,
    "pixels by themselves": lambda: pixels(2, 7),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_on_the_emulator_for_every_instruction_set(name: str, target: str) -> None:
    ast = CONVOLUTIONS[name]()
    assert opts_of(CONVOLUTION, view_kernel(prepare_kernel(ast), TARGETS[target])) is not None
    assert check_pair(Pair(0, name, ast, None, TARGETS[target])) is None  # type: ignore[arg-type]


def small_opts(ast: UOp, gain: float, monkeypatch: pytest.MonkeyPatch) -> tuple[Opt, ...] | None:
    """What is chosen where every convolution gains little, and at least so much is wanted where rows are short."""
    monkeypatch.setattr(convolutions, "MIN_GAIN", float("inf"))
    monkeypatch.setattr(convolutions, "SMALL_GAIN", gain)
    return opts_of(CONVOLUTION, view_kernel(prepare_kernel(ast), TARGETS["AVX-512"]))


@pytest.mark.parametrize("name", ["plain", "padded, few channels", "gradient of weights", "gradient of images"])
def test_a_small_convolution_has_a_tile_of_one_vector(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "SHORT_ROWS", 0)
    ast = CONVOLUTIONS[name]()
    opts = small_opts(ast, float("-inf"), monkeypatch) or ()
    assert [opt.arg for opt in opts if opt.op is OptOps.UPCAST] == [16]
    check(ast, opts, ("CPU", "PYTHON"), seed=6)


def test_a_small_convolution_whose_rows_fill_vectors_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 8 pixels fill as much of vectors as 8 channels do, rows of 6 and a border far less than 96 channels."""
    assert small_opts(convolution(), float("-inf"), monkeypatch) is None
    short_rows = padded(step=2, channels=96)
    assert small_opts(short_rows, float("-inf"), monkeypatch) is not None
    assert small_opts(short_rows, float("inf"), monkeypatch) is None


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_on_this_machine(name: str) -> None:
    check(CONVOLUTIONS[name](), None, ("CPU",), seed=1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_vectorised_over_channels(name: str, target: str) -> None:
    """Pixels are scalars, channels a vector that the packed factor has stride 1 for; a tile is in registers."""
    large = replace(TARGETS[target], core_cache_bytes=1 << 20)
    sink = prepare_kernel(CONVOLUTIONS[name]())
    windows = convolution_windows.find_windows(view_kernel(sink, large), large.lanes(dtypes.float32))
    assert windows is not None
    for opt in opts_of(CONVOLUTION, view_kernel(sink, large)) or ():
        sink = apply_opt(sink, opt, large)
    view = view_kernel(sink, large)
    results = [axis for axis in view.reduces[0].ranges if axis.arg.kind.is_tile]
    (vector,) = (axis for axis in results if axis.arg.kind is AxisType.UPCAST)
    assert vector.arg.id[0] == windows.lanes.arg.id[0]
    lanes = large.lanes(dtypes.float32)
    assert size_of(vector) % lanes == 0
    vectors = math.prod(size_of(axis) for axis in results) // lanes
    assert vectors <= large.vector_registers - large.vector_registers // convolution_sizes.OPERAND_SHARE
    packed = [node.src[0] for node in view.nodes if node.op is Ops.LOAD and memory_of(node.src[0]).op is not Ops.PARAM]
    assert any(stride(access, vector) == 1 for access in packed)
    assert not any(stride(access, vector) for access in view.loads if memory_of(access) is memory_of(windows.image))


@pytest.mark.parametrize("channels", range(16, 129, 16))
def test_the_threshold_of_convolutions(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it ships: vectors over channels are chosen from a number of channels on, and for all that have more."""
    monkeypatch.undo()
    assert (convolutions.MIN_GAIN, convolutions.SMALL_GAIN) == (1 << 25, 1 << 23)

    def is_chosen(count: int) -> bool:
        image, weight = Tensor.empty(4, count, 30, 30), Tensor.empty(count, count, 3, 3)
        (item,) = image.conv2d(weight).schedule()
        assert item.ast is not None
        return opts_of(CONVOLUTION, view_kernel(prepare_kernel(item.ast), TARGETS["AVX-512"])) is not None

    assert not is_chosen(16)
    assert is_chosen(128)
    assert is_chosen(channels) <= is_chosen(channels + 16)


@pytest.mark.parametrize(
    ("step", "row", "expected"),
    [(1, 54, (1, 18)), (1, 14, (1, 14)), (1, 7, (2, 7)), (2, 28, (2, 7))],
    ids=["long", "whole", "short", "in steps of 2"],
)
def test_a_tile_goes_along_the_row(step: int, row: int, expected: tuple[int, int]) -> None:
    """Images and rows of them are tiled only where a row is too short: their elements lie apart. Windows that are apart
    share fewer elements, so that more lanes have to."""
    n, f, x = axis(8, 0), axis(64, 1), axis(row, 3)
    c, u = axis(32, 4, AxisType.REDUCE), axis(3, 5, AxisType.REDUCE)
    image, weight = (
        load(param(1, 1 << 20), n * 99999 + c * 200 + x * step + u),
        load(param(2, 1 << 20), f * 96 + c * 3 + u),
    )
    view = view_kernel(kernel(store(param(0, 1 << 20), n * (64 * row) + f * row + x, summed(image * weight, c, u))))
    found = convolution_windows.find_windows(view, 16)
    assert found is not None
    window = convolution_windows.find_window(view, found)
    tile = choose_tile(found, TARGETS["AVX-512"], 16, window, ChannelBlocks(1 << 10))
    assert (tile.vectors, tile.length, tile.height) == (*expected, 1)
    # Where each block copies the image, tiles are such that 4 vectors of channels, not 3, are one block.
    tile = choose_tile(found, TARGETS["AVX-512"], 16, window, ChannelBlocks(4, copy_cost=1.0))
    assert ChannelBlocks(4).length(-(-4 // tile.vectors), tile.vectors) * tile.vectors == 4


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["padded, a prime row longer than a tile", "padded, such a row in steps of 2"])
def test_a_prime_row_is_padded_to_whole_tiles(name: str, target: str) -> None:
    """The copy of the image has zeros for the windows past its end."""
    opts = opts_of(CONVOLUTION, view_kernel(prepare_kernel(CONVOLUTIONS[name]()), TARGETS[target])) or ()
    assert math.prod(opt.arg for opt in opts if opt.op is OptOps.UNROLL) > 3  # more than the window
    assert sum(opt.op is OptOps.STAGE for opt in opts) == 2


def pixels(images: int = 8, size: int = 49) -> UOp:
    """The gradient of images of which each pixel is multiplied alone, kept where a mask holds: 64 channels of 32."""
    n, c, x, f = axis(images, 0), axis(64, 1), axis(size, 2), axis(32, 3, AxisType.REDUCE)
    upstream = load(param(1, images * 32 * size), n * (32 * size) + f * size + x)
    total = summed(upstream * load(param(2, 2048), f * 64 + c), f)
    place = n * (64 * size) + c * size + x
    kept = (load(param(3, images * 64 * size), place) > 0.0).where(total, total.const_like(0))
    return kernel(store(param(0, images * 64 * size), place, kept))


def test_weights_that_lie_across_the_sum_are_not_turned_for_each_image() -> None:
    target = TARGETS["AVX-512"]
    opts = opts_of(CONVOLUTION, view_kernel(prepare_kernel(pixels()), target))
    assert opts is not None
    assert sum(opt.op is OptOps.STAGE for opt in opts) == 1
    check(pixels(2), opts=None, devices=("CPU",), seed=2)
    # One image turns them once; where its rows are long, that is little beside the products.
    found = convolution_windows.find_windows(view_kernel(prepare_kernel(pixels(1))), 16)
    assert found is None


def every_second_pixel(row: int, is_inside: bool = False) -> UOp:
    """Two images of 32 channels, every second pixel of which is multiplied alone: 20 channels of 32. `is_inside`: the
    channels of a pixel are neighbours."""
    n, f, y, x, c = axis(2, 0), axis(20, 1), axis(3, 2), axis(row, 3), axis(32, 4, AxisType.REDUCE)
    pixel = y * (4 * row) + x * 2
    where = n * (32 * 12 * row) + (pixel * 32 + c if is_inside else pixel + c * (12 * row))
    total = summed(load(param(1, 2 * 32 * 12 * row), where) * load(param(2, 640), f * 32 + c), c)
    return kernel(store(param(0, 2 * 20 * 3 * row), n * (20 * 3 * row) + f * (3 * row) + y * row + x, total))


def separate_windows(size: int) -> UOp:
    """Two images of 8 channels in windows that are as wide as they are apart, 5 in a row: 20 channels."""
    n, f, x, c = axis(2, 0), axis(20, 1), axis(5, 2), axis(8, 3, AxisType.REDUCE)
    u, v = axis(size, 4, AxisType.REDUCE), axis(size, 5, AxisType.REDUCE)
    image = load(param(1, 16 * size * 5 * size), (n * 8 + c) * (5 * size * size) + u * (5 * size) + x * size + v)
    weight = load(param(2, 20 * 8 * size * size), ((f * 8 + c) * size + u) * size + v)
    return kernel(store(param(0, 200), n * 100 + f * 5 + x, summed(image * weight, c, u, v)))


def test_channels_are_turned_into_lanes_where_pixels_and_the_sum_have_none() -> None:
    """Rows of 7 pixels leave most of 16 lanes empty and fill those of 8."""

    def is_window(ast: UOp, target: str) -> bool:
        return opts_of(CONVOLUTION, view_kernel(prepare_kernel(ast), TARGETS[target])) is not None

    assert [is_window(every_second_pixel(row), "AVX-512") for row in (7, 8)] == [True, False]
    assert [is_window(every_second_pixel(row), "AVX2") for row in (3, 7)] == [True, False]
    assert not is_window(every_second_pixel(7, is_inside=True), "AVX-512")
    # A row of a window is lanes where it fills half a vector.
    assert [is_window(separate_windows(size), "AVX-512") for size in (3, 8)] == [True, False]
    assert check_pair(Pair(0, "windows", separate_windows(3), None, TARGETS["AVX-512"])) is None  # type: ignore[arg-type]
    for row, target in ((7, "AVX-512"), (3, "AVX2")):
        assert check_pair(Pair(0, "short rows", every_second_pixel(row), None, TARGETS[target])) is None  # type: ignore[arg-type]
    check(every_second_pixel(3), None, ("CPU",), seed=7)


def test_nothing_is_computed_of_the_border_of_a_gradient() -> None:
    """Also where the gradient is stored because several others need it."""
    image, weight = Tensor.empty(2, 3, 8, 8), Tensor.empty(4, 3, 3, 3)
    gradient = image.conv2d(weight, padding=1).sum().gradient(image)[0]
    sums = [node for node in toposort(gradient.uop) if node.op is Ops.REDUCE_AXIS]
    assert math.prod(sums[-1].shape) == 2 * 3 * 8 * 8


def test_the_gradient_of_windows_that_are_apart_is_vectors_of_pixels() -> None:
    """What each place in the window gives is stored, then summed: both kernels go along the pixels of a row."""
    image, weight = Tensor.ones(2, 3, 64, 64), Tensor.ones(4, 3, 3, 3)
    gradient = image.realize().conv2d(weight.realize(), stride=2, padding=1).sum().gradient(image)[0]
    sums = [node for node in toposort(gradient.uop) if node.op is Ops.REDUCE_AXIS]
    assert sums[0].shape[-4:] == (3, 3, 32, 32)
    # The middle of an image is in one window or in two, along each axis, by turns.
    expected = np.outer([2, 1] * 32, [2, 1] * 32)[::-1, ::-1] * 4
    np.testing.assert_array_equal(gradient.numpy()[1, 2, :-1, :-1], expected[:-1, :-1])


def test_only_a_border_makes_a_copy_of_the_image() -> None:
    def copies(ast: UOp) -> int:
        opts = opts_of(CONVOLUTION, view_kernel(prepare_kernel(ast), TARGETS["AVX-512"])) or ()
        return sum(opt.op is OptOps.STAGE for opt in opts)

    assert (copies(convolution()), copies(padded())) == (1, 2)


def wide_gradient(channels: int) -> UOp:
    """The gradient of a row of 28 pixels, of windows of 3, whose channels lie a page apart."""
    c, x, y = axis(16, 0), axis(28, 2), axis(4, 1)
    u, f = axis(3, 3, AxisType.REDUCE), axis(channels, 4, AxisType.REDUCE)
    inside = (x >= u) & (x < u + 26)
    place = UOp(Ops.INDEX, dtypes.float32, (param(1, channels * 1024), f * 1024 + y * 26 + (x - u), inside))
    product = UOp(Ops.LOAD, dtypes.float32, (place,)) * load(param(2, channels * 48), f * 48 + c * 3 + u)
    total = summed(product, f)
    value = summed(inside.where(total, total.const_like(0)), u)
    return kernel(store(param(0, 16 * 112), c * 112 + y * 28 + x, value))


def test_a_sum_that_comes_through_many_pages_reads_a_copy() -> None:
    target = replace(TARGETS["AVX-512"], core_cache_bytes=1 << 20)

    def copies(channels: int) -> int:
        opts = opts_of(CONVOLUTION, view_kernel(prepare_kernel(wide_gradient(channels)), target)) or ()
        return sum(opt.op is OptOps.STAGE for opt in opts)

    assert (copies(63), copies(64)) == (1, 2)
    check(wide_gradient(64), None, ("CPU",), seed=5)


def test_what_gains_little_or_has_no_windows_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS["AVX-512"]
    product = view_kernel(prepare_kernel(matrices(24, 10, 64, (10, 1, 64, 1))), target)
    assert opts_of(CONVOLUTION, product) is None
    bytes_of = view_kernel(prepare_kernel(padded(dtype=dtypes.int8)), target)
    assert opts_of(CONVOLUTION, bytes_of) is None
    monkeypatch.undo()
    assert opts_of(CONVOLUTION, view_kernel(prepare_kernel(convolution()), target)) is None


# ---------------------------------------------------------------- sums in blocks


def long_weight_gradient(step: int = 1, channels: int = 40) -> UOp:
    """Of two images of 3 channels and 8 by 8 points with a border of 1, windows of 3 by 3."""
    size = (8 - 1) // step + 1
    f, c, v, u = axis(channels, 0), axis(3, 1), axis(3, 2), axis(3, 3)
    n, y, x = axis(2, 4, AxisType.REDUCE), axis(size, 5, AxisType.REDUCE), axis(size, 6, AxisType.REDUCE)
    down, across = y * step + v, x * step + u
    inside = (down >= 1) & (down < 9) & (across >= 1) & (across < 9)
    place = UOp(Ops.INDEX, dtypes.float32, (param(1, 384), n * 192 + c * 64 + (down - 1) * 8 + across - 1, inside))
    count = channels * size * size
    grown = load(param(2, 2 * count), n * count + f * (size * size) + y * size + x)
    product = UOp(Ops.LOAD, dtypes.float32, (place,)) * grown
    return kernel(store(param(0, channels * 27), f * 27 + c * 9 + v * 3 + u, summed(product, n, y, x)))


LONG_SUMS: dict[str, Callable[[], UOp]] = {
    "gradient of weights": long_weight_gradient,
    "in steps of 2": lambda: long_weight_gradient(2, 40),
    "channels of two vectors": lambda: long_weight_gradient(channels=32),
    "many channels of the image": lambda: padded(channels=96),
}


def opts_with_a_small_cache(ast: UOp, target: str, cores: int) -> tuple[Opt, ...]:
    large = TARGETS[target]
    small = replace(large, core_cache_bytes=48 * large.vector_bytes, cores=cores)
    return opts_of(CONVOLUTION, view_kernel(prepare_kernel(ast), small)) or ()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LONG_SUMS)
def test_a_sum_that_no_cache_holds_waits_in_memory(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_sizes, "MIN_WINDOW_BLOCK", 1)
    ast = LONG_SUMS[name]()
    opts = opts_with_a_small_cache(ast, target, 2)
    assert sum(opt.op is OptOps.SPILL for opt in opts) == 1
    check(ast, opts, ("CPU", "PYTHON") if target == "AVX-512" else ("PYTHON",), seed=4)


def test_sums_do_not_wait_where_the_cores_could_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one vector of channels nor three sums, of which each core would have one, or none."""
    monkeypatch.setattr(convolution_sizes, "MIN_WINDOW_BLOCK", 1)
    opts = opts_with_a_small_cache(long_weight_gradient(channels=16), "AVX-512", 2)
    assert OptOps.SPILL not in [opt.op for opt in opts]
    assert Opt(OptOps.THREAD, 0, 3) in opts


@pytest.mark.parametrize("name", LONG_SUMS)
def test_the_blocks_of_a_sum_do_not_depend_on_the_cores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_sizes, "MIN_WINDOW_BLOCK", 1)
    ast = LONG_SUMS[name]()

    def order(cores: int) -> list[list[int]]:
        """The lengths of the loops of the sum that pass outside of those of the results, and of those inside."""
        sink = prepare_kernel(ast)
        for opt in opts_with_a_small_cache(ast, "AVX-512", cores):
            if opt.op is OptOps.SPILL:
                loops = [size_of(loop) for loop in view_kernel(sink).of_kind(AxisType.REDUCE)]
                return [loops[: opt.arg], loops[opt.arg :]]
            sink = apply_opt(sink, opt)
        raise AssertionError("no sum waits")

    assert [order(cores) for cores in (1, 2, 3, 16, 64)] == [order(2)] * 5


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ((8, 28, 28), 1024, (0, 1, 1)),
        ((8, 28, 28), 2000, (0, 2, 1)),
        ((8, 112, 112), 1024, (1, 8, 2)),
        ((8, 7, 1000), 300, (2, 250, 3)),
        ((8, 7, 7), 392, None),
        ((8, 7, 97), 90, None),
    ],
    ids=str,
)
def test_a_block_is_the_largest_that_fits(
    sizes: tuple[int, ...], most: int, expected: tuple[int, int, int] | None
) -> None:
    """The number of the loop that is cut, by how much, and how many pass outside. One step of 97 is too short."""
    loops = [axis(size, number, AxisType.REDUCE) for number, size in enumerate(sizes)]
    want = None if expected is None else SumBlock(loops[expected[0]], *expected[1:])
    assert choose_sum_block(loops, most) == want


# ---------------------------------------------------------------- boxes


def windows(step: int, mask: Callable[[UOp, UOp], UOp] | None) -> tuple[list[UOp], UOp]:
    """The axes and the place of windows of 3 over a row of 10, in 4 rows."""
    y, x, u = axis(4, 0), axis(8, 1), axis(3, 2, AxisType.REDUCE)
    position = y * 10 + x * step + u
    masks = () if mask is None else (mask(x, u),)
    return [y, x, u], UOp(Ops.INDEX, dtypes.float32, (param(0, 100), position, *masks))


def test_each_element_of_overlapping_windows_is_once_in_a_box() -> None:
    tile, place = windows(1, None)
    sides = find_sides(tile, place)
    assert sides is not None
    assert [(side.unit, side.length, side.before) for side in sides] == [(10, 4, 0), (1, 10, 0)]
    tile, place = windows(1, lambda x, u: (x + u >= 1) & (x + u < 9))
    sides = find_sides(tile, place)
    assert sides is not None
    assert [(side.unit, side.length) for side in sides] == [(10, 4), (1, 10)]


def test_what_walks_backwards_begins_before_its_first_element() -> None:
    x, u = axis(8, 0), axis(3, 1, AxisType.REDUCE)
    place = UOp(Ops.INDEX, dtypes.float32, (param(0, 100), x - u + 2))
    sides = find_sides([x, u], place)
    assert sides is not None
    assert [(side.length, side.before) for side in sides] == [(10, 2)]


def test_windows_with_gaps_at_another_stride_are_a_box() -> None:
    x, u = axis(8, 0), axis(5, 1, AxisType.REDUCE)
    position = x * 3 + u * 2
    place = UOp(Ops.INDEX, dtypes.float32, (param(0, 100), position - 4, (position >= 4) & (position < 30)))
    sides = find_sides([x, u], place)
    assert sides is not None
    assert [(side.unit, side.length) for side in sides] == [(1, 30)]
    moves = sides[0].unit_move
    assert sum(moves[each] * step for each, step in sides[0].steps.items()) == 1
    few = UOp(Ops.INDEX, dtypes.float32, (param(0, 100), x * 7 + u * 5, x * 7 + u * 5 < 60))
    assert find_sides([x, u], few) is None  # most of the box would never be read


def test_there_is_no_box_where_nothing_overlaps_or_a_mask_counts_otherwise() -> None:
    assert find_sides(*windows(3, None)) is None
    assert find_sides(*windows(1, lambda x, u: x < 7)) is None
    assert find_sides(*windows(1, lambda x, u: x + u * 2 < 9)) is None


# ---------------------------------------------------------------- parts of sums


def test_the_gradient_of_weights_is_summed_in_parts_and_a_matrix_product_is_not() -> None:
    image, weight, grown = Tensor.empty(64, 8, 14, 14), Tensor.empty(16, 8, 3, 3), Tensor.empty(64, 16, 12, 12)
    node = (image.conv2d(weight) * grown).sum().gradient(weight)[0].uop
    while node.op is not Ops.REDUCE_AXIS:
        node = node.src[0]
    split = split_reduction(node)
    assert split is not None
    assert split.shape == node.shape
    # 9216 terms: eight parts of 1152, each eight images.
    assert split.src[0].src[0].shape[:2] == (8, 1)
    product = (Tensor.empty(64, 9216) @ Tensor.empty(9216, 64)).uop
    while product.op is not Ops.REDUCE_AXIS:
        product = product.src[0]
    assert split_reduction(product) is None


@pytest.mark.parametrize("padding", [0, 1])
def test_a_convolution_and_its_gradients_beside_numpy(padding: int) -> None:
    numbers = np.random.default_rng(3)
    image, weight = numbers.integers(-4, 5, (16, 8, 17, 17)), numbers.integers(-4, 5, (16, 8, 3, 3))
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    wide = np.pad(image, around)
    across = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    want = np.einsum("nchwvu,fcvu->nfhw", across, weight)
    grown = numbers.integers(-4, 5, want.shape)
    x, w = (Tensor(data.astype(np.float32)).realize() for data in (image, weight))
    np.testing.assert_array_equal(x.conv2d(w, padding=padding).numpy(), want)
    over_image, over_weight = (x.conv2d(w, padding=padding) * Tensor(grown.astype(np.float32))).sum().gradient(x, w)
    np.testing.assert_array_equal(over_weight.numpy(), np.einsum("nfhw,nchwvu->fcvu", grown, across))
    back = np.zeros_like(wide)
    for v in range(3):
        for u in range(3):
            height, width = want.shape[2:]
            back[:, :, v : v + height, u : u + width] += np.einsum("nfhw,fc->nchw", grown, weight[:, :, v, u])
    end = wide.shape[2] - padding
    np.testing.assert_array_equal(over_image.numpy(), back[:, :, padding:end, padding:end])

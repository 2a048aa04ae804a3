"""Products with few rows and very many columns on a device with work-groups: convolutions to the channels of an image,
transposed ones, long sequences. Values on the emulator, with the choice that a card would make; and that a thread has
all rows, adjacent threads adjacent columns."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor, dtypes
from tilewright.backends.cuda.device import cuda_target
from tilewright.base.dtype import DType
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program

Function = Callable[..., Tensor]


def threads_of(program: Program) -> int:
    return math.prod(axis.vmax + 1 for axis in program.local_ranges)


def groups_of(program: Program) -> int:
    return math.prod(axis.vmax + 1 for axis in program.global_ranges)


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Function]] = {
    "to 3 channels": ((1, 6, 20, 36), (3, 6, 3, 3), lambda x, w: x.conv2d(w, padding=1)),
    "transposed to 4": ((1, 5, 20, 36), (5, 4, 3, 3), lambda x, w: x.conv_transpose2d(w, padding=1)),
    "dilated, rows that nothing divides": ((1, 3, 25, 41), (2, 3, 3, 3), lambda x, w: x.conv2d(w, dilation=2)),
    "a long sequence of odd length": ((1, 4, 4099), (2, 4, 7), lambda x, w: x.conv2d(w, padding=3)),
    "strided windows": ((1, 4, 40, 75), (2, 4, 5, 5), lambda x, w: x.conv2d(w, stride=2, padding=2)),
    "two groups": ((1, 6, 18, 40), (4, 3, 3, 3), lambda x, w: x.conv2d(w, padding=1, groups=2)),
    "to one channel": ((1, 6, 20, 36), (1, 6, 3, 3), lambda x, w: x.conv2d(w, padding=1)),
    "strided windows to one channel": ((2, 4, 41, 75), (1, 4, 5, 5), lambda x, w: x.conv2d(w, stride=2)),
    "a channel each": ((1, 6, 21, 40), (6, 1, 3, 3), lambda x, w: x.conv2d(w, padding=1, groups=6)),
    "channels last": (
        (1, 4, 20, 36),
        (8, 4, 3, 3),
        lambda x, w: x.conv2d(w, padding=1).permute(0, 2, 3, 1).contiguous(),
    ),
    "a channel each, channels last": (
        (1, 64, 7, 9),
        (64, 1, 3, 3),
        lambda x, w: (
            x.permute(0, 2, 3, 1)
            .contiguous()
            .permute(0, 3, 1, 2)
            .conv2d(w, padding=1, groups=64)
            .permute(0, 2, 3, 1)
            .contiguous()
        ),
    ),
    "16 rows": ((1, 3, 20, 36), (16, 3, 1, 1), lambda x, w: x.conv2d(w)),
    "followed by more": ((2, 4, 12, 34), (3, 4, 3, 3), lambda x, w: x.conv2d(w, padding=1).relu() + 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_thread_has_all_rows_of_a_few_columns(name: str, dtype: DType) -> None:
    image, weight, way = CASES[name]
    random = np.random.default_rng(1)
    given = [random.integers(-1, 2, shape).astype(np.float32) for shape in (image, weight)]
    expected = way(*(Tensor(array) for array in given)).numpy()
    with emulated_card(cores=1) as card:
        found = way(*(Tensor(array, device=NAME).cast(dtype).contiguous().realize() for array in given))
        np.testing.assert_array_equal(found.float().numpy(), expected)
        product = next(program for program in card.programs if program.name.startswith("reduce"))
    groups = image[1] // weight[1]
    rows = weight[1] if name.startswith("transposed") else weight[0] // groups
    assert threads_of(product) >= 32
    # Columns are padded to whole work-groups, by less than half.
    assert threads_of(product) * groups_of(product) * rows <= 1.5 * expected.size


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_strided_window_is_no_row_that_threads_share(stride: int) -> None:
    """Adjacent threads read all of the lines that they touch, also where a window begins 3 elements after another."""
    with emulated_card(cores=132) as card:
        x = Tensor(np.ones((1, 16, 30, 101), np.float32), device=NAME)
        weight = Tensor(np.ones((1, 16, 5, 5), np.float32), device=NAME)
        assert x.conv2d(weight, stride=stride).numpy().max() == 16 * 25
        assert all(threads_of(program) >= 32 for program in card.programs)


def test_a_window_is_no_row_that_threads_share() -> None:
    """A sum over 3x3x64 has a unit stride along 3 elements: as a row it would be shared by one thread."""
    with emulated_card(cores=132) as card:
        x = Tensor(np.ones((1, 64, 8, 40), np.float32), device=NAME)
        weight = Tensor(np.ones((17, 64, 3, 3), np.float32), device=NAME)
        assert x.conv2d(weight, padding=1).numpy().max() == 64 * 9
        assert all(threads_of(program) >= 32 for program in card.programs)


@pytest.mark.parametrize("target", [2, 3])
def test_the_gradient_of_an_adaptive_pool_has_a_thread_for_each_element(target: int) -> None:
    """Its sums have a few terms each and are shared by whole windows of outputs: storing those takes the time."""
    random = np.random.default_rng(2)
    x, slope = random.standard_normal((2, 3, 24, 30)), random.standard_normal((2, 3, target, target))

    def gradient(device: str) -> np.ndarray:
        image, given = (Tensor(array.astype(np.float32), device=device) for array in (x, slope))
        return image.adaptive_avg_pool2d(target).gradient(image, gradient=given)[0].numpy()

    expected = gradient("CPU")
    with emulated_card(cores=1) as card:
        np.testing.assert_allclose(gradient(NAME), expected, rtol=1e-5, atol=1e-6)
        largest = max(card.programs, key=lambda program: threads_of(program) * groups_of(program))
        assert threads_of(largest) * groups_of(largest) >= x.size // 8


TAPS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Function]] = {
    "to 2 channels": ((2, 40, 9, 11), (2, 40, 3, 3), lambda x, w: x.conv2d(w, padding=(1, 0), dilation=(1, 2))),
    "transposed": ((1, 24, 7, 8), (24, 2, 3, 4), lambda x, w: x.conv_transpose2d(w, padding=1)),
    "transposed with a stride": ((1, 20, 6, 5), (20, 3, 4, 4), lambda x, w: x.conv_transpose2d(w, stride=2, padding=1)),
    "a sequence": ((3, 16, 31), (2, 16, 5), lambda x, w: x.conv2d(w, padding=2).relu()),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", TAPS)
def test_few_taps_of_many_channels_are_one_matrix_product(name: str, dtype: DType) -> None:
    """Every pixel times all taps, summed over the channels; then the sums of the windows. No kernel loads all channels
    of a window for a result."""
    image, weight, way = TAPS[name]
    random = np.random.default_rng(2)
    given = [random.integers(-1, 2, shape).astype(np.float32) for shape in (image, weight)]

    def results(*tensors: Tensor) -> list[Tensor]:
        result = way(*tensors)
        return [result, *result.float().sum().gradient(*tensors)]

    expected = [found.numpy() for found in results(*(Tensor(array) for array in given))]
    cores = cuda_target().tensor_cores
    with emulated_card(cores=1, launch_clocks=0.0, tensor_cores=cores) as card:
        placed = [Tensor(array, device=NAME).cast(dtype).contiguous().realize() for array in given]
        found = way(*placed).realize()
        summed = [
            math.prod(axis.vmax + 1 for axis in node.ranges if axis.arg.kind is AxisType.REDUCE)
            for program in card.programs
            for node in program.body
            if node.op is Ops.LOAD
        ]
        assert max(summed) <= image[1]
        for ours, wanted in zip([found, *results(*placed)[1:]], expected, strict=True):
            np.testing.assert_array_equal(ours.float().numpy(), wanted)


def test_a_factor_of_one_number_has_no_order() -> None:
    """The slope of a sum is one number, broadcast: it has no axis that could be the last in memory."""
    x, weight = (np.ones(shape, np.float32) for shape in ((3, 29, 8, 7), (29, 2, 1, 2)))
    cores = cuda_target().tensor_cores
    with emulated_card(cores=1, launch_clocks=0.0, tensor_cores=cores):
        image, taps = Tensor(x, device=NAME), Tensor(weight, device=NAME)
        (slope,) = image.conv_transpose2d(taps, dilation=2).sum().gradient(image)
        np.testing.assert_array_equal(slope.numpy(), np.full(x.shape, 4, np.float32))

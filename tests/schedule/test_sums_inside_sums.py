"""Long sums of products that another reduction reads: on a card they are stored, by a kernel with tensor cores, and in
the order of what is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor, Variable, dtypes
from tilewright.backends.cuda.cores import warp_group_core
from tilewright.backends.cuda.device import cuda_target
from tilewright.base.dtype import DType
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import stride, view_kernel
from tilewright.schedule.pipeline import schedule
from tools.slow_kernels import estimate

CARD = cuda_target()
BF16 = dtypes.bfloat16
MANY_TERMS = 1 << 24


def empty(*shape: int, dtype: DType = BF16) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype)


def planned(values: Sequence[Tensor]) -> list[UOp]:
    bound = BoundGraph([value.uop for value in values])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda _: CARD)
    return [item.ast for item in made.items if item.ast is not None]


def product() -> Tensor:
    return empty(1024, 512) @ empty(512, 1536)


def enlarged_slope() -> Tensor:
    """The gradient of an image that is enlarged before a convolution."""
    image = empty(16, 64, 23, 31)
    large = image.interpolate(size=(46, 62), mode="nearest").conv2d(empty(96, 64, 3, 3), padding=1)
    return large.gradient(image, gradient=empty(*large.shape))[0]


def shared_heads_slope() -> Tensor:
    """The gradient of keys that several heads of queries share."""
    queries, keys = empty(2, 24, 320, 64), empty(2, 8, 320, 64)
    scores = queries @ keys.repeat_interleave(3, 1).transpose(-1, -2)
    return scores.gradient(keys, gradient=empty(*scores.shape))[0]


PROGRAMS: dict[str, Callable[[], Tensor]] = {
    "maximum of adjacent": lambda: product().reshape(1024, 512, 3).max(-1),
    "maximum of columns": lambda: product().reshape(1024, 3, 512).max(1),
    "sum of adjacent": lambda: product().reshape(1024, 512, 3).sum(-1),
    "sum of rows": lambda: product().reshape(256, 4, 1536).sum(1),
    "pooled": lambda: empty(16, 64, 44, 36).conv2d(empty(96, 64, 3, 3), padding=1).max_pool2d(2),
    "averaged": lambda: empty(16, 64, 44, 36).conv2d(empty(96, 64, 3, 3), padding=1).avg_pool2d(2),
    "enlarged, gradient": enlarged_slope,
    "shared heads, gradient": shared_heads_slope,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_long_sum_of_products_is_computed_by_tensor_cores(name: str) -> None:
    """Each sum was rounded, or a maximum taken of them, inside one kernel without tensor cores: three such kernels took
    17 of 37 ms of the step of a diffusion model."""
    found = [estimate(ast, CARD) for ast in planned([PROGRAMS[name]()])]
    assert any(each.is_tensor for each in found)
    slow = [each for each in found if not each.is_tensor and each.terms >= MANY_TERMS]
    assert not slow, [(each.name, each.opts, each.terms) for each in slow]


def strided_network(batch: int, channels: int, height: int, width: int, kernel: int, stride: int) -> list[Tensor]:
    """The gradients of a convolution with a stride and of one before it, beside a branch with the same stride."""
    image = empty(batch, height, width, channels).permute(0, 3, 1, 2)
    before, inside, beside = (empty(channels, channels, *sides) for sides in ((1, 1), (kernel, kernel), (1, 1)))
    x = image.conv2d(before).relu()
    y = x.conv2d(inside, stride=stride, padding=kernel // 2).relu().conv2d(beside)
    z = x.conv2d(beside, stride=stride)
    loss = (y + z).float().square().mean()
    return loss.gradient(before, inside, beside)


@pytest.mark.parametrize("shape", [(16, 128, 56, 56, 3, 2), (8, 192, 33, 47, 5, 2), (8, 64, 60, 60, 5, 3)], ids=str)
def test_columns_of_strided_windows_are_stored_in_the_order_of_the_image(shape: tuple[int, ...]) -> None:
    """Sums for each tap were stored with pixels last, and read with channels last: 8.7 of 28 ms of a Conformer's step
    for one such kernel."""
    _, channels, height, _, kernel, step = shape
    rows = (height + 2 * (kernel // 2) - kernel) // step + 1
    columns = []
    for ast in planned(strided_network(*shape)):
        stores = [store for store in view_kernel(ast, CARD).stores if store.dtype is dtypes.float32]
        for store in stores:
            sizes = [size_of(axis) for axis in store.ranges]
            if sizes.count(kernel) == 2 and rows in sizes:
                columns.append({size_of(axis): stride(store, axis) for axis in store.ranges})
    assert columns
    for steps in columns:
        assert steps[channels] == 1


@pytest.mark.parametrize("stride", [2, 3])
def test_gradients_of_strided_windows_are_the_same(stride: int) -> None:
    generator = np.random.default_rng(6)
    shapes = (3, 16, 11, 10), (16, 16, 1, 1), (8, 16, 3, 3)
    arrays = [generator.integers(-1, 2, shape).astype(np.float32) for shape in shapes]
    found: dict[str, list[np.ndarray]] = {}
    with emulated_card(tensor_cores=(warp_group_core(BF16, 64, 64),)):
        for device in ("CPU", NAME):
            image, first, second = (Tensor(array, device=device).cast(BF16).realize() for array in arrays)
            y = image.conv2d(first).relu().conv2d(second, stride=stride, padding=1)
            found[device] = [each.float().numpy() for each in y.float().sum().gradient(image, first, second)]
    for got, want in zip(found[NAME], found["CPU"], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["max", "sum"])
def test_reductions_of_products_have_their_values(op: str) -> None:
    generator = np.random.default_rng(7)
    left, right = (generator.integers(-2, 3, shape).astype(np.float32) for shape in ((40, 24), (24, 36)))
    with emulated_card():
        for dtype in ("float32", "bfloat16"):
            a, b = (Tensor(array, device=NAME).cast(dtype).realize() for array in (left, right))
            for shape, axis in (((40, 12, 3), -1), ((40, 3, 12), 1), ((10, 4, 36), 1)):
                found = getattr((a @ b).reshape(shape), op)(axis).float().numpy()
                np.testing.assert_array_equal(found, getattr((left @ right).reshape(shape), op)(axis))


@pytest.mark.parametrize("length", [5, 9])
def test_sums_over_a_symbolic_axis_have_their_values(length: int) -> None:
    generator = np.random.default_rng(8)
    left, right = (generator.integers(-2, 3, shape).astype(np.float32) for shape in ((2, 64, 16), (16, 24)))
    size = Variable("n", 1, 64).bind(length)
    with emulated_card(tensor_cores=(warp_group_core(BF16, 64, 64),)):
        x, w = (Tensor(array, device=NAME).cast(BF16).realize() for array in (left, right))
        y = x[:, :size].relu() @ w
        wanted = np.maximum(left[:, :length], 0) @ right
        np.testing.assert_array_equal((y.sum(1) + y.max(1)).float().numpy(), wanted.sum(1) + wanted.max(1))
        squares = (x[:, :size].transpose(1, 2) @ x[:, :size]).float().numpy()
        np.testing.assert_array_equal(squares, left[:, :length].transpose(0, 2, 1) @ left[:, :length])

"""Convolutions of images whose channels are last in memory, on a CPU: values, and that they have the same tiles as
those whose channels are first. As products of packed panels they masked every element that they read: 18 ms, now 8."""

from __future__ import annotations

import numpy as np
import pytest

from tests.machines import target_of
from tilewright import Tensor
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.ops import AxisType
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import optimise
from tilewright.schedule.pipeline import schedule

Sizes = tuple[int, int, int, int, int]


def convolved(image: Tensor, weight: Tensor, **options: int) -> Tensor:
    return image.permute(0, 3, 1, 2).conv2d(weight, **options).permute(0, 2, 3, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((2, 13, 17, 9, 3), {"padding": 1}),
        ((1, 8, 24, 32, 3), {"padding": 1, "stride": 2}),
        ((2, 19, 11, 18, 5), {"padding": 2}),
        ((1, 7, 31, 20, 3), {"dilation": 2}),
        ((3, 12, 10, 12, 3), {"padding": 1, "groups": 3}),
        ((1, 3, 40, 33, 7), {"padding": 3, "stride": 3}),
        ((1, 5, 1, 6, 1), {}),
    ],
    ids=str,
)
def test_values_and_gradients(sizes: Sizes, options: dict[str, int]) -> None:
    """Beside the same convolution of a copy with the channels first."""
    batch, channels, side, outputs, kernel = sizes
    numbers = np.random.default_rng(11)
    image = numbers.integers(-3, 4, (batch, side, side + 2, channels)).astype(np.float32)
    weight = numbers.integers(-3, 4, (outputs, channels // options.get("groups", 1), kernel, kernel)).astype(np.float32)
    x, w = Tensor(image), Tensor(weight)
    first, w_first = Tensor(image.transpose(0, 3, 1, 2).copy()), Tensor(weight)
    y, wanted = convolved(x, w, **options), first.conv2d(w_first, **options)
    slope = numbers.integers(-2, 3, y.shape).astype(np.float32)
    found = y.gradient(x, w, gradient=Tensor(slope))
    given = Tensor(slope.transpose(0, 3, 1, 2).copy())
    found_first = wanted.gradient(first, w_first, gradient=given)
    np.testing.assert_array_equal(y.contiguous().numpy(), wanted.numpy().transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(found[0].numpy(), found_first[0].numpy().transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(found[1].numpy(), found_first[1].numpy())


@pytest.mark.parametrize("machine", ["skylake-avx512", "haswell", "neoverse-n1"])
@pytest.mark.parametrize("sizes", [(4, 32, 29, 64, 3), (2, 48, 40, 40, 5), (8, 3, 64, 32, 3)], ids=str)
def test_channels_are_vectors_and_pixels_a_tile(sizes: Sizes, machine: str) -> None:
    batch, channels, side, outputs, kernel = sizes
    target = target_of(machine)
    image, weight = Tensor.empty(batch, side, side, channels), Tensor.empty(outputs, channels, kernel, kernel)
    bound = BoundGraph([convolved(image, weight, padding=kernel // 2).contiguous().uop])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda _: target)
    (ast,) = [item.ast for item in made.items if item.ast is not None]
    (store,) = view_kernel(optimise(ast, target), target).stores
    kinds = {axis.arg.kind: stride(store, axis) for axis in store.ranges}
    assert kinds[AxisType.UPCAST] == 1
    assert kinds[AxisType.UNROLL] == outputs

"""Adaptive pools in a jitted function: their windows are computed in the graph, so that a call is replayed. Host data
would have the function traced again at every call, and a warning, which is an error here."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.computed import computed
from tilewright import Tensor, jit
from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort


def windows(size: int, wanted: int) -> list[slice]:
    return [slice(k * size // wanted, -(-(k + 1) * size // wanted)) for k in range(wanted)]


@pytest.mark.parametrize("shape", [(3, 64, 40, 64), (16, 10, 45, 69), (2, 3, 5, 6, 9)], ids=str)
def test_images_are_averaged_in_the_order_of_memory(shape: tuple[int, ...]) -> None:
    """Windows along an axis that is not the last were a product with the permuted image: 3x64x40x64 to 3x3 took three
    times as long as torch's."""
    pool = "adaptive_avg_pool2d" if len(shape) == 4 else "adaptive_avg_pool3d"
    means = getattr(Tensor.empty(*shape), pool)(7)
    first, *_ = (node for node in toposort(means.uop) if node.op is Ops.REDUCE_AXIS)
    assert means.shape == (*shape[:2], *(7,) * (len(shape) - 2))
    assert [size for size in first.shape if size > 1][-1] == math.prod(shape[3:])


@pytest.mark.parametrize(("height", "width", "wanted"), [(9, 7, 4), (5, 11, 3), (2, 3, 7)])
def test_adaptive_pools_are_replayed(height: int, width: int, wanted: int) -> None:
    @jit
    def pools(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.adaptive_avg_pool2d(wanted)
        gradient = mean.square().sum().gradient(x)[0].realize()
        return mean.realize(), x.adaptive_max_pool2d(wanted).realize(), gradient

    generator = np.random.default_rng(height)
    for _ in range(4):
        image = generator.standard_normal((2, 3, height, width)).astype(np.float32)
        mean, greatest, gradient = computed(pools(Tensor(image).realize()))
        expected = np.zeros_like(image)
        for i, rows in enumerate(windows(height, wanted)):
            for j, columns in enumerate(windows(width, wanted)):
                part = image[:, :, rows, columns]
                average = part.mean((2, 3))
                np.testing.assert_allclose(mean[:, :, i, j], average, rtol=1e-5, atol=1e-6)
                np.testing.assert_array_equal(greatest[:, :, i, j], part.max((2, 3)))
                share = 2 * average / (part.shape[2] * part.shape[3])
                expected[:, :, rows, columns] += share[:, :, None, None]
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)

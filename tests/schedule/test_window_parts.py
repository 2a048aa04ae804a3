"""Gradients of the weights of depthwise convolutions on a card: sums in parts, whose threads have several taps of one
channel each. With a work-group for each tap, a step of ConvNeXt spent 2.6 of 9.3 ms on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor
from tilewright.backends.cuda.device import cuda_target
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import optimise
from tilewright.schedule.pipeline import schedule
from tilewright.schedule.preparation import window_parts
from tilewright.schedule.preparation.window_parts import windows_in_parts

CARD = cuda_target()
Sizes = tuple[int, int, int, int, int]


def slope_of_weights(sizes: Sizes, **options: int) -> Tensor:
    batch, channels, height, width, kernel = sizes
    image, weight = Tensor.empty(batch, height, width, channels), Tensor.empty(channels, 1, kernel, kernel)
    y = image.permute(0, 3, 1, 2).conv2d(weight, groups=channels, padding=kernel // 2, **options)
    upstream = Tensor.empty(batch, *y.shape[2:], channels).permute(0, 3, 1, 2)
    return y.gradient(weight, gradient=upstream)[0]


@pytest.mark.parametrize("sizes", [(32, 96, 56, 56, 7), (16, 384, 14, 14, 7), (8, 200, 27, 36, 5), (24, 64, 40, 30, 3)])
def test_a_thread_has_several_taps_of_a_channel(sizes: Sizes) -> None:
    bound = BoundGraph([slope_of_weights(sizes).uop])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda _: CARD)
    asts = [item.ast for item in made.items if item.ast is not None]
    views = [view_kernel(optimise(ast, CARD), CARD) for ast in asts]
    windows = max(views, key=lambda view: max((len(node.src[0].ranges) for node in view.reduces), default=0))
    threads = [axis for axis in windows.axes if axis.arg.kind in (AxisType.GLOBAL, AxisType.LOCAL)]
    assert np.prod([size_of(axis) for axis in threads]) >= 128 * CARD.cores
    adjacent = [axis for axis in threads if axis.arg.kind is AxisType.LOCAL]
    for access in windows.accesses:
        assert any(stride(access, axis) == 1 for axis in adjacent)
    assert any(axis.arg.kind is AxisType.UPCAST and size_of(axis) == sizes[-1] for axis in windows.axes)


@pytest.mark.parametrize(
    "value",
    [
        lambda: slope_of_weights((32, 8, 56, 56, 7)),  # few channels
        lambda: slope_of_weights((1, 64, 9, 9, 3)),  # short sums
        lambda: slope_of_weights((2, 40000, 40, 30, 3)),  # threads enough without parts
        lambda: (Tensor.empty(32, 56, 56, 96) * Tensor.empty(32, 56, 56, 96)).sum((0, 1, 2)),
        lambda: (Tensor.empty(32, 1, 56, 96) * Tensor.empty(1, 56, 56, 96)).sum((0, 1)),
        lambda: Tensor.empty(512, 512).T @ Tensor.empty(512, 512),
    ],
)
def test_other_sums_stay(value: Callable[[], Tensor]) -> None:
    for node in toposort(value().uop):
        if node.op is Ops.REDUCE_AXIS:
            assert windows_in_parts(node, CARD) is None


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 2}])
def test_the_sum_of_the_parts_is_the_sum(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_parts, "MIN_TERMS", 2)
    monkeypatch.setattr(window_parts, "MIN_CHANNELS", 2)
    numbers = np.random.default_rng(3)
    bound = BoundGraph([slope_of_weights((4, 6, 8, 9, 3), **options).uop])
    (total,) = [node for node in toposort(*bound.outputs) if node.op is Ops.REDUCE_AXIS]
    split = windows_in_parts(total, replace(CARD, cores=64))
    assert split is not None
    assert split.shape == total.shape
    leaves = [node for node in toposort(total) if node.op is Ops.PARAM]
    values = {leaf: numbers.integers(-4, 5, leaf.shape).astype(np.float32) for leaf in leaves}
    whole, parts = (evaluate_all((each,), values)[0] for each in (total, split))
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_on_a_card_are_those_of_the_host(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_parts, "MIN_TERMS", 4)
    numbers = np.random.default_rng(5)
    shapes = (3, 7, 10, 32), (32, 1, 3, 3), (3, 7, 10, 32)
    arrays = [numbers.integers(-2, 3, shape).astype(np.float32) for shape in shapes]
    found = []
    with emulated_card():
        for device in ("CPU", NAME):
            image, weight, slope = (Tensor(array, device=device).cast(dtype).realize() for array in arrays)
            y = image.permute(0, 3, 1, 2).conv2d(weight, groups=32, padding=1)
            given = slope.permute(0, 3, 1, 2)
            found.append([each.float().numpy() for each in y.gradient(weight, image, gradient=given)])
    for want, got in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)

"""Weights of each channel are stored in the order of the images that they multiply: adjacent threads load adjacent
weights. With channels last, each thread of a depthwise convolution loaded its weight from a line of its own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tests.machines import target_of
from tilewright import Tensor, dtypes
from tilewright.backends.cuda.cores import warp_group_core
from tilewright.backends.cuda.device import cuda_target
from tilewright.base.target import Target
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import optimise
from tilewright.schedule.fusion import small_factors
from tilewright.schedule.fusion.small_factors import order_small_factors
from tilewright.schedule.pipeline import schedule

CARD = cuda_target()


def channels_last(batch: int, channels: int, height: int, width: int) -> Tensor:
    return Tensor.empty(batch, height, width, channels, dtype=dtypes.bfloat16).permute(0, 3, 1, 2)


def depthwise(image: Tensor, kernel: int, **options: int) -> Tensor:
    channels = image.shape[1]
    return image.conv2d(
        Tensor.empty(channels, 1, kernel, kernel, dtype=dtypes.bfloat16),
        groups=channels,
        padding=kernel // 2,
        **options,
    )


def stored_orders(value: Tensor, target: Target = CARD) -> list[tuple[int, ...]]:
    bound = BoundGraph([value.uop])
    nodes = toposort(*order_small_factors(bound.outputs, lambda _node: target))
    stored = [node.src[0] for node in nodes if node.op is Ops.CONTIGUOUS and node.src[0].op is Ops.PERMUTE]
    return [node.arg for node in stored]


@pytest.mark.parametrize(
    ("shape", "kernel", "options"),
    [((8, 384, 14, 14), 7, {}), ((4, 96, 57, 43), 5, {}), ((16, 130, 31, 29), 3, {"dilation": 2})],
)
def test_adjacent_threads_load_adjacent_weights(
    shape: tuple[int, int, int, int], kernel: int, options: dict[str, int]
) -> None:
    bound = BoundGraph([depthwise(channels_last(*shape), kernel, **options).permute(0, 2, 3, 1).contiguous().uop])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda _: CARD)
    asts = [item.ast for item in made.items if item.ast is not None]
    (sums,) = [ast for ast in asts if view_kernel(ast, CARD).reduces]
    view = view_kernel(optimise(sums, CARD), CARD)
    channels = [axis for axis in view.axes if any(stride(store, axis) == 1 for store in view.stores)]
    assert channels
    for load in view.loads:
        assert any(stride(load, axis) == 1 for axis in channels)


@pytest.mark.parametrize(
    "value",
    [
        lambda: depthwise(Tensor.empty(8, 384, 14, 14, dtype=dtypes.bfloat16), 7),  # pixels are contiguous
        lambda: depthwise(channels_last(1, 16, 9, 9), 3),  # too few products
        lambda: channels_last(8, 384, 14, 14) * Tensor.empty(1, 384, 1, 1, dtype=dtypes.bfloat16),  # in order
        lambda: channels_last(8, 384, 14, 14) * 2,
        lambda: Tensor.empty(512, 512) @ Tensor.empty(512, 512),
        lambda: Tensor.empty(0, 64, 3, 3).conv2d(Tensor.empty(64, 1, 3, 3), groups=64),
    ],
)
def test_what_is_in_order_stays(value: object) -> None:
    assert stored_orders(value()) == []  # type: ignore[operator]


def test_weights_are_stored_with_channels_last() -> None:
    assert stored_orders(depthwise(channels_last(8, 384, 14, 14), 7)) == [(1, 2, 3, 0)]


@pytest.mark.parametrize("machine", ["skylake-avx512", "neoverse-n1"])
def test_a_core_has_such_weights_where_results_have_channels_last_too(machine: str) -> None:
    """Else it reads a transposed copy of the image. With channels last, vectors of weights were gathered: 25 ms."""
    target, weight = target_of(machine), Tensor.empty(64, 1, 3, 3)
    y = Tensor.empty(8, 27, 28, 64).permute(0, 3, 1, 2).conv2d(weight, Tensor.empty(64), groups=64, padding=1)
    assert stored_orders(y.relu(), target) == []
    result = (0, 2, 3, 1)
    orders = stored_orders(y.relu().permute(result).contiguous(), target)
    assert len(orders) == 2
    assert result in orders


def test_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_factors, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(small_factors, "MIN_READS", 1)
    generator = np.random.default_rng(8)
    image, weight = (generator.integers(-4, 5, shape).astype(np.float32) for shape in ((2, 6, 7, 12), (12, 1, 3, 3)))
    bound = BoundGraph([Tensor(image).permute(0, 3, 1, 2).conv2d(Tensor(weight), groups=12, padding=1).uop])
    ordered = order_small_factors(bound.outputs, lambda _node: CARD)
    assert ordered[0] is not bound.outputs[0]
    leaves = [node for node in toposort(*bound.outputs) if node.op is Ops.PARAM]
    arrays = {leaf: generator.integers(-4, 5, leaf.shape).astype(np.float32) for leaf in leaves}
    wanted, found = (evaluate(root, arrays) for root in (bound.outputs[0], ordered[0]))
    np.testing.assert_array_equal(found, wanted)


def test_gradients_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_factors, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(small_factors, "MIN_READS", 1)
    generator = np.random.default_rng(9)
    image, weight, slope = (
        generator.integers(-2, 3, shape).astype(np.float32) for shape in ((2, 5, 6, 9), (9, 1, 3, 3), (2, 9, 5, 6))
    )
    found = []
    with emulated_card(tensor_cores=(warp_group_core(dtypes.bfloat16, 64, 64),)):
        for device in ("CPU", NAME):
            x, w, s = (Tensor(array, device=device) for array in (image, weight, slope))
            y = x.permute(0, 3, 1, 2).conv2d(w, groups=9, padding=1)
            gradients = (y * s).sum().gradient(x, w)
            found.append([each.numpy() for each in (y, *gradients)])
    for want, got in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)

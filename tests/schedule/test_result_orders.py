"""Values between products have the order of the operands: results, what is computed from them, and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tilewright import Tensor, dtypes
from tilewright.backends.cuda.device import cuda_target
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.interpreter.numpy_math import cast_array
from tilewright.graph.ops import Ops
from tilewright.graph.spec import element_count
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import consumers, toposort
from tilewright.kernel.axes import stride, view_kernel
from tilewright.schedule.fusion import result_orders
from tilewright.schedule.fusion.operand_order import order_operands
from tilewright.schedule.pipeline import schedule

BF16 = dtypes.bfloat16
CARD = cuda_target()
IMAGES = (16, 32, 48, 40)
LARGE = 1 << 19


def empty(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=BF16)


def norm(x: Tensor) -> Tensor:
    wide = x.float()
    away = wide - wide.mean(axis=(0, 2, 3), keepdim=True)
    return (away / (away.square().mean(axis=(0, 2, 3), keepdim=True) + 1e-5).sqrt()).cast(x.dtype)


def block(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Convolution, batch normalisation and ReLU for each of the weights, and a sum with the first result."""
    first = x = norm(x.conv2d(weights[0], padding=1)).relu()
    for weight in weights[1:]:
        x = norm(x.conv2d(weight, padding=1)).relu()
    return x + first


def channel_norm(x: Tensor, weights: list[Tensor]) -> Tensor:
    """A convolution, then a linear layer on normalised pixels, whose order is that of a permuted view."""
    pixels = x.conv2d(weights[0], padding=1).permute(0, 2, 3, 1)
    return (pixels - pixels.mean(axis=3, keepdim=True)) @ weights[1]


def depthwise(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Windows of each channel between two convolutions: the second of these asks for channels last."""
    first, middle, last = weights
    wide = norm(x.conv2d(first, padding=1)).relu()
    wide = norm(wide.conv2d(middle, padding=2, groups=middle.shape[0])).relu()
    return wide.conv2d(last, padding=1)


SHAPES: dict[str, tuple[Callable[[Tensor, list[Tensor]], Tensor], list[tuple[int, ...]]]] = {
    "batch normalisation": (block, [(64, 32, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3)]),
    "layer normalisation of pixels": (channel_norm, [(64, 32, 3, 3), (64, 128)]),
    "depthwise convolution": (depthwise, [(64, 32, 3, 3), (64, 1, 5, 5), (64, 64, 3, 3)]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_no_kernel_reads_in_one_order_and_stores_in_another(name: str) -> None:
    function, shapes = SHAPES[name]
    x, weights = empty(*IMAGES), [empty(*shape) for shape in shapes]
    loss = function(x, weights).float().square().mean()
    bound = BoundGraph([slope.uop for slope in loss.gradient(*weights)])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda _: CARD)
    looked_at = 0
    for item in made.items:
        assert item.ast is not None
        view = view_kernel(item.ast, CARD)
        large = [each for each in view.accesses if element_count(tuple(loop.vmax + 1 for loop in each.ranges)) >= LARGE]
        stored = {loop for each in view.stores if each in large for loop in view.axes if stride(each, loop) == 1}
        for load in large:
            # What comes from outside is in its own order, and copied once. A factor without the columns of a result
            # is the same for all of them.
            if load in view.stores or not stored & load.ranges or memory_of(load).arg.size == math.prod(IMAGES):
                continue
            looked_at += 1
            assert any(stride(load, loop) == 1 for loop in stored | view.reduce_axes), item.ast.arg.name
    assert looked_at > 0


@pytest.mark.parametrize("name", SHAPES)
def test_values_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_orders, "MIN_RESULT", 16)
    monkeypatch.setattr(result_orders, "MIN_PER_WEIGHT", 1)
    function, shapes = SHAPES[name]
    x, weights = empty(3, 32, 5, 6), [empty(*shape) for shape in shapes]
    result = function(x, weights).float()
    gradients = result.square().sum().gradient(weights[0])
    outputs = [result.uop, gradients[0].uop]
    bound = BoundGraph(outputs)
    ordered = order_operands(bound.outputs, lambda _: CARD, copies_inputs=False)
    assert contiguous(ordered) > contiguous(bound.outputs)
    generator = np.random.default_rng(3)
    leaves = [node for node in toposort(*bound.outputs) if node.op is Ops.PARAM]
    values = {leaf: cast_array(generator.integers(-4, 5, element_count(leaf.shape)), leaf.dtype) for leaf in leaves}
    for plain, moved in zip(*(evaluate_all(tuple(each), values) for each in (bound.outputs, ordered)), strict=True):
        np.testing.assert_array_equal(plain, moved)


def contiguous(outputs: Sequence[UOp]) -> int:
    return sum(node.op is Ops.CONTIGUOUS for node in toposort(*outputs))


def test_only_windows_of_channels_pass_an_order_on() -> None:
    """A product with few weights has no axis of both factors that is not summed."""
    x, kernel = empty(64, 128, 24, 24).relu(), empty(128, 1, 5, 5)
    cases = {
        "depthwise": (x.conv2d(kernel, padding=2, groups=128), 1),
        "strided": (x.conv2d(kernel, stride=2, padding=2, groups=128), 1),
        "few channels": (x[:, :32].conv2d(empty(32, 32, 1, 1)), 0),
        "scores": (x.flatten(2) @ x.flatten(2).transpose(1, 2), 0),
    }
    for name, (value, count) in cases.items():
        nodes = toposort(*BoundGraph([value.uop]).outputs)
        assert len(result_orders.find_windows(nodes, consumers(nodes)).bases) == count, name


def test_weights_are_copied_for_an_image_that_has_its_channels_last() -> None:
    """Both were contiguous along what is summed, each along another loop of it."""
    image = empty(8, 14, 14, 32).permute(0, 3, 1, 2)
    bound = BoundGraph([image.conv2d(empty(64, 32, 3, 3), padding=1).uop])
    (copied,) = [node for node in toposort(*order_operands(bound.outputs, lambda _: CARD)) if node.op is Ops.CONTIGUOUS]
    assert copied.shape == (64, 3, 3, 32)

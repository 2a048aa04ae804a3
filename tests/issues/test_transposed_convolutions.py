"""A transposed convolution with a stride was one convolution of the input with zeros between its elements: its loops
divided positions by the stride, no template matched it, and its gradients took fifty times as long as torch's. It is as
many ordinary convolutions as it has phases. Values and gradients for odd sizes, and what its kernels compute."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.machines import target_of
from tests.ops.rows_windows import conv_transpose
from tests.schedule.graphs import DEVICE, Graph
from tilewright import Tensor, dtypes
from tilewright.base.dtype import DType
from tilewright.engine.execution.realize import schedule
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.tensor.families.networks import convolution, tap_products
from tilewright.tensor.families.networks.phases import phases_of
from tilewright.tensor.families.networks.tap_products import is_less_by_taps

# The input (batch, in, *space), the weight (in, out, *kernel), and the options.
CASES = {
    "the stride divides the kernel": ((2, 3, 4, 5), (3, 2, 4, 4), {"stride": 2, "padding": 1}),
    "it does not": ((2, 3, 4, 5), (3, 2, 3, 5), {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)}),
    "a kernel shorter than the stride": ((1, 2, 4), (2, 3, 2), {"stride": 5, "output_padding": 4}),
    "a single pixel": ((2, 5, 1, 1), (5, 3, 4, 3), {"stride": (1, 2)}),
    "a single row": ((2, 3, 1, 6), (3, 2, 3, 3), {"stride": 2, "dilation": (3, 1)}),
    "dilation without common divisor": ((1, 2, 5, 4), (2, 2, 3, 4), {"stride": (2, 3), "dilation": (3, 2)}),
    "dilation with a common divisor": ((1, 2, 5, 4), (2, 2, 3, 2), {"stride": (4, 2), "dilation": (2, 4)}),
    "groups": ((2, 6, 3, 4), (6, 2, 3, 4), {"stride": 2, "groups": 3, "padding": 1}),
    "three axes": ((1, 2, 2, 3, 2), (2, 2, 3, 2, 4), {"stride": (2, 2, 3)}),
    "without stride": ((1, 2, 5, 4), (2, 3, 3, 2), {"padding": 1}),
}


def scattered(x: np.ndarray, w: np.ndarray, upstream: np.ndarray, options: dict[str, object]) -> list[np.ndarray]:
    """Gradients: the function is linear in each argument, so that they are its values at unit arguments."""
    found = []
    for number, array in enumerate((x, w)):
        gradient = np.zeros(array.shape)
        for place in np.ndindex(*array.shape):
            unit = np.zeros(array.shape)
            unit[place] = 1
            gradient[place] = np.sum(upstream * conv_transpose(*((unit, w) if number == 0 else (x, unit)), **options))
        found.append(gradient)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["as chosen", "stored products", "products in registers"])
def test_values_and_gradients(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "as chosen":
        monkeypatch.setattr(convolution, "is_less_by_taps", lambda *given: True)
        monkeypatch.setattr(tap_products, "is_summed_in_registers", lambda *given: way == "products in registers")
    shape, kernel, options = CASES[name]
    numbers = np.random.default_rng(0)
    x, w = numbers.integers(-4, 5, shape).astype(np.float32), numbers.integers(-4, 5, kernel).astype(np.float32)
    ours = Tensor(x, requires_grad=True), Tensor(w, requires_grad=True)
    result = ours[0].conv_transpose2d(ours[1], **options)
    expected = conv_transpose(x, w, **options)
    np.testing.assert_array_equal(result.numpy(), expected)
    upstream = numbers.integers(-2, 3, expected.shape).astype(np.float32)
    gradients = (result * Tensor(upstream)).sum().gradient(*ours)
    for got, wanted in zip(gradients, scattered(x, w, upstream, options), strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_an_infinite_element_reaches_its_own_window_only() -> None:
    """Phases have different numbers of taps: none is filled up with zeros, which times infinity are NaN."""
    x = np.ones((1, 1, 4), np.float32)
    x[0, 0, 1] = np.inf
    got = Tensor(x).conv_transpose2d(Tensor.ones(1, 1, 3), stride=2).numpy()
    np.testing.assert_array_equal(np.isfinite(got[0, 0]), [place not in (2, 3, 4) for place in range(9)])
    assert not np.isnan(got).any()


@pytest.mark.parametrize("is_stored", [False, True])
def test_infinite_taps_reach_their_own_results_only(is_stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tap is multiplied by the zeros around the image, as none is in torch: infinity times 0 is NaN."""
    monkeypatch.setattr(convolution, "is_less_by_taps", lambda *given: True)
    monkeypatch.setattr(tap_products, "is_summed_in_registers", lambda *given: not is_stored)
    w = np.ones((1, 1, 3), np.float32)
    w[0, 0, 2] = np.inf
    got = Tensor.ones(1, 1, 4).conv_transpose2d(Tensor(w), dilation=2).numpy()
    np.testing.assert_array_equal(got[0, 0], [1, 1, 2, 2, np.inf, np.inf, np.inf, np.inf])


# The input, the weight of the convolution (outputs, inputs / groups, *kernel), groups, dilation and padding.
BY_TAPS = {
    "most terms are on the border": ((7, 114, 13, 14), (16, 114, 7, 7), 1, 2, 12),
    "few outputs of many channels": ((1, 112, 58, 65), (10, 112, 7, 7), 1, 1, 3),
}
BY_WINDOWS = {
    "a short sum": ((1, 4, 100, 100), (16, 4, 7, 7), 1, 1, 3),
    "a narrow border": ((1, 64, 56, 56), (64, 64, 3, 3), 1, 1, 1),
    "depthwise": ((8, 128, 7, 7), (128, 1, 3, 3), 128, 2, 4),
    "a single tap": ((1, 64, 9, 9), (3, 64, 1, 1), 1, 1, 0),
    "products of many megabytes": ((8, 112, 512, 512), (10, 112, 7, 7), 1, 1, 3),
}


@pytest.mark.parametrize("name", [*BY_TAPS, *BY_WINDOWS])
@pytest.mark.parametrize("machine", ["skylake-avx512", "haswell"])
def test_taps_take_the_place_of_windows_where_these_multiply_zeros(name: str, machine: str) -> None:
    """7x7 at dilation 2 over 13x14 pixels multiplied 3.6 zeros for each pixel: 0.3 of torch's speed."""
    image, taps, groups, gap, padding = (BY_TAPS | BY_WINDOWS)[name]
    target, pads = target_of(machine), [(padding, padding)] * 2
    assert is_less_by_taps(image, taps, groups, (gap, gap), pads, dtypes.float32, target) is (name in BY_TAPS)


def test_phases_have_every_product_once() -> None:
    for size, taps, step, gap in itertools.product(range(5), range(1, 7), range(1, 6), range(1, 5)):
        phases = phases_of(size, taps, step, gap, (0, 1))
        assert sum(chosen.taps * (chosen.stop - chosen.start) for chosen in phases.classes) == taps


@pytest.mark.parametrize(("taps", "step", "padding"), [(7, 1, 3), (4, 2, 1), (5, 2, 2), (3, 1, 2), (6, 3, 3)])
def test_rows_that_the_padding_removes_are_not_computed(taps: int, step: int, padding: int) -> None:
    """All 15x21 results of a window of 7 were computed for an image of 9x15, and 9x15 of them kept. A phase computes
    at most a row more than it keeps, since phases of one convolution begin in different rows."""
    size = 8
    stop = (size - 1) * step + taps - padding
    phases = phases_of(size, taps, step, 1, (padding, stop))
    rows = -(-stop // step) - padding // step
    for chosen in phases.classes:
        first, last = phases.computed(chosen)
        assert last - first <= rows
        before, after = phases.around(chosen)
        assert size + before + after - (chosen.taps - 1) * phases.gap == last - first


@pytest.mark.parametrize("name", ["the stride divides the kernel", "it does not", "groups", "a single pixel"])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_kernels_are_ordinary_contractions(name: str, with_gradients: bool) -> None:
    """No sum divides a position, and no product with a zero between elements is computed."""
    shape, kernel, options = CASES[name]
    graph = Graph()
    x, w = graph.tensor(*shape), graph.tensor(*kernel)
    result = x.conv_transpose2d(w, **options)
    asked = (result * result.detach()).sum().gradient(x, w) if with_gradients else (result,)
    sums = [item.ast for item in schedule([each.uop for each in asked], DEVICE).items if is_sum(item.ast)]
    assert sums
    for ast in sums:
        view = view_kernel(prepare_kernel(ast))
        loads = [access for access in view.accesses if access.ranges & view.reduce_axes]
        assert not [node for access in loads for node in toposort(access.src[1]) if node.op in (Ops.MOD, Ops.IDIV)]
        assert all(stride(access, axis) is not None for access in loads for axis in view.axes)
    if not with_gradients:
        products = sum(math.prod(size_of(axis) for axis in view_kernel(ast).axes) for ast in sums)
        spread = math.prod(shape[2:]) * math.prod(kernel[2:])
        # Rows of a phase are longer than the input by its taps, less one.
        assert products <= 4 * shape[0] * shape[1] // options.get("groups", 1) * result.shape[1] * spread


@pytest.mark.parametrize("outputs", [3, 16])
def test_products_with_the_border_are_not_computed(outputs: int) -> None:
    """Products of pixels, whether they are stored or not: 33x33 windows of 7x7 elements would be five times as many."""
    graph = Graph()
    x, w = graph.tensor(1, 96, 9, 9), graph.tensor(96, outputs, 7, 7)
    result = x.conv_transpose2d(w, dilation=4)
    sums = [item.ast for item in schedule([result.uop], DEVICE).items if is_sum(item.ast)]
    products = max(math.prod(size_of(axis) for axis in view_kernel(ast).axes) for ast in sums)
    assert products == math.prod((9, 9, 96, outputs, 7, 7))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float16], ids=str)
@pytest.mark.parametrize("groups", [1, 24])
def test_gradients_of_the_border_are_not_computed(dtype: DType, groups: int) -> None:
    """In 16 bits the sum is rounded before it is cut to the image: a ConvNeXt computed gradients of 20x20 elements for
    images of 14x14."""
    graph = Graph()
    x, weight = (graph.tensor(*shape).cast(dtype) for shape in ((2, 24, 14, 14), (24, 24 // groups, 7, 7)))
    (node,) = (slope.uop for slope in x.conv2d(weight, padding=3, groups=groups).gradient(x, gradient=x))
    while node.op is not Ops.REDUCE_AXIS:
        assert node.op is not Ops.SHRINK
        (node,) = node.src
    assert math.prod(node.shape) == math.prod(x.shape)


def is_sum(ast: UOp | None) -> bool:
    return ast is not None and any(node.op is Ops.REDUCE for node in toposort(ast))

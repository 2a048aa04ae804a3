"""Convolutions of small images with large windows multiplied the zeros around the image: 7x7 at dilation 2 over 13x13
pixels took 1.8 times as long as torch. Values and gradients of products of pixels with taps, and when they are used."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.issues.test_transposed_convolutions import is_sum
from tests.issues.test_window_cliffs import correlated, whole_numbers
from tests.machines import target_of
from tests.schedule.graphs import DEVICE, Graph
from tilewright import Tensor, dtypes
from tilewright.engine.execution.realize import schedule
from tilewright.graph.records import OptOps
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import optimise
from tilewright.tensor.families.networks import convolution, tap_products
from tilewright.tensor.families.networks.tap_products import is_less_by_taps, terms_of


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["stored products", "products in registers"])
@pytest.mark.parametrize(
    ("shape", "outputs", "window", "gap", "padding"),
    [((2, 3, 5, 4), 4, 3, 1, 1), ((1, 2, 6, 5), 3, 3, 2, 2), ((2, 2, 4, 7), 2, 2, 3, 3), ((1, 3, 5, 5), 2, 5, 1, 4)],
)
def test_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, way: str, shape: tuple[int, ...], outputs: int, window: int, gap: int, padding: int
) -> None:
    monkeypatch.setattr(convolution, "is_less_by_taps", lambda *given: True)
    monkeypatch.setattr(tap_products, "is_summed_in_registers", lambda *given: way == "products in registers")
    random = np.random.default_rng(1)
    x, w = whole_numbers(random, *shape), whole_numbers(random, outputs, shape[1], window, window)
    ours = Tensor(x, requires_grad=True), Tensor(w, requires_grad=True)
    result = ours[0].conv2d(ours[1], dilation=gap, padding=padding)
    expected = correlated(x, w, 1, gap, padding)
    np.testing.assert_array_equal(result.numpy(), expected)
    upstream = whole_numbers(random, *expected.shape)
    of_image, of_taps = (result * Tensor(upstream)).sum().gradient(*ours)
    wide = np.zeros((*shape[:2], *(size + 2 * padding for size in shape[2:])), np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows, columns = expected.shape[2:]
    for u, v in itertools.product(range(window), repeat=2):
        part = np.s_[:, :, u * gap : u * gap + rows, v * gap : v * gap + columns]
        wide[part] += np.einsum("nohw,oc->nchw", upstream, w[:, :, u, v])
        np.testing.assert_array_equal(of_taps.numpy()[:, :, u, v], np.einsum("nohw,nchw->oc", upstream, padded[part]))
    inside = np.s_[:, :, padding : padding + shape[2], padding : padding + shape[3]]
    np.testing.assert_array_equal(of_image.numpy(), wide[inside])


def test_infinite_taps_reach_their_own_results_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinity times a zero around the image is NaN, and no term of the sum."""
    monkeypatch.setattr(convolution, "is_less_by_taps", lambda *given: True)
    w = np.ones((1, 1, 3), np.float32)
    w[0, 0, 0] = np.inf
    got = Tensor.ones(1, 1, 4).conv2d(Tensor(w), padding=1).numpy()
    np.testing.assert_array_equal(got[0, 0], [2, np.inf, np.inf, np.inf])


def test_terms_are_counted() -> None:
    for size, taps, gap, before, after in itertools.product((1, 4, 7), (1, 3, 4), (1, 2, 5), (0, 2, 9), (0, 3)):
        results = size + before + after - gap * (taps - 1)
        places = (result + tap * gap - before for result in range(results) for tap in range(taps))
        assert terms_of(size, taps, gap, (before, after)) == sum(0 <= place < size for place in places)


def test_loops_end_where_the_image_does() -> None:
    """The rows of windows are clipped, and the sum over the taps is inside the kernel of the products."""
    graph = Graph()
    result = graph.tensor(4, 64, 13, 13).conv2d(graph.tensor(64, 64, 7, 7), dilation=2, padding=6)
    (ast,) = (item.ast for item in schedule([result.uop], DEVICE).items if is_sum(item.ast))
    made = optimise(ast, target_of("skylake-avx512"))
    assert OptOps.CLIP in {opt.op for opt in made.arg.applied}
    assert len(view_kernel(made).reduces) == 1


@pytest.mark.parametrize(("columns", "padding", "is_clipped"), [(33, 0, False), (22, 3, True)])
def test_parts_of_rows_that_are_mostly_masked_are_read_from_a_box(columns: int, padding: int, is_clipped: bool) -> None:
    """Masks of a part of a row are evaluated at run time: with gaps of 2 more than a third of the products had one."""
    graph = Graph()
    image = graph.tensor(2, 28, 28, columns)
    result = image.conv2d(graph.tensor(40, 28, 7, 7), dilation=2, padding=padding)
    (found,) = (result * graph.tensor(*result.shape)).sum().gradient(image)
    (ast,) = (item.ast for item in schedule([found.uop], DEVICE).items if is_sum(item.ast))
    made = optimise(ast, target_of("skylake-avx512"))
    assert (OptOps.CLIP in {opt.op for opt in made.arg.applied}) is is_clipped


# The image, the weight (outputs, inputs / groups, *kernel), groups, dilation and padding.
BY_TAPS = {
    "half of the terms are on the border": ((6, 78, 13, 13), (178, 78, 7, 7), 1, 2, 6),
    "few outputs": ((1, 112, 58, 65), (10, 112, 3, 3), 1, 1, 1),
}
BY_WINDOWS = {
    "a row that fills no registers": ((6, 78, 60, 60), (178, 78, 7, 7), 1, 2, 6),
    "a narrow border": ((2, 128, 14, 14), (128, 128, 3, 3), 1, 1, 1),
    "little work": ((1, 4, 7, 7), (64, 4, 3, 3), 1, 2, 2),
    "windows larger than the image": ((1, 64, 3, 3), (64, 64, 5, 5), 1, 1, 0),
}


@pytest.mark.parametrize("name", [*BY_TAPS, *BY_WINDOWS])
def test_the_choice(name: str) -> None:
    image, taps, groups, gap, padding = (BY_TAPS | BY_WINDOWS)[name]
    given = (image, taps, groups, (gap, gap), [(padding, padding)] * 2, dtypes.float32)
    assert is_less_by_taps(*given, target_of("skylake-avx512")) is (name in BY_TAPS)

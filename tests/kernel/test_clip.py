"""CLIP: a sum of terms that a mask chooses goes over those alone, whatever other opts the kernel has; nothing is made
of what is masked off, so weights that are not finite spoil no more than they should."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.kernels import image_gradient, kernel, refusal_of, shifted_sums, spaced_sums
from tests.kernel.test_transforms import check
from tilewright import Tensor
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import index_const
from tilewright.graph.walk import substitute, toposort
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.templates import convolutions

CLIP, UPCAST, UNROLL, STAGE = OptOps.CLIP, OptOps.UPCAST, OptOps.UNROLL, OptOps.STAGE
THREAD, LOCAL = OptOps.THREAD, OptOps.LOCAL


OPTS: dict[str, tuple[Opt, ...]] = {
    "rows": (Opt(CLIP, 3),),
    "columns": (Opt(CLIP, 4),),
    "rows and columns": (Opt(CLIP, 3), Opt(CLIP, 4)),
    "the window written out": (Opt(UNROLL, 4, 3), Opt(CLIP, 3)),
    "a whole row and the window written out": (Opt(UNROLL, 2, 8), Opt(UNROLL, 3, 3), Opt(CLIP, 2)),
    "half a row": (Opt(UPCAST, 0, 4), Opt(UNROLL, 1, 4), Opt(UNROLL, 3, 3), Opt(CLIP, 2)),
    "one sum first": (Opt(UNROLL, 4, 3), Opt(CLIP, 5)),
    "lanes along the row": (Opt(UPCAST, 2, 8), Opt(CLIP, 2)),
    "packed": (Opt(UNROLL, 4, 3), Opt(CLIP, 5), Opt(THREAD, 0, 4), Opt(STAGE, 0, 1), Opt(CLIP, 3)),
}


@pytest.mark.parametrize("name", OPTS)
def test_the_result_stays_as_it_is(name: str) -> None:
    check(image_gradient(), OPTS[name], ("PYTHON", "CPU"))


@pytest.mark.parametrize("opts", [(Opt(CLIP, 1),), (Opt(UNROLL, 1, 5),), (Opt(UNROLL, 0, 9), Opt(UNROLL, 0, 5))])
def test_bounds_that_are_multiples_of_a_loop(opts: tuple[Opt, ...]) -> None:
    check(shifted_sums(), opts, ("PYTHON", "CPU"))


def test_the_loop_takes_the_terms_that_count_and_no_others() -> None:
    sink = apply_opt(shifted_sums(), Opt(CLIP, 1))
    loop = next(node for node in toposort(sink) if node.op is Ops.RANGE and not node.src[0].is_const)
    y = next(node for node in toposort(sink) if node.op is Ops.RANGE and node.src[0].is_const)
    counts = [int(evaluate(substitute(loop.src[0], {y: index_const(place)}), {})) for place in range(9)]
    assert counts == [sum(0 <= 2 * place - k < 9 for k in range(5)) for place in range(9)]
    assert not any(node.op is Ops.INDEX and len(node.src) > 2 for node in toposort(sink))


@pytest.mark.parametrize(("gap", "first"), [(2, 0), (2, -7), (-2, 0), (-2, 3), (3, -8), (-3, 1), (-7, 6)])
def test_bounds_of_windows_with_gaps(gap: int, first: int) -> None:
    """The loop has the terms of elements that exist and no others, with gaps in either direction."""
    sink = apply_opt(spaced_sums(gap, first), Opt(CLIP, 1))
    loop = next(node for node in toposort(sink) if node.op is Ops.RANGE and not node.src[0].is_const)
    y = next(node for node in toposort(sink) if node.op is Ops.RANGE and node.src[0].is_const)
    counts = [int(evaluate(substitute(loop.src[0], {y: index_const(place)}), {})) for place in range(13)]
    assert counts == [sum(0 <= place + gap * k + first < 9 for k in range(5)) for place in range(13)]
    assert not any(node.op is Ops.INDEX and len(node.src) > 2 for node in toposort(sink))
    check(spaced_sums(gap, first), (Opt(CLIP, 1),), ("PYTHON", "CPU"))


def test_sums_of_sums_become_one() -> None:
    sink = apply_opt(image_gradient(), Opt(CLIP, 3))
    assert len(view_kernel(image_gradient()).reduces) == 2
    assert len(view_kernel(sink).reduces) == 1


@pytest.mark.parametrize(
    ("ast", "opts", "reason"),
    [
        (image_gradient, (Opt(CLIP, 0),), "axis 0 is LOOP"),
        (image_gradient, (Opt(CLIP, 5),), "one sum with masked terms over axis 5"),
        (image_gradient, (Opt(CLIP, 3, 2),), "takes no argument"),
        (image_gradient, (Opt(UNROLL, 1, 4), Opt(CLIP, 2)), "no mask bounds axis 2"),
        (image_gradient, (Opt(LOCAL, 1, 4), Opt(CLIP, 3)), "no mask bounds axis 3"),
        (image_gradient, (Opt(UNROLL, 4, 3), Opt(CLIP, 5), Opt(CLIP, 5)), "is not nested"),
        (lambda: kernel("row_sums"), (Opt(CLIP, 1),), "one sum with masked terms over axis 1"),
    ],
)
def test_what_cannot_be_clipped_is_refused(ast, opts: tuple[Opt, ...], reason: str) -> None:
    assert reason in refusal_of(ast(), opts)


@pytest.mark.parametrize(
    ("size", "window", "padding", "gap"),
    [(9, 3, 0, 1), (7, 3, 1, 1), (12, 5, 2, 1), (28, 3, 1, 1), (14, 3, 2, 2), (11, 4, 0, 3), (30, 3, 4, 4)],
)
def test_gradients_of_images(monkeypatch: pytest.MonkeyPatch, size: int, window: int, padding: int, gap: int) -> None:
    """Weights that are not finite meet the gradients that they belong to, and no zeros of a border."""
    monkeypatch.setattr(convolutions, "MIN_GAIN", float("-inf"))
    forget_kernels()
    generator = np.random.default_rng(size)
    results = size + 2 * padding - gap * (window - 1)
    image = generator.integers(-4, 5, (2, 4, size, size)).astype(np.float32)
    weight = generator.integers(-4, 5, (6, 4, window, window)).astype(np.float32)
    upstream = generator.integers(1, 5, (2, 6, results, results)).astype(np.float32)
    weight[3, 2, 0, window - 1] = np.inf
    x, w, g = (Tensor(values) for values in (image, weight, upstream))
    found = (x.conv2d(w, dilation=gap, padding=padding) * g).sum().gradient(x)[0].numpy()
    want = np.zeros((2, 4, size + 2 * padding, size + 2 * padding), np.float32)
    for row in range(window):
        for column in range(window):
            share = np.einsum("nfyx,fc->ncyx", upstream, weight[:, :, row, column])
            rows, columns = (slice(gap * first, gap * first + results) for first in (row, column))
            want[:, :, rows, columns] += share
    want = want[:, :, padding : padding + size, padding : padding + size]
    np.testing.assert_array_equal(found, want)
    assert np.isfinite(found[:, 2]).any()
    assert not np.isfinite(found[:, 2]).all()

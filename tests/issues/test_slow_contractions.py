"""Contractions and windows next to fast ones that took several times as long on the CPU, since no template matched them
or an operand was read lane by lane. What the kernels look like, and their values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.computed import computed
from tests.issues.test_cpu_cliffs import kernels_of
from tests.kernel.kernels import axis, param, store, summed
from tests.kernel.test_products import TARGETS, kernel
from tests.kernel.test_transforms import check
from tests.schedule.graphs import Graph
from tilewright import Context, Tensor
from tilewright.base.dtype import dtypes
from tilewright.engine.compilation.compile import compile_kernel
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates.choose import choose_opts
from tilewright.kernel.templates.product_match import factors_of
from tilewright.tensor.families.networks import attention

# ---------------------------------------------------------------- factors that are computed


def attend(graph: Graph, features: int) -> Tensor:
    query, key, value = (graph.tensor(2, 40, features, requires_grad=False) for _ in range(3))
    return query.scaled_dot_product_attention(key, value)


def activate(graph: Graph, features: int) -> Tensor:
    x, weight = graph.tensor(30, 20, requires_grad=False), graph.tensor(20, features, requires_grad=False)
    return x.relu() @ weight


@pytest.mark.parametrize("make", [attend, activate])
@pytest.mark.parametrize("features", [16, 33, 40, 64])
def test_factors_of_a_product_are_stored(make: object, features: int) -> None:
    """Weights of attention were divided by their sum in the innermost loop of heads of up to 40 features, which no
    register tile matches."""
    graph = Graph()
    found = make(graph, features)  # type: ignore[operator]
    products = [view_kernel(prepare_kernel(ast), TARGETS["AVX-512"]) for ast in kernels_of(found)]
    assert factors_of(products[-1])
    graph.plan(found)


def test_a_factor_that_few_columns_read_is_computed_where_it_is_used() -> None:
    graph = Graph()
    assert graph.kernels(activate(graph, 4)) == 1


def test_a_factor_that_every_product_reads_once_is_computed_where_it_is_used() -> None:
    """An outer product is larger than what it is made of, and a sum over one of its axes uses each element once."""
    graph = Graph()
    x, weight = graph.tensor(40, 1, requires_grad=False), graph.tensor(1, 50, requires_grad=False)
    found = (x @ weight).relu()
    slopes = found.gradient(x, weight, gradient=found.detach())
    assert len(graph.plan(*slopes).items) == 2


@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_whose_scores_are_too_many_is_in_parts(monkeypatch: pytest.MonkeyPatch, is_causal: bool) -> None:
    """Queries that come before a key have no score of it."""
    graph = Graph()
    query, key, value = (graph.tensor(2, heads, 30, 8) for heads in (2, 1, 1))
    mask = None if is_causal else Tensor(np.tril(np.ones((30, 30), bool), 5))

    def results() -> list[np.ndarray]:
        found = query.scaled_dot_product_attention(key, value, mask, is_causal=is_causal, enable_gqa=True)
        slopes = found.gradient(query, key, value, gradient=found.detach()) if is_causal else []
        with Context(NOOPT=1):
            return computed((found, *slopes))

    whole = results()
    monkeypatch.setattr(attention, "MAX_SCORES", 16 * 30 * 4)
    monkeypatch.setattr(attention, "ROW_MULTIPLE", 4)
    assert attention.rows_at_a_time(query, query) == [(0, 16), (16, 30)]
    for ours, expected in zip(results(), whole, strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_attention_of_no_keys_and_of_one() -> None:
    rows = Tensor(np.ones((2, 3, 16), np.float32))
    assert rows.scaled_dot_product_attention(rows[:, :1], rows[:, :1] * 2).numpy().max() == 2
    assert rows.scaled_dot_product_attention(rows[:, :0], rows[:, :0]).shape == (2, 3, 16)


# ---------------------------------------------------------------- windows at a stride


def windows(size: int, step: int, padding: int) -> UOp:
    """Eight rows of sums over windows of 3, of which the first reaches over the border where there is padding, and the
    last vector over the end of the row."""
    row, column, k = axis(8, 0), axis(size, 1), axis(3, 2, AxisType.REDUCE)
    width = (size - 1) * step + 3 - padding
    place = column * step + k - padding
    source = UOp(Ops.INDEX, dtypes.float32, (param(1, 8 * width), row * width + place, place >= 0))
    return kernel(store(param(0, 8 * size), row * size + column, summed(UOp(Ops.LOAD, dtypes.float32, (source,)), k)))


@pytest.mark.parametrize("size", [7, 26, 33])
@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("padding", [0, 1])
def test_masked_windows_at_a_stride_are_shuffled_out_of_contiguous_loads(size: int, step: int, padding: int) -> None:
    """A mask of some lanes made each vector a gather, as in a depthwise convolution of stride 2."""
    ast = windows(size, step, padding)
    check(ast, None, ("CPU",), seed=size)
    assert "masked.gather" not in compile_kernel(ast.replace(arg=KernelInfo("test")), "CPU").source


@pytest.mark.parametrize(
    ("window", "padding", "shape"), [(2, 1, (3, 35, 39)), (2, 0, (2, 20, 37)), (3, 1, (2, 38, 61))]
)
def test_gradients_of_pools_are_vectors_for_each_phase(window: int, padding: int, shape: tuple[int, ...]) -> None:
    """A load that a mask moves from phase to phase left the gradient one element at a time."""
    graph = Graph()
    x = graph.tensor(1, *shape, requires_grad=False)
    pooled = x.max_pool2d(window, stride=window, padding=padding)
    slope = pooled.gradient(x, gradient=pooled.detach())[0]
    view = view_kernel(prepare_kernel(kernels_of(slope)[-1]), TARGETS["AVX-512"])
    tiles = {opt.op.name: opt.arg for opt in choose_opts(view)}
    assert isinstance(tiles["UPCAST"], int)
    assert tiles["UPCAST"] > 8
    graph.plan(slope)


@pytest.mark.parametrize("channels", [3, 10, 18])
def test_windows_at_a_stride_of_few_channels_are_not_packed(channels: int) -> None:
    """A panel has every element of the image once for each window that it is in, and few channels use it."""
    graph = Graph()
    x, weight = graph.tensor(1, 12, 300, requires_grad=False), graph.tensor(channels, 12, 5, requires_grad=False)
    (ast,) = kernels_of(x.conv2d(weight, stride=2, padding=2))
    opts = choose_opts(view_kernel(prepare_kernel(ast), replace(TARGETS["AVX-512"], cores=1)))
    assert "STAGE" not in {opt.op.name for opt in opts}


def test_unrolled_windows_of_two_images_are_both_read_from_copies() -> None:
    """One of them kept a mask for each element of the window: most of the text, and of the time."""
    x, other = (Tensor.rand(2, 16, 7, 7, device="CPU").realize() for _ in range(2))
    weights = Tensor.rand(16, 1, 3, 3, device="CPU").realize()
    found = (x * other).relu().conv2d(weights, groups=16, padding=1)
    view = view_kernel(prepare_kernel(kernels_of(found)[-1]), TARGETS["NEON"])
    assert [opt.op.name for opt in choose_opts(view)].count("STAGE") == 2
    with Context(VERIFY=1):
        padded = np.pad(np.maximum(x.numpy() * other.numpy(), 0), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        expected = np.einsum("ncyxij,cij->ncyx", windows, weights.numpy()[:, 0])
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)

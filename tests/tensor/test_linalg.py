"""Matrix products, convolution, pooling and attention, against NumPy written the slow way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort
from tilewright.tensor.tensor import Tensor

Check = Callable[..., None]
generator = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return generator.standard_normal(shape).astype(np.float32)


PRODUCTS = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 1)),
    ((1, 1), (1, 1)),
    ((3, 0), (0, 5)),
    ((0, 4), (4, 5)),
    ((17, 33), (33, 9)),
    ((2, 4), (3, 4, 2)),
]


@pytest.mark.parametrize(("left", "right"), PRODUCTS, ids=str)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], check: Check) -> None:
    check(lambda a, b: a @ b, np.matmul, normal(*left), normal(*right), tolerance=1e-4)


def test_matmul_dtypes(check: Check) -> None:
    left, right = np.int8([[100, 100]]), np.int8([[3], [4]])
    check(lambda a, b: a @ b, lambda a, b: (a.astype(np.int32) @ b).astype(np.int8), left, right)
    check(lambda a, b: a.dot(b, dtype="int32"), lambda a, b: a.astype(np.int32) @ b.astype(np.int32), left, right)
    ones = np.ones((1, 5000), np.float16)
    check(lambda a, b: a @ b, lambda a, b: np.float16([[5000]]), ones, ones.T)
    short = normal(4, 9).astype(ml_dtypes.bfloat16)
    exact = lambda a, b: (a.astype(np.float64) @ b.astype(np.float64)).astype(ml_dtypes.bfloat16)  # noqa: E731
    check(lambda a, b: a @ b, exact, short, short.T.copy())
    check(lambda a, b: a.matmul(b, reverse=True), lambda a, b: b @ a, normal(3, 4), normal(2, 3), tolerance=1e-4)


def test_linear(check: Check) -> None:
    check(
        lambda x, w, b: x.linear(w, b), lambda x, w, b: x @ w + b, normal(2, 3), normal(3, 4), normal(4), tolerance=1e-4
    )
    check(lambda x, w: x.linear(w), lambda x, w: x * w, normal(2, 3), normal(3))


def slow_conv(
    x: np.ndarray, w: np.ndarray, stride: tuple[int, int], dilation: tuple[int, int], pads: Any, groups: int
) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), *pads)).astype(np.float64)
    batch, _, height, width = x.shape
    outputs, inputs, rows, columns = w.shape
    size = tuple(
        (s - d * (k - 1) - 1) // t + 1 for s, d, k, t in zip((height, width), dilation, (rows, columns), stride)
    )
    result = np.zeros((batch, outputs, *size))
    for o, i, j in itertools.product(range(outputs), *map(range, size)):
        group = o // (outputs // groups)
        patch = x[
            :,
            group * inputs : (group + 1) * inputs,
            i * stride[0] : i * stride[0] + dilation[0] * (rows - 1) + 1 : dilation[0],
            j * stride[1] : j * stride[1] + dilation[1] * (columns - 1) + 1 : dilation[1],
        ]
        result[:, o, i, j] = (patch * w[o]).sum((1, 2, 3))
    return result.astype(np.float32)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 8, 9), (4, 3, 3, 3), {}),
    "1x1": ((2, 3, 5, 5), (4, 3, 1, 1), {}),
    "1x1 stride": ((1, 3, 5, 5), (4, 3, 1, 1), {"stride": 2}),
    "whole input": ((1, 2, 4, 5), (3, 2, 4, 5), {}),
    "stride": ((1, 2, 9, 8), (3, 2, 3, 3), {"stride": 2}),
    "stride larger than kernel": ((1, 2, 11, 8), (3, 2, 2, 2), {"stride": 3}),
    "stride of each axis": ((1, 2, 9, 8), (3, 2, 3, 2), {"stride": (3, 1)}),
    "dilation": ((1, 2, 9, 9), (3, 2, 3, 3), {"dilation": 2}),
    "dilation and stride": ((1, 2, 11, 9), (3, 2, 2, 3), {"dilation": (4, 1), "stride": (3, 2)}),
    "padding": ((1, 2, 5, 5), (3, 2, 3, 3), {"padding": 1}),
    "padding of each axis": ((1, 2, 5, 5), (3, 2, 3, 3), {"padding": (2, 0)}),
    "padding of each side": ((1, 2, 5, 5), (3, 2, 3, 3), {"padding": (1, 0, 2, 1)}),
    "groups": ((2, 4, 6, 6), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": ((2, 4, 6, 6), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    # Stored without the elements that no window reads; one axis has no common divisor, the last rows are not read.
    "depthwise, stride and dilation": ((2, 4, 12, 12), (4, 1, 3, 3), {"groups": 4, "stride": 2, "dilation": (2, 4)}),
    "depthwise, common divisor": ((1, 2, 16, 12), (4, 1, 3, 2), {"groups": 2, "stride": (4, 2), "dilation": (2, 3)}),
    "kernel 1 by 3": ((1, 2, 4, 6), (3, 2, 1, 3), {}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(name: str, check: Check) -> None:
    shape, weight, options = CONVOLUTIONS[name]

    def pair(value: Any) -> tuple[int, int]:
        return (value, value) if isinstance(value, int) else tuple(value)

    padding = options.get("padding", 0)
    if isinstance(padding, tuple) and len(padding) == 4:
        pads: Any = (padding[2:], padding[:2])
    else:
        pads = tuple((size, size) for size in pair(padding))
    stride, dilation = pair(options.get("stride", 1)), pair(options.get("dilation", 1))
    groups = options.get("groups", 1)
    reference = lambda x, w: slow_conv(x, w, stride, dilation, pads, groups)  # noqa: E731
    check(lambda x, w: x.conv2d(w, **options), reference, normal(*shape), normal(*weight), tolerance=1e-4)


def test_conv_with_bias_and_one_axis(check: Check) -> None:
    biased = lambda x, w, b: slow_conv(x, w, (1, 1), (1, 1), ((0, 0), (0, 0)), 1) + b[None, :, None, None]  # noqa: E731
    check(lambda x, w, b: x.conv2d(w, b), biased, normal(1, 2, 4, 4), normal(3, 2, 2, 2), normal(3), tolerance=1e-4)
    flat = lambda x, w: slow_conv(x[:, :, None], w[:, :, None], (1, 2), (1, 1), ((0, 0), (1, 1)), 1)[:, :, 0]  # noqa: E731
    check(lambda x, w: x.conv2d(w, stride=2, padding=1), flat, normal(1, 2, 9), normal(3, 2, 3), tolerance=1e-4)


def slow_pool(
    x: np.ndarray, k: int, s: int, pads: tuple[int, int], function: Any, fill: float, d: int = 1
) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), pads, pads), constant_values=fill)
    size = [(n - d * (k - 1) - 1) // s + 1 for n in x.shape[2:]]
    result = np.zeros((*x.shape[:2], *size), x.dtype)
    for i, j in itertools.product(*map(range, size)):
        span = d * (k - 1) + 1
        result[:, :, i, j] = function(x[:, :, i * s : i * s + span : d, j * s : j * s + span : d], axis=(2, 3))
    return result


def test_max_pool(check: Check) -> None:
    x = normal(2, 3, 9, 7)
    for k, s, p, d in ((2, 2, 0, 1), (3, 1, 0, 1), (3, 2, 1, 1), (2, 3, 0, 1), (3, 2, 1, 2)):
        reference = lambda x: slow_pool(x, k, s, (p, p), np.max, -np.inf, d)  # noqa: B023, E731
        check(lambda t: t.max_pool2d(k, s, d, p), reference, x)  # noqa: B023
    check(lambda t: t.max_pool2d(), lambda x: slow_pool(x, 2, 2, (0, 0), np.max, -np.inf), x)
    ceiling = lambda x: slow_pool(x, 2, 2, (0, 1), np.max, -np.inf)  # noqa: E731
    check(lambda t: t.max_pool2d(2, ceil_mode=True), ceiling, x)
    whole = generator.integers(-9, 9, (1, 1, 4, 4)).astype(np.int32)
    check(lambda t: t.max_pool2d(2, 1, padding=1), lambda x: slow_pool(x, 2, 1, (1, 1), np.max, -(2**31)), whole)


def test_max_pool_indices(check: Check) -> None:
    x = np.float32([[[[1, 5, 2], [5, 0, 9], [7, 8, 9]]]])
    values = np.float32([[[[5, 9], [8, 9]]]])
    places = np.int64([[[[1, 5], [7, 5]]]])
    check(lambda t: t.max_pool2d(2, 1, return_indices=True), lambda x: (values, places), x)


def test_avg_pool(check: Check) -> None:
    x = normal(2, 3, 9, 7)
    check(lambda t: t.avg_pool2d(), lambda x: slow_pool(x, 2, 2, (0, 0), np.mean, 0), x)
    check(lambda t: t.avg_pool2d(3, 2, padding=1), lambda x: slow_pool(x, 3, 2, (1, 1), np.mean, 0), x)
    without = lambda x: slow_pool(x, 3, 2, (1, 1), np.nanmean, np.nan)  # noqa: E731
    check(lambda t: t.avg_pool2d(3, 2, padding=1, count_include_pad=False), without, x)
    ceiling = lambda x: slow_pool(x, 2, 2, (0, 1), np.nanmean, np.nan)  # noqa: E731
    check(lambda t: t.avg_pool2d(2, ceil_mode=True), ceiling, x)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return (scores / scores.sum(-1, keepdims=True) @ v).astype(np.float32)


def test_attention(check: Check) -> None:
    q, k, v = normal(2, 4, 5, 8), normal(2, 4, 6, 8), normal(2, 4, 6, 3)
    mask = generator.random((5, 6)) < 0.7
    mask[:, 0] = True
    causal = np.tril(np.ones((5, 6), bool))
    check(lambda q, k, v: q.scaled_dot_product_attention(k, v), attention, q, k, v, tolerance=1e-4)
    masked = lambda q, k, v, m: q.scaled_dot_product_attention(k, v, attn_mask=m)  # noqa: E731
    check(masked, attention, q, k, v, mask, tolerance=1e-4)
    check(masked, attention, q, k, v, normal(5, 6), tolerance=1e-4)
    reference = lambda q, k, v: attention(q, k, v, causal)  # noqa: E731
    check(lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True), reference, q, k, v, tolerance=1e-4)
    few = lambda q, k, v: attention(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1))  # noqa: E731
    grouped = lambda q, k, v: q.scaled_dot_product_attention(k, v, enable_gqa=True)  # noqa: E731
    check(grouped, few, q, k[:, :2], v[:, :2], tolerance=1e-4)


WINDOWED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "conv": lambda x, w: x.conv2d(w),
    "conv padded": lambda x, w: x.conv2d(w, padding=1),
    "conv strided": lambda x, w: x.conv2d(w, stride=2, padding=1),
    "conv dilated": lambda x, w: x.conv2d(w, dilation=2),
    "max pool": lambda x, w: x.max_pool2d(3, 2, padding=1),
    "average pool": lambda x, w: x.avg_pool2d(3, 1),
    "strided slice": lambda x, w: x[..., :15:2],
    "unfold": lambda x, w: x.unfold(2, 3, 2),
    "diagonal": lambda x, w: x.diagonal(0, 2, 3),
}


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_leave_no_division_in_the_kernel(name: str) -> None:
    plan = WINDOWED[name](Tensor.empty(2, 3, 16, 16), Tensor.empty(4, 3, 3, 3)).schedule()
    kernels = [item.ast for item in plan.items if item.ast is not None]
    assert len(kernels) == 1
    assert not [node for node in toposort(*kernels) if node.op in (Ops.IDIV, Ops.MOD)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["plain", "causal", "bool mask", "float mask", "one row of mask"])
def test_attention_with_a_part_of_its_scores_at_a_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results and gradients of all scores at once, and no kernel that stores more of them than allowed."""
    given = [normal(2, 3, 11, 8), normal(2, 3, 13, 8), normal(2, 3, 13, 4)]
    mask = generator.random((11, 13)) < 0.7
    mask[:, 0] = True
    masks = {"bool mask": mask, "float mask": normal(11, 13), "one row of mask": mask[:1]}

    def run() -> tuple[list[np.ndarray], int]:
        tensors = [Tensor(array, requires_grad=True) for array in given]
        extra = {"is_causal": True} if kind == "causal" else {}
        chosen = Tensor(masks[kind]) if kind in masks else None
        found = tensors[0].scaled_dot_product_attention(tensors[1], tensors[2], chosen, **extra)
        (found * found).sum().backward()
        results = [found, *(tensor.grad for tensor in tensors)]
        largest = max(item.ast.src[0].src[0].src[0].arg.size for item in found.schedule() if item.ast is not None)
        return [result.numpy() for result in results], largest

    whole, most = run()
    assert most == 2 * 3 * 11 * 13
    limit = 2 * 3 * 13 * 4
    monkeypatch.setattr("tilewright.tensor.families.networks.attention.MAX_SCORES", limit)
    parts, most = run()
    assert most <= max(limit, 2 * 3 * 11 * 4)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)

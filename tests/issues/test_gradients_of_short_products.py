"""Gradients of products in bfloat16 are products of bfloat16, summed in float32 and rounded once. They were sums of
terms that had each been rounded, over float32 copies of bfloat16 values: less exact than torch's, and for no tensor
core."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Tensor, dtypes
from tilewright.graph.ops import Ops
from tilewright.kernel.analysis.contraction import Contraction, match_contraction
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel

BF16, F32 = dtypes.bfloat16, dtypes.float32


def empty(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=BF16).requires_grad_()


def products(*results: Tensor) -> list[Contraction | str]:
    """What the matcher says of each kernel that sums products."""
    kernels = [item.ast for item in results[0].schedule(*results[1:]) if item.ast is not None]
    views = [view_kernel(prepare_kernel(kernel)) for kernel in kernels]
    summing = [
        view for view in views if any(node.arg is Ops.ADD and node.src[0].op is Ops.MUL for node in view.reduces)
    ]
    return [match_contraction(view, BF16, F32) for view in summing]


def test_both_gradients_of_a_matrix_product() -> None:
    x, w, g = empty(64, 96), empty(96, 128), empty(64, 128)
    found = products(*((x @ w) * g).sum().gradient(x, w))
    assert len(found) == 2
    assert all(isinstance(each, Contraction) for each in found), found


def test_all_products_of_attention() -> None:
    q, k, v, g = (empty(2, 3, 64, 32) for _ in range(4))
    result = q.scaled_dot_product_attention(k, v, is_causal=True)
    found = products(result, *(result * g).sum().gradient(q, k, v))
    # Scores and values, and four of the gradients; the softmax has a sum of products of its own.
    assert sum(isinstance(each, Contraction) for each in found) == 6, found


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_of_a_convolution(which: int) -> None:
    x, w, g = empty(4, 8, 9, 9), empty(16, 8, 3, 3), empty(4, 16, 9, 9)
    found = products((x.conv2d(w, padding=1) * g).sum().gradient((x, w)[which])[0])
    assert found
    assert all(isinstance(each, Contraction) for each in found), found


def test_a_gradient_is_rounded_once() -> None:
    """192 terms of 1.0039, which bfloat16 rounds to 1 each: they sum to 192.75, and to 192 rounded one by one."""
    x = Tensor.ones(1, 1, dtype=BF16).realize().requires_grad_()
    w = Tensor(np.full((1, 192), 1.0078125)).cast(BF16).realize()
    g = Tensor(np.full((1, 192), 0.99609375)).cast(BF16).realize()
    ((x @ w) * g).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is BF16
    assert x.grad.item() == 193


def test_values_that_are_stored_between_kernels_keep_their_dtype() -> None:
    x, w, v = empty(64, 96), empty(96, 128), empty(128, 32)
    hidden = (x @ w).float()
    items = [item.ast for item in (hidden.exp().cast(BF16) @ v + hidden.sum()).schedule() if item.ast is not None]
    stored = {store.src[0].dtype for ast in items for store in ast.src if store.op is Ops.STORE}
    assert stored <= {BF16, F32}
    first = next(store for store in items[0].src)
    assert first.src[0].dtype is BF16

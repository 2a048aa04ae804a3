"""Scans that were slower than they need be: blocks of a logsumexp that compute few exponentials, sums that carry little
through memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.issues.test_cpu_cliffs import kernels_of
from tilewright import Tensor
from tilewright.graph.ops import Ops
from tilewright.graph.uop import memory_of
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import view_kernel


@pytest.mark.parametrize(("shape", "axis"), [((17, 20, 188), 1), ((24_576,), 0), ((180, 292), 0)])
def test_a_running_logsumexp_computes_few_exponentials_for_an_element(shape: tuple[int, ...], axis: int) -> None:
    """Rows of 20 were two blocks of 16, in which every element takes 16 exponentials."""
    x = Tensor.empty(*shape).contiguous().realize()
    nodes = [node for ast in kernels_of(x.logcumsumexp(axis)) for node in view_kernel(ast).nodes]
    exponentials = sum(math.prod(map(size_of, node.ranges)) for node in nodes if node.op is Ops.EXP2)
    assert exponentials < 12 * math.prod(shape)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 5, 16, 17, 20, 63, 64, 65, 1000, 4099])
def test_running_logsumexps(size: int) -> None:
    values = np.random.default_rng(size).standard_normal((3, size, 40)).astype(np.float32) * 30
    values[0, size // 2] = -np.inf
    values[1, 0] = -np.inf
    values[2, size // 3, 3] = np.inf
    values[2, size // 2, 5] = np.nan
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp.accumulate(values.astype(np.float64), 1)
    np.testing.assert_allclose(Tensor(values).logcumsumexp(1).numpy(), expected, rtol=2e-6, atol=2e-6)


def test_the_gradient_of_a_running_logsumexp() -> None:
    values = np.random.default_rng(1).standard_normal((50, 30)).astype(np.float32)
    x = Tensor(values, requires_grad=True)
    x.logcumsumexp(0).sum().backward()
    totals = np.cumsum(np.exp(values.astype(np.float64)), 0)
    expected = np.exp(values) * np.cumsum(1 / totals[::-1], 0)[::-1]
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [5, 14, 20, 1003])
def test_a_running_sum_carries_a_value_through_memory_once_for_many_elements(size: int) -> None:
    """Rows of 14 took 1.5 times as long as torch's: six of their elements, one after the other, were added to a value
    on the stack. Rows of at most a block have no such value."""
    x = Tensor.empty(300, size).contiguous().realize()
    nodes = [node for ast in kernels_of(x.cumsum(1)) for node in view_kernel(ast).nodes]
    carried = [node for node in nodes if node.op is Ops.LOAD and memory_of(node.src[0]).op is Ops.DEFINE_REG]
    assert sum(math.prod(map(size_of, node.ranges)) for node in carried) <= 300 * (-(-size // 16) if size > 16 else 0)


@pytest.mark.parametrize("size", [5, 16, 17, 32, 47])
def test_running_sums_and_products_of_blocks_and_a_rest(size: int) -> None:
    values = np.random.default_rng(size).standard_normal((3, size, 2)).astype(np.float32)
    x = Tensor(values, requires_grad=True)
    sums, products = x.cumsum(1), (x / size + 1).cumprod(1)
    gradient = sums.square().sum().gradient(x)[0]
    sums.realize(products, gradient)
    wide = values.astype(np.float64)
    np.testing.assert_allclose(sums.numpy(), wide.cumsum(1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(products.numpy(), (wide / size + 1).cumprod(1), rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), 2 * wide.cumsum(1)[:, ::-1].cumsum(1)[:, ::-1], rtol=1e-4, atol=1e-4)

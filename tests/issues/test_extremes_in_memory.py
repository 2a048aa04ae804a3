"""Gradients of a maximum or minimum that is in memory already, of a value that is not: the value is computed again, in
another kernel, which may round it differently. Compared with the maximum in memory, no element was equal to it, and the
gradient was 0."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Context, Tensor
from tilewright.engine.execution.realize import schedule
from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort


def gradients(is_in_memory: bool, name: str) -> list[np.ndarray]:
    generator = np.random.default_rng(5500941)
    rows, columns = (
        Tensor(generator.standard_normal((8, 3000), dtype=np.float32), requires_grad=True) for _ in range(2)
    )
    extreme = getattr(rows @ columns.transpose(), name)(1)
    if is_in_memory:
        with Context(NOOPT=1):  # the products are added up in another order
            extreme.realize()
    extreme.sum().backward()
    assert rows.grad is not None
    assert columns.grad is not None
    return [rows.grad.numpy(), columns.grad.numpy()]


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_gradient_is_that_of_an_extreme_that_is_not(name: str) -> None:
    for found, expected in zip(gradients(True, name), gradients(False, name), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_it_is_taken_once_where_it_is_not_in_memory() -> None:
    """With the result and the gradient in one schedule, both share one reduction."""
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), requires_grad=True)
    extreme = (x * 2).max(1)
    (slope,) = extreme.sum().gradient(x)
    maxima = {
        node
        for item in schedule([extreme.uop, slope.uop], "CPU").items
        if item.ast is not None
        for node in toposort(item.ast)
        if node.op is Ops.REDUCE and node.arg is Ops.MAX
    }
    assert len(maxima) == 1

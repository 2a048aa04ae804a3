"""Contractions next to fast ones that took several times as long on the CPU, since no template of a product matched
them or an operand was read across rows. What the kernels look like, and their values."""

from __future__ import annotations

import numpy as np
import pytest

from tests.issues.test_cpu_cliffs import kernels_of
from tests.kernel.test_products import TARGETS
from tests.schedule.graphs import Graph
from tilewright import Tensor
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.heuristics.products import factors_of
from tilewright.kernel.optimise import prepare_kernel

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


def test_attention_of_no_keys_and_of_one() -> None:
    rows = Tensor(np.ones((2, 3, 16), np.float32))
    assert rows.scaled_dot_product_attention(rows[:, :1], rows[:, :1] * 2).numpy().max() == 2
    assert rows.scaled_dot_product_attention(rows[:, :0], rows[:, :0]).shape == (2, 3, 16)

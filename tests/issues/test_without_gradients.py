"""A network called inside `no_grad` has the kernels that it has outside: what marks a value as one without a gradient
hid the layout of weights, and products of one row with a matrix were summed in strips of its rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright import Tensor, nn
from tilewright.graph.uop import UOp

NETWORKS: dict[str, Callable[[Tensor], Tensor]] = {
    "one row": nn.Linear(2048, 4096, bias=False),
    "several layers": nn.Sequential(nn.RMSNorm(2048), nn.Linear(2048, 3000), Tensor.silu, nn.Linear(3000, 512)),
    "detached": lambda x: x.detach() @ Tensor.empty(3000, 2048).detach().transpose(),
}


def kernels_of(result: Tensor) -> list[UOp]:
    return [item.ast for item in result.schedule() if item.ast is not None]


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_are_the_same_without_gradients(name: str) -> None:
    x = Tensor.empty(1, 1, 2048)
    for parameter in nn.state.get_parameters(NETWORKS[name]) if name != "detached" else []:
        parameter.realize()
    expected = kernels_of(NETWORKS[name](x))
    with Tensor.no_grad():
        found = kernels_of(NETWORKS[name](x))
    assert found == expected


def test_a_detached_factor_is_no_other_factor() -> None:
    x, w = Tensor.empty(1, 2048), Tensor.empty(3000, 2048)
    assert kernels_of(x @ w.detach().transpose()) == kernels_of(x @ w.transpose())

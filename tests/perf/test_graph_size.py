"""Compile time stays flat because the graph does: tiles are written out by the emitter alone."""

from __future__ import annotations

import pytest

from tilewright import Opt, OptOps, Tensor
from tilewright.codegen.pipeline import lower
from tilewright.graph.records import KernelInfo
from tilewright.graph.walk import toposort
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import open_driver


def body_size(opts: tuple[Opt, ...], device: str) -> tuple[int, int]:
    """Nodes of the optimised kernel, and of the linear program, of a matrix product with an epilogue."""
    product = (Tensor.empty(64, 96).realize() @ Tensor.empty(96, 128).realize() + 1).exp()
    (item,) = product.schedule().items
    assert item.ast is not None
    target = open_driver(device).target
    optimised = optimise(item.ast.replace(arg=KernelInfo("product", opts)), target)
    # Constants are left out: two that happen to be equal are one node.
    nodes = [node for node in toposort(optimised) if not node.is_const]
    return len(nodes), len(lower(optimised, target).body)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_graph_does_not_grow_with_the_tile(device: str) -> None:
    sizes = {
        amount: body_size(
            (Opt(OptOps.UPCAST, 0, amount), Opt(OptOps.UPCAST, 1, amount), Opt(OptOps.UNROLL, 2, amount)), device
        )
        for amount in (2, 4, 8, 16, 32)
    }
    assert len(set(sizes.values())) == 1, sizes


def test_whole_axes_as_tiles_make_the_graph_smaller() -> None:
    split = body_size((Opt(OptOps.UPCAST, 0, 8),), "CPU")
    whole = body_size((Opt(OptOps.UPCAST, 0, 64),), "CPU")
    assert whole[1] <= split[1]

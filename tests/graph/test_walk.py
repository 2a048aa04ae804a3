"""Walking a graph: the order, where it stops, and that what a kernel keeps of its walk does not keep the kernel."""

from __future__ import annotations

import gc
import weakref

from tilewright.base.dtype import dtypes
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import toposort


def diamond(depth: int) -> UOp:
    """Each node uses the one before it twice: a walk by paths would take 2**depth steps."""
    node = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, 1, None))
    for _ in range(depth):
        node = node + node
    return node


def kernel() -> UOp:
    out = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, 4, None))
    row = UOp.range(4, 7)
    return out[row].set(row.cast(dtypes.float32) * 2.5, end=row).sink()


def test_each_node_comes_once_after_its_sources() -> None:
    root = diamond(5000)
    nodes = toposort(root, root.src[0], root)
    assert len(nodes) == len(set(nodes)) == 5001
    place = {node: number for number, node in enumerate(nodes)}
    assert all(place[src] < place[node] for node in nodes for src in node.src)


def test_roots_and_sources_come_in_their_order() -> None:
    one, two, three = (const(dtypes.float32, value) for value in (1.0, 2.0, 3.0))
    assert toposort(two + one, three) == [two, one, two + one, three]


def test_a_node_that_stops_the_walk_is_in_it() -> None:
    root = diamond(10)
    middle = root.src[0].src[0]
    assert toposort(root, stop=lambda node: node is middle) == [middle, root.src[0], root]


def test_a_walk_of_a_kernel_is_a_list_of_the_callers_own_and_keeps_nothing_alive() -> None:
    made = kernel()
    nodes = toposort(made)
    assert nodes == toposort(made, stop=lambda node: False)
    nodes.clear()
    assert toposort(made)[-1] is made
    gc.disable()  # reference counts alone must do
    try:
        watch = weakref.ref(made)
        del made
        assert watch() is None
    finally:
        gc.enable()

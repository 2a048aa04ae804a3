"""The device of each node. In: the nodes in order, and the default device. Out: a device per node; PARAM, COPY and
DETACH nodes may name one, every other node has that of its sources."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.build import placed_on
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp


def find_devices(order: Sequence[UOp], params: Sequence[UOp], default: str) -> dict[UOp, str]:
    """The device of each node, which is that of its sources. `order` has every node after its sources."""
    nodes = (*params, *order)
    if {_named_device(node, default) for node in nodes if node.op in _NAMING} <= {None, default}:
        return dict.fromkeys(nodes, default)
    known: dict[UOp, str | None] = {}
    for node in nodes:
        devices = (known[src] for src in node.src)
        known[node] = _named_device(node, default) or next((each for each in devices if each is not None), None)
    return {node: device or default for node, device in known.items()}


_NAMING = frozenset({Ops.PARAM, Ops.COPY, Ops.DETACH})  # the ops of nodes that may name a device


def _named_device(node: UOp, default: str) -> str | None:
    if node.op is Ops.PARAM:
        return node.arg.device or default
    return node.arg if node.op is Ops.COPY else placed_on(node)

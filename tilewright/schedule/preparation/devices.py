"""The device of each node. In: the nodes in order, and the default device. Out: a device per node; PARAM, COPY and
DETACH nodes may name one, every other node has that of its sources. A value made of constants alone has that of its
users: those of several devices have one each (`place_constants`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.graph.build import placed_on
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graphs, toposort
from tilewright.schedule.sharding import constants


def find_devices(order: Sequence[UOp], params: Sequence[UOp], default: str) -> dict[UOp, str]:
    """The device of each node, which is that of its sources. `order` has every node after its sources."""
    nodes = (*params, *order)
    if _has_one_device(nodes, default):
        return dict.fromkeys(nodes, default)
    known = _from_sources(nodes, default)
    wanted = _from_users(nodes, known)
    return {node: known[node] or next(iter(wanted.get(node, ())), default) for node in nodes}


def place_constants(outputs: Sequence[UOp], params: Sequence[UOp], default: str) -> Sequence[UOp]:
    """The outputs, in which no value of constants is computed on one device and read on another."""
    order = toposort(*outputs)
    if _has_one_device((*params, *order), default):
        return outputs
    known = _from_sources(order, default)
    wanted = _from_users(order, known)
    for output in outputs:
        if known[output] is None:
            wanted.setdefault(output, {})[default] = None
    shared = {node for node, devices in wanted.items() if len(devices) > 1}
    if not shared:
        return outputs
    for node in order:  # what is made of them alone is computed with them
        if known[node] is None and not shared.isdisjoint(node.src):
            shared.add(node)

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        device = known[node]
        if device is None or shared.isdisjoint(node.src):
            return None
        pairs = zip(node.src, src, strict=True)
        return node.with_src(tuple(constants.place_constants(n, device, True) if o in shared else n for o, n in pairs))

    return map_graphs(outputs, visit)


def _has_one_device(nodes: Sequence[UOp], default: str) -> bool:
    return {_named_device(node, default) for node in nodes if node.op in _NAMING} <= {None, default}


def _from_sources(nodes: Sequence[UOp], default: str) -> dict[UOp, str | None]:
    """None for values of constants alone."""
    known: dict[UOp, str | None] = {}
    for node in nodes:
        devices = (known[src] for src in node.src)
        known[node] = _named_device(node, default) or next((each for each in devices if each is not None), None)
    return known


def _from_users(nodes: Sequence[UOp], known: Mapping[UOp, str | None]) -> dict[UOp, dict[str, None]]:
    """For each value of constants alone, the devices that compute with it."""
    wanted: dict[UOp, dict[str, None]] = {}
    for node in reversed(nodes):
        own = known[node]
        asked = wanted.get(node, {}) if own is None else {own: None}
        for src in node.src:
            if known[src] is None and src.src:
                wanted.setdefault(src, {}).update(asked)
    return wanted


_NAMING = frozenset({Ops.PARAM, Ops.COPY, Ops.DETACH})  # the ops of nodes that may name a device


def _named_device(node: UOp, default: str) -> str | None:
    if node.op is Ops.PARAM:
        return node.arg.device or default
    return node.arg if node.op is Ops.COPY else placed_on(node)

"""Anti-dependences. In: the nodes of a kernel. Out: pairs of a LOAD and a STORE that must come after it. A LOAD through
a version of the memory sees its content before every STORE through that version or a later one, unless it depends on
that STORE itself. `linearise` adds the pairs to the dependences of nodes on their sources."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of

Version = frozenset[UOp]


def version_of(place: UOp) -> Version:
    """The effects that the memory behind an INDEX has seen. Ranges say in which loop it is looked at: they are none."""
    seen: set[UOp] = set()
    while place.op is Ops.INDEX or place.op is Ops.AFTER:
        if place.op is Ops.AFTER:
            seen.update(source for source in place.src[1:] if source.op is not Ops.RANGE)
        place = place.src[0]
    return frozenset(seen)


def accesses_before_stores(nodes: list[UOp]) -> Iterator[tuple[UOp, UOp]]:
    """(LOAD, STORE) for each memory that a kernel both reads and writes."""
    stores: dict[UOp, list[UOp]] = {}
    for node in nodes:
        if node.op is Ops.STORE:
            stores.setdefault(memory_of(node.src[0]), []).append(node)
    loads = [node for node in nodes if node.op is Ops.LOAD and memory_of(node.src[0]) in stores]
    if not loads:
        return
    versions = {node: version_of(node.src[0]) for node in (*loads, *(s for found in stores.values() for s in found))}
    for memory, found in stores.items():
        readers = [load for load in loads if memory_of(load.src[0]) is memory]
        for store in found if readers else ():
            needing = users_below(store, nodes)
            for load in readers:
                if versions[load] <= versions[store] and load not in needing:
                    yield load, store


def users_below(node: UOp, nodes: list[UOp]) -> set[UOp]:
    """Every node that depends on `node`, directly or not. `nodes` are in topological order."""
    found = {node}
    for other in nodes:
        if not found.isdisjoint(other.src):
            found.add(other)
    return found

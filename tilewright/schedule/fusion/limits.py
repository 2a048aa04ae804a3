"""Kernels with more buffers than a device binds. In: a `Plan`, and the maximum number of buffers of a kernel with each
root. Out: nodes to be stored by kernels of their own; the plan made again with them has fewer buffers per kernel. None
where all kernels fit.

A kernel is split below the first node that needs more buffers than the kernel may have, at the node that takes the
least memory for each buffer that it saves."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.ops import Ops
from tilewright.graph.spec import max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.fusion.uses import Plan


def nodes_to_split(plan: Plan, max_buffers: Callable[[UOp], int]) -> set[UOp]:
    """One node of each kernel that has too many buffers. A node that needs too many by itself is left to the device,
    which refuses it."""
    stored = frozenset(plan.stored)
    buffers: dict[UOp, set[UOp]] = {}
    for node in plan.order:
        if node in stored or node.op is Ops.PARAM:
            for root, _ in plan.uses.get(node, {}):
                buffers.setdefault(root, set()).add(node)
    checking = {root for node in plan.order if node.op is Ops.CHECK for root, _ in plan.uses.get(node, {})}

    def limit_of(root: UOp) -> int:
        """One buffer is reserved for the words of a kernel's checks."""
        return max_buffers(root) - (root in checking)

    over_limit = (root for root, used in buffers.items() if len(used) > limit_of(root))
    found = (_node_to_split(plan, stored, root, limit_of(root)) for root in over_limit)
    return {node for node in found if node is not None}


def _node_to_split(plan: Plan, stored: frozenset[UOp], root: UOp, limit: int) -> UOp | None:
    def is_stored_here(node: UOp) -> bool:
        return node is root or (node in plan.hosts and plan.hosts[node][0] is root)

    order = [node for node in plan.order if any(asking is root for asking, _ in plan.uses.get(node, {}))]
    kept = frozenset(filter(is_stored_here, order))
    loaded = frozenset(node for node in order if (node in stored or node.op is Ops.PARAM) and node not in kept)
    needs = _needs(order, loaded, kept)
    over_limit = next((node for node in order if len(needs[node]) + (node not in kept) > limit), None)
    if over_limit is None:
        return None
    below = set(toposort(*over_limit.src))
    order = [node for node in order if node in below or node is over_limit]

    def cost(node: UOp) -> tuple[bool, float, int]:
        saved = len(needs[over_limit]) - len(_needs(order, loaded | {node}, kept - {node})[over_limit])
        return saved < 1, max_count(node.shape) * node.dtype.itemsize / max(saved, 1), -len(needs[node])

    candidates = (node for node in order if node is not over_limit and len(needs[node]) > 1 and _is_computed(node))
    return min(candidates, key=cost, default=None)


def _needs(order: list[UOp], loaded: frozenset[UOp], kept: frozenset[UOp]) -> dict[UOp, frozenset[UOp]]:
    """The buffers that a kernel needs for each of its nodes: those of the sources, and the one it is stored to."""
    needs: dict[UOp, frozenset[UOp]] = {}
    for node in order:
        own = frozenset({node} if node in loaded or node in kept else ())
        below = () if node in loaded else (needs[src] for src in node.src if src in needs)
        needs[node] = own.union(*below)
    return needs


def _is_computed(node: UOp) -> bool:
    return node.op.is_elementwise or node.op in (Ops.REDUCE_AXIS, Ops.GATHER)

"""Walking and substituting. In: a graph. Out: its nodes in order, or the graph with some nodes exchanged.
Nothing recurses, so depth is bounded by memory alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp


def toposort(*roots: UOp, stop: Callable[[UOp], bool] | None = None) -> list[UOp]:
    """Every node below the roots once, sources before users. A node for which `stop` holds is not entered further."""
    order: list[UOp] = []
    seen: set[UOp] = set()
    stack: list[tuple[UOp, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        if stop is None or not stop(node):
            for src in reversed(node.src):
                if src not in seen:
                    stack.append((src, False))
    return order


def consumers(nodes: Iterable[UOp]) -> dict[UOp, list[UOp]]:
    """For each node the nodes of the collection that use it, in order, once per user."""
    users: dict[UOp, list[UOp]] = {}
    for node in nodes:
        users.setdefault(node, [])
        for src in dict.fromkeys(node.src):
            users.setdefault(src, []).append(node)
    return users


def substitute(root: UOp, exchanges: Mapping[UOp, UOp]) -> UOp:
    """The graph with each key exchanged for its value. Values are taken as they are: they are not searched again."""
    if not exchanges:
        return root
    done: dict[UOp, UOp] = dict(exchanges)
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        missing = [src for src in node.src if src not in done]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        done[node] = node.with_src(tuple(done[s] for s in node.src))
    return done[root]


def named_ranges(node: UOp) -> tuple[UOp, ...]:
    """The last sources, among which ranges stand for themselves and not for a value computed from them."""
    if node.op is Ops.BARRIER:
        return node.src
    return node.src[1:] if node.op in (Ops.REDUCE, Ops.END, Ops.AFTER) else ()


def exchange_axis(sink: UOp, axis: UOp, replacement: UOp) -> UOp:
    """The kernel with `axis` written as `replacement`, an expression of new axes; a reduction over `axis` becomes one
    over the new axes, and so is what is done in every iteration of `axis`."""
    done: dict[UOp, UOp] = {axis: replacement}
    new_axes = tuple(sorted(replacement.ranges, key=lambda made: made.arg.id))
    for node in toposort(sink):
        if node in done:
            continue
        named = named_ranges(node)
        src = [done[s] for s in node.src[: len(node.src) - len(named)]]
        src += [made for old in named for made in (new_axes if old is axis else (done[old],))]
        done[node] = node.with_src(tuple(src))
    return done[sink]

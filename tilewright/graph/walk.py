"""Walking and substituting. In: a graph. Out: its nodes in order, or the graph with some nodes exchanged.
Nothing recurses, so depth is bounded by memory alone. A pass that rebuilds a graph calls `map_graph`, or has rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tilewright.graph.ops import Ops
from tilewright.graph.uop import TILE_DOT_CLOSED, UOp


def toposort(*roots: UOp, stop: Callable[[UOp], bool] | None = None) -> list[UOp]:
    """Every node below the roots once, sources before users. A node for which `stop` holds is not entered further."""
    if stop is None and len(roots) == 1 and roots[0].op is Ops.SINK:
        return [*_nodes_below(roots[0]), roots[0]]
    order: list[UOp] = []
    seen: set[UOp] = set()
    path: list[UOp] = []  # the nodes that are entered
    waiting: list[Iterator[UOp]] = []  # what is left of the sources of each but the last, below the roots
    rest = iter(roots)
    while True:
        for node in rest:
            if node not in seen:
                seen.add(node)
                if node.src and (stop is None or not stop(node)):
                    path.append(node)
                    waiting.append(rest)
                    rest = iter(node.src)
                    break
                order.append(node)
        else:
            if not path:
                return order
            order.append(path.pop())
            rest = waiting.pop()


def _nodes_below(sink: UOp) -> list[UOp]:
    """Those of a kernel, kept on it: many passes walk a kernel and leave it as it is. Without the kernel itself, which
    must not hold itself."""
    found: list[UOp] | None = sink.cache.get("nodes-below")
    if found is None:
        found = sink.cache["nodes-below"] = toposort(*sink.src)
    return found


def consumers(nodes: Iterable[UOp]) -> dict[UOp, list[UOp]]:
    """For each node the nodes of the collection that use it, in order, once per user."""
    users: dict[UOp, list[UOp]] = {}
    for node in nodes:
        if node not in users:
            users[node] = []
        src = node.src
        for source in src if len(src) < 2 else dict.fromkeys(src):
            if source in users:
                users[source].append(node)
            else:
                users[source] = [node]
    return users


# Given a node and its new sources, what stands in its place; None is the same node over the new sources.
Visit = Callable[[UOp, tuple[UOp, ...]], UOp | None]


def map_graph(root: UOp, visit: Visit, nodes: Iterable[UOp] | None = None) -> UOp:
    """The graph with every node replaced as `visit` says, sources first. `nodes`, in topological order, limits the
    visit to them; a source that is not among them stays as it is."""
    return map_nodes(toposort(root) if nodes is None else nodes, visit).get(root, root)


def map_graphs(roots: Iterable[UOp], visit: Visit) -> list[UOp]:
    """`map_graph` of several roots, which share what they have in common."""
    roots = list(roots)
    replaced = map_nodes(toposort(*roots), visit)
    return [replaced[root] for root in roots]


def map_nodes(nodes: Iterable[UOp], visit: Visit) -> dict[UOp, UOp]:
    """What stands in the place of each node, given sources first. A replacement that has no line of the user's program
    takes that of the node it replaces."""
    replaced: dict[UOp, UOp] = {}
    changed: dict[UOp, UOp] = {}  # of these, those that something else replaces
    is_kept = changed.keys().isdisjoint
    for node in nodes:
        src = node.src
        if not is_kept(src):
            src = tuple([changed.get(source, source) for source in src])
        made = visit(node, src)
        if made is None:
            made = node if src is node.src else _over(node, src)
        elif made.line is None:
            made.line = node.line
        replaced[node] = made
        if made is not node:
            changed[node] = made
    return replaced


def _over(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """The node over sources of which some are others, at the same line of the user."""
    made = UOp(node.op, node.dtype, src, node.arg)
    if made.line is None:
        made.line = node.line
    return made


def without_casts(node: UOp) -> UOp:
    """What is below the casts of a node."""
    while node.op is Ops.CAST:
        node = node.src[0]
    return node


def substitute(root: UOp, exchanges: Mapping[UOp, UOp]) -> UOp:
    """The graph with each key exchanged for its value. Values are taken as they are: they are not searched again."""
    if not exchanges:
        return root
    made: dict[UOp, UOp] = dict(exchanges)  # of the nodes that change
    is_kept = made.keys().isdisjoint
    for node in toposort(root):
        if not is_kept(node.src) and node not in exchanges:
            made[node] = _over(node, tuple([made.get(src, src) for src in node.src]))
    return made.get(root, root)


_NAMING = frozenset({Ops.AFTER, Ops.BARRIER, Ops.END, Ops.REDUCE, Ops.TILE_DOT})  # those that name ranges


def named_ranges(node: UOp) -> tuple[UOp, ...]:
    """The last sources, among which ranges stand for themselves and not for a value computed from them."""
    if node.op is Ops.BARRIER:
        return node.src
    if node.op is Ops.TILE_DOT:
        return node.src[TILE_DOT_CLOSED:]
    return node.src[1:] if node.op in (Ops.REDUCE, Ops.END, Ops.AFTER) else ()


def size_of(axis: UOp) -> int:
    """The number of iterations of an axis; the maximum where its size is an expression."""
    size = axis.src[0]
    return int(size.arg) if size.op is Ops.CONST else int(size.vmax)


def exchange_axis(sink: UOp, axis: UOp, replacement: UOp) -> UOp:
    """The kernel with `axis` written as `replacement`, an expression of new axes; a reduction over `axis` becomes one
    over the new axes, and so is what is done in every iteration of `axis`."""
    return exchange_axes(sink, {axis: replacement})


def exchange_axes(sink: UOp, replacements: Mapping[UOp, UOp]) -> UOp:
    """`exchange_axis` of several axes at once."""
    made: dict[UOp, UOp] = dict(replacements)  # of the nodes that change
    is_kept = made.keys().isdisjoint
    for node in toposort(sink):
        src = node.src
        if is_kept(src):
            continue
        if node.op in _NAMING:
            named = len(named_ranges(node))
            values = [made.get(source, source) for source in src[: len(src) - named]]
            ranges = [new for old in src[len(src) - named :] for new in _new_axes(old, made, replacements)]
            src = (*values, *ranges)
        else:
            src = tuple([made.get(source, source) for source in src])
        made[node] = _over(node, src)
    return made.get(sink, sink)


def _new_axes(old: UOp, made: Mapping[UOp, UOp], replacements: Mapping[UOp, UOp]) -> Iterable[UOp]:
    """What a node names in the place of one of the nodes that it names."""
    if old in replacements:
        return sorted(replacements[old].ranges, key=lambda axis: axis.arg.id)
    return (made.get(old, old),)

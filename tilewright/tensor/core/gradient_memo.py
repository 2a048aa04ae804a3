"""Gradients of graphs of one structure, made again without the rules of their ops. In: the graph of a result, and which
of its nodes gradients are wanted of. Out: their gradients, where this structure has been differentiated before.

A training loop differentiates the same structure in each iteration. The rules of all ops, and the sums of what flows
to each node, then come to the same graph over other nodes, which is kept as a function of the nodes of the result."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from tilewright.base.records import NamedTuple
from tilewright.graph.functions import GraphFunction, function_of
from tilewright.graph.ops import Identity, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.tensor.core.graph_memo import Learned, may_remember, surroundings


class _Gradients(NamedTuple):
    """The gradients as a function of the nodes of the result; of each step the node whose line it gets."""

    wanted: tuple[int, ...]  # the nodes that the outputs are the gradients of, by number
    function: GraphFunction
    lines: tuple[int, ...]


# Keys are whole graphs, of which as many are kept as schedules.
_known: Learned[_Gradients] = Learned(1)


def gradients_of_structure(
    root: UOp, is_wanted: Callable[[UOp], bool], derive: Callable[[], Mapping[UOp, UOp]]
) -> Mapping[UOp, UOp]:
    """What `derive` gives: the gradient of each wanted node, from the graph below `root` alone."""
    if not may_remember():
        return derive()
    order = toposort(root)
    marks = {node for node in order if node.op is Ops.DETACH and node.arg.__class__ is Identity}
    if marks:
        order = [node for node in order if node not in marks]
    key = None if any(map(is_wanted, marks)) else _key_of(root, order, is_wanted)
    if key is None:
        return derive()
    try:
        known = _known[key]
    except KeyError:
        found = derive()
        _known.note(key, lambda: _as_function(order, found))
        return found
    return derive() if known is None else _applied(known, order)


def _key_of(root: UOp, order: list[UOp], is_wanted: Callable[[UOp], bool]) -> Hashable | None:
    """The structure of a graph, and which of its nodes are wanted; None where it is not made of memory and ops alone,
    or has a result of a replay, whose graph was not made."""
    memory = [node for node in order if node.op is Ops.BUFFER]
    if any(node._cache and "cut" in node._cache for node in memory):
        return None
    found = function_of([root], memory)
    if found is None:
        return None
    kinds = tuple([(node.dtype, node.arg.size, node.arg.device) for node in memory])
    wanted = tuple([number for number, node in enumerate(order) if is_wanted(node)])
    return found[0], kinds, wanted, surroundings()


def _as_function(order: list[UOp], gradients: Mapping[UOp, UOp]) -> _Gradients | None:
    found = function_of(list(gradients.values()), order)
    if found is None:
        return None
    function, numbers = found
    by_line = {node.line: number for number, node in reversed(list(enumerate(order)))}
    first = function.count + len(function.constants)
    lines = [len(order) - 1] * len(function.steps)
    for node, number in numbers.items():
        if number >= first:
            lines[number - first] = by_line.get(node.line, len(order) - 1)
    return _Gradients(tuple([order.index(node) for node in gradients]), function, tuple(lines))


def _applied(known: _Gradients, order: list[UOp]) -> dict[UOp, UOp]:
    values = known.function.apply(order, None)
    made = values[known.function.count + len(known.function.constants) :]
    for node, number in zip(made, known.lines):
        if node.line is None:
            node.line = order[number].line
    return {order[at]: values[number] for at, number in zip(known.wanted, known.function.outputs)}

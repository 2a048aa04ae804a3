"""Values that live tensors name, inside a graph that is computed. In: the nodes of the graph, bound. Out: the nodes to
keep along with its results.

    logits = model(x)
    loss = logits.cross_entropy(labels).item()      computes the logits on its way: they are kept, because
    best = logits.argmax(1).tolist()                the name `logits` can still be read

A value that was computed once is not computed again: the second computation would take the time of the first, and as
part of another kernel it might add up floats in another order, so that `y.max()` would not be equal to any element of
`y`. Values of few nodes without a reduction are not kept: computing them again takes about as long as reading them."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.engine.memory.live import live_nodes
from tilewright.engine.memory.parts import held_buffer, is_held
from tilewright.graph.kernels.custom import updated_source
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import element_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

MAX_NODES = 48  # of a value without a reduction that is computed again
_VIEWS = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.DETACH})
_REDUCTIONS = frozenset({Ops.REDUCE_AXIS, Ops.CUSTOM_KERNEL})


def find_named(computed: Collection[UOp], wanted: Collection[UOp]) -> list[UOp]:
    """The values among the nodes of `computed` that are kept although only `wanted` was asked for."""
    asked = {_base(node) for node in wanted}
    bases = dict.fromkeys(_base(node) for node in live_nodes() if held_buffer(node) is None)
    named = [node for node in bases if node in computed and node not in asked and not is_held(node)]
    joined = [part for node in bases if node not in computed for part in _joins_within(node) if part in computed]
    if not named and not joined:
        return []
    reduced = _find_reduced(named)
    kept = [value for node in named if node in reduced for value in _smallest(node, reduced)]
    kept += _find_grown([*(node for node in named if node not in reduced), *joined])
    return [node for node in dict.fromkeys(kept) if node not in asked and not is_held(node)]


def _find_grown(named: list[UOp]) -> list[UOp]:
    """The values that are joined of others, and those of many nodes: a sequence that grows by a token in each iteration
    would otherwise be joined of all its tokens in each of them."""
    weights: dict[UOp, int] = {}
    for node in toposort(*named, stop=is_held):
        below = () if is_held(node) else node.src
        weights[node] = min(MAX_NODES, 1 + sum([weights[src] for src in below]))
    grown = [node for node in named if weights[node] >= MAX_NODES or _is_join(node)]
    return [node for node in grown if updated_source(node) is None and not is_symbolic(node.shape)]


def _is_join(node: UOp) -> bool:
    return node.op is Ops.CAT or (node.op is Ops.WHERE and all(src.op is Ops.PAD for src in node.src[1:]))


def _joins_within(node: UOp) -> list[UOp]:
    """The joins that a join is made of: `tokens = tokens.cat(new)` leaves the tokens of before without a name."""
    if not _is_join(node):
        return []
    parts = [_base(src.src[0] if src.op is Ops.PAD else src) for src in node.src[-2:]]
    return [part for part in parts if _is_join(part) and not is_held(part)]


def _base(node: UOp) -> UOp:
    """The value that a node is a view of all elements of."""
    while node.op in _VIEWS and not is_held(node):
        node = node.src[0]
    return node


def _find_reduced(named: list[UOp]) -> set[UOp]:
    """The nodes below that depend on a reduction of memory. One of constants, such as a count, is not computed."""
    of_memory: set[UOp] = set()
    reduced: set[UOp] = set()
    for node in toposort(*named, stop=is_held):
        if node.op in (Ops.BUFFER, Ops.CUSTOM_KERNEL) or is_held(node) or not of_memory.isdisjoint(node.src):
            of_memory.add(node)
            if not is_held(node) and (node.op in _REDUCTIONS or not reduced.isdisjoint(node.src)):
                reduced.add(node)
    return reduced


def _smallest(node: UOp, reduced: set[UOp]) -> list[UOp]:
    """The value, or the reductions from which it follows element by element where these are fewer elements."""
    found = toposort(node, stop=lambda each: each not in reduced or not _is_followed(each))
    reductions = [each for each in found if each in reduced and not _is_followed(each)]
    if any(updated_source(each) is not None or is_symbolic(each.shape) for each in (node, *reductions)):
        return []
    is_smaller = sum(element_count(each.shape) for each in reductions) < element_count(node.shape)
    return reductions if is_smaller and all(each.op in _REDUCTIONS for each in reductions) else [node]


def _is_followed(node: UOp) -> bool:
    return node.op.is_elementwise or node.op in _VIEWS or node.op is Ops.PAD

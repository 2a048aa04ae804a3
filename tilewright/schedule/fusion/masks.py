"""Removes work that masks make redundant. In: the value of a kernel. Out: the same value with shorter sums and fewer
masked loads. A sum skips the terms that a mask makes 0; a load needs no mask where a selection discards its value
whenever the mask is false."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.base.dtype import dtypes
from tilewright.graph.ops import Axis, Ops
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import map_graph, substitute, toposort


def shorten_reductions(value: UOp) -> UOp:
    """The value with every reduction as short as it can be."""
    reduces = [node for node in toposort(value) if node.op is Ops.REDUCE]
    if all(shorten_reduction(node.arg, node.src[0], node.src[1:])[1] == node.src[1:] for node in reduces):
        return value

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.REDUCE:
            return None
        inner, loops = shorten_reduction(node.arg, src[0], src[1:])
        return node.with_src((inner, *loops))

    return map_graph(value, visit)


def shorten_reduction(op: Op, value: UOp, loops: tuple[UOp, ...]) -> tuple[UOp, tuple[UOp, ...]]:
    """The operand of a reduction, and its loops: a sum of sums becomes one sum, which ends where only zeros would
    follow.

    before: for c in 6: acc += (for d in 6: inner += x[y - c, z - d] if c < 5 and d < 5 and ... else 0)
    after:  for c in 5: for d in 5: acc += x[y - c, z - d] if ... else 0"""
    joined = loops
    # A small float is rounded after each of two sums.
    if value.op is Ops.REDUCE and value.arg is op and not (value.dtype.is_float and value.dtype.bits < 32):
        value, joined = value.src[0], (*loops, *value.src[1:])
    limits = loop_limits(conditions_of(value)) if op is Ops.ADD else {}
    if joined == loops and limits.keys().isdisjoint(loops):
        return value, loops
    sizes = [index_const(limits[loop]) if loop in limits else loop.src[0] for loop in joined]
    exchanges = new_loops(joined, sizes)
    return substitute(value, exchanges), tuple(exchanges.values())


def new_loops(loops: tuple[UOp, ...], sizes: list[UOp]) -> dict[UOp, UOp]:
    """For each loop of a reduction one of its own with another size: a loop that another reduction shares could neither
    be nested differently nor be shorter here."""
    first, suffix = loops[0].arg.id, tuple(-int(size.vmax) for size in sizes)
    return {
        loop: UOp(Ops.RANGE, dtypes.index, (size,), Axis((*first, *suffix, number), loop.arg.kind))
        for number, (loop, size) in enumerate(zip(loops, sizes, strict=True))
    }


def loop_limits(conditions: Iterable[UOp]) -> dict[UOp, int]:
    """The loops that conditions end early, and how many iterations each has left."""
    limits = {
        part.src[0]: int(part.src[1].arg)
        for part in conditions
        if part.op is Ops.CMPLT and part.src[0].op is Ops.RANGE and part.src[1].op is Ops.CONST
    }
    return {loop: limit for loop, limit in limits.items() if loop.src[0].is_const and 0 < limit < loop.src[0].arg}


def conditions_of(value: UOp) -> list[UOp]:
    """Conditions that must all hold for the value to be other than 0."""
    if value.op is Ops.CAST:
        return conditions_of(value.src[0])
    if is_selection(value):
        return parts_of(value.src[0], Ops.AND)
    if value.op is Ops.LOAD and len(value.src) == 1:
        return mask_parts(value.src[0])
    if value.op is Ops.REDUCE and value.arg is Ops.ADD:
        return [part for part in conditions_of(value.src[0]) if part.ranges.isdisjoint(value.src[1:])]
    return []


def is_selection(node: UOp) -> bool:
    """Whether the node is a value where a condition holds, else 0."""
    return node.op is Ops.WHERE and node.src[2].op is Ops.CONST and node.src[2].arg == 0


def mask_parts(index: UOp) -> list[UOp]:
    return parts_of(index.src[2], Ops.AND) if len(index.src) == 3 else []


def drop_masks(value: UOp) -> UOp:
    """Drops the masks of loads that a selection around them makes superfluous, where the load then is the same in many
    iterations: a weight is loaded once for a row of outputs, some of them outside its window.

    before: where(y - c < 20, x[y - c if y - c < 20] * w[c if y - c < 20], 0)
    after:  where(y - c < 20, x[y - c if y - c < 20] * w[c], 0)"""
    nodes = toposort(value)
    repeated = [node for node in nodes if node.op is Ops.INDEX and is_repeated_by_mask(node)]
    if not repeated:
        return value
    selected = selecting_conditions(nodes)
    exchanges = {
        index: UOp(Ops.INDEX, index.dtype, index.src[:2])
        for index in repeated
        if selected[index].issuperset(mask_parts(index))
    }
    return substitute(value, exchanges)


def is_repeated_by_mask(index: UOp) -> bool:
    """Whether the position is always inside the buffer, and each part of the mask depends on a loop that the position
    does not depend on."""
    buffer, position = index.src[:2]
    parts = mask_parts(index)
    if not parts or position.vmin < 0 or position.vmax >= buffer.arg.size:
        return False
    return not any(part.ranges <= position.ranges for part in parts)


def selecting_conditions(nodes: list[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For each node, sources first, the conditions that must all hold for its value to be used. What a conjunction
    joins with a comparison of indices is used where that holds: `j < 9 and 0 < x[i if j < 9]` needs no mask at x."""
    found: dict[UOp, frozenset[UOp]] = {nodes[-1]: frozenset()}
    loading: set[UOp] = set()
    for node in nodes:
        if node.op is Ops.LOAD or not loading.isdisjoint(node.src):
            loading.add(node)
    for node in reversed(nodes):
        own = found[node]
        if node.op is Ops.AND and node.dtype.is_bool:
            # Of conditions that load, each would be used where the others hold, and they where it does.
            own = own | frozenset(part for part in parts_of(node, Ops.AND) if part not in loading)
        for position, src in enumerate(node.src):
            inside = own | frozenset(conditions_of(node)) if position == 1 and is_selection(node) else own
            found[src] = inside if src not in found else found[src] & inside
    return found

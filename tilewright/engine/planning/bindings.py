"""Values of variables that cannot be computed together. In: nodes whose sizes bind a variable to two values. Out: parts
of the graph that bind it to one each, to be computed one after the other before the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.engine.memory.parts import held_buffer, is_held
from tilewright.graph.ops import Ops
from tilewright.graph.symbolic import Bindings, SymbolicInt, map_sizes
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

_NONE: frozenset[tuple[str, int]] = frozenset()


def parts_of_one_binding(nodes: Sequence[UOp]) -> list[UOp]:
    """The nodes to compute first, so that fewer remain that bind a variable twice: sources of a node that are
    consistent each but not together, and requested values that are not consistent together. None where all of them are
    in memory and only shapes disagree."""
    wanted = [node for node in dict.fromkeys(nodes) if held_buffer(node) is None]
    found: dict[UOp, frozenset[tuple[str, int]] | None] = {}  # None where a variable has two values
    apart: dict[UOp, None] = {}
    for node in toposort(*wanted, stop=is_held):
        sources = () if is_held(node) else node.src
        merged = _agreed([_own_bindings(node), *(found[src] for src in sources)])
        found[node] = merged
        if merged is None and all(found[src] is not None for src in sources):
            apart.update(dict.fromkeys(src for src in _values_of(node) if found[src] and held_buffer(src) is None))
    if not apart and _agreed([found[node] for node in wanted]) is None:
        apart.update(dict.fromkeys(node for node in wanted if found[node] is not None))
    return list(apart)


def _values_of(node: UOp) -> tuple[UOp, ...]:
    """The sources of a node that may be computed by themselves. The view that an update stores to is not a value."""
    return (node.src[0], node.src[2]) if node.op is Ops.ASSIGN else node.src


def _own_bindings(node: UOp) -> frozenset[tuple[str, int]]:
    """The values that the sizes of a node bind, or those of its shape where it is in memory."""
    found: set[tuple[str, int]] = set()

    def note(size: SymbolicInt) -> SymbolicInt:
        bindings: Bindings = size.bindings or ()
        found.update(bindings)
        return size

    arg: Any = node.shape if is_held(node) else node.arg
    map_sizes(arg, note)
    return frozenset(found) if found else _NONE


def _agreed(parts: Sequence[frozenset[tuple[str, int]] | None]) -> frozenset[tuple[str, int]] | None:
    """All bindings; None where two of them give one variable different values."""
    merged: set[tuple[str, int]] = set()
    for part in parts:
        if part is None:
            return None
        merged |= part
    return frozenset(merged) if len({name for name, _ in merged}) == len(merged) else None

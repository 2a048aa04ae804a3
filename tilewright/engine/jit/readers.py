"""Other readers of memory that is about to be overwritten. In: buffers, and their owners: the tensors that will see the
new contents. Out: whether any other tensor can read the old ones.

A reader of a buffer refers to its node. Where the reference count of each node is that of its owners, there is no other
reader, however many tensors are alive. Where it is higher, all live tensors are searched: the reference may be that of
a value that has been computed already and only remembers its sources."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getrefcount
from typing import Any

from tilewright.base.dtype import dtypes
from tilewright.engine.jit.guards import memories_of
from tilewright.engine.memory import live
from tilewright.engine.memory.parts import held_buffer
from tilewright.graph.build import new_buffer, reshape
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import Buffer

# Facts about a BUFFER node that do not depend on its contents.
_LASTING_FACTS = frozenset({"buffer", "parameter"})


def leaves_of(node: UOp) -> list[UOp]:
    """The nodes with memory that a value is computed from."""
    if held_buffer(node) is not None:
        return [node]
    return [n for n in toposort(node, stop=lambda n: held_buffer(n) is not None) if held_buffer(n) is not None]


def is_read_by_others(written: set[Buffer], owners: list[Any], known: Iterable[int]) -> bool:
    """Whether a tensor that is not an owner, nor among `known` (ids), can still read what is overwritten: all live
    tensors are searched."""
    ours = {id(owner) for owner in owners}.union(known)
    for holder in live.holders():
        if id(holder) in ours:
            continue
        if not all(written.isdisjoint(memories_of(node)) for node in leaves_of(holder.uop)):
            return True
    return False


def have_no_readers(owners: Iterable[Any]) -> bool:
    """Whether nothing but the owners refers to their nodes, each of which is memory or reshaped memory. Such nodes may
    keep standing for the memory after an update."""
    expected: dict[UOp, int] = {}
    for owner in dict.fromkeys(owners):
        node = owner.__dict__.get("uop")
        if node is not None and not _expect(node, expected):
            return False  # an owner without a node was made from memory, which nothing else refers to
    node = None
    return _counts(expected) == [wanted + _UNHELD for wanted in expected.values()]


def _expect(node: UOp, expected: dict[UOp, int]) -> bool:
    """Counts the reference of an owner to its node, and those from there to its memory. False where there are others: a
    computed value has more, and another node may have the same tuple of sources."""
    is_new = node not in expected
    expected[node] = expected.get(node, 0) + 1
    while is_new and node.op is Ops.RESHAPE and not node._cache:
        if getrefcount(node.src) != _SOURCES:
            return False
        node = node.src[0]
        is_new = node not in expected
        expected[node] = expected.get(node, 0) + 1
    # Memory that is shared with an array has readers without a reference to the node (`holder`, `borrowed`), and facts
    # about the old contents, such as the bounds of an index, do not hold for the new ones.
    return node.op is Ops.BUFFER and node.cache.keys() <= _LASTING_FACTS


def _counts(nodes: Iterable[UOp]) -> list[int]:
    return [getrefcount(node) for node in nodes]


def _count_references() -> tuple[int, int]:
    """The results of `getrefcount` above, in this version of Python, for the sources of a node, and for a node that
    only the table refers to."""
    table = {new_buffer(dtypes.uint8, 2, ""): 0}
    (unheld,) = _counts(table)
    (buffer,) = table
    view = reshape(buffer, (1, 2))
    return getrefcount(view.src), unheld


_SOURCES, _UNHELD = _count_references()

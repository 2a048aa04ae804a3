"""Buffers that another thread may be about to read. In: nodes to compute, and the BUFFERs that computing them
overwrites. Out: the BUFFERs that something outside of the graph of these nodes still refers to.

Tensors are found by their holders (`live`). Between reading a tensor's node and registering its result, an operation of
another thread has the node in a local variable alone: only reference counts show it. To read old contents it has to
refer to a node on a path to them. So the references of the graph itself are counted along all paths, and a node with
more of them is referred to from outside. That may be a computed value that only keeps its sources: then contents are
copied that nobody reads, which changes no result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from sys import getrefcount

from tilewright.base.dtype import dtypes
from tilewright.engine.memory.parts import buffers_of
from tilewright.graph.build import new_buffer, reshape
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

# The references to each BUFFER of the given set, of a list of the caller, and of the numbering.
_KNOWN_REFERENCES = 3


def find_exposed(wanted: Sequence[UOp], overwritten: set[UOp], is_held: Callable[[UOp], bool]) -> list[UOp]:
    """`overwritten` holds a reference to each BUFFER, and one list of the caller's another. For programs of several
    threads: in one thread no other operation is under way."""
    order = toposort(*wanted, _sample(), stop=is_held)
    ends = set(wanted)  # their readers read new contents
    number = {buffer: 1 << bit for bit, buffer in enumerate(overwritten)}
    known = Counter(dict.fromkeys(overwritten, _KNOWN_REFERENCES))
    sources: Counter[int] = Counter()
    below: dict[UOp, int] = {}  # the BUFFERs whose old contents each node leads to, a bit for each
    for node in order:
        if is_held(node):
            below[node] = sum(number.get(buffer, 0) for buffer in set(_note_held(node, known)))
            continue
        sources[id(node.src)] += 1
        if sources[id(node.src)] == 1:
            known.update(node.src)
        below[node] = number.get(node, 0)
        if node not in ends:
            for source in node.src:
                below[node] |= below[source]
    del node, source
    # Nothing else refers to the sample: its references are those of the containers here.
    buffer, view = order[-2], order[-1]
    spare, spare_tuple = _references(buffer, known), getrefcount(view.src) - 2
    del buffer, view
    found = 0
    for node in order:
        if below[node] & ~found and (_references(node, known) > spare or _is_tuple_shared(node, sources, spare_tuple)):
            found |= below[node]
    return [buffer for buffer, bit in number.items() if found & bit]


def _sample() -> UOp:
    return reshape(new_buffer(dtypes.uint8, 2, ""), (1, 2))


def _references(node: UOp, known: Counter[UOp]) -> int:
    """The references from outside of the graph, and those of local containers."""
    return getrefcount(node) - known[node]


def _is_tuple_shared(node: UOp, sources: Counter[int], spare: int) -> bool:
    """Whether a node outside of the graph has the same tuple of sources; each node refers to it twice, once in its
    key."""
    return bool(node.src) and id(node.src) in sources and getrefcount(node.src) - 2 * sources[id(node.src)] > spare


def _note_held(node: UOp, known: Counter[UOp]) -> list[UOp]:
    """Counts the references to the buffer of a value in the caches of the node and of the nodes that it reshapes."""
    held: UOp = node.cache["realized"]
    buffers = buffers_of(held)
    while node._cache is not None and node._cache.get("realized") is held:
        known.update([held])
        if not node.src:
            break
        node = node.src[0]
    return buffers

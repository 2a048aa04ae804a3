"""Who else reads memory that an update overwrites. In: the updates, and the values that are asked for. Out: the buffers
whose contents stay, because the update goes to memory of its own; and values of outsiders to compute before it."""

from __future__ import annotations

from tilewright.engine.memory.live import live_nodes
from tilewright.engine.memory.parts import buffers_of, has_contents, held_buffer, is_held
from tilewright.graph.kernels.custom import updated_source
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Kind
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import FileBuffer, buffer_of


def find_pinned(assigns: list[UOp], wanted: list[UOp], makes_extra: bool = True) -> tuple[set[UOp], list[UOp]]:
    """What outsiders can still read of the memory that is updated. An outside value that is computed from it is made
    now, along with the update; the contents of a buffer that an outsider merely views are kept, and the update goes to
    memory of its own. So it does for the values of outsiders where `makes_extra` is not set; of a chain of updates the
    versions that they read are kept then. An update of a file goes to the file: parts of it are made now, and the run
    copies what outsiders read whole. Who reads memory that is lost can never be computed, and holds nobody up."""
    if not assigns:
        return set(), []
    asked = set(wanted)
    passing = set(assigns).difference(asked)  # versions of memory that nobody has asked for
    updated = {buffer for node in assigns for buffer in memory_behind(node)}
    outside = [held for held in live_nodes() if _may_read(held, updated)]
    outside = [held for held in outside if held not in asked and held_buffer(held) not in asked]
    reached = _Reached(outside, asked, passing, updated)
    pinned: set[UOp] = set()
    extra: list[UOp] = []
    for held in outside:
        bits = reached.bits[held]
        if bits & _LOST or not bits:
            continue
        old = reached.buffers(bits)
        in_file = any(type(buffer_of(node)) is FileBuffer for node in old)
        is_made = not _is_whole(held) if in_file else not _is_view(held)
        if makes_extra and (bits & _PASSING or is_made):
            extra.append(held)
            continue
        if bits & _PASSING:
            extra += [node for node in reached.nodes_below(held) if node in passing]
        if not in_file:
            pinned.update(old)
    return pinned, list(dict.fromkeys(extra))


def _may_read(held: UOp, updated: set[UOp]) -> bool:
    """Whether a value is more than memory that is not updated: of all that is alive, most is not."""
    while held.op is Ops.RESHAPE:
        held = held.src[0]
    return held.op is not Ops.BUFFER or held in updated


_LOST, _PASSING, _FIRST_BUFFER = 1, 2, 4


class _Reached:
    """What the values of outsiders are computed from, all found in one walk: a bit for memory that is lost, one for a
    passing version, and one for each buffer that is updated."""

    def __init__(self, outside: list[UOp], asked: set[UOp], passing: set[UOp], updated: set[UOp]) -> None:
        self.asked = asked
        self.updated = {buffer: _FIRST_BUFFER << number for number, buffer in enumerate(updated)}
        self.bits: dict[UOp, int] = {}
        for node in toposort(*outside, stop=self._is_end):
            bits = _PASSING if node in passing else 0
            if node.op is Ops.BUFFER and not has_contents(node):
                bits |= _LOST
            for buffer in _buffers_read(node):
                bits |= self.updated.get(buffer, 0)
            if node.src and not self._is_end(node):
                for src in node.src:
                    bits |= self.bits[src]
            self.bits[node] = bits

    def _is_end(self, node: UOp) -> bool:
        return is_held(node) or node in self.asked

    def buffers(self, bits: int) -> list[UOp]:
        return [buffer for buffer, bit in self.updated.items() if bits & bit]

    def nodes_below(self, held: UOp) -> list[UOp]:
        return toposort(held, stop=self._is_end)


def memory_behind(assign: UOp) -> list[UOp]:
    """The buffers that a chain of updates goes to; none where they are not there yet."""
    base = assign
    while not is_held(base):
        inner = updated_source(base)
        if inner is None and base.op in (Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS):
            inner = base.src[0]
        if inner is None:
            break
        base = inner
    if base.op is Ops.MULTI and not is_held(base):
        return [buffer for part in base.src for buffer in memory_behind(part)]
    return _buffers_read(base)


def _buffers_read(node: UOp) -> list[UOp]:
    """The memory that a node is, or is held in."""
    if is_held(node):
        held = node.cache["realized"]
        return buffers_of(held)
    return [node] if node.op is Ops.BUFFER else []


def _is_whole(node: UOp) -> bool:
    """Whether a value is all that is in memory, in its order."""
    while not is_held(node) and node.op in (Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS):
        node = node.src[0]
    return node.op is Ops.BUFFER or is_held(node)


def _is_view(node: UOp) -> bool:
    while not is_held(node) and (node.op.kind is Kind.MOVEMENT or node.op is Ops.DETACH):
        node = node.src[0]
    if node.op is Ops.MULTI and not is_held(node):
        return all(map(_is_view, node.src))
    return node.op is Ops.BUFFER or is_held(node)

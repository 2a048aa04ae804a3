"""Other readers of memory that an update overwrites. In: the updates, and the requested values. Out: the buffers whose
contents are kept, because the update goes to new memory; and values of outsiders to compute before it."""

from __future__ import annotations

from tilewright.engine.memory.live import live_nodes
from tilewright.engine.memory.parts import buffers_of, has_contents, held_buffer, is_held
from tilewright.graph.build import stored_root
from tilewright.graph.kernels.custom import updated_source
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Kind
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import FileBuffer, buffer_of


def find_pinned(assigns: list[UOp], wanted: list[UOp], makes_extra: bool = True) -> tuple[set[UOp], list[UOp]]:
    """The buffers whose contents must be kept, and the values of outsiders to compute with the updates. A value of an
    outsider that reads updated memory is computed now, before the update. The contents of a buffer that an outsider
    only views are kept, and the update goes to new memory; the same holds for values of outsiders where `makes_extra`
    is not set, and of a chain of updates the versions that they read are kept. An update of a file goes to the file:
    values that read parts of it are computed now, and the run copies what outsiders read whole. A reader of lost memory
    can never be computed, and is ignored."""
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
    """Whether a live value depends on more than memory that is not updated; most do not."""
    root = stored_root(held)
    return root.op is not Ops.BUFFER or root in updated


_LOST, _PASSING, _FIRST_BUFFER = 1, 2, 4


class _Reached:
    """What the values of outsiders depend on, found in one walk: a bit for lost memory, one for a version that nobody
    asked for, and one for each updated buffer."""

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
    """The buffers that a chain of updates writes to; none where they are not allocated yet."""
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
    """Whether a value is the whole of its memory, in order."""
    while not is_held(node) and node.op in (Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS):
        node = node.src[0]
    return node.op is Ops.BUFFER or is_held(node)


def _is_view(node: UOp) -> bool:
    while not is_held(node) and (node.op.kind is Kind.MOVEMENT or node.op is Ops.DETACH):
        node = node.src[0]
    if node.op is Ops.MULTI and not is_held(node):
        return all(map(_is_view, node.src))
    return node.op is Ops.BUFFER or is_held(node)

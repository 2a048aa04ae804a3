"""Who else reads memory that an update overwrites. In: the updates, and the values that are asked for. Out: the buffers
whose contents stay, because the update goes to memory of its own; and values of outsiders to compute before it."""

from __future__ import annotations

from tilewright.engine.live import live_nodes
from tilewright.engine.parts import buffers_of, has_contents, held_buffer, is_held
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
    wanted_set = set(wanted)
    ours = set(assigns)
    updated = {buffer for node in assigns for buffer in memory_behind(node)}
    pinned: set[UOp] = set()
    extra: list[UOp] = []
    for held in live_nodes():
        if held in wanted_set or held_buffer(held) in wanted_set:
            continue
        reached = toposort(held, stop=lambda node: is_held(node) or node in wanted_set)
        if any(node.op is Ops.BUFFER and not has_contents(node) for node in reached):
            continue
        old = updated.intersection(buffer for node in reached for buffer in _buffers_read(node))
        is_passing_version = any(node in ours and node not in wanted_set for node in reached)
        if not old and not is_passing_version:
            continue
        in_file = any(type(buffer_of(node)) is FileBuffer for node in old)
        is_made = not _is_whole(held) if in_file else not _is_view(held)
        if makes_extra and (is_passing_version or is_made):
            extra.append(held)
            continue
        if is_passing_version:
            extra += [node for node in reached if node in ours and node not in wanted_set]
        if not in_file:
            pinned.update(old)
    return pinned, list(dict.fromkeys(extra))


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

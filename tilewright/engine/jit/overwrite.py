"""Replays that overwrite memory of tensors. In: the tensors, the memory, and what runs the kernels. Out: it has run,
and what was computed from old contents keeps those.

Where somebody else may read the old contents, the tensors get new nodes before anything is overwritten, all at once: an
operation of another thread that reads a tensor meanwhile gets the new node, and waits for its contents
(`runtime.access`). One that has the old node already finds a copy of the old contents there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, TypeVar

from tilewright.base.dtype import dtypes
from tilewright.engine.execution.realize import running
from tilewright.engine.jit.guards import memory_of
from tilewright.engine.jit.readers import have_no_readers
from tilewright.engine.memory import live
from tilewright.engine.memory.parts import buffers_of, exchange_buffers, held_buffer
from tilewright.graph.build import new_buffer, reshape
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.runtime.access import begin_overwrite, end_overwrite, has_other_threads, keep_contents
from tilewright.runtime.buffer import Buffer, buffer_node

R = TypeVar("R")


class Changed(Exception):
    """Another thread has given a tensor another value since the call was bound; bind it again."""


def overwrite(
    owners: Sequence[Any], written: set[Buffer], follow: Callable[[Sequence[Any]], None], run: Callable[[], R]
) -> R:
    """Calls `run`, which overwrites memory of these tensors; `follow` is called with those that have new nodes.
    `Changed` where one of them has other memory by now: nothing has run then.

    Where nothing but the tensors refers to their nodes, the nodes stay: a thread that takes one from here on waits for
    the new contents, and one that had taken it before would show in its reference count."""
    with running:
        begin_overwrite(written)
        try:
            if have_no_readers(owners) and all(memory_of(owner.uop) in written for owner in owners):
                return run()
        finally:
            end_overwrite(written)
        with live.exchanging:
            old = _renew(owners, written)
            follow(owners)
        for node in _referred_to(old):
            keep_contents(node)
        begin_overwrite(written)
        try:
            return run()
        finally:
            end_overwrite(written)


def _renew(owners: Sequence[Any], written: set[Buffer]) -> list[UOp]:
    """Gives the tensors new nodes; returns the BUFFERs of the old contents."""
    found = [held_buffer(owner.uop) for owner in owners]
    for held in found:
        if held is None or written.isdisjoint([buffer.cache.get("buffer") for buffer in buffers_of(held)]):
            raise Changed
    renewed: dict[UOp, UOp] = {}

    def renew(node: UOp) -> UOp:
        made = renewed.get(node)
        if made is None:
            buffer = node.cache["buffer"]
            if buffer not in written:
                return node
            made = renewed[node] = buffer_node(buffer)
        return made

    for owner, held in zip(owners, found, strict=True):
        assert held is not None
        node = renew(held) if held.op is Ops.BUFFER else exchange_buffers(held, renew)
        owner.uop = reshape(node, owner.uop.shape)
    return list(renewed)


def _referred_to(buffers: list[UOp]) -> list[UOp]:
    """The BUFFERs that something else refers to, such as an operation of another thread. Without other threads nothing
    reads them, and they are detached from their memory."""
    if not has_other_threads():
        for node in buffers:
            del node.cache["buffer"]
        return []
    return [node for node in buffers if getrefcount(node) > _ALONE]


def _count_alone() -> int:
    """The result of `getrefcount` in `_referred_to` for a node that only the list refers to."""
    buffers = [new_buffer(dtypes.uint8, 1, "")]
    (count,) = [getrefcount(node) for node in buffers]
    return count


_ALONE = _count_alone()

"""Nodes whose value is in memory. In: a node. Out: whether an assignment may write to it, and the promise that none
overwrites what it stands for; and the line of the user for new nodes. Below `core`: nothing here knows of tensors."""

from __future__ import annotations

import weakref

from tilewright.base.dtype import dtypes
from tilewright.base.location import user_location
from tilewright.engine import live
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Devices
from tilewright.graph.uop import UOp

# What leaves a value as it is.
_TRANSPARENT = (Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS)


def mark_line(node: UOp) -> None:
    """Gives the user's line to the node and to those below it that have none, which are the ones just made."""
    if node.line is not None:
        return
    line = user_location()
    stack = [node]
    while stack:
        top = stack.pop()
        if top.line is None:
            top.line = line
            stack.extend(top.src)


def has_memory(node: UOp) -> bool:
    """Whether there is memory that an assignment may write to."""
    root = build.stored_root(node)
    return all(map(has_memory, root.src)) if root.op is Ops.MULTI else root.op in (Ops.BUFFER, Ops.ASSIGN)


def stored_value(node: UOp, buffer: UOp) -> UOp:
    """What a tensor becomes when `buffer` holds its value: the buffer; or, where that is the memory of a tensor that it
    is a copy or a detached view of, a node of its own over it, which gradients stop at if they did before."""
    if node.op not in _TRANSPARENT:
        return buffer
    below, is_cut = node, False
    while below.op in _TRANSPARENT:
        is_cut = is_cut or (below.op is Ops.DETACH and below.arg is None)
        below = below.src[0]
    if below is build.stored_root(node) or not has_memory(below):
        return buffer
    apart = build.identical(buffer)
    return build.detach(apart) if is_cut else apart


class NodeHolder:
    """Holds the value of a node as a tensor would, as long as the node is alive."""

    def __init__(self, node: UOp, device: Devices) -> None:
        # Weak, because the node keeps this object: a cycle would keep large arrays until a collection.
        self._node = weakref.ref(node)
        self.device = device

    @property
    def uop(self) -> UOp:
        node = self._node()
        return build.const(dtypes.bool, False) if node is None else node

    @uop.setter
    def uop(self, node: UOp) -> None:
        """It holds one node for good."""


def keep_value(node: UOp, device: Devices) -> None:
    """Keeps what a node stands for from being lost to an update of what it was computed from. For memory that is read
    without a copy (a NumPy array, bytes) and for random numbers, which gradients ask for again."""
    holder = NodeHolder(node, device)
    node.cache["holder"] = holder
    live.register(holder)


def protect_borrowed(buffer: UOp) -> None:
    """Keeps the contents of a BUFFER from being overwritten, by anyone."""
    keep_value(buffer, buffer.arg.device)
    buffer.cache["borrowed"] = True

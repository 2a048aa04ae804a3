"""Nodes whose value is in memory. In: a node. Out: whether its value is in memory and may be written to; new memory of
its shape; the guarantee that no assignment overwrites a value that is still read; the user's line for new nodes.
Below `base`: nothing here knows the class of tensors."""

from __future__ import annotations

import math
import weakref

from tilewright.base.dtype import DType, dtypes
from tilewright.base.location import user_location
from tilewright.engine.memory import live
from tilewright.engine.memory.parts import layout_of
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.slices import replace_axis
from tilewright.graph.spec import Devices, Shape
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer, new_buffer

Layout = tuple[int | None, tuple[int, ...]]
WHOLE: Layout = (None, ())

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
    """Whether the value is in memory that an assignment may write to."""
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
    apart = marks.identical(buffer)
    return marks.detach(apart) if is_cut else apart


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
    """Keeps the value of a node from being lost to an update of its sources. For memory that is read without a copy (a
    NumPy array, bytes) and for random numbers, which gradients need again."""
    holder = NodeHolder(node, device)
    node.cache["holder"] = holder
    live.register(holder)


def protect_borrowed(buffer: UOp) -> None:
    """Keeps the contents of a BUFFER from being overwritten, by anyone."""
    keep_value(buffer, buffer.arg.device)
    buffer.cache["borrowed"] = True


# ---------------------------------------------------------------- new memory


def new_memory(device: Devices, dtype: DType, shape: Shape, layout: Layout = WHOLE) -> UOp:
    """Memory for a value: on one device, or on each of several for a copy or a part of it."""
    if isinstance(device, str):
        return build.reshape(new_buffer(device, dtype, math.prod(shape)), shape)
    axis, sizes = layout
    shapes = [shape] * len(device) if axis is None else [replace_axis(shape, axis, size) for size in sizes]
    parts = [build.reshape(new_buffer(name, dtype, math.prod(own)), own) for name, own in zip(device, shapes)]
    return build.multi(parts, axis, device)


def memory_like(node: UOp, device: Devices, dtype: DType | None = None) -> UOp:
    """Memory for another value of the shape of a node, on the same devices and with the same layout."""
    layout = WHOLE if isinstance(device, str) else layout_of(node)
    return new_memory(device, dtype or node.dtype, node.shape, layout)


def in_memory(node: UOp) -> bool:
    """Whether a value needs no computation: memory below reshapes and nodes that only gradients see."""
    root = build.stored_root(node)
    while root.op is Ops.DETACH:
        root = build.stored_root(root.src[0])
    return all(map(in_memory, root.src)) if root.op is Ops.MULTI else root.op is Ops.BUFFER


def holds_nothing(node: UOp) -> bool:
    """Whether a value is memory that was never written, as `Tensor.empty` gives it."""
    root = build.stored_root(node)
    if root.op is Ops.MULTI:
        return all(map(holds_nothing, root.src))
    buffer = root.cache.get("buffer") if root.op is Ops.BUFFER else None
    return isinstance(buffer, Buffer) and buffer.memory is None


def first_device(device: Devices) -> str:
    return device if isinstance(device, str) else device[0]

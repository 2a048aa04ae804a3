"""The node that holds a value: a BUFFER, or a MULTI of BUFFERs where it is on several devices. In: a graph with MULTI
nodes; the buffers of their parts. Out: nodes of one device each; the node that holds a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.base.errors import UserError
from tilewright.engine.recent import RecentTable
from tilewright.graph.build import multi, reshape, stored_root
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import rebound
from tilewright.graph.uop import UOp

if TYPE_CHECKING:
    from tilewright.schedule.sharding.shard import Division

divisions: RecentTable[tuple[UOp, ...], tuple[Division, ...]] = RecentTable()


def divide_outputs(outputs: tuple[UOp, ...]) -> tuple[Division, ...]:
    """The parts of each output; memoised by graph."""
    found = divisions.get(outputs)
    if found is None:
        from tilewright.schedule.sharding.shard import divide_graph  # most programs use one device

        found = divide_graph(outputs)
        divisions[outputs] = found
    return found


def join_parts(divisions: Sequence[Division], buffers: Sequence[UOp], values: Mapping[str, int]) -> list[UOp]:
    """The node that holds each output, from the buffers of all parts in order; `values` are of the variables in
    sizes."""
    remaining = iter(buffers)
    held: list[UOp] = []
    for nodes, arg in divisions:
        if arg is None:
            held.append(next(remaining))
        else:
            parts = [reshape(next(remaining), rebound(node.shape, values)) for node in nodes]
            held.append(multi(parts, arg.axis, arg.devices))
    return held


def buffers_of(held: UOp) -> list[UOp]:
    """The BUFFERs of a node that holds a value."""
    root = stored_root(held)
    return [buffer for part in root.src for buffer in buffers_of(part)] if root.op is Ops.MULTI else [root]


def has_contents(held: UOp) -> bool:
    """Whether a BUFFER or MULTI still has its contents: an update in place gives the memory of a BUFFER to a newer
    node. One that was lost by an error keeps the error."""
    if held.op is Ops.BUFFER:
        cache = held._cache
        return cache is not None and ("buffer" in cache or isinstance(cache.get("lost"), UserError))
    return all(map(has_contents, held.src))


def exchange_buffers(held: UOp, exchange: Callable[[UOp], UOp]) -> UOp:
    """A BUFFER or MULTI with other nodes in place of its BUFFERs."""
    if held.op is Ops.BUFFER:
        return exchange(held)
    return held.with_src(tuple(exchange_buffers(part, exchange) for part in held.src))


def held_buffer(node: UOp) -> UOp | None:
    """The buffer that holds a value already, or the MULTI of those that do: its own, or one seen through reshapes."""
    while True:
        if node.op is Ops.BUFFER:
            return node
        # Read once, because no lock is held: another thread may replace it.
        held: UOp | None = node._cache.get("realized") if node._cache else None
        if held is not None and has_contents(held):
            return held
        if node.op is Ops.MULTI:
            return _held_parts(node)
        if node.op not in (Ops.RESHAPE, Ops.DETACH):
            return None
        node = node.src[0]


def is_held(node: UOp) -> bool:
    """Whether memory has the value already. Equal expressions share a node: where one of them has updated that memory,
    the value has to be recomputed for the others."""
    held = node._cache.get("realized") if node._cache else None
    return held is not None and has_contents(held)


def _held_parts(node: UOp) -> UOp | None:
    """The MULTI of the buffers that hold the parts of a MULTI; None where one is not held."""
    held = [held_buffer(part) for part in node.src]
    if any(part is None for part in held):
        return None
    parts = [reshape(buffer, part.shape) for buffer, part in zip(held, node.src, strict=True) if buffer is not None]
    return multi(parts, node.arg.axis, node.arg.devices)


def layout_of(node: UOp) -> tuple[int | None, tuple[int, ...]]:
    """The axis along which a value of several devices is divided, None where each has all of it; the size of each
    part along the axis."""
    while node.op in (Ops.CONTIGUOUS, Ops.DETACH):
        node = node.src[0]
    held = held_buffer(node)
    if held is not None and held.op is Ops.MULTI and held.shape == node.shape:
        node = held  # it is divided already
    parts, arg = node.src, node.arg
    if node.op is not Ops.MULTI:
        from tilewright.schedule.sharding.shard import divide_graph

        ((parts, arg),) = divide_graph((node,))
    axis = None if arg is None else arg.axis
    return axis, () if axis is None else tuple(part.shape[axis] for part in parts)

"""Movements of values that are divided among devices. In: a movement node, and the parts of its source. Out: the parts
of the result, moved part by part; None where the source must be gathered first. `shard.py` calls it."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.slices import even_sizes, replace_axis
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.schedule.sharding.collectives import arrange, pieces_of
from tilewright.schedule.sharding.layouts import Layout, Sharded, reshaped, shrunk


def _reshape(node: UOp, sharded: Sharded) -> Sharded | None:
    layout = reshaped(sharded.layout, node.src[0].shape, node.shape)
    if layout is None:
        return None
    shapes = layout.part_shapes(node.shape, len(sharded.parts))
    return Sharded(tuple(map(build.reshape, sharded.parts, shapes)), layout, sharded.devices)


def _expand(node: UOp, sharded: Sharded) -> Sharded | None:
    axis = sharded.layout.axis
    assert axis is not None
    if node.shape[axis] != node.src[0].shape[axis]:
        return None
    shapes = sharded.layout.part_shapes(node.shape, len(sharded.parts))
    return sharded._replace(parts=tuple(map(build.expand, sharded.parts, shapes)))


def _permute(node: UOp, sharded: Sharded) -> Sharded:
    parts = tuple(build.permute(part, node.arg) for part in sharded.parts)
    return Sharded(parts, Layout(node.arg.index(sharded.layout.axis), sharded.layout.sizes), sharded.devices)


def _pad(node: UOp, sharded: Sharded) -> Sharded:
    """Zeros along the divided axis go to every device alike: joining two values pads both to the same size."""
    axis = sharded.layout.axis
    assert axis is not None
    before, after = node.arg[axis]
    others = replace_axis(node.arg, axis, (0, 0))
    padded = sharded._replace(parts=tuple(build.pad(part, others) for part in sharded.parts))
    if not before and not after:
        return padded
    layout = Layout(axis, even_sizes(node.shape[axis], len(sharded.devices)))
    return arrange(pieces_of(padded, before), layout, sharded.devices)


def _shrink(node: UOp, sharded: Sharded) -> Sharded:
    axis = sharded.layout.axis
    assert axis is not None
    layout, kept = shrunk(sharded.layout, *node.arg[axis])
    cut = (build.shrink(part, replace_axis(node.arg, axis, pair)) for part, pair in zip(sharded.parts, kept))
    return Sharded(tuple(cut), layout, sharded.devices)


def _flip(node: UOp, sharded: Sharded) -> Sharded:
    axis, sizes = sharded.layout
    assert axis is not None
    flipped = sharded._replace(parts=tuple(build.flip(part, node.arg) for part in sharded.parts))
    if axis not in node.arg:
        return flipped
    total = sum(sizes)
    pieces = [piece._replace(start=total - piece.stop, stop=total - piece.start) for piece in pieces_of(flipped)]
    return arrange(pieces[::-1], sharded.layout, sharded.devices)


MOVEMENTS: dict[Op, Callable[[UOp, Sharded], Sharded | None]] = {
    Ops.RESHAPE: _reshape,
    Ops.EXPAND: _expand,
    Ops.PERMUTE: _permute,
    Ops.PAD: _pad,
    Ops.SHRINK: _shrink,
    Ops.FLIP: _flip,
}

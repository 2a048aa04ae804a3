"""Moves parts between devices. In: a `Sharded` value, or partial results of a reduction. Out: the parts in another
layout, as COPYs and arithmetic on the receiving device; there are no collective nodes.

gather_parts  a value divided in any way -> all of it, on one device
move_parts    a value divided one way -> divided another way, or whole on each device; only what is missing is sent
all_reduce    a partial result on each device -> their fold on each: everyone sends to everyone, and all fold in the
              same order, so that the results are equal to the bit"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.slices import cat, replace_axis, slice_axis
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.schedule.sharding.layouts import WHOLE, Layout, Sharded


class Piece(NamedTuple):
    """A range of the divided axis that one device holds."""

    start: int
    stop: int
    node: UOp
    device: str


def pieces_of(sharded: Sharded, offset: int = 0) -> list[Piece]:
    """The parts that have elements, in order; the axis may begin before them."""
    bounds = zip(sharded.layout.bounds(), sharded.parts, sharded.devices, strict=True)
    return [
        Piece(start + offset, stop + offset, node, device) for (start, stop), node, device in bounds if start < stop
    ]


def assemble(pieces: Sequence[Piece], axis: int, start: int, stop: int, device: str) -> UOp:
    """A range of the axis on one device: its own pieces, those it is sent, and zeros where there is no piece."""
    found: list[UOp] = []
    shape, dtype = pieces[0].node.shape, pieces[0].node.dtype
    reached = start
    for piece in pieces:
        first, last = max(start, piece.start), min(stop, piece.stop)
        if first >= last:
            continue
        if first > reached:
            found.append(build.const(dtype, 0, replace_axis(shape, axis, first - reached)))
        own = slice_axis(piece.node, axis, first - piece.start, last - piece.start)
        found.append(own if piece.device == device else build.copy(own, device))
        reached = last
    if reached < stop or not found:
        zeros = build.const(dtype, 0, replace_axis(shape, axis, stop - reached))
        found.append(zeros if found else build.placed(zeros, device))
    joined = cat(found, axis)
    # Stored, so that received pieces are joined once and not in every loop that reads them.
    is_sent = len(found) > 1 and any(part.op is Ops.COPY for part in found)
    return UOp(Ops.CONTIGUOUS, dtype, (joined,)) if is_sent else joined


def arrange(pieces: Sequence[Piece], layout: Layout, devices: tuple[str, ...]) -> Sharded:
    """Pieces along the axis of the layout, as the layout wants them."""
    assert layout.axis is not None
    bounds = zip(layout.bounds(), devices, strict=True)
    parts = (assemble(pieces, layout.axis, start, stop, device) for (start, stop), device in bounds)
    return Sharded(tuple(parts), layout, devices)


def gather_parts(sharded: Sharded, device: str) -> UOp:
    """The whole value on any one device."""
    axis = sharded.layout.axis
    if axis is None:
        own = sharded.devices.index(device) if device in sharded.devices else None
        return build.copy(sharded.parts[0], device) if own is None else sharded.parts[own]
    return assemble(pieces_of(sharded), axis, 0, sum(sharded.layout.sizes), device)


def move_parts(sharded: Sharded, layout: Layout) -> Sharded:
    if sharded.layout == layout:
        return sharded
    axis = layout.axis
    if axis is None:
        return Sharded(tuple(gather_parts(sharded, device) for device in sharded.devices), WHOLE, sharded.devices)
    if sharded.layout.axis == axis:
        return arrange(pieces_of(sharded), layout, sharded.devices)
    # Along another axis: each device sends the others their slices of its part, so nothing is sent twice.
    parts = []
    for device, bounds in zip(sharded.devices, layout.bounds(), strict=True):
        cut = tuple(slice_axis(part, axis, *bounds) for part in sharded.parts)
        parts.append(gather_parts(sharded._replace(parts=cut), device))
    return Sharded(tuple(parts), layout, sharded.devices)


def all_reduce(op: Op, partials: Sequence[tuple[UOp, str]], devices: tuple[str, ...]) -> Sharded:
    """`partials` are the partial results and their devices; a device without elements has none. They are stored before
    they are sent: a device that recomputed its own partial result could round it differently, and all copies of a value
    must be equal."""
    stored = [(UOp(Ops.CONTIGUOUS, part.dtype, (part,)), home) for part, home in partials]
    results = []
    for device in devices:
        sent = [part if home == device else build.copy(part, device) for part, home in stored]
        results.append(reduce(lambda left, right: build.alu(op, left, right), sent))
    return Sharded(tuple(results), WHOLE, devices)

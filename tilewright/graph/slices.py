"""Parts of one axis, and parts joined along one. In: nodes of one dtype, an axis and bounds. Out: nodes.
Made of the movements in `build.py`. A join of a few parts is written so that the index of an element stays affine: each
is padded to the full size and selected by position, so no bit of any element changes. A join of many is a CAT."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

T = TypeVar("T")

# A kernel that selects among parts grows with their number; beyond this number each part is stored by itself.
MAX_SELECTED_PARTS = 8


def slice_axis(node: UOp, axis: int, start: int, stop: int) -> UOp:
    """The elements start to stop of one axis."""
    return build.shrink(node, tuple((start, stop) if k == axis else (0, s) for k, s in enumerate(node.shape)))


def replace_axis(shape: tuple[T, ...], axis: int, *sizes: T) -> tuple[T, ...]:
    """A shape, or pairs of an axis each, with one of them replaced by others."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def pad_axis(node: UOp, axis: int, before: int, after: int) -> UOp:
    """Zeros around one axis."""
    return build.pad(node, tuple((before, after) if k == axis else (0, 0) for k in range(len(node.shape))))


def cat(nodes: Sequence[UOp], axis: int) -> UOp:
    """Nodes of one dtype joined along an axis."""
    parts = [node for node in nodes if node.shape[axis]] or list(nodes[:1])
    if len(parts) == 1:
        return parts[0]
    if len(parts) > MAX_SELECTED_PARTS and 0 not in parts[0].shape:
        return UOp(Ops.CAT, parts[0].dtype, tuple(parts), axis)
    return select_parts(parts, axis)


def select_parts(parts: Sequence[UOp], axis: int) -> UOp:
    """Several nodes joined: padded to the full size, and selected by position."""
    total = sum(part.shape[axis] for part in parts)
    shape = replace_axis(parts[0].shape, axis, total)
    place = build.axis_iota(shape, axis)
    start = total - parts[-1].shape[axis]
    joined = pad_axis(parts[-1], axis, start, 0)
    for part in reversed(parts[:-1]):
        before = build.alu(Ops.CMPLT, place, build.const(place.dtype, start))
        start -= part.shape[axis]
        padded = pad_axis(part, axis, start, total - start - part.shape[axis])
        joined = build.where(before, padded, joined)
    return joined


def bounds_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Where each of several parts begins and ends."""
    stops = list(accumulate(sizes))
    return [(stop - size, stop) for size, stop in zip(sizes, stops)]


def even_sizes(size: int, count: int) -> tuple[int, ...]:
    """The sizes of parts that differ by one at most, the larger first."""
    return tuple(size // count + (number < size % count) for number in range(count))


def shard_node(node: UOp, devices: tuple[str, ...], axis: int | None, sizes: Sequence[int] = ()) -> UOp:
    """A value on several devices: a copy on each, or parts of one axis, as even as they can be or of these sizes."""
    if axis is None:
        return build.copy(node, devices)
    sizes = sizes or even_sizes(node.shape[axis], len(devices))
    parts = [slice_axis(node, axis, start, stop) for start, stop in bounds_of(sizes)]
    return build.multi([build.copy(part, device) for part, device in zip(parts, devices)], axis, devices)

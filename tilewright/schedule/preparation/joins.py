"""CAT nodes stored part by part. In: a CAT, which joins many values along an axis. Out: its parts, each stored by a
kernel of its own, and where each part begins in the joined memory. The kernels are mostly equal and differ in that
offset. One kernel that selects among all values would grow with their number."""

from __future__ import annotations

import itertools

from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.build import counting_axis, scalar_of
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.slices import MAX_SELECTED_PARTS, bounds_of, select_parts
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp

_PART = "part"
# The most elements of a part that is copied together with its neighbours: a larger one takes longer than a launch.
MAX_COPIED_ELEMENTS = 1 << 14
# The fewest elements of a CAT that is stored part by part: a smaller selection takes less time than a launch for each
# part. And the fewest contiguous elements of a part: masks of whole rows cost less than loops over shorter ones.
MIN_JOINED_ELEMENTS = 1 << 15
MIN_JOINED_ROW = 2048


def is_part(node: UOp) -> bool:
    """Whether a node is stored in the memory of a CAT alone."""
    return node.op is Ops.CONTIGUOUS and isinstance(node.arg, tuple) and node.arg[0] == _PART


def with_parts(cat: UOp, number: int) -> UOp:
    """The CAT of parts. `number` is how many there are already: a value that is joined twice is two parts."""
    sources = group_copies(cat)
    parts = (UOp(Ops.CONTIGUOUS, s.dtype, (s,), (_PART, number + k)) for k, s in enumerate(sources))
    made = cat.replace(src=tuple(parts))
    for part, source in zip(made.src, sources, strict=True):
        part.line = part.line or cat.line or source.line
    return made


def group_copies(cat: UOp) -> list[UOp]:
    """The values that are joined, where adjacent small ones that are plain copies share a kernel: each takes less time
    than a launch. The rest are copied one by one, so that a join of another length needs no new kernels."""
    sources: list[UOp] = []
    for is_copied, run in itertools.groupby(cat.src, _is_small_copy):
        values = list(run)
        grouped = len(values) // MAX_SELECTED_PARTS * MAX_SELECTED_PARTS if is_copied else 0
        for first in range(0, grouped, MAX_SELECTED_PARTS):
            sources.append(select_parts(values[first : first + MAX_SELECTED_PARTS], cat.arg))
        sources += values[grouped:]
    return sources


def _is_small_copy(node: UOp) -> bool:
    """Whether a value is small and in memory already, that of a buffer or of a custom kernel."""
    count = max_count(node.shape)
    while node.op.kind is Kind.MOVEMENT:
        node = node.src[0]
    return count <= MAX_COPIED_ELEMENTS and node.op in (Ops.PARAM, Ops.CUSTOM_KERNEL)


def stored_join(stored: UOp, target: Target | None) -> UOp | None:
    """A stored selection of long parts as a CAT where a part begins inside a vector, or where the loops around it have
    fewer iterations than there are cores. In other selections the kernel stage cuts the loop that selects."""
    if target is None or not target.has_threads or stored.op is not Ops.WHERE or is_symbolic(stored.shape):
        return None
    found = selected_parts(stored)
    if found is None:
        return None
    parts, axis = found
    inner = max_count(stored.shape[axis + 1 :])
    lanes = target.lanes(stored.dtype)
    is_inside = any(start * inner % lanes for start, _ in bounds_of([part.shape[axis] for part in parts]))
    is_whole = max_count(stored.shape[:axis]) < target.cores
    is_long = all(max_count(part.shape[axis:]) >= MIN_JOINED_ROW for part in parts)
    is_large = max_count(stored.shape) >= MIN_JOINED_ELEMENTS
    return UOp(Ops.CAT, stored.dtype, tuple(parts), axis) if (is_inside or is_whole) and is_long and is_large else None


def selected_parts(node: UOp) -> tuple[list[UOp], int] | None:
    """The parts that `select_parts` has joined, and the axis; None of any other value."""
    parts, along = [], None
    shape, end = node.shape, 0
    while node.op is Ops.WHERE and node.src[0].op is Ops.CMPLT:
        (place, limit), padded, rest = node.src[0].src, *node.src[1:]
        axis, stop = counting_axis(place), scalar_of(limit)
        if axis is None or axis != (axis if along is None else along) or stop is None or stop.op is not Ops.CONST:
            return None
        part = _padded_part(padded, axis, end, int(stop.arg))
        if part is None:
            return None
        parts.append(part)
        along, end, node = axis, int(stop.arg), rest
    last = None if along is None else _padded_part(node, along, end, shape[along])
    return None if last is None or along is None else ([*parts, last], along)


def _padded_part(padded: UOp, axis: int, start: int, stop: int) -> UOp | None:
    """What a value is padded from, if that is its elements `start` to `stop` along the axis."""
    expected = tuple((start, size - stop) if k == axis else (0, 0) for k, size in enumerate(padded.shape))
    return padded.src[0] if padded.op is Ops.PAD and padded.arg == expected else None


def slice_of_source(shrink: UOp) -> UOp | None:
    """A slice of a CAT that lies in one of its sources, as one of that source; None where it does not."""
    cat = shrink.src[0]
    if shrink.op is not Ops.SHRINK or cat.op is not Ops.CAT:
        return None
    axis = cat.arg
    start, stop = shrink.arg[axis]
    for part, (first, last) in zip(cat.src, bounds_of_parts(cat), strict=True):
        if first <= start < stop <= last:
            pairs = (*shrink.arg[:axis], (start - first, stop - first), *shrink.arg[axis + 1 :])
            return build.shrink(part.src[0] if is_part(part) else part, pairs)
    return None


def bounds_of_parts(cat: UOp) -> list[tuple[int, int]]:
    """Where each part begins and ends along the axis."""
    return bounds_of([part.shape[cat.arg] for part in cat.src])

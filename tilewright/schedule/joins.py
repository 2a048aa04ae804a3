"""Values joined in memory. In: a CAT, which joins many values along an axis. Out: its parts, nodes that kernels of
their own store, and where each of them lies in the joined memory. As many kernels as values, and mostly equal ones:
they differ in the byte that they begin at. A kernel that selects among all values would grow with their number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.slices import bounds_of
from tilewright.graph.uop import UOp
from tilewright.schedule.indexing import flatten_index
from tilewright.schedule.uses import loops_over

_PART = "part"


class Join(NamedTuple):
    """A part of a CAT, which begins at `start` along the axis."""

    cat: UOp
    start: int


def is_part(node: UOp) -> bool:
    """Whether a node is stored in its place inside of a CAT, and nowhere else."""
    return node.op is Ops.CONTIGUOUS and isinstance(node.arg, tuple) and node.arg[0] == _PART


def with_parts(cat: UOp, number: int) -> UOp:
    """The CAT of parts. `number` is how many there are already: a value that is joined twice is two parts."""
    parts = (UOp(Ops.CONTIGUOUS, s.dtype, (s,), (_PART, number + k)) for k, s in enumerate(cat.src))
    made = cat.replace(src=tuple(parts))
    for part, source in zip(made.src, cat.src, strict=True):
        part.line = part.line or cat.line or source.line
    return made


def slice_of_source(shrink: UOp) -> UOp | None:
    """A slice of a CAT that lies in one of its sources, as one of that source; None where it does not."""
    cat = shrink.src[0]
    if shrink.op is not Ops.SHRINK or cat.op is not Ops.CAT:
        return None
    axis = cat.arg
    start, stop = shrink.arg[axis]
    for part, (first, last) in zip(cat.src, _bounds(cat), strict=True):
        if first <= start < stop <= last:
            pairs = (*shrink.arg[:axis], (start - first, stop - first), *shrink.arg[axis + 1 :])
            return build.shrink(part.src[0] if is_part(part) else part, pairs)
    return None


def joins_of(stored: Iterable[UOp]) -> dict[UOp, Join]:
    """Where each part is stored."""
    return {
        part: Join(cat, start)
        for cat in stored
        if cat.op is Ops.CAT
        for part, (start, _) in zip(cat.src, _bounds(cat), strict=True)
    }


def index_in_join(part: UOp, join: Join) -> UOp:
    """The position of a part's element in the joined memory."""
    axis = join.cat.arg
    index = loops_over(part.shape)
    return flatten_index((*index[:axis], index[axis] + join.start, *index[axis + 1 :]), join.cat.shape)


def _bounds(cat: UOp) -> list[tuple[int, int]]:
    return bounds_of([part.shape[cat.arg] for part in cat.src])

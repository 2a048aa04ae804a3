"""Where the parts of a CAT are stored. In: the stored nodes of a plan. Out: for each part the CAT whose memory it is a
part of, and the index of its elements there. `preparation/joins.py` makes the parts."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import max_count
from tilewright.graph.uop import UOp
from tilewright.schedule.fusion.uses import loops_over
from tilewright.schedule.preparation.joins import bounds_of_parts


class Join(NamedTuple):
    """A part of a CAT, which begins at `start` along the axis."""

    cat: UOp
    start: int


def joins_of(stored: Iterable[UOp]) -> dict[UOp, Join]:
    """Where each part is stored."""
    return {
        part: Join(cat, start)
        for cat in stored
        if cat.op is Ops.CAT
        for part, (start, _) in zip(cat.src, bounds_of_parts(cat), strict=True)
    }


def index_in_join(part: UOp, join: Join) -> tuple[int, tuple[UOp, ...]]:
    """The element of the joined memory that a part begins at, and the index of the part's elements from there on. Where
    sizes are symbolic, the index counts from the first of all."""
    axis = join.cat.arg
    index = loops_over(part.shape)
    inner = join.cat.shape[axis + 1 :]
    if not is_symbolic((join.start, *inner)):
        return join.start * max_count(inner), index
    return 0, (*index[:axis], index[axis] + join.start, *index[axis + 1 :])

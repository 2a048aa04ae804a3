"""Sums of products that strided windows read, in the order of what the windows are summed to. In: the results of large
products, and the order of what is stored. Out: the sums that a kernel of their own stores, each with the axis that is
to be last.

    the gradient of a convolution with a stride:    columns[b, c, kh, kw, h, w] = sum over o of slope * weight
                                                    image[b, h, w, c] = sum of the columns that fall on each pixel

`fuse.py` stores the columns, since windows at a stride leave a sum inside their sum no register tile. As they are
stored here, with channels last, one kernel stores and the other loads vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from tilewright.base.dtype import dtypes
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import without_casts
from tilewright.schedule.fusion.indexing import TRUE, ZERO, Element, push_movement
from tilewright.schedule.fusion.result_orders import axis_of_source, last_long_axis
from tilewright.schedule.fusion.uses import MIN_TILED_TERMS, has_residues


def sums_of_strided_windows(
    results: Iterable[UOp], users: dict[UOp, list[UOp]], ordered: dict[UOp, int]
) -> Iterator[tuple[UOp, int]]:
    for node in results:
        if is_symbolic(node.shape):
            continue
        path = [node]  # up to what is stored in an order
        while path[-1] not in ordered and len(users.get(path[-1], ())) == 1:
            path.append(users[path[-1]][0])
        axis = ordered.get(path[-1])
        for value, source in pairwise(reversed(path)):
            axis = None if axis is None else axis_of_source(value, source, axis)
        element = Element(tuple(_loop(size, 0, number) for number, size in enumerate(node.shape)), TRUE)
        for total, own in () if axis is None else _sums_inside(node, axis, element, 0):
            if total not in ordered and own != last_long_axis(total):
                yield total, own


def _sums_inside(value: UOp, axis: int, element: Element, level: int) -> Iterator[tuple[UOp, int]]:
    """The sums of products that strided windows add up to an element of a value, each with its axis that is an axis of
    the value. `level` counts the sums above."""
    if value.op is Ops.REDUCE_AXIS:
        source = value.src[0]
        if is_symbolic(source.shape):
            return
        if without_casts(source).op is Ops.MUL:
            if max_count(source.shape) >= MIN_TILED_TERMS * max_count(value.shape) and has_residues(element):
                yield value, axis
            return
        summed = {number: _loop(source.shape[number], level + 1, number) for number in value.arg[1]}
        if axis not in summed:
            indices = tuple(summed.get(number, index) for number, index in enumerate(element.indices))
            yield from _sums_inside(source, axis, Element(indices, element.valid), level + 1)
    elif value.op in (Ops.CAST, Ops.ADD) or value.op.kind is Kind.MOVEMENT:
        for source in value.src:
            passed = axis_of_source(value, source, axis)
            if passed is not None:
                is_view = value.op.kind is Kind.MOVEMENT
                yield from _sums_inside(source, passed, push_movement(value, element) if is_view else element, level)


def _loop(size: int, level: int, axis: int) -> UOp:
    if size == 1:
        return ZERO
    return UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((level, axis), AxisType.LOOP))

"""Which axis of a work-group is the fastest: the one whose neighbours are neighbours in memory."""

from __future__ import annotations

import pytest

from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.threads import threads_of
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.uop import UOp, index_const


def axis(number: int, size: int, kind: AxisType) -> UOp:
    return UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((number,), kind))


def place(slot: int, position: UOp) -> UOp:
    return UOp(Ops.INDEX, dtypes.float32, (UOp(Ops.PARAM, dtypes.float32, (), ParamArg(slot, 1 << 16)), position))


ROW, GROUP = axis(0, 4, AxisType.LOCAL), axis(1, 32, AxisType.GROUP)


@pytest.mark.parametrize(
    ("position", "fastest"),
    [
        (ROW * 1024 + GROUP, GROUP),  # two loads walk the group with step 1, one store the rows
        (ROW * 1024 + (GROUP // 8) * 9 + GROUP % 8 + 1, GROUP),  # a range that the index takes apart
        (ROW + GROUP * 1024, ROW),
        (ROW * 8 + (GROUP // 8) * 64, ROW),  # the first two threads of the group read one element
    ],
)
def test_neighbours_in_memory_are_neighbours_in_the_group(position: UOp, fastest: UOp) -> None:
    loads = [UOp(Ops.LOAD, dtypes.float32, (place(slot, position),)) for slot in (1, 2)]
    total = UOp(Ops.REDUCE, dtypes.float32, (loads[0] * loads[1], GROUP), Ops.ADD)
    store = UOp(Ops.STORE, dtypes.void, (place(0, ROW), total))
    lanes = threads_of(UOp(Ops.SINK, dtypes.void, (store,))).lanes
    assert lanes[-1] == (fastest,)


def test_neighbouring_vectors_are_neighbours_in_the_group() -> None:
    """A thread stores 4 elements; one index, which is loaded for each row, does not make the rows adjacent."""
    row, column, lane = axis(0, 4, AxisType.LOCAL), axis(1, 32, AxisType.LOCAL), axis(2, 4, AxisType.UPCAST)
    position = row * 128 + column * 4 + lane
    loads = [UOp(Ops.LOAD, dtypes.float32, (place(slot, at),)) for slot, at in ((1, position), (2, row))]
    store = UOp(Ops.STORE, dtypes.void, (place(0, position), loads[0] * loads[1]))
    assert threads_of(UOp(Ops.SINK, dtypes.void, (store,))).lanes[-1] == (column,)

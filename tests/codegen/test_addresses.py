"""Comparisons of a value with positions of a tile: the part of a position that a tile shares is on the other side."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.addresses import choose_index_width, split_comparison
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import toposort
from tilewright.kernel.axes import make_range

LOOP, TILE = make_range(10, (0,), AxisType.LOOP), make_range(8, (1,), AxisType.UPCAST)


def loaded(dtype: DType, *position: UOp) -> UOp:
    memory = UOp(Ops.PARAM, dtype, (), ParamArg(0, 8))
    return UOp(Ops.LOAD, dtype, (UOp(Ops.INDEX, dtype, (memory, *position)),))


def compared(op: Ops, value: UOp, position: UOp) -> UOp:
    return UOp(op, dtypes.bool, (value, UOp(Ops.CAST, value.dtype, (position,))))


@pytest.mark.parametrize("op", [Ops.CMPEQ, Ops.CMPNE])
@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.int64])
def test_a_tile_is_compared_with_constants(op: Ops, dtype: DType) -> None:
    node = compared(op, loaded(dtype, index_const(3)), LOOP * 8 + TILE)
    for src in (node.src, node.src[::-1]):
        made = split_comparison(node.with_src(src), src)
        assert made is not None
        assert made.op is op
        value, tile = made.src
        assert value.op is Ops.SUB
        assert LOOP in value.ranges
        assert TILE not in value.ranges
        assert [node for node in toposort(tile) if node.op is Ops.RANGE] == [TILE]


def test_masks_have_32_bits_where_a_loaded_index_has_64() -> None:
    """The end of a row and a loop beyond 32 bits: the masks of 64 lanes were 16 comparisons of 64 bits."""
    picked = UOp(Ops.CAST, dtypes.index, (loaded(dtypes.int64, LOOP),))
    far = make_range(1 << 33, (2,), AxisType.LOOP)
    short, long = LOOP * 8 + TILE < 77, far + TILE < (1 << 32) + 5
    index = UOp(
        Ops.INDEX, dtypes.float32, (UOp(Ops.PARAM, dtypes.float32, (), ParamArg(1, 1 << 40)), picked * 8, short)
    )
    made = choose_index_width(UOp(Ops.SINK, dtypes.void, (index, long)))
    compared_in = {node.src[0].dtype for node in toposort(made) if node.op is Ops.CMPLT}
    assert compared_in == {dtypes.int32, dtypes.int64}
    assert not any(node.dtype is dtypes.index for node in toposort(made))
    assert {node.dtype for node in toposort(made) if node.op is Ops.RANGE} == {dtypes.int64}


def test_others_are_as_they_are() -> None:
    alone = compared(Ops.CMPEQ, loaded(dtypes.int32, index_const(3)), LOOP * 8)
    own = compared(Ops.CMPEQ, loaded(dtypes.int32, TILE), LOOP * 8 + TILE)
    assert split_comparison(alone, alone.src) is None
    assert split_comparison(own, own.src) is None


@pytest.mark.parametrize("classes", [1, 7, 8, 33, 937])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
def test_one_hot(classes: int, dtype: type) -> None:
    labels = np.random.default_rng(0).integers(0, min(classes, 100), 50).astype(dtype)
    wanted = np.eye(classes, dtype=np.int64)[labels.astype(np.int64)]
    assert np.array_equal(Tensor(labels).one_hot(classes).numpy(), wanted)


def test_values_that_no_position_has() -> None:
    """The difference wraps."""
    values = np.array([np.iinfo(np.int32).min, np.iinfo(np.int32).max, -1, 40, 99, 100], np.int32)
    positions = Tensor.arange(100, dtype=dtypes.int32)
    found = (Tensor(values).unsqueeze(1) == positions).numpy()
    assert np.array_equal(found, values[:, None] == np.arange(100, dtype=np.int32))

"""Bounds of shifts: exact where no bit is lost, those of the dtype where one may be."""

from __future__ import annotations

import itertools

import pytest

from tilewright.base.dtype import DType, dtypes, wrap_int
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, const

AMOUNTS = [(0, 0), (1, 3), (0, 7), (4, 4), (2, 8)]


def ranged(dtype: DType, low: int, high: int) -> UOp:
    """A value of which these bounds are known."""
    byte = UOp.placeholder((4,), dtypes.uint8, 0)[0].load()
    return (byte % (high - low + 1)).cast(dtype) + low


@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.int8, dtypes.int32])
@pytest.mark.parametrize("op", [Ops.SHL, Ops.SHR])
@pytest.mark.parametrize(("fewest", "most"), AMOUNTS)
def test_bounds_of_shifts_hold_every_value(dtype: DType, op: object, fewest: int, most: int) -> None:
    for low, high in ((0, 3), (1, 15), (0, 100)) + (((-4, 5),) if not dtype.is_unsigned else ()):
        node = UOp(op, dtype, (ranged(dtype, low, high), ranged(dtype, fewest, most)))
        for value, amount in itertools.product(range(low, high + 1), range(fewest, most + 1)):
            shifted = value << amount if op is Ops.SHL else value >> amount
            found = wrap_int(shifted, dtype) if amount < dtype.bits else (-1 if op is Ops.SHR and value < 0 else 0)
            assert node.vmin <= found <= node.vmax


def test_a_field_of_six_bits_is_known_to_be_small() -> None:
    """Which needs no correction in a product of signed bytes."""
    byte = UOp.placeholder((4,), dtypes.uint8, 0)[0].load()
    field = (byte & 15) | ((byte & 3) << 4)
    assert (field.vmin, field.vmax) == (0, 63)
    assert ((byte >> 2).vmin, (byte >> 2).vmax) == (0, 63)
    assert ((byte << 1).vmin, (byte << 1).vmax) == (0, 255)
    assert (byte << const(dtypes.uint8, 9)).vmax == 255


def test_a_sum_is_bounded_by_its_iterations() -> None:
    axes = (UOp.range(4, 0), UOp.range(8, 1))

    def total(low: int, high: int) -> UOp:
        return UOp(Ops.REDUCE, dtypes.int32, (ranged(dtypes.int32, low, high), *axes), Ops.ADD)

    assert total(-3, 5).bounds == (-96, 160)
    assert total(3, 5).bounds == (0, 160)  # a masked term adds nothing
    wide = ranged(dtypes.int32, 0, 100) * (1 << 23)
    wraps = UOp(Ops.REDUCE, dtypes.int32, (wide, *axes), Ops.ADD)
    assert wraps.bounds == (dtypes.int32.min, dtypes.int32.max)
    assert UOp(Ops.REDUCE, dtypes.int32, (ranged(dtypes.int32, 3, 5), *axes), Ops.MAX).vmin == dtypes.int32.min

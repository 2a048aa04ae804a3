"""Floats as integers in the same order, for extremes that atomic operations on integers find. In: floats, and whether
the greatest or the least is looked for. Out: integers; and from the one that is found its float.

NaN is further than all numbers, so that it is what is found where there is one; -0.0 is less than 0.0."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes
from tilewright.graph import build
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp

KEYS = {dtypes.float32: dtypes.int32, dtypes.float64: dtypes.int64}


def keys_of(values: UOp, op: Op) -> UOp:
    """What `op`, MAX or MIN, finds the float by. No float has the integer that `op` begins with."""
    kind = KEYS[values.dtype]
    furthest = build.const(kind, kind.max if op is Ops.MAX else kind.min)
    is_nan = build.alu(Ops.CMPNE, values, values)
    return build.where(is_nan, furthest, _turned(build.bitcast(values, kind)))


def floats_of(found: UOp, op: Op, dtype: DType) -> UOp:
    """The floats of what was found; where nothing was, what a reduction of nothing gives."""
    is_nothing = build.alu(Ops.CMPEQ, found, build.const(found.dtype, reduce_identity(op, found.dtype)))
    nothing = build.const(dtype, reduce_identity(op, dtype))
    return build.where(is_nothing, nothing, build.bitcast(_turned(found), dtype))


def _turned(bits: UOp) -> UOp:
    """The bits of floats as integers in their order, and back: all but the sign of negative ones are inverted. The
    greatest and the least integer are NaN."""
    sign = build.const(bits.dtype, bits.dtype.itemsize * 8 - 1)
    return bits ^ (build.alu(Ops.SHR, bits, sign) & int(bits.dtype.max))

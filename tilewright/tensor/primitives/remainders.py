"""Remainders and quotients of floats on nodes. In: two float nodes of one dtype, the dividend x and the divisor y. Out:
a node of that dtype. A remainder is exact, as C's fmod is: x - trunc(x/y)*y in floats has an error of the size of x's
last bit, which makes about 0 of fmod(1.0, 0.1), and leaves more than y where the quotient is large.

It is a long division: each step multiplies the leading half of the quotient's digits with both halves of the divisor,
and the two products are exact. Two steps suffice for quotients below 2**24 (float32) and 2**52 (float64); further ones
are a slow path, for quotients below 2**96 and 2**208. Where the quotient is larger, the remainder is NaN. A constant
divisor that is a power of two takes one step for any quotient."""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes
from tilewright.graph import build, marks
from tilewright.graph.kernels.slow_path import slow_path
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.tensor.primitives.functions import sign_bit

_STEPS, _ALL_STEPS = 2, 8
# The integer of a float's size, and the bits of it that are 0 in the first half of a significand.
_WORDS = {dtypes.float32: (dtypes.uint32, 12), dtypes.float64: (dtypes.uint64, 27)}


def floor(x: UOp) -> UOp:
    whole = x.alu(Ops.TRUNC)
    return (x < whole).where(whole - 1, whole)


def fmod(x: UOp, y: UOp) -> UOp:
    """The remainder with the dividend's sign."""
    return marks.with_slopes(build.cast(_remainder(_widened(x), _widened(y)), x.dtype), _fmod_slopes, x, y)


def _fmod_slopes(_: UOp, x: UOp, y: UOp) -> tuple[UOp, UOp]:
    return x.const_like(1.0), -(x / y).alu(Ops.TRUNC)


def mod(x: UOp, y: UOp) -> UOp:
    """The remainder with the divisor's sign, also where it is zero."""
    dividend, divisor = _widened(x), _widened(y)
    if is_power_of_two(y):
        multiple = floor(dividend / divisor) * divisor
        found = (divisor < 0).where(-(multiple - dividend), dividend - multiple)
    else:
        found = _remainder(dividend, divisor)
        zero = sign_bit(divisor).where(divisor.const_like(-0.0), divisor.const_like(0.0))
        found = found.eq(0).where(zero, ((found < 0) ^ (divisor < 0)).where(found + divisor, found))
    return marks.with_slopes(build.cast(found, x.dtype), _mod_slopes, x, y)


def _mod_slopes(_: UOp, x: UOp, y: UOp) -> tuple[UOp, UOp]:
    return x.const_like(1.0), -floor(x / y)


def floor_quotient(x: UOp, y: UOp) -> UOp:
    """The exact quotient rounded down: 9 for 1.0 and 0.1, where the rounded quotient is 10. Its slopes are 0. As
    the array API prefers, it is floor(x/y) where one of them is infinite."""
    dividend, divisor = _widened(x), _widened(y)
    found = floor(dividend / divisor)
    if not is_power_of_two(y):
        first = _first_half(found)
        rest = _less_multiple(_less_multiple(dividend, first, divisor), found - first, divisor)
        found = (divisor < 0).where(rest > 0, rest < 0).where(found - 1, found)
    return marks.with_slopes(build.cast(found, x.dtype), _flat_slopes, x, y)


def _flat_slopes(_: UOp, x: UOp, y: UOp) -> tuple[UOp, UOp]:
    return x.const_like(0.0), y.const_like(0.0)


def is_power_of_two(y: UOp) -> bool:
    """Whether the divisor is a constant by which a quotient is exact."""
    scalar = build.scalar_of(y) if y.shape else y
    if scalar is None or scalar.op is not Ops.CONST or not math.isfinite(scalar.arg):
        return False
    return abs(math.frexp(scalar.arg)[0]) == 0.5


def _widened(x: UOp) -> UOp:
    """Without gradient; shorter floats are divided in float32."""
    return marks.detach(x if x.dtype in _WORDS else build.cast(x, dtypes.float32))


def _remainder(x: UOp, y: UOp) -> UOp:
    size, divisor = ((each < 0).where(-each, each) for each in (x, y))
    found = size
    if is_power_of_two(y):
        found = found - (found / divisor).alu(Ops.TRUNC) * divisor
    else:
        near = _divided(found, divisor, _STEPS)
        is_near = (near < divisor) & (-near < divisor)
        found = slow_path(is_near, near, _divided(near, divisor, _ALL_STEPS - _STEPS))
        # A quotient that was rounded up leaves less than 0. Where a target divides with an error, one that was rounded
        # down leaves the divisor.
        found = (found < 0).where(found + divisor, found)
        found = (found < divisor).where(found, found - divisor)
        found = (found < divisor).where(found, math.nan)
    return (size < divisor).where(x, (x < 0).where(-found, found))


def _divided(x: UOp, y: UOp, steps: int) -> UOp:
    """What steps of a long division leave of x."""
    for _ in range(steps):
        x = _less_multiple(x, _first_half((x / y).alu(Ops.TRUNC)), y)
    return x


def _less_multiple(x: UOp, digits: UOp, y: UOp) -> UOp:
    """x - digits*y without an error, where `digits` has half of a significand's bits and is x/y but for its last
    one."""
    first = _first_half(y)
    return (x - digits * first) - digits * (y - first)


def _first_half(x: UOp) -> UOp:
    """The leading half of a number's significand, rounded towards zero."""
    word, low_bits = _WORDS[x.dtype]
    mask = (1 << word.bits) - (1 << low_bits)
    return build.bitcast(build.bitcast(x, word) & mask, x.dtype)

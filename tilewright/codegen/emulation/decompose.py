"""Takes a kernel graph of scalar nodes and a target. Gives the graph without the ops the target lacks.

It runs after `emulate_dtypes`, so the target computes with every dtype it meets, and before addresses are split.

An op that `Target.native_ops` names is left alone: the renderer writes its whole meaning, as `graph/ops.py` states it.
An IDIV or MOD that is not native and remains has a dividend of at least 0 and a divisor of at least 1, so that rounding
does not matter; an SHL or SHR that remains has an amount from 0 to below the width. A CAST from float to integer is
native where the name "SATURATING_CAST" is; one that remains elsewhere has its argument in the integer's range.
Decompositions use float64 where the target has it (the name "FLOAT64" for the builders), else integers. Where the name
"NAN_MAXIMUM" is, a MAX of floats is one instruction and clamps are written as such. Where the name "SLOW_PATH" is, slow
paths are marked (`kernels/slow_path.py`), and the renderer branches around them. Where the name "SLOW_CONVERSIONS" is,
an addition and a subtraction of vectors take less time than a conversion of integers to floats."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.dtype import DType, bits_dtype, cast_scalar, dtypes
from tilewright.base.target import WIDE_INTEGERS, Target
from tilewright.codegen.emulation import sine, transcendental
from tilewright.graph.bounds import dtype_bounds
from tilewright.graph.interpreter.scalar import threefry_words
from tilewright.graph.kernels.slow_path import SLOW_PATH
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import map_graph

# A builder takes a node whose sources are decomposed and the names of native ops, and returns its value.
Builder = Callable[[UOp, frozenset[str]], UOp]

UNSIGNED: dict[DType, DType] = {
    **dict(zip(dtypes.sints, dtypes.uints, strict=True)),
    **{dtype: dtype for dtype in dtypes.uints},
    dtypes.index: dtypes.uint64,
}

_MAX_LAST_BITS = 1 << 22
_WHOLE_BITS = 0x4B400000  # of 1.5 * 2**23


def decompose(root: UOp, target: Target) -> UOp:
    """The graph with every op that the target lacks written in ops it has."""
    native = target.native_ops | {"FLOAT64"} if dtypes.float64 in target.native else target.native_ops
    # 64-bit integers that `wide_integers` splits into words are decomposed whatever ops the target has.
    wide = WIDE_INTEGERS - target.native
    native_of_wide = native - BUILDERS_OF_WIDE
    if wide:
        wide |= {dtypes.index}
    arguments: dict[UOp, UOp] = {}  # of LOG2 and SIN, for the patterns that replace them with what is around them

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Ops.LOG2 or node.op is Ops.SIN:
            arguments[node] = src[0]
        is_wide = bool(wide) and (node.dtype in wide or any(source.dtype in wide for source in node.src))
        return _decompose_node(node, src, arguments, native_of_wide if is_wide else native)

    return map_graph(root, visit)


def _decompose_node(node: UOp, src: tuple[UOp, ...], arguments: dict[UOp, UOp], native: frozenset[str]) -> UOp | None:
    if "LOG2" not in native and transcendental.is_natural_log(node):
        return transcendental.log(arguments[node.src[0] if node.src[0].op is Ops.LOG2 else node.src[1]])
    half_sine = sine.half_sine(node) if "SIN" not in native else None
    angle = None if half_sine is None else sine.other_factor(arguments[half_sine], 0.5)
    if angle is not None:
        return sine.cos(angle, "FLOAT64" in native, SLOW_PATH in native)
    builder = BUILDERS.get(node.op)
    if builder is None or (node.op.name in native and node.op is not Ops.CAST):
        return None
    return builder(node.with_src(src), native)


# ---------------------------------------------------------------- division


def _divide(node: UOp, native: frozenset[str]) -> UOp:
    """Floor division, or its remainder, which has the divisor's sign; both are 0 for a divisor of 0. The least integer
    divided by -1 wraps to itself."""
    left, right = node.src
    is_quotient = node.op is Ops.IDIV
    if left.vmin >= 0 and right.vmin > 0:
        return node
    divisor = int(right.arg) if right.is_const else 0
    if divisor > 0:
        # Not in index maths, where the bounds are needed: a shift has none.
        if node.dtype is not dtypes.index and divisor & (divisor - 1) == 0:
            return left >> (divisor.bit_length() - 1) if is_quotient else left & (divisor - 1)
        shift = _shift_to_positive(left, divisor)
        if shift is not None:
            moved = left + shift * divisor
            return moved // right - shift if is_quotient else moved % right
    if right.vmin > 0:
        quotient = _divide_by_positive(left, right)
        return quotient if is_quotient else left - quotient * right
    quotient, remainder = _divide_magnitudes(left, right, native)
    if not node.dtype.is_unsigned:
        differ, is_inexact = (left < 0) ^ (right < 0), remainder.ne(0)
        rounded = quotient + (differ & is_inexact).cast(quotient.dtype)
        quotient = differ.where(quotient.const_like(0) - rounded, quotient)
        remainder = (differ & is_inexact).where(_magnitude(right) - remainder, remainder)
        remainder = (right < 0).where(remainder.const_like(0) - remainder, remainder)
    return right.eq(0).where(node.const_like(0), (quotient if is_quotient else remainder).cast(node.dtype))


def _shift_to_positive(left: UOp, divisor: int) -> int | None:
    """How many divisors make `left` non-negative, where its bounds prove that they do so without wrapping.

    This keeps index maths linear and its bounds narrow, which bit operations would not."""
    shift = -(int(left.vmin) // divisor)
    # Index maths is unbounded in the graph, but has at most 64 bits in the program.
    limit = dtype_bounds(dtypes.int64 if left.dtype is dtypes.index else left.dtype)[1]
    return shift if int(left.vmax) + shift * divisor <= limit else None


def _divide_by_positive(left: UOp, right: UOp) -> UOp:
    """floor(a / b) = ~(~a / b) for negative a, and ~a is not negative."""
    unsigned = UNSIGNED[left.dtype]
    sign = left >> (left.dtype.bits - 1)
    quotient = (left ^ sign).cast(unsigned) // _magnitude(right)
    return quotient.cast(left.dtype) ^ sign


def _magnitude(x: UOp) -> UOp:
    """|x| as an unsigned integer, which also holds the magnitude of the least integer. That of a constant is one: no
    later pass folds the cast, and compilers multiply instead of dividing by what they see to be a constant."""
    if x.is_const:
        return const(UNSIGNED[x.dtype], abs(x.arg))
    unsigned = x.cast(UNSIGNED[x.dtype])
    return unsigned if x.vmin >= 0 else (x < 0).where(unsigned.const_like(0) - unsigned, unsigned)


def _divide_magnitudes(left: UOp, right: UOp, native: frozenset[str]) -> tuple[UOp, UOp]:
    """Quotient and remainder of |left| and |right|, a |right| of 0 taken as 1 so that nothing traps."""
    dividend = _magnitude(left)
    divisor = _magnitude(right)
    # Bounds see through MAX and prove the divisor positive; where MAX is not native nobody can ask for the proof.
    if divisor.vmin < 1:
        divisor = divisor.maximum(1) if "MAX" in native else divisor.eq(0).where(divisor.const_like(1), divisor)
    quotient = dividend // divisor
    return quotient, dividend - quotient * divisor


# ---------------------------------------------------------------- shifts


def _shift(node: UOp, _native: frozenset[str]) -> UOp:
    """A shift whose amount may exceed the width: SHL then gives 0, SHR 0 or, for a negative number, -1."""
    value, amount = node.src
    bits = value.dtype.bits
    if amount.vmin >= 0 and amount.vmax < bits:
        return node
    unsigned = amount.cast(UNSIGNED[amount.dtype])
    shifted = value.alu(node.op, (unsigned & (bits - 1)).cast(amount.dtype))
    is_arithmetic = node.op is Ops.SHR and not value.dtype.is_unsigned
    outside = value >> (bits - 1) if is_arithmetic else value.const_like(0)
    return (unsigned < bits).where(shifted, outside)


# ---------------------------------------------------------------- extrema, truncation, conversion


def _extremum(node: UOp, _native: frozenset[str]) -> UOp:
    """MAX or MIN. Of floats: NaN where either is NaN; of two zeros of unlike sign MAX is 0.0 and MIN is -0.0."""
    left, right = node.src
    takes_right = left < right if node.op is Ops.MAX else right < left
    if not node.dtype.is_float:
        return takes_right.where(right, left)
    result = (takes_right | right.ne(right)).where(right, left)
    # Equal numbers have equal bits, except zeros of unlike sign, whose sign bits are combined.
    bits = left.bitcast(bits_dtype(node.dtype))
    joined = bits.alu(Ops.AND if node.op is Ops.MAX else Ops.OR, right.bitcast(bits.dtype))
    return left.eq(right).where(joined.bitcast(node.dtype), result)


def _truncate(node: UOp, _native: frozenset[str]) -> UOp:
    """TRUNC through an integer."""

    def truncated(magnitude: UOp, has_fraction: UOp) -> UOp:
        integer = dtypes.int32 if magnitude.dtype is dtypes.float32 else dtypes.int64
        return has_fraction.where(magnitude, 0.0).cast(integer).cast(magnitude.dtype)

    return _of_magnitude(node.src[0], truncated)


def _round(node: UOp, _native: frozenset[str]) -> UOp:
    """ROUND by adding and subtracting the power of two from which on floats are whole."""

    def rounded(magnitude: UOp, has_fraction: UOp) -> UOp:
        shifter = 2.0**magnitude.dtype.mantissa_bits
        return (magnitude + shifter) - shifter

    return _of_magnitude(node.src[0], rounded)


def _of_magnitude(x: UOp, whole_of: Callable[[UOp, UOp], UOp]) -> UOp:
    """A whole number near `x`, made of its magnitude and of whether that may have a fraction. From 2**mantissa on every
    float is whole; below, the sign is kept for -0.0."""
    if x.dtype.bits < 32:
        return _of_magnitude(x.cast(dtypes.float32), whole_of).cast(x.dtype)
    unsigned = bits_dtype(x.dtype)
    sign_bit = 1 << (unsigned.bits - 1)
    bits = x.bitcast(unsigned)
    magnitude = (bits & (sign_bit - 1)).bitcast(x.dtype)
    has_fraction = magnitude < 2.0**x.dtype.mantissa_bits
    signed = (whole_of(magnitude, has_fraction).bitcast(unsigned) | (bits & sign_bit)).bitcast(x.dtype)
    return has_fraction.where(signed, x)


def _saturate(node: UOp, native: frozenset[str]) -> UOp:
    """CAST from float to integer, where the target's conversion is defined in range only; NaN gives 0."""
    x, dtype = node.src[0], node.dtype
    if x.dtype is dtypes.int32 and dtype is dtypes.float32 and "SLOW_CONVERSIONS" in native:
        return _as_last_bits(node)
    if not (x.dtype.is_float and dtype.is_int) or "SATURATING_CAST" in native:
        return node
    if x.dtype.bits < 32:
        x = x.cast(dtypes.float32)
    low = float(dtype.min)
    high = float(cast_scalar(dtype.max, x.dtype))
    # A greatest integer with more bits than the mantissa would round up, out of range: the float below it is taken.
    is_exact = int(high) == dtype.max
    if not is_exact:
        high -= math.ldexp(high, -x.dtype.mantissa_bits - 1)
    is_above = x > high
    inside = is_above.where(x.const_like(high), x)
    # In this order each line is one minimum or maximum instruction that returns its second operand for NaN.
    inside = (inside < low).where(x.const_like(low), inside)
    value = x.eq(x).where(inside, 0.0).cast(dtype)
    return value if is_exact else is_above.where(value.const_like(dtype.max), value)


def _as_last_bits(node: UOp) -> UOp:
    """CAST of a vector of integer sums of less than 23 bits to float32. In 1.5 * 2**23 the last bit of the mantissa
    counts 1, so adding an integer to the bits of this float adds it to the float. `linearise` starts the sum from these
    bits. A sum that folds lanes would need another addition for them, and gain nothing."""
    x = node.src[0]
    is_small = -_MAX_LAST_BITS <= x.vmin and x.vmax < _MAX_LAST_BITS
    if x.op is not Ops.REDUCE or not is_small or any(axis.arg.kind is AxisType.UPCAST for axis in x.src[1:]):
        return node
    if not any(axis.arg.kind is AxisType.UPCAST for axis in x.ranges):
        return node
    return (x + _WHOLE_BITS).bitcast(dtypes.float32) - float(3 * _MAX_LAST_BITS)


# ---------------------------------------------------------------- random bits


def _threefry(node: UOp, _native: frozenset[str]) -> UOp:
    counter, key = ((x.cast(dtypes.uint32), (x >> 32).cast(dtypes.uint32)) for x in node.src)
    low, high = (word.cast(dtypes.uint64) for word in threefry_words(counter, key, lambda word: word))
    return UOp(Ops.OR, dtypes.uint64, (low, high << 32))


BUILDERS_OF_WIDE = frozenset({"IDIV", "MOD", "SHL", "SHR", "SATURATING_CAST", "THREEFRY"})
BUILDERS: dict[Op, Builder] = {
    Ops.IDIV: _divide,
    Ops.MOD: _divide,
    Ops.SHL: _shift,
    Ops.SHR: _shift,
    Ops.MAX: _extremum,
    Ops.MIN: _extremum,
    Ops.TRUNC: _truncate,
    Ops.ROUND: _round,
    Ops.CAST: _saturate,
    Ops.THREEFRY: _threefry,
    Ops.EXP2: lambda node, native: transcendental.exp2_of(node.src[0], "NAN_MAXIMUM" in native),
    Ops.LOG2: lambda node, _native: transcendental.log2(node.src[0]),
    Ops.SIN: lambda node, native: sine.sin(node.src[0], "FLOAT64" in native, SLOW_PATH in native),
}

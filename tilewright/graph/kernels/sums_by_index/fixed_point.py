"""Float sums as integer sums. In: float values and, for each sum, the largest magnitude of its values. Out: 64-bit
integers whose sum has the same bits in any order of the terms, and the float that such a sum stands for
(docs/decisions/0041).

The values are integer multiples of a power of two that is chosen by the largest magnitude, so that the sum of all terms
fits in 64 bits. The result is rounded once. Infinities and NaN are counted instead."""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.graph import build
from tilewright.graph.uop import UOp, const

MAGNITUDE = dtypes.int32
TOTAL = dtypes.int64
# For float32: the explicit mantissa bits, the bits of infinity, and the exponent of the last bit of a subnormal number.
_FRACTION_BITS = 23
_INFINITY = 0x7F800000
_LAST_BIT = 150
# A float's exponent field minus this is the number of bits of its integer part.
_BIAS = 126
# Bits of the integer sums, without the sign and one spare bit.
_SUM_BITS = 62
# Occurrences of plus and minus infinity are counted in the two halves of an integer.
_HALF_BITS = 32


def magnitude_of(value: UOp) -> UOp:
    """The bits of a float without its sign, as an integer, have the order of magnitudes; NaN is the maximum."""
    return value.cast(dtypes.float32).bitcast(MAGNITUDE) & 0x7FFFFFFF


def fixed_point(value: UOp, greatest: UOp, terms: int) -> UOp:
    """
    value  = mantissa * 2 ** (exponent - 150)
    result = mantissa * 2 ** (exponent - greatest exponent + spare bits), rounded to an integer

    Where the maximum is infinite or NaN only infinities are counted: a positive one in the lower half of the total, a
    negative one in the upper half, and a NaN in both. A sum has at most `terms` terms."""
    bits = magnitude_of(value)
    is_negative = (value.cast(dtypes.float32).bitcast(MAGNITUDE)) < 0
    field = bits >> _FRACTION_BITS
    hidden = (field > 0).where(const(MAGNITUDE, 1 << _FRACTION_BITS), const(MAGNITUDE, 0))
    mantissa = (bits & ((1 << _FRACTION_BITS) - 1)) | hidden
    shift = field.maximum(1) - _exponent(greatest) + spare_bits(terms)
    # A shift by more than 31 leaves no bits of a mantissa.
    up, down = shift.maximum(0), (-shift).maximum(0).minimum(31)
    one = const(TOTAL, 1)
    size = ((mantissa.cast(TOTAL) << up.cast(TOTAL)) + ((one << down.cast(TOTAL)) >> 1)) >> down.cast(TOTAL)
    finite = is_negative.where(-size, size)
    upper = const(TOTAL, 1 << _HALF_BITS)
    infinite = is_negative.where(upper, one)
    counted = (bits > _INFINITY).where(upper + one, bits.eq(_INFINITY).where(infinite, const(TOTAL, 0)))
    return (greatest < _INFINITY).where(finite, counted)


def exact_spare_bits(greatest: UOp, least: UOp, terms: UOp) -> tuple[UOp, UOp]:
    """The bits by which the largest of `terms` magnitudes can be shifted left so that their sum does not overflow; and
    whether all of them are then whole numbers, the least that is not 0 included, and finite."""
    bits = (terms.maximum(1).cast(dtypes.float32).bitcast(MAGNITUDE) >> _FRACTION_BITS) - _BIAS
    spare = -bits + (_SUM_BITS - (_FRACTION_BITS + 1))
    is_whole = (_exponent(least) + spare < _exponent(greatest)).logical_not()
    return spare, is_whole & (greatest < _INFINITY)


def exact_fixed_point(value: UOp, greatest: UOp, spare: UOp) -> UOp:
    """`fixed_point` of a value that is finite and has no bits to be rounded."""
    bits = magnitude_of(value)
    field = bits >> _FRACTION_BITS
    hidden = (field > 0).where(const(MAGNITUDE, 1 << _FRACTION_BITS), const(MAGNITUDE, 0))
    mantissa = (bits & ((1 << _FRACTION_BITS) - 1)) | hidden
    shift = (field.maximum(1) + (spare - _exponent(greatest))).maximum(0)
    size = mantissa.cast(TOTAL) << shift.cast(TOTAL)
    return ((value.cast(dtypes.float32).bitcast(MAGNITUDE)) < 0).where(-size, size)


def as_float(total: UOp, greatest: UOp, terms: int) -> UOp:
    """A sum of fixed-point values as float32."""
    finite = scaled_to_float(total, greatest, const(MAGNITUDE, spare_bits(terms)))
    positive, negative = (total & ((1 << _HALF_BITS) - 1)).ne(0), (total >> _HALF_BITS).ne(0)
    infinity, nan = (build.const(dtypes.float32, value) for value in (float("inf"), float("nan")))
    special = positive.where(negative.where(nan, infinity), -infinity)
    return (greatest < _INFINITY).where(finite, special)


def _exponent(magnitude: UOp) -> UOp:
    """The exponent; for subnormal numbers that of the smallest normal number."""
    return (magnitude >> _FRACTION_BITS).maximum(1)


def spare_bits(terms: int) -> int:
    """The number of bits by which the largest mantissa can be shifted left so that a sum of `terms` terms does not
    overflow."""
    return _SUM_BITS - (_FRACTION_BITS + 1) - max(1, (terms - 1).bit_length())


def scaled_to_float(total: UOp, greatest: UOp, spare: UOp) -> UOp:
    """A sum as float32 of finite values, of which the largest is shifted left by `spare` bits. It is scaled by two
    powers of two: a single one may underflow."""
    power = _exponent(greatest) - (spare + _LAST_BIT)
    half = power >> 1
    first, second = (((each + 127) << _FRACTION_BITS).bitcast(dtypes.float32) for each in (half, power - half))
    return total.cast(dtypes.float32) * first * second

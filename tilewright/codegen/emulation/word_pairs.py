"""Arithmetic on 64-bit integers as pairs of 32-bit words. In: the words of the operands. Out: the words of the result,
in ops on uint32 and int32 alone. `wide_integers`, a pass of codegen, builds with these what a target lacks.

Words are uint32; a signed number is its two's complement. A known word stays a constant, so that adding 0 or
multiplying by 0 costs nothing. The divisor of a division is at least 1, and the amount of a shift is below 64."""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, const

WORD_BITS = 32
WORD_MASK = (1 << WORD_BITS) - 1
_HALF_BITS = 16
_HALF_MASK = (1 << _HALF_BITS) - 1
# Of float32: the bits of the mantissa, and the biased exponent of 1.0.
_MANTISSA_BITS = 23
_EXPONENT_BIAS = 127


class Words(NamedTuple):
    low: UOp
    high: UOp


def word(value: int) -> UOp:
    return const(dtypes.uint32, value)


ZERO = word(0)


def constant(value: int) -> Words:
    return Words(word(value), word(value >> WORD_BITS))


def extend(x: UOp, is_positive: bool = False) -> Words:
    """An int32 as 64 bits: the high word repeats the sign."""
    if x.is_const:
        return constant(int(x.arg))
    high = ZERO if is_positive or x.vmin >= 0 else (x >> (WORD_BITS - 1)).cast(dtypes.uint32)
    return Words(x.cast(dtypes.uint32), high)


def is_negative(x: Words) -> UOp:
    return x.high.cast(dtypes.int32) < 0


# ---------------------------------------------------------------- one word


def _is(x: UOp, value: int) -> bool:
    return x.is_const and x.arg == value


def _plus(x: UOp, y: UOp) -> UOp:
    if _is(x, 0):
        return y
    return x if _is(y, 0) else x + y


def _times(x: UOp, y: UOp) -> UOp:
    if _is(x, 0) or _is(y, 0):
        return ZERO
    if _is(x, 1):
        return y
    return x if _is(y, 1) else x * y


def _or(x: UOp, y: UOp) -> UOp:
    if _is(x, 0):
        return y
    return x if _is(y, 0) else x | y


def _and(x: UOp, y: UOp) -> UOp:
    if _is(x, 0) or _is(y, 0):
        return ZERO
    if _is(x, WORD_MASK):
        return y
    return x if _is(y, WORD_MASK) else x & y


def _select(condition: UOp, yes: UOp, no: UOp) -> UOp:
    return yes if yes is no else condition.where(yes, no)


def _spilled(x: UOp, amount: UOp) -> UOp:
    """The bits shifted out of a word by a left shift of less than 32."""
    return (x >> 1) >> (amount ^ (WORD_BITS - 1))


def _leading_zeros(x: UOp) -> tuple[UOp, UOp]:
    """The number of leading zeros of a word that is not 0, and the word shifted left by it."""
    count = ZERO
    for step in (16, 8, 4, 2, 1):
        is_clear = x < (1 << (WORD_BITS - step))
        x = is_clear.where(x << step, x)
        count = _or(count, is_clear.where(word(step), ZERO))
    return count, x


# ---------------------------------------------------------------- sums and products


def add(x: Words, y: Words) -> Words:
    low = _plus(x.low, y.low)
    high = _plus(x.high, y.high)
    if _is(x.low, 0) or _is(y.low, 0):
        return Words(low, high)
    return Words(low, _plus(high, (low < y.low).cast(dtypes.uint32)))


def subtract(x: Words, y: Words) -> Words:
    if _is(y.low, 0):
        return Words(x.low, x.high if _is(y.high, 0) else x.high - y.high)
    borrow = (x.low < y.low).cast(dtypes.uint32)
    return Words(x.low - y.low, (x.high if _is(y.high, 0) else x.high - y.high) - borrow)


def negate(x: Words) -> Words:
    return subtract(Words(ZERO, ZERO), x)


def multiply(x: Words, y: Words) -> Words:
    crossed = _plus(_times(x.low, y.high), _times(x.high, y.low))
    return Words(_times(x.low, y.low), _plus(_high_product(x.low, y.low), crossed))


def _high_product(x: UOp, y: UOp) -> UOp:
    """The high word of the product of two words, from the four products of their halves."""
    if any(_is(factor, 0) or _is(factor, 1) for factor in (x, y)):
        return ZERO
    (x_low, x_high), (y_low, y_high) = _halves(x), _halves(y)
    middle = _plus(_times(x_high, y_low), _times(x_low, y_low) >> _HALF_BITS)
    other = _plus(_times(x_low, y_high), _and(middle, word(_HALF_MASK)))
    return _plus(_times(x_high, y_high), _plus(middle >> _HALF_BITS, other >> _HALF_BITS))


def _halves(x: UOp) -> tuple[UOp, UOp]:
    if x.is_const:
        return word(x.arg & _HALF_MASK), word(x.arg >> _HALF_BITS)
    return x & _HALF_MASK, x >> _HALF_BITS


# ---------------------------------------------------------------- bits


def bitwise(op: object, x: Words, y: Words) -> Words:
    if op is Ops.AND:
        return Words(*map(_and, x, y))
    if op is Ops.OR:
        return Words(*map(_or, x, y))
    return Words(*(left if _is(right, 0) else left ^ right for left, right in zip(x, y, strict=True)))


def shift_left(x: Words, amount: UOp) -> Words:
    if amount.is_const:
        count = int(amount.arg)
        if count >= WORD_BITS:
            return Words(ZERO, x.low << (count - WORD_BITS) if count > WORD_BITS else x.low)
        return x if count == 0 else Words(x.low << count, _or(x.high << count, x.low >> (WORD_BITS - count)))
    within, is_far = _split_amount(amount)
    moved = x.low << within
    return Words(is_far.where(ZERO, moved), is_far.where(moved, _or(x.high << within, _spilled(x.low, within))))


def shift_right(x: Words, amount: UOp, signed: bool) -> Words:
    """The sign fills the top where the number is signed."""
    if amount.is_const:
        count = int(amount.arg)
        if count == 0:
            return x
        high = _word_right(x.high, min(count, WORD_BITS - 1), signed) if count < WORD_BITS else _fill(x, signed)
        if count < WORD_BITS:
            return Words(_or(x.low >> count, x.high << (WORD_BITS - count)), high)
        return Words(_word_right(x.high, count - WORD_BITS, signed) if count > WORD_BITS else x.high, high)
    within, is_far = _split_amount(amount)
    moved = _word_right(x.high, within, signed)
    # The bits shifted out of the high word enter the low word at its top.
    entering = (x.high << 1) << (within ^ (WORD_BITS - 1))
    return Words(is_far.where(moved, (x.low >> within) | entering), is_far.where(_fill(x, signed), moved))


def _split_amount(amount: UOp) -> tuple[UOp, UOp]:
    """The amount modulo 32, and whether it is 32 or more."""
    return amount & (WORD_BITS - 1), (amount & WORD_BITS).ne(0)


def _word_right(x: UOp, amount: UOp | int, signed: bool) -> UOp:
    if not signed:
        return x >> amount
    by = amount if isinstance(amount, int) else amount.cast(dtypes.int32)
    return (x.cast(dtypes.int32) >> by).cast(dtypes.uint32)


def _fill(x: Words, signed: bool) -> UOp:
    return _word_right(x.high, WORD_BITS - 1, signed=True) if signed else ZERO


# ---------------------------------------------------------------- comparisons


def is_less(x: Words, y: Words, signed: bool) -> UOp:
    if x.high is y.high:
        return x.low < y.low
    left, right = (side.high.cast(dtypes.int32) if signed else side.high for side in (x, y))
    return x.high.eq(y.high).where(x.low < y.low, left < right)


def is_equal(x: Words, y: Words) -> UOp:
    low = x.low.eq(y.low)
    return low if x.high is y.high else low & x.high.eq(y.high)


def is_nonzero(x: Words) -> UOp:
    return _or(x.low, x.high).ne(0)


def select(condition: UOp, yes: Words, no: Words) -> Words:
    return Words(_select(condition, yes.low, no.low), _select(condition, yes.high, no.high))


# ---------------------------------------------------------------- division


def divide(x: Words, y: Words, max_divisor: int) -> tuple[Words, Words]:
    """Quotient and remainder of unsigned numbers; the divisor is between 1 and `max_divisor`."""
    if max_divisor <= _HALF_MASK:
        return _divide_by_half(x, y.low)
    quotient = _divide(x, y)
    return quotient, subtract(x, multiply(quotient, y))


def _divide_by_half(x: Words, divisor: UOp) -> tuple[Words, Words]:
    """Long division by a divisor of at most 16 bits: a remainder and the next 16 bits of the dividend fit in a word."""
    high = x.high // divisor
    rest = x.high - high * divisor
    digits = []
    for next_digit in (x.low >> _HALF_BITS, x.low & _HALF_MASK):
        dividend = (rest << _HALF_BITS) | next_digit
        digits.append(dividend // divisor)
        rest = dividend - digits[-1] * divisor
    return Words((digits[0] << _HALF_BITS) | digits[1], high), Words(rest, ZERO)


def _divide(x: Words, y: Words) -> Words:
    """Both cases use one division of two words by a word whose top bit is set. For a divisor of one word it gives the
    low word of the quotient. For a longer divisor, x / 2 by the divisor's first 32 bits gives a quotient of one word
    that is at most 1 too small after subtracting 1 (Warren, Hacker's Delight, 9-5)."""
    is_short = y.high.eq(0)
    shift, top = _leading_zeros(is_short.where(y.low, y.high))
    divisor = is_short.where(top, top | _spilled(y.low, shift))
    safe = is_short.where(y.low, word(1))
    high = x.high // safe
    rest = x.high - high * safe
    short = Words(x.low << shift, (rest << shift) | _spilled(x.low, shift))
    long = Words((x.high << (WORD_BITS - 1)) | (x.low >> 1), x.high >> 1)
    found = _divide_normalised(select(is_short, short, long), divisor)
    guess = found >> (shift ^ (WORD_BITS - 1))
    guess = guess - guess.ne(0).cast(dtypes.uint32)
    rest_of_long = subtract(x, multiply(Words(guess, ZERO), y))
    guess = guess + is_less(rest_of_long, y, signed=False).logical_not().cast(dtypes.uint32)
    return Words(is_short.where(found, guess), is_short.where(high, ZERO))


def _divide_normalised(x: Words, divisor: UOp) -> UOp:
    """Two words by one word whose top bit is set and which exceeds the high word, in digits of 16 bits."""
    first, rest = _quotient_digit(x.high, x.low >> _HALF_BITS, divisor)
    second, _ = _quotient_digit(rest, x.low & _HALF_MASK, divisor)
    return (first << _HALF_BITS) + second


def _quotient_digit(x: UOp, following: UOp, divisor: UOp) -> tuple[UOp, UOp]:
    """The digit, and the rest: a guess by the divisor's first half is at most 2 too large (Knuth, 4.3.1, algorithm D).
    A guess may be lowered again as long as its remainder has one digit."""
    first, second = divisor >> _HALF_BITS, divisor & _HALF_MASK
    digit = x // first
    rest = x - digit * first
    for _ in range(2):
        is_beyond = (digit > _HALF_MASK) | (digit * second > ((rest << _HALF_BITS) | following))
        is_high = is_beyond & (rest <= _HALF_MASK)
        digit = is_high.where(digit - 1, digit)
        rest = is_high.where(rest + first, rest)
    return digit, ((x << _HALF_BITS) | following) - digit * divisor


# ---------------------------------------------------------------- floats


def to_float32(x: Words, signed: bool) -> UOp:
    """Rounded once. Of a number longer than a word the first 32 bits are converted, with the last bit set where any
    further bit is, and scaled by a power of two."""
    magnitude = select(is_negative(x), negate(x), x) if signed else x
    short = magnitude.low.cast(dtypes.float32)
    shift, top = _leading_zeros(magnitude.high)
    is_inexact = (magnitude.low << shift).ne(0).cast(dtypes.uint32)
    leading = top | _spilled(magnitude.low, shift) | is_inexact
    scale = ((_EXPONENT_BIAS + WORD_BITS - shift) << _MANTISSA_BITS).bitcast(dtypes.float32)
    value = magnitude.high.eq(0).where(short, leading.cast(dtypes.float32) * scale)
    return is_negative(x).where(-value, value) if signed else value


def from_float32(x: UOp, signed: bool) -> Words:
    """Of a number in the range of the integer, towards 0, by the bits of its mantissa."""
    bits = x.bitcast(dtypes.uint32)
    exponent = (bits >> _MANTISSA_BITS) & 0xFF
    mantissa = (bits & ((1 << _MANTISSA_BITS) - 1)) | (1 << _MANTISSA_BITS)
    whole_from = word(_EXPONENT_BIAS + _MANTISSA_BITS)
    left = shift_left(Words(mantissa, ZERO), (exponent - whole_from) & (2 * WORD_BITS - 1))
    right = mantissa >> ((whole_from - exponent) & (WORD_BITS - 1))
    right = (exponent < _EXPONENT_BIAS).where(ZERO, right)
    magnitude = select(exponent < whole_from, Words(right, ZERO), left)
    return select(bits < (1 << (WORD_BITS - 1)), magnitude, negate(magnitude)) if signed else magnitude

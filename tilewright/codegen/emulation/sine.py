"""Takes the source of a SIN, or of a cosine spelt with one. Gives its value in adds, multiplications, bit operations
and WHERE alone, for every finite number; NaN for infinities. `decompose` calls this for the targets that lack SIN.

|x| = n*pi/2 + r; by n modulo 4 the sine is sin(r), cos(r), -sin(r) or -cos(r), times the sign of x, and the cosine is
that of one n more. Small angles, the common case, are reduced in a few steps. Large ones need bits of 1/pi that depend
on their exponent: in float64 for a float32 where the target has it, in integers elsewhere.

Greatest errors found, in units in the last place, with and without contraction to FMA: float32 1.54, float64 1.52; of
the cosine in integers 1.61.
"""

from __future__ import annotations

import math

from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.emulation.transcendental import FORMATS, Format, polynomial, through_float32
from tilewright.graph.kernels.slow_path import slow_path
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

# The bits of 1/pi after the point: enough for the largest double.
INVERSE_PI = int(
    "517cc1b727220a94fe13abe8fa9a6ee06db14acc9e21c820ff28b1d5ef5de2b0db92371d2126e970"
    "0324977504e8c90e7f0ef58e5894d39f74411afa975da24274ce38135a2fbf209cc8eb1cc1a99cfa"
    "4e422fc5defc941d8ffc4bffef02cc07f79788c5ad05368fb69b3f6793e584dba7a31fb34f2ff516"
    "ba93dd63f5f2f8bd9e839cfbc529497535fdafd88fc6ae842b0198237e3db5d5f867de104d7a1b0e",
    16,
)
INVERSE_PI_BITS = 1280
CHUNK = 29  # bits of a piece of 1/pi whose product with a float32 is exact in float64


def sin(x: UOp, has_double: bool = True, has_slow_paths: bool = True) -> UOp:
    """`has_double`: the target computes in float64. `has_slow_paths`: it branches around a slow path."""
    return through_float32(lambda y: _of_quarters(y, 0, has_double, has_slow_paths), x)


def cos(x: UOp, has_double: bool = True, has_slow_paths: bool = True) -> UOp:
    """As `sin`."""
    return through_float32(lambda y: _of_quarters(y, 1, has_double, has_slow_paths), x)


def half_sine(node: UOp) -> UOp | None:
    """The SIN of a node 1 - 2*sin(x/2)**2, the form that the cosine has in a graph."""
    if node.op is not Ops.SUB or not node.src[0].is_const or node.src[0].arg != 1.0:
        return None
    square = other_factor(node.src[1], 2.0)
    if square is None or square.op is not Ops.MUL or square.src[0] is not square.src[1]:
        return None
    found = square.src[0]
    return found if found.op is Ops.SIN and other_factor(found.src[0], 0.5) is not None else None


def other_factor(product: UOp, factor: float) -> UOp | None:
    """The other factor of a product with the constant `factor`."""
    if product.op is not Ops.MUL:
        return None
    others = [x for x, y in (product.src, product.src[::-1]) if y.is_const and y.arg == factor]
    return others[0] if others else None


def _of_quarters(x: UOp, quarters: int, has_double: bool, has_slow_paths: bool) -> UOp:
    """sin(x + quarters * pi/2)."""
    form = FORMATS[x.dtype]
    bits = x.bitcast(form.unsigned)
    sign_bit = 1 << (form.unsigned.bits - 1)
    magnitude = bits & (sign_bit - 1)
    sign = bits if quarters == 0 else bits.const_like(0)  # the cosine is even
    in_double = x.dtype is dtypes.float32 and has_double

    def value(rest: UOp, quadrant: UOp) -> UOp:
        quadrant = quadrant + quarters if quarters else quadrant
        square = rest * rest
        is_cosine = (quadrant & 1).ne(0)
        size = is_cosine.where(polynomial(square, form.cos), rest + rest * polynomial(square, form.sin))
        flips = (sign ^ (quadrant << (form.unsigned.bits - 2))) & sign_bit
        return (size.bitcast(form.unsigned) ^ flips).bitcast(x.dtype)

    far = value(*(_reduce_in_double(magnitude) if in_double else _reduce_in_words(magnitude, x.dtype)))
    if not has_slow_paths:
        return far
    angle = magnitude.bitcast(x.dtype)
    return slow_path(angle < form.largest_near, value(*_reduce_near(angle)), far)


def _reduce_near(angle: UOp) -> tuple[UOp, UOp]:
    """(r, n with its last bits right) for an angle up to `largest_near`.

    n times the first two parts of pi/2 is exact, and so is the first difference; the last product is small beside the
    rounding of the second one, unless that is exact too because r is small."""
    form = FORMATS[angle.dtype]
    shifter = 1.5 * 2.0**form.mantissa
    rounded = angle * (2 / math.pi) + shifter
    turns = rounded - shifter
    rest = angle
    for part in form.half_pi_parts:
        rest = rest - turns * part
    return rest, rounded.bitcast(form.unsigned)


def _inverse_pi_chunk(start: int, count: int) -> float:
    """`count` bits of 1/pi after the first `start`, as a number."""
    bits = INVERSE_PI >> (INVERSE_PI_BITS - start - count) & ((1 << count) - 1)
    return math.ldexp(bits, -start - count)


def _reduce_in_double(magnitude: UOp) -> tuple[UOp, UOp]:
    """(r, n with its last two bits right) for the float32 |x| of these bits, in float64.

    2/pi is cut in pieces. The exponent of x decides which pieces are skipped, because their product with x is a
    multiple of 4. Of the next three, the products with the first two are exact, so only the last additions round."""
    x = magnitude.bitcast(dtypes.float32).cast(dtypes.float64)
    widths = (CHUNK, CHUNK, 53)
    pieces = [x.const_like(2.0 * _inverse_pi_chunk(k * CHUNK, width)) for k, width in enumerate(widths)]
    for skipped in (1, 2, 3):
        is_small = x < 2.0 ** (24 + CHUNK * skipped)
        chunks = [2.0 * _inverse_pi_chunk((skipped + k) * CHUNK, width) for k, width in enumerate(widths)]
        pieces = [is_small.where(piece, chunk) for piece, chunk in zip(pieces, chunks, strict=True)]
    high, middle, low = (x * piece for piece in pieces)
    # Doubles from 2**54 on are multiples of 4, so this subtracts a multiple of 4.
    high = high - ((high + 2.0**54) - 2.0**54)
    shifter = 1.5 * 2.0**52
    rounded = ((high + middle) + low) + shifter
    rest = (((high - (rounded - shifter)) + middle) + low) * (math.pi / 2)
    return rest.cast(dtypes.float32), rounded.bitcast(dtypes.uint64).cast(dtypes.uint32)


def _reduce_in_words(magnitude: UOp, dtype: DType) -> tuple[UOp, UOp]:
    """(r, n with its last two bits right) for the |x| of these bits, by Payne and Hanek's method.

    x is an integer times 2**k. Three words of 2**k/pi from the units down, times the integer, give |x|/pi modulo 2 to
    two words. Below 1 the window of bits would begin too high."""
    form = FORMATS[dtype]
    word, half = form.unsigned.bits, form.half_signed.bits
    x = magnitude.bitcast(dtype)
    integer = (magnitude & ((1 << form.mantissa) - 1)) | (1 << form.mantissa)
    windows = _inverse_pi_window((magnitude >> form.mantissa) - form.bias, form)
    carried = _multiply_high(integer, windows[2])
    low = integer * windows[1] + carried
    high = integer * windows[0] + _multiply_high(integer, windows[1]) + (low < carried).cast(form.unsigned)
    quadrant = (high + (1 << (word - 3))) >> (word - 2)
    signed = ((high << 2) | (low >> (word - 2))).bitcast(form.signed)
    # The first half word is rounded to nearest: next to 0 it is 0 on both sides, and nothing cancels.
    first = ((signed >> half) + ((signed >> (half - 1)) & 1)).cast(dtype) * 2.0**-half
    second = signed.cast(form.half_signed).cast(dtype) * 2.0**-word
    # Dropping a few bits makes the integer non-negative when signed, whose conversion is cheaper.
    spare = word - form.mantissa - 2
    third = ((low << 2) >> spare).bitcast(form.signed).cast(dtype) * 2.0 ** (spare - 2 * word)
    rest = first * form.half_pi_high + (first * form.half_pi_low + (second + third) * (math.pi / 2))
    rest = (x < math.inf).where(rest, math.nan)
    is_near = x < form.largest_near
    near_rest, near_quadrant = _reduce_near(x)
    return is_near.where(near_rest, rest), is_near.where(near_quadrant, quadrant)


def _inverse_pi_window(offset: UOp, form: Format) -> list[UOp]:
    """Three words of 2**-mantissa/pi from the bit of weight 2**-`offset` on; offset lies in 0 to bias.

    Words are chosen by the bits of offset // word, then shifted by offset % word."""
    word = form.unsigned.bits
    steps = [1 << bit for bit in reversed(range((form.bias // word).bit_length()))]
    count = sum(steps) + 4
    string = INVERSE_PI >> (INVERSE_PI_BITS - count * word + form.mantissa + 1)
    words = [offset.const_like(string >> (word * (count - 1 - k)) & ((1 << word) - 1)) for k in range(count)]
    for step in steps:
        is_set = (offset & (word * step)).ne(0)
        words = [is_set.where(words[k + step], words[k]) for k in range(step + 3)]
    shift = offset & (word - 1)
    reverse = shift ^ (word - 1)
    # Shifting by 1 first avoids a shift by the whole width of a word.
    return [(words[k] << shift) | ((words[k + 1] >> 1) >> reverse) for k in range(3)]


def _multiply_high(left: UOp, right: UOp) -> UOp:
    """The upper word of the product of two words, the left one not longer than a mantissa."""
    half = left.dtype.bits // 2
    mask = (1 << half) - 1
    left_high, left_low = left >> half, left & mask
    right_high, right_low = right >> half, right & mask
    middle = left_high * right_low + ((left_low * right_low) >> half)
    other = left_low * right_high + (middle & mask)
    return left_high * right_high + (middle >> half) + (other >> half)

"""The block formats as kernels read them. In: the bytes of a block, a part of it and an element of the part, as UOps.
Out: the field of the element, and the scale and the minimum of the part: a weight is `scale * field + minimum`.

A block is `parts` runs of `length` elements, one after the other; each part lies in contiguous bytes, which parts
share: the low nibbles are one part, the high nibbles another. `scales` of the parts differ; where it is 1, all parts
have one scale. Fields are below 128, or signed: a dot-product instruction then needs no correction. For instructions
that multiply signed bytes they are signed in every format (`layout_of`)."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp


class Bytes(NamedTuple):
    """The bytes of a block: `at` gives the one at a position, which may depend on a part or an element. `pair` is a
    tile of 2 for kernels that load two bytes at once. `packed` bytes, of which fields are parts, may be wider numbers:
    those of the registers of a card, in which shifts and masks are merged."""

    at: Callable[[UOp | int], UOp]
    pair: UOp | None = None
    packed_dtype: DType = dtypes.uint8

    def __call__(self, position: UOp | int) -> UOp:
        return self.at(position)

    def packed(self, position: UOp | int) -> UOp:
        return self.at(position).cast(self.packed_dtype)

    def word(self, position: int) -> UOp:
        """Two bytes as uint16, the lower one first."""
        if self.pair is None:
            return self.at(position).cast(dtypes.uint16) | (self.at(position + 1).cast(dtypes.uint16) << 8)
        byte = self.at(self.pair + position).cast(dtypes.uint16) << (self.pair * 8).cast(dtypes.uint16)
        return UOp(Ops.REDUCE, byte.dtype, (byte, self.pair), Ops.ADD)


class Steps:
    """A number of each part as a multiple of one number of the block: `unit(block)` times `number(block, part)`."""

    def __init__(self, unit: Callable[[Bytes], UOp], number: Callable[[Bytes, UOp], UOp]) -> None:
        self.unit = unit
        self.number = number

    def __call__(self, block: Bytes, part: UOp) -> UOp:
        return self.unit(block) * _number(self.number(block, part))


class Layout(NamedTuple):
    """One format: `field(block, part, element)`, `scale(block, part)` and `minimum(block, part)`, which may be None.
    A format with a scale for each part has Steps as its scale; then a weight is also `scale * (field - offset) +
    lowest`, whose terms are `apart`."""

    parts: int
    length: int
    scales: int
    field: Callable[[Bytes, UOp, UOp], UOp]
    scale: Callable[[Bytes, UOp], UOp]
    minimum: Callable[[Bytes, UOp], UOp] | None
    together: int  # parts that share bytes: a kernel that loops over the others has their shifts as constants
    offset: float = 0.0  # where the minimum is the scale times -offset
    # Whether 8 elements share a byte with a bit of each, which lanes along a row unpack slowly.
    has_shared_bits: bool = False
    apart: tuple[float, Steps | None] = (0.0, None)
    run: int = 2  # consecutive parts whose nibbles share no byte with others

    @property
    def is_packed(self) -> bool:
        """Whether a field is less than a byte."""
        return self.together > 1

    def part(self, outer: UOp, inner: UOp) -> UOp:
        """The `inner` of the parts that share the bytes of number `outer`."""
        if self.parts == 16:
            return outer // 2 * 8 + inner * 2 + outer % 2
        return outer * self.together + inner


def half(block: Bytes, position: int) -> UOp:
    """A float16 in two bytes, as float32."""
    return block.word(position).bitcast(dtypes.float16).cast(dtypes.float32)


def _number(value: UOp) -> UOp:
    """A small integer as float32."""
    return value.cast(dtypes.int32).cast(dtypes.float32)


def _shifted(byte: UOp, amount: UOp) -> UOp:
    return byte >> amount.cast(byte.dtype)


def _nibble(first: int) -> Callable[[Bytes, UOp, UOp], UOp]:
    """Parts alternate: the low nibbles of a run of bytes, then its high ones."""

    def field(block: Bytes, part: UOp, element: UOp) -> UOp:
        return _shifted(block.packed(element + first), part * 4) & 15

    return field


def _with_bit(nibble: UOp, byte: UOp, number: UOp) -> UOp:
    """A nibble and 16 where a bit of the byte is set. The bit is tested with a mask: vectors of bytes have no shifts by
    different amounts."""
    mask = (number * 0 + 1) << number
    is_set = (byte & mask.cast(byte.dtype)).ne(0)
    return nibble | is_set.where(nibble.const_like(16), nibble.const_like(0))


def _with_sign(nibble: UOp, byte: UOp, number: UOp) -> UOp:
    """The same less 16, as a signed byte: a result of a comparison has all bits set or none, and its high bits are
    those of the sign."""
    mask = (number * 0 + 1) << number
    is_clear = (byte & mask.cast(byte.dtype)).eq(0)
    return (nibble | is_clear.where(nibble.const_like(0xF0), nibble.const_like(0))).bitcast(dtypes.int8)


Joined = Callable[[UOp, UOp, UOp], UOp]


def _five_bits(high: int, low: int, join: Joined = _with_bit) -> Callable[[Bytes, UOp, UOp], UOp]:
    """A nibble, and a bit for each of the 32 elements in order."""

    def field(block: Bytes, part: UOp, element: UOp) -> UOp:
        number = part * 16 + element
        nibble = _shifted(block.packed(element + low), part * 4) & 15
        return join(nibble, block.packed(number // 8 + high), number % 8)

    return field


def _first_half(block: Bytes, _part: UOp) -> UOp:
    return half(block, 0)


def _second_half(block: Bytes, _part: UOp) -> UOp:
    return half(block, 2)


def _offset(amount: float) -> Callable[[Bytes, UOp], UOp]:
    return lambda block, _part: half(block, 0) * -amount


def _signed_byte(block: Bytes, _part: UOp, element: UOp) -> UOp:
    return block(element + 2).bitcast(dtypes.int8)


# ---------------------------------------------------------------- super-blocks of 256


def _six_bits(first: int) -> Callable[[Bytes, UOp], UOp]:
    """The scale (first=4) or the minimum (first=8) of one of 8 parts, in 12 bytes: 6 bits of one byte, or a nibble and
    the two high bits of another."""

    def number(block: Bytes, part: UOp) -> UOp:
        rest = block(part + 8)
        nibble = rest & 15 if first == 4 else rest >> 4
        high = (block(part + (first - 4)) >> 2) & 48
        return (part < 4).where(block(part + first) & 63, nibble | high)

    return number


_SCALE_K = Steps(lambda block: half(block, 0), _six_bits(4))
_MINIMUM_K = Steps(lambda block: -half(block, 2), _six_bits(8))


def _field_q4_k(block: Bytes, part: UOp, element: UOp) -> UOp:
    return _shifted(block.packed(part // 2 * 32 + element + 16), part % 2 * 4) & 15


def _five_bits_k(join: Joined) -> Callable[[Bytes, UOp, UOp], UOp]:
    def field(block: Bytes, part: UOp, element: UOp) -> UOp:
        nibble = _shifted(block.packed(part // 2 * 32 + element + 48), part % 2 * 4) & 15
        return join(nibble, block.packed(element + 16), part)

    return field


def _field_q6_k(block: Bytes, part: UOp, element: UOp) -> UOp:
    """16 parts of 16: in each half of the block 4 quarters of 2 parts; two quarters share a run of 32 nibbles, all
    four a run of 32 bytes with two bits of each, which are shifted to where they belong, above the nibble."""
    half_block, quarter, side = part // 8, part // 2 % 4, part % 2
    nibble = _shifted(block.packed(half_block * 64 + quarter % 2 * 32 + side * 16 + element), quarter // 2 * 4) & 15
    packed = block.packed(half_block * 32 + side * 16 + element + 128)
    raised = packed << ((1 - quarter // 2) * (4 - quarter % 2 * 2)).cast(packed.dtype)
    return nibble | (_shifted(raised, quarter // 2 * (quarter % 2) * 2) & 48)


_SCALE_Q6_K = Steps(lambda block: half(block, 208), lambda block, part: block(part + 192).bitcast(dtypes.int8))


def _minimum_q6_k(block: Bytes, part: UOp) -> UOp:
    return half(block, 208) * -32.0 * _number(block(part + 192).bitcast(dtypes.int8))


def unsigned(layout: Layout) -> Layout:
    """A layout of signed bytes with fields of 0 to 255, for instructions that multiply unsigned by signed bytes."""

    def field(block: Bytes, part: UOp, element: UOp) -> UOp:
        return layout.field(block, part, element).bitcast(dtypes.uint8) ^ 128

    def minimum(block: Bytes, part: UOp) -> UOp:
        return layout.scale(block, part) * -128.0

    return layout._replace(field=field, minimum=minimum, offset=128.0)


LAYOUTS: dict[str, Layout] = {
    "Q4_0": Layout(2, 16, 1, _nibble(2), _first_half, _offset(8.0), 2, 8.0),
    "Q4_1": Layout(2, 16, 1, _nibble(4), _first_half, _second_half, 2),
    "Q5_0": Layout(2, 16, 1, _five_bits(2, 6), _first_half, _offset(16.0), 2, 16.0, True),
    "Q5_1": Layout(2, 16, 1, _five_bits(4, 8), _first_half, _second_half, 2, has_shared_bits=True),
    "Q8_0": Layout(1, 32, 1, _signed_byte, _first_half, None, 1),
    "Q4_K": Layout(8, 32, 8, _field_q4_k, _SCALE_K, _MINIMUM_K, 2, apart=(0.0, _MINIMUM_K)),
    "Q5_K": Layout(8, 32, 8, _five_bits_k(_with_bit), _SCALE_K, _MINIMUM_K, 2, apart=(0.0, _MINIMUM_K)),
    "Q6_K": Layout(16, 16, 16, _field_q6_k, _SCALE_Q6_K, _minimum_q6_k, 4, 32.0, apart=(32.0, None), run=8),
}


def _lowered(layout: Layout, field: Callable[[Bytes, UOp, UOp], UOp]) -> Layout:
    """A layout of 5 bits whose fields are less by 16, and its minima more by 16 scales."""
    minimum = layout.minimum
    assert minimum is not None

    def more(block: Bytes, part: UOp) -> UOp:
        return minimum(block, part) + layout.scale(block, part) * 16.0

    apart = (-16.0, layout.apart[1])
    return layout._replace(field=field, minimum=None if layout.offset == 16.0 else more, offset=0.0, apart=apart)


def _as_signed(layout: Layout) -> Layout:
    """The same fields, which are below 128, as signed bytes: memory of them is known to need no correction."""

    def field(block: Bytes, part: UOp, element: UOp) -> UOp:
        return layout.field(block, part, element).bitcast(dtypes.int8)

    return layout._replace(field=field)


def _without_offset(layout: Layout) -> Layout:
    """Signed fields from which the offset is subtracted: there is no minimum."""

    def field(block: Bytes, part: UOp, element: UOp) -> UOp:
        return layout.field(block, part, element) - int(layout.offset)

    return layout._replace(field=field, minimum=None, offset=0.0, apart=(0.0, None)) if layout.offset else layout


_SIGNED: dict[str, Layout] = {
    **{kind: _as_signed(layout) if layout.is_packed else layout for kind, layout in LAYOUTS.items()},
    "Q5_0": _lowered(LAYOUTS["Q5_0"], _five_bits(2, 6, _with_sign)),
    "Q5_1": _lowered(LAYOUTS["Q5_1"], _five_bits(4, 8, _with_sign)),
    "Q5_K": _lowered(LAYOUTS["Q5_K"], _five_bits_k(_with_sign)),
}
_WITHOUT_OFFSET = {kind: _without_offset(layout) for kind, layout in _SIGNED.items()}


def layout_of(kind: str, is_signed: bool, is_shared: bool = False) -> Layout:
    """The layout of a format for instructions that multiply two signed bytes, or an unsigned one by a signed one. Where
    many tokens share the fields, an offset is subtracted from each field instead of from each product."""
    if not is_signed:
        return LAYOUTS[kind]
    return (_WITHOUT_OFFSET if is_shared else _SIGNED)[kind]

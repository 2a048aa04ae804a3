"""The block formats of GGUF. In: a tensor of uint8 whose last axis holds the bytes of a block. Out: its elements
in float32, an expression of shifts and bitcasts that fuses with what reads it. The values are those of
`gguf.dequantize`, bit by bit: products are taken in the same order, and none is rounded where the reference is not.

    Q4_0    d:f16  q: 16 bytes of nibbles                                         d * (q - 8)
    Q4_K    d:f16  m:f16  12 bytes of 6-bit scales and minima  q: 128 bytes       d * scale * q - m * minimum

A nibble field of n bytes holds 2n elements: the low nibbles first, then the high ones."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtype import dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.base.records import NamedTuple
from tilewright.tensor.tensor import Tensor

SUPER_BLOCK = 256  # elements of a block of the K formats

# The 16 levels of the non-linear 4-bit formats.
_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class BlockType(NamedTuple):
    """One format: its name in GGUF, elements and bytes of a block, and the decoder of (..., nbytes) to (..., size)."""

    name: str
    size: int
    nbytes: int
    decode: Callable[[Tensor], Tensor]

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` elements, a multiple of `size`."""
        return columns // self.size * self.nbytes


# ---------------------------------------------------------------- fields of a block


def _shifts(packed: Tensor, bits: int) -> Tensor:
    """0, bits, 2 * bits, ... below 8."""
    return Tensor.arange(8 // bits, dtype=dtypes.uint8, device=packed.device) * bits


def _planes(packed: Tensor, bits: int) -> Tensor:
    """Bytes (..., n) as fields (..., 8 // bits, n): the lowest bits of all bytes, then the next ones."""
    return (packed.unsqueeze(-2) >> _shifts(packed, bits).unsqueeze(-1)) & ((1 << bits) - 1)


def _consecutive(packed: Tensor, bits: int) -> Tensor:
    """Bytes (..., n) as fields (..., n * 8 // bits): all fields of a byte, lowest first, then those of the next."""
    return ((packed.unsqueeze(-1) >> _shifts(packed, bits)) & ((1 << bits) - 1)).flatten(-2)


def _grouped(packed: Tensor, bits: int, width: int) -> Tensor:
    """The planes of each run of `width` bytes, one run after the other: (..., n * 8 // bits) fields."""
    return _planes(packed.unflatten(-1, (-1, width)), bits).flatten(-3)


def _half(packed: Tensor) -> Tensor:
    """A float16 in two bytes, (..., 2) to (..., 1) of float32."""
    return packed.bitcast(dtypes.float16).cast(dtypes.float32)


def _signed(fields: Tensor, offset: int) -> Tensor:
    """Unsigned fields less an offset, as float32."""
    return (fields.cast(dtypes.int8) - offset).cast(dtypes.float32)


def _level(index: Tensor) -> Tensor:
    """The level of a 4-bit index, by selections: no table is read from memory."""
    found = [Tensor.full((), level, dtype=dtypes.int8, device=index.device) for level in _LEVELS]
    for bit in range(4):
        is_odd = (index >> bit) & 1 != 0
        found = [is_odd.where(high, low) for low, high in zip(found[::2], found[1::2])]
    return found[0].cast(dtypes.float32)


# ---------------------------------------------------------------- blocks of 32


def _decode_q4_0(block: Tensor) -> Tensor:
    return _half(block[..., :2]) * _signed(_planes(block[..., 2:], 4).flatten(-2), 8)


def _decode_q4_1(block: Tensor) -> Tensor:
    nibbles = _planes(block[..., 4:], 4).flatten(-2).cast(dtypes.float32)
    return _half(block[..., :2]) * nibbles + _half(block[..., 2:4])


def _five_bits(high: Tensor, low: Tensor) -> Tensor:
    return _planes(low, 4).flatten(-2) | (_consecutive(high, 1) << 4)


def _decode_q5_0(block: Tensor) -> Tensor:
    return _half(block[..., :2]) * _signed(_five_bits(block[..., 2:6], block[..., 6:]), 16)


def _decode_q5_1(block: Tensor) -> Tensor:
    fields = _five_bits(block[..., 4:8], block[..., 8:]).cast(dtypes.float32)
    return _half(block[..., :2]) * fields + _half(block[..., 2:4])


def _decode_q8_0(block: Tensor) -> Tensor:
    return block[..., 2:].bitcast(dtypes.int8).cast(dtypes.float32) * _half(block[..., :2])


def _decode_iq4_nl(block: Tensor) -> Tensor:
    return _half(block[..., :2]) * _level(_planes(block[..., 2:], 4).flatten(-2))


def _decode_mxfp4(block: Tensor) -> Tensor:
    """An exponent byte for 32 elements of sign, two bits of exponent, one of mantissa: 0 .5 1 1.5 2 3 4 6, doubled here
    while the scale is halved, as the reference has it."""
    exponent = block[..., :1].cast(dtypes.uint32)
    is_tiny = exponent < 2
    bits = is_tiny.where((exponent * 0 + (1 << 21)) << is_tiny.where(exponent, 0), (exponent - 1) << 23)
    fields = _planes(block[..., 1:], 4).flatten(-2)
    power, mantissa = (fields >> 1) & 3, fields & 1
    magnitude = (power == 0).where(mantissa, (mantissa + 2) << (power == 0).where(0, power - 1)).cast(dtypes.int8)
    values = (fields >> 3 != 0).where(-magnitude, magnitude).cast(dtypes.float32)
    return bits.bitcast(dtypes.float32) * values


# ---------------------------------------------------------------- super-blocks of 256


def _scaled(scale: Tensor, values: Tensor, minimum: Tensor | None = None) -> Tensor:
    """Sub-blocks with a scale each, (..., n) and (..., 256), less a minimum each."""
    parts = values.unflatten(-1, (scale.shape[-1], -1))
    found = scale.unsqueeze(-1) * parts
    return (found if minimum is None else found - minimum.unsqueeze(-1)).flatten(-2)


def _decode_q2_k(block: Tensor) -> Tensor:
    scales = block[..., :16]
    scale = _half(block[..., 80:82]) * (scales & 15).cast(dtypes.float32)
    minimum = _half(block[..., 82:84]) * (scales >> 4).cast(dtypes.float32)
    return _scaled(scale, _grouped(block[..., 16:80], 2, 32).cast(dtypes.float32), minimum)


def _decode_q3_k(block: Tensor) -> Tensor:
    high_bits, low_bits = _planes(block[..., :32], 1).flatten(-2), _grouped(block[..., 32:96], 2, 32)
    scales = _planes(block[..., 96:104], 4).flatten(-2) | (_planes(block[..., 104:108], 2).flatten(-2) << 4)
    values = _signed(low_bits | (high_bits << 2), 4)  # without the high bit, 4 is taken off
    return _scaled(_half(block[..., 108:110]) * _signed(scales, 32), values)


def _scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and eight 6-bit minima in 12 bytes, as float32."""
    scales, minima, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:12]
    first = (scales & 63).cat((rest & 15) | ((scales >> 2) & 48), dim=-1)
    second = (minima & 63).cat((rest >> 4) | ((minima >> 2) & 48), dim=-1)
    return first.cast(dtypes.float32), second.cast(dtypes.float32)


def _with_minima(block: Tensor, values: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(block[..., 4:16])
    return _scaled(_half(block[..., :2]) * scales, values.cast(dtypes.float32), _half(block[..., 2:4]) * minima)


def _decode_q4_k(block: Tensor) -> Tensor:
    return _with_minima(block, _grouped(block[..., 16:], 4, 32))


def _decode_q5_k(block: Tensor) -> Tensor:
    high_bits = _planes(block[..., 16:48], 1).flatten(-2)
    return _with_minima(block, _grouped(block[..., 48:], 4, 32) | (high_bits << 4))


def _decode_q6_k(block: Tensor) -> Tensor:
    fields = _grouped(block[..., :128], 4, 64) | (_grouped(block[..., 128:192], 2, 32) << 4)
    scales = block[..., 192:208].bitcast(dtypes.int8).cast(dtypes.float32)
    return _scaled(_half(block[..., 208:210]) * scales, _signed(fields, 32))


def _decode_iq4_xs(block: Tensor) -> Tensor:
    scales = _consecutive(block[..., 4:8], 4) | (_consecutive(block[..., 2:4], 2) << 4)
    return _scaled(_half(block[..., :2]) * _signed(scales, 32), _level(_grouped(block[..., 8:], 4, 16)))


# ---------------------------------------------------------------- plain numbers


def _decode_f32(block: Tensor) -> Tensor:
    return block.bitcast(dtypes.float32)


def _decode_bf16(block: Tensor) -> Tensor:
    return (block.bitcast(dtypes.uint16).cast(dtypes.uint32) << 16).bitcast(dtypes.float32)


TYPES: dict[str, BlockType] = {
    found.name: found
    for found in (
        BlockType("F32", 1, 4, _decode_f32),
        BlockType("F16", 1, 2, _half),
        BlockType("BF16", 1, 2, _decode_bf16),
        BlockType("Q4_0", 32, 18, _decode_q4_0),
        BlockType("Q4_1", 32, 20, _decode_q4_1),
        BlockType("Q5_0", 32, 22, _decode_q5_0),
        BlockType("Q5_1", 32, 24, _decode_q5_1),
        BlockType("Q8_0", 32, 34, _decode_q8_0),
        BlockType("Q2_K", SUPER_BLOCK, 84, _decode_q2_k),
        BlockType("Q3_K", SUPER_BLOCK, 110, _decode_q3_k),
        BlockType("Q4_K", SUPER_BLOCK, 144, _decode_q4_k),
        BlockType("Q5_K", SUPER_BLOCK, 176, _decode_q5_k),
        BlockType("Q6_K", SUPER_BLOCK, 210, _decode_q6_k),
        BlockType("IQ4_NL", 32, 18, _decode_iq4_nl),
        BlockType("IQ4_XS", SUPER_BLOCK, 136, _decode_iq4_xs),
        BlockType("MXFP4", 32, 17, _decode_mxfp4),
    )
}


def block_type(operation: str, name: str) -> BlockType:
    """The format of this name; UnsupportedError where there is none here."""
    if name not in TYPES:
        remedy = f"take a file of another quantisation; known are {', '.join(TYPES)}"
        raise UnsupportedError(operation, f"weights of the type {name} cannot be decoded", remedy)
    return TYPES[name]

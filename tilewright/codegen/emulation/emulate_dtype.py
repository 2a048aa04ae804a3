"""Takes a kernel graph of scalar nodes and a target. Gives the graph without the small floats the target lacks.

It runs before `decompose`, which may decompose what it writes (EXP2 in float32, a CAST to int).

A value of an emulated dtype is held as its bits, in uint8 or uint16; memory of that dtype becomes memory of those bits.
Arithmetic is done in float32, which holds every small float exactly, and each result is rounded back: that is what an
op on the small dtype means. Two exceptions round less: a REDUCE accumulates in float32 and rounds once, and between a
multiplication with log2(e) and its EXP2, which together are exp(x), nothing is rounded.

Conversions use integer operations, or the target's own where it names the dtype in `native_casts`; they are exact, or
round once to nearest even. float64 and wide integers are first rounded to odd in float32 (an inexact result gets an odd
last bit), after which a second rounding to fewer bits is exact."""

from __future__ import annotations

import math

from tilewright.base.dtype import DType, cast_scalar, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.base.target import SMALL_FLOATS, Target
from tilewright.codegen.emulation.transcendental import LOG2_E
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import map_graph, toposort

INFINITY_BITS = 0x7F800000  # of float32
SIGN_BIT = 0x80000000


def emulate_dtypes(root: UOp, target: Target) -> UOp:
    """The graph with arithmetic, memory and constants of each small float that is not in `target.native` replaced.
    float64 is not emulated: on a target without it, it is an error of the user."""
    emulated = SMALL_FLOATS - target.native
    nodes = toposort(root)
    if dtypes.float64 not in target.native:
        check_no_doubles(nodes, target)
    if not any(node.dtype in emulated for node in nodes):
        return root
    return map_graph(root, Emulation(emulated, target.native_casts).visit, nodes)


def storage_dtype(dtype: DType) -> DType:
    """The unsigned integer that holds the bits of a small float."""
    return dtypes.uint8 if dtype.bits == 8 else dtypes.uint16


def check_no_doubles(nodes: list[UOp], target: Target) -> None:
    for node in nodes:
        if node.dtype is dtypes.float64:
            raise UnsupportedError(
                "compile",
                f"{target.name} does not compute with float64",
                "cast to float32, or compute it on another device and copy the result",
                location=node.line,
            )


class Emulation:
    """One run. `done` maps a node to its replacement, which for a value of an emulated dtype is its bits; `wide` maps
    values to their float32 form where that exists without a conversion."""

    def __init__(self, emulated: frozenset[DType], native_casts: frozenset[DType] = frozenset()) -> None:
        self.emulated = emulated
        self.native_casts = native_casts
        self.done: dict[UOp, UOp] = {}
        self.wide: dict[UOp, UOp] = {}

    def visit(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node.op is Ops.CAST or node.op is Ops.BITCAST:
            made = self._convert(node)
        elif node.dtype in self.emulated:
            made = self._emulate(node)
        elif node.op in _COMPARISONS or node.op is Ops.ACCUMULATE:
            made = node.with_src(tuple(self.widened(source) for source in node.src))
        else:
            made = node.with_src(src)
        self.done[node] = made
        return made

    def widened(self, node: UOp) -> UOp:
        """The node's value, in float32 where its dtype is emulated."""
        if node.dtype not in self.emulated:
            return self.done[node]
        found = self.wide.get(node)
        if found is None:
            found = self.wide[node] = self._widen(self.done[node], node.dtype)
        return found

    def _widen(self, bits: UOp, dtype: DType) -> UOp:
        return bits.bitcast(dtype).cast(dtypes.float32) if dtype in self.native_casts else widen(bits, dtype)

    def _narrow(self, x: UOp, dtype: DType) -> UOp:
        return x.cast(dtype).bitcast(storage_dtype(dtype)) if dtype in self.native_casts else narrow(x, dtype)

    def _emulate(self, node: UOp) -> UOp:
        """The bits of a value, or the address, whose dtype is emulated."""
        storage = storage_dtype(node.dtype)
        if node.op is Ops.CONST:
            self.wide[node] = const(dtypes.float32, node.arg)
            return const(storage, encode(node.arg, node.dtype))
        if node.op in _ACCUMULATORS:
            src = tuple(self.widened(source) for source in node.src)
            total = UOp(node.op, dtypes.float32, src, node.arg)
            if node.op is Ops.ACC:
                self.wide[node] = total  # a register wider than its dtype: what is read from it is rounded
            return self._narrow(total, node.dtype)
        if node.op is Ops.WHERE or not node.op.is_elementwise:
            src = tuple(self.done[source] for source in node.src)
            return UOp(node.op, storage, src, node.arg)
        if node.op is Ops.NEG:
            return self.done[node.src[0]] ^ (1 << (node.dtype.bits - 1))
        operands = self._exponent_of_exp(node) or [self.widened(source) for source in node.src]
        return self._narrow(operands[0].alu(node.op, *operands[1:]), node.dtype)

    def _exponent_of_exp(self, node: UOp) -> list[UOp] | None:
        """x * log2(e) in float32 where the node is EXP2(x * log2(e)): a rounded product would lose the precision of
        exp(x)."""
        if node.op is not Ops.EXP2 or node.src[0].op is not Ops.MUL:
            return None
        product = node.src[0]
        for factor, other in (product.src, product.src[::-1]):
            if other.is_const and abs(other.arg) == cast_scalar(LOG2_E, node.dtype):
                return [self.widened(factor) * math.copysign(LOG2_E, other.arg)]
        return None

    def _convert(self, node: UOp) -> UOp:
        source, target = node.src[0], node.dtype
        if node.op is Ops.BITCAST:
            # A small float is already held as its bits, as source and as target.
            return self.done[source].bitcast(storage_dtype(target) if target in self.emulated else target)
        if target in self.emulated:
            return (
                self.done[source] if source.dtype is target else self._narrow(to_float32(self.widened(source)), target)
            )
        value = self.widened(source)
        return value.cast(target) if value is not source else node


_COMPARISONS = frozenset({Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE})
_ACCUMULATORS = frozenset({Ops.REDUCE, Ops.ACC, Ops.COMBINE})


# ---------------------------------------------------------------- bits of one number


def encode(value: float, dtype: DType) -> int:
    """The bits of a number that the small float holds."""
    sign = int(math.copysign(1.0, value) < 0) << (dtype.bits - 1)
    magnitude = abs(value)
    largest_exponent = ((1 << dtype.exponent_bits) - 1) << dtype.mantissa_bits
    if magnitude != magnitude:
        return sign | (0x7F if dtype is dtypes.float8_e4m3 else largest_exponent | 1 << (dtype.mantissa_bits - 1))
    if magnitude == 0.0 or math.isinf(magnitude):
        return sign | (largest_exponent if magnitude else 0)
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    exponent = max(math.frexp(magnitude)[1] - 1, 1 - bias)
    mantissa = int(math.ldexp(magnitude, dtype.mantissa_bits - exponent))
    # The implicit leading bit carries into the exponent; a subnormal number has none.
    return sign | mantissa + ((exponent + bias - 1) << dtype.mantissa_bits)


# ---------------------------------------------------------------- small float to float32


def widen(bits: UOp, dtype: DType) -> UOp:
    """The float32 of a small float's bits, exactly."""
    word = bits.cast(dtypes.uint32)
    if dtype is dtypes.bfloat16:
        return (word << 16).bitcast(dtypes.float32)
    magnitude_mask = (1 << (dtype.bits - 1)) - 1
    magnitude = word & magnitude_mask
    # Exponent and mantissa in their bits of float32, and the difference of the biases. A subnormal number gets a
    # leading bit, which a subtraction removes, so that no intermediate is denormal in float32: some kernels flush
    # denormals.
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    placed = magnitude << (23 - dtype.mantissa_bits)
    led = (placed + ((128 - bias) << 23)).bitcast(dtypes.float32)
    subnormal = (led - 2.0 ** (1 - bias)).bitcast(dtypes.uint32)
    value = (magnitude < (1 << dtype.mantissa_bits)).where(subnormal, placed + ((127 - bias) << 23))
    if dtype is dtypes.float8_e4m3:
        value = magnitude.eq(magnitude_mask).where(value.const_like(0x7FC00000), value)
    else:
        infinity = ((1 << dtype.exponent_bits) - 1) << dtype.mantissa_bits
        value = (magnitude < infinity).where(value, placed | INFINITY_BITS)
    sign = (word << (32 - dtype.bits)) & SIGN_BIT
    return (value | sign).bitcast(dtypes.float32)


# ---------------------------------------------------------------- float32 to small float


def narrow(x: UOp, dtype: DType) -> UOp:
    """The bits of the small float nearest to a float32, ties to even. NaN stays NaN; too large a number is infinity,
    or NaN in float8_e4m3, which has no infinity."""
    bits = x.bitcast(dtypes.uint32)
    if dtype is dtypes.bfloat16:
        rounded = _drop_bits(bits, 16)
        return x.eq(x).where(rounded, 0x7FC0).cast(dtypes.uint16)
    magnitude = bits & (SIGN_BIT - 1)
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    dropped = 23 - dtype.mantissa_bits
    # Constants wrap: the difference of the biases is taken away.
    normal = _drop_bits(magnitude + ((bias - 127) << 23), dropped)
    # Adding this power of two moves the bits of a subnormal result to the lowest bits of the mantissa, and rounds them.
    exponent = 1 - bias + dropped
    subnormal = (magnitude.bitcast(dtypes.float32) + 2.0**exponent).bitcast(dtypes.uint32) - ((127 + exponent) << 23)
    value = (magnitude < ((128 - bias) << 23)).where(subnormal, normal)
    value = _saturate(magnitude, value, dtype)
    sign = (bits >> (32 - dtype.bits)) & (1 << (dtype.bits - 1))
    return (value | sign).cast(storage_dtype(dtype))


def _drop_bits(bits: UOp, count: int) -> UOp:
    """The bits without the last `count`, rounded to nearest even; a carry goes into the exponent, as it should."""
    last = (bits >> count) & 1
    return (bits + last + ((1 << (count - 1)) - 1)) >> count


def _saturate(magnitude: UOp, value: UOp, dtype: DType) -> UOp:
    """`value`, or the bits of infinity or NaN, by the bits of the float32 it was made from."""
    if dtype is dtypes.float8_e4m3:
        # 464 is half way between 448, the largest number, and the next one; the tie goes to 448, whose mantissa is
        # even.
        return (magnitude > 0x43E80000).where(value.const_like(0x7F), value)
    infinity = ((1 << dtype.exponent_bits) - 1) << dtype.mantissa_bits
    nan = value.const_like(infinity | 1 << (dtype.mantissa_bits - 1))
    beyond = (magnitude > INFINITY_BITS).where(nan, infinity)
    limit = (127 + (1 << (dtype.exponent_bits - 1))) << 23
    return (magnitude < limit).where(value, beyond)


# ---------------------------------------------------------------- other dtypes to float32, for rounding once more


def to_float32(x: UOp) -> UOp:
    """A float32 that rounds to the same number of at most 11 bits as x itself."""
    if x.dtype is dtypes.float64:
        return _double_to_odd(x)
    if x.dtype.is_int and (x.vmin < -(1 << 24) or x.vmax > 1 << 24):
        x = _integer_to_odd(x)
    return x.cast(dtypes.float32)


def _double_to_odd(x: UOp) -> UOp:
    """A double as the float32 towards 0, with its last bit set where that is not exact. NaN stays NaN."""
    nearest = x.cast(dtypes.float32)
    back = nearest.cast(dtypes.float64)
    is_beyond = back.bitcast(dtypes.uint64) > x.bitcast(dtypes.uint64)
    is_inexact = back.ne(x)
    bits = nearest.bitcast(dtypes.uint32) - is_beyond.cast(dtypes.uint32)
    return (bits | is_inexact.cast(dtypes.uint32)).bitcast(dtypes.float32)


def _integer_to_odd(x: UOp) -> UOp:
    """The integer truncated to at most 24 significant bits, with the lowest of them set where bits were lost."""
    result = x
    dropped = 12
    # From 2**(dropped + 12) up to the next step numbers lose `dropped` bits: at least 13 are left, at most 24.
    while (1 << (dropped + 12)) <= max(int(x.vmax), -int(x.vmin)):
        lost = x & ((1 << dropped) - 1)
        odd = (x & -(1 << dropped)) | lost.ne(0).where(x.const_like(1 << dropped), 0)
        limit = 1 << (dropped + 12)
        is_small = x < limit if x.dtype.is_unsigned else (x < limit) & (x > -limit)
        result = is_small.where(result, odd)
        dropped += 12
    return result

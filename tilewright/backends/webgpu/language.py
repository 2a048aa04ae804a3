"""WGSL text of single operations. In: an op, dtypes, the texts of its operands. Out: an expression.

It differs from C in four ways. Integers narrower than a word are in words and are truncated to their width when they
may have left it; one of 64 bits is a vector of two words, which is converted here and computed with in
codegen/emulation/. There is no infinity or NaN to write. And a compiler may compute with floats as if they were
real numbers: it turns (x + c) - c into x, and x * 0 into 0, so that NaN, signed zeros and roundings are lost. `exact`
prevents it: the bits of a value are XORed with a zero that is loaded from a buffer, which the compiler does not
know."""

from __future__ import annotations

import math
import struct
from typing import ClassVar

from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.base.errors import InternalError, UnsupportedError
from tilewright.base.target import WIDE_INTEGERS, Target
from tilewright.codegen.c_style.expressions import (
    ATOM,
    BIT_AND,
    BIT_OR,
    EQUALITY,
    LEVELS,
    PRODUCT,
    RELATION,
    SUM,
    UNARY,
    Expression,
)
from tilewright.codegen.c_style.language import COMPARISONS, Language
from tilewright.codegen.c_style.launch import Launch
from tilewright.graph.ops import Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op

WORD_BITS = 32
ENTRY = "main"
# WGSL has one level for all of & ^ |, and wants brackets between them.
_LEVELS = {**LEVELS, "^": BIT_OR}
# Bools have no arithmetic; & and | on them, unlike && and ||, are not branches.
_BOOL_SYMBOLS = {Ops.ADD: "|", Ops.MAX: "|", Ops.OR: "|", Ops.MUL: "&", Ops.MIN: "&", Ops.AND: "&"}
_BOOL_SYMBOLS |= {Ops.SUB: "!=", Ops.XOR: "!=", Ops.CMPNE: "!=", Ops.CMPEQ: "=="}
# Results that stay in the range of a narrow integer when the operands are in it.
_STAYS_NARROW = frozenset({Ops.AND, Ops.OR, Ops.XOR, Ops.SHR, Ops.IDIV, Ops.MOD})
PAIR = "vec2<u32>"  # of words, the low one first


def infix(symbol: str, level: int, left: Expression, right: Expression) -> Expression:
    """WGSL has no order among bit operations, shifts and comparisons: only sums and products go without parentheses."""
    if level in (SUM, PRODUCT):
        return Expression(f"{left.within(level)} {symbol} {right.within(level - 1)}", level)
    around = SUM if level in (RELATION, EQUALITY) else UNARY
    return Expression(f"{left.within(around)} {symbol} {right.within(around)}", level)


class WgslLanguage(Language):
    type_names: ClassVar[dict[DType, str]] = {
        dtypes.bool: "bool",
        dtypes.int8: "i32",
        dtypes.uint8: "u32",
        dtypes.int16: "i32",
        dtypes.uint16: "u32",
        dtypes.int32: "i32",
        dtypes.uint32: "u32",
        dtypes.int64: PAIR,
        dtypes.uint64: PAIR,
        dtypes.float16: "f16",
        dtypes.float32: "f32",
    }
    suffixes: ClassVar[dict[DType, str]] = {
        dtypes.uint8: "u",
        dtypes.uint16: "u",
        dtypes.uint32: "u",
        dtypes.float32: "f",
    }
    helper_qualifier: ClassVar[str] = "fn"
    leave: ClassVar[str] = "{ return; }"
    needs_braces: ClassVar[bool] = True

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.uses_unknown = False
        self.uses_half = False
        self.globals: list[str] = []  # bindings and the memory of work-groups
        self.local_bytes = 0
        self.known: dict[str, Scalar] = {}  # texts that are constants, and their values
        self.orders_buffers = False  # whether a barrier also orders accesses to buffers

    def function_of(self, head: str, *lines: str) -> str:
        """Adds a function before the kernel, by its head and the lines inside. Returns its name."""
        name = head.partition("(")[0]
        body = "".join(f"\n  {line}" for line in lines)
        self.helper(name, f"{head} {{{body}\n}}" if len(lines) > 1 else f"{head} {{ {lines[0]} }}")
        return name

    # ------------------------------------------------------------ types

    def type_name(self, dtype: DType) -> str:
        self.uses_half |= dtype is dtypes.float16
        return super().type_name(dtype)

    # ------------------------------------------------------------ the kernel around the body

    def prelude(self, program: Program) -> list[str]:
        lines = ["enable f16;"] if self.uses_half else []
        if self.uses_unknown:
            lines.append("@group(1) @binding(0) var<uniform> unknown_zero: vec4<u32>;")
        return lines + self.globals

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        sizes = ", ".join(map(str, launch.group))
        return [
            f"@compute @workgroup_size({sizes})",
            f"fn {ENTRY}(@builtin(workgroup_id) group_id: vec3<u32>, "
            "@builtin(local_invocation_id) thread_id: vec3<u32>) {",
        ]

    def variable_name(self, number: int) -> str:
        return f"variables[{number}]"

    def group_index(self, dimension: int) -> str:
        return f"i32(group_id.{'xyz'[dimension]})"

    def thread_index(self, dimension: int) -> str:
        return f"i32(thread_id.{'xyz'[dimension]})"

    def launch_number(self, dtype: DType, text: str) -> str:
        return text if dtype is dtypes.int32 else self.cast_text(dtype, Expression(text)).text

    def cast_text(self, target: DType, operand: Expression) -> Expression:
        if target in WIDE_INTEGERS:
            raise UnsupportedError(
                "compile",
                f"the kernel has more work-groups than 32 bits count, and {self.target.name} has no wider integers",
                "split the tensor, or use another device",
            )
        return Expression(f"{self.type_name(target)}({operand.text})")

    def constant(self, dtype: DType, name: str) -> str:
        return f"let {name}: {self.type_name(dtype)}"

    def variable(self, dtype: DType, name: str) -> str:
        return f"var {name}: {self.type_name(dtype)}"

    def declare_local(self, name: str, dtype: DType, size: int) -> str:
        kind = self.memory_type(dtype)
        self.local_bytes += size * max(dtype.itemsize, WORD_BITS // 8 if kind != "f16" else 2)
        if self.local_bytes > self.target.max_local_bytes:
            raise UnsupportedError(
                "compile",
                f"a work-group needs {self.local_bytes} bytes of local memory, {self.target.name} has "
                f"{self.target.max_local_bytes}: integers narrower than 32 bits take a word each there",
                "use smaller groups or tiles (fewer opts), or a 32-bit type",
            )
        self.globals.append(f"var<workgroup> {name}: array<{kind}, {size}>;")
        return ""

    def declare_register(self, name: str, dtype: DType, size: int) -> str:
        return f"var {name}: array<{self.memory_type(dtype)}, {size}>;"

    def barrier(self) -> str:
        return "storageBarrier(); workgroupBarrier();" if self.orders_buffers else "workgroupBarrier();"

    def vector_widths(self, dtype: DType) -> tuple[int, ...]:
        """Elements that fill one word of a buffer."""
        return () if dtype.is_float or dtype.bits >= WORD_BITS else (WORD_BITS // dtype.bits,)

    # ------------------------------------------------------------ constants

    def literal(self, dtype: DType, value: Scalar) -> Expression:
        if dtype in WIDE_INTEGERS:
            low, high = (int(value) >> shift & 0xFFFFFFFF for shift in (0, WORD_BITS))
            return Expression(f"{PAIR}({low}u, {high}u)")
        is_least = dtype is dtypes.int32 and value == dtype.min
        made = Expression("i32(-2147483648)") if is_least else super().literal(dtype, value)
        self.known[made.text] = value
        return made

    def float_literal(self, dtype: DType, value: float) -> Expression:
        self.type_name(dtype)
        if dtype is dtypes.float16:
            inner = self.float_literal(dtypes.float32, value)
            return Expression(f"f16({inner.text})")
        if not math.isfinite(value) or value == 0.0:
            return self.opaque(dtype, value)
        if abs(value) < 2.0 ** (2 - (1 << (dtype.exponent_bits - 1))):
            return Expression(f"bitcast<{self.type_name(dtype)}>({self._bits_text(value)})")
        return super().float_literal(dtype, value)

    def opaque(self, dtype: DType, value: float) -> Expression:
        """A constant that the compiler does not know: infinities and NaN, which it refuses, and zeros, with which it
        would simplify sums and products."""
        kind, zero = self.type_name(dtype), self.unknown_zero()
        if value == 0.0 and math.copysign(1.0, value) > 0.0:
            name = self.function_of(f"zero_{dtype.name}() -> {kind}", f"return bitcast<{kind}>({zero});")
            return Expression(f"{name}()")
        return Expression(f"bitcast<{kind}>({self._bits_text(value)} ^ {zero})")

    def unknown_zero(self) -> str:
        self.uses_unknown = True
        return "unknown_zero.x"

    def _bits_text(self, value: float) -> str:
        """The bits of a float32, as text."""
        return self.literal(dtypes.uint32, int.from_bytes(struct.pack("<f", value), "little")).text

    # ------------------------------------------------------------ operations

    def exact(self, dtype: DType, value: Expression) -> Expression:
        """The value, rounded as written: the compiler cannot see through to how it was computed."""
        kind, name = self.type_name(dtype), f"exact_{dtype.name}"
        if dtype is dtypes.float16:
            inner = self.exact(dtypes.float32, Expression("f32(x)")).text
            self.function_of(f"{name}(x: f16) -> f16", f"return f16({inner});")
        else:
            body = f"bitcast<{kind}>(bitcast<u32>(x) ^ {self.unknown_zero()})"
            self.function_of(f"{name}(x: {kind}) -> {kind}", f"return {body};")
        return Expression(f"{name}({value.text})")

    def is_nan(self, dtype: DType, value: Expression) -> Expression:
        """By the bits, which the compiler's assumptions about floats do not affect."""
        if dtype is dtypes.float16:
            return self.is_nan(dtypes.float32, Expression(f"f32({value.text})"))
        name = f"is_nan_{dtype.name}"
        sign = self.literal(dtypes.uint32, (1 << (dtype.bits - 1)) - 1).text
        body = f"(bitcast<u32>(x) & {sign}) > {self._bits_text(math.inf)}"
        self.function_of(f"{name}(x: {self.type_name(dtype)}) -> bool", f"return {body};")
        return Expression(f"{name}({value.text})")

    def function(self, op: Op, dtype: DType) -> str:
        return op.function

    def unary(self, op: Op, dtype: DType, operand: Expression) -> Expression:
        made = super().unary(op, dtype, operand)
        # Two minus signs in a row are another token.
        return Expression(f"-({operand.text})", UNARY) if made.text.startswith("--") else made

    def binary(self, op: Op, dtype: DType, left: Expression, right: Expression, wraps: bool = True) -> Expression:
        if dtype in WIDE_INTEGERS:
            return self._pair_op(op, left, right)
        if dtype.is_bool:
            if op is Ops.CMPLT:
                return Expression(f"!{left.within(UNARY)} & {right.within(UNARY)}", BIT_AND)
            symbol = _BOOL_SYMBOLS[op]
            if right.text == "true" and symbol == "!=":
                return Expression(f"!{left.within(UNARY)}", UNARY)
            return infix(symbol, EQUALITY if "=" in symbol else BIT_AND, left, right)
        if op in (Ops.MAX, Ops.MIN):
            return self.extremum(op, dtype, left, right)
        symbol, level = op.symbol, _LEVELS[op.symbol]
        if op is Ops.CMPNE and dtype.is_float:
            # != may be false for NaN, == is false.
            return Expression(f"!({infix('==', EQUALITY, left, right).text})", UNARY)
        if op in (Ops.SHL, Ops.SHR):
            right = self._shift_amount(right)
        made = infix(symbol, level, left, right)
        if dtype.is_float or op in COMPARISONS or op in _STAYS_NARROW or not wraps:
            return made
        return self.cut(dtype, made)

    def _pair_op(self, op: Op, left: Expression, right: Expression) -> Expression:
        """The 64-bit operations that codegen leaves: shifts by a word, and an OR of two pairs."""
        if op is Ops.OR:
            return infix("|", BIT_OR, left, right)
        if op is Ops.SHL:
            return Expression(f"{PAIR}(0u, {self._low_word(left).text})")
        if op is Ops.SHR:
            high = Expression(f"{left.within(ATOM)}.y")
            return Expression(f"{PAIR}({high.text}, 0u)", twin=high)
        raise InternalError(f"the WGSL renderer was given {op!r} of 64 bits, which codegen decomposes")

    def _low_word(self, pair: Expression) -> Expression:
        """The twin of a pair that is made of its low word alone is that word."""
        return pair.twin or Expression(f"{pair.within(ATOM)}.x")

    def _shift_amount(self, amount: Expression) -> Expression:
        known = self.known.get(amount.text)
        return Expression(f"u32({amount.text})") if known is None else Expression(f"{int(known)}u")

    def cut(self, dtype: DType, word: Expression) -> Expression:
        """A word truncated to a narrow integer; a wider integer is unchanged."""
        if dtype.bits >= WORD_BITS:
            return word
        if dtype.is_unsigned:
            return Expression(f"{word.within(UNARY)} & {(1 << dtype.bits) - 1}u", BIT_AND)
        return Expression(f"extractBits({word.text}, 0u, {dtype.bits}u)")

    def extremum(self, op: Op, dtype: DType, left: Expression, right: Expression) -> Expression:
        """max() and min() of WGSL may drop a NaN, so those of floats are spelled by comparisons."""
        short = "max" if op is Ops.MAX else "min"
        if not dtype.is_float:
            return Expression(f"{short}({left.text}, {right.text})")
        if dtype is dtypes.float16:
            sides = [Expression(f"f32({side.text})") for side in (left, right)]
            return Expression(f"f16({self.extremum(op, dtypes.float32, *sides).text})")
        name, kind = f"{short}_{dtype.name}", self.type_name(dtype)
        joined = f"bitcast<u32>(a) {'&' if op is Ops.MAX else '|'} bitcast<u32>(b)"
        takes_b = f"(a {'<' if op is Ops.MAX else '>'} b) | {self.is_nan(dtype, Expression('b')).text}"
        self.function_of(
            f"{name}(a: {kind}, b: {kind}) -> {kind}",
            f"let chosen = select(a, b, {takes_b});",
            f"return select(chosen, bitcast<{kind}>({joined}), a == b);",
        )
        return Expression(f"{name}({left.text}, {right.text})")

    def where(self, dtype: DType, condition: Expression, yes: Expression, no: Expression) -> Expression:
        return Expression(f"select({no.text}, {yes.text}, {condition.text})")

    # ------------------------------------------------------------ conversions

    def cast(self, source: DType, target: DType, operand: Expression) -> Expression:
        if source is target:
            return operand
        if target.is_bool:
            return self.binary(Ops.CMPNE, source, operand, self.literal(source, 0))
        if target is dtypes.float16:
            # Through float32, which holds every integer that does not overflow to infinity.
            self.type_name(dtypes.float16)
            return Expression(f"f16(f32({operand.text}))")
        if target.is_int and source.is_int:
            return self._between_integers(source, target, operand)
        return Expression(f"{self.type_name(target)}({operand.text})")

    def _between_integers(self, source: DType, target: DType, operand: Expression) -> Expression:
        if source in WIDE_INTEGERS:
            return operand if target in WIDE_INTEGERS else self._low_word(operand)
        if target in WIDE_INTEGERS:
            return Expression(f"{PAIR}({operand.text}, 0u)", twin=operand)
        have, want = self.type_name(source), self.type_name(target)
        text = operand if have == want else Expression(f"{want}({operand.text})")
        is_contained = source.bits < target.bits and (source.is_unsigned or not target.is_unsigned)
        return text if is_contained else self.cut(target, text)

    def bitcast(self, source: DType, target: DType, operand: Expression) -> Expression:
        if source is target or source.is_bool or target.is_bool or (source.is_int and target.is_int):
            return self.cast(source, target, operand)
        if target is dtypes.float16:
            self.type_name(target)
            return Expression(f"f16(unpack2x16float(u32({operand.text})).x)")
        if source is dtypes.float16:
            bits = Expression(f"pack2x16float(vec2<f32>(f32({operand.text}), 0.0f))")
            return self.cast(dtypes.uint16, target, bits)
        return Expression(f"bitcast<{self.type_name(target)}>({operand.text})")

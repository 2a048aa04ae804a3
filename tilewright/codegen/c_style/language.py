"""How C spells single operations. In: an op, dtypes, the texts of its operands. Out: an expression, or a statement.
`Language` is C itself; a device's dialect is a subclass in its backend that overrides what differs. The renderer
decides what to compute; tiles and loops are unknown here. An object belongs to one program and collects its helper
functions."""

from __future__ import annotations

import functools
import math
import re
import struct
from typing import ClassVar

from tilewright.base.dtype import DType, Scalar, bits_dtype, dtypes
from tilewright.base.errors import InternalError, UnsupportedError
from tilewright.codegen.c_style.expressions import ATOM, CHOICE, OR, UNARY, Expression, infix
from tilewright.codegen.c_style.launch import Launch
from tilewright.graph.ops import AddrSpace, Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op

_BOOL_SYMBOLS: dict[Op, str] = {
    **dict.fromkeys((Ops.ADD, Ops.OR, Ops.MAX), "||"),
    **dict.fromkeys((Ops.MUL, Ops.AND, Ops.MIN), "&&"),
    **dict.fromkeys((Ops.SUB, Ops.XOR, Ops.CMPNE), "!="),
    Ops.CMPEQ: "==",
    Ops.CMPLT: "<",
}
COMPARISONS = frozenset({Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE})
# The least number is written as a difference: in C, -2147483648 is the negation of 2147483648, which no int holds.
_MIN_NEEDS_DIFFERENCE = (dtypes.int32, dtypes.int64)


C_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        "auto break case char const continue default do double else enum extern float for goto if inline int long "
        "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
        "bool true false main",
    )
)

# The names of integer types in OpenCL and Metal.
SHORT_TYPE_NAMES: dict[DType, str] = {
    dtypes.bool: "bool",
    dtypes.int8: "char",
    dtypes.uint8: "uchar",
    dtypes.int16: "short",
    dtypes.uint16: "ushort",
    dtypes.int32: "int",
    dtypes.uint32: "uint",
    dtypes.int64: "long",
    dtypes.uint64: "ulong",
    dtypes.float32: "float",
}
SHORT_SUFFIXES: dict[DType, str] = {
    dtypes.uint32: "u",
    dtypes.int64: "l",
    dtypes.uint64: "ul",
    dtypes.float32: "f",
}


class Language:
    """C. An op must mean here what `graph/ops.py` says, so arithmetic that C leaves undefined is done in unsigned."""

    keywords: ClassVar[frozenset[str]] = C_KEYWORDS
    type_names: ClassVar[dict[DType, str]] = {
        dtypes.bool: "bool",
        dtypes.int8: "signed char",
        dtypes.uint8: "unsigned char",
        dtypes.int16: "short",
        dtypes.uint16: "unsigned short",
        dtypes.int32: "int",
        dtypes.uint32: "unsigned int",
        dtypes.int64: "long long",
        dtypes.uint64: "unsigned long long",
        dtypes.float32: "float",
        dtypes.float64: "double",
    }
    suffixes: ClassVar[dict[DType, str]] = {
        dtypes.uint32: "u",
        dtypes.int64: "ll",
        dtypes.uint64: "ull",
        dtypes.float32: "f",
    }
    # Qualifiers of a pointer, by its address space; and of a function that is not a kernel.
    spaces: ClassVar[dict[AddrSpace, str]] = {AddrSpace.GLOBAL: "", AddrSpace.LOCAL: "", AddrSpace.REG: ""}
    helper_qualifier: ClassVar[str] = "static inline"
    restrict: str = ""
    leave: ClassVar[str] = "return;"  # the statement that ends a thread without work
    needs_braces: ClassVar[bool] = False  # also around a single statement
    # The sizes of vector loads and stores in bytes, and whether the address must be a multiple of the size.
    vector_bytes: ClassVar[int] = 16
    vectors_are_aligned: ClassVar[bool] = True

    def __init__(self) -> None:
        self.helpers: dict[str, str] = {}  # name -> text, in the order of first use

    # ------------------------------------------------------------ types and names

    def type_name(self, dtype: DType) -> str:
        """The type of a value."""
        found = self.type_names.get(dtype)
        if found is None:
            remedy = "use another dtype, or compute it on another device and copy the result"
            raise UnsupportedError("compile", f"the device does not compute with {dtype.name}", remedy)
        return found

    def constant(self, dtype: DType, name: str) -> str:
        """The declaration of a constant variable."""
        return f"const {self.type_name(dtype)} {name}"

    def variable(self, dtype: DType, name: str) -> str:
        return f"{self.type_name(dtype)} {name}"

    def memory_type(self, dtype: DType) -> str:
        """The type of an element in memory; a bool is a byte there."""
        return self.type_name(dtypes.uint8 if dtype.is_bool else dtype)

    def kernel_name(self, program: Program) -> str:
        name = re.sub(r"\W+", "_", program.name) or "kernel"
        return f"{name}_kernel" if name in self.keywords or name[0].isdigit() else name

    def pointer_type(self, dtype: DType, space: AddrSpace, is_const: bool, element: str = "") -> str:
        words = [self.spaces[space], "const" if is_const else "", element or self.memory_type(dtype)]
        return " ".join(word for word in words if word) + "*"

    # ------------------------------------------------------------ the kernel around the body

    def prelude(self, program: Program) -> list[str]:
        """Lines before everything else: includes, extensions."""
        return ["#include <stdbool.h>"]

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        """The lines that open the kernel's function, its brace included."""
        return [f"void {self.kernel_name(program)}({', '.join(self.arguments(program, params))}) {{"]

    def arguments(self, program: Program, params: list[tuple[Param, str]]) -> list[str]:
        """What a launch gives: the buffers, and after them the variables."""
        numbers = enumerate(program.variables)
        given = [self.constant(variable.dtype, self.variable_name(number)) for number, variable in numbers]
        if program.section is not None:
            return self.section_arguments(program, params)
        return [*(self.parameter(*param) for param in params), *given]

    def section_arguments(self, program: Program, params: list[tuple[Param, str]]) -> list[str]:
        """What a launch of several sections gives, in the order of `argument_slots`."""
        return [self.parameter(param, f"{name}_{n}") for param, name in params for n in range(program.sections)]

    def select_section(self, program: Program, param: Param, name: str, section: str) -> str:
        """The declaration of a buffer of the section that a work-group belongs to."""
        *others, last = range(program.sections)
        chosen = "".join(f"{section} == {number} ? {name}_{number} : " for number in others)
        return (
            f"{self.pointer_type(param.dtype, AddrSpace.GLOBAL, not param.is_written)} {name} = {chosen}{name}_{last};"
        )

    def variable_name(self, number: int) -> str:
        return f"var{number}"

    def parameter(self, param: Param, name: str) -> str:
        pointer = self.pointer_type(param.dtype, AddrSpace.GLOBAL, not param.is_written)
        return " ".join(word for word in (pointer, self.restrict, name) if word)

    def group_index(self, dimension: int) -> str:
        """The number of the work-group along x, y or z (0, 1, 2)."""
        raise InternalError(f"{type(self).__name__} has no grid")

    def thread_index(self, dimension: int) -> str:
        """The number of the thread in its work-group along x, y or z."""
        raise InternalError(f"{type(self).__name__} has no work-groups")

    def thread_bounds(self, program: Program, launch: Launch) -> list[str]:
        """Lines that tell the compiler how many threads a work-group has, where it does not know."""
        return []

    def launch_number(self, dtype: DType, text: str) -> str:
        """An expression of these numbers as the value of an axis."""
        return text

    def declare_local(self, name: str, dtype: DType, size: int) -> str:
        """Memory of a work-group, aligned for vectors."""
        raise InternalError(f"{type(self).__name__} has no local memory")

    def declare_register(self, name: str, dtype: DType, size: int) -> str:
        return f"{self.memory_type(dtype)} {name}[{size}];"

    def barrier(self) -> str:
        raise InternalError(f"{type(self).__name__} has no barrier")

    def warp_fold(self, op: Op, dtype: DType, width: int, value: Expression) -> Expression:
        """The fold of the value over `width` adjacent threads; every one of them gets it."""
        raise InternalError(f"{type(self).__name__} has no exchange between threads")

    def atomic(self, op: Op, dtype: DType, pointer: Expression, value: Expression) -> str:
        """A statement that atomically combines a value with what is in memory."""
        raise InternalError(f"{type(self).__name__} has no atomic operations")

    def conditional(self, condition: Expression, lines: list[str]) -> list[str]:
        """Statements that run where a condition holds."""
        if len(lines) == 1 and not self.needs_braces:
            return [f"if ({condition.text}) {lines[0]}"]
        return [f"if ({condition.text}) {{", *(f"  {line}" for line in lines), "}"]

    # ------------------------------------------------------------ vectors in memory

    def vector_widths(self, dtype: DType) -> tuple[int, ...]:
        """The numbers of elements that one access may have, largest first."""
        most = self.vector_bytes // dtype.itemsize
        return tuple(1 << power for power in range(most.bit_length() - 1, 0, -1) if 1 << power <= most)

    def vector_type(self, dtype: DType, width: int) -> str:
        raise InternalError(f"{type(self).__name__} has no vectors")

    def make_vector(self, dtype: DType, elements: list[str]) -> str:
        return f"({self.vector_type(dtype, len(elements))}){{{', '.join(elements)}}}"

    def lane(self, vector: str, position: int, width: int) -> str:
        return f"{vector}[{position}]"

    def load_vector(self, dtype: DType, width: int, pointer: Expression, space: AddrSpace) -> Expression:
        kind = self.pointer_type(dtype, space, True, self.vector_type(dtype, width))
        return Expression(f"*({kind}){pointer.within(ATOM)}", UNARY)

    def store_vector(self, dtype: DType, elements: list[str], pointer: Expression, space: AddrSpace) -> str:
        kind = self.pointer_type(dtype, space, False, self.vector_type(dtype, len(elements)))
        return f"*({kind}){pointer.within(ATOM)} = {self.make_vector(dtype, elements)};"

    # ------------------------------------------------------------ constants

    def literal(self, dtype: DType, value: Scalar) -> Expression:
        if dtype.is_bool:
            return Expression("true" if value else "false")
        if dtype.is_float:
            return self.float_literal(dtype, float(value))
        number, suffix = int(value), self.suffixes.get(dtype, "")
        if number == dtype.min and dtype in _MIN_NEEDS_DIFFERENCE:
            return Expression(f"(-{-number - 1}{suffix} - 1)")
        return Expression(f"{number}{suffix}", UNARY if number < 0 else ATOM)

    def float_literal(self, dtype: DType, value: float) -> Expression:
        if math.isnan(value):
            return self.nan(dtype)
        if math.isinf(value):
            infinity = self.infinity(dtype)
            return infinity if value > 0 else Expression(f"-{infinity.within(ATOM)}", UNARY)
        text = f"{shortest_decimal(abs(value), dtype)}{self.suffixes.get(dtype, '')}"
        return Expression(f"-{text}", UNARY) if math.copysign(1.0, value) < 0 else Expression(text)

    def infinity(self, dtype: DType) -> Expression:
        return Expression(f"__builtin_inf{'f' if dtype is dtypes.float32 else ''}()")

    def nan(self, dtype: DType) -> Expression:
        return Expression(f"""__builtin_nan{"f" if dtype is dtypes.float32 else ""}("")""")

    # ------------------------------------------------------------ operations

    def unary(self, op: Op, dtype: DType, operand: Expression) -> Expression:
        if op is Ops.NEG:
            if dtype.is_bool:
                return operand
            if dtype.is_float:
                text = operand.within(UNARY)
                return Expression(f"-({text})" if text.startswith("-") else f"-{text}", UNARY)
            return self.binary(Ops.SUB, dtype, self.literal(dtype, 0), operand)
        return Expression(f"{self.function(op, dtype)}({operand.text})")

    def function(self, op: Op, dtype: DType) -> str:
        """The name of the library's function for an op of one operand."""
        if not op.function or not dtype.is_float:
            raise InternalError(f"{type(self).__name__} was given {op!r} of {dtype.name}, which no library has")
        return f"__builtin_{op.function}{'f' if dtype is dtypes.float32 else ''}"

    def binary(self, op: Op, dtype: DType, left: Expression, right: Expression, wraps: bool = True) -> Expression:
        """`dtype` is that of the operands; `wraps` is False where the result is known to be in its range."""
        if dtype.is_bool:
            if right.text == "true" and op in (Ops.CMPNE, Ops.XOR):
                return left.twin or Expression(f"!{left.within(UNARY)}", UNARY, left)
            return infix(_BOOL_SYMBOLS[op], left, right)
        if op in (Ops.MAX, Ops.MIN):
            return self.extremum(op, dtype, left, right)
        if op in COMPARISONS or dtype.is_float:
            made = infix(op.symbol, left, right)
            # Of floats the negation of < is not >=: both are false of NaN.
            is_ordered = op is Ops.CMPLT and dtype.is_int
            return made._replace(twin=infix(">=", left, right)) if is_ordered else made
        return self._integer(op, dtype, left, right, wraps)

    def quotient(self, dtype: DType, left: Expression, right: Expression) -> Expression:
        """The quotient by a divisor that a device function estimates (`is_estimated`): a quotient with an error of two
        units in the last place is accurate enough."""
        return infix("/", left, right)

    def _integer(self, op: Op, dtype: DType, left: Expression, right: Expression, wraps: bool) -> Expression:
        symbol = op.symbol
        stays = not wraps or op in (Ops.AND, Ops.OR, Ops.XOR, Ops.SHR, Ops.IDIV, Ops.MOD)
        if stays and not (op is Ops.SHL and dtype.bits < 32):
            return infix(symbol, left, right)
        if dtype.bits < 32:
            # C promotes the operands to int, where a product of two uint16 and the shift of a negative number overflow.
            return self.narrowed(dtype, infix(symbol, self.cast_text(dtypes.uint32, left), right))
        if dtype.is_unsigned:
            return infix(symbol, left, right)
        made = infix(symbol, left.twin or self.cast_text(bits_dtype(dtype), left), right.twin or right)
        return self.cast_text(dtype, made)._replace(twin=made)

    def narrowed(self, dtype: DType, value: Expression) -> Expression:
        """A result in unsigned int, wrapped to an integer of fewer bits."""
        return self.cast_text(dtype, value)

    def extremum(self, op: Op, dtype: DType, left: Expression, right: Expression) -> Expression:
        """MAX or MIN. Of floats NaN where either is NaN; of two zeros of unlike sign MAX is 0.0 and MIN is -0.0."""
        name = f"{'max' if op is Ops.MAX else 'min'}_{dtype.name}"
        kind, sign = self.type_name(dtype), ">" if op is Ops.MAX else "<"
        if dtype.is_float:
            bits = bits_dtype(dtype)
            pair = [self.bitcast(dtype, bits, Expression(side)) for side in ("a", "b")]
            joined = infix("&" if op is Ops.MAX else "|", *pair)
            rest = f"b {sign} a ? b : a == b ? {self.bitcast(bits, dtype, joined).text} : a + b"
        else:
            rest = "b"
        self.helper(name, f"{kind} {name}({kind} a, {kind} b) {{ return a {sign} b ? a : {rest}; }}")
        return Expression(f"{name}({left.text}, {right.text})")

    def where(self, dtype: DType, condition: Expression, yes: Expression, no: Expression) -> Expression:
        return Expression(f"{condition.within(OR)} ? {yes.within(OR)} : {no.within(CHOICE)}", CHOICE)

    # ------------------------------------------------------------ conversions

    def cast(self, source: DType, target: DType, operand: Expression) -> Expression:
        """A float that becomes an integer is in its range, unless the target says SATURATING_CAST."""
        if source is target:
            return operand
        if target.is_bool:
            return infix("!=", operand, self.literal(source, 0))
        return self.cast_text(target, operand)

    def cast_text(self, target: DType, operand: Expression) -> Expression:
        return Expression(f"({self.type_name(target)}){operand.within(UNARY)}", UNARY)

    def bitcast(self, source: DType, target: DType, operand: Expression) -> Expression:
        if source.is_bool or target.is_bool or (source.is_int and target.is_int):
            return self.cast(source, target, operand)
        if source.is_float and target.is_float:
            return self.bitcast(bits_dtype(source), target, self.bitcast(source, bits_dtype(source), operand))
        if source.is_float:
            bits = self._reinterpret(source, bits_dtype(source), f"bits_of_{source.name}", operand)
            return self.cast(bits_dtype(source), target, bits)
        return self._reinterpret(bits_dtype(target), target, f"{target.name}_of_bits", operand)

    def _reinterpret(self, source: DType, target: DType, name: str, operand: Expression) -> Expression:
        have, want = self.type_name(source), self.type_name(target)
        body = f"union {{ {have} from; {want} to; }} bits = {{ x }}; return bits.to;"
        self.helper(name, f"{want} {name}({have} x) {{ {body} }}")
        return Expression(f"{name}({operand.text})")

    def helper(self, name: str, text: str) -> None:
        """Adds a helper function before the kernel."""
        self.helpers.setdefault(name, f"{self.helper_qualifier} {text}")


@functools.lru_cache(4096)
def shortest_decimal(value: float, dtype: DType) -> str:
    """The fewest digits that C reads as exactly this number, which is not negative; hexadecimal for a subnormal one."""
    if 0.0 < value < 2.0 ** (2 - (1 << (dtype.exponent_bits - 1))):
        return value.hex()
    text = repr(value)
    if dtype is not dtypes.float64:
        candidates = (f"{value:.{digits}g}" for digits in range(1, 10))
        text = next(found for found in candidates if _as_float32(float(found)) == value)
    return text if "." in text or "e" in text else f"{text}.0"


def _as_float32(value: float) -> float:
    return math.inf if value >= 2.0**128 - 2.0**103 else float(struct.unpack("<f", struct.pack("<f", value))[0])

"""LLVM text of single operations. In: an op, dtypes, operand names, a lane count. Out: an instruction's right-hand
side. A lane count of 0 means a scalar. The renderer decides what to compute; this file knows how LLVM spells it."""

from __future__ import annotations

import struct

from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.base.errors import InternalError
from tilewright.codegen.tiles import memory_dtype
from tilewright.graph.bounds import dtype_bounds
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp

_FLOAT_NAMES = {dtypes.float16: "half", dtypes.float32: "float", dtypes.float64: "double"}
_SHORT_FLOAT_NAMES = {dtypes.float16: "f16", dtypes.float32: "f32", dtypes.float64: "f64"}


def scalar_type(dtype: DType) -> str:
    """The type of a value; a bool is one bit as a value and a byte in memory."""
    if dtype.is_bool:
        return "i1"
    return _FLOAT_NAMES[dtype] if dtype.is_float else f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    return scalar_type(memory_dtype(dtype))


def of_lanes(element: str, lanes: int) -> str:
    return f"<{lanes} x {element}>" if lanes else element


def value_type(dtype: DType, lanes: int) -> str:
    return of_lanes(scalar_type(dtype), lanes)


def overload(dtype: DType, lanes: int) -> str:
    """How an intrinsic's name spells a type: v16f32, i64."""
    name = _SHORT_FLOAT_NAMES[dtype] if dtype.is_float else scalar_type(dtype)
    return f"v{lanes}{name}" if lanes else name


def literal(dtype: DType, value: Scalar) -> str:
    if dtype.is_bool:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    if dtype is dtypes.float16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def constant(dtype: DType, value: Scalar, lanes: int) -> str:
    text = literal(dtype, value)
    return f"splat ({scalar_type(dtype)} {text})" if lanes else text


_FLOAT_BINARY = {
    Ops.ADD: "fadd contract",
    Ops.SUB: "fsub contract",
    Ops.MUL: "fmul contract",
    Ops.FDIV: "fdiv",
}
_INTEGER_BINARY = {
    Ops.ADD: "add",
    Ops.SUB: "sub",
    Ops.MUL: "mul",
    Ops.AND: "and",
    Ops.OR: "or",
    Ops.XOR: "xor",
    Ops.SHL: "shl",
    Ops.IDIV: "udiv",
    Ops.MOD: "urem",
}
_WRAPPING = frozenset({Ops.ADD, Ops.SUB, Ops.MUL})
_BOOL_BINARY = {
    Ops.ADD: "or",
    Ops.MUL: "and",
    Ops.MAX: "or",
    Ops.MIN: "and",
    Ops.AND: "and",
    Ops.OR: "or",
    Ops.XOR: "xor",
    Ops.SUB: "xor",
}
_COMPARE = {
    Ops.CMPLT: ("fcmp olt", "icmp slt", "icmp ult"),
    Ops.CMPEQ: ("fcmp oeq", "icmp eq", "icmp eq"),
    Ops.CMPNE: ("fcmp une", "icmp ne", "icmp ne"),
}


class Instructions:
    """Spells operations and remembers which intrinsics need a declaration. Where casts are not `saturating`, codegen
    has brought every float that becomes an integer into its range."""

    def __init__(self, saturating: bool) -> None:
        self.saturating = saturating
        self.declarations: dict[str, str] = {}

    def call(self, name: str, result: str, *arguments: tuple[str, str], flags: str = "") -> str:
        types = ", ".join(kind for kind, _ in arguments)
        self.declarations.setdefault(name, f"declare {result} @{name}({types})")
        values = ", ".join(f"{kind} {value}" for kind, value in arguments)
        return f"call {flags}{result} @{name}({values})"

    def unary(self, op: Op, dtype: DType, lanes: int, operand: str) -> str:
        kind = value_type(dtype, lanes)
        if op is Ops.NEG:
            return f"fneg {kind} {operand}" if dtype.is_float else f"sub {kind} {constant(dtype, 0, lanes)}, {operand}"
        if not op.function:
            raise InternalError(
                f"the CPU renderer was given {op!r} on {dtype.name}, which codegen should have decomposed"
            )
        return self.call(f"llvm.{op.function}.{overload(dtype, lanes)}", kind, (kind, operand))

    def binary(self, op: Op, dtype: DType, lanes: int, left: str, right: str, is_exact: bool = False) -> str:
        """`dtype` is that of the operands. Where the result `is_exact`, it is marked as not wrapping (nsw): LLVM
        then finds the recurrence of a 32-bit index without an analysis for each address."""
        kind = value_type(dtype, lanes)
        if op in _COMPARE:
            spelled = _COMPARE[op][0 if dtype.is_float else 2 if dtype.is_unsigned or dtype.is_bool else 1]
            return f"{spelled} {kind} {left}, {right}"
        if dtype.is_bool:
            return f"{_BOOL_BINARY[op]} {kind} {left}, {right}"
        if op in (Ops.MAX, Ops.MIN):
            return self._extreme(op, dtype, lanes, left, right)
        if dtype.is_float:
            return f"{_FLOAT_BINARY[op]} {kind} {left}, {right}"
        if op is Ops.SHR:
            return f"{'lshr' if dtype.is_unsigned else 'ashr'} {kind} {left}, {right}"
        flag = " nsw" if is_exact and op in _WRAPPING and not dtype.is_unsigned else ""
        return f"{_INTEGER_BINARY[op]}{flag} {kind} {left}, {right}"

    def _extreme(self, op: Op, dtype: DType, lanes: int, left: str, right: str) -> str:
        kind = value_type(dtype, lanes)
        name = _extreme_name(op, dtype)
        return self.call(f"llvm.{name}.{overload(dtype, lanes)}", kind, (kind, left), (kind, right))

    def select(self, dtype: DType, lanes: int, condition: str, yes: str, no: str) -> str:
        kind = value_type(dtype, lanes)
        return f"select {of_lanes('i1', lanes)} {condition}, {kind} {yes}, {kind} {no}"

    def cast(self, source: DType, target: DType, lanes: int, operand: str) -> str:
        have, want = value_type(source, lanes), value_type(target, lanes)
        if target.is_bool:
            compare = "fcmp une" if source.is_float else "icmp ne"
            return f"{compare} {have} {operand}, {constant(source, 0, lanes)}"
        if source.is_float and target.is_float:
            return f"{'fpext' if source.bits < target.bits else 'fptrunc'} {have} {operand} to {want}"
        if source.is_float:
            name = f"fpto{'ui' if target.is_unsigned else 'si'}"
            if not self.saturating:
                return f"{name} {have} {operand} to {want}"
            types = f"{overload(target, lanes)}.{overload(source, lanes)}"
            return self.call(f"llvm.{name}.sat.{types}", want, (have, operand))
        is_unsigned = source.is_unsigned or source.is_bool
        if target.is_float:
            return f"{'uitofp' if is_unsigned else 'sitofp'} {have} {operand} to {want}"
        if not source.is_bool and source.bits == target.bits:
            return f"bitcast {have} {operand} to {want}"
        if not source.is_bool and source.bits > target.bits:
            return f"trunc {have} {operand} to {want}"
        return f"{'zext' if is_unsigned else 'sext'} {have} {operand} to {want}"

    def bitcast(self, source: DType, target: DType, lanes: int, operand: str) -> str:
        if source.is_bool or target.is_bool:
            # A bool is one bit here and a byte in memory, whose bits are meant: 0 or 1, and anything but 0 is true.
            return self.cast(source, target, lanes, operand)
        return f"bitcast {value_type(source, lanes)} {operand} to {value_type(target, lanes)}"

    def fold_lanes(self, op: Op, dtype: DType, lanes: int, operand: str) -> str:
        """All lanes of a vector combined into one. Reassociation is allowed inside a reduction."""
        kind, one = value_type(dtype, lanes), scalar_type(dtype)
        suffix = overload(dtype, lanes)
        if op in (Ops.ADD, Ops.MUL) and dtype.is_float:
            start = literal(dtype, -0.0 if op is Ops.ADD else 1.0)
            name = f"llvm.vector.reduce.{'fadd' if op is Ops.ADD else 'fmul'}.{suffix}"
            return self.call(name, one, (one, start), (kind, operand), flags="reassoc ")
        if dtype.is_bool:
            name = _BOOL_BINARY[op]
        elif op in (Ops.ADD, Ops.MUL):
            name = "add" if op is Ops.ADD else "mul"
        else:
            name = ("f" if dtype.is_float else "") + _extreme_name(op, dtype)
        return self.call(f"llvm.vector.reduce.{name}.{suffix}", one, (kind, operand))


def _extreme_name(op: Op, dtype: DType) -> str:
    if dtype.is_float:
        return "maximum" if op is Ops.MAX else "minimum"
    return ("u" if dtype.is_unsigned else "s") + ("max" if op is Ops.MAX else "min")


def is_exact(node: UOp) -> bool:
    """Whether the bounds of an integer show that it has not wrapped: where it may have, they are those of its dtype."""
    return node.dtype.is_int and node.bounds != dtype_bounds(node.dtype)


def operand_dtype(node: UOp) -> DType:
    """The dtype an elementwise op computes on: of a comparison that of its operands."""
    return node.src[0].dtype if node.op in _COMPARE else node.dtype

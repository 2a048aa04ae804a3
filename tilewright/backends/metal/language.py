"""The Metal Shading Language. In: single operations. Out: their text, where it differs from C.
Stands beside the shared renderer of `codegen/c_style`; written from Apple's specification of version 3.1."""

from __future__ import annotations

import struct
from typing import ClassVar

from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.language import SHORT_SUFFIXES, SHORT_TYPE_NAMES, Language
from tilewright.codegen.c_style.launch import Launch
from tilewright.graph.ops import AddrSpace
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op

_METAL_KEYWORDS = frozenset(
    {"kernel", "vertex", "fragment", "device", "constant", "thread", "threadgroup", "half", "bfloat", "metal", "using"}
    | {"uchar", "ushort", "uint", "ulong", "namespace", "template", "class", "this", "operator", "new", "delete", "try"}
)


class MetalLanguage(Language):
    keywords: ClassVar[frozenset[str]] = Language.keywords | _METAL_KEYWORDS
    type_names: ClassVar[dict[DType, str]] = SHORT_TYPE_NAMES | {dtypes.float16: "half", dtypes.bfloat16: "bfloat"}
    suffixes: ClassVar[dict[DType, str]] = SHORT_SUFFIXES
    spaces: ClassVar[dict[AddrSpace, str]] = {
        AddrSpace.GLOBAL: "device",
        AddrSpace.LOCAL: "threadgroup",
        AddrSpace.REG: "thread",
    }

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.target = program.target
        self.shares_buffers = any(param.is_read and param.is_written for param in program.params)

    # ------------------------------------------------------------ the kernel around the body

    def prelude(self, program: Program) -> list[str]:
        return ["#include <metal_stdlib>", "using namespace metal;"]

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        arguments = [f"{self.parameter(*param)} [[buffer({number})]]" for number, param in enumerate(params)]
        arguments.append("uint3 group_id [[threadgroup_position_in_grid]]")
        arguments.append("uint3 thread_id [[thread_position_in_threadgroup]]")
        inside = ",\n    ".join(arguments)
        return [f"kernel void {self.kernel_name(program)}(", f"    {inside}) {{"]

    def group_index(self, dimension: int) -> str:
        return f"group_id.{'xyz'[dimension]}"

    def thread_index(self, dimension: int) -> str:
        return f"thread_id.{'xyz'[dimension]}"

    def declare_local(self, name: str, dtype: DType, size: int) -> str:
        return f"threadgroup {self.memory_type(dtype)} {name}[{size}] __attribute__((aligned({self.vector_bytes})));"

    def barrier(self) -> str:
        fences = "mem_flags::mem_device | mem_flags::mem_threadgroup"
        return f"threadgroup_barrier({fences if self.shares_buffers else 'mem_flags::mem_threadgroup'});"

    def warp_fold(self, op: Op, dtype: DType, width: int, value: Expression) -> Expression:
        """Halves of the group exchange their values, then quarters: after all steps every thread has the reduction of
        all."""
        kind, name = self.type_name(dtype), f"warp_{op.name.lower()}{width}_{dtype.name}"
        steps = []
        distance = width // 2
        while distance:
            other = Expression(self._neighbour(dtype, distance))
            steps.append(f"x = {self.binary(op, dtype, Expression('x'), other).text};")
            distance //= 2
        self.helper(name, f"{kind} {name}({kind} x) {{ {' '.join(steps)} return x; }}")
        return Expression(f"{name}({value.text})")

    def _neighbour(self, dtype: DType, distance: int) -> str:
        if dtype.is_bool:
            return f"bool(simd_shuffle_xor(uint(x), {distance}))"
        if dtype.bits == 64:
            # The exchange moves at most 32 bits of a scalar; two of them are a vector.
            return f"as_type<{self.type_name(dtype)}>(simd_shuffle_xor(as_type<uint2>(x), {distance}))"
        return f"simd_shuffle_xor(x, {distance})"

    # ------------------------------------------------------------ vectors, constants

    def vector_widths(self, dtype: DType) -> tuple[int, ...]:
        """Vectors have two or four elements of at most 32 bits each, or two of 64."""
        return (2,) if dtype.bits == 64 else (4, 2)

    def vector_type(self, dtype: DType, width: int) -> str:
        return f"{self.type_name(dtype)}{width}"

    def make_vector(self, dtype: DType, elements: list[str]) -> str:
        return f"{self.vector_type(dtype, len(elements))}({', '.join(elements)})"

    def lane(self, vector: str, position: int, width: int) -> str:
        return f"{vector}.{'xyzw'[position]}"

    def float_literal(self, dtype: DType, value: float) -> Expression:
        if dtype is dtypes.float32:
            return super().float_literal(dtype, value)
        self.type_name(dtype)
        # float32 holds every number of the small floats.
        inner = super().float_literal(dtypes.float32, value)
        return Expression(f"{self.type_name(dtype)}({inner.text})")

    def infinity(self, dtype: DType) -> Expression:
        return self._of_bits(float("inf"))

    def nan(self, dtype: DType) -> Expression:
        return self._of_bits(float("nan"))

    def _of_bits(self, value: float) -> Expression:
        return Expression(f"as_type<float>(0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}u)")

    # ------------------------------------------------------------ operations

    def function(self, op: Op, dtype: DType) -> str:
        return op.function

    def bitcast(self, source: DType, target: DType, operand: Expression) -> Expression:
        if source.is_bool or target.is_bool or (source.is_int and target.is_int):
            return self.cast(source, target, operand)
        return Expression(f"as_type<{self.type_name(target)}>({operand.text})")

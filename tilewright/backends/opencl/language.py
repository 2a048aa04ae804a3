"""OpenCL C. In: single operations. Out: their text, where it differs from C.
Stands beside the shared renderer of `codegen/c_style`; the device compiles what the two of them write."""

from __future__ import annotations

from typing import ClassVar

from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.c_style.expressions import UNARY, Expression
from tilewright.codegen.c_style.language import C_KEYWORDS, SHORT_SUFFIXES, SHORT_TYPE_NAMES, Language
from tilewright.codegen.c_style.launch import Launch, has_groups
from tilewright.graph.ops import AddrSpace, Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op

_OPENCL_KEYWORDS = frozenset({"kernel", "global", "local", "constant", "private", "half", "event_t", "image2d_t"})


class OpenCLLanguage(Language):
    keywords = C_KEYWORDS | _OPENCL_KEYWORDS
    type_names: ClassVar[dict[DType, str]] = SHORT_TYPE_NAMES | {dtypes.float64: "double"}
    suffixes: ClassVar[dict[DType, str]] = SHORT_SUFFIXES
    spaces: ClassVar[dict[AddrSpace, str]] = {
        AddrSpace.GLOBAL: "__global",
        AddrSpace.LOCAL: "__local",
        AddrSpace.REG: "",
    }

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.has_groups = has_groups(program)
        self.shares_global = any(param.is_read and param.is_written for param in program.params)

    # ------------------------------------------------------------ the kernel around the body

    def prelude(self, program: Program) -> list[str]:
        uses_double = any(node.dtype is dtypes.float64 for node in program.body)
        return ["#pragma OPENCL EXTENSION cl_khr_fp64 : enable"] if uses_double else []

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        size = ", ".join(map(str, launch.group))
        attribute = f"__attribute__((reqd_work_group_size({size})))\n" if self.has_groups else ""
        arguments = ", ".join(self.arguments(program, params))
        return [f"{attribute}__kernel void {self.kernel_name(program)}({arguments}) {{"]

    def group_index(self, dimension: int) -> str:
        # Where no axis belongs to work-groups the driver chooses their size, so the index in the whole grid is used.
        return f"get_group_id({dimension})" if self.has_groups else f"get_global_id({dimension})"

    def thread_index(self, dimension: int) -> str:
        return f"get_local_id({dimension})"

    def declare_local(self, name: str, dtype: DType, size: int) -> str:
        return f"__local {self.memory_type(dtype)} {name}[{size}] __attribute__((aligned({self.vector_bytes})));"

    def barrier(self) -> str:
        fences = "CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE" if self.shares_global else "CLK_LOCAL_MEM_FENCE"
        return f"barrier({fences});"

    # ------------------------------------------------------------ vectors, constants, operations

    def vector_type(self, dtype: DType, width: int) -> str:
        return f"{self.type_name(dtype)}{width}"

    def make_vector(self, dtype: DType, elements: list[str]) -> str:
        return f"({self.vector_type(dtype, len(elements))})({', '.join(elements)})"

    def lane(self, vector: str, position: int, width: int) -> str:
        return f"{vector}.{'xyzw'[position]}" if width <= 4 else f"{vector}.s{position:x}"

    def infinity(self, dtype: DType) -> Expression:
        return self._special(dtype, "INFINITY")

    def nan(self, dtype: DType) -> Expression:
        return self._special(dtype, "NAN")

    def _special(self, dtype: DType, name: str) -> Expression:
        return Expression(name) if dtype is dtypes.float32 else Expression(f"(double){name}", UNARY)

    def function(self, op: Op, dtype: DType) -> str:
        return op.function

    def extremum(self, op: Op, dtype: DType, left: Expression, right: Expression) -> Expression:
        if dtype.is_float:
            return super().extremum(op, dtype, left, right)
        # The library's functions are overloaded, so both sides must have the type itself and not what C makes of it.
        sides = ", ".join(self.cast_text(dtype, side).text if dtype.bits < 32 else side.text for side in (left, right))
        return Expression(f"{'max' if op is Ops.MAX else 'min'}({sides})")

    def cast(self, source: DType, target: DType, operand: Expression) -> Expression:
        if source.is_float and target.is_int:
            return Expression(f"convert_{self.type_name(target)}_sat({operand.text})")
        return super().cast(source, target, operand)

    def bitcast(self, source: DType, target: DType, operand: Expression) -> Expression:
        if source.is_bool or target.is_bool or (source.is_int and target.is_int):
            return super().bitcast(source, target, operand)
        return Expression(f"as_{self.type_name(target)}({operand.text})")

"""Programs as CUDA C. In: a `Program`. Out: the text of one kernel, without any header: NVRTC alone compiles it.
This file has what is specific to NVIDIA: exchanges in a warp, conversions of small floats, a maximum that keeps NaN."""

from __future__ import annotations

from typing import ClassVar

from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.launch import Launch
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.codegen.c_style.simt import SimtLanguage
from tilewright.graph.ops import AddrSpace, Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op

# Small floats are held as their bits; these are the card's names of them.
_CONVERTED = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}


class CudaLanguage(SimtLanguage):
    """`restrict` tells the compiler that a written buffer is accessed through one pointer only, so that rows that
    several passes read stay in registers. `device.py` uses the text without it where that does not hold."""

    type_names: ClassVar[dict[DType, str]] = {**SimtLanguage.type_names, **dict.fromkeys(_CONVERTED, "unsigned short")}

    def __init__(self, program: Program, is_restricted: bool = True) -> None:
        super().__init__(program)
        self.restrict = "__restrict__" if is_restricted else ""

    def prelude(self, program: Program) -> list[str]:
        """The buffers of sections are a table in constant memory, from which a section reads its own addresses."""
        lines = super().prelude(program)
        if program.section is not None:
            pointers = [self.pointer_type(p.dtype, AddrSpace.GLOBAL, not p.is_written) for p in program.params]
            fields = [f"{pointer} p{p.slot}[{program.sections}];" for pointer, p in zip(pointers, program.params)]
            lines.append(f"struct Buffers {{ {' '.join(fields)} }};")
        return lines

    def thread_bounds(self, program: Program, launch: Launch) -> list[str]:
        """Where masks of loads depend on the thread: those of whole steps are then true, and what a row's passes load
        again stays in registers."""
        places = [node.src[0] for node in program.body if node.op is Ops.LOAD]
        masks = [place.src[2] for place in places if len(place.src) > 2]
        if not any(axis in mask.ranges for mask in masks for axis in program.local_ranges):
            return []
        sizes = zip((0, 1, 2), launch.group, strict=True)
        return [f"__builtin_assume({self.thread_index(n)} < {size});" for n, size in sizes if size > 1]

    def section_arguments(self, program: Program, params: list[tuple[Param, str]]) -> list[str]:
        return ["const __grid_constant__ Buffers buffers"]

    def select_section(self, program: Program, param: Param, name: str, section: str) -> str:
        return f"{self.parameter(param, name)} = buffers.p{param.slot}[{section}];"

    def exchange(self, value: str, distance: str) -> str:
        return f"__shfl_xor_sync(0xffffffffu, {value}, {distance})"

    def extremum(self, op: Op, dtype: DType, left: Expression, right: Expression) -> Expression:
        """The card has the instruction for float32: NaN where either is NaN, -0.0 below 0.0."""
        if dtype is not dtypes.float32:
            return super().extremum(op, dtype, left, right)
        word = "max" if op is Ops.MAX else "min"
        name = f"{word}_float32"
        body = f'float y; asm("{word}.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y;'
        self.helper(name, f"float {name}(float a, float b) {{ {body} }}")
        return Expression(f"{name}({left.text}, {right.text})")

    def quotient(self, dtype: DType, left: Expression, right: Expression) -> Expression:
        """Without the branch of an exact quotient, which keeps a thread from interleaving its elements. It takes all
        operands, with an error of at most two units in the last place."""
        if dtype is not dtypes.float32:
            return super().quotient(dtype, left, right)
        body = 'float y; asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y;'
        self.helper("quotient_float32", f"float quotient_float32(float a, float b) {{ {body} }}")
        return Expression(f"quotient_float32({left.text}, {right.text})")

    def cast(self, source: DType, target: DType, operand: Expression) -> Expression:
        """Between a small float's bits and float32; to the nearest, ties to even."""
        if source in _CONVERTED and target is dtypes.float32:
            name, result, given = f"float32_of_{source.name}", "float", "unsigned short"
            body = _widening(source)
        elif target in _CONVERTED and source is dtypes.float32:
            # The conversion of a pair takes a quarter of the time of that of one number.
            name, result, given = f"{target.name}_of_float32", "unsigned short", "float"
            pair = f'asm("cvt.rn.{_CONVERTED[target]}x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));'
            body = f"unsigned int pair; {pair} y = (unsigned short)pair;"
        else:
            return super().cast(source, target, operand)
        self.helper(name, f"{result} {name}({given} x) {{ {result} y; {body} return y; }}")
        return Expression(f"{name}({operand.text})")

    def bitcast(self, source: DType, target: DType, operand: Expression) -> Expression:
        """A small float is its bits already."""
        if source in _CONVERTED or target in _CONVERTED:
            return operand
        return super().bitcast(source, target, operand)


def _widening(small: DType) -> str:
    """A statement that makes the float32 y of the bits x."""
    if small is dtypes.bfloat16:
        return "y = __uint_as_float((unsigned int)x << 16);"
    return f'asm("cvt.f32.{_CONVERTED[small]} %0, %1;" : "=f"(y) : "h"(x));'


def render(program: Program, is_restricted: bool = True) -> str:
    return CStyleRenderer(program, CudaLanguage(program, is_restricted)).render()

"""Programs as C for the CPU. In: a `Program`. Out: the text of `void name(void** buffers, long long lo, long long hi)`,
which the thread pool calls as it calls the kernels of LLVM. For CPU_COMPILER=clang or gcc, and to read and export."""

from __future__ import annotations

from tilewright.backends.cpu.rendering.denormals import INNER, flushes_denormals, wrap_c
from tilewright.base.dtype import DType
from tilewright.base.errors import InternalError
from tilewright.codegen.c_style.language import Language
from tilewright.codegen.c_style.launch import Launch
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.graph.ops import AddrSpace, AxisType
from tilewright.graph.records import Param, Program


class CpuCLanguage(Language):
    """C for clang and gcc. Elements are moved one by one: their vectorisers join them."""

    def vector_widths(self, dtype: DType) -> tuple[int, ...]:
        return ()

    def declare_local(self, name: str, dtype: DType, size: int) -> str:
        """A task is a work-group of one thread, whose memory is its stack."""
        return f"_Alignas(64) {self.declare_register(name, dtype, size)}"

    def barrier(self) -> str:
        return "// barrier: the one thread of a task waits for nobody"

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        start = f"void {self.kernel_name(program)}"
        if flushes_denormals(program):
            start = f"__attribute__((noinline)) static void {INNER}"
        lines = [f"{start}(void** buffers, long long lo, long long hi) {{"]
        for param, name in params:
            kind = self.pointer_type(param.dtype, AddrSpace.GLOBAL, not param.is_written)
            lines.append(f"  {kind} const {name} = buffers[{param.slot}];")
        return lines


class CpuCRenderer(CStyleRenderer):
    """The axis that threads share is a loop over the part that the pool hands out."""

    def open_launch(self) -> None:
        for axis in self.program.global_ranges:
            if axis.arg.kind is not AxisType.THREAD or len(self.program.global_ranges) > 1:
                raise InternalError(f"a CPU kernel has one thread axis, not {axis.arg}")
            self.open_loop(axis, "lo", "hi")

    def close_launch(self) -> None:
        for _ in self.program.global_ranges:
            self.close_loop()


def render_c(program: Program) -> str:
    language = CpuCLanguage()
    text = CpuCRenderer(program, language).render()
    return f"{text}\n{wrap_c(language.kernel_name(program))}" if flushes_denormals(program) else text

"""Denormal floats. In: a `Program`. Out: whether its kernel takes them as zero, and the function around it that sets
the processor's flags and restores them.

An operation on a denormal number takes about 150 cycles on x86, on any other number half a cycle. Slopes of saturated
activations are denormal, and a product of matrices reuses each of them many times. With the flags set (FTZ and DAZ of
MXCSR on x86, FZ of FPCR on ARM) operands and results below the least normal number are zeros of the same sign. The
flags belong to the thread, so the kernel's own code sets them for each chunk of its work: neither the caller's thread
nor a worker keeps them."""

from __future__ import annotations

from tilewright.backends.cpu.code.llvm import FUNCTION_ATTRIBUTES
from tilewright.backends.cpu.host.system import machine
from tilewright.base.target import FLUSH_CONTRACTIONS, FLUSH_EVERYWHERE
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp

# By instruction set: the flags that are set.
FLAGS = {"x86_64": 0x8040, "aarch64": 1 << 24}
INNER = "flushed"

_LLVM_X86 = """
  %saved = alloca i32
  %changed = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %saved)
  %before = load i32, ptr %saved
  %flushing = or i32 %before, FLAGS
  store i32 %flushing, ptr %changed
  call void @llvm.x86.sse.ldmxcsr(ptr %changed)
  call void @INNER(ptr %buffers, i64 %lo, i64 %hi)
  call void @llvm.x86.sse.ldmxcsr(ptr %saved)
  ret void
}
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
"""
_LLVM_ARM = """
  %before = call i64 @llvm.aarch64.get.fpcr()
  %flushing = or i64 %before, FLAGS
  call void @llvm.aarch64.set.fpcr(i64 %flushing)
  call void @INNER(ptr %buffers, i64 %lo, i64 %hi)
  call void @llvm.aarch64.set.fpcr(i64 %before)
  ret void
}
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
"""
_LLVM_TEXTS = {"x86_64": _LLVM_X86, "aarch64": _LLVM_ARM}

_C_X86 = """
  unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | FLAGSu);
  INNER(buffers, lo, hi);
  __builtin_ia32_ldmxcsr(before);
}
"""
_C_ARM = """
  unsigned long before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" : : "r"(before | FLAGSul));
  INNER(buffers, lo, hi);
  __asm__ volatile("msr fpcr, %0" : : "r"(before));
}
"""
_C_TEXTS = {"x86_64": _C_X86, "aarch64": _C_ARM}


def flushes_denormals(program: Program) -> bool:
    """Whether the kernel takes denormal numbers as zeros."""
    mode = program.target.flush_denormals
    if machine() not in FLAGS or not any(node.dtype.is_float for node in program.body):
        return False
    if mode == FLUSH_CONTRACTIONS:
        return any(node.op is Ops.ACCUMULATE and is_contraction(node) for node in program.body)
    return mode >= FLUSH_EVERYWHERE


def is_contraction(update: UOp) -> bool:
    """Whether an accumulator adds products of floats of which a factor is used for several results; not a sum of
    squares."""
    value = update.src[1]
    if update.arg is not Ops.ADD or not update.src[0].dtype.is_float:
        return False
    while value.op in (Ops.CAST, Ops.WHERE):
        value = value.src[1] if value.op is Ops.WHERE else value.src[0]
    return value.op is Ops.MUL and value.src[0].ranges != value.src[1].ranges


def wrap_llvm(name: str) -> str:
    """The function `name` that calls `INNER` with the flags set."""
    return f"define void @{name}(ptr %buffers, i64 %lo, i64 %hi) {FUNCTION_ATTRIBUTES} {{" + _filled(_LLVM_TEXTS)


def wrap_c(name: str) -> str:
    """The same in C."""
    return f"void {name}(void** buffers, long long lo, long long hi) {{" + _filled(_C_TEXTS)


def _filled(texts: dict[str, str]) -> str:
    return texts[machine()].replace("FLAGS", str(FLAGS[machine()])).replace("INNER", INNER)

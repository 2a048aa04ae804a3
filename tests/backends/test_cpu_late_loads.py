"""Scalars are loaded where they are first used, and never past what may write to them; and what comes of it: the inner
loops of products are fused multiply-adds and little else, with all sums in registers, on every processor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.backends.test_cpu_processors import assembly_for
from tests.kernel.test_products import matrices
from tilewright import Tensor
from tilewright.backends.cpu.device import KERNEL_SYMBOL, cpu_target
from tilewright.backends.cpu.late_loads import sink_loads
from tilewright.backends.cpu.processors import _FLAGS, Processor
from tilewright.backends.cpu.renderer import render
from tilewright.codegen.pipeline import lower
from tilewright.graph.records import KernelInfo
from tilewright.kernel.optimise import optimise

POINTER = "  %p = load ptr, ptr %table"
A, B = "  %a = load float, ptr %p, align 4", "  %b = load i32, ptr %q, align 4"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([A, B, "  %x = f %a", "  %y = f %b"], [A, "  %x = f %a", B, "  %y = f %b"]),
        ([A, B, "  %y = f %b, %a"], [B, A, "  %y = f %b, %a"]),  # both in front of what uses both
        ([POINTER, B, A, "  %x = f %a"], [POINTER, A, "  %x = f %a", B]),  # the address that another load needs
        ([A, "  store float %k, ptr %p", "  %x = f %a"], [A, "  store float %k, ptr %p", "  %x = f %a"]),
        ([A, "  call void @llvm.prefetch.p0(ptr %p)"], [A, "  call void @llvm.prefetch.p0(ptr %p)"]),
        ([A, "  %x = call i32 @take(ptr %p)", "  %y = f %a"], [A, "  %x = call i32 @take(ptr %p)", "  %y = f %a"]),
        ([A, "  br label %next", "next:", "  %x = f %a"], [A, "  br label %next", "next:", "  %x = f %a"]),
        ([A, "  %x = call float @llvm.sqrt.f32(float %k)"], ["  %x = call float @llvm.sqrt.f32(float %k)", A]),
        (
            ["  %v = load <4 x float>, ptr %p", "  %aa = f %k", A, "  %x = f %aa", "  %y = f %a"],
            ["  %v = load <4 x float>, ptr %p", "  %aa = f %k", "  %x = f %aa", A, "  %y = f %a"],
        ),
    ],
)
def test_where_loads_go(before: list[str], after: list[str]) -> None:
    assert sink_loads(before) == after


def test_a_value_read_before_it_is_overwritten() -> None:
    values = np.arange(8, dtype=np.float32)
    held = Tensor(values).realize()
    held.assign(held.flip(0) * 2 + held)
    np.testing.assert_array_equal(held.numpy(), values[::-1] * 2 + values)


# ---------------------------------------------------------------- what comes of it

# The least share of an inner loop's instructions that multiply and add, and the sums that registers hold.
LOOPS = {("aarch64", "neoverse-n1"): 0.6, ("aarch64", "cortex-a72"): 0.6, ("x86_64", "haswell"): 0.5}
FUSED = r"\t(?:fmla|vfn?madd\w+)\t"


def inner_loops(text: str) -> Iterator[list[str]]:
    """The instructions of each loop without another one inside it."""
    lines = [line for line in text.splitlines() if re.match(r"\.L\w+:|\t[a-z]", line)]
    labels = {line.split(":")[0]: number for number, line in enumerate(lines) if line.startswith(".L")}
    jumps = [(labels.get(line.split()[-1], len(lines)), number) for number, line in enumerate(lines)]
    loops = [(first, last) for first, last in jumps if first <= last]
    for first, last in loops:
        if not any((first, last) != other and first <= other[0] and other[1] <= last for other in loops):
            yield [line for line in lines[first : last + 1] if line.startswith("\t")]


@pytest.mark.parametrize(("instruction_set", "name"), LOOPS)
@pytest.mark.parametrize("strides", [(512, 1, 512, 1), (512, 1, 1, 512)], ids=["plain", "right transposed"])
def test_the_inner_loop_of_a_product(instruction_set: str, name: str, strides: tuple[int, int, int, int]) -> None:
    processor = Processor(instruction_set, frozenset(_FLAGS[instruction_set][name].split()), name)
    width, registers = processor.vector()
    target = replace(cpu_target(), vector_bytes=width, vector_registers=registers, cores=2, core_cache_bytes=1 << 20)
    kernel = matrices(512, 512, 512, strides).replace(arg=KernelInfo("product"))
    text = assembly_for(instruction_set, name, render(lower(optimise(kernel, target), target), KERNEL_SYMBOL))
    loop = max(inner_loops(text), key=lambda lines: len(re.findall(FUSED, "\n".join(lines))))
    fused = [line for line in loop if re.match(FUSED, line)]
    assert len(fused) >= 0.6 * registers
    assert len(fused) >= LOOPS[instruction_set, name] * len(loop)
    spilled = [line for line in loop if re.search(r"\[sp\b|\(%rsp\)", line)]
    assert len(spilled) <= len(fused) / 8, "sums do not stay in their registers"

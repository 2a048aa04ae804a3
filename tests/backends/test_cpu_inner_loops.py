"""The inner loops of products are fused multiply-adds and little else, with all sums in registers, on processors with
few registers and with many: the text is compiled for each, and its loops are counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.backends.test_cpu_processors import assembly_for
from tests.kernel.test_products import matrices
from tilewright.backends.cpu.device import KERNEL_SYMBOL, cpu_target
from tilewright.backends.cpu.host.processors import _FLAGS, Processor
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.codegen.pipeline import lower
from tilewright.graph.records import KernelInfo
from tilewright.kernel.optimise import optimise

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


# Rows of a left factor that is transposed are a vector on ARM, which multiplies by one lane of it, and loads that
# broadcast elsewhere: LLVM would permute some of six lanes and keep the order in a register.
LAYOUTS = [(*key, layout) for key in LOOPS for layout in ("", "left", "right")]
LONG_SUMS = [(512, 512, 512), (1000, 777, 333), (300, 1024, 100), (64, 2048, 8192)]
SHORT_SUMS = [(256, 64, 256), (320, 20, 3276), (80, 40, 20971), (24, 12, 32768)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("instruction_set", "name", "transposed"), LAYOUTS)
@pytest.mark.parametrize("sizes", [*LONG_SUMS, *SHORT_SUMS], ids=str)
def test_the_inner_loop_of_a_product(
    instruction_set: str, name: str, sizes: tuple[int, int, int], transposed: str
) -> None:
    processor = Processor(instruction_set, frozenset(_FLAGS[instruction_set][name].split()), name)
    width, registers = processor.vector()
    facts = {"vector_bytes": width, "vector_registers": registers, "cores": 2, "core_cache_bytes": 1 << 20}
    facts |= {"has_lane_operands": processor.has_lane_operands(), "masked_itemsizes": processor.masked_itemsizes()}
    # The flags of denormals are those of the machine that compiles, which is not the one compiled for.
    target = replace(cpu_target(), flush_denormals=0, **facts)
    rows, depth, columns = sizes
    if (name, transposed, rows) == ("haswell", "left", 24):
        pytest.xfail("the right factor is read in place under masks, which take 3 of the 16 registers")
    left = (1, rows) if transposed == "left" else (depth, 1)
    right = (1, depth) if transposed == "right" else (columns, 1)
    kernel = matrices(rows, depth, columns, (*left, *right)).replace(arg=KernelInfo("product"))
    text = assembly_for(instruction_set, name, render(lower(optimise(kernel, target), target), KERNEL_SYMBOL))
    loop = max(inner_loops(text), key=lambda lines: len(re.findall(FUSED, "\n".join(lines))))
    fused = [line for line in loop if re.match(FUSED, line)]
    assert len(fused) >= 0.6 * registers
    assert len(fused) >= LOOPS[instruction_set, name] * len(loop)
    spilled = [line for line in loop if re.search(r"\[sp\b|\(%rsp\)", line)]
    assert not spilled, "sums do not stay in their registers"
    moved = [line for line in loop if re.match(r"\tf?mov\t[vs]\d", line)]
    assert not moved, "a move between registers takes a unit that multiplies"
    assert not re.search(r"\tld1r\t", "\n".join(loop)), "a load that broadcasts takes a unit that multiplies"

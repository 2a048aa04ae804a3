"""The inner loops of products are fused multiply-adds and little else, with all sums in registers, on processors with
few registers and with many: the text is compiled for each, and its loops are counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.backends.test_cpu_processors import assembly_for
from tests.kernel.kernels import axis, load, param, store, summed
from tests.kernel.test_products import matrices
from tilewright.backends.cpu.device import KERNEL_SYMBOL, cpu_target
from tilewright.backends.cpu.host.processors import _FLAGS, Processor
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
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
    instruction_set: str, name: str, sizes: tuple[int, int, int], transposed: str, request: pytest.FixtureRequest
) -> None:
    rows, depth, columns = sizes
    if (instruction_set, transposed, rows) == ("aarch64", "left", 24):
        # It takes less time than a tile without masks, which is bound by loads.
        reason = "the right factor is read in place under masks: all vectors of two steps are loaded behind one branch"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    left = (1, rows) if transposed == "left" else (depth, 1)
    right = (1, depth) if transposed == "right" else (columns, 1)
    kernel = matrices(rows, depth, columns, (*left, *right)).replace(arg=KernelInfo("product"))
    check_loop(instruction_set, name, kernel, LOOPS[instruction_set, name])


@pytest.mark.parametrize("step", [1, 2])
def test_pixels_of_a_row_of_windows_are_lanes_of_vectors(step: int) -> None:
    """Windows that overlap read a run of adjacent pixels: a load for each would need more registers than there are."""
    n, f, y, x = axis(4, 0), axis(128, 1), axis(28, 2), axis(28, 3)
    c, v, u = axis(128, 4, AxisType.REDUCE), axis(3, 5, AxisType.REDUCE), axis(3, 6, AxisType.REDUCE)
    down, across = y * step + v, x * step + u
    inside = (down >= 1) & (down < 28 * step + 1) & (across >= 1) & (across < 28 * step + 1)
    where = (n * 128 + c) * (784 * step * step) + (down - 1) * (28 * step) + (across - 1)
    image = UOp(Ops.INDEX, dtypes.float32, (param(1, 4 * 128 * 784 * step * step), where, inside))
    products = UOp(Ops.LOAD, dtypes.float32, (image,)) * load(param(2, 1 << 18), f * 1152 + c * 9 + v * 3 + u)
    place = (n * 128 + f) * 784 + y * 28 + x
    made = store(param(0, 4 * 128 * 784), place, summed(products, c, v, u))
    check_loop("aarch64", "neoverse-n1", UOp(Ops.SINK, dtypes.void, (made,), KernelInfo("windows")), 0.75)


def target_of(instruction_set: str, name: str) -> Target:
    processor = Processor(instruction_set, frozenset(_FLAGS[instruction_set][name].split()), name)
    width, registers = processor.vector()
    facts = {"vector_bytes": width, "vector_registers": registers, "cores": 2, "core_cache_bytes": 1 << 20}
    facts |= {"has_lane_operands": processor.has_lane_operands(), "masked_itemsizes": processor.masked_itemsizes()}
    # The flags of denormals are those of the machine that compiles, which is not the one compiled for.
    return replace(cpu_target(), flush_denormals=0, **facts)


def check_loop(instruction_set: str, name: str, kernel: UOp, share: float) -> None:
    target = target_of(instruction_set, name)
    text = assembly_for(instruction_set, name, render(lower(optimise(kernel, target), target), KERNEL_SYMBOL))
    loop = max(inner_loops(text), key=lambda lines: len(re.findall(FUSED, "\n".join(lines))))
    fused = [line for line in loop if re.match(FUSED, line)]
    assert len(fused) >= 0.6 * target.vector_registers
    assert len(fused) >= share * len(loop)
    spilled = [line for line in loop if re.search(r"\[sp\b|\(%rsp\)", line)]
    assert not spilled, "sums do not stay in their registers"
    moved = [line for line in loop if re.match(r"\tf?mov\t[vs]\d", line)]
    assert not moved, "a move between registers takes a unit that multiplies"
    assert not re.search(r"\tld1r\t", "\n".join(loop)), "a load that broadcasts takes a unit that multiplies"

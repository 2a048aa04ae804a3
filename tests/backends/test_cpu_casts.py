"""Floats that become integers do so a vector at a time on every processor: where no instruction saturates, LLVM would
take its saturating conversion apart lane by lane. Values are those that the graph's interpreter defines."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.backends.test_cpu_dot_products import run_text
from tests.backends.test_cpu_inner_loops import inner_loops
from tests.backends.test_cpu_processors import assembly_for
from tests.kernel.kernels import kernel_of, leaf
from tilewright import Tensor
from tilewright.backends.cpu.device import KERNEL_SYMBOL, cpu_target
from tilewright.backends.cpu.host.processors import _FLAGS, Processor
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.pipeline import lower
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise

PROCESSORS = [("x86_64", "haswell"), ("x86_64", "skylake-avx512"), ("aarch64", "neoverse-n1")]
ONE_LANE = r"\t(?:vcvtts[sd]2u?si|fcvtz[su]\t[wx])"
EXTREME = [np.nan, np.inf, -np.inf, -0.0, 127.9, -128.9, 255.5, 65535.5, -32769.0, 2.0**31, -(2.0**31), 2.0**63]


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.int32], ids=lambda d: d.name)
@pytest.mark.parametrize(("instruction_set", "name"), PROCESSORS)
def test_no_lane_is_converted_alone(instruction_set: str, name: str, dtype: DType) -> None:
    processor = Processor(instruction_set, frozenset(_FLAGS[instruction_set][name].split()), name)
    width, registers = processor.vector()
    native = cpu_target().native_ops - {"SATURATING_CAST"}
    native |= {"SATURATING_CAST"} if processor.has_saturating_casts() else set()
    target = replace(cpu_target(), vector_bytes=width, vector_registers=registers, native_ops=native)
    kernel = kernel_of(leaf(0, 4096).cast(dtype))
    text = assembly_for(instruction_set, name, render(lower(optimise(kernel, target), target), KERNEL_SYMBOL))
    loops = list(inner_loops(text))
    assert loops
    assert not re.search(ONE_LANE, "\n".join(line for loop in loops for line in loop))


@pytest.mark.parametrize("dtype", dtypes.ints, ids=lambda d: d.name)
@pytest.mark.parametrize("source", [dtypes.float32, dtypes.float64, dtypes.float16], ids=lambda d: d.name)
def test_values_out_of_range(source: DType, dtype: DType) -> None:
    with np.errstate(over="ignore"):
        values = np.array(EXTREME * 11).astype(source.name)
    found = Tensor(values).cast(dtype).numpy()
    assert found.tolist() == Tensor(values, device="PYTHON").cast(dtype).numpy().tolist()
    wanted = [0 if np.isnan(v) else int(np.clip(float(v), -1e30, 1e30)) for v in values]
    assert found.tolist() == [min(max(value, int(dtype.min)), int(dtype.max)) for value in wanted]


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8], ids=lambda d: d.name)
@pytest.mark.parametrize("added", [0.0, 128.0])
@pytest.mark.parametrize("mask", [0xFF, 0x7F])
def test_bytes_become_floats_by_a_shuffle(dtype: DType, lanes: int, added: float, mask: int) -> None:
    """All bytes, where conversions are slow. The sum of 128 and a byte of 7 bits is a shuffle alone."""

    def kernel(out: UOp, x: UOp) -> UOp:
        vector, lane = UOp.range(256 // lanes, 0), UOp.range(lanes, 1, AxisType.UPCAST)
        at = vector * lanes + lane
        byte = x[at].load()
        number = (byte if mask == 0xFF else byte & mask).cast(dtypes.float32)
        value = number + added if added else number
        return out[at].set(value, end=(vector, lane)).sink(arg=KernelInfo("floats", ()))

    values = np.arange(256).astype(np.uint8).view(dtype.name)
    target = replace(cpu_target(), vector_bytes=16, native_ops=cpu_target().native_ops | {"SLOW_CONVERSIONS"})
    arguments = [make_argument(slot, kind, (256,)) for slot, kind in enumerate((dtypes.float32, dtype))]
    program = lower(optimise(kernel(*arguments), target), target)
    text = render(program, KERNEL_SYMBOL)
    assembly = assembly_for("aarch64", "neoverse-n1", text)
    assert not re.search(r"\t[su]cvtf\t", assembly)
    is_shuffle = bool(added) and mask == 0x7F
    assert bool(re.search(r"\tf(?:add|sub)\t", assembly)) != is_shuffle
    found = run_text(text, program, {0: np.zeros(256, np.float32), 1: values})
    wanted = values if mask == 0xFF else values & np.array(mask, dtype.name)
    assert found.tolist() == (wanted.astype(np.float32) + np.float32(added)).tolist()


@pytest.mark.parametrize("count", [64, 512])
def test_small_sums_become_floats_by_their_last_bits(count: int) -> None:
    """A vector of sums of at most 23 bits, where conversions are slow; sums of more bits are converted."""

    def kernel(out: UOp, x: UOp) -> UOp:
        lane, step = UOp.range(8, 0, AxisType.UPCAST), UOp.range(count, 1, AxisType.REDUCE)
        loaded = x[step, lane].load()
        total = UOp(Ops.REDUCE, dtypes.int32, (loaded.cast(dtypes.int32) * -128, step), Ops.ADD)
        return out[lane].set(total.cast(dtypes.float32), end=(lane,)).sink(arg=KernelInfo("sums", ()))

    values = np.random.default_rng(count).integers(-128, 128, (count, 8)).astype(np.int8)
    values[:, 0], values[:, 1], values[:, 2] = -128, 127, 0
    target = replace(cpu_target(), vector_bytes=32, native_ops=cpu_target().native_ops | {"SLOW_CONVERSIONS"})
    arguments = [make_argument(0, dtypes.float32, (8,)), make_argument(1, dtypes.int8, (count, 8))]
    program = lower(optimise(kernel(*arguments), target), target)
    text = render(program, KERNEL_SYMBOL)
    assert ("sitofp" in text) == (count == 512)
    starts = [node.src[0].arg for node in program.body if node.op is Ops.ACC]
    assert starts == [0x4B400000 if count == 64 else 0]
    found = run_text(text, program, {0: np.zeros(8, np.float32), 1: values.reshape(-1)})
    assert found.tolist() == (values.astype(np.float32).sum(0) * -128).tolist()


def test_sums_that_fold_lanes_are_converted() -> None:
    def kernel(out: UOp, x: UOp) -> UOp:
        row, lane = UOp.range(8, 0, AxisType.UPCAST), UOp.range(8, 1, AxisType.UPCAST)
        total = UOp(Ops.REDUCE, dtypes.int32, (x[row, lane].load().cast(dtypes.int32), lane), Ops.ADD)
        return out[row].set(total.cast(dtypes.float32), end=(row,)).sink(arg=KernelInfo("sums", ()))

    target = replace(cpu_target(), native_ops=cpu_target().native_ops | {"SLOW_CONVERSIONS"})
    arguments = [make_argument(0, dtypes.float32, (8,)), make_argument(1, dtypes.int8, (8, 8))]
    program = lower(optimise(kernel(*arguments), target), target)
    assert "sitofp" in render(program, KERNEL_SYMBOL)

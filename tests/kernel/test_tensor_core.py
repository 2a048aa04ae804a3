"""TC: which products tensor cores take, why others are refused, and that the emulator finds the same sums for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tilewright import Tensor, dtypes
from tilewright.backends.cuda.cores import warp_group_core
from tilewright.backends.python.device import python_target
from tilewright.backends.python.emulator import run_program
from tilewright.base.dtype import DType
from tilewright.base.target import Target, TensorCore
from tilewright.codegen.pipeline import lower
from tilewright.graph.interpreter.evaluate import cast_array, numpy_dtype
from tilewright.graph.records import KernelInfo
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_kernel, verify_program
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.heuristics.work_groups import choose_tensor_core
from tilewright.kernel.optimise import optimise, prepare_kernel, to_launch_axes
from tilewright.kernel.transforms.tensor_core import apply_tensor_core, check_tensor_core

BF16, F16, F32 = dtypes.bfloat16, dtypes.float16, dtypes.float32
CORE = warp_group_core(BF16, 64, 64)


def empty(*shape: int, dtype: DType = BF16) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype)


def kernel_of(value: Tensor) -> UOp:
    ast = list(value.schedule())[-1].ast
    assert ast is not None
    return prepare_kernel(ast)


def reason(sink: UOp, core: TensorCore) -> str | None:
    view = view_kernel(sink, Target("TEST", tensor_cores=(core,)))
    return check_tensor_core(view, view.reduces[0].src[-1], core.name)


TAKEN: dict[str, Callable[[], Tensor]] = {
    "rows by columns": lambda: empty(128, 64) @ empty(64, 192),
    "right operand transposed": lambda: empty(128, 64) @ empty(192, 64).T,
    "left operand transposed": lambda: empty(64, 128).T @ empty(64, 192),
    "both transposed": lambda: empty(64, 128).T @ empty(192, 64).T,
    "edges": lambda: empty(72, 40) @ empty(40, 88),
    "a batch": lambda: empty(3, 64, 64) @ empty(3, 64, 72),
    "one weight for a batch": lambda: empty(3, 40, 64) @ empty(64, 72),
    "what follows is computed in place": lambda: (empty(64, 64) @ empty(64, 64) + empty(64)).relu() * empty(64, 64),
    "float32 result": lambda: empty(64, 64).matmul(empty(64, 64), dtype=F32),
    "a slice": lambda: empty(96, 64)[32:] @ empty(64, 64),
    "longer than one step": lambda: empty(64, 200) @ empty(200, 64),
}

REFUSED: dict[str, tuple[Callable[[], Tensor], TensorCore, str]] = {
    "another dtype": (lambda: empty(64, 64, dtype=F16) @ empty(64, 64, dtype=F16), CORE, "float16"),
    "maximum": (lambda: (empty(64, 1, 64) * empty(1, 64, 64)).max(axis=2), CORE, "sum"),
    "not a product": (lambda: (empty(64, 1, 64) + empty(1, 64, 64)).sum(axis=2, dtype=F32), CORE, "not a product"),
    "odd strides": (lambda: empty(64, 63) @ empty(63, 64), CORE, "multiples of 16 bytes"),
    "a matrix and a vector": (lambda: empty(64, 64) @ empty(64), CORE, "loop each"),
    "masked": (lambda: empty(64, 60).pad((0, 4)) @ empty(64, 64), CORE, "plain loads"),
    "fp8 with the sum in lines": (
        lambda: empty(64, 128, dtype=dtypes.float8_e4m3) @ empty(128, 64, dtype=dtypes.float8_e4m3),
        warp_group_core(dtypes.float8_e4m3, 64, 64),
        "one of them must be 1",
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_the_emulator_agrees(name: str) -> None:
    """The kernel with a DOT and the kernel as scheduled, on the same numbers, whose sums are exact."""
    sink = kernel_of(TAKEN[name]())
    assert reason(sink, CORE) is None
    target = replace(python_target(), tensor_cores=(CORE,))
    view = view_kernel(sink, target)
    tensor_core = simplify(to_launch_axes(apply_tensor_core(view, view.reduces[0].src[-1], CORE.name), target))
    verify_kernel(tensor_core)
    plain = optimise(sink.replace(arg=KernelInfo("plain", ())), target)
    results = []
    for kernel in (tensor_core, plain):
        program = lower(kernel, target)
        verify_program(program)
        generator = np.random.default_rng(5)
        buffers = []
        for param in program.params:
            values = generator.integers(-8, 9, param.size) / 8
            buffers.append(np.ascontiguousarray(cast_array(values, param.dtype).view(numpy_dtype(param.dtype))))
        run_program(program, buffers)
        results.append(buffers[0].astype(np.float64))
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name: str) -> None:
    value, core, expected = REFUSED[name]
    found = reason(kernel_of(value()), core)
    assert found is not None
    assert core.name in found
    assert expected in found


def test_the_largest_tile_that_keeps_every_multiprocessor_busy() -> None:
    cores = tuple(warp_group_core(BF16, rows, columns) for rows, columns in ((128, 256), (128, 128), (64, 64)))
    target = Target("TEST", has_local=True, cores=32, tensor_cores=cores)
    chosen = {}
    for size in (4096, 1024, 768, 128):
        found = choose_tensor_core(view_kernel(kernel_of(empty(size, 512) @ empty(512, size)), target))
        assert found is not None
        chosen[size] = found.arg.rpartition("_")[2]
    assert chosen == {4096: "128x256", 1024: "128x256", 768: "128x128", 128: "64x64"}


def test_threads_and_elements_cover_a_tile_once() -> None:
    for rows, columns in ((128, 256), (64, 64)):
        core = warp_group_core(BF16, rows, columns)
        for axes, size in ((core.row_axes, rows), (core.column_axes, columns)):
            numbers = [0]
            for axis in axes:
                numbers = [number + axis.step * index for number in numbers for index in range(axis.size)]
            assert sorted(numbers) == list(range(size))
        assert [axis.thread for axis in core.thread_axes] == ([128] if rows > 64 else []) + [32, 4, 1]

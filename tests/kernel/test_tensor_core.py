"""TC: which products tensor cores take, why others are refused, and that the emulator finds the same sums for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tilewright import Tensor, dtypes
from tilewright.backends.cuda.cores import part_core, thread_core, warp_group_core
from tilewright.backends.cuda.device import cuda_target
from tilewright.backends.python.device import python_target
from tilewright.backends.python.emulator import run_program
from tilewright.base.dtype import DType
from tilewright.base.errors import RaceError
from tilewright.base.target import Target, TensorCore
from tilewright.codegen.pipeline import lower
from tilewright.graph.interpreter.numpy_math import cast_array, numpy_dtype
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.simplify import simplify
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.verification.verify import verify_kernel, verify_program
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import optimise, prepare_kernel, to_launch_axes
from tilewright.kernel.templates.choose import choose_opts
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
    return check_tensor_core(view, view.reduces[-1].src[1], core.name)


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

# What the copy engine cannot fetch: tiles are staged by the threads, on tensor cores and without.
STAGED: dict[str, Callable[[DType], Tensor]] = {
    "odd sizes": lambda d: empty(70, 33, dtype=d) @ empty(33, 75, dtype=d),
    "one step": lambda d: empty(70, 13, dtype=d) @ empty(13, 75, dtype=d),
    "masked": lambda d: empty(64, 60, dtype=d).pad((0, 4)) @ empty(64, 64, dtype=d),
    "computed": lambda d: (empty(40, 50, dtype=d).exp2() + 1) @ empty(50, 40, dtype=d).relu(),
    "heads in the middle": lambda d: (
        empty(2, 40, 3, 23, dtype=d).transpose(1, 2) @ empty(2, 40, 3, 23, dtype=d).permute(0, 2, 3, 1)
    ),
    "convolution": lambda d: empty(2, 8, 7, 9, dtype=d).conv2d(empty(20, 8, 3, 3, dtype=d), padding=1),
    "strided convolution in groups": lambda d: (
        empty(2, 16, 7, 9, dtype=d).conv2d(empty(40, 8, 3, 3, dtype=d), padding=1, stride=2, groups=2).relu()
    ),
    "gradient of a convolution's input": lambda d: gradient_of_convolution(d, 0),
    "gradient of a convolution's weight": lambda d: gradient_of_convolution(d, 1),
    "einsum over two axes": lambda d: Tensor.einsum(
        "abc,cdb->da", empty(20, 7, 30, dtype=d), empty(30, 22, 7, dtype=d)
    ),
    "dilated, 1-D": lambda d: empty(2, 8, 40, dtype=d).conv2d(empty(24, 8, 3, dtype=d), dilation=2),
}


def gradient_of_convolution(dtype: DType, which: int) -> Tensor:
    x = empty(3, 8, 7, 7, dtype=dtype).requires_grad_()
    w = empty(16, 8, 3, 3, dtype=dtype).requires_grad_()
    return (x.conv2d(w, padding=1) * empty(3, 16, 7, 7, dtype=dtype)).sum().gradient(x, w)[which]


REFUSED: dict[str, tuple[Callable[[], Tensor], TensorCore, str]] = {
    "another dtype": (lambda: empty(64, 64, dtype=F16) @ empty(64, 64, dtype=F16), CORE, "not bfloat16"),
    "maximum": (lambda: (empty(64, 1, 64) * empty(1, 64, 64)).max(axis=2), CORE, "sum"),
    "not a product": (lambda: (empty(64, 1, 64) + empty(1, 64, 64)).sum(axis=2, dtype=F32), CORE, "not a product"),
    "a matrix and a vector": (lambda: empty(64, 64) @ empty(64), CORE, "loops that the other lacks"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_the_emulator_agrees(name: str) -> None:
    compare(kernel_of(TAKEN[name]()), CORE, Ops.DOT)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "core",
    [CORE, warp_group_core(BF16, 128, 128), thread_core(64, 64), part_core(64, 64), part_core(128, 128)],
    ids=lambda core: core.name,
)
@pytest.mark.parametrize("name", STAGED)
def test_staged_operands(name: str, core: TensorCore) -> None:
    compare(kernel_of(STAGED[name](core.operand)), core, Ops.TILE_DOT)


def test_bytes_with_the_sum_in_lines_are_staged() -> None:
    left, right = empty(64, 128, dtype=dtypes.float8_e4m3), empty(128, 64, dtype=dtypes.float8_e4m3)
    compare(kernel_of(left @ right), warp_group_core(dtypes.float8_e4m3, 64, 64), Ops.TILE_DOT)


def test_a_tile_is_read_by_all_threads() -> None:
    """So each barrier between a copy to it and a product is needed."""
    core = thread_core(64, 64)
    target = replace(python_target(), tensor_cores=(core,))
    view = view_kernel(kernel_of(next(iter(STAGED.values()))(core.operand)), target)
    made = simplify(to_launch_axes(apply_tensor_core(view, view.reduces[-1].src[1], core.name), target))
    program = lower(made, target)
    barriers = [number for number, node in enumerate(program.body) if node.op is Ops.BARRIER]
    assert barriers
    for number in barriers:
        body = (*program.body[:number], *program.body[number + 1 :])
        buffers = [np.zeros(param.size, numpy_dtype(param.dtype)) for param in program.params]
        with pytest.raises(RaceError):
            run_program(replace(program, body=body), buffers)


def compare(sink: UOp, core: TensorCore, op: Op) -> None:
    """The kernel on the core and the kernel as scheduled, on the same numbers, whose sums are exact."""
    assert reason(sink, core) is None
    target = replace(python_target(), tensor_cores=(core,))
    view = view_kernel(sink, target)
    tensor_core = simplify(to_launch_axes(apply_tensor_core(view, view.reduces[-1].src[1], core.name), target))
    verify_kernel(tensor_core)
    assert any(node.op is op for node in toposort(tensor_core))
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
    for size in (4096, 1024, 128):
        (found,) = choose_opts(view_kernel(kernel_of(empty(size, 512) @ empty(512, size)), target))
        chosen[size] = found.arg.rpartition("_")[2]
    assert chosen == {4096: "128x256", 1024: "128x256", 128: "64x64"}


def test_few_rows_take_tiles_that_compute_little_beside_the_bytes() -> None:
    """Rows past the end are computed but not read. A tile of 256 columns would leave 20 of 132 multiprocessors idle."""
    tiles = [warp_group_core(BF16, *sides) for sides in ((128, 256), (128, 128), (64, 128), (64, 64))]
    target = Target("TEST", has_local=True, cores=132, tensor_cores=tuple(tiles))
    for columns in (28672, 14336):
        (found,) = choose_opts(view_kernel(kernel_of(empty(16, 4096) @ empty(4096, columns)), target))
        assert found.arg == "wgmma_bfloat16_64x128"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((768, 8192, 3072), "128x192"),
        ((3072, 8192, 768), "128x192"),
        ((2304, 8192, 768), "128x128"),
        ((768, 8192, 2304), "128x128"),
        ((1024, 4096, 4096), "128x256"),
        ((4096, 4096, 4096), "128x256"),
        ((8192, 768, 768), "128x192"),
    ],
    ids=str,
)
def test_tiles_fill_the_waves_of_a_card(sizes: tuple[int, int, int], expected: str) -> None:
    """The fastest of five tiles, as measured on an H200 (docs/measurements/h200.md)."""
    tiles = ((128, 256), (128, 192), (128, 128), (64, 128), (64, 64))
    target = replace(cuda_target(), tensor_cores=tuple(warp_group_core(BF16, *tile) for tile in tiles))
    rows, summed, columns = sizes
    (found,) = choose_opts(view_kernel(kernel_of(empty(summed, rows).T @ empty(summed, columns)), target))
    assert found.arg.rpartition("_")[2] == expected


def test_threads_and_elements_cover_a_tile_once() -> None:
    for rows, columns in ((128, 256), (128, 192), (64, 64)):
        core = warp_group_core(BF16, rows, columns)
        for each in (core, thread_core(rows, columns) if columns != 192 else core):
            others = (each.unaligned,)
            assert {other.threads for other in others} == {each.threads}
            layouts = [(way.row_axes, rows) for way in (each, *others)] + [
                (way.column_axes, columns) for way in (each, *others)
            ]
            for axes, size in layouts:
                numbers = [0]
                for axis in axes:
                    numbers = [number + axis.step * index for number in numbers for index in range(axis.size)]
                assert sorted(numbers) == list(range(size))
        assert [axis.thread for axis in core.thread_axes] == ([128] if rows > 64 else []) + [32, 4, 1]


@pytest.mark.parametrize("core", [thread_core(64, 64), part_core(64, 64), CORE], ids=lambda core: core.name)
@pytest.mark.parametrize("columns", [72, 75, 74, 76])
def test_adjacent_threads_store_what_no_vector_does(core: TensorCore, columns: int) -> None:
    """Rows of 75 numbers begin anywhere: one thread that stored neighbours one by one would write a part of a line of
    the cache at a time."""
    sink = kernel_of(empty(70, 20, dtype=core.operand) @ empty(20, columns, dtype=core.operand))
    target = replace(python_target(), tensor_cores=(core,))
    view = view_kernel(sink, target)
    made = view_kernel(apply_tensor_core(view, view.reduces[-1].src[1], core.name), target)
    (store,) = [each for each in made.stores if memory_of(each).op is Ops.PARAM]
    own = max((size_of(axis) for axis in made.of_kind(AxisType.UPCAST) if stride(store, axis) == 1), default=1)
    threads = {step: size_of(axis) for axis in made.of_kind(AxisType.LOCAL) if (step := stride(store, axis))}
    if columns * core.operand.itemsize % 16 == 0:
        assert own >= 4
        assert threads[own] >= 4
    else:
        assert own == 1
        assert threads[1] == 32

"""CUDA and HIP text: golden kernels, and what NVRTC says of kernels with every feature of the dialect. The whole op
table is compiled by `python -m tests.backends.cuda_texts`. No AMD card and no AMD compiler has seen the HIP text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.golden.texts import FOLDER, check_golden
from tests.kernel.kernels import kernel_of, leaf
from tilewright import Tensor, Variable, dtypes
from tilewright.backends.cuda.device import cuda_target
from tilewright.backends.cuda.dot import render_program
from tilewright.backends.cuda.library import driver_library
from tilewright.backends.cuda.nvrtc import compile_text, nvrtc
from tilewright.backends.hip.renderer import hip_target
from tilewright.backends.hip.renderer import render as render_hip
from tilewright.base.dtype import DType
from tilewright.base.errors import CompileError, DeviceError, KernelOptError
from tilewright.base.events import subscribe
from tilewright.base.target import ATOMIC_DTYPES, Target
from tilewright.codegen.c_style.launch import plan_launch
from tilewright.codegen.pipeline import lower
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph import build
from tilewright.graph.kernels.nodes import param
from tilewright.graph.kernels.sorting import radix
from tilewright.graph.kernels.sums_by_index import atomics, bucket_sums, local_sums, partition
from tilewright.graph.ops import ATOMICS, Ops
from tilewright.graph.records import KernelInfo, Opt, OptOps, Program
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import Unavailable
from tilewright.schedule.pipeline import schedule
from tilewright.tensor.core.nodes import pool


def has_compiler() -> bool:
    try:
        nvrtc()
    except Unavailable:
        return False
    return True


def has_card() -> bool:
    try:
        driver_library()
    except Unavailable:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="NVRTC is not installed (pip install tilewright[cuda])")


def numbers(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(np.ones(shape, np.float32)).cast(dtype).realize()


CASES: dict[str, Callable[[], Tensor]] = {
    "elementwise": lambda: numbers(1024, 256) * numbers(1024, 256) + 1,
    "softmax": lambda: numbers(64, 2048).softmax(-1),
    "row_maximum_of_halves": lambda: numbers(16, 4096, dtype="float16").max(-1),
    "bfloat16_product_with_a_vector": lambda: numbers(512, 1024, dtype="bfloat16") @ numbers(1024, dtype="bfloat16"),
    "product_of_matrices": lambda: numbers(256, 256) @ numbers(256, 256),
    "short_product_of_matrices": lambda: (numbers(512, 64) @ numbers(64, 512)).relu(),
    "product_of_odd_matrices": lambda: numbers(401, 333) @ numbers(333, 299),
    "batched_product": lambda: numbers(5, 200, 300) @ numbers(5, 300, 130),
    "float32_convolution": lambda: numbers(2, 64, 20, 20).conv2d(numbers(64, 64, 3, 3), padding=1),
    "bytes": lambda: numbers(4096, dtype="uint8") * 3 + 1,
    "sine_of_doubles": lambda: numbers(100, dtype="float64").sin(),
    "padded_any": lambda: (numbers(7, 33) > 0).pad(((1, 1), (2, 2))).any(-1),
    "sorted": lambda: numbers(37).sort()[0],
    "symbolic_softmax": lambda: (numbers(8, 2048)[:, : symbolic(100)] * 2).softmax(-1),
    "symbolic_attention": lambda: attend(1, "float32"),
    "symbolic_attention_of_halves": lambda: attend(128, "bfloat16"),
}


def symbolic(value: int) -> int:
    return Variable("n", 1, 2048).bind(value)


def attend(rows: int, dtype: str) -> Tensor:
    keys = numbers(1, 2, 2048, 64, dtype=dtype)[:, :, : symbolic(100)]
    return numbers(1, 4, rows, 64, dtype=dtype).scaled_dot_product_attention(keys, keys, enable_gqa=True)


def programs(result: Tensor, target: Target, opts: tuple[Opt, ...] | None = None) -> list[Program]:
    """The programs of a result for a target: with these opts, or with the heuristic's."""
    forget_kernels()
    kernels: list[Any] = []
    with subscribe(lambda event: kernels.append(event["kernel"]), ("kernel-compiled",)):
        result.realize()
    assert kernels
    asts = [kernel.ast.replace(arg=KernelInfo(kernel.ast.arg.name, opts)) for kernel in kernels]
    return [lower(optimise(ast, target), target) for ast in asts]


# The opts are stated, so that these texts change with the dialect and not with the heuristic.
GOLDEN_CASES: dict[str, tuple[Callable[[], Tensor], tuple[Opt, ...]]] = {
    "elementwise": (
        lambda: numbers(1024, 256).maximum(numbers(1024, 256) + 1),
        (Opt(OptOps.UPCAST, 1, 4), Opt(OptOps.LOCAL, 1, 64)),
    ),
    "row_sum": (lambda: numbers(64, 2048).sum(-1), (Opt(OptOps.UPCAST, 1, 4), Opt(OptOps.GROUP, 1, 256))),
    "bfloat16_times_vector": (
        lambda: numbers(512, 1024, dtype="bfloat16") @ numbers(1024, dtype="bfloat16"),
        (Opt(OptOps.UPCAST, 1, 8), Opt(OptOps.GROUP, 1, 32)),
    ),
    "warp_group_product": (
        lambda: (numbers(256, 128, dtype="bfloat16") @ numbers(128, 512, dtype="bfloat16")).relu(),
        (Opt(OptOps.TC, 2, "wgmma_bfloat16_64x64"),),
    ),
    "warp_product": (
        lambda: numbers(256, 128, dtype="float16") @ numbers(512, 128, dtype="float16").T,
        (Opt(OptOps.TC, 2, "mma_float16_128x128"),),
    ),
    "float32_product_in_parts": (
        lambda: numbers(100, 200) @ numbers(70, 200).T,
        (Opt(OptOps.TC, 2, "wgmma_float32x3_64x64"),),
    ),
    "half": (lambda: numbers(4096, dtype="float16") * 2, (Opt(OptOps.UPCAST, 0, 8), Opt(OptOps.LOCAL, 0, 128))),
}


# What AMD's cards do not have.
CUDA_ONLY = frozenset({"warp_group_product", "warp_product", "float32_product_in_parts"})


@pytest.mark.parametrize("case", GOLDEN_CASES)
@pytest.mark.parametrize("language", ["cuda", "hip"])
def test_golden(case: str, language: str, request: pytest.FixtureRequest) -> None:
    result, opts = GOLDEN_CASES[case]
    target, render = (cuda_target(), render_program) if language == "cuda" else (hip_target(), render_hip)
    if language == "hip" and case in CUDA_ONLY:
        with pytest.raises(KernelOptError, match="no tensor core"):
            list(programs(result(), target, opts))
        return
    text = "\n".join(render(program) for program in programs(result(), target, opts))
    check_golden(f"{case}.{language}", text, request)


@needs_compiler
@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_the_compiler_takes_the_golden_text(case: str) -> None:
    assert compile_text((FOLDER / f"{case}.cuda").read_text(), "sm_90a")[:4] == b"\x7fELF"


@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_the_compiler_takes_it(case: str) -> None:
    target = cuda_target()
    for program in programs(CASES[case](), target):
        assert compile_text(render_program(program), target.arch)[:4] == b"\x7fELF"


@needs_compiler
@pytest.mark.parametrize("dtype", sorted(ATOMIC_DTYPES, key=str), ids=str)
def test_the_compiler_takes_atomic_stores(dtype: DType) -> None:
    target = cuda_target()
    shape = ((2, 100, 3), 50, 3)
    elements, rows = ((param(1, dtypes.int32, size), size > 100) for size in (600, 100))
    kernels = [atomics.integer_kernel(op, *elements, *shape, dtype, dtype, 64) for op in ATOMICS]
    kernels += [atomics.integer_kernel(Ops.MAX, *elements, *shape, None, dtype, 64)]
    if dtype is dtypes.int32:
        kernels += [atomics.magnitude_kernel(*elements, *shape, dtypes.bfloat16, 64)]
        kernels += [atomics.addition_kernel(*rows, *shape, source, 64) for source in dtypes.floats if source.bits < 64]
    for kernel in kernels:
        assert compile_text(render_program(lower(kernel, target)), target.arch)[:4] == b"\x7fELF"


FLOAT_SUMS = [(source, is_spread) for source in (dtypes.float32, dtypes.bfloat16) for is_spread in (False, True)]


def float_sums(source: DType, is_spread: bool) -> Program:
    numbers = param(1, dtypes.int32, 600 if is_spread else 100)
    return lower(atomics.float_kernel(numbers, is_spread, (2, 100, 3), 50, 1, source, 64), cuda_target())


@pytest.mark.parametrize(("source", "is_spread"), FLOAT_SUMS, ids=str)
def test_floats_in_any_order_are_one_atomic_addition_each(source: DType, is_spread: bool) -> None:
    text = render_program(float_sums(source, is_spread))
    assert text.count("atomic") == text.count("atomicAdd((float*)") == 1


@needs_compiler
@pytest.mark.parametrize(("source", "is_spread"), FLOAT_SUMS, ids=str)
def test_the_compiler_takes_atomic_additions_of_floats(source: DType, is_spread: bool) -> None:
    program = float_sums(source, is_spread)
    assert compile_text(render_program(program), program.target.arch)[:4] == b"\x7fELF"


def test_an_element_of_overlapping_masked_windows_is_loaded_once() -> None:
    """Three windows of three rows, side by side in a thread, have five rows: equal masks are one variable."""
    padded = build.pad(leaf(0, 40, 64), ((2, 2), (0, 0)))
    windows = build.permute(pool(build.permute(padded, (1, 0)), (3,), (1,), (1,)), (1, 0, 2))
    kernel = kernel_of(build.reduce_axis(Ops.MAX, windows, (2,)))
    opts = (Opt(OptOps.UPCAST, 0, 3), Opt(OptOps.UNROLL, 2, 3), Opt(OptOps.LOCAL, 1, 64))
    text = render_program(lower(optimise(kernel, cuda_target(), opts), cuda_target(), kernel))
    assert text.count("in1[") == 5


@pytest.mark.parametrize("of", ["result", "image", "weight"])
def test_windows_that_overlap_inside_of_loops_are_loaded_once(of: str) -> None:
    """Columns and taps are on different sides of a comparison, or beside a loop: 56 masked loads in place of 14."""
    image, weight = (
        Tensor.empty(32, 28, 28, 96, dtype=dtypes.bfloat16),
        Tensor.empty(96, 1, 7, 7, dtype=dtypes.bfloat16),
    )
    y = image.permute(0, 3, 1, 2).conv2d(weight, groups=96, padding=3)
    slope = Tensor.empty(32, 28, 28, 96, dtype=dtypes.bfloat16).permute(0, 3, 1, 2)
    found = y if of == "result" else y.gradient(image if of == "image" else weight, gradient=slope)[0]
    if of == "result":
        found = found.permute(0, 2, 3, 1).contiguous()
    bound = BoundGraph([found.uop])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda _: cuda_target())
    texts = [render_program(lower(optimise(item.ast, cuda_target()), cuda_target())) for item in made.items if item.ast]
    windows = max(texts, key=lambda text: text.count("acc"))
    counts = [windows.count(f"in{number}[") for number in (1, 2)]
    assert max(counts) in (13, 14)  # seven columns and seven taps or elements, or eight of either
    assert min(counts) in (7, 8)


@needs_compiler
@pytest.mark.parametrize("is_spread", [False, True], ids=["rows", "elements"])
def test_the_compiler_takes_sums_in_local_memory(is_spread: bool) -> None:
    target = cuda_target()
    for shape, count in (((1, 226, 231), 226), ((5, 2048, 1), 20480)):
        plan = local_sums.plan_local_sums(shape, count, dtypes.bfloat16, is_spread, target)
        assert plan is not None
        numbers = param(1, dtypes.int32, math.prod(shape) if is_spread else shape[1])
        kernel = local_sums.local_sum_kernel(numbers, is_spread, shape, count, dtypes.bfloat16, plan)
        program = lower(optimise(kernel, target), target)
        assert compile_text(render_program(program), target.arch)[:4] == b"\x7fELF"
        assert len(program.global_ranges) > 0


@needs_compiler
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_the_compiler_takes_sums_over_a_partition(dtype: DType) -> None:
    target = cuda_target()
    for shape, count in (((1, 1 << 20, 1), 1 << 20), ((3, 70000, 5), 60000)):
        plan = partition.plan_partition(shape, count, dtype, target)
        assert plan is not None
        kernels = (
            partition.order_kernel(True, shape, count, dtype, plan),
            bucket_sums.sum_kernel(shape, count, dtype, plan),
        )
        for kernel in kernels:
            program = lower(optimise(kernel, target), target)
            assert compile_text(render_program(program), target.arch)[:4] == b"\x7fELF"


@needs_compiler
@pytest.mark.parametrize("dtype", [dtypes.int16, dtypes.int64], ids=str)
def test_the_compiler_takes_the_kernels_of_a_radix_sort(dtype: DType) -> None:
    target = cuda_target()
    for write in (radix.count_kernel, radix.place_kernel):
        program = lower(write(dtype, 2, 10000, 6, radix.THREADS, radix.OWN), target)
        assert compile_text(render_program(program), target.arch)[:4] == b"\x7fELF"


@needs_compiler
def test_what_is_promised_of_pointers_can_be_left_out() -> None:
    from tilewright.backends.cuda.renderer import render

    (program,) = programs(CASES["elementwise"](), cuda_target())
    assert render(program).count("__restrict__") == 3
    assert "__restrict__" not in render(program, is_restricted=False)


def test_operands_behind_a_product_are_loaded_after_it_in_parts_that_share_them() -> None:
    """Loaded before it for all elements of a tile they took the registers of its sums: 1.6 KB of each thread were
    spilled, and a kernel of ResNet-50's gradients took six times as long as its bytes."""
    product = numbers(256, 64, dtype="bfloat16") @ numbers(64, 512, dtype="bfloat16")
    result = numbers(256, 512, dtype="bfloat16") * numbers(512, dtype="bfloat16") + product
    (program,) = programs(result, cuda_target(), (Opt(OptOps.TC, 2, "wgmma_bfloat16_128x256"),))
    before, after = render_program(program).split("products_done<0>();\n", 1)
    parts = [re.findall(r"\(in\d \+ .*\)", part) for part in after.split("{\n")[1:]]
    assert not re.search(r"\(in\d \+", before)
    assert [len(loads) for loads in parts] == [2] * 16
    for one, other in zip(parts[::2], parts[1::2], strict=True):  # two rows use what was loaded for their columns
        assert len({*one, *other}) == 3


@needs_compiler
def test_a_refusal_carries_the_text_and_the_complaint() -> None:
    with pytest.raises(CompileError, match='identifier "y" is undefined') as caught:
        compile_text('extern "C" __global__ void k(float* x) { x[0] = y; }', "sm_90a")
    assert "x[0] = y" in caught.value.source


@needs_compiler
def test_the_library_is_found_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    nvrtc.cache_clear()
    try:
        found = nvrtc()
        assert type(found).__name__ == "_System"
        status, log, binary = found.compile(
            b'extern "C" __global__ void k() {}', [b"--gpu-architecture=sm_90a"], "CUBIN"
        )
        assert (status, log.strip("\0"), binary[:4]) == (0, "", b"\x7fELF")
    finally:
        nvrtc.cache_clear()


@pytest.mark.skipif(has_card(), reason="says what a machine without a card is told; this one has a card")
def test_a_machine_without_a_card_says_so() -> None:
    """What is missed first is named: the compiler, which may not be installed either, or the driver."""
    with pytest.raises(DeviceError, match=r"CUDA cannot be used: .*(NVIDIA driver|NVRTC, the compiler)"):
        Tensor([1.0], device="CUDA").realize()


def test_nothing_runs_hip() -> None:
    with pytest.raises(DeviceError, match="no AMD card has run yet"):
        Tensor([1.0], device="HIP").realize()


def test_a_fold_of_a_warp_exchanges_before_it_combines() -> None:
    """`x || exchange(x)` would exchange only in the threads whose x is false."""
    rows = Tensor.empty(2, 3, 4, dtype=dtypes.bool).any(axis=(0, 2))
    (text,) = (render_program(program) for program in programs(rows, cuda_target(), None))
    assert "__shfl_xor_sync" in text
    assert "|| (bool)__shfl" not in text


@pytest.mark.parametrize(("columns", "is_masked"), [(4097, True), (4096, False)])
def test_masked_rows_say_how_many_threads_there_are(columns: int, is_masked: bool) -> None:
    """The compiler then knows which masks are true, and keeps in registers what later passes over a row load again."""
    (program,) = programs(Tensor.empty(64, columns).softmax(-1), cuda_target(), None)
    stated = re.findall(r"__builtin_assume\(threadIdx\.x < (\d+)\);", render_program(program))
    assert stated == [str(plan_launch(program).group[0])] * is_masked

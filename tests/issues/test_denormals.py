"""Slopes of saturated activations are denormal numbers, on which every operation of a product took a hundred times as
long. Sums of products take them as zero, everything else keeps them; FLUSH_DENORMALS chooses otherwise. The flags of
the processor that do it are those of the caller again after each kernel."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Context, Tensor, jit
from tilewright.backends.cpu.code import llvm
from tilewright.backends.cpu.host.system import machine
from tilewright.backends.cpu.rendering.denormals import FLAGS

pytestmark = pytest.mark.skipif(machine() not in FLAGS, reason="no flags to flush denormals on this instruction set")

KEPT, CONTRACTIONS, EVERYWHERE = 0, 1, 2
SMALL = np.float32(1e-40)
COMPILERS = ["llvm", pytest.param("gcc", marks=pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not here"))]

# What is computed from a matrix of denormal numbers and one of ones, and the modes in which the result is zero.
CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...]]] = {
    "matrix product": (lambda x, y: x @ y, (CONTRACTIONS, EVERYWHERE)),
    "matrix times vector": (lambda x, y: x @ y[0], (CONTRACTIONS, EVERYWHERE)),
    "convolution": (
        lambda x, y: x.reshape(1, 4, 4, 16).conv2d(y[:, :16].reshape(16, 4, 2, 2)),
        (CONTRACTIONS, EVERYWHERE),
    ),
    "product, with what follows": (lambda x, y: (x @ y) * 0.5, (CONTRACTIONS, EVERYWHERE)),
    "in bfloat16": (lambda x, y: x.cast("bfloat16") @ y.cast("bfloat16"), (CONTRACTIONS, EVERYWHERE)),
    "elementwise": (lambda x, y: x * y, (EVERYWHERE,)),
    "sum": (lambda x, y: (x + 0 * y).sum(0), (EVERYWHERE,)),
    "sum of squares": (lambda x, y: (x * 1e20).square().sum(0), (EVERYWHERE,)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", [KEPT, CONTRACTIONS, EVERYWHERE])
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", CASES)
def test_where_denormals_are_zero(name: str, compiler: str, mode: int) -> None:
    function, flushed = CASES[name]
    with Context(FLUSH_DENORMALS=mode, CPU_COMPILER=compiler):
        x = Tensor(np.full((16, 16), SMALL)).realize()
        got = function(x, Tensor.ones(16, 16).contiguous().realize()).float().numpy()
    assert np.all(got == 0) if mode in flushed else np.all(got > 0)


def test_one_mode_is_the_default_and_both_agree_on_normal_numbers() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 33, 33), dtype=np.float32)
    results = []
    for mode in (KEPT, CONTRACTIONS, EVERYWHERE):
        with Context(FLUSH_DENORMALS=mode):
            results.append((Tensor(x) @ Tensor(y)).numpy())
    results.append((Tensor(x) @ Tensor(y)).numpy())
    assert all(np.array_equal(results[0], result) for result in results)
    assert np.all((Tensor(np.full((16, 16), SMALL)) @ Tensor.ones(16, 16).contiguous()).numpy() == 0)


def test_a_jitted_function_follows_the_option() -> None:
    function = jit(lambda x: (x @ x.T.contiguous()).realize())
    x = Tensor(np.full((4, 4), np.float32(1e-20))).realize()
    for mode in (CONTRACTIONS, KEPT, CONTRACTIONS):
        with Context(FLUSH_DENORMALS=mode):
            found = [float(function(x).max().item()) for _ in range(3)]
        assert all((value > 0) is (mode == KEPT) for value in found)


@pytest.mark.skipif(machine() != "x86_64", reason="MXCSR is x86's")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("extra", [0, 0x8000, 0x6000])
def test_the_callers_flags_are_unchanged(compiler: str, extra: int) -> None:
    """Also those that the caller has set itself: flush to zero, rounding towards zero."""
    read, write = flags_functions()
    before = read()
    try:
        write((before & ~0x3F) | extra)
        with Context(CPU_COMPILER=compiler):
            # gcc takes seconds for the tiles of a large product, and for a convolution.
            x = Tensor(np.full((64, 256) if compiler == "llvm" else (2, 8), SMALL)).realize()
            for mode in (CONTRACTIONS, EVERYWHERE):
                with Context(FLUSH_DENORMALS=mode):
                    (x @ x.T).realize()
                    (x * 2).realize()
                    if compiler == "llvm":
                        (x.reshape(1, 4, 64, 64).conv2d(x[:4, :36].reshape(4, 4, 3, 3))).realize()
        after = read()
    finally:
        write(before)
    # The lowest bits record exceptions, which any arithmetic sets.
    assert after & ~0x3F == (before & ~0x3F) | extra


def test_workers_keep_denormals_after_a_product() -> None:
    """A product that all threads share, then an elementwise kernel on the same threads."""
    wide = Tensor(np.full((512, 512), SMALL)).realize()
    assert np.all((wide @ wide).numpy() == 0)
    tall = Tensor(np.full(1 << 20, SMALL)).realize()
    assert np.all((tall * 2).numpy() == 2 * SMALL)


def flags_functions() -> tuple[Callable[[], int], Callable[[int], Any]]:
    """Native functions that read and write MXCSR in the thread that calls them."""
    text = f"""
define i32 @read() {llvm.FUNCTION_ATTRIBUTES} {{
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %value = load i32, ptr %place
  ret i32 %value
}}
define void @write(i32 %value) {llvm.FUNCTION_ATTRIBUTES} {{
  %place = alloca i32
  store i32 %value, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  ret void
}}
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
"""
    binary = llvm.compile_ir(text)
    codes = [llvm.load_object(binary, symbol) for symbol in ("read", "write")]
    read = ctypes.CFUNCTYPE(ctypes.c_uint32)(codes[0].address)
    write = ctypes.CFUNCTYPE(None, ctypes.c_uint32)(codes[1].address)
    read.code, write.code = codes  # type: ignore[attr-defined]  # kept as long as the functions
    return read, write


@pytest.mark.parametrize("arch", ["", "x86-64-v2"])
@pytest.mark.parametrize(
    ("dtype", "value"), [("float8_e4m3", 3 * 2.0**-9), ("float8_e5m2", 2.0**-16), ("float16", 2.0**-24)]
)
def test_small_numbers_of_small_floats_are_kept(dtype: str, value: float, arch: str) -> None:
    """What is subnormal in a small float is a normal float32, and so is every step of its conversion."""
    if arch and machine() != "x86_64":
        pytest.skip("the name of an x86 processor")
    with Context(CPU_ARCH=arch):
        x = Tensor(np.full((16, 16), np.float32(value))).cast(dtype).realize()
        ones = Tensor.ones(16, 16).contiguous().cast(dtype).realize()
        np.testing.assert_array_equal((x.float() @ ones.float()).numpy(), np.float32(16 * value))

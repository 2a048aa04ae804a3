"""Several kernels in one LLVM module: each has an object of its own, with its own names, and computes what it does when
it is compiled alone."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tilewright import Context, Tensor
from tilewright.backends.cpu.code import llvm
from tilewright.backends.cpu.code.modules import join_texts
from tilewright.backends.cpu.device import CpuDriver
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.planning.plan import forget_schedules

OWN = frozenset({"@kernel", "@tw_numbers"})
SHARED = "define internal i64 @twice(i64 %x) noinline {\n  %y = add i64 %x, %x\n  ret i64 %y\n}\n"


def text(number: int, called: str = "twice", further: str = "") -> str:
    """A kernel that stores twice the sum of its own number and of one that it reads."""
    return f"""@tw_numbers = external global [1 x i64]
define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind {{
entry:
  %read = load i64, ptr @tw_numbers
  %sum = add i64 %read, {number}
  %given = call i64 @{called}(i64 %sum)
  store i64 %given, ptr %buffers
  ret void
}}
{SHARED}{further}"""


def result_of(binary: bytes, read: int) -> int:
    memory, made = ctypes.c_int64(read), ctypes.c_int64()
    code = llvm.load_object(binary, "kernel", imports={"tw_numbers": ctypes.addressof(memory)})
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(code.address)(ctypes.addressof(made), 0, 1)
    return made.value


def test_each_kernel_has_its_own_numbers_and_what_it_shares() -> None:
    texts = [text(number) for number in (10, 20, 30)]
    joined = join_texts(texts, OWN)
    assert joined.count("define internal i64 @twice(") == 1
    binaries = llvm.compile_texts(texts, OWN)
    assert [result_of(binary, read) for binary, read in zip(binaries, (1, 2, 3), strict=True)] == [22, 44, 66]
    assert all(b"tw_numbers.k" not in binary for binary in binaries)


def test_functions_with_one_name_that_differ_are_both_there() -> None:
    thrice = SHARED.replace("add i64 %x, %x", "mul i64 %x, 3")
    texts = [text(1), text(1).replace(SHARED, thrice), text(1)]
    assert [result_of(binary, 1) for binary in llvm.compile_texts(texts, OWN)] == [4, 6, 4]


def test_functions_that_read_own_names_are_own() -> None:
    reading = "define internal i64 @reads(i64 %x) noinline {\n  %y = load i64, ptr @tw_numbers\n  ret i64 %y\n}\n"
    texts = [text(5, "reads", reading), text(6, "reads", reading)]
    first, second = llvm.compile_texts(texts, OWN)
    assert (result_of(first, 7), result_of(second, 8)) == (7, 8)


def test_a_part_holds_no_other_kernel() -> None:
    long = "".join(f"  %v{n} = mul i64 {n}, %lo\n  store volatile i64 %v{n}, ptr %buffers\n" for n in range(200))
    texts = [text(1), text(2).replace("entry:\n", f"entry:\n{long}")]
    small, large = llvm.compile_texts(texts, OWN)
    assert len(small) < len(llvm.compile_ir(texts[0])) + 200 < len(large)


def test_what_llvm_refuses_is_told() -> None:
    with pytest.raises(llvm.CompileFailure, match="parse"):
        llvm.compile_texts([text(1), text(2).replace("add i64", "add i63")], OWN)


def test_kernels_of_a_schedule_are_compiled_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = CpuDriver.compile_texts

    def compile_noted(self: CpuDriver, sources: list[str]) -> list[bytes]:
        sizes.append(len(sources))
        return original(self, sources)

    monkeypatch.setattr(CpuDriver, "compile_texts", compile_noted)
    given = [np.random.default_rng(n).standard_normal((6, 5 + n)).astype(np.float32) for n in range(8)]
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path), VERIFY_GRAPH=0, VERIFY=0, DYNAMIC_KERNELS=0, TILEWRIGHT_THREADS=1):
        forget_schedules()
        forget_kernels()
        results = [Tensor(each).exp().sum(n % 2) if n % 3 else Tensor(each).relu() for n, each in enumerate(given)]
        results[0].realize(*results[1:])
        for n, (result, each) in enumerate(zip(results, given, strict=True)):
            wanted = np.exp(each).sum(n % 2) if n % 3 else np.maximum(each, 0)
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5)
        forget_schedules()
        forget_kernels()
    assert max(sizes) > 1

"""Texts that differ in numbers alone are one text, which reads them from memory, where a register may hold each of
them. Each kernel computes what its own text does, in this process and in another that finds it on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.calls import Calls
from tilewright import Context, Tensor
from tilewright.backends.cpu.code import llvm
from tilewright.backends.cpu.device import NUMBERS
from tilewright.backends.cpu.rendering.shared_text import MAX_LOOP_NUMBERS, SYMBOL, share_texts
from tilewright.engine.compilation import compile as compiling
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.execution.realize import schedule
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph.walk import toposort

HEADER = "define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind {\nentry:\n"


def kernel(*lines: str) -> str:
    return HEADER + "".join(f"  {line}\n" for line in lines) + "  ret void\n}\n"


def loop(size: int, *lines: str) -> list[str]:
    head = ["br label %loop1", "LABEL", "%loop1.i = phi i32 [ 0, %entry ], [ %loop1.i.next, %loop1 ]"]
    tail = ["%loop1.i.next = add nuw nsw i32 %loop1.i, 1", f"%loop1.more = icmp ult i32 %loop1.i.next, {size}"]
    return [*head, *lines, *tail, "br i1 %loop1.more, label %loop1, label %loop1.exit", "EXIT"]


def looped(size: int, *lines: str) -> str:
    return kernel(*loop(size, *lines)).replace("  LABEL", "loop1:").replace("  EXIT", "loop1.exit:")


def test_the_symbol_is_what_the_device_gives() -> None:
    assert SYMBOL == NUMBERS


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("%p = getelementptr float, ptr %buffers, i64 {}", (-12, -3)),
        ("%p = getelementptr float, ptr %buffers, i32 {}", (12, 7)),
        ("%x = mul nsw i32 12, {}", (5, 6)),
        ("%x = add i64 {}, %lo", (5, 6)),
        ("%x = icmp ult i64 %lo, {}", (5, 6)),
        ("%x = call i32 @llvm.smin.i32(i32 4, i32 {})", (5, 6)),
    ],
)
def test_numbers_that_a_register_may_hold_are_read(line: str, values: tuple[int, int]) -> None:
    declared = "declare i32 @llvm.smin.i32(i32, i32)\n" if "smin" in line else ""
    texts = [kernel(line.format(value)) + declared for value in values]
    (text, first), (other, second) = share_texts(texts)
    assert text == other
    assert text not in texts
    assert (first, second) == ((values[0],), (values[1],))
    llvm.compile_ir(text)


@pytest.mark.parametrize(
    "line",
    [
        "%x = load float, ptr %buffers, align {}",
        "%x = insertelement <{} x float> poison, float 1.0, i64 0",
        "%x = call i32 @given(i32 {})",
        "%x = shufflevector <2 x float> zeroinitializer, <2 x float> poison, <2 x i32> <i32 0, i32 {}>",
    ],
)
def test_other_numbers_are_not(line: str) -> None:
    texts = [kernel(line.format(value)) for value in (4, 8)]
    assert share_texts(texts) == [(text, ()) for text in texts]


def test_names_are_not_numbers() -> None:
    texts = [kernel(f"%v1 = add i64 %lo, {n}", f"%v{n} = add i64 %lo, 9") for n in (4, 8)]
    assert share_texts(texts) == [(text, ()) for text in texts]


def test_lanes_are_all_given_the_number_and_arrays_the_greatest_size() -> None:
    lines = ("%a = alloca [{} x float], align 64", "%b = add <4 x i32> zeroinitializer, zeroinitializer")
    texts = [kernel(lines[0].format(n), lines[1], f"%c = icmp slt <4 x i32> %b, splat (i32 {n})") for n in (20, 30)]
    (text, first), (_, second) = share_texts(texts)
    assert "alloca [30 x float]" in text
    assert "icmp slt <4 x i32> %b, %number0.i32.all4" in text
    assert (first, second) == ((20,), (30,))
    llvm.compile_ir(text)


def test_offsets_of_lanes_are_read_as_a_vector() -> None:
    def line(name: str, step: int) -> str:
        return (
            f"%{name} = getelementptr float, ptr %buffers, <4 x i64> <i64 0, i64 {step}, i64 {2 * step}, i64 -{step}>"
        )

    texts = [kernel(line("x", step), f"%one = mul i64 %lo, {step}", line("y", step)) for step in (3, 196)]
    (text, first), (other, second) = share_texts(texts)
    assert text == other
    assert (first, second) == ((0, 3, 6, -3, 3), (0, 196, 392, -196, 196))
    assert text.count("load <4 x i64>") == 1
    llvm.compile_ir(text)
    inside = [looped(8, line("x", step)) for step in (3, 196)]
    assert share_texts(inside) == [(text, ()) for text in inside]
    lanes = [kernel(f"%x = getelementptr float, ptr %buffers, <{count} x i64> <i64 1, i64 2>") for count in (2, 4)]
    assert share_texts(lanes) == [(text, ()) for text in lanes]


@pytest.mark.parametrize(("count", "is_shared"), [(MAX_LOOP_NUMBERS, True), (MAX_LOOP_NUMBERS + 1, False)])
def test_a_loop_reads_few_numbers_besides_its_limit(count: int, is_shared: bool) -> None:
    def text(step: int) -> str:
        body = [f"%p{n} = getelementptr float, ptr %buffers, i64 {step * (n + 2)}" for n in range(count)]
        return looped(1000 * step, *body)

    texts = [text(1), text(3)]
    (made, numbers), _ = share_texts(texts)
    assert bool(numbers) is is_shared
    llvm.compile_ir(made)


# ---------------------------------------------------------------- whole kernels


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    # The suite verifies every graph, and then each kernel has its own text. Small kernels of many sizes are dynamic.
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path), VERIFY_GRAPH=0, VERIFY=0, DYNAMIC_KERNELS=0):
        forget()
        yield tmp_path
        forget()


def forget() -> None:
    forget_schedules()
    forget_kernels()


SIZES = ((64, 384), (128, 128), (256, 640), (192, 256))


def sums() -> list[tuple[np.ndarray, np.ndarray]]:
    """Sums of rows of several sizes, and what NumPy makes of them."""
    given = [np.random.default_rng(n).standard_normal(size).astype(np.float32) for n, size in enumerate(SIZES)]
    found = [(Tensor(each) * 2 + 1).sum(0) for each in given]
    found[0].realize(*found[1:])
    return [(each.numpy(), (array.astype(np.float64) * 2 + 1).sum(0)) for each, array in zip(found, given, strict=True)]


def test_kernels_of_other_sizes_share_a_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Calls(monkeypatch, compiling.Draft, "finish")
    for _ in range(2):  # the second finds them on disk
        for found, expected in sums():
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
        forget()
    assert compiled.count < len(SIZES)


def test_kernels_whose_sizes_happen_to_be_equal_are_drafted_with_the_others() -> None:
    """Where rows are as long as there are rows, two products of positions are one node."""
    asts = []
    for rows in (48, 56):
        total = (Tensor.empty(20, 48).unsqueeze(1) * Tensor.empty(rows, 48)).sum(2)
        asts += [item.ast for item in schedule([total.uop], "CPU").items if item.ast is not None]
    assert len(asts) == 2
    assert len(toposort(asts[0])) != len(toposort(asts[1]))
    wanted = {(number,): (ast, "CPU") for number, ast in enumerate(asts)}
    with Context(VERIFY_GRAPH=0):
        assert compiling._groups_of(wanted, {}) == [[(0,), (1,)]]


def test_where_graphs_are_verified_each_kernel_has_its_own_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Calls(monkeypatch, compiling.Draft, "finish")
    with Context(VERIFY_GRAPH=1):
        sums()
    assert compiled.count == len(SIZES)

"""Pointers that the innermost loops of contractions and of packing move on, in place of LLVM's loop strength reduction:
which loops have them, and that they point at the right elements, forwards and backwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.golden.texts import leaf, program_of
from tests.kernel.kernels import kernel_of
from tests.kernel.test_products import matrices
from tilewright import Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.backends.cpu.rendering.walked_loops import MAX_POINTERS, is_sum, step_of, walked_loops
from tilewright.codegen.pipeline import lower
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise

TARGET = replace(cpu_target(), vector_bytes=16, vector_registers=32, cores=2)


def test_the_loop_of_a_product_moves_its_pointers_on() -> None:
    kernel = matrices(64, 64, 64, (64, 1, 64, 1)).replace(arg=KernelInfo("product"))
    program = lower(optimise(kernel, TARGET), TARGET)
    assert walked_loops(program)
    text = render(program, "kernel")
    steps = [line for line in text.splitlines() if ".next = getelementptr float" in line]
    assert 0 < len(steps) <= MAX_POINTERS * len(walked_loops(program))
    assert text.count("@llvm.launder.invariant.group.p0(ptr %p") == len(steps)


@pytest.mark.parametrize("count", [2, MAX_POINTERS + 2])
def test_maps_and_loops_over_many_buffers_are_left_to_llvm(count: int) -> None:
    """A sum over more buffers than pointers, and a map of a few."""
    total: UOp = leaf(0, 40, 50)
    for number in range(1, count):
        total = total + leaf(number, 40, 50)
    made = total if count == 2 else build.reduce_axis(Ops.ADD, total, (1,))
    assert not walked_loops(program_of("loops", made, (), TARGET))


def test_only_a_sum_has_its_first_position_in_front_of_the_loop() -> None:
    """An expression that was not simplified moves on by a constant and begins anywhere."""
    row, column = UOp.range(5, 0), UOp.range(7, 1)
    assert is_sum(row * 7 + column * 2, column)
    for base in ((row + column) * 7, (column + 3) * 7):
        assert step_of(base, column) == 7
        assert not is_sum(base, column)


def test_a_position_that_is_found_inside_the_loop_is_computed_there() -> None:
    """A sort counts how far it has come in a register, and reads there in each iteration."""
    row, column = UOp.range(5, 0), UOp.range(7, 1)
    assert is_sum(row * 7 + column, column)
    assert not is_sum(row * 7 + column, column, {row * 7})
    x = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)
    np.testing.assert_array_equal(Tensor(x).sort(0)[0].numpy(), np.sort(x, 0))


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_products_have_the_right_terms(rows: int, is_reversed: bool, is_transposed: bool) -> None:
    generator = np.random.default_rng(rows)
    a = generator.integers(-4, 5, (rows, 45)).astype(np.float32)
    b = generator.integers(-4, 5, (37, 45) if is_transposed else (45, 37)).astype(np.float32)
    left = Tensor(a).flip(1) if is_reversed else Tensor(a)
    right = Tensor(b).T if is_transposed else Tensor(b)
    expected = (a[:, ::-1] if is_reversed else a) @ (b.T if is_transposed else b)
    np.testing.assert_array_equal((left @ right).numpy(), expected)


@pytest.mark.parametrize(("side", "stride", "padding"), [(9, 1, 1), (12, 2, 1), (7, 1, 0), (30, 2, 2)])
def test_windows_have_the_right_elements(side: int, stride: int, padding: int) -> None:
    generator = np.random.default_rng(side)
    x = generator.integers(-4, 5, (2, 5, side, side)).astype(np.float32)
    w = generator.integers(-4, 5, (6, 5, 3, 3)).astype(np.float32)
    found = Tensor(x).conv2d(Tensor(w), stride=stride, padding=padding).numpy()
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::stride, ::stride]
    np.testing.assert_array_equal(found, np.einsum("ncyxij,ocij->noyx", windows, w))


@pytest.mark.parametrize(
    ("shape", "axes", "is_prefetched"),
    [
        ((300, 203), (0,), True),
        ((300, 203), (1,), True),
        ((20, 17, 160), (1,), True),
        ((300, 203), (0, 1), False),  # one long row, read backwards
        ((9, 6400), (0,), False),  # rows so long that the processor soon knows them
        ((50, 203), (0,), False),  # a core's cache holds them
    ],
)
def test_rows_in_the_opposite_order_of_their_elements_are_prefetched(
    shape: tuple[int, ...], axes: tuple[int, ...], is_prefetched: bool
) -> None:
    """1000x1003 flipped along its first axis took 0.58 ms, as long as two copies: each row was a new stream."""
    target = replace(TARGET, core_cache_bytes=64 << 10, cache_bytes=8 << 20)
    flipped = kernel_of(build.flip(leaf(0, *shape), axes)).replace(arg=KernelInfo("flipped"))
    text = render(lower(optimise(flipped, target), target), "kernel")
    assert ("call void @llvm.prefetch" in text) == is_prefetched

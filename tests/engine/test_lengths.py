"""Elementwise kernels that differ in their length alone have one text: that of the longest, launched over fewer tiles.
What differs in more than that, or is not a number of tiles, has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.calls import Calls
from tests.kernel.kernels import kernel_of, leaf
from tilewright import Context, Tensor, nn
from tilewright.engine.compilation import compile as compiling
from tilewright.engine.compilation.compile import compile_kernels, forget_kernels
from tilewright.engine.compilation.shorter import shorter_program
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph import build
from tilewright.graph.kernels.lengths import flat_kernel
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_program


def forget() -> None:
    forget_schedules()
    forget_kernels()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    # The suite verifies every graph, and then each kernel has its own text. Small kernels of many sizes are dynamic.
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path), VERIFY_GRAPH=0, VERIFY=0, DYNAMIC_KERNELS=0):
        forget()
        yield tmp_path
        forget()


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """How often the text of a kernel is made."""
    return Calls(monkeypatch, compiling, "draft_kernel")


def doubled(*lengths: int) -> list[np.ndarray]:
    tensors = [Tensor(np.arange(length, dtype=np.float32)) * 2 + 1 for length in lengths]
    tensors[0].realize(*tensors[1:])
    return [tensor.numpy() for tensor in tensors]


LENGTHS = (1 << 16, 1 << 18, 4096, 64, 48000)


def test_kernels_of_other_lengths_share_the_text_of_the_longest(drafts: Calls) -> None:
    for length, found in zip(LENGTHS, doubled(*LENGTHS), strict=True):
        np.testing.assert_array_equal(found, np.arange(length, dtype=np.float32) * 2 + 1)
    assert drafts.count == 1


def test_a_length_that_is_no_number_of_tiles_has_its_own_text(drafts: Calls) -> None:
    for length, found in zip((1 << 18, 4099), doubled(1 << 18, 4099), strict=True):
        np.testing.assert_array_equal(found, np.arange(length, dtype=np.float32) * 2 + 1)
    assert drafts.count == 2


def test_another_process_finds_each_of_them(drafts: Calls) -> None:
    doubled(*LENGTHS)
    forget()
    for length, found in zip(LENGTHS, doubled(*LENGTHS), strict=True):
        np.testing.assert_array_equal(found, np.arange(length, dtype=np.float32) * 2 + 1)
    forget_kernels()
    doubled(4096)  # a schedule that is not stored, of a kernel that is
    assert drafts.count == 1


def test_where_graphs_are_verified_each_kernel_has_its_own_text(drafts: Calls) -> None:
    with Context(VERIFY_GRAPH=1):
        doubled(*LENGTHS)
    assert drafts.count == len(LENGTHS)


def test_an_optimiser_has_one_text_for_all_of_its_parameters(drafts: Calls) -> None:
    sizes = (1 << 16, 1 << 15, 1024, 512)
    weights = [Tensor(np.full(size, 0.5, np.float32)) for size in sizes]
    optimizer = nn.optim.AdamW(weights, lr=0.1)
    for weight in weights:
        weight.grad = Tensor(np.ones(weight.shape[0], np.float32))
    Tensor.realize(*(weight.grad for weight in weights))
    before = drafts.count
    with Tensor.train():
        optimizer.step()
    Tensor.realize(*weights)
    first = weights[0].numpy()
    assert not np.array_equal(first, np.full(sizes[0], 0.5, np.float32))
    for weight in weights[1:]:
        np.testing.assert_array_equal(weight.numpy(), first[: weight.shape[0]])
    assert drafts.count - before < 2 * len(sizes)


# ---------------------------------------------------------------- what is one form


def times_three(length: int) -> UOp:
    return build.alu(Ops.MUL, leaf(0, length), build.const(leaf(0, 1).dtype, 3.0))


def reversed_(length: int) -> UOp:
    return build.flip(leaf(0, length), (0,))


def padded(length: int) -> UOp:
    return build.pad(leaf(0, length), ((1, 0),))


def total(length: int) -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, length), (0,))


@pytest.mark.parametrize(
    ("make", "is_flat"), [(times_three, True), (reversed_, False), (padded, False), (total, False)]
)
def test_one_form_for_all_lengths(make: Callable[[int], UOp], is_flat: bool) -> None:
    found = [flat_kernel(kernel_of(make(length))) for length in (64, 256)]
    assert [flat is not None for flat in found] == [is_flat, is_flat]
    if found[0] is not None and found[1] is not None:
        assert found[0].form is found[1].form
        assert [flat.length for flat in found if flat is not None] == [64, 256]


def test_a_shorter_program_is_well_formed() -> None:
    longest, ast = (kernel_of(times_three(length)) for length in (1 << 18, 4096))
    (compiled,) = compile_kernels([(longest, "CPU")])
    program = shorter_program(compiled.program, longest, ast)
    assert program is not None
    verify_program(program)
    (thread,) = program.global_ranges
    tile = (1 << 18) // int(compiled.program.global_ranges[0].src[0].arg)
    assert int(thread.src[0].arg) * tile == 4096
    assert program.bytes_moved == 2 * 4 * 4096
    assert [param.size for param in program.params] == [4096, 4096]
    assert shorter_program(compiled.program, longest, kernel_of(times_three(4099))) is None
    assert shorter_program(compiled.program, longest, kernel_of(total(4096))) is None


def test_short_kernels_share_a_text_that_reads_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too short for several tasks, their loop is in the text."""
    compiled = Calls(monkeypatch, compiling.Draft, "finish")
    lengths = (32, 48, 64, 96)
    for length, found in zip(lengths, doubled(*lengths), strict=True):
        np.testing.assert_array_equal(found, np.arange(length, dtype=np.float32) * 2 + 1)
    assert compiled.count == 1

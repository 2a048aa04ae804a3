"""CUDA text of kernels over symbolic sizes on tensor cores: contractions whose operands the copy engine fetches (DOT)
or threads stage (TILE_DOT), and attention. They are scheduled on the emulator with the facts of a card, and NVRTC takes
the text where it is installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.backends.test_cuda_text import needs_compiler
from tests.kernel.emulated_card import NAME, CardDriver, emulated_card
from tilewright import Tensor, Variable, dtypes
from tilewright.backends.cuda.device import cuda_target
from tilewright.backends.cuda.dot import render_program
from tilewright.backends.cuda.nvrtc import compile_text
from tilewright.base.dtype import DType
from tilewright.codegen.pipeline import lower
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.kernel.optimise import optimise

BF16, F32 = dtypes.bfloat16, dtypes.float32
GREATEST = 512
PRODUCTS = (Ops.DOT, Ops.TILE_DOT)


@pytest.fixture(autouse=True)
def card() -> Iterator[CardDriver]:
    target = cuda_target()
    facts = {"tensor_cores": target.tensor_cores, "max_local_bytes": target.max_local_bytes, "cores": target.cores}
    with emulated_card(**facts) as driver:
        yield driver


def rows(dtype: DType, batch: int = 4, width: int = 64) -> Tensor:
    """As many rows as a variable says, in memory of their own."""
    n = Variable("n", 2, GREATEST).bind(77)
    return Tensor.empty(batch, GREATEST, width, dtype=dtype, device=NAME)[:, :n].contiguous()


def summed(dtype: DType) -> list[Tensor]:
    """The gradient of a weight: a sum over batches and rows."""
    left, right = rows(dtype), rows(dtype, width=128)
    return [left.reshape(-1, 64).T @ right.reshape(-1, 128)]


def attention(dtype: DType, has_mask: bool = False) -> list[Tensor]:
    """The result and the gradients."""
    given = [rows(dtype, 2, 2 * 64) for _ in range(3)]
    query, key, value = (each.reshape(2, -1, 2, 64).transpose(1, 2) for each in given)
    n, mask = query.shape[2], None
    if has_mask:
        mask = Tensor.empty(1, 1, GREATEST, GREATEST, dtype=dtypes.bool, device=NAME)[:, :, :n, :n]
    found = query.scaled_dot_product_attention(key, value, mask, is_causal=mask is None)
    return [found, *found.gradient(*given, gradient=found.detach())]


def weight(dtype: DType) -> Tensor:
    return Tensor.empty(64, 256, dtype=dtype, device=NAME)


# The values, and the products in each kernel that has some.
CASES: dict[str, tuple[Callable[[], list[Tensor]], list[list[Ops]]]] = {
    "rows, fetched": (lambda: [(rows(BF16) @ weight(BF16) + 1).relu()], [[Ops.DOT]]),
    "columns, fetched": (lambda: [weight(BF16).T @ rows(BF16, 1)[0].T], [[Ops.DOT]]),
    "rows and columns, staged": (lambda: [rows(BF16) @ rows(BF16).transpose(1, 2)], [[Ops.TILE_DOT]]),
    "a sum, staged": (lambda: summed(BF16), [[Ops.TILE_DOT]]),
    "rows of float32": (lambda: [rows(F32) @ weight(F32)], [[Ops.TILE_DOT]]),
    "a sum of float32": (lambda: summed(F32), [[Ops.TILE_DOT]]),
    "attention": (lambda: attention(BF16), [[Ops.TILE_DOT] * count for count in (2, 3, 4)]),
    "attention with a mask": (lambda: attention(BF16, has_mask=True), [[Ops.TILE_DOT] * count for count in (2, 3, 4)]),
    "attention of float32": (lambda: attention(F32), [[Ops.TILE_DOT] * count for count in (2, 3, 4)]),
}


def products(program: Program) -> list[Ops]:
    return [node.op for node in program.body if node.op in PRODUCTS]


def programs(name: str) -> list[Program]:
    """Those with products of tiles, for a card."""
    values, target = CASES[name][0](), cuda_target()
    asts = [item.ast for item in values[0].schedule(*values[1:]).items if item.ast is not None]
    made = [lower(optimise(ast, target), target) for ast in asts]
    return [program for program in made if products(program)]


def without_spaces(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", CASES)
def test_text(name: str) -> None:
    """One kernel for all values: it is given the variable, and multiplies tiles."""
    made = programs(name)
    assert [products(program) for program in made] == CASES[name][1]
    for program in made:
        text = render_program(program)
        (signature,) = re.findall(r"__global__ void[^{]*\{", text)
        assert "const int var0" in signature
        # Threads multiply a short sum of float32 by themselves.
        assert ("wgmma.mma_async" in text) == (name != "rows of float32")
        # Operands of symbolic rows are fetched by the copy engine, whose map has their number; others by threads.
        assert ("TensorMap map_left" in signature) == (products(program)[0] is Ops.DOT)


@pytest.mark.parametrize("name", ["a sum, staged", "a sum of float32"])
def test_steps_of_a_symbolic_sum_are_counted_when_the_kernel_runs(name: str) -> None:
    (program,) = programs(name)
    text = without_spaces(render_program(program))
    (count,) = re.findall(r"const int step_count = (\w+);", text)
    assert re.search(rf"const int {count} = [^;]*\bvar0\b", text)
    assert "for (int step = 0; step < step_count; step++)" in text
    assert re.search(r"if \(step \+ \d < step_count\) stage_step\(", text)


@pytest.mark.parametrize("name", ["rows, fetched", "rows and columns, staged", "rows of float32"])
def test_steps_of_a_constant_sum_are_a_number(name: str) -> None:
    (program,) = programs(name)
    assert "step_count" not in render_program(program)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_the_compiler_takes_it(name: str) -> None:
    for program in programs(name):
        assert compile_text(render_program(program), program.target.arch)[:4] == b"\x7fELF"

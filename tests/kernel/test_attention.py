"""Attention as one kernel: on the emulator, with the tensor cores of a card, against softmax of all scores; and its
text for the card, which NVRTC compiles without one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.computed import computed
from tilewright import Tensor, dtypes
from tilewright.backends.cuda.cores import warp_group_core
from tilewright.backends.cuda.device import cuda_target
from tilewright.backends.cuda.dot import render_program
from tilewright.backends.cuda.nvrtc import compile_text, toolchain
from tilewright.backends.python.emulator import run_program
from tilewright.base.dtype import DType
from tilewright.base.errors import EmulatorError
from tilewright.codegen.pipeline import lower
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import Unavailable, open_driver

BF16, F16 = dtypes.bfloat16, dtypes.float16
FORWARD = "attention_forward"
GRADIENTS = ("attention_query_gradient", "attention_key_gradient")
PRODUCTS = {FORWARD: 2, GRADIENTS[0]: 3, GRADIENTS[1]: 4}  # of tiles, in each kernel


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    """The emulator with the tensor cores and the local memory of a card."""
    driver: Any = open_driver("PYTHON")
    before = driver.target
    cores = tuple(warp_group_core(dtype, 128, 128) for dtype in (BF16, F16))
    driver.target = replace(before, tensor_cores=cores, max_local_bytes=cuda_target().max_local_bytes)
    yield
    driver.target = before


@dataclass(frozen=True)
class Case:
    query: tuple[int, ...]
    key: tuple[int, ...]
    is_causal: bool = False
    mask: Callable[[np.random.Generator], np.ndarray[Any, Any]] | None = None
    dtype: DType = BF16
    is_time_first: bool = False

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        generator = np.random.default_rng(3)
        made = [generator.standard_normal(shape).astype(np.float32) for shape in (self.query, self.key, self.key)]
        return [*made, *(() if self.mask is None else (self.mask(generator),))]

    def attend(self, *given: Tensor) -> Tensor:
        query, key, value, *mask = given
        if self.is_time_first:
            query, key, value = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (query, key, value))
        return query.scaled_dot_product_attention(
            key, value, mask[0] if mask else None, is_causal=self.is_causal, enable_gqa=query.ndim == 4
        )

    def tensors(self, device: str) -> list[Tensor]:
        query, key, value, *mask = self.arrays()
        made = [Tensor(each, device=device).cast(self.dtype).realize() for each in (query, key, value)]
        return [*made, *(Tensor(each, device=device) for each in mask)]


CASES = {
    "one tile": Case((1, 1, 64, 64), (1, 1, 64, 64)),
    "tiles with rests": Case((1, 2, 70, 24), (1, 2, 90, 24)),
    "causal, more queries than keys": Case((1, 3, 150, 16), (1, 3, 70, 16), is_causal=True),
    "causal, more keys than queries": Case((1, 1, 70, 32), (1, 1, 150, 32), is_causal=True),
    "wide heads, a pair of tiles": Case((1, 1, 150, 128), (1, 1, 150, 128), is_causal=True),
    "heads of four lines, causal": Case((1, 1, 150, 256), (1, 1, 150, 256), is_causal=True),
    "heads of three lines with a rest": Case((1, 2, 20, 136), (1, 1, 70, 136)),
    "heads that fill no line": Case((1, 1, 20, 80), (1, 1, 65, 80)),
    "heads of an odd size": Case((1, 1, 20, 33), (1, 1, 20, 33)),
    "shared keys": Case((1, 4, 20, 16), (1, 2, 70, 16), is_causal=True),
    "no heads": Case((3, 20, 16), (3, 30, 16)),
    "float16": Case((1, 1, 20, 16), (1, 1, 20, 16), dtype=F16),
    "time before heads": Case((1, 2, 20, 16), (1, 2, 30, 16), is_time_first=True),
    "bool mask": Case((1, 2, 20, 16), (1, 2, 70, 16), mask=lambda g: g.random((20, 70)) < 0.6),
    "mask of keys": Case((2, 1, 20, 16), (2, 1, 70, 16), mask=lambda g: g.random((2, 1, 1, 70)) < 0.6),
    "float mask": Case((1, 2, 20, 16), (1, 2, 70, 16), mask=lambda g: g.standard_normal((2, 1, 70)).astype(np.float32)),
    "rows of the least float32": Case(
        (1, 1, 20, 16),
        (1, 1, 70, 16),
        mask=lambda g: np.where(np.arange(20)[:, None] < 3, np.finfo(np.float32).min, np.zeros((20, 70), np.float32)),
    ),
    "a first tile that is masked off": Case(
        (1, 1, 20, 16), (1, 1, 130, 16), mask=lambda g: np.broadcast_to(np.arange(130) >= 100, (20, 130)).copy()
    ),
}


def expected(case: Case) -> np.ndarray[Any, Any]:
    query, key, value, *mask = case.arrays()
    query, key, value = (Tensor(each).cast(case.dtype).float().numpy() for each in (query, key, value))
    if query.ndim == 4:
        key, value = (np.repeat(each, query.shape[1] // key.shape[1], 1) for each in (key, value))
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    if case.is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    elif mask:
        scores = np.where(mask[0], scores, -np.inf) if mask[0].dtype == bool else scores + mask[0]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    found: np.ndarray[Any, Any] = weights / weights.sum(-1, keepdims=True) @ value
    return found


def kernels(*values: Tensor) -> list[UOp]:
    return [item.ast for item in values[0].schedule(*values[1:]) if item.ast is not None]


@pytest.mark.parametrize("name", CASES)
def test_forward(name: str) -> None:
    case = CASES[name]
    found = case.attend(*case.tensors("PYTHON"))
    assert FORWARD in [ast.arg.name for ast in kernels(found)]
    assert np.abs(found.float().numpy() - expected(case)).max() < 0.02


GRADIENT_CASES = {
    **{name: CASES[name] for name in ("time before heads", "float16", "rows of the least float32")},
    "shared keys, causal": Case((1, 2, 66, 16), (1, 1, 66, 16), is_causal=True),
    "causal, keys that nobody looks at": Case((1, 1, 20, 16), (1, 1, 150, 16), is_causal=True),
    "bool mask": Case((1, 1, 20, 72), (1, 1, 66, 72), mask=lambda g: g.random((20, 66)) < 0.6),
    "float mask": CASES["float mask"],
    "wide heads with a float mask, no kernel for gradients": Case(
        (1, 2, 20, 136), (1, 1, 66, 136), mask=lambda g: g.standard_normal((2, 1, 66)).astype(np.float32)
    ),
}


def projected(device: str) -> tuple[Tensor, Tensor]:
    """Attention whose operands are parts of one product, as most models have it."""
    generator = np.random.default_rng(7)
    shapes = ((2, 18, 16), (16, 3 * 32))
    x, weight = (Tensor(generator.standard_normal(each).astype(np.float32), device=device) for each in shapes)
    parts = (x.cast(BF16) @ weight.cast(BF16).realize()).reshape(2, 18, 3, 2, 16)
    found = Tensor.scaled_dot_product_attention(*(parts[:, :, n].transpose(1, 2) for n in range(3)), is_causal=True)
    return x, found.transpose(1, 2).reshape(2, 18, 32)


def test_parts_of_one_product_are_read_where_they_are() -> None:
    x, found = projected("PYTHON")
    assert [ast.arg.name for ast in kernels(found)][1:] == [FORWARD]
    results = []
    for device in ("PYTHON", "CPU"):
        x, found = projected(device)
        results.append(computed(each.float() for each in (found, found.float().square().sum().gradient(x)[0])))
    for found, wanted in zip(*results):
        assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", GRADIENT_CASES)
def test_gradients(name: str) -> None:
    case = GRADIENT_CASES[name]
    results = []
    for device in ("PYTHON", "CPU"):
        given = case.tensors(device)
        found = case.attend(*given)
        slope = Tensor(np.random.default_rng(5).standard_normal(found.shape).astype(np.float32), device=device)
        targets = [each for each in given if each.dtype.is_float]
        gradients = found.gradient(*targets, gradient=slope.cast(found.dtype))
        if device == "PYTHON" and case.query[-1] <= 128:
            assert set(GRADIENTS) <= {ast.arg.name for ast in kernels(*gradients[:3])}
        results.append(computed(each.float() for each in gradients))
    for found, wanted in zip(*results):
        assert np.abs(found - wanted).max() < 0.02 * max(1.0, np.abs(wanted).max())


def test_gradient_where_all_operands_are_one_tensor() -> None:
    results = []
    for device in ("PYTHON", "CPU"):
        x = Case((1, 1, 16, 8), (1, 1, 16, 8)).tensors(device)[0]
        found = x.scaled_dot_product_attention(x, x * 2, x[..., :1] @ x.transpose(-1, -2)[..., :1, :])
        results.append(found.gradient(x, gradient=x)[0].float().numpy())
    assert np.abs(results[0] - results[1]).max() < 0.03 * np.abs(results[1]).max()


def test_gradient_of_a_gradient() -> None:
    """It goes through the operations that attention is made of."""
    results = []
    for device in ("PYTHON", "CPU"):
        query, key, value = Case((1, 1, 16, 8), (1, 1, 16, 8)).tensors(device)
        first = query.scaled_dot_product_attention(key, value).gradient(query, gradient=query)[0]
        results.append(computed(each.float() for each in first.gradient(query, key, gradient=value)))
    for found, wanted in zip(*results):
        assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()


def test_an_operand_that_no_thread_holds() -> None:
    """The emulator gathers a held operand, and tells where an element of it has no holder or two."""
    case = CASES["float16"]
    ast = next(ast for ast in kernels(case.attend(*case.tensors("PYTHON"))) if ast.arg.name == FORWARD)

    def misplaced(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.TILE_DOT or node.arg.left is not None:
            return None
        return node.with_src((*src[:4], src[4] // 2, *src[5:]))

    target = open_driver("PYTHON").target
    program = lower(optimise(map_graph(ast, misplaced), target), target)
    buffers = [np.zeros(param.size, numpy_dtype(param.dtype)) for param in program.params]
    with pytest.raises(EmulatorError, match="do not hold each element once"):
        run_program(program, buffers)


def test_a_row_without_any_key_is_not_a_number() -> None:
    query, key = Tensor.ones(1, 1, 16, 16, dtype=BF16, device="PYTHON"), Tensor.ones(1, 1, 70, 16, dtype=BF16)
    key = key.to("PYTHON")
    mask = Tensor(np.arange(16)[:, None] != 3, device="PYTHON").expand(16, 70)
    found = query.scaled_dot_product_attention(key, key, mask).numpy().astype(np.float32)
    assert np.isnan(found[0, 0, 3]).all()
    assert (np.delete(found, 3, 2) == 1).all()


@pytest.mark.parametrize(
    ("shape", "dtype", "keys"),
    [((1, 1, 20, 264), BF16, 20), ((1, 1, 8, 64), BF16, 20), ((1, 1, 20, 64), dtypes.float32, 20), ((20, 64), BF16, 9)],
)
def test_what_no_kernel_takes(shape: tuple[int, ...], dtype: DType, keys: int) -> None:
    query = Tensor.ones(*shape, dtype=dtype, device="PYTHON")
    key = Tensor.ones(*shape[:-2], keys, shape[-1], dtype=dtype, device="PYTHON")
    found = query.scaled_dot_product_attention(key, key)
    assert FORWARD not in [ast.arg.name for ast in kernels(found)]


def cuda_texts(case: Case) -> dict[str, str]:
    """The texts of the kernels of a case and its gradients, by name."""
    target, given = cuda_target(), case.tensors("PYTHON")
    found = case.attend(*given)
    texts = {}
    for ast in kernels(found, *found.gradient(*given[:3], gradient=found.detach())):
        if ast.arg.name in PRODUCTS:
            program = lower(optimise(ast, target), target)
            assert sum(node.op is Ops.TILE_DOT for node in program.body) == PRODUCTS[ast.arg.name]
            texts[ast.arg.name] = render_program(program)
    assert texts.keys() == (PRODUCTS.keys() if case.query[-1] <= 128 else {FORWARD})
    return texts


def compile_texts(texts: dict[str, str]) -> None:
    try:
        toolchain()
    except Unavailable as error:
        pytest.skip(f"NVRTC is not installed: {error}")
    for text in texts.values():
        assert compile_text(text, "sm_90a")


@pytest.mark.parametrize("name", ["one tile", "wide heads, a pair of tiles", "heads of four lines, causal"])
def test_cuda_text(name: str) -> None:
    """Products on wgmma, operands copied asynchronously or fetched by a warp group of its own, weights and sums in
    registers; NVRTC takes the text."""
    texts = cuda_texts(CASES[name])
    for kernel, text in texts.items():
        assert text.count("products_sent();") >= PRODUCTS[kernel]
        is_fetched = name != "one tile" and kernel != GRADIENTS[1]
        assert ("setmaxnreg" in text and "fetch(" in text) == is_fetched
        assert ("copy_async<16>(&" in text) != is_fetched
        assert "wgmma.mma_async" in text
    compile_texts(texts)

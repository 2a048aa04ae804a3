"""Attention of symbolic lengths as one kernel on tensor cores: results and gradients for several lengths, of halves and
of float32 in parts. On the emulator, which has the facts of a card, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.computed import computed
from tests.kernel import attention_cases
from tests.kernel.attention_cases import Array, Case, close, compare, exact, expected
from tests.kernel.emulated_card import NAME, CardDriver, emulated_card
from tilewright import Tensor, Variable, dtypes
from tilewright.backends.cuda.device import cuda_target
from tilewright.base.dtype import DType

BF16, F32 = dtypes.bfloat16, dtypes.float32
FORWARD = "attention_forward"
GRADIENTS = ("attention_query_gradient", "attention_key_gradient")
GREATEST = 96
# Queries and keys: below a tile, a tile, and more than one; the last values are the greatest of either.
LENGTHS = ((17, 18), (40, 64), (21, GREATEST))
HEADS = (1, 2, GREATEST, 16)
TOLERANCE = {BF16: 0.01, F32: 5e-6}


@pytest.fixture
def card() -> Iterator[CardDriver]:
    target = cuda_target()
    facts = {"tensor_cores": target.tensor_cores, "max_local_bytes": target.max_local_bytes, "cores": target.cores}
    with emulated_card(**facts) as driver:
        yield driver


def names(card: CardDriver) -> list[str]:
    """The kernels of attention that were made, in order."""
    return [program.name for program in card.programs if program.name.startswith("attention_")]


CASES = {
    "causal": Case(HEADS, HEADS, is_causal=True),
    "causal, shared keys": Case((1, 4, GREATEST, 16), (1, 2, GREATEST, 16), is_causal=True),
    "as many queries as keys": Case(HEADS, HEADS),
    "other queries than keys": Case((1, 2, 40, 16), HEADS),
    "causal, fewer queries": Case((1, 2, 40, 16), HEADS, is_causal=True),
    "bool mask": Case(HEADS, HEADS, mask="bool"),
    "bool mask, shared keys": Case((2, 2, 40, 24), (2, 1, GREATEST, 24), mask="bool"),
    "heads that fill no line": Case((1, 1, 40, 72), (1, 1, GREATEST, 72)),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, dtype: DType, card: CardDriver) -> None:
    """Lengths that differ from call to call have the kernels of the first."""
    case = replace(CASES[name], dtype=dtype)
    for queries, keys in LENGTHS:
        compare(case, NAME, (keys, keys) if case.query[-2] == case.key[-2] else (queries, keys))
    assert sorted(names(card)) == sorted((FORWARD, *GRADIENTS))


def given(dtype: DType, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = np.random.default_rng(5)
    arrays = (generator.standard_normal(shape).astype(np.float32) for shape in shapes)
    return [Tensor(each, device=NAME).cast(dtype).realize() for each in arrays]


def attention(query: Array, key: Array, value: Array, is_causal: bool = False) -> Array:
    """The result in float64."""
    case = Case(query.shape, key.shape, is_causal)
    return expected(case, [query, key, value, np.zeros((*query.shape[:-1], value.shape[-1]))])[0]


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_queries_of_a_constant_length(dtype: DType, card: CardDriver) -> None:
    """Cross attention: 40 queries, and as many keys as a variable says."""
    query, key, value = given(dtype, (1, 2, 40, 16), HEADS, HEADS)
    rows, keys, values = exact([query, key, value])
    for length in (1, 17, 64, 65, GREATEST):
        n = Variable("n", 1, GREATEST).bind(length)
        found = query.scaled_dot_product_attention(key[:, :, :n], value[:, :, :n])
        assert close(found, attention(rows, keys[:, :, :length], values[:, :, :length]), TOLERANCE[dtype])
    assert names(card) == [FORWARD]


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_heads_that_were_exchanged_with_times(dtype: DType, card: CardDriver) -> None:
    """As a model has them: the kernel reads them where they are, and its result is in their order."""
    (x,) = given(dtype, (2, GREATEST, 32))
    (array,) = exact([x])
    for length in (17, 64, 90):
        n = Variable("n", 2, GREATEST).bind(length)
        part = x[:, :n].contiguous().reshape(2, n, 2, 16).transpose(1, 2)
        found = part.scaled_dot_product_attention(part, part, is_causal=True).transpose(1, 2).reshape(2, n, 32)
        rows = array[:, :length].reshape(2, length, 2, 16).swapaxes(1, 2)
        wanted = attention(rows, rows, rows, is_causal=True).swapaxes(1, 2).reshape(2, length, 32)
        # There is a copy of the slice, but none in another order.
        assert len(attention_cases.names(found)) == (2 if dtype is BF16 else 3)
        assert close(found, wanted, TOLERANCE[dtype])
    assert names(card) == [FORWARD]


def test_gradients_of_a_layer(card: CardDriver) -> None:
    """Queries, keys and values are parts of one product. The gradient of its weight sums over a symbolic size."""
    x, weight, slope = given(F32, (2, GREATEST, 32), (32, 96), (2, GREATEST, 32))
    weight = (weight * 0.25).realize()
    arrays = exact([x, weight, slope])

    def heads(array: Any, size: Any, parts: int) -> Any:
        return array.reshape(2, size, parts, 2, 16)

    for length in (17, 64):
        n = Variable("n", 2, GREATEST).bind(length)
        queries, keys, values = heads(x[:, :n] @ weight, n, 3).permute(2, 0, 3, 1, 4)
        found = queries.scaled_dot_product_attention(keys, values, is_causal=True).transpose(1, 2).reshape(2, n, 32)
        gradients = found.gradient(x, weight, gradient=slope[:, :n])
        found.realize(*gradients)

        rows, up = arrays[0][:, :length], heads(arrays[2][:, :length], length, 1)[:, :, 0].swapaxes(1, 2)
        parts = heads(rows @ arrays[1], length, 3).transpose(2, 0, 3, 1, 4)
        result, slopes = expected(Case(parts.shape[1:], parts.shape[1:], is_causal=True), [*parts, up])
        assert close(found, result.swapaxes(1, 2).reshape(2, length, 32), TOLERANCE[F32])
        of_parts = np.stack(slopes).transpose(1, 3, 0, 2, 4).reshape(2, length, 96)
        of_rows = np.zeros((2, GREATEST, 32))
        of_rows[:, :length] = of_parts @ arrays[1].T
        assert close(gradients[0], of_rows, TOLERANCE[F32])
        assert close(gradients[1], np.einsum("btk,bto->ko", rows, of_parts), TOLERANCE[F32])
    assert sorted(names(card)) == sorted((FORWARD, *GRADIENTS))


def test_a_gradient_of_a_gradient(card: CardDriver) -> None:
    """It goes through the operations that attention is made of, in symbolic sizes too."""
    operands = given(F32, (1, 1, 24, 8), (1, 1, 24, 8), (1, 1, 24, 8))

    def second(n: Any, device: str) -> list[np.ndarray]:
        query, key, value = (each.to(device)[:, :, :n].contiguous() for each in operands)
        first = query.scaled_dot_product_attention(key, value, is_causal=True).gradient(query, gradient=query)[0]
        return computed(first.gradient(query, key, gradient=value))

    found = second(Variable("n", 16, 24).bind(19), NAME)
    for one, other in zip(found, second(19, "CPU"), strict=True):
        assert np.abs(one - other).max() < 1e-5 * np.abs(other).max()

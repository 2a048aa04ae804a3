"""Products of few tokens with quantised weights on a card: values, gradients and accesses on an emulated card, and what
the CUDA text loads at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.backends import null_card
from tests.kernel.emulated_card import NAME, CardDriver, emulated_card
from tests.llm.test_quantised_products import KINDS, decoded, random_blocks
from tilewright import Tensor, dtypes
from tilewright.llm.quantised.product import MAX_WARP_TOKENS
from tilewright.llm.quantised.types import TYPES
from tilewright.llm.quantised.weight import QuantisedWeight

Array = np.ndarray[Any, Any]
EXPERTS = 3


@pytest.fixture(scope="module")
def card() -> Iterator[CardDriver]:
    with emulated_card() as driver:
        yield driver


def random_x(*shape: int) -> Array:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def made(kind: str, rows: int, blocks: int, seed: int = 0) -> tuple[QuantisedWeight, Array]:
    """Experts, and what they decode to."""
    columns = TYPES[kind].size * blocks
    given = random_blocks(kind, EXPERTS * rows, columns, seed)
    weight = QuantisedWeight(kind, (EXPERTS, rows, columns), Tensor(given, device=NAME))
    return weight, decoded(kind, given).reshape(EXPERTS, rows, columns).astype(np.float64)


def first(weight: QuantisedWeight) -> QuantisedWeight:
    return QuantisedWeight(weight.kind, weight.shape[1:], weight.blocks[0].contiguous())


def assert_near(found: Tensor, expected: Array, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert np.abs(found.numpy() - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_every_format(kind: str, card: CardDriver) -> None:
    """Odd numbers of rows and blocks; a choice with an expert twice."""
    weight, values = made(kind, 7, 3)
    other, others = made(kind, 7, 3, seed=1)
    chosen = np.array([[2, 0], [1, 1]], dtype=np.int32)
    x = random_x(2, 2, values.shape[2])
    inner = np.einsum("tkrc,tkc->tkr", values[chosen], x.astype(np.float64))
    assert_near(weight.expert_linear(Tensor(x, device=NAME), Tensor(chosen, device=NAME)), inner)
    gated = weight.gated(other, Tensor(x[:, :1], device=NAME), "silu", Tensor(chosen, device=NAME))
    assert gated is not None
    gate = np.einsum("tkrc,tc->tkr", values[chosen], x[:, 0].astype(np.float64))
    up = np.einsum("tkrc,tc->tkr", others[chosen], x[:, 0].astype(np.float64))
    assert_near(gated, gate / (1 + np.exp(-gate)) * up)
    assert_near(first(weight).linear(Tensor(x[0], device=NAME)), x[0].astype(np.float64) @ values[0].T)
    names = {program.name for program in card.programs}
    assert {f"product_{kind}", f"product_experts_{kind}", f"gated_experts_{kind}"} <= names


@pytest.mark.parametrize("tokens", [1, 5, MAX_WARP_TOKENS, MAX_WARP_TOKENS + 1])
def test_tokens_at_once(tokens: int, card: CardDriver) -> None:
    """Up to a number of tokens weights are decoded in registers; for more they are an operand of a product."""
    weight, values = made("Q4_0", 8, 2)
    other, others = made("Q4_0", 8, 2, seed=1)
    x = random_x(1, tokens, 64)
    card.programs.clear()
    assert_near(first(weight).linear(Tensor(x, device=NAME)), x.astype(np.float64) @ values[0].T)
    is_few = tokens <= MAX_WARP_TOKENS
    assert is_few == any(program.name == "product_Q4_0" for program in card.programs)
    gated = first(weight).gated(first(other), Tensor(x, device=NAME), "gelu")
    assert (gated is not None) == is_few
    if gated is not None:
        sums = [x.astype(np.float64) @ each[0].T for each in (values, others)]
        assert_near(gated, Tensor(sums[0]).gelu().numpy() * sums[1])


def test_gradients_of_activations(card: CardDriver) -> None:
    weight, values = made("Q4_1", 4, 2)
    other, others = made("Q4_1", 4, 2, seed=1)
    chosen = np.array([[2, 0]], dtype=np.int32)
    x = Tensor(random_x(1, 1, 64), device=NAME, requires_grad=True)
    gated = weight.gated(other, x, "silu", Tensor(chosen, device=NAME))
    assert gated is not None
    (found,) = (gated * gated).sum().gradient(x)
    plain = Tensor(x.numpy().astype(np.float64), requires_grad=True)
    sums = [(Tensor(each[chosen]) * plain.unsqueeze(-2)).sum(-1) for each in (values, others)]
    value = sums[0].silu() * sums[1]
    (expected,) = (value * value).sum().gradient(plain)
    assert_near(found, expected.numpy())
    (found,) = first(weight).linear(x).square().sum().gradient(x)
    assert_near(found, 2 * (x.numpy().astype(np.float64) @ values[0].T) @ values[0])


@pytest.mark.parametrize(("kind", "vectors"), [("Q4_0", 2), ("Q4_1", 4), ("Q4_K", 8)])
def test_neighbours_load_neighbouring_bytes_in_vectors(kind: str, vectors: int) -> None:
    """The threads of a warp are those of one row, and no byte is loaded alone but scales of 6 bits."""
    with null_card.null_card() as card:
        blocks = Tensor.empty(1536, TYPES[kind].row_bytes(2048), dtype=dtypes.uint8, device=null_card.NAME)
        x = Tensor.empty(1, 1, 2048, dtype=dtypes.float16, device=null_card.NAME)
        QuantisedWeight(kind, (1536, 2048), blocks).linear(x).realize()
        (text,) = card.texts.values()
        (program,) = card.programs
    assert f"Vector<unsigned char, {vectors}>" in text
    assert "const unsigned char val" not in text or kind == "Q4_K"
    assert [int(axis.src[0].arg) for axis in program.local_ranges][-1] == card.target.warp_size

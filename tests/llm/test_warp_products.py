"""Products of few tokens with quantised weights on a card: values, gradients and accesses on an emulated card, and what
the CUDA text loads at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.llm_gpu import MIXTURE
from tests.backends import null_card
from tests.kernel.emulated_card import NAME, CardDriver, emulated_card
from tests.llm.test_quantised_products import KINDS, decoded, random_blocks
from tilewright import Tensor, Variable, dtypes
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.records import Item
from tilewright.llm.lora import AdaptedLinear
from tilewright.llm.network.layers import FeedForward
from tilewright.llm.network.model import Transformer
from tilewright.llm.network.weights import Weights
from tilewright.llm.quantised.product import MAX_WARP_TOKENS
from tilewright.llm.quantised.types import TYPES
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.schedule.pipeline import schedule

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
    shares = random_x(2, 2)
    mixed = weight.mixed_experts(*(Tensor(each, device=NAME) for each in (x, chosen, shares)))
    assert_near(mixed, (inner * shares[..., None]).sum(1))
    normalised = weight.mixed_experts(*(Tensor(each, device=NAME) for each in (x, chosen, shares**2)), normalise=True)
    assert_near(normalised, (inner * (shares**2 / (shares**2).sum(1, keepdims=True))[..., None]).sum(1))
    gated = weight.gated(other, Tensor(x[:, :1], device=NAME), "silu", Tensor(chosen, device=NAME))
    assert gated is not None
    gate = np.einsum("tkrc,tc->tkr", values[chosen], x[:, 0].astype(np.float64))
    up = np.einsum("tkrc,tc->tkr", others[chosen], x[:, 0].astype(np.float64))
    assert_near(gated, gate / (1 + np.exp(-gate)) * up)
    assert_near(first(weight).linear(Tensor(x[0], device=NAME)), x[0].astype(np.float64) @ values[0].T)
    names = {program.name for program in card.programs}
    assert {f"product_{kind}", f"product_experts_{kind}", f"gated_experts_{kind}", f"mixed_experts_{kind}"} <= names


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
    shares = Tensor([[0.5, 2.0]], device=NAME, requires_grad=True)
    mixed = weight.mixed_experts(x, Tensor(chosen, device=NAME), shares).square().sum()
    found, of_shares = mixed.gradient(x, shares)
    each = np.einsum("krc,c->kr", values[chosen[0]], x.numpy()[0, 0].astype(np.float64))
    slope = 2 * np.array([0.5, 2.0]) @ each
    assert_near(of_shares, (each @ slope)[None])
    assert_near(found, np.einsum("k,krc,r->c", [0.5, 2.0], values[chosen[0]], slope)[None, None])
    mixed = weight.mixed_experts(x, Tensor(chosen, device=NAME), shares, normalise=True).square().sum()
    (of_shares,) = mixed.gradient(shares)
    mean = np.array([0.2, 0.8]) @ each
    assert_near(of_shares, (2 * (each - mean) @ mean / 2.5)[None])
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


def test_adapters_beside_a_gate_count(card: CardDriver) -> None:
    """They are more than the product with their weight: the kernel for both at once does not take their place."""
    blocks = {f".ffn_{part}.weight": random_blocks("Q4_0", 32, 32) for part in ("gate", "up", "down")}
    held = {name: QuantisedWeight("Q4_0", (32, 32), Tensor(each, device=NAME)) for name, each in blocks.items()}
    layer = FeedForward(Weights(held, "test"), "", "", 32, 32, "silu")
    x = Tensor(random_x(1, 1, 32), device=NAME)
    before = layer(x).numpy()
    layer.gate = AdaptedLinear(layer.gate, 2, 1.0, NAME)
    np.testing.assert_allclose(layer(x).numpy(), before, rtol=1e-4, atol=1e-6)
    layer.gate.lora_up = Tensor.ones(32, 2, device=NAME)
    assert np.abs(layer(x).numpy() - before).max() > 1e-3


def launches(layers: int) -> list[Item]:
    """The kernels of a token of a mixture of experts in Q4_0, of which the first layer is dense."""
    config = replace(MIXTURE, layer_count=layers, vocab_size=512)
    with null_card.null_card() as card:
        model = Transformer(config, EmptyWeights({}, "nothing"), dtypes.float16)
        cache = model.make_cache(1, 1024, clear=False)
        tokens = Tensor.empty(1, 1, dtype=dtypes.int32, device=null_card.NAME)
        logits = model(tokens, cache, Variable("position", 0, 1023).bind(7))
        bound = BoundGraph([logits.uop, *(held.uop for layer in cache.layers for held in layer)])
        return list(schedule(bound.outputs, bound.params, null_card.NAME, target_of=lambda _: card.target).items)


class EmptyWeights(Weights):
    """Memory for whatever the network asks for."""

    def has(self, name: str) -> bool:
        return name.endswith(".weight")

    def matrix(self, name: str, *shape: int) -> Any:
        if "ffn_gate_inp" in name:
            return Tensor.empty(*shape, device=null_card.NAME)
        nbytes = TYPES["Q4_0"].row_bytes(shape[-1])
        return QuantisedWeight(
            "Q4_0", shape, Tensor.empty(*shape[:-1], nbytes, dtype=dtypes.uint8, device=null_card.NAME)
        )

    def vector(self, name: str, size: int) -> Tensor:
        return Tensor.empty(size, device=null_card.NAME)


def longest_path(items: Sequence[Item]) -> int:
    """Launches that wait for one another."""
    depths: list[int] = []
    for number, item in enumerate(items):
        before = [depth for depth, other in zip(depths, items[:number]) if conflicts(other, item)]
        depths.append(1 + max(before, default=0))
    return max(depths)


def conflicts(one: Item, two: Item) -> bool:
    pairs = ((one.writes, two.reads), (one.writes, two.writes), (one.reads, two.writes))
    return any(first.conflicts(second) for left, right in pairs for first in left for second in right)


def test_launches_of_a_layer() -> None:
    """What a further layer adds: no kernel decodes scales alone, and most kernels run beside others."""
    fewer, more = launches(2), launches(4)
    names = [item.ast.arg.name for item in more if item.ast is not None]
    assert sum(name.endswith("_Q4_0") for name in names) >= 4 * 6
    assert (len(more) - len(fewer)) / 2 <= 20
    assert (longest_path(more) - longest_path(fewer)) / 2 <= 13

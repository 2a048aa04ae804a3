"""Mixtures of experts: an upcycled model equals the dense one; weights of experts not chosen do not matter."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.llm.models import STORIES_TOKENS, greedy, stories
from tests.llm.test_quantised import random_blocks, reference, rounding_bound
from tilewright import Tensor
from tilewright.llm.network.config import Experts
from tilewright.llm.network.experts import MixtureOfExperts, pick_experts
from tilewright.llm.network.layers import expert_product
from tilewright.llm.network.model import Transformer
from tilewright.llm.network.weights import Weights
from tilewright.llm.quantised.weight import QuantisedWeight


def upcycled(dense: Transformer, experts: Experts, seed: int) -> Transformer:
    """Each feed-forward layer becomes equal experts behind a random router."""
    rng = np.random.default_rng(seed)
    config = dataclasses.replace(dense.config, experts=experts)
    for number, layer in enumerate(dense.layers):
        held: dict[str, Tensor] = {}
        for part in ("gate", "up", "down"):
            one = getattr(layer.feed_forward, part).weight
            copies = one.unsqueeze(0).expand(experts.count, *one.shape).contiguous().realize()
            held[f"blk.{number}.ffn_{part}_exps.weight"] = copies
        router = rng.standard_normal((experts.count, config.hidden_size)).astype(np.float32)
        held[f"blk.{number}.ffn_gate_inp.weight"] = Tensor(router)
        layer.feed_forward = MixtureOfExperts(config, Weights(held, "upcycled"), number)
    return dense


def test_an_upcycled_model_gives_the_tokens_of_the_dense_one() -> None:
    model = upcycled(stories(), Experts(8, 2, 172), 0)
    assert greedy(model, [1], 200) == STORIES_TOKENS[1:]


@pytest.mark.parametrize("kind", ["", "Q4_0", "Q6_K"])
def test_experts_that_are_not_chosen_do_not_matter(kind: str) -> None:
    """Their weights are NaN: whatever read them and multiplied by 0 would show it."""
    chosen = np.array([[5, 2], [2, 0], [5, 5]], np.int32)
    columns = 256
    x = np.random.default_rng(1).standard_normal((3, 1, columns)).astype(np.float32)
    weight: Tensor | QuantisedWeight
    if kind:
        blocks = random_blocks(kind, 8 * 4, columns // (256 if kind == "Q6_K" else 32), special=False)
        values = reference(kind, blocks).reshape(8, 4, columns)
        blocks = blocks.reshape(8, -1).copy()
        blocks[[1, 3, 4, 6, 7]] = 0xFF  # float16 scales of these bits are NaN
        weight = QuantisedWeight(kind, (8, 4, columns), Tensor(blocks.reshape(-1)))
    else:
        values = np.random.default_rng(2).standard_normal((8, 4, columns)).astype(np.float32)
        spoilt = values.copy()
        spoilt[[1, 3, 4, 6, 7]] = np.nan
        weight = Tensor(spoilt)
    found = expert_product(weight, Tensor(x), Tensor(chosen)).numpy()
    wanted = np.einsum("tkrc,toc->tkr", values[chosen].astype(np.float64), x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=rounding_bound(x, values))


def test_the_choice_and_the_scores() -> None:
    logits = Tensor([[1.0, 3.0, 2.0, 0.0]])
    chosen, scores = pick_experts(Experts(4, 2, 1), logits, None)
    assert chosen.tolist() == [[1, 2]]
    weights = np.exp([1.0, 3.0, 2.0, 0.0])
    assert scores.numpy() == pytest.approx(weights[[[1, 2]]] / weights.sum(), rel=1e-5)
    # A bias is added for the choice alone: the scores are without it.
    sigmoid = Experts(4, 2, 1, scoring="sigmoid", renormalise=False)
    chosen, scores = pick_experts(sigmoid, logits, Tensor([0.0, 0.0, 0.0, 1.0]))
    assert chosen.tolist() == [[3, 1]]
    assert scores.numpy() == pytest.approx(1 / (1 + np.exp(-np.array([[0.0, 3.0]]))), rel=1e-5)
    # Of two groups the second has the best pair, the first the best single expert.
    grouped = dataclasses.replace(sigmoid, groups=2, group_best=2)
    chosen, _ = pick_experts(grouped, Tensor([[4.0, -9.0, 3.0, 3.5]]), None)
    assert chosen.tolist() == [[3, 2]]

"""Adapters: a model begins as it was, the loss falls, and nothing but the adapters changes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.llm.gguf_models import random_model
from tests.llm.models import STORIES_TOKENS, stories, whole
from tilewright import Tensor, jit, nn
from tilewright.base.errors import ConfigError
from tilewright.llm.lora import PARTS, add_adapters
from tilewright.llm.network.model import Transformer


def train(model: Transformer, trained: list[Tensor], tokens: Tensor, steps: int, lr: float) -> list[float]:
    optimizer = nn.optim.Adam(trained, lr=lr)

    @jit
    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(inputs)[0].sparse_categorical_crossentropy(targets).backward()
        optimizer.step()
        return loss.realize()

    inputs, targets = tokens[:, :-1].contiguous().realize(), tokens[0, 1:].contiguous().realize()
    return [step(inputs, targets).item() for _ in range(steps)]


def test_stories_learns_another_story() -> None:
    Tensor.manual_seed(3)
    model = stories()
    before = {name: tensor.numpy() for name, tensor in nn.state.get_state_dict(model).items()}
    other = np.random.default_rng(0).integers(3, 512, (1, 12)).tolist()
    known = whole([STORIES_TOKENS[:24]], model)
    wanted = model(known).numpy()
    trained = add_adapters(model, rank=4)
    assert len(trained) == 2 * 2 * 5
    np.testing.assert_allclose(model(known).numpy(), wanted, rtol=1e-5, atol=1e-5)
    losses = train(model, trained, whole(other, model), 10, 0.02)
    assert losses[-1] < losses[0] * 0.85
    assert losses[-1] < min(losses[:5])
    after = nn.state.get_state_dict(model)
    assert sum(1 for name in after if "lora" in name) == len(trained)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name].numpy(), array)


def test_a_quantised_base_is_trained_through() -> None:
    """Its products pass gradients on to adapters of earlier layers."""
    Tensor.manual_seed(5)
    model, _ = random_model("llama", "Q8_0")
    trained = add_adapters(model, parts=PARTS)
    losses = train(model, trained, whole([[5, 1, 7, 3, 9, 2, 6, 4, 8]], model), 10, 0.02)
    assert losses[-1] < losses[0] * 0.7
    first = model.layers[0].attention.q
    assert np.abs(first.lora_up.numpy()).max() > 0


def test_adapters_that_cannot_be_made() -> None:
    for arguments in ({"rank": 0}, {"parts": ("q", "head")}):
        with pytest.raises(ConfigError, match="adapters"):
            add_adapters(stories(), **arguments)

"""What tests of language models share: stories260K, greedy decoding, and models that a developer has at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tilewright import Tensor, jit
from tilewright.llm.files.load import load_model
from tilewright.llm.network.cache import Cache
from tilewright.llm.network.model import Transformer

STORIES = Path(__file__).parent.parent / "data" / "stories260K"
STORIES_TOKENS: list[int] = json.loads((STORIES / "stories260K.greedy.json").read_text())


def stories(device: str | None = None) -> Transformer:
    return load_model(STORIES / "stories260K.bin", device).model


def real_model(name: str) -> Path:
    """A model of the folder that TILEWRIGHT_TEST_MODELS names; the test is skipped without it."""
    folder = os.environ.get("TILEWRIGHT_TEST_MODELS")
    path = Path(folder or "", name)
    if not folder or not path.exists():
        pytest.skip(f"TILEWRIGHT_TEST_MODELS names no folder with {name}")
    return path


def whole(values: list[int] | list[list[int]], model: Transformer) -> Tensor:
    """Integers where the model is."""
    made = Tensor(np.array(values, np.int32))
    return (made.to(model.device) if isinstance(model.device, str) else made.shard(model.device)).realize()


def greedy(
    model: Transformer, prompt: list[int], count: int, cache: Cache | None = None, is_jitted: bool = True
) -> list[int]:
    """The tokens that greedy decoding gives behind the prompt, one by one, with a position for each row."""
    cache = cache or model.make_cache(1, len(prompt) + count)

    def step(tokens: Tensor, position: Tensor) -> Tensor:
        return model.head(model.hidden(tokens, cache, position)[:, -1]).argmax(-1).realize()

    run = jit(step) if is_jitted else step
    found: list[int] = []
    given, position = prompt, 0
    for _ in range(count):
        found.append(int(run(whole([given], model), whole([position], model)).item()))
        position += len(given)
        given = found[-1:]
    return found

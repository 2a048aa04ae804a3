"""The network on real weights: stories260K gives its stored tokens, however it is called."""

from __future__ import annotations

import numpy as np
import pytest

from tests.llm.models import STORIES_TOKENS, greedy, real_model, stories, whole
from tilewright import Context, Device, Tensor, jit, nn
from tilewright.base.errors import ShapeError
from tilewright.llm.files.load import load_model


def test_stories_gives_the_stored_tokens() -> None:
    assert greedy(stories(), [1], 200) == STORIES_TOKENS[1:]


def test_all_tokens_at_once_without_a_cache() -> None:
    logits = stories()(Tensor(np.array([STORIES_TOKENS[:-1]], np.int32)))
    assert logits.shape == (1, 200, 512)
    assert logits[0].argmax(-1).tolist() == STORIES_TOKENS[1:]


@pytest.mark.parametrize("split", [7])
def test_a_prompt_in_chunks(split: int) -> None:
    """An int says where a chunk stands; what the cache holds before it is attended to."""
    model = stories()
    tokens = STORIES_TOKENS[:24]
    cache = model.make_cache(1, 80)
    first = model(whole([tokens[:split]], model), cache, 0).numpy()
    second = model(whole([tokens[split:]], model), cache, split).numpy()
    found = np.concatenate([first, second], 1)
    np.testing.assert_allclose(found, model(whole([tokens], model)).numpy(), rtol=1e-4, atol=1e-4)
    assert found[0].argmax(-1).tolist() == STORIES_TOKENS[1:25]


def test_rows_with_positions_of_their_own() -> None:
    """Two requests in one batch, the second seven tokens behind; a row that is written leaves the others alone."""
    model = stories()
    cache = model.make_cache(2, 48)

    @jit
    def step(tokens: Tensor, position: Tensor) -> Tensor:
        return model(tokens, cache, position)[:, -1].argmax(-1).realize()

    for place in range(-7, 30):
        rows = [place + 7, max(place, 0)]
        found = step(whole([[STORIES_TOKENS[row]] for row in rows], model), whole(rows, model)).tolist()
        assert found == [STORIES_TOKENS[row + 1] for row in rows]
    assert step.last_reason == ""


def test_a_symbolic_position() -> None:
    """One set of kernels for all positions, of single tokens and of chunks."""
    model = stories()
    cache = model.make_cache(1, 64)

    def follow(tokens: Tensor, position: int) -> Tensor:
        return model(tokens, cache, position)[:, -1].argmax(-1).realize()

    for size in (8, 1):
        run = jit(follow, symbolic={"position": (0, 64 - size)})
        for position in range(0, 40, size):
            tokens = whole([STORIES_TOKENS[position : position + size]], model)
            assert run(tokens, position=position).tolist() == [STORIES_TOKENS[position + size]]
        assert run.last_reason == ""


def test_the_network_can_be_differentiated() -> None:
    model = stories()
    weight = model.layers[0].attention.q.weight
    assert isinstance(weight, Tensor)
    for parameter in nn.state.get_parameters(model):
        parameter.requires_grad_()
    tokens = whole([STORIES_TOKENS[:20]], model)
    loss = model(tokens[:, :-1])[0].sparse_categorical_crossentropy(tokens[0, 1:])
    loss.backward()
    step = 1e-2
    gradient = weight.grad.numpy()
    direction = gradient / np.linalg.norm(gradient)
    moved = []
    for sign in (1, -1):
        other = stories()
        other.layers[0].attention.q.weight = weight.detach() + Tensor((sign * step * direction).astype(np.float32))
        moved.append(other(tokens[:, :-1])[0].sparse_categorical_crossentropy(tokens[0, 1:]).item())
    assert (moved[0] - moved[1]) / (2 * step) == pytest.approx(np.linalg.norm(gradient), rel=0.02)


def test_calls_that_do_not_fit_are_refused() -> None:
    model = stories()
    cache = model.make_cache(1, 8)
    one = whole([[1]], model)
    for arguments, message in (
        ((one[0],), "tokens"),
        ((one.float(),), "tokens"),
        ((one[:, :0],), "tokens"),
        ((one, cache, 8), "do not fit"),
        ((one, cache, -1), "do not fit"),
        ((whole([[1] * 9], model), cache, 0), "do not fit"),
        ((whole([[1], [1]], model), cache, 0), "a cache of 1"),
        ((one, cache, whole([1, 2], model)), "positions"),
        ((one, cache, whole([1], model).float()), "positions"),
    ):
        with pytest.raises(ShapeError, match=message):
            model(*arguments)
    with pytest.raises(ShapeError, match="cache has 0 rows"):
        model.make_cache(0, 8)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
def test_smollm2_knows_the_capital_of_france(device: str) -> None:
    """With float activations: the first word is a near tie (logits 25.3 and 25.2), which 8 bits may decide."""
    reason = Device.availability()[device]
    if reason is not None:
        pytest.skip(f"{device}: {reason}")
    loaded = load_model(real_model("smollm2.gguf"), device)
    words = loaded.facts["tokenizer.ggml.tokens"]
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    parts = ["<|im_start|>", f"system\n{system}", "<|im_end|>", "\n", "<|im_start|>"]
    parts += ["user\nWhat is the capital of France?", "<|im_end|>", "\n", "<|im_start|>", "assistant\n"]
    prompt = [token for part in parts for token in longest_words(part, words)]
    with Context(QUANTISED_ACTIVATIONS=0):
        answer = greedy(loaded.model, prompt, 8)
    assert "".join(words[token] for token in answer) == "TheĠcapitalĠofĠFranceĠisĠParis.<|im_end|>"


def longest_words(text: str, words: list[str]) -> list[int]:
    """Tokens of a text without a tokenizer: always the longest word that fits."""
    known = {word: number for number, word in enumerate(words)}
    left = text if text in known else text.replace(" ", "Ġ").replace("\n", "Ċ")
    found = []
    while left:
        size = next(size for size in range(len(left), 0, -1) if left[:size] in known)
        found.append(known[left[:size]])
        left = left[size:]
    return found

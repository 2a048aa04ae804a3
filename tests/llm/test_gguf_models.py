"""Models in GGUF files: what a file says becomes the configuration that it stands for, and weights stay quantised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.llm.gguf_models import MODELS, random_model, write_model
from tests.llm.models import greedy, real_model
from tilewright import Tensor
from tilewright.base.errors import UnsupportedError
from tilewright.llm.files.load import load_model
from tilewright.llm.quantised.weight import QuantisedWeight

TOKENS = np.random.default_rng(2).integers(0, 80, (2, 9)).astype(np.int32)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_file_gives_the_network_it_was_written_from(name: str, tmp_path: Path) -> None:
    model, held = random_model(name)
    path = tmp_path / "model.gguf"
    write_model(path, name, held)
    loaded = load_model(path)
    assert loaded.config == MODELS[name][0]
    assert (loaded.config.end_tokens, loaded.tokenizer_source) == ((7,), "gguf")
    np.testing.assert_array_equal(loaded.model(Tensor(TOKENS)).numpy(), model(Tensor(TOKENS)).numpy())


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_quantised_weights_stay_quantised(kind: str, tmp_path: Path) -> None:
    model, held = random_model("mixtral", kind)
    path = tmp_path / "model.gguf"
    write_model(path, "mixtral", held)
    loaded = load_model(path).model
    experts = loaded.layers[0].feed_forward
    for weight in (loaded.embedding.weight, loaded.layers[1].attention.q.weight, experts.gate, experts.router.weight):
        assert isinstance(weight, QuantisedWeight)
        assert weight.kind == kind
        assert weight.blocks._host_view().readonly  # the mapped file
    np.testing.assert_array_equal(loaded(Tensor(TOKENS)).numpy(), model(Tensor(TOKENS)).numpy())


def test_a_table_of_rotary_factors(tmp_path: Path) -> None:
    """Llama 3 files have the factors of their frequencies as a tensor."""
    model, held = random_model("llama")
    path = tmp_path / "model.gguf"
    write_model(path, "llama", held | {"rope_freqs.weight": Tensor(np.array([1, 2, 4, 8], np.float32))})
    loaded = load_model(path)
    assert loaded.config.rope.factors == (1, 2, 4, 8)
    assert np.abs(loaded.model(Tensor(TOKENS)).numpy() - model(Tensor(TOKENS)).numpy()).max() > 1e-3


def test_keys_and_values_of_latents_in_two_weights(tmp_path: Path) -> None:
    """Newer files of latent attention have them apart, the keys' transposed, and say the sizes of heads elsewhere."""
    model, held = random_model("deepseek2")
    for layer in range(2):
        both = held.pop(f"blk.{layer}.attn_kv_b.weight").numpy().reshape(4, 28, 16)
        held[f"blk.{layer}.attn_k_b.weight"] = Tensor(np.ascontiguousarray(both[:, :16].transpose(0, 2, 1)))
        held[f"blk.{layer}.attn_v_b.weight"] = Tensor(np.ascontiguousarray(both[:, 16:]))
    path = tmp_path / "model.gguf"
    facts = {"key_length": 24, "value_length": 16, "key_length_mla": 24, "value_length_mla": 12}
    write_model(path, "deepseek2", held, **{f"deepseek2.attention.{key}": value for key, value in facts.items()})
    found = load_model(path).model(Tensor(TOKENS)).numpy()
    np.testing.assert_allclose(found, model(Tensor(TOKENS)).numpy(), rtol=1e-4, atol=1e-5)


def test_unknown_types_and_architectures_are_refused_by_name(tmp_path: Path) -> None:
    _, held = random_model("llama")
    path = tmp_path / "model.gguf"
    write_model(path, "llama", held)
    path.write_bytes(path.read_bytes().replace(b"llama", b"mamba"))
    with pytest.raises(UnsupportedError, match="'mamba'"):
        load_model(path)
    written = Tensor(np.zeros((80, 32), np.int32))
    write_model(path, "llama", held | {"token_embd.weight": written})
    with pytest.raises(UnsupportedError, match=r"'token_embd.weight' has the type I32"):
        load_model(path)
    write_model(path, "llama", held, **{"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0})
    with pytest.raises(UnsupportedError, match="'longrope'"):
        load_model(path)


PROMPTS = {"gemma3-270m.gguf": "The quick brown fox", "qwen2.5-coder-1.5b.gguf": "def fibonacci(n):"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_sentences_are_continued_as_llama_cpp_does(name: str) -> None:
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python, which this compares with, is not installed")
    path = real_model(name)
    reference = library.Llama(str(path), n_ctx=128, verbose=False)
    prompt = reference.tokenize(PROMPTS[name].encode(), add_bos=name.startswith("gemma"), special=True)
    wanted: list[int] = []
    for token in reference.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
        wanted.append(int(token))
        if len(wanted) == 20:
            break
    assert greedy(load_model(path).model, prompt, 20) == wanted

"""Every family against `transformers`, with small random weights: logits within 1e-3 in float32, all tokens at once and
through the cache in chunks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.errors import UnsupportedError
from tilewright.llm.files.load import load_model

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ROUTED = {"moe_intermediate_size": 16, "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 3}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
GROUPED = {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LATENT_YARN = YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("Llama", {"rope_parameters": YARN}),
    "llama, linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma3": ("Gemma3", {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24, "num_hidden_layers": 6}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        "Qwen3Moe",
        {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16},
    ),
    "glm4-moe": ("Glm4Moe", ROUTED | {"head_dim": 16, "first_k_dense_replace": 1, "use_qk_norm": True}),
    "deepseek v3": ("DeepseekV3", ROUTED | LATENT | GROUPED),
    "deepseek, yarn": ("DeepseekV3", ROUTED | LATENT | GROUPED | {"q_lora_rank": None, "rope_parameters": LATENT_YARN}),
}


def save_random(folder: Path, family: str, settings: dict[str, Any], shard: str = "5GB") -> Any:
    """A model of `transformers` whose weights are all random, its norms and router biases included, and saved."""
    torch = pytest.importorskip("torch", reason="torch is not installed; `make test-torch` installs it")
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed; `make test-torch` installs it"
    )
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    suffix = "TextConfig" if family == "Gemma3" else "Config"
    config = getattr(transformers, family + suffix)(**(COMMON | settings))
    torch.manual_seed(0)
    model = getattr(transformers, family + "ForCausalLM")(config).eval()
    with torch.no_grad():
        biases = [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
        for parameter in (*model.parameters(), *biases):
            if parameter.ndim < 2:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.mul_(4)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def expected_logits(model: Any, tokens: list[list[int]]) -> np.ndarray:
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.tensor(tokens)).logits.numpy())


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(CASES))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    family, settings = CASES[name]
    tokens = np.random.default_rng(3).integers(0, 96, (2, 20)).astype(np.int32)
    wanted = expected_logits(save_random(tmp_path, family, settings), tokens.tolist())
    model = load_model(tmp_path).model
    np.testing.assert_allclose(model(Tensor(tokens)).numpy(), wanted, rtol=0, atol=1e-3)
    cache = model.make_cache(2, 24)
    model(Tensor(tokens[:, :13]), cache, 0).realize()
    ends = Tensor(np.array([13, 13], np.int32))
    last = model(Tensor(tokens[:, 13:]), cache, ends).numpy()
    np.testing.assert_allclose(last, wanted[:, 13:], rtol=0, atol=1e-3)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_weights_in_several_files(tmp_path: Path) -> None:
    wanted = expected_logits(save_random(tmp_path, "Llama", {}, shard="20KB"), [[1, 2, 3, 4]])
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded = load_model(tmp_path)
    np.testing.assert_allclose(loaded.model(Tensor([[1, 2, 3, 4]], dtype="int32")).numpy(), wanted, atol=1e-3)
    assert (loaded.config.end_tokens, loaded.tokenizer_source) == ((2,), "")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_what_no_network_here_computes_is_refused_by_name(tmp_path: Path) -> None:
    save_random(tmp_path, "Llama", {})
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    dynamic = said["rope_parameters"] | {"rope_type": "dynamic", "factor": 2.0}
    for change, message in (
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": None}, "the type None"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "relu"}, "'relu'"),
        ({"rope_parameters": dynamic}, "'dynamic'"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ):
        path.write_text(json.dumps(said | change))
        with pytest.raises(UnsupportedError, match=message):
            load_model(tmp_path)
    os.remove(path)

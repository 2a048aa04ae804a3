"""GGUF files of small random models, as llama.cpp names and describes them."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tilewright import Tensor, dtypes
from tilewright.llm.network.config import Config, Experts, Latent, Rope
from tilewright.llm.network.model import Transformer
from tilewright.llm.network.rope_scaling import linear_factors
from tilewright.llm.network.weights import Weights
from tilewright.llm.quantised.types import block_type
from tilewright.llm.quantised.weight import QuantisedWeight

SIZES: dict[str, Any] = {
    "vocab_size": 80,
    "hidden_size": 32,
    "layer_count": 2,
    "head_count": 4,
    "kv_head_count": 2,
    "head_size": 8,
    "ffn_size": 48,
    "context_length": 64,
}
FACTS: dict[str, Any] = {
    "context_length": 64,
    "embedding_length": 32,
    "block_count": 2,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 2.0**-17,
}
ROUTED = {
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 16,
    "expert_shared_count": 2,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "leading_dense_block_count": 1,
}
LATENT = {
    "attention.q_lora_rank": 24,
    "attention.kv_lora_rank": 16,
    "attention.key_length": 24,
    "attention.value_length": 12,
    "rope.dimension_count": 8,
}
SIGMOID = Experts(8, 2, 16, first=1, shared_size=32, scoring="sigmoid", scale=1.5)
EPS = 2.0**-17
HALF_ROPE = Rope(1e4, 4)

# By name: the configuration, the architecture, and what its file says beside the common facts.
MODELS: dict[str, tuple[Config, dict[str, Any]]] = {
    "llama": (Config("llama", **SIZES, rope=Rope(5e4, 8, True), norm_eps=EPS), {"rope.freq_base": 5e4}),
    "llama, stretched": (
        Config("llama", **SIZES, rope=Rope(1e4, 8, True, linear_factors(4, 4.0)), norm_eps=EPS, is_tied=True),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "mixtral": (
        Config("llama", **SIZES, rope=Rope(1e4, 8, True), norm_eps=EPS, experts=Experts(4, 2, 48)),
        {"expert_count": 4, "expert_used_count": 2},
    ),
    "qwen2": (Config("qwen2", **SIZES, rope=Rope(1e6, 8), norm_eps=EPS), {"rope.freq_base": 1e6}),
    "qwen3": (
        Config("qwen3", **(SIZES | {"head_size": 16}), rope=Rope(1e4, 16), norm_eps=EPS, has_qk_norm=True),
        {"attention.key_length": 16},
    ),
    "qwen3moe": (
        Config("qwen3moe", **SIZES, rope=Rope(1e4, 8), norm_eps=EPS, has_qk_norm=True, experts=Experts(8, 3, 16)),
        {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 16},
    ),
    "gemma3": (
        Config(
            "gemma3",
            **SIZES,
            rope=Rope(1e6, 8),
            local_rope=Rope(1e4, 8),
            norm_eps=EPS,
            activation="gelu",
            is_tied=True,
            has_qk_norm=True,
            has_post_norms=True,
            embedding_scale=32**0.5,
            window=5,
            is_local=(True, True),
        ),
        {"rope.freq_base": 1e6, "attention.sliding_window": 5},
    ),
    "glm4moe": (
        Config("glm4moe", **SIZES, rope=HALF_ROPE, norm_eps=EPS, has_qk_norm=True, experts=SIGMOID),
        ROUTED | {"rope.dimension_count": 4, "nextn_predict_layers": 1, "block_count": 3},
    ),
    "deepseek2": (
        Config(
            "deepseek2",
            **(SIZES | {"kv_head_count": 4, "head_size": 24}),
            rope=Rope(1e4, 8, True),
            norm_eps=EPS,
            attention_scale=24**-0.5,
            experts=SIGMOID,
            latent=Latent(16, 24, 16, 8, 12),
        ),
        ROUTED | LATENT,
    ),
}
BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias")


class RandomWeights(Weights):
    """Random weights of any network, made when they are asked for. Matrices whose rows
    are whole blocks of the format `kind` are of that format, all else is float32. `made` has what was asked for; biases
    are made where their names end in one of `biases`."""

    def __init__(self, kind: str, seed: int, biases: Collection[str]) -> None:
        self.made: dict[str, Tensor | QuantisedWeight] = {}
        super().__init__(self.made, "random weights")
        self.type = block_type("RandomWeights", kind)
        self.biases = tuple(biases)
        self.generator = np.random.default_rng(seed)

    def has(self, name: str) -> bool:
        return name in self.made or name.endswith(self.biases)

    def matrix(self, name: str, *shape: int) -> Tensor | QuantisedWeight:
        if name not in self.made:
            is_block = self.type.name not in ("F32", "F16", "BF16")
            is_quantised = len(shape) > 1 and is_block and shape[-1] % self.type.size == 0
            self.made[name] = (
                self._blocks(shape) if is_quantised else self._numbers(shape, name.endswith("norm.weight"))
            )
        return super().matrix(name, *shape)

    def _numbers(self, shape: tuple[int, ...], is_norm: bool) -> Tensor:
        """Normal numbers that keep the size of what they multiply; norms around 1."""
        values = self.generator.standard_normal(shape, dtype="float32")
        scaled = 1 + 0.1 * values if is_norm else values * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)
        return Tensor(scaled, dtype=dtypes.float32)

    def _blocks(self, shape: tuple[int, ...]) -> QuantisedWeight:
        """Blocks of any bytes but for float16 scales, which are small in the formats that begin with one."""
        count = math.prod(shape) // self.type.size
        blocks = self.generator.integers(0, 256, (count, self.type.nbytes), dtype="uint8")
        scales = (self.generator.uniform(0.5, 1, (count, 1)) * 0.2 * shape[-1] ** -0.5).astype("float16")
        blocks[:, :2] = scales.view("uint8")
        return QuantisedWeight(self.type.name, shape, Tensor(blocks, dtype=dtypes.uint8))


def random_model(name: str, kind: str = "F32") -> tuple[Transformer, dict[str, Tensor | QuantisedWeight]]:
    """A network of that configuration, and its weights by name."""
    biases = BIASES if name == "qwen2" else ("exp_probs_b.bias",) if "moe" in name or "deepseek" in name else ()
    weights = RandomWeights(kind, seed=len(name), biases=biases if name != "qwen3moe" else ())
    return Transformer(MODELS[name][0], weights), weights.made


def write_model(path: Path, name: str, held: dict[str, Tensor | QuantisedWeight], **changes: Any) -> None:
    """The file of a model; `changes` replace facts, and leave out those that are None."""
    config, facts = MODELS[name]
    writer = gguf.GGUFWriter(path, config.architecture)
    said = {f"{config.architecture}.{key}": value for key, value in (FACTS | facts).items()}
    for key, value in (said | {"tokenizer.ggml.eos_token_id": 7} | changes).items():
        if value is None:
            continue
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    for weight_name, weight in held.items():
        own = "post_attention_norm" if config.architecture == "glm4moe" else "ffn_norm"
        written = weight_name.replace("ffn_norm", own)
        if isinstance(weight, QuantisedWeight):
            writer.add_tensor(written, weight.blocks.numpy(), raw_dtype=gguf.GGMLQuantizationType[weight.kind])
        else:
            writer.add_tensor(written, np.ascontiguousarray(weight.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

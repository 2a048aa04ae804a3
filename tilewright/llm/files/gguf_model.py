"""A language model in a GGUF file. In: a path. Out: the network over the mapped file, its weights quantised as they are
there. The tables here have what a family's files do not state, and how its rotary embedding pairs features."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.base.records import replace
from tilewright.llm.files.facts import Facts
from tilewright.llm.files.loaded import LoadedModel
from tilewright.llm.network.config import MAX_HEAD_SIZE, MAX_ROPE_BASE, Config, Experts, Latent, Rope
from tilewright.llm.network.model import Transformer
from tilewright.llm.network.rope_scaling import linear_factors, yarn_factors, yarn_magnitude
from tilewright.llm.network.weights import Weights
from tilewright.llm.quantised.types import TYPES
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.nn.formats.gguf_file import GgufFile, GgufTensor, open_parts, plain_tensor
from tilewright.nn.formats.gguf_header import DEFAULT_ALIGNMENT
from tilewright.nn.formats.mapped import Path, damaged, tensor_at
from tilewright.tensor.tensor import Tensor

# By architecture, what its files do not state. Rotary features are paired as in llama.cpp.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"interleaved": True, "experts": {"renormalise": True}},
    "qwen2": {},
    "qwen3": {"qk_norm": True},
    "gemma3": {"qk_norm": True, "gemma": True},
    "qwen3moe": {"qk_norm": True, "experts": {"renormalise": True}},
    "glm4moe": {"experts": {"group_best": 2}, "names": {"post_attention_norm": "ffn_norm"}},
    "deepseek2": {"interleaved": True, "latent": True, "experts": {"group_best": 2}},
}
_SIGMOID = 2  # GGUF's number for experts that are scored by a sigmoid
# Gemma 3: every n-th layer is global; the base of the others; the number of layers of the model with another query
# scale.
_GEMMA_PATTERN = 6
_GEMMA_LOCAL_BASE = 10000.0
_GEMMA_LARGEST_LAYERS = 62


def load_gguf(path: Path, device: str | None = None, dtype: DType = dtypes.float32) -> LoadedModel:
    """The model of a GGUF file, or of several; no weights are read yet."""
    parts = open_parts("load_model", path)
    for part in parts:
        check_types(part)
    file = parts[0]
    facts = Facts(file.facts, file.path)
    architecture = facts.text("general.architecture")
    if architecture not in _FAMILIES:
        message = f"{file.path!r} is a model of the architecture {architecture!r}"
        raise UnsupportedError("load_model", message, f"take one of {', '.join(_FAMILIES)}")
    other_names = _FAMILIES[architecture].get("names", {})
    held = {_own_name(each.name, other_names): _weight(part, each, device) for part in parts for each in part.tensors}
    config = make_config(facts, architecture, held)
    model = Transformer(config, Weights(held, repr(file.path)), dtype)
    return LoadedModel(model, config, file.facts, "gguf", file.path)


def check_types(file: GgufFile) -> None:
    """Refuses a file with weights that cannot be decoded, or that are not aligned as the format requires, before any of
    it is used."""
    alignment = file.facts.get("general.alignment", DEFAULT_ALIGNMENT)
    for each in file.tensors:
        if each.start % alignment:
            reason = f"{each.name!r} begins at byte {each.start}, which is not a multiple of {alignment}"
            raise damaged("load_model", file.path, reason)
        if each.kind.name not in TYPES:
            message = f"{file.path!r}: {each.name!r} has the type {each.kind.name}, which cannot be decoded"
            raise UnsupportedError("load_model", message, f"take a file of other types: {', '.join(TYPES)}")


def _own_name(name: str, other_names: dict[str, str]) -> str:
    """The name that is used here for a tensor of a family with other names: blk.3.post_attention_norm.weight."""
    parts = name.split(".")
    return ".".join(other_names.get(part, part) for part in parts) if len(parts) == 4 else name


def _weight(file: GgufFile, info: GgufTensor, device: str | None) -> Tensor | QuantisedWeight:
    plain = plain_tensor("load_model", file, info, device)
    if plain is not None:
        return plain
    blocks = tensor_at(file.data, info.start, dtypes.uint8, (info.nbytes,), device)
    return QuantisedWeight(info.kind.name, info.shape, blocks)


# ---------------------------------------------------------------- configuration


def make_config(facts: Facts, architecture: str, held: dict[str, Tensor | QuantisedWeight]) -> Config:
    family = _FAMILIES[architecture]
    own = Facts(facts.values, facts.source, architecture + ".")
    heads, hidden = own.size("attention.head_count"), own.size("embedding_length")
    latent = _latent(own) if family.get("latent") else None
    head_size = own.whole("attention.key_length", hidden // heads)
    layer_count = own.whole("block_count") - own.whole("nextn_predict_layers", 0)
    rope_size = latent.rope_size if latent else own.whole("rope.dimension_count", head_size)
    has_experts = "experts" in family and own.whole("expert_count", 0) > 0
    config = Config(
        architecture,
        vocab_size=_vocab_size(facts, held),
        hidden_size=hidden,
        layer_count=layer_count,
        head_count=heads,
        kv_head_count=heads if latent else own.whole("attention.head_count_kv", heads),
        head_size=head_size,
        ffn_size=own.whole("feed_forward_length"),
        context_length=own.whole("context_length"),
        rope=_rope(own, rope_size, family, held),
        norm_eps=own.number("attention.layer_norm_rms_epsilon", 1e-5),
        is_tied="output.weight" not in held,
        has_qk_norm=bool(family.get("qk_norm")) or "blk.0.attn_q_norm.weight" in held,
        attention_scale=_latent_scale(own, latent) if latent else 0.0,
        experts=_experts(own, family["experts"]) if has_experts else None,
        latent=latent,
        end_tokens=_end_tokens(facts),
    )
    return _as_gemma(config, own) if family.get("gemma") else config


def _as_gemma(config: Config, own: Facts) -> Config:
    """Norms after attention and feed-forward, local layers, GeGLU. The file has 1 added to the weights of norms."""
    per_head = config.hidden_size // config.head_count
    return replace(
        config,
        activation="gelu",
        has_post_norms=True,
        embedding_scale=math.sqrt(config.hidden_size),
        attention_scale=per_head**-0.5 if config.layer_count == _GEMMA_LARGEST_LAYERS else 0.0,
        window=own.whole("attention.sliding_window"),
        is_local=tuple((layer + 1) % _GEMMA_PATTERN != 0 for layer in range(config.layer_count)),
        local_rope=Rope(_GEMMA_LOCAL_BASE, config.rope.size),
    )


def _experts(own: Facts, router: dict[str, Any]) -> Experts:
    size = own.whole("expert_feed_forward_length", own.whole("feed_forward_length"))
    groups = own.whole("expert_group_count", 1)
    return Experts(
        count=own.whole("expert_count"),
        chosen=own.whole("expert_used_count"),
        size=size,
        first=own.whole("leading_dense_block_count", 0),
        shared_size=own.whole("expert_shared_count", 0) * size,
        scoring="sigmoid" if own.whole("expert_gating_func", 1) == _SIGMOID else "softmax",
        renormalise=own.flag("expert_weights_norm", router.get("renormalise", False)),
        scale=own.number("expert_weights_scale", 1.0) or 1.0,
        groups=groups,
        group_chosen=own.whole("expert_group_used_count", 1) if groups > 1 else 1,
        group_best=router.get("group_best", 1) if groups > 1 else 1,
    )


def _latent(own: Facts) -> Latent:
    """Newer files have the sizes of heads under names with `_mla`, older ones under the plain names."""
    key_size = own.whole("attention.key_length_mla", own.whole("attention.key_length"))
    rope_size = own.whole("rope.dimension_count")
    return Latent(
        kv_rank=own.whole("attention.kv_lora_rank"),
        q_rank=own.whole("attention.q_lora_rank", 0),
        plain_size=key_size - rope_size,
        rope_size=rope_size,
        value_size=own.whole("attention.value_length_mla", own.whole("attention.value_length")),
    )


def _latent_scale(own: Facts, latent: Latent) -> float:
    """1 / sqrt of the features of a key; where YaRN stretches the context, times its magnitude squared."""
    scale: float = max(latent.plain_size + latent.rope_size, 1) ** -0.5
    weight = own.number("rope.scaling.yarn_log_multiplier", 0.0)
    if own.text("rope.scaling.type", "none") != "yarn" or not weight:
        return scale
    magnitude = yarn_magnitude(own.positive("rope.scaling.factor", 1.0), weight * 10)
    return scale * magnitude * magnitude


def _vocab_size(facts: Facts, held: dict[str, Tensor | QuantisedWeight]) -> int:
    """Rows of the embedding: the tokenizer may know fewer tokens."""
    table = held.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise facts.refused("it has no 'token_embd.weight' of two axes")
    return table.shape[0]


def _rope(own: Facts, size: int, family: dict[str, Any], held: dict[str, Tensor | QuantisedWeight]) -> Rope:
    base, interleaved = own.number("rope.freq_base", 10000.0), bool(family.get("interleaved"))
    table = held.get("rope_freqs.weight")
    if isinstance(table, Tensor) and table.ndim == 1 and table.shape[0] == size // 2:
        return Rope(base, size, interleaved, tuple(float(value) for value in table.tolist()))
    kind = own.text("rope.scaling.type", "none")
    factor = own.number("rope.scaling.factor", 1.0)
    if kind == "none" or factor in (0.0, 1.0):
        return Rope(base, size, interleaved)
    pairs, trained = size // 2, own.size("rope.scaling.original_context_length", own.size("context_length"))
    if not (factor > 0 and 1 < base <= MAX_ROPE_BASE and 0 < size <= MAX_HEAD_SIZE):
        raise own.refused(f"rotary embeddings stretched by {factor}, with a base of {base} and {size} features")
    if kind == "linear":
        return Rope(base, size, interleaved, linear_factors(pairs, factor))
    if kind == "yarn":
        factors = yarn_factors(base, pairs, factor, 32.0, 1.0, trained)
        # Latent attention has the magnitude in the scale of its scores.
        magnitude = 1.0 if family.get("latent") else yarn_magnitude(factor)
        return Rope(base, size, interleaved, factors, magnitude)
    message = f"{own.source!r} stretches rotary embeddings by {kind!r}"
    raise UnsupportedError("load_model", message, "known are linear and yarn")


def _end_tokens(facts: Facts) -> tuple[int, ...]:
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return tuple(dict.fromkeys(facts.whole(name) for name in names if facts.has(name)))

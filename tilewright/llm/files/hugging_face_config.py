"""The configuration in `config.json`. In: its values. Out: a `Config`. A family is a set of defaults and of the
features that its name implies; what a file asks for beyond that is refused by name."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.errors import UnsupportedError
from tilewright.llm.files.facts import Facts
from tilewright.llm.network.config import MAX_HEAD_SIZE, MAX_LAYERS, MAX_ROPE_BASE, Config, Experts, Latent, Rope
from tilewright.llm.network.rope_scaling import linear_factors, llama3_factors, yarn_factors, yarn_magnitude

# By `model_type`. `experts` says how its router works; `latent` that attention is latent.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"qk_norm": True},
    "gemma3": {"gemma": True},
    "gemma3_text": {"gemma": True},
    "mixtral": {"experts": {"renormalise": True}},
    "qwen3_moe": {"qk_norm": True, "experts": {}},
    "glm4_moe": {"experts": {"scoring": "sigmoid", "group_best": 2}},
    "deepseek_v2": {"latent": True, "interleaved": True, "experts": {}},
    "deepseek_v3": {"latent": True, "interleaved": True, "experts": {"scoring": "sigmoid", "group_best": 2}},
}
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu"}


def make_config(facts: Facts, family: str, end_tokens: tuple[int, ...]) -> Config:
    traits = FAMILIES[family]
    text = facts.record("text_config") if family == "gemma3" else facts
    said = facts if text is None else text
    _refuse_unknown(said, facts)
    heads, hidden = said.size("num_attention_heads"), said.size("hidden_size")
    latent = _latent(said) if traits.get("latent") else None
    head_size = said.whole("head_dim", hidden // heads)
    layer_count = said.whole("num_hidden_layers")
    window, is_local = _window(said, layer_count)
    rope_head = head_size if latent is None else latent.rope_size
    interleaved = bool(traits.get("interleaved")) and said.flag("rope_interleave", True)
    is_gemma = bool(traits.get("gemma"))
    rope, local_rope = _ropes(said, rope_head, interleaved)
    scale = said.positive("query_pre_attn_scalar", head_size) ** -0.5 if is_gemma else 0.0
    if latent is not None:
        scale = max(latent.plain_size + latent.rope_size, 1) ** -0.5 * _latent_magnitude(said)
    return Config(
        family,
        vocab_size=said.whole("vocab_size"),
        hidden_size=hidden,
        layer_count=layer_count,
        head_count=heads,
        kv_head_count=heads if latent is not None else said.whole("num_key_value_heads", heads),
        head_size=head_size,
        ffn_size=said.whole("intermediate_size"),
        context_length=said.whole("max_position_embeddings", 2048),
        rope=rope,
        local_rope=local_rope,
        norm_eps=said.number("rms_norm_eps", 1e-6),
        activation=_activation(said),
        is_tied=said.flag("tie_word_embeddings", is_gemma),
        has_qk_norm=bool(traits.get("qk_norm")) or is_gemma or said.flag("use_qk_norm", False),
        has_post_norms=is_gemma,
        norm_shift=1.0 if is_gemma else 0.0,
        embedding_scale=math.sqrt(hidden) if is_gemma else 1.0,
        attention_scale=scale,
        window=window,
        is_local=is_local,
        experts=_experts(said, traits["experts"]) if "experts" in traits else None,
        latent=latent,
        end_tokens=end_tokens,
    )


def _refuse_unknown(said: Facts, facts: Facts) -> None:
    for name in ("quantization_config", "attn_logit_softcapping", "final_logit_softcapping"):
        if said.has(name) or facts.has(name):
            message = f"{facts.source!r} has {name}"
            raise UnsupportedError("load_model", message, "take the model in plain floats, or a GGUF file of it")


def _activation(said: Facts) -> str:
    name = said.text("hidden_activation" if said.has("hidden_activation") else "hidden_act", "silu")
    if name not in _ACTIVATIONS:
        message = f"{said.source!r} has the activation {name!r}"
        raise UnsupportedError("load_model", message, f"known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _window(said: Facts, layer_count: int) -> tuple[int, tuple[bool, ...]]:
    """The reach of local layers, and which: listed, or all but every n-th, or all."""
    if not said.has("sliding_window") or not said.flag("use_sliding_window", True):
        return 0, ()
    window = said.whole("sliding_window")
    kinds = said.items("layer_types")
    if kinds:
        return window, tuple(kind == "sliding_attention" for kind in kinds)
    pattern = said.whole("sliding_window_pattern", 0)
    if pattern > 0:
        return window, tuple((layer + 1) % pattern != 0 for layer in range(min(layer_count, MAX_LAYERS)))
    return window, (True,) * min(layer_count, MAX_LAYERS)


# ---------------------------------------------------------------- rotary embeddings


def _ropes(said: Facts, head_size: int, interleaved: bool) -> tuple[Rope, Rope | None]:
    """The rotary embedding of all layers; or that of global and that of local layers."""
    parameters = said.record("rope_parameters")
    if parameters is not None and parameters.has("full_attention"):
        full, local = parameters.record("full_attention"), parameters.record("sliding_attention")
        assert full is not None
        return (
            _rope(said, full, head_size, interleaved),
            None if local is None else _rope(said, local, head_size, interleaved),
        )
    if parameters is None:
        scaling = said.record("rope_scaling")
        values = {} if scaling is None else dict(scaling.values)
        values["rope_theta"] = said.number("rope_theta", 10000.0)
        parameters = Facts(values, said.source)
    main = _rope(said, parameters, head_size, interleaved)
    if not said.has("rope_local_base_freq"):
        return main, None
    return main, Rope(said.number("rope_local_base_freq"), main.size, interleaved)


def _rope(said: Facts, parameters: Facts, head_size: int, interleaved: bool) -> Rope:
    base = parameters.number("rope_theta", 10000.0)
    share = parameters.number("partial_rotary_factor", said.number("partial_rotary_factor", 1.0))
    size = int(head_size * share)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind == "default":
        return Rope(base, size, interleaved)
    factor = parameters.positive("factor", 1.0)
    if not (1 < base <= MAX_ROPE_BASE and 0 < size <= min(head_size, MAX_HEAD_SIZE)):
        raise said.refused(f"rotary embeddings stretched by {factor}, with a base of {base} and {size} features")
    trained = parameters.size("original_max_position_embeddings", said.whole("max_position_embeddings", 2048))
    pairs = size // 2
    if kind == "linear":
        return Rope(base, size, interleaved, linear_factors(pairs, factor))
    if kind == "llama3":
        low, high = parameters.number("low_freq_factor", 1.0), parameters.number("high_freq_factor", 4.0)
        return Rope(base, size, interleaved, llama3_factors(base, pairs, factor, low, high, trained))
    if kind == "yarn":
        fast, slow = parameters.positive("beta_fast", 32.0), parameters.positive("beta_slow", 1.0)
        factors = yarn_factors(base, pairs, factor, fast, slow, trained, parameters.flag("truncate", True))
        return Rope(base, size, interleaved, factors, _yarn_magnitude(parameters, factor))
    message = f"{said.source!r} stretches rotary embeddings by {kind!r}"
    raise UnsupportedError("load_model", message, "known are linear, llama3 and yarn")


def _yarn_magnitude(parameters: Facts, factor: float) -> float:
    if parameters.has("attention_factor"):
        return parameters.number("attention_factor")
    scale, all_scale = parameters.number("mscale", 0.0), parameters.number("mscale_all_dim", 0.0)
    if scale > 0 and all_scale > 0:
        return yarn_magnitude(factor, scale) / yarn_magnitude(factor, all_scale)
    return yarn_magnitude(factor)


def _latent_magnitude(said: Facts) -> float:
    """The factor of the scores of latent attention whose rotary embedding is stretched."""
    parameters = said.record("rope_parameters") or said.record("rope_scaling")
    if parameters is None or parameters.text("rope_type", parameters.text("type", "default")) == "default":
        return 1.0
    weight = parameters.number("mscale_all_dim", 0.0)
    magnitude = yarn_magnitude(parameters.positive("factor", 1.0), weight) if weight else 1.0
    return magnitude * magnitude


# ---------------------------------------------------------------- experts, latent attention


def _experts(said: Facts, router: dict[str, Any]) -> Experts:
    name = next((name for name in ("n_routed_experts", "num_experts") if said.has(name)), "num_local_experts")
    size = said.whole("moe_intermediate_size", said.whole("intermediate_size"))
    if said.items("mlp_only_layers") or said.whole("decoder_sparse_step", 1) != 1:
        message = f"{said.source!r} has dense layers between those with experts"
        raise UnsupportedError("load_model", message, "take a model whose first layers alone are dense")
    groups = said.whole("n_group", 1) if said.text("topk_method", "noaux_tc") != "greedy" else 1
    return Experts(
        count=said.whole(name),
        chosen=said.whole("num_experts_per_tok", 2),
        size=size,
        first=said.whole("first_k_dense_replace", 0),
        shared_size=said.whole("n_shared_experts", 0) * size,
        scoring=router.get("scoring", "softmax"),
        renormalise=router.get("renormalise", False) or said.flag("norm_topk_prob", False),
        scale=said.number("routed_scaling_factor", 1.0),
        groups=groups,
        group_chosen=said.whole("topk_group", 1) if groups > 1 else 1,
        group_best=router.get("group_best", 1) if groups > 1 else 1,
    )


def _latent(said: Facts) -> Latent:
    return Latent(
        kv_rank=said.whole("kv_lora_rank"),
        q_rank=said.whole("q_lora_rank", 0),
        plain_size=said.whole("qk_nope_head_dim"),
        rope_size=said.whole("qk_rope_head_dim"),
        value_size=said.whole("v_head_dim"),
    )

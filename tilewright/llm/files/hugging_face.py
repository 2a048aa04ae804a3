"""A folder of Hugging Face: `config.json`, weights in safetensors, one file or several. In: the folder. Out:
the network over the mapped files. Names of weights are mapped to those of GGUF; experts that are saved one by one
become one weight, which takes memory."""

from __future__ import annotations

import os
import re
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.llm.files.facts import Facts
from tilewright.llm.files.hugging_face_config import FAMILIES, make_config
from tilewright.llm.files.loaded import LoadedModel
from tilewright.llm.network.model import Transformer
from tilewright.llm.network.weights import Weights
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.nn.formats.mapped import read_json
from tilewright.nn.formats.safetensors_file import safe_load
from tilewright.tensor.tensor import Tensor

_TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
# With norms after attention and feed-forward too, `post_attention_layernorm` is another norm.
_WITH_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_EXPERT_PARTS = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}
_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
_LAYER = re.compile(r"layers\.(\d{1,5})\.(.+)")
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d{1,5})\.(\w+)\.weight")


def load_folder(path: str, device: str | None = None, dtype: DType = dtypes.float32) -> LoadedModel:
    """The model of a folder; no weights are read yet, except experts that are saved one by one."""
    facts = read_json("load_model", os.path.join(path, "config.json"))
    family = facts.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        message = f"{path!r} is a model of the type {family!r}"
        raise UnsupportedError("load_model", message, f"take one of {', '.join(sorted(FAMILIES))}")
    config = make_config(Facts(facts, path), family, _end_tokens(path, facts))
    held = map_names(safe_load(path, device=device), config.has_post_norms, config.layer_count)
    model = Transformer(config, Weights(held, repr(path)), dtype)
    has_tokenizer = os.path.exists(os.path.join(path, "tokenizer.json"))
    return LoadedModel(model, config, facts, path if has_tokenizer else "", path)


def _end_tokens(path: str, facts: dict[str, Any]) -> tuple[int, ...]:
    """The end tokens of `generation_config.json`, where there is one, and of `config.json`."""
    beside = os.path.join(path, "generation_config.json")
    records = [read_json("load_model", beside), facts] if os.path.exists(beside) else [facts]
    found: list[int] = []
    for record in records:
        said = record.get("eos_token_id")
        found += [token for token in (said if isinstance(said, list) else [said]) if type(token) is int]
    return tuple(dict.fromkeys(found))


# ---------------------------------------------------------------- names


def map_names(
    tensors: dict[str, Tensor], has_post_norms: bool, layer_count: int
) -> dict[str, Tensor | QuantisedWeight]:
    """Weights by GGUF's names; what no network here uses is left out."""
    in_layer = _IN_LAYER | _WITH_POST_NORMS if has_post_norms else _IN_LAYER
    held: dict[str, Tensor | QuantisedWeight] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
        short = name[len(prefix) :]
        found = _LAYER.fullmatch(short)
        if found is None:
            if short in _TOP:
                held[_TOP[short]] = tensor
            continue
        layer, inner = int(found[1]), found[2]
        if layer >= layer_count:  # layers that predict further tokens are not part of the decoder
            continue
        expert = _EXPERT.fullmatch(inner)
        if expert is not None and expert[2] in _EXPERT_PARTS:
            joined = f"blk.{layer}.ffn_{_EXPERT_PARTS[expert[2]]}_exps.weight"
            experts.setdefault(joined, {})[int(expert[1])] = tensor
        else:
            held |= _inner_weights(layer, inner, tensor, in_layer)
    held |= {name: _joined(parts) for name, parts in experts.items()}
    return held


def _inner_weights(layer: int, inner: str, tensor: Tensor, in_layer: dict[str, str]) -> dict[str, Tensor]:
    """One weight of a layer, or the two that are saved as one."""
    prefix = f"blk.{layer}."
    if inner == "mlp.gate.e_score_correction_bias":
        return {prefix + "exp_probs_b.bias": tensor}
    if inner == "mlp.experts.down_proj":
        return {prefix + "ffn_down_exps.weight": tensor}
    if inner == "mlp.experts.gate_up_proj" and tensor.ndim == 3:
        half = tensor.shape[1] // 2
        return {prefix + "ffn_gate_exps.weight": tensor[:, :half], prefix + "ffn_up_exps.weight": tensor[:, half:]}
    module, _, kind = inner.rpartition(".")
    return {f"{prefix}{in_layer[module]}.{kind}": tensor} if module in in_layer else {}


def _joined(parts: dict[int, Tensor]) -> Tensor:
    """Experts 0, 1, ... as one weight. Where one is missing or has another shape, the first alone, whose shape is
    refused later."""
    ordered = [parts[number] for number in sorted(parts)]
    if sorted(parts) != list(range(len(parts))) or any(part.shape != ordered[0].shape for part in ordered):
        return ordered[0]
    return ordered[0].stack(*ordered[1:]).contiguous().realize()

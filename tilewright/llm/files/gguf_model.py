"""A language model in a GGUF file. In: a path. Out: the network over the mapped file, its weights quantised as they are
there. What a family means by its numbers and how its rotary embedding pairs features is in the tables here."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.llm.config import Config, Rope
from tilewright.llm.files.facts import Facts
from tilewright.llm.files.loaded import LoadedModel
from tilewright.llm.model import Transformer
from tilewright.llm.quantised.types import TYPES
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.llm.weights import Weights
from tilewright.nn.formats.gguf_file import GgufFile, GgufTensor, open_gguf, plain_tensor
from tilewright.nn.formats.mapped import Path, tensor_at
from tilewright.tensor.tensor import Tensor

# By architecture, what its files leave unsaid.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"interleaved": True},
}


def load_gguf(path: Path, device: str | None = None, dtype: DType = dtypes.float32) -> LoadedModel:
    """The model of a GGUF file; of its weights nothing is read yet."""
    file = open_gguf("load_model", path)
    check_types(file)
    facts = Facts(file.facts, file.path)
    architecture = facts.text("general.architecture")
    if architecture not in _FAMILIES:
        message = f"{file.path!r} is a model of the architecture {architecture!r}"
        raise UnsupportedError("load_model", message, f"take one of {', '.join(_FAMILIES)}")
    held = {each.name: _weight(file, each, device) for each in file.tensors}
    config = make_config(facts, architecture, held)
    model = Transformer(config, Weights(held, repr(file.path)), dtype)
    return LoadedModel(model, config, file.facts, "gguf", file.path)


def check_types(file: GgufFile) -> None:
    """Refuses a file with weights that cannot be decoded, before any of it is used."""
    for each in file.tensors:
        if each.kind.name not in TYPES:
            message = f"{file.path!r}: {each.name!r} has the type {each.kind.name}, which cannot be decoded"
            raise UnsupportedError("load_model", message, f"take a file of other types: {', '.join(TYPES)}")


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
    heads, hidden = own.whole("attention.head_count"), own.whole("embedding_length")
    if heads < 1:
        raise facts.refused(f"{heads} heads")
    head_size = own.whole("attention.key_length", hidden // heads)
    rope_size = own.whole("rope.dimension_count", head_size)
    return Config(
        architecture,
        vocab_size=_vocab_size(facts, own, held),
        hidden_size=hidden,
        layer_count=own.whole("block_count"),
        head_count=heads,
        kv_head_count=own.whole("attention.head_count_kv", heads),
        head_size=head_size,
        ffn_size=own.whole("feed_forward_length"),
        context_length=own.whole("context_length"),
        rope=_rope(own, rope_size, family, held),
        norm_eps=own.number("attention.layer_norm_rms_epsilon", 1e-5),
        is_tied="output.weight" not in held,
        end_tokens=_end_tokens(facts),
    )


def _vocab_size(facts: Facts, own: Facts, held: dict[str, Tensor | QuantisedWeight]) -> int:
    """Rows of the embedding: the tokenizer may know fewer tokens."""
    table = held.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise facts.refused("it has no 'token_embd.weight' of two axes")
    return table.shape[0]


def _rope(own: Facts, size: int, family: dict[str, Any], held: dict[str, Tensor | QuantisedWeight]) -> Rope:
    base = own.number("rope.freq_base", 10000.0)
    factors: tuple[float, ...] = ()
    table = held.get("rope_freqs.weight")
    if isinstance(table, Tensor) and table.ndim == 1 and table.shape[0] == size // 2:
        factors = tuple(float(value) for value in table.tolist())
    elif own.text("rope.scaling.type", "none") == "linear":
        factors = (own.number("rope.scaling.factor", 1.0),) * (size // 2)
    return Rope(base, size, family.get("interleaved", False), factors)


def _end_tokens(facts: Facts) -> tuple[int, ...]:
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return tuple(dict.fromkeys(facts.whole(name) for name in names if facts.has(name)))

"""The checkpoints of llama2.c, such as stories260K. In: a header of seven int32, then float32 weights in order.
Out: a model. The rotary tables at the end are not needed; a negative vocabulary says that the head is not tied."""

from __future__ import annotations

import struct

from tilewright.base.dtype import DType, dtypes
from tilewright.llm.files.loaded import LoadedModel
from tilewright.llm.network.config import Config, Rope
from tilewright.llm.network.model import Transformer
from tilewright.llm.network.weights import Weights
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.nn.formats.mapped import Path, bytes_of, damaged, tensor_at
from tilewright.tensor.tensor import Tensor

_HEADER = struct.Struct("<7i")
NORM_EPS = 1e-5
MAX_SIZE = 1 << 24  # of a width, a vocabulary or a context; a text read as sizes has larger ones


def load_stories(path: Path, device: str | None = None, dtype: DType = dtypes.float32) -> LoadedModel:
    """The model of a checkpoint whose weights are float32."""
    name, data = bytes_of("load_model", path)
    if data.nbytes < _HEADER.size:
        raise damaged("load_model", name, f"{data.nbytes} bytes, where a header has {_HEADER.size}")
    config = _config(name, _HEADER.unpack_from(data))
    held: dict[str, Tensor | QuantisedWeight] = {}
    start = _HEADER.size
    for tensor_name, shape in _layout(config):
        try:
            whole = tensor_at(data, start, dtypes.float32, shape, device)
        except ValueError as error:
            raise damaged("load_model", name, f"{tensor_name}: {error}") from error
        start += whole.nbytes()
        if "{}" in tensor_name:
            held |= {tensor_name.format(layer): whole[layer] for layer in range(config.layer_count)}
        elif tensor_name:
            held[tensor_name] = whole
    model = Transformer(config, Weights(held, repr(name)), dtype)
    return LoadedModel(model, config, {}, "", name)


def _config(name: str, header: tuple[int, ...]) -> Config:
    hidden, ffn, layers, heads, kv_heads, vocab, context = header
    if min(hidden, ffn, layers, heads, kv_heads, abs(vocab), context) < 1 or hidden % heads or max(header) > MAX_SIZE:
        reason = f"neither a GGUF file nor a checkpoint such as stories260K: it begins with the sizes {header}"
        raise damaged("load_model", name, reason, "give a GGUF file, or a folder with config.json and safetensors")
    rope = Rope(10000.0, hidden // heads, interleaved=True)
    return Config(
        "llama",
        vocab_size=abs(vocab),
        hidden_size=hidden,
        layer_count=layers,
        head_count=heads,
        kv_head_count=kv_heads,
        head_size=hidden // heads,
        ffn_size=ffn,
        context_length=context,
        rope=rope,
        norm_eps=NORM_EPS,
        is_tied=vocab > 0,
    )


def _layout(config: Config) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the order of the file; a name with {} is one tensor for all layers."""
    count, hidden, ffn = config.layer_count, config.hidden_size, config.ffn_size
    rows = config.kv_head_count * config.head_size
    found: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (config.vocab_size, hidden)),
        ("blk.{}.attn_norm.weight", (count, hidden)),
        ("blk.{}.attn_q.weight", (count, hidden, hidden)),
        ("blk.{}.attn_k.weight", (count, rows, hidden)),
        ("blk.{}.attn_v.weight", (count, rows, hidden)),
        ("blk.{}.attn_output.weight", (count, hidden, hidden)),
        ("blk.{}.ffn_norm.weight", (count, hidden)),
        ("blk.{}.ffn_gate.weight", (count, ffn, hidden)),
        ("blk.{}.ffn_down.weight", (count, hidden, ffn)),
        ("blk.{}.ffn_up.weight", (count, ffn, hidden)),
        ("output_norm.weight", (hidden,)),
    ]
    if not config.is_tied:
        tables = (2, config.context_length, config.head_size // 2)
        found += [("", tables), ("output.weight", (config.vocab_size, hidden))]
    return found

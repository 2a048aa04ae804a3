"""Files of language models that are damaged or made to take all memory: one of our errors, and no memory for them."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.issues.test_hostile_files import MEGABYTE, little_memory
from tests.llm.gguf_models import MODELS, random_model, write_model
from tests.llm.models import STORIES
from tilewright import Tensor, nn
from tilewright.base.errors import FileError, FileFormatError, StateError, UserError
from tilewright.llm.files.load import load_model
from tilewright.llm.network.model import Transformer

LIMIT = 16 * MEGABYTE


def is_loaded(path: Path) -> bool:
    """Whether a file is loaded; else it is one of our errors. Anything else fails the test."""
    try:
        assert isinstance(load_model(path).model, Transformer)
    except UserError:
        return False
    return True


# ---------------------------------------------------------------- GGUF


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek2"])
def test_mutated_headers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, name, random_model(name)[1])
    whole = path.read_bytes()
    header = len(whole) - sum(-(-tensor.nbytes() // 32) * 32 for tensor in random_model(name)[1].values())
    choose = random.Random(name)
    numbers = (0, 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
    refused = 0
    with little_memory(LIMIT):
        for _ in range(120):
            damaged = bytearray(whole)
            place = choose.randrange(header)
            if choose.random() < 0.5:
                damaged[place] ^= 1 << choose.randrange(8)
            elif choose.random() < 0.7:
                struct.pack_into("<Q", damaged, place, choose.choice(numbers))
            else:
                del damaged[place : place + choose.randrange(1, 40)]
            path.write_bytes(damaged)
            refused += not is_loaded(path)
    assert refused > 60  # the rest hit what nobody reads


def test_truncated_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, "llama", random_model("llama")[1])
    whole = path.read_bytes()
    for size in (0, 3, 4, 23, 24, 100, 1000, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:size])
        with little_memory(LIMIT), pytest.raises(UserError):
            load_model(path)


NONSENSE_FACTS: dict[str, dict[str, Any]] = {
    "2**32 - 1 layers": {"llama.block_count": 2**32 - 1},
    "no layers": {"llama.block_count": 0},
    "no heads": {"llama.attention.head_count": 0},
    "many heads": {"llama.attention.head_count": 2**31},
    "uneven heads": {"llama.attention.head_count": 3},
    "heads as a text": {"llama.attention.head_count": "four"},
    "no size": {"llama.embedding_length": None},
    "a huge size": {"llama.embedding_length": 2**32 - 1},
    "a huge head": {"llama.attention.key_length": 2**31},
    "odd rotary features": {"llama.rope.dimension_count": 7},
    "many rotary features": {"llama.rope.dimension_count": 2**31, "llama.rope.scaling.type": "linear"},
    "a negative base": {"llama.rope.freq_base": -1.0},
    "a base of infinity": {"llama.rope.freq_base": float("inf")},
    "an epsilon of NaN": {"llama.attention.layer_norm_rms_epsilon": float("nan")},
    "more experts than there are": {"llama.expert_count": 2**31, "llama.expert_used_count": 2},
    "experts chosen of none": {"llama.expert_count": 2, "llama.expert_used_count": 3},
    "no architecture": {"general.architecture": None},
    "a token that is a text": {"tokenizer.ggml.eos_token_id": "end"},
}


@pytest.mark.parametrize("name", sorted(NONSENSE_FACTS))
def test_facts_that_no_model_has(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    held = random_model("llama")[1]
    changes = NONSENSE_FACTS[name]
    if changes.pop("general.architecture", 0) is None:
        write_model(path, "llama", held)
        path.write_bytes(path.read_bytes().replace(b"general.architecture", b"general.architectura"))
    else:
        write_model(path, "llama", held, **changes)
    with little_memory(LIMIT), pytest.raises(UserError) as caught:
        load_model(path)
    assert caught.value.remedy


def test_tensors_that_are_missing_or_of_another_shape(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    held = random_model("llama")[1]
    for name in ("token_embd.weight", "blk.1.attn_q.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        write_model(path, "llama", {key: value for key, value in held.items() if key != name})
        with pytest.raises((StateError, FileFormatError), match=name):
            load_model(path)
        write_model(path, "llama", held | {name: Tensor(np.zeros((2, 3), np.float32))})
        with pytest.raises(StateError, match=r"\(2, 3\)|\(2, 32\)|expected"):
            load_model(path)


def test_an_offset_that_is_not_aligned(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    held = random_model("llama")[1]
    write_model(path, "llama", held)
    contents = bytearray(path.read_bytes())
    place = contents.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 2 * 8 + 4
    struct.pack_into("<Q", contents, place, struct.unpack_from("<Q", contents, place)[0] + 4)
    path.write_bytes(contents)
    with pytest.raises(FileFormatError, match="not a multiple of 32"):
        load_model(path)


# ---------------------------------------------------------------- the checkpoint of stories260K


def test_a_text_is_said_to_be_no_model(tmp_path: Path) -> None:
    """Not that it should be fetched again: it never was a model."""
    path = tmp_path / "notes.txt"
    path.write_text("root:x:0:0:root:/root:/bin/bash\n")
    with pytest.raises(FileFormatError, match=r"notes.txt.*neither a GGUF file nor a checkpoint") as caught:
        load_model(path)
    assert "give a GGUF file" in str(caught.value)


def test_checkpoints_of_nonsense(tmp_path: Path) -> None:
    whole = (STORIES / "stories260K.bin").read_bytes()
    path = tmp_path / "model.bin"
    choose = random.Random(1)
    with little_memory(LIMIT):
        for size in (0, 5, 27, 28, 1000, len(whole) // 2):
            path.write_bytes(whole[:size])
            assert not is_loaded(path)
        for _ in range(60):
            numbers = list(struct.unpack_from("<7i", whole))
            numbers[choose.randrange(7)] = choose.choice((0, -1, 3, 2**31 - 1, -(2**31), 2**20, 65))
            path.write_bytes(struct.pack("<7i", *numbers) + whole[28:])
            is_loaded(path)


# ---------------------------------------------------------------- folders of Hugging Face

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}},
    "gemma3_text": {"sliding_window": 4, "layer_types": ["full_attention"] * 2, "query_pre_attn_scalar": 8},
    "deepseek_v3": {
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 2,
        "topk_group": 1,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
}
NONSENSE: tuple[Any, ...] = (None, -1, 0, 0.5, 10**400, 2**31, "x", [], [1], {}, {"a": 1}, True, float("nan"), 1e308)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, _ = random_model("llama")
    layers = {
        f"model.layers.{number}.{name}": weight
        for number, layer in enumerate(model.layers)
        for name, weight in (
            ("input_layernorm.weight", layer.attention_norm.weight),
            ("post_attention_layernorm.weight", layer.ffn_norm.weight),
            *((f"self_attn.{part}_proj.weight", getattr(layer.attention, part).weight) for part in "qkvo"),
            *((f"mlp.{part}_proj.weight", getattr(layer.feed_forward, part).weight) for part in ("gate", "up", "down")),
        )
    }
    ends = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm.weight}
    nn.state.safe_save(layers | ends | {"lm_head.weight": model.head.weight}, tmp_path / "model.safetensors")
    return tmp_path


def plain_config(family: str) -> dict[str, Any]:
    config = MODELS["llama"][0]
    return {
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.layer_count,
        "num_attention_heads": config.head_count,
        "num_key_value_heads": config.kv_head_count,
        "head_dim": config.head_size,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **CONFIGS[family],
    }


def with_nonsense(said: dict[str, Any]) -> list[dict[str, Any]]:
    """The record with each value, and each value of a record inside, replaced by every kind of nonsense."""
    found = [said | {key: nonsense} for key in said for nonsense in NONSENSE]
    for key, inner in said.items():
        if isinstance(inner, dict):
            found += [said | {key: inner | {name: nonsense}} for name in inner for nonsense in NONSENSE]
    return found


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_configurations_of_nonsense(family: str, folder: Path) -> None:
    said = plain_config(family)
    path = folder / "config.json"
    path.write_text(json.dumps(said))
    assert is_loaded(folder) == (family == "llama")
    with little_memory(LIMIT):
        for record in with_nonsense(said):
            path.write_text(json.dumps(record))
            is_loaded(folder)


def test_folders_that_are_no_model(folder: Path, tmp_path: Path) -> None:
    path = folder / "config.json"
    with pytest.raises(FileError, match="No such file"):
        load_model(folder)
    for contents in ("", "{", "[]", "null", "[" * 100_000, '{"model_type": "llama"}', "\x00", '{"a": ' * 5000):
        path.write_text(contents)
        with pytest.raises(UserError):
            load_model(folder)
    path.write_text(json.dumps(plain_config("llama")))
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with little_memory(LIMIT), pytest.raises(FileFormatError):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileError, match="holds neither"):
        load_model(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError):
        load_model(tmp_path / "empty")

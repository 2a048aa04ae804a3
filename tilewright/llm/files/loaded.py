"""The record of a loaded file, of any format: the network, and the facts for its tokenizer."""

from __future__ import annotations

from typing import Any

from tilewright.base.records import record
from tilewright.llm.network.config import Config
from tilewright.llm.network.model import Transformer


@record
class LoadedModel:
    """A model from a file. `facts` is what the file says of it: the key-value pairs of a GGUF file, or `config.json`.
    `tokenizer_source` is what a tokenizer can be made from: "gguf" (the facts), the path of a folder with a
    `tokenizer.json`, or "" where the file has none."""

    model: Transformer
    config: Config
    facts: dict[str, Any]
    tokenizer_source: str
    path: str

"""What the server needs of a language model. In: a prompt as text, messages or tokens. Out: tokens, then text.

The server is written against these protocols; `llm/generator.py`, `llm/text.py` and the tokenizer satisfy them through
`Served` below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Running(Protocol):
    """A sequence in the generator: `tokens` grows with the steps until `finished` holds a reason."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def finished(self) -> str: ...
    @property
    def reused(self) -> int: ...
    def cancel(self) -> None: ...


class Writer(Protocol):
    """Tokens of one sequence to text that may be shown: whole characters, and no beginning of a stop string."""

    @property
    def stopped(self) -> bool: ...
    def push(self, token: int) -> str: ...
    def finish(self) -> str: ...


class ServedModel(Protocol):
    """A model with its tokenizer and generator. `encode`, `encode_chat` and `decode` are called from one thread,
    everything below them from another."""

    name: str
    context: int
    vocabulary: int
    slots: int

    def encode(self, text: str) -> list[int]: ...
    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...

    def writer(self, stops: Sequence[str]) -> Writer: ...
    def start(self, tokens: Sequence[int], sampling: Mapping[str, float | int | None], limit: int) -> Running: ...
    def step(self) -> bool: ...


__all__ = ["Running", "ServedModel", "Writer"]

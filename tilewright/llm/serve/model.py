"""What the server needs of a language model. In: a prompt as text, messages or tokens. Out: tokens, then text.

The server is written against these protocols; `llm/generator.py`, `llm/text.py` and the tokenizer satisfy them through
`Served` below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tilewright.base.errors import ConfigError, UnsupportedError, UserError
from tilewright.llm.files.load import load_model
from tilewright.llm.generator import Generator, Request
from tilewright.llm.sampling import Sampling
from tilewright.llm.slots import PIECES
from tilewright.llm.template import ChatTemplate, load_template, need_template
from tilewright.llm.text import TokenStream
from tilewright.llm.tokenizer import Tokenizer
from tilewright.llm.tokenizer_files import load_tokenizer

# A jitted call is recorded twice before it is replayed; prompts that are read in turns need some more.
WARM_TOKENS = 8


class Running(Protocol):
    """A sequence in the generator: `tokens` grows with the steps until `finished` holds a reason."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def finished(self) -> str: ...
    @property
    def reused(self) -> int: ...
    @property
    def error(self) -> UserError | None: ...
    def cancel(self) -> None: ...


class Writer(Protocol):
    """Tokens of one sequence to text that may be shown: whole characters, and no beginning of a stop string. `stopped`
    is the stop string that was found."""

    @property
    def stopped(self) -> str: ...
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

    def writer(self, stops: Sequence[str], continues: bool) -> Writer: ...
    def start(self, tokens: Sequence[int], sampling: Sampling, limit: int) -> Running: ...
    def step(self) -> bool: ...
    def warm_up(self) -> Iterator[None]: ...


class Served:
    """A generator with the tokenizer and the chat template of its model."""

    def __init__(self, name: str, generator: Generator, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.name = name
        self.context = generator.context
        self.vocabulary = generator.vocabulary
        self.slots = generator.slots
        self._generator = generator
        self._tokenizer = tokenizer
        self._template = template

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, begin=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return need_template(self._template, self.name).encode(self._tokenizer, messages)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens)

    def writer(self, stops: Sequence[str], continues: bool) -> TokenStream:
        return TokenStream(self._tokenizer, stops, continues)

    def start(self, tokens: Sequence[int], sampling: Sampling, limit: int) -> Request:
        return self._generator.submit(tokens, sampling, limit)

    def step(self) -> bool:
        return self._generator.step()

    def warm_up(self) -> Iterator[None]:
        """Run each size of a prompt's piece, then each size of a batch, so that it is recorded and compiled. Nothing
        else runs between two parts."""
        for size in PIECES:
            if size < self.context - WARM_TOKENS:
                self._run_all(1, size)
                yield
        rows = 2
        while rows // 2 < self.slots:
            self._run_all(min(rows, self.slots), 1)
            yield
            rows *= 2

    def _run_all(self, rows: int, size: int) -> None:
        """Prompts of a size that share no beginning, each continued by a few tokens."""
        prompts = [[(row + 1) % self.vocabulary] * size for row in range(rows)]
        limit = min(WARM_TOKENS, self.context - size)
        requests = [self._generator.submit(prompt, Sampling(), limit) for prompt in prompts]
        while any(not request.finished for request in requests):
            self._generator.step()


def open_served(path: str, device: str = "", shard: int = 1, slots: int = 8, context: int = 0) -> Served:
    """The model of a file or folder, with `slots` sequences of `context` tokens; 0: what the model was made for."""
    if not path:
        raise ConfigError("serve", "no model is named", "give the path of a GGUF file or of a Hugging Face folder")
    if shard != 1:
        raise UnsupportedError("serve", f"a model on {shard} devices", "leave --shard out")
    loaded = load_model(path, device or None)
    source: Mapping[str, Any] | str = loaded.facts if loaded.tokenizer_source == "gguf" else loaded.tokenizer_source
    tokenizer = load_tokenizer(source or Path(path).with_name("tok512.bin"))
    template = load_template(source, tokenizer) if source else None
    generator = Generator(loaded.model, slots=slots, context=context or None, end_tokens=tokenizer.end_tokens)
    return Served(Path(path).stem, generator, tokenizer, template)


__all__ = ["Running", "Served", "ServedModel", "Writer", "open_served"]

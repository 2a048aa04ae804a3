"""A model ready for conversations. In: the name of a model, and a device. Out: the network, its tokenizer, its chat
template and a generator, together. Chat, `generate` and the server all begin here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.base.errors import FileError
from tilewright.llm.files.load import load_model
from tilewright.llm.files.loaded import LoadedModel
from tilewright.llm.generator import Generator, Request
from tilewright.llm.registry import DEFAULT, find_model
from tilewright.llm.sampling import Sampling
from tilewright.llm.sharding import device_names, shard_model
from tilewright.llm.tokens.template import ChatTemplate, Message, load_template, need_template
from tilewright.llm.tokens.text import TokenStream
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.llm.tokens.tokenizer_files import load_tokenizer


class ChatModel:
    """A network with its tokenizer, its chat template (None where the model was not trained for conversations) and a
    generator."""

    def __init__(
        self, name: str, loaded: LoadedModel, tokenizer: Tokenizer, template: ChatTemplate | None, generator: Generator
    ) -> None:
        self.name = name
        self.loaded = loaded
        self.tokenizer = tokenizer
        self.template = template
        self.generator = generator

    def encode(self, text: str) -> list[int]:
        """The tokens of a text to continue. The spelling of a control token stays text."""
        found = self.tokenizer.encode(text, begin=True)
        if not found and self.tokenizer.bos is not None:
            return [self.tokenizer.bos]
        return found

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[int]:
        """The tokens of a conversation, up to where the answer begins."""
        return need_template(self.template, self.name).encode(self.tokenizer, messages, tools=tools)

    def stream(self, request: Request, stop: Iterable[str] = (), continues: bool = False) -> Iterator[str]:
        """The text of a request, piece by piece, while it is generated. A stop string ends the request, and so does
        closing the iterator or cancelling the request."""
        writer = TokenStream(self.tokenizer, stop, continues)
        shown = 0
        try:
            while True:
                while shown < len(request.tokens) and not writer.stopped:
                    piece = writer.push(request.tokens[shown])
                    shown += 1
                    if piece:
                        yield piece
                if writer.stopped:
                    request.finish("stop")
                if request.finished:
                    break
                self.generator.step()
            rest = writer.finish()
            if rest:
                yield rest
        finally:
            request.cancel()
        if request.error is not None:
            raise request.error

    def answer(self, messages: Sequence[Message], sampling: Sampling | None = None, limit: int | None = None) -> str:
        """The whole answer to a conversation."""
        request = self.generator.submit(self.encode_chat(messages), sampling, limit)
        return "".join(self.stream(request))


def open_model(
    name: str = "",
    *,
    device: str | None = None,
    shard: int = 1,
    context: int | None = None,
    slots: int = 1,
    progress: bool = True,
) -> ChatModel:
    """A model by its name, `hf:owner/repository/file` or path; fetched where it is not here yet. `shard` divides its
    weights among that many devices."""
    loaded = load_model(find_model(name, progress), device)
    model = shard_model(loaded.model, device_names(loaded.model.device, shard))
    tokenizer = load_tokenizer(_tokenizer_source(loaded))
    template = load_template(_tokenizer_source(loaded), tokenizer)
    ends = tokenizer.end_tokens | frozenset(loaded.config.end_tokens)
    generator = Generator(model, slots=slots, context=context, end_tokens=ends)
    return ChatModel(name or DEFAULT, loaded, tokenizer, template, generator)


def _tokenizer_source(loaded: LoadedModel) -> dict[str, Any] | Path:
    """The facts or the path with the tokenizer and the template. A model of llama2.c has them in a file beside it."""
    if loaded.tokenizer_source == "gguf":
        return loaded.facts
    if loaded.tokenizer_source:
        return Path(loaded.tokenizer_source)
    beside = Path(loaded.path).with_name(f"tok{loaded.config.vocab_size}.bin")
    if not beside.is_file():
        raise FileError("tokenizer", f"{loaded.path!r} has no tokenizer", f"put {beside.name} beside it")
    return beside

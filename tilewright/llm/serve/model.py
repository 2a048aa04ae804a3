"""The interface between the server and a language model. In: a prompt as text, messages or tokens. Out: tokens, then
text.

The server is written against these protocols; `llm/generator.py`, `llm/tokens/text.py` and the tokenizer satisfy them
through `Served` below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tilewright.base.errors import UserError
from tilewright.llm.chat_model import ChatModel, open_model
from tilewright.llm.generator import Request
from tilewright.llm.sampling import Sampling
from tilewright.llm.slots import PIECES
from tilewright.llm.tokens.text import TokenStream

# A jitted call is recorded twice before it is replayed, and a step may go to another one.
WARM_CALLS = 4
# A question with a chat template around it has about this many tokens.
COMMON_PIECE = 32


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
    """A model that was opened for chat. Its name is that of its file, without the folder."""

    def __init__(self, chat: ChatModel) -> None:
        self.name = Path(chat.name).stem if Path(chat.name).exists() else chat.name
        self.context = chat.generator.context
        self.vocabulary = chat.generator.vocabulary
        self.slots = chat.generator.slots
        self.encode = chat.encode
        self.encode_chat = chat.encode_chat
        self.decode = chat.tokenizer.decode
        self.start = chat.generator.submit
        self.step = chat.generator.step
        self._tokenizer = chat.tokenizer

    def writer(self, stops: Sequence[str], continues: bool) -> TokenStream:
        return TokenStream(self._tokenizer, stops, continues)

    def warm_up(self) -> Iterator[None]:
        """Run each size of a prompt's piece and each size of a batch until it is recorded and compiled, one step at a
        time. The sizes that a single client needs come first."""
        for size in sorted(PIECES, key=lambda size: abs(size - COMMON_PIECE)):
            if size + WARM_CALLS < self.context:
                for number in range(WARM_CALLS):
                    # They have the same first token, so all are put into one slot; the others differ, so none is
                    # reused.
                    prompt = [0, *[(number + 1) % self.vocabulary] * (size - 1)]
                    yield from self._run(self.start(prompt, Sampling(), WARM_CALLS))
        yield from self._run(*map(self._start_row, range(self.slots)))
        for number in range(WARM_CALLS):
            # Of two equal prompts, the second copies what the first has computed.
            prompt = [number % self.vocabulary] * min(2 * PIECES[0], self.context - 1)
            yield from self._run(*(self.start(prompt, Sampling(), 1) for _ in range(2)))

    def _start_row(self, number: int) -> Request:
        """A request of a batch that shrinks: the half of the rows that is last ends first, then the half of the rest.
        The slot that has been used, the first, is taken last."""
        row = (number + 1) % self.slots
        halvings = (self.slots - 1).bit_length() - row.bit_length()
        drawn = Sampling(temperature=1.0, seed=number)
        return self.start([(number + 1) % self.vocabulary], drawn, min(WARM_CALLS * (halvings + 1), self.context - 1))

    def _run(self, *requests: Request) -> Iterator[None]:
        while any(not request.finished for request in requests):
            self.step()
            yield


def open_served(name: str, device: str = "", shard: int = 1, slots: int = 8, context: int = 0) -> Served:
    """The model that `open_model` finds, with `slots` sequences of `context` tokens; 0: what it was made for."""
    return Served(open_model(name, device=device or None, shard=shard, slots=slots, context=context or None))

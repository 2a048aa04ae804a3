"""Generation. In: prompts as tokens, with how to choose the next one. Out: tokens, step by step. Stands over the
network and below chat and server, which both call `step` until what they wait for is finished.

A request has a slot, a row of the cache. A new one takes the slot that holds the longest beginning of its prompt,
copies what another slot holds of it beyond that, and computes the rest: the next message of a conversation costs only
its own tokens, and instructions that all conversations begin with are computed once. A step is one piece of one prompt,
or one token of every running request; the two take turns, so a long prompt does not stop the others.

Tokens of a request depend on its prompt, its sampling and the model, not on what else runs: random numbers are its own.
What can differ is the last bits of logits, because a sum over one row and one over several rows are added in different
orders; where two tokens are equally probable to that accuracy, the choice between them may differ too."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tilewright.base.errors import ConfigError, GenerationError, UserError
from tilewright.base.records import field, mutable_record
from tilewright.llm.sampling import Sampler, Sampling

if TYPE_CHECKING:
    from tilewright.llm.network.model import Transformer
    from tilewright.llm.slots import Scores

DEFAULT_CONTEXT = 4096


class Request:
    """One text to continue. `tokens` grows until `finished` is "stop" (the model ended it), "length" (the limit, or the
    end of the context), "cancelled" or "error" (then `error` says why)."""

    def __init__(self, prompt: Sequence[int], sampling: Sampling, limit: int) -> None:
        self.prompt = tuple(prompt)
        self.sampling = sampling
        self.limit = limit
        self.tokens: list[int] = []
        self.finished = ""
        self.error: UserError | None = None
        self.reused = 0  # tokens of the prompt that a slot held already
        self.submitted_at = time.monotonic()
        self.first_token_at = 0.0
        self.finished_at = 0.0
        self.sampler = Sampler(sampling, self.prompt)

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def tokens_per_second(self) -> float:
        """The rate of the tokens after the first one; 0 where there are none."""
        seconds = (self.finished_at or time.monotonic()) - self.first_token_at
        return (len(self.tokens) - 1) / seconds if len(self.tokens) > 1 and seconds > 0 else 0.0

    def cancel(self) -> None:
        """Ends the request before the next step; one that is finished stays as it is. May come from any thread."""
        self.finish("cancelled")

    def finish(self, reason: str) -> None:
        if not self.finished:
            self.finished_at = time.monotonic()
            self.finished = reason


@mutable_record
class _Slot:
    """A row of the cache: the tokens whose keys and values it holds, and the request that runs on it."""

    row: int
    held: list[int] = field(default_factory=list)
    request: Request | None = None
    used_at: int = 0

    @property
    def pending(self) -> int:
        """How many tokens of the request are not in the cache yet; the last of them gives the next token."""
        return len(self.request.prompt) + len(self.request.tokens) - len(self.held) if self.request else 0

    def next_tokens(self, count: int) -> Sequence[int]:
        """The first of the pending ones."""
        if self.request is None:
            return ()
        start = len(self.held)
        prompt, tokens = self.request.prompt, self.request.tokens
        if start >= len(prompt):
            return tokens[start - len(prompt) : start - len(prompt) + count]
        return prompt[start : start + count]


class Generator:
    """Runs requests on a model, `slots` at once; more wait their turn. Not for several threads at once."""

    def __init__(
        self,
        model: Transformer,
        *,
        slots: int = 1,
        context: int | None = None,
        chunk: int = 128,
        end_tokens: Iterable[int] | None = None,
    ) -> None:
        """`context` is the maximum of tokens of a prompt and its answer; by default what the model was trained for, at
        most 4096. `chunk` is the maximum of tokens of a prompt in one step. `end_tokens` end an answer; by default
        those of the model's file."""
        from tilewright.llm.slots import Slots

        trained = model.config.context_length
        self.context = min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT) if context is None else context
        for name, value in (("slots", slots), ("context", self.context), ("chunk", chunk)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError("Generator", f"{name} is {value!r}", "give a whole number of at least 1")
        if trained and self.context > trained:
            message = f"a context of {self.context} tokens, where the model was made for {trained}"
            raise GenerationError("Generator", message, f"give at most {trained}")
        self.model = model
        self.vocabulary = model.config.vocab_size
        self.end_tokens = frozenset(model.config.end_tokens if end_tokens is None else end_tokens)
        self._chunk = chunk
        self._network = Slots(model, slots, self.context)
        self._slots = [_Slot(row) for row in range(slots)]
        self._waiting: deque[Request] = deque()
        self._steps = 0
        self._was_prompt = False  # whether the last step was a piece of a prompt

    @property
    def slots(self) -> int:
        return len(self._slots)

    # ---------------------------------------------------------------- requests

    def submit(self, tokens: Sequence[int], sampling: Sampling | None = None, limit: int | None = None) -> Request:
        """A request for at most `limit` tokens after these; without a limit up to the end of the context."""
        self._check_prompt(tokens)
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ConfigError("submit", f"the limit is {limit!r}", "give a whole number of at least 1")
        room = self.context - len(tokens)
        request = Request(tokens, sampling or Sampling(), room if limit is None else min(limit, room))
        self._waiting.append(request)
        return request

    def _check_prompt(self, tokens: Sequence[int]) -> None:
        if not len(tokens):
            raise GenerationError("submit", "the prompt has no tokens", "give at least one, such as the model's first")
        wrong = [token for token in tokens if not 0 <= token < self.vocabulary]
        if wrong:
            message = f"token {wrong[0]} is outside the vocabulary of {self.vocabulary}"
            raise GenerationError("submit", message, "use the tokenizer of this model")
        if len(tokens) >= self.context:
            message = f"the prompt has {len(tokens)} tokens, and the context holds {self.context} with the answer"
            trained = self.model.config.context_length or self.context
            longer = f", or a longer context, up to {trained}" if trained > self.context else ""
            raise GenerationError("submit", message, f"use a shorter prompt, or a new conversation{longer}")

    def step(self) -> bool:
        """One piece of a prompt, or one token of every running request. False where there is nothing to do."""
        self._release()
        self._admit()
        prompts = [slot for slot in self._slots if slot.request and slot.pending > 1]
        running = [slot for slot in self._slots if slot.request and slot.pending == 1]
        if not prompts and not running:
            return False
        self._steps += 1
        self._was_prompt = bool(prompts) and not (running and self._was_prompt)
        chosen = [min(prompts, key=lambda slot: slot.used_at)] if self._was_prompt else running
        try:
            self._take_piece(chosen[0]) if self._was_prompt else self._take_token(chosen)
        except BaseException:
            # Contents of the cache after the counted tokens do not matter.
            for slot in chosen:
                if slot.request:
                    slot.request.finish("error")
            raise
        self._release()
        return True

    def run(self, request: Request) -> list[int]:
        """Steps until the request is finished, and its tokens. Raises what went wrong with it."""
        while not request.finished and self.step():
            pass
        if request.error is not None:
            raise request.error
        return request.tokens

    # ---------------------------------------------------------------- slots

    def _release(self) -> None:
        for slot in self._slots:
            if slot.request is not None and slot.request.finished:
                slot.request = None
        if any(request.finished for request in self._waiting):
            self._waiting = deque(request for request in self._waiting if not request.finished)

    def _admit(self) -> None:
        while self._waiting and (free := [slot for slot in self._slots if slot.request is None]):
            request = self._waiting.popleft()
            slot = max(free, key=lambda slot: _preference(slot, request))
            reused = _common(slot.held, request.prompt)
            request.reused = reused
            del slot.held[reused:]
            slot.request = request
            slot.used_at = self._steps

    def _take_piece(self, slot: _Slot) -> None:
        """A piece of a prompt; its end gives the first token of the answer."""
        from tilewright.llm.slots import piece_size

        self._copy_beginning(slot)
        pending = slot.pending
        piece = slot.next_tokens(piece_size(pending, self._chunk))
        scores = self._network.run_one(slot.row, piece, len(slot.held))
        slot.held += piece
        slot.used_at = self._steps
        if len(piece) == pending:
            self._choose(slot, scores, 0)

    def _copy_beginning(self, slot: _Slot) -> None:
        """Copies the beginning of a prompt that another slot holds, where that saves the smallest piece."""
        from tilewright.llm.slots import PIECES

        request = slot.request
        assert request is not None
        other = max(self._slots, key=lambda other: _common(other.held, request.prompt))
        held, count = len(slot.held), _common(other.held, request.prompt)
        if count - held >= PIECES[0]:
            self._network.copy(other.row, slot.row, range(held, count))
            slot.held += request.prompt[held:count]
            request.reused += count - held

    def _take_token(self, running: list[_Slot]) -> None:
        """One token of every running request. Where there are several, all rows up to the last of them run: what a row
        without a running request computes is written after the tokens it holds, and is not read."""
        if len(running) == 1:
            (slot,) = running
            rows = {slot.row: 0}
            scores = self._network.run_one(slot.row, slot.next_tokens(1), len(slot.held))
        else:
            count = self._batch(max(slot.row for slot in running) + 1)
            rows = {row: row for row in range(count)}
            tokens, positions = [0] * count, [min(len(slot.held), self.context - 1) for slot in self._slots[:count]]
            for slot in self._slots[:count]:
                del slot.held[self.context - 1 :]
            for slot in running:
                (tokens[slot.row],) = slot.next_tokens(1)
            scores = self._network.run_many(tokens, positions)
        for slot in running:
            slot.held += slot.next_tokens(1)
            slot.used_at = self._steps
            self._choose(slot, scores, rows[slot.row])

    def _batch(self, rows: int) -> int:
        """How many rows run together: a power of two, so that few sizes are recorded, or all."""
        return min(1 << (rows - 1).bit_length(), len(self._slots))

    def _choose(self, slot: _Slot, scores: Scores, row: int) -> None:
        request = slot.request
        if request is None or request.finished:
            return
        try:
            token = request.sampler.choose_from(scores, row)
        except UserError as error:
            request.error = error
            request.finish("error")
            return
        if not request.first_token_at:
            request.first_token_at = time.monotonic()
        if token in self.end_tokens:
            request.finish("stop")
            return
        request.tokens.append(token)
        if len(request.tokens) >= request.limit:
            request.finish("length")


def _preference(slot: _Slot, request: Request) -> tuple[int, bool, int, int]:
    """Prefers the longest common beginning, then a slot that holds nothing, the one unused longest, the first."""
    return _common(slot.held, request.prompt), not slot.held, -slot.used_at, -slot.row


def _common(held: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens both begin with. At least one of the prompt is computed again: its logits are not kept."""
    count = 0
    for a, b in zip(held, prompt[:-1]):
        if a != b:
            break
        count += 1
    return count

"""Answers in OpenAI's form. In: the events of the jobs of one request. Out: one JSON object, or server-sent events.

A request with several prompts or choices has one job for each; `index` numbers them, prompt by prompt."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.base.version import __version__
from tilewright.llm.serve.errors import ApiError
from tilewright.llm.serve.worker import End, Event, Failure, Piece

# A comment that keeps proxies from closing a stream whose request waits, and finds clients that are gone.
KEEP_ALIVE = b": waiting\n\n"
KEEP_ALIVE_SECONDS = 10.0
DONE = b"data: [DONE]\n\n"


class Channel:
    """Carries events of jobs from the worker's thread to a coroutine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def put(self, index: int, event: Event) -> None:
        """Called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))
        except RuntimeError:
            # The loop has been closed: the server has stopped, and nobody reads any more.
            return

    async def get(self) -> tuple[int, Event]:
        return await self._events.get()


@dataclass
class Choice:
    """The events of one job so far."""

    text: str = ""
    tokens: int = 0
    reused: int = 0
    reason: str = ""


@dataclass
class Answer:
    """One request's answer while it grows. `before` is the text that `echo` puts before each choice; `each` is the
    number of choices of a prompt, whose tokens are counted once."""

    model: str
    chat: bool
    prompt_tokens: int
    before: Sequence[str]
    each: int = 1
    include_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    choices: list[Choice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.choices = [Choice(text) for text in self.before]

    @property
    def is_complete(self) -> bool:
        return all(choice.reason for choice in self.choices)

    def add(self, index: int, event: Event) -> None:
        """Adds one event; a failure is raised."""
        choice = self.choices[index]
        if isinstance(event, Failure):
            raise event.error
        choice.tokens = event.tokens
        if isinstance(event, Piece):
            choice.text += event.text
        else:
            choice.reason = event.reason
            choice.reused = event.reused

    async def collect(self, channel: Channel) -> dict[str, Any]:
        """Wait for all jobs, and return the whole answer."""
        while not self.is_complete:
            self.add(*await channel.get())
        choices = [self._whole(index, choice) for index, choice in enumerate(self.choices)]
        return {**self._head("chat.completion" if self.chat else "text_completion", choices), "usage": self.usage()}

    async def stream(self, channel: Channel) -> AsyncGenerator[bytes]:
        """Server-sent events as they come, with usage at the end where it was asked for."""
        for index, text in enumerate(self.before):
            if self.chat or text:
                yield self._chunk(index, text, first=True)
        waiting: asyncio.Task[tuple[int, Event]] | None = None
        try:
            while not self.is_complete:
                waiting = waiting or asyncio.ensure_future(channel.get())
                await asyncio.wait({waiting}, timeout=KEEP_ALIVE_SECONDS)
                if not waiting.done():
                    yield KEEP_ALIVE
                    continue
                index, event = waiting.result()
                waiting = None
                self.add(index, event)
                if isinstance(event, Piece):
                    yield self._chunk(index, event.text)
                elif isinstance(event, End):
                    yield self._chunk(index, "", last=event)
            if self.include_usage:
                yield encode_event({**self._head(self._chunk_kind, []), "usage": self.usage()})
            yield DONE
        except ApiError as error:
            # The status has been sent; OpenAI's clients raise what such an event holds.
            yield encode_event(error.body())
        finally:
            if waiting is not None:
                waiting.cancel()

    def usage(self) -> dict[str, Any]:
        generated = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": sum(choice.reused for choice in self.choices[:: self.each])},
        }

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"tilewright-{__version__}",
            "choices": choices,
        }

    def _whole(self, index: int, choice: Choice) -> dict[str, Any]:
        if self.chat:
            message = {"role": "assistant", "content": choice.text, "refusal": None}
            return {"index": index, "message": message, "logprobs": None, "finish_reason": choice.reason}
        return {"index": index, "text": choice.text, "logprobs": None, "finish_reason": choice.reason}

    def _chunk(self, index: int, text: str, *, first: bool = False, last: End | None = None) -> bytes:
        choice: dict[str, Any] = {"index": index}
        if not self.chat:
            choice["text"] = text
        elif first:
            choice["delta"] = {"role": "assistant", "content": ""}
        else:
            choice["delta"] = {} if last else {"content": text}
        choice |= {"logprobs": None, "finish_reason": last.reason if last else None}
        head = self._head(self._chunk_kind, [choice])
        return encode_event({**head, "usage": None} if self.include_usage else head)


def encode_event(data: dict[str, Any]) -> bytes:
    """One server-sent event; JSON in one line holds no line break that would end it early."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data: {text}\n\n".encode()

"""What the tests of the server share: a stand-in for a model, a server on a free port, and raw connections to it.

The stand-in follows the protocol of llm/serve/model.py with bytes as tokens and counts what a real model cannot show:
steps, the sequences of each, slots that are still held. `test_serve_stories.py` runs the real generator."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tilewright.base.errors import UserError
from tilewright.llm.sampling import Sampling
from tilewright.llm.serve.app import Service
from tilewright.llm.serve.model import ServedModel
from tilewright.llm.serve.server import Server, bind_socket
from tilewright.llm.serve.settings import Settings

END = 256
WAIT_SECONDS = 300.0
# One client for all requests, because each makes an SSL context; it keeps no connection.
HTTP = httpx.Client(timeout=WAIT_SECONDS, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass(eq=False)
class Sequence256:
    """A sequence of the stand-in."""

    owner: StandIn
    answer: bytes
    limit: int
    tokens: list[int] = field(default_factory=list)
    finished: str = ""
    reused: int = 0
    error: UserError | None = None

    def cancel(self) -> None:
        self.end("cancelled")

    def end(self, reason: str) -> None:
        self.finished = reason
        self.owner.active.remove(self)


class ByteWriter:
    """Bytes to text, with stop strings, one character at a time."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.text = ""
        self.shown = 0
        self.stopped = ""

    def push(self, token: int) -> str:
        self.text += chr(token)
        for stop in self.stops:
            if stop in self.text:
                self.text = self.text[: self.text.index(stop)]
                self.stopped = stop
        held = 0 if self.stopped else max([0, *map(len, self.stops)])
        return self._show(len(self.text) - held)

    def finish(self) -> str:
        return self._show(len(self.text))

    def _show(self, end: int) -> str:
        piece = self.text[self.shown : end] if end > self.shown else ""
        self.shown = max(self.shown, end)
        return piece


class StandIn:
    """A deterministic model: it answers a prompt with its last line, upper case (or what `answer` makes of it), and
    then ends.

    `pause` is slept in each step, for tests in which something must happen while a sequence runs. A prompt with the
    word `endless` is answered up to the limit; `fails` makes that many steps raise.
    """

    name = "stand-in"
    context = 2048
    vocabulary = 257

    def __init__(self, slots: int = 4, pause: float = 0.0) -> None:
        self.slots = slots
        self.pause = pause
        self.fails = 0
        self.warm_parts = 0
        self.warmed = 0
        self.answer: Callable[[bytes], bytes] = bytes.upper
        self.active: list[Sequence256] = []
        self.samplings: list[Sampling] = []
        self.rows: list[int] = []

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode("\n".join(message["content"] for message in messages))

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()

    def writer(self, stops: Sequence[str], continues: bool) -> ByteWriter:
        del continues
        return ByteWriter(stops)

    def start(self, tokens: Sequence[int], sampling: Sampling, limit: int) -> Sequence256:
        assert len(self.active) < self.slots
        self.samplings.append(sampling)
        line = bytes(tokens).split(b"\n")[-1]
        sequence = Sequence256(self, b"endless " * limit if b"endless" in line else self.answer(line), limit)
        self.active.append(sequence)
        return sequence

    def warm_up(self) -> Iterator[None]:
        """Parts that take as long as `warm_parts` says."""
        for _ in range(self.warm_parts):
            time.sleep(0.02)
            self.warmed += 1
            yield

    def step(self) -> bool:
        time.sleep(self.pause)
        if self.fails:
            self.fails -= 1
            raise ArithmeticError("a step of the stand-in fails")
        self.rows.append(len(self.active))
        for sequence in list(self.active):
            if len(sequence.tokens) == len(sequence.answer):
                sequence.end("stop")
                continue
            sequence.tokens.append(sequence.answer[len(sequence.tokens)])
            if len(sequence.tokens) == sequence.limit:
                sequence.end("length")
        return bool(self.active)


@dataclass
class Running:
    """A server that accepts connections."""

    service: Service
    server: Server
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def connect(self) -> socket.socket:
        connection = socket.create_connection((self.host, self.port), timeout=WAIT_SECONDS)
        connection.settimeout(WAIT_SECONDS)
        return connection


@contextlib.contextmanager
def running_server(model: ServedModel, send_buffer: int = 0, **settings: Any) -> Iterator[Running]:
    """A server in a thread of this process. Leaving it stops it, and it must stop.

    `send_buffer` bounds what the system takes of an answer that nobody reads.
    """
    service = Service(model, Settings(port=0, **{"grace_seconds": 1.0, **settings}))
    started = threading.Event()
    server = Server(service, lambda address: started.set())
    with bind_socket(service.settings.host, 0) as listening:
        if send_buffer:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        host, port = listening.getsockname()[:2]
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            assert started.wait(WAIT_SECONDS)
            yield Running(service, server, host, port)
        finally:
            server.should_exit = True
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()


def ask_at_once(url: str, ask: Callable[[httpx.AsyncClient, int], Awaitable[str]], clients: int) -> list[str]:
    """What each client gets; all ask at the same time."""

    async def ask_all() -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(clients)))

    return asyncio.run(ask_all())


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


def post_bytes(body: bytes, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    """A request as it goes over a connection, which the server closes after its answer."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode() + body


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    received = b""
    while chunk := connection.recv(1 << 16):
        received += chunk
    return received

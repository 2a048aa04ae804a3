"""The server as a process. In: a service. Out: it runs until SIGINT or SIGTERM, and then stops within a known time.

uvicorn speaks HTTP; added to it are time limits for clients that are slow on purpose, and a stop that lets running
requests finish, ends them when their time is over, and never waits for a client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tilewright.base.errors import ConfigError
from tilewright.llm.serve.app import Service, make_app
from tilewright.llm.serve.guard import MAX_HEAD_BYTES

# For responses to be sent after the last request was cut.
FLUSH_SECONDS = 3
POLL_SECONDS = 0.05


def connection_protocol(read_seconds: float) -> type[H11Protocol]:
    """HTTP on one connection that closes it when the client does not send a whole head, or take what is sent, in time.

    The timers of uvicorn begin after the first request and restart with every byte, so a client that sends a byte
    now and then would hold a connection for as long as it likes.
    """

    class Connection(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_timer = stopped(self._head_timer)
            self._write_timer = stopped(self._write_timer)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self._write_timer or self.loop.call_later(read_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._write_timer = stopped(self._write_timer)

        def _watch_head(self) -> None:
            """Run the timer while no request is being served: a part of a head does not restart it."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._head_timer = stopped(self._head_timer)
            elif self._head_timer is None and not self.transport.is_closing():
                self._head_timer = self.loop.call_later(read_seconds, self.transport.abort)

    return Connection


def stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancels a timer; returns None, to be stored in its place."""
    if timer is not None:
        timer.cancel()
    return None


class Server(uvicorn.Server):
    """uvicorn's server with a bounded stop. A second signal stops at once."""

    def __init__(self, service: Service, tell: Callable[[str], None]) -> None:
        settings = service.settings
        config = uvicorn.Config(
            make_app(service),
            http=connection_protocol(settings.read_seconds),
            ws="none",
            lifespan="on",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            limit_concurrency=settings.connections,
            timeout_keep_alive=min(30, int(settings.read_seconds)),
            timeout_graceful_shutdown=FLUSH_SECONDS,
        )
        super().__init__(config)
        self.service = service
        self.tell = tell

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike uvicorn's, does not raise the signal again at the end: a requested stop is not a failure."""
        del sig, frame
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            self.tell(f"http://{address_of(sockets[0])}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for running requests for `grace_seconds`, while new ones are refused; then ends those that are left."""
        worker = self.service.worker
        worker.drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.service.settings.grace_seconds
        while worker.running and loop.time() < end and not self.force_exit:
            await asyncio.sleep(POLL_SECONDS)
        worker.cut()
        await super().shutdown(sockets)


def run_server(service: Service, listening: socket.socket, tell: Callable[[str], None]) -> None:
    """Serve until a signal. `tell` is given the address once connections are accepted."""
    Server(service, tell).run([listening])


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket on an address, or an error that says why there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            "serve", f"there is no address {host}: {error}", "give --host an address of this machine"
        ) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        remedy = "choose another with --port, or --port 0 for any free one"
        raise ConfigError("serve", f"cannot listen on {host} port {port}: {error.strerror}", remedy) from error
    return listening


def address_of(listening: socket.socket) -> str:
    """`127.0.0.1:8000`, or with brackets for IPv6."""
    name: tuple[Any, ...] = listening.getsockname()
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

"""What a server refuses, bounds and survives: the queue, time, size, key, host and origin, clients that leave, clients
that are slow on purpose, and a stop while requests run. With the stand-in model of `serving.py`."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.llm.serving import HTTP, Running, StandIn, post_bytes, read_all, running_server, wait_until
from tilewright.base.errors import ConfigError
from tilewright.llm.serve.settings import Settings, host_of

RESET = struct.pack("ii", 1, 0)


def complete(running: Running, **fields: Any) -> httpx.Response:
    return HTTP.post(f"{running.url}/v1/completions", json={"prompt": "abc", **fields})


def start_endless(running: Running) -> socket.socket:
    """A connection on which an answer without an end has begun to come."""
    connection = running.connect()
    connection.sendall(post_bytes(b'{"prompt": "endless", "stream": true}', "/v1/completions"))
    received = b""
    while b'"text"' not in received:
        received += connection.recv(4096)
    return connection


def test_the_queue_has_a_limit() -> None:
    one_slot = StandIn(slots=1, pause=0.01)
    with ThreadPoolExecutor(1) as pool, running_server(one_slot, queue=1) as running, start_endless(running):
        waiting = pool.submit(complete, running)
        wait_until(lambda: running.service.worker.waiting == 1)
        refused = complete(running)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        health = HTTP.get(f"{running.url}/health").json()
        assert (health["running"], health["waiting"]) == (1, 1)
        # The first one leaves, and the one that waited is served.
        running.service.worker.cancel(running.service.worker._running)
        assert waiting.result().json()["choices"][0]["text"] == "ABC"


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_client_that_leaves_frees_its_slot(how: str) -> None:
    model = StandIn(slots=1, pause=0.002)
    with running_server(model) as running:
        connection = start_endless(running)
        if how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if how == "half":
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        assert complete(running).json()["choices"][0]["text"] == "ABC"
        wait_until(lambda: model.active == [] and running.service.worker.running == 0)


def test_a_client_that_leaves_before_its_turn_leaves_the_queue() -> None:
    model = StandIn(slots=1, pause=0.002)
    with running_server(model) as running, start_endless(running):
        for stream in (b"true", b"false"):
            with running.connect() as connection:
                connection.sendall(post_bytes(b'{"prompt": "abc", "stream": %s}' % stream, "/v1/completions"))
                wait_until(lambda: running.service.worker.waiting == 1)
            wait_until(lambda: running.service.worker.waiting == 0)
        assert len(model.samplings) == 1, "the model never saw them"


def test_a_client_that_leaves_a_whole_answer_frees_its_slot() -> None:
    model = StandIn(slots=1, pause=0.002)
    with running_server(model) as running:
        with running.connect() as connection:
            connection.sendall(post_bytes(b'{"prompt": "endless"}', "/v1/completions"))
            wait_until(lambda: len(model.active) == 1)
        wait_until(lambda: model.active == [])


def test_time_limits() -> None:
    with running_server(StandIn(slots=1, pause=0.01), request_seconds=1.0) as running:
        answer = complete(running, prompt="endless").json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["text"].startswith("endless")
        assert 0 < answer["usage"]["completion_tokens"] < 2000


def test_a_request_whose_time_is_over_in_the_queue() -> None:
    with running_server(StandIn(slots=1, pause=0.01), request_seconds=1.0) as running:
        running.service.settings.__dict__["request_seconds"] = 60.0
        with start_endless(running):
            running.service.settings.__dict__["request_seconds"] = 0.05
            late = complete(running)
    assert late.status_code == 503
    assert late.json()["error"]["code"] == "timeout"
    assert "retry-after" in late.headers


def test_a_token_limit_of_the_server() -> None:
    with running_server(StandIn(), max_tokens=5) as running:
        assert complete(running, prompt="endless").json()["usage"]["completion_tokens"] == 5
        refused = complete(running, max_tokens=6)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "max_tokens"


def test_bodies_that_are_too_large() -> None:
    with running_server(StandIn(), max_body=1000) as running:
        assert complete(running, prompt="x" * 900).status_code == 200
        refused = complete(running, prompt="x" * 1000)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
        # Declared as small, or not declared: what comes is counted.
        with running.connect() as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
            assert b" 413 " in connection.recv(4096)


def test_a_body_that_does_not_come() -> None:
    with running_server(StandIn(), read_seconds=1.0) as running, running.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in read_all(connection)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: loc"])
def test_a_head_that_does_not_come_in_time(sent: bytes) -> None:
    """A byte now and then does not help: the connection is closed all the same."""
    with running_server(StandIn(), read_seconds=1.0) as running, running.connect() as connection:
        connection.sendall(sent)
        connection.settimeout(0.1)
        closed = False
        while not closed:
            try:
                if sent:
                    connection.sendall(b"a")
                closed = connection.recv(10) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
        wait_until(lambda: not running.server.server_state.connections)


def test_a_second_request_on_a_connection_has_its_own_time() -> None:
    with running_server(StandIn(pause=0.13), read_seconds=1.0) as running, httpx.Client() as client:
        for prompt in ("abcdefgh", "ij"):
            response = client.post(f"{running.url}/v1/completions", json={"prompt": prompt})
            assert response.json()["choices"][0]["text"] == prompt.upper()


def test_a_client_that_does_not_read_is_dropped() -> None:
    """The answer of many tokens does not fit into the buffers of the connection."""
    model = StandIn(slots=1)
    model.context = 1 << 20
    with running_server(model, read_seconds=1.0, send_buffer=4096) as running, running.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(post_bytes(b'{"prompt": "endless", "stream": true}', "/v1/completions"))
        wait_until(lambda: bool(running.server.server_state.connections))
        wait_until(lambda: not running.server.server_state.connections)
        wait_until(lambda: model.active == [])


def test_heads_that_are_too_large() -> None:
    with running_server(StandIn()) as running:
        for flood in (b"X-A: " + b"a" * 100_000, b"\r\n".join(b"X-%d: a" % index for index in range(20_000))):
            with running.connect() as connection:
                try:
                    connection.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\n")
                    connection.sendall(flood + b"\r\n\r\n")
                    assert read_all(connection).split()[1] in (b"400", b"431")
                except ConnectionError:
                    # The server has closed while the rest was being sent.
                    pass
        assert HTTP.get(f"{running.url}/health").status_code == 200


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 50_000, b'{"prompt": "x", "max_tokens": -5}', b"null", b""])
def test_hostile_bodies_are_answered(body: bytes) -> None:
    with running_server(StandIn()) as running, running.connect() as connection:
        connection.sendall(post_bytes(body, "/v1/completions"))
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"invalid_request_error"' in answer


def test_the_key() -> None:
    with running_server(StandIn(), api_key="secret-key") as running:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret-key"}, {"authorization": ""}):
            for path in ("/v1/models", "/metrics", "/v1/nowhere"):
                refused = HTTP.get(running.url + path, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        binary = HTTP.get(f"{running.url}/metrics", headers=[(b"authorization", b"Bearer \xff\xfe")])
        assert binary.status_code == 401
        for path in ("/v1/models", "/metrics"):
            headers = {"authorization": "Bearer secret-key"}
            assert HTTP.get(running.url + path, headers=headers).status_code == 200
        for path in ("/", "/health"):
            assert HTTP.get(running.url + path).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:99", 200), ("[::1]:8000", 200), ("evil.example", 421), ("localhost.evil", 421)],
)
def test_a_name_that_is_not_ours_is_refused(host: str, status: int) -> None:
    with running_server(StandIn()) as running:
        assert HTTP.get(f"{running.url}/health", headers={"host": host}).status_code == status


def test_pages_of_other_sites() -> None:
    with running_server(StandIn(), allowed_origins=("https://good.example",)) as running:
        url = f"{running.url}/v1/completions"
        for origin, status in (("https://evil.example", 403), ("null", 403), (running.url, 200)):
            response = HTTP.post(url, json={"prompt": "x"}, headers={"origin": origin})
            assert response.status_code == status
            assert "access-control-allow-origin" not in response.headers
        good = HTTP.post(url, json={"prompt": "x"}, headers={"origin": "https://good.example"})
        assert good.headers["access-control-allow-origin"] == "https://good.example"
        asks = {"origin": "https://good.example", "access-control-request-method": "POST"}
        assert HTTP.options(url, headers=asks).status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [{"port": 70000}, {"queue": -1}, {"max_body": 0}, {"api_key": "a b "}, {"api_key": "ä"}, {"read_seconds": 0.0}]
    + [{"allowed_origins": ("good.example",)}, {"allowed_origins": ("*",)}, {"request_seconds": float("nan")}],
)
def test_settings_that_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Settings(**wrong)


def test_a_server_that_others_reach_is_warned_of() -> None:
    assert Settings().warnings() == []
    assert Settings(host="::1").warnings() == []
    assert "no API key" in Settings(host="0.0.0.0").warnings()[0]
    assert Settings(host="0.0.0.0", api_key="x").warnings() == []
    open_host = Settings(host="0.0.0.0", api_key="x")
    assert open_host.accepts_host("any.example")
    named = Settings(host="0.0.0.0", api_key="x", allowed_hosts=("chat.example",))
    assert named.accepts_host("chat.example:443")
    assert not named.accepts_host("other.example")
    assert host_of("[::1]:80") == "::1"


def test_a_port_that_is_taken() -> None:
    with running_server(StandIn()) as running:
        from tilewright.llm.serve.server import bind_socket

        with pytest.raises(ConfigError, match="cannot listen"):
            bind_socket(running.host, running.port)


def test_a_model_that_fails_again_and_again_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model = StandIn()
    with running_server(model) as running:
        model.fails = 1000
        statuses = [complete(running).status_code for _ in range(4)]
        assert statuses == [500, 500, 500, 503]
        assert HTTP.get(f"{running.url}/health").status_code == 503
    assert "ArithmeticError" in caplog.text


PROGRAM = """
import sys
from tests.llm.serving import HTTP, StandIn
from tilewright.llm.serve.app import Service
from tilewright.llm.serve.server import bind_socket, run_server
from tilewright.llm.serve.settings import Settings
settings = Settings(port=0, grace_seconds=float(sys.argv[1]))
service = Service(StandIn(slots=1, pause=0.01), settings)
with bind_socket("127.0.0.1", 0) as listening:
    run_server(service, listening, lambda address: print(address, flush=True))
print("ended", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "grace", "prompt"),
    [
        (signal.SIGTERM, 60.0, "short but not over at once"),
        (signal.SIGTERM, 0.2, "endless"),
        (signal.SIGINT, 0.2, "endless"),
    ],
)
def test_a_signal_stops_the_server(number: int, grace: float, prompt: str) -> None:
    """A request that ends within its time of grace is served whole, another is cut and told why."""
    command = [sys.executable, "-c", PROGRAM, str(grace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            body = {"prompt": f"{prompt}", "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
                lines = response.iter_lines()
                first = next(lines)
                os.kill(process.pid, number)
                rest = "\n".join([first, *lines])
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, output, errors) == (0, "ended\n", "")
    if prompt == "endless":
        assert '"server_stopping"' in rest
    else:
        assert rest.rstrip().endswith("data: [DONE]")


def test_a_stopping_server_refuses() -> None:
    one_slot = StandIn(slots=1, pause=0.01)
    with (
        ThreadPoolExecutor(1) as pool,
        running_server(one_slot, grace_seconds=60.0) as running,
        start_endless(running),
    ):
        waiting = pool.submit(complete, running)
        wait_until(lambda: running.service.worker.waiting == 1)
        running.server.should_exit = True
        refused = waiting.result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
        assert complete(running).status_code == 503
        assert HTTP.get(f"{running.url}/health").json()["status"] == "stopping"

"""Many clients at once, some of whom leave: no request is lost, and nothing stays behind. Sequences that run at once
share the steps of the model. With the stand-in model of `serving.py`."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.llm.serving import HTTP, Running, StandIn, ask_at_once, running_server, wait_until
from tilewright.llm.serve.worker import Job

CLIENTS = 50


async def ask(client: httpx.AsyncClient, number: int) -> str:
    """What one client gets: every third one leaves after the first piece, every second one streams."""
    body = {"prompt": f"client number {number} asks", "stream": number % 2 == 0 or number % 3 == 0}
    if not body["stream"]:
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 200
        return str(response.json()["choices"][0]["text"])
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        received = ""
        async for line in response.aiter_lines():
            received += line
            if number % 3 == 0:
                return "left"
    return "".join(part.partition('"')[0] for part in received.split('"text":"')[1:])


def crowd(running: Running) -> None:
    answers = ask_at_once(running.url, ask, CLIENTS)
    for number, answer in enumerate(answers):
        assert answer == ("left" if number % 3 == 0 else f"CLIENT NUMBER {number} ASKS")


def test_fifty_clients_of_whom_some_leave() -> None:
    model = StandIn(slots=8, pause=0.0005)
    with running_server(model) as running:
        crowd(running)
        wait_until(lambda: model.active == [] and running.service.worker.running == 0)
        assert running.service.worker.waiting == 0
        assert max(model.rows) == 8
        wait_until(lambda: not running.server.server_state.tasks)
        wait_until(lambda: jobs_left() == 0)
        threads = threading.active_count()
        crowd(running)
        wait_until(lambda: jobs_left() == 0)
        assert threading.active_count() == threads
        reasons = {
            sample.labels["reason"]: sample.value
            for family in running.service.metrics.finished.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        }
        assert sum(reasons.values()) == 2 * CLIENTS, reasons
        assert reasons["stop"] >= 2 * (CLIENTS - 17)


def jobs_left() -> int:
    gc.collect()
    return sum(isinstance(found, Job) for found in gc.get_objects())


def test_sequences_that_run_at_once_share_steps() -> None:
    model = StandIn(slots=8, pause=0.002)
    with running_server(model) as running:
        body = {"prompt": "x" * 20, "n": 8}
        assert HTTP.post(f"{running.url}/v1/completions", json=body).status_code == 200
    assert model.rows == [8] * 21


def test_requests_come_before_what_is_compiled_ahead() -> None:
    model = StandIn()
    model.warm_parts = 50
    with running_server(model) as running:
        response = HTTP.post(f"{running.url}/v1/completions", json={"prompt": "x"})
        assert response.json()["choices"][0]["text"] == "X"
        assert model.warmed < 50, "it did not wait for the rest"
        assert HTTP.get(f"{running.url}/health").json()["warming_up"]
        wait_until(lambda: not running.service.worker.is_warming)
        assert model.warmed == 50


def test_a_part_that_cannot_be_compiled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(StandIn):
        def warm_up(self) -> Iterator[None]:
            yield None
            raise ArithmeticError("no such kernel")

    with running_server(Broken()) as running:
        wait_until(lambda: not running.service.worker.is_warming)
        assert HTTP.post(f"{running.url}/v1/completions", json={"prompt": "x"}).status_code == 200
    assert "no such kernel" in caplog.text

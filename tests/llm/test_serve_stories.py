"""The server over the real generator and real weights: stories260K. What it answers is what the stored text says, and
fifty clients, of whom some leave, lose no request and leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from tests.llm.models import STORIES
from tests.llm.serving import HTTP, Running, ask_at_once, running_server, wait_until
from tilewright import Tensor
from tilewright.llm.generator import Request
from tilewright.llm.serve.model import open_served
from tilewright.llm.serve.worker import Job
from tilewright.llm.slots import PIECES, Scores, Slots, piece_size

# The stored text spells line breaks as the vocabulary does.
STORY = (STORIES / "stories260K.greedy.txt").read_text().replace("<0x0A>", "\n")
CLIENTS = 50
SLOTS = 4


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    model = open_served(str(STORIES / "stories260K.bin"), slots=SLOTS, context=256)
    with running_server(model, warm_up=False) as running:
        yield running


def complete(running: Running, **fields: Any) -> dict[str, Any]:
    response = HTTP.post(f"{running.url}/v1/completions", json={"prompt": [1], "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_the_stored_story(served: Running) -> None:
    answer = complete(served, max_tokens=199)
    assert STORY.startswith(answer["choices"][0]["text"])
    assert answer["usage"]["completion_tokens"] == 199
    assert answer["choices"][0]["finish_reason"] == "length"


def test_the_official_client_streams_it(served: Running) -> None:
    import openai

    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:
        pieces = list(
            client.completions.create(
                model=served.service.model.name, prompt=[1], max_tokens=50, temperature=0, stream=True
            )
        )
    text = "".join(piece.choices[0].text for piece in pieces)
    assert len(text) > 50
    assert STORY.startswith(text)


def test_a_stop_string_ends_it(served: Running) -> None:
    until = STORY.index(".")
    answer = complete(served, max_tokens=199, stop=[STORY[until - 3 : until + 1]])["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert answer["text"] == STORY[: until - 3]


def test_a_seed_gives_the_same_text_again(served: Running) -> None:
    sampled = [complete(served, prompt="Once", max_tokens=20, temperature=1.0, seed=seed, n=2) for seed in (3, 3, 9)]
    texts = [[choice["text"] for choice in answer["choices"]] for answer in sampled]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    assert texts[0][0] != texts[0][1]


def test_the_beginning_of_a_prompt_is_not_computed_again(served: Running) -> None:
    first = complete(served, prompt="Once upon a time, there was a little girl", max_tokens=1)
    again = complete(served, prompt="Once upon a time, there was a little girl named", max_tokens=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1


def test_a_model_without_a_chat_template_says_so(served: Running) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    response = HTTP.post(f"{served.url}/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "template" in response.json()["error"]["message"]


@pytest.mark.parametrize("prompt", [[512], [-1], "", "word " * 300])
def test_prompts_that_cannot_run(served: Running, prompt: object) -> None:
    response = HTTP.post(f"{served.url}/v1/completions", json={"prompt": prompt})
    assert response.status_code in (200, 400)
    assert (response.status_code == 200) == (prompt == ""), "an empty text begins with the first token of the model"


async def ask(client: httpx.AsyncClient, number: int) -> str:
    """Every third client leaves in the middle of its answer."""
    leaves = number % 3 == 0
    body = {"prompt": [1], "temperature": 0, "max_tokens": 200 if leaves else 10 + number, "stream": leaves}
    if not leaves:
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer["usage"]["completion_tokens"] == 10 + number
        return str(answer["choices"][0]["text"])
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        async with contextlib.aclosing(lines):
            for _ in range(3 + number % 5):
                await anext(lines)
    return "left"


def test_fifty_clients_of_whom_some_leave(served: Running) -> None:
    answers = ask_at_once(served.url, ask, CLIENTS)
    for number, answer in enumerate(answers):
        assert answer == "left" if number % 3 == 0 else STORY.startswith(answer)
        assert len(answer) > 3
    worker = served.service.worker
    wait_until(lambda: worker.running == 0 and worker.waiting == 0)
    wait_until(lambda: not served.server.server_state.tasks)
    wait_until(lambda: objects_left() == 0)
    shared = served.service.metrics.registry.get_sample_value("tilewright_step_sequences_bucket", {"le": "2.0"})
    every = served.service.metrics.registry.get_sample_value("tilewright_step_sequences_count")
    assert shared is not None
    assert every is not None
    assert shared < every, "no step had more than two sequences"
    # A request after the crowd finds every slot free.
    assert len(complete(served, n=SLOTS, max_tokens=5)["choices"]) == SLOTS


def objects_left() -> int:
    gc.collect()
    return sum(isinstance(found, Job | Request) for found in gc.get_objects())


def test_every_size_is_run_ahead_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a prompt, a lone row, and batches of every size: each as often as it takes to be recorded. Seen at the
    calls of the network, which here compute nothing."""
    sizes: Counter[tuple[int, int]] = Counter()

    def note(rows: int, size: int) -> Any:
        sizes[rows, size] += 1
        logits = Tensor(np.eye(rows, 512, 7, np.float32))
        return Scores(logits, logits.argmax(-1), logits.max(-1))

    def note_one(slots: Slots, row: int, tokens: Sequence[int], position: int) -> Any:
        return note(1, 1 if len(tokens) == 1 else piece_size(len(tokens), PIECES[-1]))

    monkeypatch.setattr(Slots, "run_one", note_one)
    monkeypatch.setattr(Slots, "run_many", lambda self, tokens, positions: note(len(tokens), 1))
    model = open_served(str(STORIES / "stories260K.bin"), slots=6, context=256)
    assert sum(1 for _ in model.warm_up()) == sizes.total()
    assert set(sizes) == {(1, 1), *((1, size) for size in PIECES), (2, 1), (4, 1), (6, 1)}
    assert min(sizes.values()) >= 3

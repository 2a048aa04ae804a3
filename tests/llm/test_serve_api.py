"""The API of the server over HTTP, through the official client, with the stand-in model of `serving.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.llm.serving import HTTP, Running, StandIn, running_server, wait_until
from tilewright.llm.sampling import Sampling

if TYPE_CHECKING:
    import openai


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running_server(StandIn()) as running:
        yield running


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[openai.OpenAI]:
    import openai  # here, because importing it takes each worker of pytest a second

    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "be loud"}, {"role": "user", "content": "hello there"}]
    answer = client.chat.completions.create(model="stand-in", messages=messages)  # type: ignore[arg-type]
    (choice,) = answer.choices
    assert choice.message.content == "HELLO THERE"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (19, 11, 30)


def test_parts_of_a_message_are_joined(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="stand-in", messages=messages)  # type: ignore[arg-type,list-item]
    assert answer.choices[0].message.content == "ONE TWO"


def test_streamed_chat(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="stand-in",
            messages=[{"role": "user", "content": "stream me"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "STREAM ME"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) >= 9, "tokens are sent as they come"


def test_the_stream_ends_as_openai_ends_it(served: Running) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    response = HTTP.post(f"{served.url}/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    assert "usage" not in response.text


def test_stop_strings(client: openai.OpenAI) -> None:
    for stop in ("E T", ["nowhere", "E T"]):
        answer = client.completions.create(model="stand-in", prompt="the tree talks", stop=stop)
        assert answer.choices[0].text == "TH"
        assert answer.choices[0].finish_reason == "stop"
    pieces = client.completions.create(model="stand-in", prompt="the tree talks", stop="E T", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "TH"


def test_token_limits(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="stand-in", prompt="a long line", max_tokens=3)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("A L", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    messages = [{"role": "user", "content": "a long line"}]
    chat = client.chat.completions.create(model="stand-in", messages=messages, max_completion_tokens=2)  # type: ignore[arg-type]
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("A ", "length")


def test_several_prompts_and_choices(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="stand-in", prompt=["one", "two"], n=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, "ONE"),
        (1, "ONE"),
        (2, "TWO"),
        (3, "TWO"),
    ]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 12)
    tokens = client.completions.create(model="stand-in", prompt=[104, 105], echo=True)
    assert tokens.choices[0].text == "hiHI"
    pieces = list(client.completions.create(model="stand-in", prompt=["one", "two"], stream=True, echo=True))
    for index, text in enumerate(("oneONE", "twoTWO")):
        mine = [piece.choices[0].text for piece in pieces if piece.choices[0].index == index]
        assert "".join(mine) == text


def test_sampling_reaches_the_model(served: Running, client: openai.OpenAI) -> None:
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5}
    client.completions.create(model="stand-in", prompt="x", n=2, temperature=0.25, top_p=0.5, seed=7, extra_body=extra)
    samplings = served.service.model.samplings[-2:]  # type: ignore[attr-defined]
    expected = [Sampling(0.25, 5, 0.5, 0.1, 1.5, seed) for seed in (7, 8)]
    assert samplings == expected, "the choices of a request differ"


def test_models(client: openai.OpenAI) -> None:
    import openai

    assert [model.id for model in client.models.list()] == ["stand-in"]
    assert client.models.retrieve("stand-in").owned_by == "tilewright"
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("gpt-4")


def test_errors_of_the_client_are_the_official_ones(client: openai.OpenAI) -> None:
    import openai

    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-4", messages=messages)  # type: ignore[arg-type]
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="stand-in", messages=messages, logprobs=True)  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "logprobs")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="stand-in", prompt="x" * 2048)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="at once"):
        client.completions.create(model="stand-in", prompt="x", n=5)


def test_a_failing_step_is_an_error_and_the_server_goes_on(
    served: Running, client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    import openai

    model = served.service.model
    assert isinstance(model, StandIn)
    model.fails = 1
    with pytest.raises(openai.InternalServerError, match="ArithmeticError"):
        client.completions.create(model="stand-in", prompt="x")
    assert "a step of the model failed" in caplog.text
    model.fails = 1
    with pytest.raises(openai.APIError, match="ArithmeticError"):
        list(client.completions.create(model="stand-in", prompt="x", stream=True))
    assert client.completions.create(model="stand-in", prompt="x").choices[0].text == "X"
    assert model.active == []


def test_metrics_and_health(served: Running, client: openai.OpenAI) -> None:
    before = metric(served, "tilewright_generated_tokens_total")
    client.completions.create(model="stand-in", prompt="abc")
    assert metric(served, "tilewright_generated_tokens_total") - before == 3
    assert metric(served, 'tilewright_http_responses_total{path="/v1/completions",status="200"}') >= 1
    assert metric(served, "tilewright_slots") == 4
    wait_until(lambda: metric(served, "tilewright_running_sequences") == 0)
    assert HTTP.get(f"{served.url}/health").json() == {
        "status": "ok",
        "running": 0,
        "waiting": 0,
        "warming_up": False,
    }


def metric(served: Running, name: str) -> float:
    for line in HTTP.get(f"{served.url}/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"{name} is not among the metrics")


def test_the_page_is_whole_and_may_load_nothing(served: Running) -> None:
    response = HTTP.get(f"{served.url}/")
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http://" not in response.text.replace("http://www.w3.org/2000/svg", "")
    again = HTTP.get(f"{served.url}/", headers={"if-none-match": response.headers["etag"]})
    assert again.status_code == 304


def test_other_paths_and_methods(served: Running) -> None:
    for method, path, status in (("GET", "/nowhere", 404), ("GET", "/v1/completions", 405), ("DELETE", "/", 405)):
        response = HTTP.request(method, served.url + path)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"

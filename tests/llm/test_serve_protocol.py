"""Bodies of requests: what is taken, and what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.llm.sampling import Sampling
from tilewright.llm.serve.errors import ApiError
from tilewright.llm.serve.protocol import CompletionRequest, parse_json, parse_request

MESSAGE = {"role": "user", "content": "x"}


def chat(**fields: Any) -> CompletionRequest:
    return parse_request({"messages": [MESSAGE], **fields}, chat=True)


def test_defaults() -> None:
    request = chat()
    assert request.messages == ({"role": "user", "content": "x"},)
    assert request.sampling == Sampling(temperature=1.0, top_k=0)
    assert (request.limit, request.choices, request.stops, request.stream) == (None, 1, (), False)


def test_null_is_as_if_left_out() -> None:
    fields = ("temperature", "top_p", "n", "max_tokens", "stop", "seed", "stream", "tools", "logit_bias", "user")
    assert chat(**dict.fromkeys(fields)) == chat()


def test_values_that_ask_for_nothing_are_taken() -> None:
    harmless = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logprobs": False,
        "logit_bias": {},
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "user": "somebody",
        "metadata": {"a": "b"},
    }
    assert chat(**harmless) == chat()


def test_a_developer_is_the_system() -> None:
    body = {"messages": [{"role": "developer", "content": "rules"}, MESSAGE]}
    assert parse_request(body, chat=True).messages[0] == {"role": "system", "content": "rules"}


def test_numbers_of_openai_that_the_sampler_has_otherwise() -> None:
    assert chat(seed=-1).sampling.seed == (1 << 64) - 1
    assert 0 < chat(top_p=0).sampling.top_p <= 1e-6
    assert chat(seed=5.0, temperature=1).sampling == chat(seed=5, temperature=1.0).sampling


def test_the_smaller_limit_counts() -> None:
    assert chat(max_tokens=5, max_completion_tokens=3).limit == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [MESSAGE] * 4097}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [MESSAGE, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "root", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0]"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": 1 << 64}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": [5]}, "max_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "a" * 257}, "stop"),
        ({"stop": "\udc00"}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": [True]}, "stream_options"),
        ({"model": 5}, "model"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"best_of": True}, "best_of"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": "x"}, "prompt"),
        ({"tempreature": 0.5}, "tempreature"),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value),
)
def test_a_wrong_chat_names_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert caught.value.body()["error"]["type"] == "invalid_request_error"


def test_limits_are_said_in_whole_numbers() -> None:
    for fields, message in (
        ({"max_tokens": 0}, "max_tokens: must lie in 1 to 2147483648"),
        ({"temperature": 2.5}, "temperature: must lie in 0 to 2"),
        ({"stop": ["a"] * 17}, "stop: takes up to 16 strings of 1 to 256 characters"),
    ):
        with pytest.raises(ApiError) as caught:
            chat(**fields)
        assert caught.value.body()["error"]["message"] == message


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [
        ("x", ("x",)),
        ("", ("",)),
        (["x", "y"], ("x", "y")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["x", [1]], ("x", (1,))),
    ],
)
def test_prompts(prompt: object, parsed: object) -> None:
    assert parse_request({"prompt": prompt}, chat=False).prompts == parsed


@pytest.mark.parametrize("prompt", [None, 5, [], [[]], [True], [1.5], [None], {"a": 1}, [1, "x"], [[1, "x"]], [[[1]]]])
def test_wrong_prompts(prompt: object) -> None:
    with pytest.raises(ApiError, match="prompt"):
        parse_request({"prompt": prompt}, chat=False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'{"a": "\xc3"}', "not UTF-8"),
        (b"[]", "a JSON list"),
        (b"null", "a JSON null"),
        (b'"text"', "a JSON string"),
        (b'{"temperature": NaN}', "not a number in JSON"),
        (b'{"temperature": -Infinity}', "not a number in JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\x00", "not JSON"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
def test_bodies_that_are_no_object(body: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        parse_json(body)
    assert caught.value.code == "invalid_json"

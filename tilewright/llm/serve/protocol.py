"""Requests in OpenAI's form. In: the body of a request. Out: a `CompletionRequest`, or an ApiError that names a field.

Every field is either used, known to have no effect here, or refused: a client that asks for what the server does not
do is told so, and not given something else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.llm.sampling import Sampling
from tilewright.llm.serve.errors import ApiError, unsupported_field, wrong_field

MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_MESSAGES = 4096
# OpenAI's seeds are 64-bit integers, with a sign.
SEEDS = 1 << 64
# OpenAI takes a top_p of 0, which leaves the most probable token alone.
MIN_TOP_P = 1e-6


@dataclass(frozen=True)
class NumberField:
    """A field with a number: its bounds, and its default where it is left out or null."""

    low: float
    high: float
    default: float | int | None
    whole: bool = False


# The names that are not OpenAI's are those of other servers of local models.
SAMPLING_FIELDS: dict[str, NumberField] = {
    "temperature": NumberField(0.0, 2.0, 1.0),
    "top_p": NumberField(0.0, 1.0, 1.0),
    "top_k": NumberField(0, 1 << 31, 0, whole=True),
    "min_p": NumberField(0.0, 1.0, 0.0),
    "repetition_penalty": NumberField(0.1, 10.0, 1.0),
    "seed": NumberField(-SEEDS // 2, SEEDS // 2 - 1, None, whole=True),
}
COUNT_FIELDS: dict[str, NumberField] = {
    "n": NumberField(1, 128, 1, whole=True),
    "max_tokens": NumberField(1, 1 << 31, None, whole=True),
    "max_completion_tokens": NumberField(1, 1 << 31, None, whole=True),
}
# Fields that describe the caller, or how a service of many machines should treat the request.
WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
# Fields that are not supported, and the values of each that request nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
COMMON_FIELDS = frozenset({"model", "stream", "stream_options", "stop"}) | SAMPLING_FIELDS.keys() | COUNT_FIELDS.keys()
CHAT_FIELDS = COMMON_FIELDS | {"messages"}
TEXT_FIELDS = COMMON_FIELDS | {"prompt", "echo"}


@dataclass(frozen=True)
class CompletionRequest:
    """A parsed request. A chat has `messages`; a plain completion has `prompts`."""

    messages: tuple[dict[str, str], ...]
    prompts: tuple[str | tuple[int, ...], ...]
    model: str
    sampling: Sampling
    limit: int | None
    choices: int
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    echo: bool


def parse_json(body: bytes) -> dict[str, Any]:
    """The object that a body holds."""
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: byte {error.start}", code="invalid_json") from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from error
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(found, dict):
        raise ApiError(400, f"the body is a JSON {kind_of(found)}, not an object", code="invalid_json")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def parse_request(body: Mapping[str, Any], *, chat: bool) -> CompletionRequest:
    """Check every field of a body and gather what they ask for."""
    _check_names(body, CHAT_FIELDS if chat else TEXT_FIELDS)
    counts = {name: _number(body, name, field) for name, field in COUNT_FIELDS.items()}
    limits = [int(counts[name] or 0) for name in ("max_tokens", "max_completion_tokens") if counts[name] is not None]
    stream = _flag(body, "stream")
    options = _object(body, "stream_options")
    if options and not stream:
        raise wrong_field("stream_options", "is for requests with `stream: true` alone")
    if unknown := options.keys() - {"include_usage", "include_obfuscation"}:
        raise ApiError(400, f"unknown field stream_options.{min(unknown)}", code="unknown_parameter")
    return CompletionRequest(
        messages=_messages(body) if chat else (),
        prompts=() if chat else _prompts(body),
        model=_text(body, "model"),
        sampling=_sampling(body),
        limit=min(limits) if limits else None,
        choices=int(counts["n"] or 1),
        stops=_stops(body),
        stream=stream,
        include_usage=_flag(options, "include_usage"),
        echo=_flag(body, "echo"),
    )


def _sampling(body: Mapping[str, Any]) -> Sampling:
    given: dict[str, Any] = {name: _number(body, name, field) for name, field in SAMPLING_FIELDS.items()}
    given["top_p"] = max(given["top_p"], MIN_TOP_P)
    if given["seed"] is not None:
        given["seed"] %= SEEDS
    return Sampling(**given)


def _check_names(body: Mapping[str, Any], known: frozenset[str]) -> None:
    for name, value in body.items():
        if name in REFUSED:
            # `1 == True` in Python, and JSON tells them apart.
            meant = [one for one in REFUSED[name] if one == value and isinstance(one, bool) == isinstance(value, bool)]
            if value is not None and not meant:
                raise unsupported_field(name, "is not supported by this server; leave it out")
        elif name not in known and name not in WITHOUT_EFFECT:
            shown = name if len(name) <= 60 else name[:60] + "..."
            raise ApiError(400, f"unknown field {shown!r}", code="unknown_parameter", param=shown)


def _messages(body: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong_field("messages", f"must be a list of at least one message, not {kind_of(messages)}")
    if len(messages) > MAX_MESSAGES:
        raise wrong_field("messages", f"has {len(messages)} messages; at most {MAX_MESSAGES} are taken")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))


def _message(message: object, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise wrong_field(where, f"must be an object with `role` and `content`, not {kind_of(message)}")
    role = message.get("role")
    if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
        raise unsupported_field(where, "calls of tools are not supported by this server")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong_field(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    return {"role": ROLES[role], "content": _content(message.get("content"), f"{where}.content")}


def _content(content: object, where: str) -> str:
    """The text of a message: a string, or a list of parts that are text."""
    if isinstance(content, str):
        return _encodable(content, where)
    if not isinstance(content, list) or not content:
        raise wrong_field(where, f"must be a string or a list of parts, not {kind_of(content)}")
    parts = []
    for index, part in enumerate(content):
        here = f"{where}[{index}]"
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise wrong_field(here, "must be an object with a `type`")
        if part["type"] != "text":
            raise unsupported_field(
                here, f"parts of type {part['type'][:40]!r} are not supported; the model reads text"
            )
        if not isinstance(part.get("text"), str):
            raise wrong_field(f"{here}.text", f"must be a string, not {kind_of(part.get('text'))}")
        parts.append(_encodable(part["text"], here))
    return "".join(parts)


def _prompts(body: Mapping[str, Any]) -> tuple[str | tuple[int, ...], ...]:
    """A string, tokens, or a list of either."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return (_encodable(prompt, "prompt"),)
    if not isinstance(prompt, list) or not prompt:
        raise wrong_field("prompt", f"must be a string, a list of strings or a list of tokens, not {kind_of(prompt)}")
    if all(_is_token(one) for one in prompt):
        return (tuple(prompt),)
    found: list[str | tuple[int, ...]] = []
    for index, one in enumerate(prompt):
        if isinstance(one, str):
            found.append(_encodable(one, f"prompt[{index}]"))
        elif isinstance(one, list) and one and all(_is_token(token) for token in one):
            found.append(tuple(one))
        else:
            raise wrong_field(f"prompt[{index}]", f"must be a string or a list of tokens, not {kind_of(one)}")
    return tuple(found)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise wrong_field("stop", f"must be a string or a list of strings, not {kind_of(stop)}")
    if len(stops) > MAX_STOPS or any(not 0 < len(one) <= MAX_STOP_LENGTH for one in stops):
        raise wrong_field("stop", f"takes up to {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(_encodable(one, "stop") for one in stops)


def _number(body: Mapping[str, Any], name: str, field: NumberField) -> float | int | None:
    value = body.get(name)
    if value is None:
        return field.default
    if isinstance(value, bool) or not isinstance(value, int | float) or (field.whole and value != value // 1):
        raise wrong_field(name, f"must be {'a whole number' if field.whole else 'a number'}, not {kind_of(value)}")
    if not field.low <= value <= field.high:
        raise wrong_field(name, f"must lie in {_shown(field.low)} to {_shown(field.high)}")
    return int(value) if field.whole else float(value)


def _shown(limit: float) -> str:
    return str(int(limit)) if limit == int(limit) else f"{limit:g}"


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong_field(name, f"must be true or false, not {kind_of(value)}")
    return bool(value)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong_field(name, f"must be a string, not {kind_of(value)}")
    return value or ""


def _object(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise wrong_field(name, f"must be an object, not {kind_of(value)}")
    return value or {}


def _encodable(text: str, where: str) -> str:
    """JSON can spell half of a surrogate pair, which is not a character and has no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise wrong_field(where, f"holds half of a surrogate pair at {error.start}") from error
    return text


def kind_of(value: object) -> str:
    """JSON's name for the type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "list" if isinstance(value, list) else "object"

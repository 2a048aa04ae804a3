"""Traces as JSON. In: a `Trace`. Out: plain values, and the trace again. The names of the fields are those of the
records; a file that lacks one, or has another type in its place, is refused with the path of the field."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from pathlib import Path
from typing import Any

from tilewright.base.errors import FileError
from tilewright.debug.trace import records
from tilewright.debug.trace.records import FORMAT, Trace


def to_values(record: Any) -> Any:
    """Dictionaries and lists, as JSON has them."""
    if isinstance(record, tuple):
        return [to_values(part) for part in record]
    if dataclasses.is_dataclass(record):
        return {field.name: to_values(getattr(record, field.name)) for field in dataclasses.fields(record)}
    return record


def to_json(trace: Trace) -> str:
    return json.dumps(to_values(trace), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def write_trace(trace: Trace, path: Path) -> None:
    try:
        path.write_text(to_json(trace) + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise FileError(
            "trace", f"{path} cannot be written: {error.strerror}", "name a file in a folder of yours"
        ) from error


def read_trace(path: Path) -> Trace:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError("trace", f"{path} cannot be read: {error.strerror}", "name a file that exists") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FileError("trace", f"{path} is not JSON: {error}", "write it with `tilewright trace --json`") from error
    return from_values(values, str(path))


def is_trace(path: Path) -> bool:
    """Whether a file begins as a trace does, and not as a profile."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(64).lstrip().startswith('{"format"')


def from_values(values: Any, name: str = "trace") -> Trace:
    """The trace that `to_values` was given."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else None
        message = f"{name} is not a trace of format {FORMAT}" + (f" but of {found}" if found is not None else "")
        raise FileError("trace", message, "write it with `tilewright trace --json`")
    try:
        made = _decode(Trace, values, "")
    except _ShapeError as error:
        raise FileError("trace", f"{name}: {error}", "write it with `tilewright trace --json`") from error
    assert isinstance(made, Trace)
    return made


class _ShapeError(Exception):
    """A value does not have the type of its field."""


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, vars(records))


def _decode(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        fields = _fields(kind)
        if not isinstance(value, dict) or value.keys() != fields.keys():
            raise _ShapeError(f"{path or 'the trace'} is not a {kind.__name__}")
        return kind(**{name: _decode(hint, value[name], f"{path}.{name}") for name, hint in fields.items()})
    origin = typing.get_origin(kind)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), value, path)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [each for each in typing.get_args(kind) if each is not type(None)]
        return None if value is None else _decode(inner, value, path)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _ShapeError(f"{path} is {value!r:.40} and not of type {kind.__name__}")
    return value


def _decode_tuple(parts: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _ShapeError(f"{path} is not a list")
    if len(parts) == 2 and parts[1] is Ellipsis:
        return tuple(_decode(parts[0], each, f"{path}[{number}]") for number, each in enumerate(value))
    if len(parts) != len(value):
        raise _ShapeError(f"{path} has {len(value)} parts and not {len(parts)}")
    return tuple(_decode(kind, each, f"{path}[{number}]") for number, (kind, each) in enumerate(zip(parts, value)))

"""The facts that a file states of its model. In: a dict from names to the values in a file. Out: values of the types
that were asked for; an error that names the file and the key where they are of another type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.errors import FileFormatError
from tilewright.nn.formats.gguf_values import is_list
from tilewright.nn.formats.mapped import damaged

# No count or size of a model is above this.
MAX_WHOLE = 1 << 32
MAX_POSITIVE = 1e30


class Facts:
    """`prefix` is put before every name that is asked for."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self.prefix = prefix

    def has(self, name: str) -> bool:
        return self.values.get(self.prefix + name) is not None

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refused(f"{self.prefix + name} is {_shown(value)} where a whole number should be")
        if abs(value) > MAX_WHOLE:
            raise self.refused(f"{self.prefix + name} is {_shown(value)}")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.whole(name, default)
        if value < 1:
            raise self.refused(f"{self.prefix + name} is {value}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above 0, neither so small nor so large that arithmetic with it overflows."""
        value = self.number(name, default)
        if not 1 / MAX_POSITIVE <= value <= MAX_POSITIVE:
            raise self.refused(f"{self.prefix + name} is {value}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(f"{self.prefix + name} is {_shown(value)} where a number should be")
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if not math.isfinite(found):
            raise self.refused(f"{self.prefix + name} is {_shown(value)}")
        return found

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.refused(f"{self.prefix + name} is {_shown(value)} where a text should be")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.refused(f"{self.prefix + name} is {_shown(value)} where true or false should be")
        return value

    def items(self, name: str) -> Sequence[Any]:
        """A list; empty where there is none."""
        value = self.values.get(self.prefix + name)
        if value is None:
            return []
        if not is_list(value):
            raise self.refused(f"{self.prefix + name} is {_shown(value)} where a list should be")
        return value

    def record(self, name: str) -> Facts | None:
        """A dict inside; None where there is none."""
        value = self.values.get(self.prefix + name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refused(f"{self.prefix + name} is {_shown(value)} where a record should be")
        return Facts(value, self.source)

    def refused(self, reason: str) -> FileFormatError:
        return damaged("load_model", self.source, reason, "take another file of the model")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(self.prefix + name)
        if value is None:
            value = default
        if value is None:
            raise self.refused(f"it does not say {self.prefix + name}")
        return value


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."

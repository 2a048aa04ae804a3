"""The result of an experiment: the record that scenarios give to the session, to and from JSON values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A guilty step: its kind (rule, pass, opt, schedule, fusion, memory, queue, jit, cache, gradient, sharding,
    kernel, copy or backend), its name, a sentence, and the graph before and after it."""

    kind: str
    name: str
    text: str
    before: str = ""
    after: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(found: dict[str, Any]) -> Finding:
        return Finding(**{name: str(found.get(name, "")) for name in ("kind", "name", "text", "before", "after")})

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

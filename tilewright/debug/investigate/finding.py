"""What an experiment found. In: nothing. Out: the records that scenarios hand to the session, as JSON holds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A guilty step: its kind (rule, pass, opt, schedule, fusion, memory, queue, jit, cache, gradient, sharding,
    kernel, copy or backend), its name, a sentence, and what stood there before and after it."""

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

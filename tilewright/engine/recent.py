"""Caches of limited size, with second-chance eviction. In: what was made for a key. Out: the same again, while it is
among the last that were used.

A program whose shapes change, such as one over sequences of any length, plans and compiles for each of them. What it
has not used for long goes: kernels come back from the disk cache, schedules too."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from tilewright.base.config import options

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
# Kernels for each schedule that may be kept.
KERNELS_PER_PLAN = 8


class RecentTable(Generic[K, V]):
    """A dictionary that can be trimmed. An entry that was looked up since the last trim gets a second chance: a lookup
    sets a flag and moves nothing."""

    __slots__ = ("_entries", "per_plan")

    def __init__(self, per_plan: int = 1) -> None:
        self.per_plan = per_plan  # entries for each schedule that may be kept
        self._entries: dict[K, list[object]] = {}

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry[1] = True
        return entry[0]  # type: ignore[return-value]

    def __getitem__(self, key: K) -> V:
        entry = self._entries[key]
        entry[1] = True
        return entry[0]  # type: ignore[return-value]

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = [value, False]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> Iterator[V]:
        for entry in list(self._entries.values()):
            yield entry[0]  # type: ignore[misc]

    def discard(self, key: K) -> None:
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()

    def trim(self) -> None:
        """Drops the oldest entries beyond `PLAN_CACHE` that were not used since the last trim."""
        limit = options.PLAN_CACHE * self.per_plan
        while limit and len(self._entries) > limit:
            key = next(iter(self._entries))
            entry = self._entries.pop(key, None)
            if entry is not None and entry[1]:
                self._entries[key] = [entry[0], False]

"""Counts of what a bisection allows. In: the limit that an option sets. Out: whether one more may be done. A quota
counts in the whole process, so that 'only the first n' means the same in every run of a program."""

from __future__ import annotations

_quotas: list[Quota] = []


class Quota:
    """How much of one kind the process has done while a limit was set."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0
        _quotas.append(self)

    def take(self, limit: int) -> bool:
        """Counts one more. False where the limit forbids it; a limit below 0 forbids nothing and counts nothing."""
        if limit < 0:
            return True
        if self.used >= limit:
            return False
        self.used += 1
        return True


def reset_quotas() -> None:
    """Count from zero again, so that one process can try several limits."""
    for quota in _quotas:
        quota.used = 0

"""Limits for bisection. In: the limit that an option sets, such as 'apply only the first n opts'. Out: whether one more
may be done. A quota counts for the whole process, so that the first n are the same in every run of a program."""

from __future__ import annotations

_quotas: list[Quota] = []


class Quota:
    """A count of the actions of one kind that the process has done while a limit was set."""

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

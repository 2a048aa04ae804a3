"""The root of all errors, and that of user errors. In: an operation, what is wrong, what to do. Out: one message, with
the user's file and line."""

from __future__ import annotations

from tilewright.base.location import Location, user_location


class TilewrightError(Exception):
    """The root: catch this to catch everything Tilewright raises.

    `location` is the user's file and line. It is found when the error is made; pass it where the cause is a
    line that ran earlier, such as the one that built a tensor which is realised only now.
    """

    def __init__(self, operation: str, message: str, remedy: str = "", *, location: Location | None = None) -> None:
        # These three are what pickle hands back to the constructor when an error crosses a process boundary.
        super().__init__(operation, message, remedy)
        self.operation = operation
        self.message = message
        self.remedy = remedy
        self.location = user_location() if location is None else location

    def __str__(self) -> str:
        lines = [f"{self.operation}: {self.message}", *self._details()]
        if self.location is not None:
            lines.append(f"  at {self.location[0]}:{self.location[1]}")
        if self.remedy:
            lines.append(f"  to fix it: {self.remedy}")
        return "\n".join(lines)

    def _details(self) -> list[str]:
        """The lines between the message and the location."""
        return []


class UserError(TilewrightError):
    """The caller asked for something that cannot be done. Raised at the user's line, before anything is run."""

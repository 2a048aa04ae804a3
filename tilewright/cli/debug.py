"""`tilewright debug` and `tilewright sessions`. In: a command that fails, or a session. Out: the verdict on each
hypothesis as it is settled, then the summary; exit status 0 where a guilty step was named, 1 where none was."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tilewright.base.errors import ConfigError
from tilewright.debug import sessions


def run_debug(command: Sequence[str], seconds: float, jobs: int) -> int:
    """Investigates and prints; an interrupt cancels."""
    out = Console(highlight=False, soft_wrap=True)
    session = sessions.start(command, seconds=seconds, jobs=jobs)
    out.print(f"session {session}", markup=False)
    return follow(session, out)


def follow(session: str, out: Console) -> int:
    """Prints what a session finds until it ends."""
    try:
        for found in sessions.watch(session):
            line = f"{found['verdict']:>12}  {found['question']}: {found['evidence']}"
            out.print(line.replace("\n", " ")[:300], markup=False)
    except KeyboardInterrupt:
        sessions.cancel(session)
    out.print(sessions.show(session), markup=False)
    return 0 if sessions.check(session)["guilty"] else 1


def sessions_table() -> Table:
    table = Table("session", "status", "seconds", "command", "guilty step")
    for record in sessions.list_sessions():
        guilty = record["guilty"]
        name = f"{guilty['kind']} {guilty['name']}" if guilty else ""
        table.add_row(
            record["id"], record["status"], f"{record['seconds'] or 0:.0f}", " ".join(record["command"]), name
        )
    return table


def run_sessions(action: str, session: str, text: str) -> int:
    """One action on the sessions of this project."""
    out = Console(highlight=False, soft_wrap=True)
    if action == "list":
        out.print(sessions_table())
    elif action == "show":
        out.print(sessions.show(session), markup=False)
    elif action == "watch":
        return follow(session, out)
    elif action == "observe" and text:
        sessions.observe(session, text)
    elif action == "cancel":
        sessions.cancel(session)
    else:
        message = f"there is no action {action!r}"
        raise ConfigError("sessions", message, "use list, show ID, watch ID, observe ID 'TEXT' or cancel ID")
    return 0

"""Mistakes of the caller. In: the body of a command. Out: a `UserError` that it raises, as a sentence on stderr and
exit status 2. Every command runs in this context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from tilewright.base.errors import UserError

USER_MISTAKE = 2


@contextmanager
def mistakes() -> Iterator[None]:
    """Prints a `UserError` as a sentence and exits with status 2."""
    try:
        yield
    except UserError as error:
        remedy = f"\n  to fix it: {error.remedy}" if error.remedy else ""
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"{error.operation}: {error.message}{remedy}", markup=False
        )
        raise typer.Exit(USER_MISTAKE) from error

"""Whether a stage of the compiler is called again, in this process or as in a new one. In: a module and the name of a
function in it; a folder for the disk cache. Out: the number of its calls since; caches in memory that are empty."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright import Context
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.planning.plan import forget_schedules


def forget() -> None:
    """As if this were another process."""
    forget_schedules()
    forget_kernels()


@contextlib.contextmanager
def cache_in(folder: Path) -> Iterator[Path]:
    """Caches that are empty at the beginning. The suite verifies every graph; stored schedules and dynamic kernels are
    not used then."""
    with Context(TILEWRIGHT_CACHE_DIR=str(folder), VERIFY_GRAPH=0, VERIFY=0):
        forget()
        yield folder
        forget()


class Calls:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        self.count = 0
        original = getattr(module, name)

        def counted(*given: Any) -> Any:
            self.count += 1
            return original(*given)

        monkeypatch.setattr(module, name, counted)

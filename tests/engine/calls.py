"""Whether a stage of the compiler was asked again. In: a module and the name of a function in it. Out: how often it has
been called since."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


class Calls:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        self.count = 0
        original = getattr(module, name)

        def counted(*given: Any) -> Any:
            self.count += 1
            return original(*given)

        monkeypatch.setattr(module, name, counted)

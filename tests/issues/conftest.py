"""The devices that a case is tested on: all that are here and compute something (tests/devices.py)."""

from __future__ import annotations

import pytest

from tests.devices import settings, spare_compilers
from tilewright.runtime.device import open_driver


@pytest.fixture(params=[setting.device for setting in settings() if not setting.compiler])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    spare_compilers(monkeypatch)
    return str(request.param)


@pytest.fixture
def has_groups(device: str) -> bool:
    """Whether the device runs threads that meet at barriers."""
    return open_driver(device).target.has_local

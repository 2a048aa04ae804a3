"""The devices that a case is tested on: all that are here and compute something."""

from __future__ import annotations

import pytest

from tilewright.runtime.device import availability, device_names, open_driver

# It compiles and runs nothing, so it has no results to be right or wrong.
WITHOUT_RESULTS = {"NULL"}


@pytest.fixture(params=[name for name in device_names() if name not in WITHOUT_RESULTS])
def device(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    reason = availability()[name]
    if reason is not None:
        pytest.skip(f"{name} is not here: {reason}")
    return name


@pytest.fixture
def has_groups(device: str) -> bool:
    """Whether the device runs threads that meet at barriers."""
    return open_driver(device).target.has_local

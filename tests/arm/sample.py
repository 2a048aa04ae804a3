"""A pytest plugin. In: the tests that were found. Out: one in so many of them, as TILEWRIGHT_ONE_IN says: an emulated
processor takes some thirty times as long as one that is there."""

from __future__ import annotations

import os

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = items[:: int(os.environ.get("TILEWRIGHT_ONE_IN", "1"))]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept

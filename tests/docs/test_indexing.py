"""docs/indexing.md: its example runs, and says what the error says."""

from __future__ import annotations

import pytest

from tests.docs.examples import DOCS, run_examples


def test_its_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_examples(DOCS / "indexing.md") == 1
    assert "getitem: index 6 is out of range for axis 0 of shape (4,)" in capsys.readouterr().out

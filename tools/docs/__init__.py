"""The pages of docs/ that are made from the code. In: the package, its tests and the decision records. Out: Markdown
and pictures. `python -m tools.docs` (or `make docs`) writes them; tests/docs/test_generated.py compares."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

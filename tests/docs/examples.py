"""The examples of a page of the documentation, run as a reader would: one after the other, each seeing those before."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def run_examples(page: Path) -> int:
    """How many there were."""
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    namespace: dict[str, object] = {}
    for number, example in enumerate(examples):
        exec(compile(example, f"{page.name}, example {number}", "exec"), namespace)
    return len(examples)

"""docs/custom_kernels.md: its examples run, one after the other, and it names what the language has."""

from __future__ import annotations

import re
from pathlib import Path

from tilewright import UOp

PAGE = Path(__file__).resolve().parents[2] / "docs" / "custom_kernels.md"


def test_its_examples_run() -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(examples) == 5
    namespace: dict[str, object] = {}
    for number, example in enumerate(examples):
        exec(compile(example, f"{PAGE.name}, example {number}", "exec"), namespace)


def test_what_it_names_is_there() -> None:
    text = PAGE.read_text()
    names = set(re.findall(r"UOp\.(\w+)\(", text)) | set(re.findall(r"`\w+(?:\[\w\])?\.(\w+)\(", text))
    assert {"range", "placeholder", "group", "barrier", "set", "store", "end", "after", "sink", "load"} <= names
    assert [name for name in sorted(names) if not hasattr(UOp, name) and name != "custom_kernel"] == []

"""docs/custom_kernels.md: its examples run, one after the other, and it names what the language has."""

from __future__ import annotations

import re

from tests.docs.examples import DOCS, run_examples
from tilewright import UOp

PAGE = DOCS / "custom_kernels.md"


def test_its_examples_run() -> None:
    assert run_examples(PAGE) == 6


def test_what_it_names_is_there() -> None:
    text = PAGE.read_text()
    names = set(re.findall(r"UOp\.(\w+)\(", text)) | set(re.findall(r"`\w+(?:\[\w\])?\.(\w+)\(", text))
    assert {"range", "placeholder", "group", "barrier", "set", "store", "end", "after", "sink", "load"} <= names
    assert [name for name in sorted(names) if not hasattr(UOp, name) and name != "custom_kernel"] == []

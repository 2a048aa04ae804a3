"""docs/custom_kernels.md names what the language has."""

from __future__ import annotations

import re

from tests.docs.examples import DOCS
from tilewright import UOp

PAGE = DOCS / "custom_kernels.md"


def test_what_it_names_is_there() -> None:
    text = PAGE.read_text()
    names = set(re.findall(r"UOp\.(\w+)\(", text)) | set(re.findall(r"`\w+(?:\[\w\])?\.(\w+)\(", text))
    assert {"range", "placeholder", "group", "barrier", "set", "store", "end", "after", "sink", "load"} <= names
    assert [name for name in sorted(names) if not hasattr(UOp, name) and name != "custom_kernel"] == []

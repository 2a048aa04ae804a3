"""The examples of a page of the documentation, run as a reader would: one after the other, each seeing those before;
what it promises that they print; and the rows of its tables."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def examples_of(page: Path) -> list[str]:
    """The blocks of Python on a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def run_examples(page: Path) -> int:
    """How many there were."""
    examples = examples_of(page)
    namespace: dict[str, object] = {}
    for number, example in enumerate(examples):
        exec(compile(example, f"{page.name}, example {number}", "exec"), namespace)
    return len(examples)


def promised_lines(page: Path) -> list[str]:
    """What the comments behind `print(...)` say that is printed, in their order."""
    found = re.findall(r"^ *print\(.*\) +# (.*)$", "\n".join(examples_of(page)), flags=re.MULTILINE)
    return [line.rstrip() for line in found]


def first_column(page: Path, heading: str) -> list[str]:
    """The first column of the table behind a heading."""
    text = re.split(r"\n\|[-|]+\|\n", page.read_text().split(heading, 1)[1], maxsplit=1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\| (.*?) \| ", text, flags=re.MULTILINE)

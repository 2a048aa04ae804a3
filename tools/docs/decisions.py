"""The index of decision records. In: docs/decisions/NNNN-*.md, each with a title and a paragraph that begins with
`**Decision.**`. Out: docs/decisions/README.md, a table of numbers, titles and the first sentence of each decision."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tools.docs import ROOT

FOLDER = ROOT / "docs" / "decisions"


class Record(NamedTuple):
    """One decision record: the name of its file, its number, its title and the first sentence of the decision."""

    file: str
    number: int
    title: str
    decision: str


def read_record(path: Path) -> Record:
    """A record as the index shows it. A file that does not have the form of a record is a ValueError with its name."""
    text = path.read_text()
    heading = re.match(r"# (\d+)\. (.+)\n", text)
    decision = re.search(r"\*\*Decision\.\*\* (.+?[.:])(?=\s(?:[A-Z`*(\n]|$)|\n\n|\Z)", text, flags=re.DOTALL)
    if heading is None or decision is None:
        raise ValueError(f"{path.name} needs a title, '# 7. ...', and a paragraph that begins with '**Decision.**'")
    sentence = " ".join(decision[1].split()).rstrip(":.") + "."
    return Record(path.name, int(heading[1]), heading[2], sentence)


def read_records(folder: Path = FOLDER) -> list[Record]:
    """Every record, by number."""
    return sorted((read_record(path) for path in folder.glob("[0-9]*.md")), key=lambda record: record.number)


def decisions_markdown() -> str:
    """The text of the index."""
    lines = [
        "# Decisions",
        "",
        "Made from the records in this folder by `make docs`. A record states a question, the choice, what was",
        "measured and what would change it. It describes the code as it was when it was written; one that a later",
        "record changes says so in its first lines.",
        "",
        "| | decision | in one sentence |",
        "|---|---|---|",
    ]
    for record in read_records():
        lines.append(f"| {record.number} | [{record.title}]({record.file}) | {record.decision} |")
    return "\n".join(lines) + "\n"

"""The generated pages of docs/ have the text that the code gives now, and decision records the form that their index
reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs import ROOT
from tools.docs.decisions import read_record, read_records
from tools.docs.pages import generated_pages

PAGES = generated_pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name], "run: make docs"


def test_decisions_are_numbered_without_gaps() -> None:
    records = read_records()
    assert [record.number for record in records] == list(range(1, len(records) + 1))
    assert all(record.file.startswith(f"{record.number:04d}-") for record in records)


def test_the_index_shows_the_first_sentence_of_a_decision(tmp_path: Path) -> None:
    path = tmp_path / "0007-example.md"
    path.write_text("# 7. A title\n\n**Decision.** `f` is\nused, e.g. twice. It is not\nremoved.\n")
    assert read_record(path) == ("0007-example.md", 7, "A title", "`f` is used, e.g. twice.")
    path.write_text("# 7. A title\n\n**Decision.** Four things make it so:\n\n1. one\n")
    assert read_record(path).decision == "Four things make it so."
    path.write_text("# 7. A title\n\nNothing was decided.\n")
    with pytest.raises(ValueError, match=r"0007-example\.md needs a title"):
        read_record(path)

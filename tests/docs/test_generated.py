"""The generated pages of docs/ have the text that the code gives now, and decision records the form that their index
reads."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

import pytest

from tilewright import Tensor
from tools.docs import ROOT, architecture
from tools.docs.api import undocumented_names
from tools.docs.decisions import read_record, read_records
from tools.docs.pages import generated_pages


@functools.cache
def pages() -> dict[str, str]:
    """Made once, when a test asks: it takes two seconds, which collecting tests need not."""
    return generated_pages()


def test_pages_are_current() -> None:
    stale = [name for name, text in pages().items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    assert stale == [], "run: make docs"


def test_every_public_name_has_a_docstring() -> None:
    assert undocumented_names() == []


def test_signatures_and_docstrings_are_those_of_the_code() -> None:
    page = pages()["docs/api/tensor.md"]
    assert "**`clamp(min_=None, max_=None" in page
    assert inspect.getdoc(Tensor.scaled_dot_product_attention) in page
    assert "**`grad`**" in page
    assert "**`range(size, id, axis_type=AxisType.LOOP)`**" in pages()["docs/api/kernels.md"]


def test_the_picture_has_a_box_per_folder_and_no_superfluous_arrow() -> None:
    graph = {"cli": frozenset({"nn", "base"}), "nn": frozenset({"base"}), "base": frozenset[str]()}
    assert architecture.direct_imports(graph) == {"cli": {"nn"}, "nn": {"base"}, "base": frozenset()}
    assert architecture.heights_of(graph) == {"cli": 2, "nn": 1, "base": 0}
    picture = architecture.draw_imports(graph)
    assert (picture.count("<rect"), picture.count("<path")) == (3, 2)


def test_a_page_without_its_comments_is_refused() -> None:
    page = "<!-- a -->\nold\n<!-- end of a -->"
    assert architecture.fill(page, {"a": "new"}) == "<!-- a -->\nnew\n<!-- end of a -->"
    with pytest.raises(ValueError, match="comments of 'b'"):
        architecture.fill(page, {"b": "new"})


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

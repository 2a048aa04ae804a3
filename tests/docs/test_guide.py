"""docs/guide.md and the pages for users of torch and tinygrad: their examples run, one after the other, and print what
the comments beside them say."""

from __future__ import annotations

import pytest

from tests.docs.examples import DOCS, promised_lines, run_examples


@pytest.mark.parametrize("name", ["guide.md", "from_torch.md", "from_tinygrad.md"])
def test_examples_print_what_the_page_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = DOCS / name
    promised = promised_lines(page)
    assert promised
    assert run_examples(page) > 0
    assert capsys.readouterr().out.splitlines() == promised

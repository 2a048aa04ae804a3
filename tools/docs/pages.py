"""The list of generated pages. In: the functions that write each of them. Out: their texts by path, for the command and
for the test."""

from __future__ import annotations

from tests.ops.table import ops_markdown
from tilewright.base.config import options_markdown
from tools.docs.api import api_pages
from tools.docs.architecture import architecture_pages
from tools.docs.decisions import decisions_markdown
from tools.docs.dtypes import dtypes_markdown


def generated_pages() -> dict[str, str]:
    """The path of every generated page in the repository, and the text it should have."""
    return {
        **api_pages(),
        **architecture_pages(),
        "docs/decisions/README.md": decisions_markdown(),
        "docs/dtypes.md": dtypes_markdown(),
        "docs/ops.md": ops_markdown(),
        "docs/options.md": options_markdown(),
    }

"""Every page of the repository: its examples run and print what the comments beside them say, its links lead somewhere,
and the files, commands, options and names that it mentions exist."""

from __future__ import annotations

import re
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.examples import DOCS, ROOT, examples_of, promised_lines, run_examples
from tilewright import OptOps, __version__
from tilewright.base.config import DECLARATIONS

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
# A measurement, a decision and a version tell what was done then, in the names of then.
PRESENT = [
    page for page in PAGES if page.parent.name not in ("decisions", "measurements") and page.name != "CHANGELOG.md"
]
# Pages with examples that a test of their own runs.
EXTENDING = "tests/meta/test_extending.py"
RUN_ELSEWHERE = {
    "README.md": "test_readme.py",
    "serve.md": "tests/llm/test_serve_docs.py",
    "add_a_backend.md": EXTENDING,
    "add_an_op.md": EXTENDING,
}
WITH_EXAMPLES = [page for page in PAGES if examples_of(page) and page.name not in RUN_ELSEWHERE]
FOLDERS = ("base", "graph", "schedule", "kernel", "codegen", "backends", "runtime", "engine", "tensor", "nn", "cli")
# Variables of other programs, and those that tests alone read.
FOREIGN_VARIABLES = {"MACHINE", "FUZZ_SECONDS", "PYTHON", "ARRAY_API_TESTS", "TILEWRIGHT_ARM_DIR", "DEV", "WINO"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose_of(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_examples_print_what_the_page_says(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    promised = promised_lines(page)
    assert run_examples(page) > 0
    assert capsys.readouterr().out.splitlines() == promised


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), flags=re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings], target


@pytest.mark.parametrize("page", PRESENT, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    """`tests/devices.py` and `codegen/c_style/`: a path of the repository, or of the package without its first part."""
    for name in re.findall(r"`([\w./-]+/[\w./-]*)`", prose_of(page)):
        first = name.split("/")[0]
        if first in FOLDERS:
            assert (ROOT / "tilewright" / name).exists() or (ROOT / "tests" / name).exists(), f"{name_of(page)}: {name}"
        elif (ROOT / first).is_dir():
            assert (ROOT / name).exists(), f"{name_of(page)}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for target in re.findall(r"(?:^|`|: )make (?:\w+=\S+ )?([a-z][a-z-]*)", text, flags=re.MULTILINE):
        assert target in targets, f"{name_of(page)}: make {target}"
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert find_spec(module) is not None, f"{name_of(page)}: python -m {module}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in re.findall(r"(?:tilewright|\.)\[(\w+)\]'", text):
        assert extra in extras, f"{name_of(page)}: the extra {extra}"


@pytest.mark.parametrize("page", PRESENT, ids=name_of)
def test_options_and_opts_that_are_named_exist(page: Path) -> None:
    prose = prose_of(page)
    for name in re.findall(r"`([A-Z][A-Z_0-9]{2,})=", prose):
        assert name in DECLARATIONS or name in FOREIGN_VARIABLES, f"{name_of(page)}: the option {name}"
    for name in re.findall(r"OptOps\.([A-Z]+)", page.read_text()):
        assert name in OptOps.__members__, f"{name_of(page)}: OptOps.{name}"


def test_every_page_is_found_from_the_readme() -> None:
    """Following links from README.md."""
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+)", prose_of(page))
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert [name_of(page) for page in PAGES if page not in seen and page.name != "CHANGELOG.md"] == []


def test_the_changelog_has_a_version_and_no_ratios_against_the_past() -> None:
    """Those are in docs/measurements. What 0.1.0 has is not listed again as unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased, released = text.split("## [0.1.0]", 1)
    assert f"[{__version__}]" in text
    ratio = (
        r"times (?:as|the)|(?:half|third|quarter|fifth|ninth|fifteenth|twentieth|two thirds) (?:of|the|its|less)|faster"
    )
    assert re.findall(ratio, text) == []
    assert "The project: `make demo`" not in unreleased
    assert len(released.splitlines()) > 40

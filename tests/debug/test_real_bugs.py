"""Bugs that this project has had, each with its fix taken back in a scratch copy of the package: `tilewright debug` is
given the program that fails there and no hint, and names the guilty step. All of them:

    pytest -m slow tests/debug/test_real_bugs.py"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.debug.real_bugs import REAL_BUGS, ROOT, Fix, StaleMendError, scratch_copy, script_of, taken_back


@pytest.mark.parametrize("name", REAL_BUGS)
def test_the_mend_can_still_be_taken_back(name: str) -> None:
    for fix in REAL_BUGS[name].fixes:
        text = (ROOT / "tilewright" / fix.path).read_text(encoding="utf-8")
        compile(taken_back(text, fix), fix.path, "exec")


def test_a_mend_that_is_not_there_is_told() -> None:
    for text in ("", "b\nb\n"):
        with pytest.raises(StaleMendError, match=r"tilewright/a\.py stands there \d times"):
            taken_back(text, Fix("a.py", "b", "c"))


def run(tree: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command with the package of a tree, and caches of its own."""
    given = {
        "PYTHONPATH": str(tree),
        "TILEWRIGHT_CACHE_DIR": str(folder / f"cache-{tree.name}"),
        "TILEWRIGHT_STATE_DIR": str(folder / "state"),
        "VERIFY_GRAPH": "0",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, cwd=folder)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", REAL_BUGS)
def test_a_program_is_wrong_without_the_mend(name: str, tmp_path: Path) -> None:
    bug = REAL_BUGS[name]
    (tmp_path / "program.py").write_text(script_of(name))
    right = run(ROOT, tmp_path, "program.py")
    assert right.returncode == 0, right.stderr
    wrong = run(scratch_copy(tmp_path / "tree", bug.fixes), tmp_path, "program.py")
    assert wrong.returncode != 0
    assert bug.symptom in wrong.stderr, wrong.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_BUGS)
def test_an_investigation_names_the_real_bug(name: str, tmp_path: Path) -> None:
    bug = REAL_BUGS[name]
    tree = scratch_copy(tmp_path / "tree", bug.fixes)
    (tmp_path / "program.py").write_text(script_of(name))
    shown = run(tree, tmp_path, "-m", "tilewright", "debug", "program.py")
    (session,) = (tmp_path / "state").rglob("session.json")
    record = json.loads(session.read_text(encoding="utf-8"))
    assert shown.returncode == 0, shown.stdout
    assert (record["guilty"]["kind"], record["guilty"]["name"]) == (bug.kind, bug.name), shown.stdout
    test = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), record["regression"]]
    assert run(tree, tmp_path, *test).returncode == 1
    assert run(ROOT, tmp_path, *test).returncode == 0

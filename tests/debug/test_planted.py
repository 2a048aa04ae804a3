"""The planted bugs themselves: each changes what is in the package, and its program goes wrong with it and is right
without. So an investigation that finds nothing says something about the debugger, and not about a bug that moved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.debug.planted import bugs
from tests.debug.planted.programs import PROGRAMS, script_of
from tests.debug.test_sessions import environment


def run_planted(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with a bug in the package."""
    given = {**os.environ, **environment(folder, name)}
    return subprocess.run([sys.executable, *arguments], env=given, capture_output=True, text=True, cwd=folder)


def test_every_bug_has_a_program() -> None:
    assert list(PROGRAMS) == list(bugs.BUGS)


def test_every_bug_finds_its_place(tmp_path: Path) -> None:
    plant_all = "from tests.debug.planted import bugs\nfor name in bugs.BUGS:\n    bugs.plant(name)"
    given = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", plant_all], env=given, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_planted_bug_makes_its_program_wrong(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    exec(compile(script_of(name), name, "exec"), {"__name__": name})
    script = tmp_path / "program.py"
    script.write_text(script_of(name))
    done = run_planted(name, tmp_path, str(script))
    assert done.returncode != bugs.STALE_STATUS, done.stderr
    has_crashed = done.returncode < 0 and program.may_crash
    assert has_crashed or (done.returncode and program.symptom in done.stderr), done.stderr


@pytest.mark.parametrize(
    "stale",
    [
        lambda: bugs.exchange(bugs.module("kernel.optimise"), "moved_away", lambda inner: inner),
        lambda: bugs.exchange(bugs.module("kernel.moved_away"), "optimise", lambda inner: inner),
        lambda: bugs.exchange_entry({}, "moved away", lambda inner: inner),
        lambda: bugs.exchange_rule("moved-away", lambda x: x),
        lambda: bugs.exchange_pass("codegen.pipeline", "moved_away", lambda state, inner: None),
    ],
)
def test_a_bug_whose_place_has_moved_is_told(stale: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bugs.BUGS, "stale", stale)
    with pytest.raises(bugs.StaleBugError, match=r"moved.away"):
        bugs.plant("stale")


def test_a_process_whose_bug_cannot_be_planted_ends(tmp_path: Path) -> None:
    done = run_planted("no_such_bug", tmp_path, "-c", "print('runs')")
    assert (done.returncode, done.stdout) == (bugs.STALE_STATUS, "")
    assert "StaleBugError: the bug no_such_bug" in done.stderr

"""README.md: its examples run, its commands do what is said of them, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.examples import ROOT, examples_of, first_column
from tilewright import Device

PAGE = ROOT / "README.md"
TEXT = PAGE.read_text()
WITHOUT_A_ROW = {"__pycache__", "py.typed"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The first example, as the file that the page's commands name."""
    path = tmp_path / "program.py"
    path.write_text(examples_of(PAGE)[0])
    return path


def run(folder: Path, *command: str, **options: str) -> str:
    environment = {**os.environ, **options, "TILEWRIGHT_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_its_examples_run(tmp_path: Path) -> None:
    """One after the other in a process of their own, so that no kernel of theirs was compiled before."""
    examples = examples_of(PAGE)
    assert len(examples) >= 2
    (tmp_path / "examples.py").write_text("\n".join(examples))
    printed = run(tmp_path, "examples.py")
    assert printed.startswith("[")
    assert "opts none" in printed, "DEBUG=3 and NOOPT=1 do not show a kernel without opts"


def test_debug_shows_kernels_and_their_source(program: Path) -> None:
    lines = run(program.parent, program.name, DEBUG="2")
    assert "program.py:" in lines
    assert "define void" not in lines
    assert "define void" in run(program.parent, program.name, DEBUG="4")


def test_a_program_runs_on_the_emulator(program: Path) -> None:
    assert "PYTHON" in run(program.parent, program.name, DEVICE="PYTHON", DEBUG="2")


def test_every_folder_and_every_device_has_a_row() -> None:
    found = {path.name for path in (ROOT / "tilewright").iterdir()} - WITHOUT_A_ROW
    named = re.findall(r"`tilewright/(\w+(?:\.py)?)/?`", " ".join(first_column(PAGE, "## Where things are")))
    assert {name for name in found if not name.startswith("__")} == set(named)
    devices = re.findall(r"`(\w+)", " ".join(first_column(PAGE, "## Devices")))
    assert sorted(devices) == sorted(Device)

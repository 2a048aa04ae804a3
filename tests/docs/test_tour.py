"""docs/tour.py runs, in time, to the end of its asserts; it stays short, and what it points to is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "docs" / "tour.py"
WATCHED = """
import runpy, sys, time
runpy.run_path(sys.argv[1], run_name="__main__")
print(time.process_time(), file=sys.stderr)
"""


def test_it_runs() -> None:
    finished = subprocess.run([sys.executable, "-c", WATCHED, str(TOUR)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "the schedule: 3 kernels" in finished.stdout
    assert "graph, loops, tiles and machine code agree" in finished.stdout
    # About half a second of a processor, however long that is waited for.
    assert float(finished.stderr) < 5


def test_it_stands_alone() -> None:
    imported = set()
    for node in ast.walk(ast.parse(TOUR.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).split(".")[0])
    assert "tilewright" not in imported
    assert imported - sys.stdlib_module_names == {"llvmlite", "numpy"}


def test_it_is_read_at_one_sitting() -> None:
    lines = [line for line in TOUR.read_text().splitlines() if line.strip()]
    assert 400 <= len(lines) <= 550


def test_the_files_it_names_exist() -> None:
    named = set(re.findall(r"tilewright(?:/\w+)+(?:\.py|/)", TOUR.read_text()))
    assert len(named) >= 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_section_says_where_the_real_thing_lives() -> None:
    sections = re.split(r"^# =+ \d+\. ", TOUR.read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) == 12
    assert [section.splitlines()[0] for section in sections if "# In the package: tilewright/" not in section] == []

"""Importing the package is light: what is heavy is loaded by the first call that needs it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, time
start = time.perf_counter()
import tilewright
seconds = time.perf_counter() - start
names = ("numpy", "llvmlite", "rich", "typer", "tilewright.schedule", "tilewright.codegen")
heavy = [name for name in names if name in sys.modules]
print(seconds, ",".join(heavy))
"""


def measure() -> tuple[float, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    seconds, _, heavy = done.stdout.strip().partition(" ")
    return float(seconds), heavy


def test_import_is_quick_and_loads_nothing_heavy() -> None:
    runs = [measure() for _ in range(3)]
    assert {heavy for _, heavy in runs} == {""}
    # The budget is 0.15 s with compiled bytecode on a quiet machine; this only catches what is wrong by a multiple.
    assert min(seconds for seconds, _ in runs) < 1.5

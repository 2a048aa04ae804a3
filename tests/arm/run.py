"""Tests of the CPU device on an emulated 64-bit ARM. In: names of selections, and of a processor. Out: what pytest and
the fuzzers print, and the exit status. `make test-arm` runs all selections.

It shows that results are right, not that they come fast: an emulator's time says nothing of a processor's. Nor does it
reorder memory accesses as a processor may; what the thread pool asks for in that respect is read from its text."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.arm.environment import TREE, default_folder, prepare
from tests.arm.machines import MACHINES

PYTEST = ("-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-p", "tests.arm.sample")
CPU_TESTS = (
    "native",
    "panels",
    "threads",
    "processors",
    "shuffles",
    "dot_products",
    "inner_loops",
    "slow_paths",
    "wrapping",
)
# Name: one in so many of these tests; and what Python is given.
SELECTIONS: dict[str, tuple[int, tuple[str, ...]]] = {
    "cpu": (2, (*PYTEST, "-m", "not slow", *(f"tests/backends/test_cpu_{name}.py" for name in CPU_TESTS))),
    "ops": (
        4,
        (*PYTEST, "-m", "not slow and not torch", "-k", "CPU and not gcc and not clang", "tests/ops/test_table.py"),
    ),
    "kernels": (12, (*PYTEST, "-m", "not slow", "tests/kernel", "tests/engine")),
    "opts": (1, ("-m", "tests.fuzz.opts", "--seconds", "60", "--seed", "1")),
    "expressions": (1, ("-m", "tests.fuzz.run", "--seconds", "60", "--seed", "1", "--jobs", "1")),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("selections", nargs="*", help=f"of {', '.join(SELECTIONS)}; all of them unless given")
    parser.add_argument("--machine", choices=MACHINES, default="neoverse-n1")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="what is made is kept here")
    parser.add_argument("--one-in", type=int, default=0, help="how many of the tests; 0 is what a selection says")
    given = parser.parse_args()
    unknown = [name for name in given.selections if name not in SELECTIONS]
    if unknown:
        parser.error(f"no selection is called {unknown[0]}")
    command = prepare(given.folder.resolve(), given.machine)
    failed = []
    for name in given.selections or SELECTIONS:
        one_in, arguments = SELECTIONS[name]
        print(f"--- {name} on {given.machine}, one in {given.one_in or one_in}", flush=True)
        with tempfile.TemporaryDirectory(prefix="tilewright-arm-") as cache:
            environment = {
                **os.environ,
                "DEVICE": "CPU",
                "TILEWRIGHT_CACHE_DIR": cache,
                "TILEWRIGHT_ONE_IN": str(given.one_in or one_in),
            }
            if subprocess.run([str(command), *arguments], env=environment, cwd=TREE, check=False).returncode:
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

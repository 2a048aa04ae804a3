"""What instruments cost while they are off, and while they are on. In: another tree of the package to compare with.
Out: a table: import, eager and jitted launch of both trees in turns, each in processes of its own; then the launches
of this tree while a profile or a trace is taken.

    git worktree add ../before COMMIT
    python -m bench.watching ../before
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROUNDS = 7
HERE = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys, time
start = time.process_time()
import tilewright
imported = time.process_time() - start
from tilewright import Tensor, jit

def least(run, count, rounds):
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            run()
        best = min(best, (time.perf_counter() - start) / count)
    return best

def measure():
    add = jit(lambda x: x + 1)
    x = Tensor.ones(16).contiguous().realize()
    for _ in range(20):
        add(x)
        (x + 1).realize()
    return least(lambda: add(x), 200, 20), least(lambda: (x + 1).realize(), 50, 20)

if sys.argv[1:] == ["trace"]:
    from tilewright.debug.trace import Recorder
    with Recorder():
        found = measure()
else:
    found = measure()
print(imported, *found)
"""


def run(tree: Path, *arguments: str, **options: str) -> list[float]:
    """Seconds of the import, of a jitted and of an eager launch."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PROFILE_FILE": os.devnull, **options}
    command = [sys.executable, "-P", "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def least(rows: list[list[float]]) -> list[float]:
    return [min(column) for column in zip(*rows, strict=True)]


def main() -> None:
    trees = {"this tree": HERE}
    if len(sys.argv) > 1:
        trees = {"the other tree": Path(sys.argv[1]), **trees}
    found: dict[str, list[list[float]]] = {name: [] for name in trees}
    for _ in range(ROUNDS):
        for name, tree in trees.items():
            found[name].append(run(tree))
    rows = {name: least(times) for name, times in found.items()}
    rows["this tree, PROFILE=1"] = run(HERE, PROFILE="1")
    rows["this tree, traced"] = run(HERE, "trace")
    print(f"{'':24} {'import':>10} {'jitted':>10} {'eager':>10}")
    for name, (imported, jitted, eager) in rows.items():
        print(f"{name:24} {imported * 1e3:7.0f} ms {jitted * 1e6:7.2f} us {eager * 1e6:7.1f} us")


if __name__ == "__main__":
    main()

"""Compile time per stage: `python -m bench` (or `make bench`). In: a few networks. Out: a table of milliseconds.

Each network is built in a process of its own with an empty program cache, so the figures are those of a first run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

STAGES = ("bind", "schedule", "kernel", "codegen", "render", "cache", "compile", "load")


def elementwise() -> object:
    from tilewright import Tensor

    return (Tensor([1.0, 2.0, 3.0]) + 2).realize()


def softmax() -> object:
    from tilewright import Tensor

    return Tensor.rand(256, 256).softmax(-1).realize()


def matmul() -> object:
    from tilewright import Tensor

    return (Tensor.rand(256, 256) @ Tensor.rand(256, 256)).realize()


def convnet16() -> object:
    """The 16 convolutions of compare.py's cold suite."""
    from tilewright import Tensor

    x = Tensor.rand(1, 3, 64, 64)
    last = 3
    for width in (16, 32, 64, 128):
        for _ in range(4):
            x = x.conv2d(Tensor.rand(width, last, 3, 3) * 0.05)
            x = x * (x > 0)
            last = width
    return (x.mean((2, 3)) @ Tensor.rand(last, 10)).realize()


NETWORKS = {"elementwise": elementwise, "softmax": softmax, "matmul": matmul, "convnet16": convnet16}


def measure(name: str) -> dict[str, float]:
    """Milliseconds per stage of one network in this process."""
    import tilewright  # noqa: F401  (its import is not part of any stage)
    from tilewright.base.events import stage_times

    start = time.perf_counter_ns()
    NETWORKS[name]()
    total = time.perf_counter_ns() - start
    row = {stage: stage_times.get(stage, 0) / 1e6 for stage in STAGES}
    row["other"] = total / 1e6 - sum(row.values())
    row["total"] = total / 1e6
    return row


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    columns: list[str] = []
    for name in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": folder}
            command = [sys.executable, "-m", "bench", name]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        if not columns:
            columns = list(row)
            print("| network | " + " | ".join(columns) + " |")
            print("|---" * (len(columns) + 1) + "|")
        print(f"| {name} | " + " | ".join(f"{row[column]:.1f}" for column in columns) + " |", flush=True)


if __name__ == "__main__":
    main()

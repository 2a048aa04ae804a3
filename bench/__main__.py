"""Compile time per stage: `python -m bench` (or `make bench`). In: a few networks. Out: two tables of milliseconds.

Each network is built in a process of its own with an empty cache, and then in a second process that finds on disk what
the first has left: the tables are those of a cold and of a warm start."""

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
    """The 16 convolutions of the suite `cold` of bench/compare.py."""
    from tilewright import Tensor

    x = Tensor.rand(1, 3, 64, 64)
    last = 3
    for width in (16, 32, 64, 128):
        for _ in range(4):
            x = x.conv2d(Tensor.rand(width, last, 3, 3) * 0.05)
            x = x * (x > 0)
            last = width
    return (x.mean((2, 3)) @ Tensor.rand(last, 10)).realize()


def mnist_step() -> object:
    """The first Adam step of the convolutional network of the suite `train` of bench/compare.py."""
    from tilewright import Tensor, nn

    layers = [nn.Conv2d(1, 32, 5), Tensor.relu, nn.Conv2d(32, 32, 5), Tensor.relu, nn.BatchNorm2d(32)]
    layers += [Tensor.max_pool2d, nn.Conv2d(32, 64, 3), Tensor.relu, nn.Conv2d(64, 64, 3), Tensor.relu]
    layers += [nn.BatchNorm2d(64), Tensor.max_pool2d, lambda x: x.flatten(1), nn.Linear(576, 10)]
    optimiser = nn.optim.Adam(nn.state.get_parameters(layers))
    images, labels = Tensor.rand(128, 1, 28, 28).realize(), Tensor.randint(128, high=10).realize()
    with Tensor.train():
        optimiser.zero_grad()
        loss = images.sequential(layers).sparse_categorical_crossentropy(labels)
        loss.backward()
        optimiser.step()
        return loss.realize()


NETWORKS = {
    "elementwise": elementwise,
    "softmax": softmax,
    "matmul": matmul,
    "convnet16": convnet16,
    "mnist_step": mnist_step,
}


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


def in_a_process(name: str, folder: str) -> dict[str, float]:
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": folder}
    command = [sys.executable, "-m", "bench", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_table(title: str, rows: dict[str, dict[str, float]]) -> None:
    columns = list(next(iter(rows.values())))
    print(f"| {title} | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{row[column]:.1f}" for column in columns) + " |", flush=True)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    first: dict[str, dict[str, float]] = {}
    second: dict[str, dict[str, float]] = {}
    for name in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            first[name] = in_a_process(name, folder)
            second[name] = in_a_process(name, folder)
    print_table("first process", first)
    print()
    print_table("second process", second)


if __name__ == "__main__":
    main()

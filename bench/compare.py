"""Tilewright beside torch, JAX and tinygrad on this machine, in one run.

    python -m bench.compare                                     # every suite, every peer that is installed
    python -m bench.compare --suite kernels --only matmul       # rows whose names contain a text
    python -m bench.compare --peers torch,jax --rounds 6 --json compare.json

In: bench/frameworks.py. Out: a table with the best time of each framework, and the ratio of the best peer's time to
Tilewright's, which is above 1 where Tilewright is ahead. Each framework runs in a process of its own with the same
inputs and empty caches, and the processes take turns, so that a slow moment of a shared machine meets all of them.
A peer that is not installed, or cannot run a row, is named. Results are compared by their mean magnitude."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.frameworks import FIRST_RESULT, FRAMEWORKS, Framework

ROOT = Path(__file__).resolve().parents[1]
OURS = "tilewright"
PEERS = tuple(name for name in FRAMEWORKS if name != OURS)
MIN_RUNS, MAX_RUNS = 5, 200
WARM_UP_RUNS = 3  # jit records the first two
TRAINING_STEPS = 6
TIMEOUT_SECONDS = 1500
# Two frameworks that sum in another order agree to about 1e-6; a wrong result is further away than this.
TOLERANCE = 1e-3
MEGA = 1024 * 1024

Row = dict[str, Any]  # "seconds", "work", "unit", "magnitude"; or "error"
Rows = dict[str, Row]  # by name
Table = dict[str, Rows]  # rows of each framework, by the row's name and then the framework's


class Workload(NamedTuple):
    """A function, the shapes of its inputs, and how much it does: operations or bytes that have to move."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    work: int
    unit: str


def product(x: Any, y: Any) -> Any:
    return x @ y


def kernel_workloads(framework: Framework) -> dict[str, Workload]:
    """The rows of the suite `kernels`."""
    rows = {f"matmul_{n}": Workload(product, ((n, n), (n, n)), 2 * n**3, "GFLOP/s") for n in (64, 256, 512, 1024, 2048)}
    square, large, rows_of_1024 = (4096, 4096), (16 * MEGA,), (4096, 1024)
    rows["matmul_odd_1000x777x333"] = Workload(product, ((1000, 777), (777, 333)), 2 * 1000 * 777 * 333, "GFLOP/s")
    rows["matmul_AT_1024"] = Workload(lambda x, y: x.T @ y, ((1024, 1024), (1024, 1024)), 2 * 1024**3, "GFLOP/s")
    rows["matmul_bias_gelu_512x1024x1024"] = Workload(
        lambda x, y, bias: framework.gelu(x @ y + bias),
        ((512, 1024), (1024, 1024), (1024,)),
        2 * 512 * 1024**2,
        "GFLOP/s",
    )
    rows["bmm_16x256"] = Workload(product, ((16, 256, 256), (16, 256, 256)), 2 * 16 * 256**3, "GFLOP/s")
    rows["gemv_4096"] = Workload(product, ((1, 4096), square), 4 * 4096**2, "GB/s")
    rows["gemv_4096_T"] = Workload(lambda x, y: x @ y.T, ((1, 4096), square), 4 * 4096**2, "GB/s")
    rows["fma_16M"] = Workload(lambda x, y: x * y + x, (large, large), 12 * 16 * MEGA, "GB/s")
    rows["chain_16M"] = Workload(lambda x: ((x * 2 + 1) * x - 3) * x, (large,), 8 * 16 * MEGA, "GB/s")
    rows["gelu_4M"] = Workload(framework.gelu, ((4 * MEGA,),), 8 * 4 * MEGA, "GB/s")
    rows["sum_16M"] = Workload(lambda x: x.sum(), (large,), 4 * 16 * MEGA, "GB/s")
    rows["sum_rows_4096x4096"] = Workload(lambda x: x.sum(1), (square,), 4 * 16 * MEGA, "GB/s")
    rows["sum_cols_4096x4096"] = Workload(lambda x: x.sum(0), (square,), 4 * 16 * MEGA, "GB/s")
    rows["transpose_4096"] = Workload(lambda x: x.T + 1, (square,), 8 * 16 * MEGA, "GB/s")
    rows["softmax_4096x1024"] = Workload(framework.softmax, (rows_of_1024,), 8 * 4 * MEGA, "GB/s")
    rows["layernorm_4096x1024"] = Workload(framework.layernorm, (rows_of_1024,), 8 * 4 * MEGA, "GB/s")
    rows["conv_8x32x56x56_64x3x3"] = Workload(
        framework.convolution, ((8, 32, 56, 56), (64, 32, 3, 3)), 2 * 8 * 64 * 32 * 9 * 54 * 54, "GFLOP/s"
    )
    rows["conv_32x1x28x28_32x5x5"] = Workload(
        framework.convolution, ((32, 1, 28, 28), (32, 1, 5, 5)), 2 * 32 * 32 * 25 * 24 * 24, "GFLOP/s"
    )
    rows["attention_8x256x64"] = Workload(
        framework.attention, ((1, 8, 256, 64),) * 3, 4 * 8 * 256 * 256 * 64, "GFLOP/s"
    )
    rows["add_tiny"] = Workload(lambda x: x + 1, ((16,),), 128, "GB/s")
    return rows


# ---------------------------------------------------------------- one suite of one framework, in a process of its own


def best_time(run: Callable[[], object], seconds: float) -> float:
    """The shortest of many runs, which go on for this many seconds."""
    for _ in range(WARM_UP_RUNS):
        run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < MIN_RUNS or (len(times) < MAX_RUNS and time.perf_counter() < end):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_kernels(framework: Framework, only: str, seconds: float) -> Rows:
    """Steady time of single operations; inputs are the same for all frameworks."""
    found: Rows = {}
    for name, workload in kernel_workloads(framework).items():
        if only not in name:
            continue
        generator = np.random.default_rng(7)
        arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in workload.shapes]
        try:
            tensors = [framework.tensor(array) for array in arrays]
            run = framework.compiled(workload.function)
            best = best_time(lambda run=run, tensors=tensors: run(*tensors), seconds)
            magnitude = float(np.abs(framework.numpy(run(*tensors)).astype(np.float64)).mean())
        except Exception as error:  # a peer that cannot run a row is shown with its reason
            found[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
            continue
        found[name] = {"seconds": best, "work": workload.work, "unit": workload.unit, "magnitude": magnitude}
    return found


def measure_training(framework: Framework, only: str, seconds: float) -> Rows:
    """An Adam step of a convolutional network: the time to the first and to the third loss, and of a steady step."""
    del only, seconds  # the rows come from one run of a fixed number of steps
    start = time.perf_counter()
    step = framework.training_step()
    if step is None:
        return {}
    moments = []
    for _ in range(WARM_UP_RUNS):
        step()
        moments.append(time.perf_counter() - start)
    steady = []
    for _ in range(TRAINING_STEPS):
        start = time.perf_counter()
        step()
        steady.append(time.perf_counter() - start)
    found = {"mnist_first_step_cold": moments[0], "mnist_third_step_cold": moments[2], "mnist_step": min(steady)}
    return {name: {"seconds": value} for name, value in found.items()}


def measure_cold(framework: Framework, only: str, seconds: float) -> Rows:
    """Time from nothing to the first result of 16 convolutions at batch 1, the import not counted."""
    del only, seconds
    generator = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return framework.tensor(generator.standard_normal(shape, dtype=np.float32) * np.float32(0.05))

    channels = [3] + [width for width in (16, 32, 64, 128) for _ in range(4)]
    kernels = [weight(after, before, 3, 3) for before, after in itertools.pairwise(channels)]
    head = weight(channels[-1], 10)
    image = framework.tensor(generator.standard_normal((1, 3, 64, 64), dtype=np.float32))

    def network(x: Any, head: Any, *kernels: Any) -> Any:
        for kernel in kernels:
            x = framework.convolution(x, kernel)
            x = x * (x > 0)
        return x.mean((2, 3)) @ head

    start = time.perf_counter()
    framework.numpy(framework.compiled(network)(image, head, *kernels))
    return {"convnet16_first_result_cold": {"seconds": time.perf_counter() - start}}


MEASURED_INSIDE = {"kernels": measure_kernels, "train": measure_training, "cold": measure_cold}
SUITES = ("latency", *MEASURED_INSIDE)


# ---------------------------------------------------------------- the parent: turns, caches, table


class Failed(Exception):
    """A framework could not run a suite; the message is the last line of what it said."""


def run_python(arguments: list[str], environment: dict[str, str]) -> str:
    """What a new Python process prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or ["no output"])[-1][:200])
    return done.stdout


def measure_latency(name: str, environment: dict[str, str]) -> Rows:
    """Time of a whole process that adds three numbers: without a cache, and with what the first has left there."""
    found: Rows = {}
    for row in ("first_result_cold", "first_result_warm"):
        start = time.perf_counter()
        run_python(["-c", FIRST_RESULT[name]], environment)
        found[row] = {"seconds": time.perf_counter() - start}
    return found


def measure_suite(name: str, suite: str, only: str, seconds: float) -> Rows:
    """The rows of one suite of one framework, with caches in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TILEWRIGHT_CACHE_DIR": str(Path(folder, "tilewright")),
            "CACHEDB": str(Path(folder, "tinygrad.db")),
            "JAX_PLATFORMS": "cpu",
        }
        if suite == "latency":
            return measure_latency(name, environment)
        child = ["-m", "bench.compare", "--child", name, "--suite", suite, "--only", only, "--seconds", str(seconds)]
        rows: Rows = json.loads(run_python(child, environment).splitlines()[-1])
        return rows


def keep_best(table: Table, name: str, rows: Rows) -> None:
    """Enters what one round of a framework gave: the shorter time of two, and a time before an error."""
    for row_name, row in rows.items():
        entries = table.setdefault(row_name, {})
        kept = entries.get(name)
        if kept is None or row.get("seconds", float("inf")) < kept.get("seconds", float("inf")):
            entries[name] = row


def table_cells(table: Table, names: list[str]) -> dict[str, list[str]]:
    """The cells of each row: the time of each framework, the best peer, and its time divided by ours."""
    found = {}
    for row_name, entries in table.items():
        times = {name: entries[name]["seconds"] for name in names if "seconds" in entries.get(name, {})}
        best_peer = min((name for name in times if name != OURS), key=times.__getitem__, default="-")
        ratio = f"{times[best_peer] / times[OURS]:.2f}" if OURS in times and best_peer != "-" else "-"
        found[row_name] = [
            *(f"{times[name] * 1e3:.3f}ms" if name in times else "-" for name in names),
            best_peer,
            ratio,
        ]
    return found


def markdown_lines(table: Table, names: list[str]) -> list[str]:
    """The table as BENCHMARKS.md has it."""
    lines = ["| row | " + " | ".join(names) + " | best peer | ratio |", "|---" * (len(names) + 3) + "|"]
    return lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in table_cells(table, names).items()]


def table_lines(table: Table, names: list[str]) -> list[str]:
    """The table as text; below a row what went wrong in it."""
    lines = [f"{'row':34}" + "".join(f"{heading:>14}" for heading in (*names, "best peer", "ratio"))]
    for row_name, cells in table_cells(table, names).items():
        entries = table[row_name]
        lines.append(f"{row_name:34}" + "".join(f"{cell:>14}" for cell in cells))
        lines += [f"    {name}: {entries[name]['error']}" for name in names if "error" in entries.get(name, {})]
        magnitudes = [entry["magnitude"] for entry in entries.values() if "magnitude" in entry]
        if magnitudes and not max(magnitudes) - min(magnitudes) <= TOLERANCE * max(magnitudes):  # NaN differs too
            lines.append(f"    VALUES DIFFER: mean magnitudes {magnitudes}")
    return lines


def list_of(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Reads `a,b` for argparse."""

    def read(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=list_of(SUITES), default=list(SUITES), help=f"of {','.join(SUITES)}")
    parser.add_argument("--peers", type=list_of(PEERS), default=list(PEERS), help=f"of {','.join(PEERS)}")
    parser.add_argument("--only", default="", help="kernels whose names contain this text")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each framework")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each kernel in a round")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", help="write every number to a file, or to stdout for `-`")
    parser.add_argument("--child", choices=tuple(FRAMEWORKS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(MEASURED_INSIDE[given.suite[0]](FRAMEWORKS[given.child](), given.only, given.seconds)))
        return
    names = [OURS, *given.peers]
    table: Table = {}
    for suite in given.suite:
        failures: dict[str, str] = {}
        for name in names * given.rounds:
            try:
                keep_best(table, name, measure_suite(name, suite, given.only, given.seconds))
            except (Failed, subprocess.TimeoutExpired) as error:
                failures[name] = str(error)
        for name, reason in failures.items():
            print(f"{suite}: {name} did not run: {reason}", flush=True)
    print("\n".join((markdown_lines if given.markdown else table_lines)(table, names)))
    if given.json:
        text = json.dumps(table, indent=1) + "\n"
        if given.json == "-":
            print(text, end="")
        else:
            Path(given.json).write_text(text)


if __name__ == "__main__":
    main()

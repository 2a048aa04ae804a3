"""Programs as strangers write them, beside torch: the results, or a loss and its gradients, compared and then timed.

    python -m bench.programs [--device CPU|CUDA] [--scale host|card|tiny] [--rows nerf,vae] [--torch eager|compiled]
                             [--seconds S] [--kernels N] [--clock wall|cpu] [--json FILE]

In: a device, and torch on the same one. Out: a line for each program, then the geometric mean of torch's time by ours
and the rows under 1; JSON where asked for. A program is one function for both libraries, and ours is jitted. Those that
train are compared by their loss and each gradient, the others, in float32, by their results, with torch's in a wider
dtype, before anything is timed: a row with an error above the tolerance and several times that of torch in the same
dtype is wrong, and the exit status 1. Several rows run in a process of their own, with caches that are empty at the
start. `--kernels N` lists the N kernels of each of our programs that take the longest. Both multiply float32 in full;
ALLOW_TF32=1 lets both use TF32.
"""

from __future__ import annotations

import argparse
import compileall
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import (
    programs_of_attention,
    programs_of_data,
    programs_of_images,
    programs_of_sequences,
    programs_of_sets,
    programs_of_simulations,
)
from bench.measuring import CLOCKS, steady_seconds
from bench.network_rows import SCALE_NAMES, SCALES, Array
from bench.networks import ERROR_MARGIN, ROOT, SECONDS, TIMEOUT_SECONDS, TOLERANCE, empty_caches
from bench.program_kit import OurLibrary, Program, TorchLibrary, call_of
from bench.slowest import slowest_kernels
from bench.sweep import error_of, ratio, rows_in_batches
from tilewright import Context, jit
from tilewright.base.config import options
from tilewright.runtime.device import open_driver

_MODULES = (
    programs_of_images,
    programs_of_sequences,
    programs_of_attention,
    programs_of_sets,
    programs_of_simulations,
    programs_of_data,
)
PROGRAMS = {
    member.name: member for module in _MODULES for member in vars(module).values() if isinstance(member, Program)
}
# A gradient whose norm is below this share of the largest one, in the dtype that is compared with, is zero but for
# rounding.
ZERO_SHARE = {"float32": 1e-12, "bfloat16": 1e-5}
ROWS_IN_A_PROCESS = 8
REPLAYS = 3  # before results are compared


# ---------------------------------------------------------------- values


def errors_of(names: list[str], found: list[Array], expected: list[Array], dtype: str) -> dict[str, float]:
    """The relative error of each result by its name. The error of a gradient, which comes after the loss, that is zero
    but for rounding, such as that of a bias before a norm, is relative to the largest gradient."""
    norms = [float(np.linalg.norm(array)) for array in expected]
    largest = max(norms[1:], default=0.0) if names[0] == "loss" else 0.0
    errors = {}
    for at, name in enumerate(names):
        if at and norms[at] < ZERO_SHARE[dtype] * largest:
            errors[name] = float(np.linalg.norm(found[at] - expected[at])) / largest
        else:
            errors[name] = error_of([found[at]], [expected[at]])
    return errors


def wrong_results(errors: dict[str, float], errors_of_torch: dict[str, float], dtype: str) -> list[str]:
    """The names of results with an error above the tolerance and above that of torch by a margin. NaN is wrong."""
    allowed = {name: max(TOLERANCE[dtype], ERROR_MARGIN * error) for name, error in errors_of_torch.items()}
    return [name for name, error in errors.items() if not error <= allowed[name]]


def results_of_torch(program: Program, scale: str, device: str, dtype: str) -> tuple[list[Array], list[Array]]:
    """The loss and the gradients in a wider dtype, and in the dtype itself."""
    results = []
    for is_reference in (True, False):
        library = TorchLibrary(device, dtype, is_reference)
        step, _ = call_of(program, scale, library)
        results.append([library.numbers(tensor) for tensor in step()])
    return results[0], results[1]


# ---------------------------------------------------------------- rows


@dataclass(frozen=True)
class Job:
    """What is measured of a program, and how. `mode` is that of torch: eager or compiled."""

    device: str
    dtype: str
    scale: str
    mode: str = "eager"
    seconds: float = SECONDS
    clock: str = "wall"
    kernels: int = 0


def measure(program: Program, job: Job) -> dict[str, Any]:
    """Seconds of a call of each library, of our first call, and the largest errors of both. A row that is wrong names
    the results that are, and has no times."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = bool(options.ALLOW_TF32)
    clock = CLOCKS[job.clock]
    expected, of_torch = results_of_torch(program, job.scale, job.device, job.dtype)
    torch.cuda.empty_cache()  # a card's memory is ours next
    with Context(DEVICE=job.device):
        library, driver = OurLibrary(job.device, job.dtype), open_driver(job.device)
        step, names = call_of(program, job.scale, library)
        call = jit(step)
        start = clock()
        found = call()
        driver.synchronize()
        row: dict[str, Any] = {"first": clock() - start}
        for _ in range(REPLAYS):
            found = call()
        errors = errors_of(names, [library.numbers(tensor) for tensor in found], expected, job.dtype)
        errors_of_torch = errors_of(names, of_torch, expected, job.dtype)
        row |= {"errors": errors, "torch_errors": errors_of_torch}
        row["wrong"] = wrong_results(errors, errors_of_torch, job.dtype)
        if row["wrong"]:
            return row
        del found, expected, of_torch
        row["ours"] = steady_seconds(call, driver.synchronize, job.seconds, clock)
        if job.kernels:
            row["kernels"] = slowest_kernels(step, job.kernels)
    return row | {job.mode: seconds_of_torch(program, job)}


def seconds_of_torch(program: Program, job: Job) -> float:
    """Of one call in the dtype that is measured."""
    import torch

    transform = torch.compile if job.mode == "compiled" else None
    step, _ = call_of(program, job.scale, TorchLibrary(job.device, job.dtype), transform)
    synchronize = torch.cuda.synchronize if job.device.startswith("CUDA") else (lambda: None)
    return steady_seconds(step, synchronize, job.seconds, CLOCKS[job.clock])


# ---------------------------------------------------------------- processes


def work(names: list[str], job: Job) -> None:
    """In a process of its own: a line before each row and one after it."""
    for name in names:
        program = PROGRAMS[name]
        row: dict[str, Any] = {"row": name, "title": program.title, "sizes": program.sizes[job.scale]}
        job_of_row = job if program.trains else replace(job, dtype="float32")
        row["dtype"] = job_of_row.dtype
        print(json.dumps(row | {"started": True}), flush=True)
        try:
            row |= measure(program, job_of_row)
        except Exception as error:  # one row's failure is reported in its line, the others still run
            row["failure"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(json.dumps(row), flush=True)


def rows_of(names: list[str], arguments: list[str]) -> Iterator[dict[str, Any]]:
    """All rows as they are done."""
    # Else the first call of a row compiles the package's own modules, where Python may not keep their bytecode.
    compileall.compile_dir(ROOT / "tilewright", quiet=1)
    command = [sys.executable, "-m", "bench.programs", *arguments, "--worker"]
    with tempfile.TemporaryDirectory() as folder:
        environment = empty_caches(Path(folder))
        yield from rows_in_batches(command, environment, "row", names, ROWS_IN_A_PROCESS, TIMEOUT_SECONDS)


# ---------------------------------------------------------------- the report

HEADER = f"{'':24}{'ours, ms':>11}{'torch, ms':>11}{'ratio':>8}{'first, s':>10}{'error':>10}{'torch':>10}"


def line_of(row: dict[str, Any], mode: str) -> str:
    """Times, the largest errors, and where a row is wrong its results that are."""
    name = row.get("row", "-")
    if "failure" in row:
        return f"{name:24}FAILED: {row['failure']}"
    times = (
        f"{row['ours'] * 1e3:11.4g}{row[mode] * 1e3:11.4g}{ratio(row, mode):8.2f}" if mode in row else f"{'WRONG':>30}"
    )
    errors = f"{worst(row['errors']):10.1e}{worst(row['torch_errors']):10.1e}"
    parts = [f"{each} {row['errors'][each]:.1e} (torch {row['torch_errors'][each]:.1e})" for each in row["wrong"]]
    return f"{name:24}{times}{row['first']:10.2f}{errors}  {', '.join(parts)}".rstrip()


def worst(errors: dict[str, float]) -> float:
    """The largest; NaN where there is one."""
    return float(np.max(list(errors.values())))


def summary(rows: list[dict[str, Any]], mode: str) -> list[str]:
    """The geometric mean, the rows under 1, and how many have no time."""
    ratios = {row["row"]: ratio(row, mode) for row in rows if mode in row}
    lines = [f"{len(ratios)} of {len(rows)} rows timed"]
    if ratios:
        lines[0] += f", geometric mean of torch's time by ours {statistics.geometric_mean(ratios.values()):.2f}"
        under = sorted((value, name) for name, value in ratios.items() if value < 1)
        lines.append("under 1: " + (", ".join(f"{name} {value:.2f}" for value, name in under) or "none"))
    return lines


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--scale", choices=SCALE_NAMES, default="", help="the sizes; by the device where empty")
    parser.add_argument("--rows", default="", help=f"separated by commas, of: {', '.join(PROGRAMS)}; all where empty")
    parser.add_argument("--torch", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of timing, for each row and library")
    parser.add_argument("--kernels", type=int, default=0, help="list this many of the slowest kernels of each row")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: of all threads of the process")
    parser.add_argument("--json", default="", help="a file for all rows")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    chosen.rows = [name.strip() for name in chosen.rows.split(",") if name.strip()] or list(PROGRAMS)
    for name in chosen.rows:
        if name not in PROGRAMS:
            parser.error(f"no row {name!r}; there are: {', '.join(PROGRAMS)}")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 where a row is wrong or has failed."""
    given = sys.argv[1:] if arguments is None else arguments
    chosen = parse(given)
    family = chosen.device.split(":")[0].upper()
    dtype, scale = "bfloat16" if family == "CUDA" else "float32", chosen.scale or SCALES.get(family, "tiny")
    if chosen.worker:
        job = Job(chosen.device, dtype, scale, chosen.torch, chosen.seconds, chosen.clock, chosen.kernels)
        work(chosen.worker.split(","), job)
        return 0
    print(HEADER)
    rows = []
    for row in rows_of(chosen.rows, given):
        rows.append(row)
        print("\n".join([line_of(row, chosen.torch), *row.get("kernels", ())]), flush=True)
        if chosen.json:
            Path(chosen.json).write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(summary(rows, chosen.torch)))
    return 1 if any(row.get("wrong") or "failure" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

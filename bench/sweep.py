"""Random operations and shapes beside torch: how often ours is slower, and where.

    python -m bench.sweep [--device CPU|CUDA] [--seed N] [--count N] [--seconds S] [--families matmul,pool]
                          [--torch eager|compiled] [--json FILE] [--only N,M] [--clock wall|cpu]

In: a seed, of which every row is made, and torch on the same device. Out: the geometric mean of torch's time by ours,
the share of rows under 0.8, 0.5 and 0.1, and the slowest 30; JSON where asked for. Results are compared with torch's in
float64 first: a row that is wrong is not timed. Rows run in a process of their own, several in each; one that is not
done within a limit (--limit) ends its process and is reported. The two libraries take turns, and the least time of
each counts: what others do on the machine is not measured. `--only 17` runs row 17 of a seed again. Both multiply
float32 in full; ALLOW_TF32=1 lets both use TF32, as torch would for convolutions alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import sweep_cases, sweep_movement
from bench.measuring import CLOCKS
from bench.sweep_cases import Array, Case, Random, Scale
from tilewright import Context, Tensor, dtypes, jit
from tilewright.base.config import options
from tilewright.runtime.device import open_driver

ROOT = Path(__file__).resolve().parents[1]
FAMILIES: dict[str, Callable[[Random, Scale], Case]] = {
    "matmul": sweep_cases.matmul,
    "linear": sweep_cases.linear,
    "convolution": sweep_cases.convolution,
    "attention": sweep_cases.attention,
    "reduction": sweep_cases.reduction,
    "norm": sweep_cases.norm,
    "elementwise": sweep_movement.elementwise,
    "scan": sweep_cases.scan_or_sort,
    "gather": sweep_movement.gather_or_scatter,
    "pool": sweep_movement.pool,
}
DEVICES = {"CUDA": "card", "CPU": "host"}
# What a result may differ by where torch's own does not differ by more, and how often that of torch's own.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
TORCH_ERRORS = 8
ROUNDS = 5
BATCH_SECONDS = 5e-3
SHOWN = 30
MIN_SECONDS = 1e-9  # no clock tells less, and ratios need more than 0
START_SECONDS = 120.0  # for a process to import the libraries and open the device


# ---------------------------------------------------------------- rows


def case_of(seed: int, number: int, families: list[str], scale: str) -> tuple[str, Case]:
    """Row `number` of a seed: its family and the case."""
    family = families[number % len(families)]
    random = np.random.default_rng([seed, number, list(FAMILIES).index(family)])
    return family, FAMILIES[family](random, sweep_cases.SCALES[scale])


def dtype_of(number: int, families: list[str], device: str) -> str:
    """Rows of a card are float32 and bfloat16 in turns, all families having both."""
    return "bfloat16" if device.upper().startswith("CUDA") and number // len(families) % 2 else "float32"


def measure(
    case: Case, device: str, dtype: str, seconds: float, is_compiled: bool, clock: str = "wall"
) -> dict[str, Any]:
    """Seconds of ours and of torch by a clock, or `wrong` with the error."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = bool(options.ALLOW_TF32)
    place = "cuda" if device.upper().startswith("CUDA") else "cpu"
    kind = getattr(torch, dtype)
    theirs = [torch.from_numpy(array).to(place) for array in case.inputs]
    theirs = [tensor.to(kind) if tensor.is_floating_point() else tensor for tensor in theirs]
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in theirs]
    expected = [numbers_of_torch(found) for found in case.their_results(*wide)]
    del wide
    torch_error = error_of([numbers_of_torch(found) for found in case.their_results(*theirs)], expected)
    with Context(DEVICE=device):
        ours = [placed(array, device, dtype) for array in case.inputs]
        driver = open_driver(device)
        replayed = jit(case.our_results())
        start = time.perf_counter()
        found = replayed(*ours)
        driver.synchronize()
        row: dict[str, Any] = {"first": time.perf_counter() - start}
        for _ in range(3):
            found = replayed(*ours)
        row["error"] = error_of([numbers_of_ours(tensor) for tensor in found], expected)
        row["torch_error"] = torch_error
        # NaN, which a comparison never passes, is wrong as well.
        if not row["error"] <= max(TOLERANCE[dtype], TORCH_ERRORS * torch_error):
            return row | {"wrong": True}
        del found, expected
        wait = torch.cuda.synchronize if place == "cuda" else (lambda: None)
        calls = {"ours": (lambda: replayed(*ours), driver.synchronize)}
        calls["eager"] = (lambda: case.their_results(*theirs), wait)
        if is_compiled:
            compiled = torch.compile(case.their_results)
            calls["compiled"] = (lambda: compiled(*theirs), wait)
        return row | best_in_turns(calls, seconds, CLOCKS[clock])


def placed(array: Array, device: str, dtype: str) -> Tensor:
    if array.dtype != np.float32:
        return Tensor(array, device=device).realize()
    return Tensor(array, device=device).cast(getattr(dtypes, dtype)).contiguous().realize()


def numbers_of_torch(tensor: Any) -> Array:
    return np.asarray(tensor.detach().double().cpu().numpy())


def numbers_of_ours(tensor: Tensor) -> Array:
    return np.asarray(tensor.float().numpy() if tensor.dtype.is_float else tensor.numpy()).astype(np.float64)


def error_of(found: list[Array], expected: list[Array]) -> float:
    """The largest |found - expected| / |expected| of the results; infinite where shapes differ."""
    worst = 0.0
    for ours, wanted in zip(found, expected, strict=True):
        if ours.shape != wanted.shape:
            return math.inf
        difference = float(np.linalg.norm((ours - wanted).reshape(-1)))
        error = difference / max(float(np.linalg.norm(wanted.reshape(-1))), 1e-30) if difference else 0.0
        worst = error if math.isnan(error) else max(worst, error)
    return worst


def best_in_turns(
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The least time of each call: batches of a few milliseconds in turns, at least `ROUNDS` and for `seconds`."""

    def timed(name: str, count: int) -> float:
        call, wait = calls[name]
        start = clock()
        for _ in range(count):
            call()
        wait()
        return max(clock() - start, MIN_SECONDS) / count

    best = {}
    for name in calls:
        timed(name, 2)
        best[name] = timed(name, 1)
    counts = {name: max(1, min(1000, int(BATCH_SECONDS / once))) for name, once in best.items()}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < ROUNDS or time.perf_counter() < end:
        for name in calls:
            best[name] = min(best[name], timed(name, counts[name]))
        rounds += 1
        if rounds >= 2 and time.perf_counter() > end + 10 * seconds:
            break
    return best


# ---------------------------------------------------------------- processes


def work(chosen: argparse.Namespace, numbers: list[int]) -> None:
    """In a process of its own: a line before each row and one after it."""
    for number in numbers:
        family, case = case_of(chosen.seed, number, chosen.families, chosen.scale)
        dtype = dtype_of(number, chosen.families, chosen.device)
        row: dict[str, Any] = {"number": number, "family": family, "name": case.name, "dtype": dtype}
        print(json.dumps(row | {"started": True}), flush=True)
        try:
            row |= measure(case, chosen.device, dtype, chosen.row_seconds, chosen.torch == "compiled", chosen.clock)
        except Exception as error:  # one row's failure is reported in its line, the others still run
            row["failure"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(json.dumps(row), flush=True)


def rows_of(chosen: argparse.Namespace, arguments: list[str]) -> Iterator[dict[str, Any]]:
    """All rows as they are done, until the time is over."""
    numbers = list(chosen.only) or list(range(chosen.count))
    end = time.perf_counter() + chosen.seconds if chosen.seconds else math.inf
    command = [sys.executable, "-m", "bench.sweep", *arguments, "--worker"]
    environment = os.environ | {"KMP_BLOCKTIME": "0"}
    for row in rows_in_batches(command, environment, "number", numbers, chosen.batch, chosen.limit):
        yield row
        if time.perf_counter() > end:
            return


def rows_in_batches(
    command: list[str], environment: dict[str, str], key: str, rows: list[Any], batch: int, limit: float
) -> Iterator[dict[str, Any]]:
    """Rows as they are done, `batch` of them in a process and then in the next. A command ends with the rows that it is
    to measure, and names each by `key` in what it prints. The rows after one that ends its process begin a new one."""
    left = list(rows)
    while left:
        for row in read_rows([*command, ",".join(map(str, left[:batch]))], environment, limit):
            yield row
            if key not in row:
                return  # no process can begin a row
            left.remove(row[key])


def read_rows(command: list[str], environment: dict[str, str], limit: float) -> Iterator[dict[str, Any]]:
    """The rows of one process. A row that takes longer than `limit`, or that ends the process, is the last of them."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: queue.Queue[str] = queue.Queue()
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    readers = [threading.Thread(target=_read, args=(process.stdout, lines.put), daemon=True)]
    readers.append(threading.Thread(target=_read, args=(process.stderr, errors.append), daemon=True))
    for reader in readers:
        reader.start()
    started: dict[str, Any] = {}
    try:
        while True:
            try:
                line = lines.get(timeout=limit if started else START_SECONDS)
            except queue.Empty:
                yield {**started, "failure": f"not done in {limit:.0f} s" if started else "no row was begun"}
                return
            if not line:
                readers[1].join()
                if started:
                    yield {**started, "failure": f"the process ended: {_last_line(errors)}"}
                elif process.wait():
                    yield {"failure": f"the process ended before the first row: {_last_line(errors)}"}
                return
            row = json.loads(line)
            if row.pop("started", False):
                started = row
            else:
                started = {}
                yield row
    finally:
        process.kill()
        process.wait()
        for reader, stream in zip(readers, (process.stdout, process.stderr), strict=True):
            reader.join()
            stream.close()


def _read(stream: Any, give: Callable[[str], Any]) -> None:
    for line in stream:
        give(line)
    give("")


def _last_line(errors: list[str]) -> str:
    said = [line.strip() for line in errors if line.strip()]
    return said[-1][:200] if said else "it said nothing"


# ---------------------------------------------------------------- the report


def report(rows: list[dict[str, Any]], mode: str) -> list[str]:
    """The summary and the slowest rows, in Markdown."""
    timed = sorted((row for row in rows if mode in row), key=lambda row: ratio(row, mode))
    lines = [f"## {mode}: {len(timed)} of {len(rows)} rows timed"]
    if timed:
        ratios = [ratio(row, mode) for row in timed]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        under = ", ".join(f"{sum(r < bar for r in ratios) / len(ratios):.0%} under {bar}" for bar in (0.8, 0.5, 0.1))
        lines += [f"geometric mean of torch's time by ours {mean:.2f}; {under}; the least {ratios[0]:.4f}", ""]
        lines += ["| family | rows | geometric mean | least |", "|---|---|---|---|"]
        for family in dict.fromkeys(row["family"] for row in rows):
            of_family = [ratio(row, mode) for row in timed if row["family"] == family]
            if of_family:
                mean = math.exp(sum(map(math.log, of_family)) / len(of_family))
                lines.append(f"| {family} | {len(of_family)} | {mean:.2f} | {min(of_family):.3f} |")
        lines += ["", "| row | | dtype | ours, ms | torch, ms | ratio |", "|---|---|---|---|---|---|"]
        for row in timed[:SHOWN]:
            cells = [str(row["number"]), row["name"], row["dtype"], f"{row['ours'] * 1e3:.4g}"]
            lines.append("| " + " | ".join([*cells, f"{row[mode] * 1e3:.4g}", f"{ratio(row, mode):.3f}"]) + " |")
    return lines


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each row that is wrong, failed or was not done."""
    lines = []
    for row in rows:
        where = f"{row.get('number', '-')} {row.get('name', '')} {row.get('dtype', '')}"
        if row.get("wrong"):
            lines.append(f"WRONG {where}: error {row['error']:.1e}, torch's own {row['torch_error']:.1e}")
        elif "failure" in row:
            lines.append(f"FAILED {where}: {row['failure']}")
    return lines


def ratio(row: dict[str, Any], mode: str) -> float:
    return float(row[mode]) / float(row["ours"])


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=140, help="rows")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="end after this long, with the rows done; 0 is never"
    )
    parser.add_argument("--families", default="", help=f"separated by commas, of: {', '.join(FAMILIES)}")
    parser.add_argument("--torch", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--scale", choices=tuple(sweep_cases.SCALES), default="", help="by the device where empty")
    parser.add_argument("--row-seconds", type=float, default=0.3, help="of timing, for each row")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: of all threads of the process")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a row counts as not done")
    parser.add_argument("--batch", type=int, default=20, help="rows in a process")
    parser.add_argument("--only", default="", help="numbers of rows, separated by commas")
    parser.add_argument("--json", default="", help="a file for all rows")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    chosen.families = [name.strip() for name in chosen.families.split(",") if name.strip()] or list(FAMILIES)
    for name in chosen.families:
        if name not in FAMILIES:
            parser.error(f"no family {name!r}; there are: {', '.join(FAMILIES)}")
    chosen.scale = chosen.scale or DEVICES.get(chosen.device.split(":")[0].upper(), "tiny")
    chosen.only = [int(number) for number in chosen.only.split(",") if number]
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 where a row is wrong."""
    given = sys.argv[1:] if arguments is None else arguments
    chosen = parse(given)
    if chosen.worker:
        work(chosen, [int(number) for number in chosen.worker.split(",")])
        return 0
    rows = []
    for row in rows_of(chosen, given):
        rows.append(row)
        told = f"{ratio(row, 'eager'):.3f}" if "eager" in row else "".join(problems([row]))
        print(f"{row.get('number', '-')} {row.get('name', '')}: {told}", file=sys.stderr, flush=True)
        if chosen.json:
            Path(chosen.json).write_text(json.dumps(rows, indent=1) + "\n")
    for mode in ("eager", "compiled")[: 2 if chosen.torch == "compiled" else 1]:
        print("\n".join(report(rows, mode)) + "\n")
    print("\n".join(problems(rows)) or "no row is wrong, none failed")
    return 1 if any(row.get("wrong") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

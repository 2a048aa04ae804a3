"""How speed grows with size: `python -m bench.scaling [--quick] [--out docs]`, beside torch where it is installed.

In: matrix products of 32 to 4096, also of odd sizes, and sums of a thousand to 256 million float32, over everything,
over rows and over columns. Out: scaling_matmul.png, scaling_sum.png and scaling.md, a table of rates and of ratios
(torch's time by ours: above 1 we are ahead). Each library runs in a process of its own, they take turns, and the best
time of each row counts. A result of ours that is wrong ends the run."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SIZES = (32, 33, 64, 65, 100, 128, 256, 333, 512, 1000, 1024, 1025, 2048, 4096)
ELEMENTS = tuple(1 << power for power in range(10, 29, 2))
QUICK_SIZE, QUICK_ELEMENTS = 256, 1 << 18
# What one row may take, after three runs that are not counted.
SECONDS = 0.5
MIN_RUNS, MAX_RUNS = 3, 500
# Larger products are compared in some of their rows.
CHECKED_ROWS = 16


@dataclass(frozen=True)
class Row:
    """`amount` is operations of a product and bytes of a sum; both are counted in thousand millions a second."""

    kind: str
    size: int
    shapes: tuple[tuple[int, ...], ...]
    amount: float

    @property
    def name(self) -> str:
        return f"{self.kind} {self.size}"

    def arrays(self) -> list[np.ndarray]:
        numbers = np.random.default_rng(7)
        made = [numbers.random(shape, dtype=np.float32) for shape in self.shapes]
        for array in made:
            array -= np.float32(0.5)
        return made

    @property
    def axis(self) -> int | None:
        """What a sum goes over."""
        return {"sum": None, "sum rows": 1, "sum columns": 0}[self.kind]

    def compute(self, *inputs: Any) -> Any:
        """The same words in both libraries."""
        if self.kind == "matmul":
            return inputs[0] @ inputs[1]
        (x,) = inputs
        return x.sum() if self.axis is None else x.sum(self.axis)

    def check(self, result: np.ndarray, inputs: list[np.ndarray]) -> None:
        """Against NumPy in float64, without a copy of what is summed in float64: it may fill the memory."""
        if self.kind == "matmul":
            result = result[:CHECKED_ROWS]
            expected = inputs[0][:CHECKED_ROWS].astype(np.float64) @ inputs[1].astype(np.float64)
            added = self.size
        else:
            expected = np.asarray(inputs[0].sum(self.axis, dtype=np.float64))
            added = inputs[0].size // expected.size
        # A sum of n numbers around 0 is about the root of n; its error in float32 stays far below that.
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3 * added**0.5, err_msg=self.name)


def rows_of(max_size: int, max_elements: int) -> Iterator[Row]:
    for n in SIZES:
        if n <= max_size:
            yield Row("matmul", n, ((n, n), (n, n)), 2.0 * n**3)
    for count in ELEMENTS:
        if count <= max_elements:
            across = 1 << (count.bit_length() // 2)
            yield Row("sum", count, ((count,),), 4.0 * count)
            yield Row("sum rows", count, ((count // across, across),), 4.0 * count)
            yield Row("sum columns", count, ((count // across, across),), 4.0 * count)


# ---------------------------------------------------------------- a process of one library


def our_call(row: Row, arrays: list[np.ndarray]) -> Callable[[], Any]:
    from tilewright import Tensor, jit

    inputs = [Tensor(array).realize() for array in arrays]
    replayed = jit(lambda *given: row.compute(*given).realize())
    row.check(np.asarray(replayed(*inputs).numpy()), arrays)
    return lambda: replayed(*inputs).synchronize()


def torch_call(row: Row, arrays: list[np.ndarray]) -> Callable[[], Any]:
    import torch

    inputs = [torch.from_numpy(array) for array in arrays]
    return lambda: row.compute(*inputs)


CALLS = {"tilewright": our_call, "torch": torch_call}


def measure(library: str, rows: Iterator[Row]) -> None:
    """A line of JSON per row on stdout, as soon as it is known."""
    for row in rows:
        call = CALLS[library](row, row.arrays())
        for _ in range(3):
            call()
        times: list[float] = []
        end = time.perf_counter() + SECONDS
        while len(times) < MIN_RUNS or (time.perf_counter() < end and len(times) < MAX_RUNS):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        print(json.dumps([row.name, min(times)]), flush=True)


# ---------------------------------------------------------------- the run

Best = dict[str, dict[str, float]]


def run_all(libraries: list[str], rows: list[Row], rounds: int, limits: list[str]) -> Best:
    best: Best = {row.name: {} for row in rows}
    for number in range(rounds):
        for library in libraries:
            command = [sys.executable, "-m", "bench.scaling", "--library", library, *limits]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for position, line in enumerate(process.stdout):
                    name, seconds = json.loads(line)
                    best[name][library] = min(seconds, best[name].get(library, seconds))
                    progress(f"round {number + 1} of {rounds}, {library}: {position + 1} of {len(rows)}, {name}")
            if process.returncode:
                raise SystemExit(f"\n{library} failed")
    progress("")
    return best


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


def table(rows: list[Row], best: Best, libraries: list[str]) -> str:
    lines = [
        "# Speed by size",
        "",
        f"Made by `python -m bench.scaling` on {os.cpu_count()} cores. The ratio is torch's",
    ]
    lines += ["time by ours.", "", "![matmul](scaling_matmul.png)", "", "![sums](scaling_sum.png)", ""]
    lines += [f"| row | unit | {' | '.join(libraries)} | ratio |", "|---" * (len(libraries) + 3) + "|"]
    for row in rows:
        times = best[row.name]
        rates = " | ".join(f"{row.amount / times[library] / 1e9:.2f}" for library in libraries)
        ratio = f"{times['torch'] / times['tilewright']:.2f}" if "torch" in times else "-"
        lines.append(f"| {row.name} | {'GFLOP/s' if row.kind == 'matmul' else 'GB/s'} | {rates} | {ratio} |")
    return "\n".join(lines) + "\n"


def save_plots(rows: list[Row], best: Best, libraries: list[str], folder: Path) -> None:
    draw(folder / "scaling_matmul.png", "matmul, float32, n by n", "n", "GFLOP/s", ["matmul"], rows, best, libraries)
    kinds = ["sum", "sum rows", "sum columns"]
    draw(folder / "scaling_sum.png", "sums, float32", "elements", "GB/s", kinds, rows, best, libraries)


def draw(
    path: Path, title: str, across: str, up: str, kinds: list[str], rows: list[Row], best: Best, libraries: list[str]
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for number, kind in enumerate(kinds):
        found = [row for row in rows if row.kind == kind]
        for library in libraries:
            rates = [row.amount / best[row.name][library] / 1e9 for row in found]
            style = {"linestyle": "-" if library == "tilewright" else "--", "color": f"C{number}"}
            if len(kinds) == 1:
                style["color"] = f"C{libraries.index(library)}"
            axes.plot([row.size for row in found], rates, marker=".", label=f"{library} {kind}", **style)
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, into build/scaling")
    parser.add_argument("--max-size", type=int, default=SIZES[-1], help="the largest product")
    parser.add_argument("--max-elements", type=int, default=ELEMENTS[-1], help="the longest sum")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--library", choices=sorted(CALLS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.max_size = min(arguments.max_size, QUICK_SIZE)
        arguments.max_elements = min(arguments.max_elements, QUICK_ELEMENTS)
        arguments.rounds = 1
    rows = list(rows_of(arguments.max_size, arguments.max_elements))
    if arguments.library:
        measure(arguments.library, iter(rows))
        return
    libraries = ["tilewright"] + ["torch"] * (importlib.util.find_spec("torch") is not None)
    limits = ["--max-size", str(arguments.max_size), "--max-elements", str(arguments.max_elements)]
    best = run_all(libraries, rows, arguments.rounds, limits)
    folder = arguments.out or ROOT / ("build/scaling" if arguments.quick else "docs")
    folder.mkdir(parents=True, exist_ok=True)
    text = table(rows, best, libraries)
    (folder / "scaling.md").write_text(text)
    save_plots(rows, best, libraries, folder)
    print(text)


if __name__ == "__main__":
    main()

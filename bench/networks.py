"""Whole networks beside torch, eager and compiled: the first call, the steady time, the peak of memory.

    python -m bench.networks [--device CPU|CUDA] [--rows gpt2,resnet50] [--torch none|eager|compiled] [--kernels N]
                             [--clock wall|cpu] [--json FILE]

In: a device, and torch on the same one. Out: a table, and JSON where asked for. Each row is measured in two
processes, one of torch and one of ours, with empty caches. All have the same weights and inputs. Three steps (or one
result) are compared with torch's in a wider dtype before anything is timed; a row that is wrong is reported as wrong:
one with an error above the tolerance and several times that of torch in the same dtype, the larger of two orders of
the batch. (Steps of a deep network are ill-conditioned: of the gradients of ResNet-50 with a batch of 4 both have 2
digits in float32, and the loss of the third step is right to a percent or to a tenth of it by chance.)
`--kernels N` lists the N kernels of our step that take the longest, by the device's clock where it has one.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import models
from bench.measuring import CLOCKS, CudaMemory, HostMemory, TorchCudaMemory, steady_seconds
from bench.network_rows import NETWORKS, RATES, SCALE_NAMES, SCALES, Array, Network, Sizes, values
from bench.slowest import slowest_kernels
from tilewright import Context, Tensor, dtypes, jit, nn
from tilewright.nn.state import get_parameters, get_state_dict
from tilewright.runtime.device import open_driver

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 2.0
TIMEOUT_SECONDS = 1800.0
TOLERANCE = {"float32": 2e-4, "bfloat16": 3e-2}
ERROR_MARGIN = 4.0  # times torch's own error
WIDER = {"float32": "float64", "bfloat16": "float32"}  # the dtype of what results are compared with


# ---------------------------------------------------------------- what is measured


@dataclass
class Measured:
    """Of one library: seconds of the first call and of a later one, bytes, results (losses, or one output)."""

    first: float = 0.0
    steady: float | None = None
    peak: int | None = None
    results: list[Array] = field(default_factory=list)


def run(
    call: Callable[[], Any],
    read: Callable[[Any], Array],
    count: int,
    synchronize: Callable[[], object],
    clock: Callable[[], float],
) -> Measured:
    """The first call, and `count` results of the first calls."""
    start = clock()
    results = [read(call())]
    synchronize()
    first = clock() - start
    return Measured(first, results=results + [read(call()) for _ in range(count - 1)])


def error_of(found: list[Array], expected: list[Array]) -> float:
    """The largest relative difference, of the norms of arrays. NaN passes nothing."""
    worst = 0.0
    for ours, wanted in zip(found, expected, strict=True):
        ours, wanted = ours.astype(np.float64), wanted.astype(np.float64)
        error = float(np.linalg.norm(ours - wanted) / max(float(np.linalg.norm(wanted)), 1e-300))
        worst = error if np.isnan(error) else max(worst, error)
    return worst


RESULTS = 3  # the steps whose losses are compared


@dataclass(frozen=True)
class Job:
    """A row on a device."""

    name: str
    device: str
    dtype: str
    scale: str
    seconds: float = SECONDS
    clock: str = "wall"

    @property
    def network(self) -> Network:
        return NETWORKS[self.name]

    @property
    def sizes(self) -> Sizes:
        return self.network.sizes[self.scale]

    @property
    def results(self) -> int:
        return RESULTS if self.network.is_step else 1


def torch_step(job: Job, torch: Any, dtype: str, is_compiled: bool, is_reversed: bool = False) -> Callable[[], Any]:
    """A call of the network in torch: a step that gives the loss, or a result. With the batch reversed a loss is the
    same, rounded otherwise: the classes and the buffers that have an element for each of the batch go with it."""
    network, device = job.network, "cuda" if job.device.startswith("CUDA") else "cpu"
    kind = getattr(torch, dtype)
    with torch.device(device):
        model = network.build(models.torch_kit(), job.sizes).to(kind)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.from_numpy(values(name, tuple(tensor.shape))))
        batch = job.sizes.get("batch", 1)
        for tensor in model.buffers() if is_reversed else ():
            if tensor.is_floating_point() and tensor.ndim > 1 and len(tensor) == batch:
                tensor.copy_(tensor.flip(0))
    arrays = network.inputs(job.sizes)
    if is_reversed:
        arrays = [array.reshape(batch, -1)[::-1].reshape(array.shape) for array in arrays]
    given = [torch.from_numpy(array.copy()).to(device) for array in arrays]
    if given[0].is_floating_point():
        given[0] = given[0].to(kind)
    if not network.is_step:
        model.eval()
        called = torch.compile(model) if is_compiled else model

        def result() -> Any:
            with torch.no_grad():
                return called(*given)

        return result
    wide = torch.float64 if kind is torch.float64 else torch.float32

    def loss_of(x: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(x).to(wide), target)

    traced = torch.compile(loss_of) if is_compiled else loss_of
    rate = RATES[network.optimizer]
    if network.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, fused=True)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = traced(*given)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def measure_torch(job: Job, modes: tuple[str, ...]) -> tuple[list[Array], dict[str, Measured]]:
    """The results to compare with, in a wider dtype; and what is measured of each mode."""
    import torch

    def read(tensor: Any) -> Array:
        return np.asarray(tensor.double().cpu().numpy())

    is_cuda = job.device.startswith("CUDA")
    synchronize = torch.cuda.synchronize if is_cuda else lambda: None
    wide = torch_step(job, torch, WIDER[job.dtype], False)
    expected = [read(wide()) for _ in range(job.results)]
    del wide
    found = {}
    for mode in modes:
        memory = TorchCudaMemory(torch) if is_cuda else HostMemory()
        call = torch_step(job, torch, job.dtype, mode == "compiled")
        measured = run(call, read, job.results, synchronize, CLOCKS[job.clock])
        measured.steady = steady_seconds(call, synchronize, job.seconds, CLOCKS[job.clock])
        measured.peak = memory.peak()
        found[mode] = measured
        del call
    if job.network.is_step and modes:
        call = torch_step(job, torch, job.dtype, False, is_reversed=True)
        found["reversed"] = Measured(results=[read(call()) for _ in range(job.results)])
    return expected, found


def our_step(job: Job) -> Callable[[], Any]:
    """A call of the network in tilewright, not jitted."""
    network, kind = job.network, getattr(dtypes, job.dtype)
    model = network.build(models.our_kit(), job.sizes)

    def placed(array: Array) -> Tensor:
        return Tensor(array, device=job.device).cast(kind).contiguous().realize()

    for name, tensor in get_state_dict(model).items():
        if tensor.dtype.is_float:
            tensor.replace(placed(values(name, tensor.shape)))
    given = []
    for array in network.inputs(job.sizes):
        is_float = array.dtype == np.float32
        given.append(placed(array) if is_float else Tensor(array.astype(np.int32), device=job.device).realize())
    if not network.is_step:

        def result() -> Tensor:
            with Tensor.no_grad():
                return model(*given).realize()  # type: ignore[no-any-return]

        return result
    parameters, rate = get_parameters(model), RATES[network.optimizer]
    if network.optimizer == "adamw":
        optimizer: Any = nn.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    else:
        optimizer = nn.optim.SGD(parameters, lr=rate, momentum=0.9)

    def step() -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = model(given[0]).float().cross_entropy(given[1])
            loss.backward()
            optimizer.step()
            return loss.realize()  # type: ignore[no-any-return]

    return step


def measure_ours(job: Job, expected: list[Array] | None, errors_of_torch: Sequence[float] = ()) -> Measured:
    """Timed where it agrees with what is expected, or where nothing is."""
    largest_error = max([TOLERANCE[job.dtype], *(ERROR_MARGIN * error for error in errors_of_torch)])
    with Context(DEVICE=job.device):
        driver = open_driver(job.device)
        memory = CudaMemory(job.device) if job.device.startswith("CUDA") else HostMemory()
        call = jit(our_step(job))
        measured = run(
            call, lambda tensor: np.asarray(tensor.float().numpy()), job.results, driver.synchronize, CLOCKS[job.clock]
        )
        if expected is None or error_of(measured.results, expected) <= largest_error:
            for _ in range(3):
                call()
            measured.steady = steady_seconds(call, driver.synchronize, job.seconds, CLOCKS[job.clock])
        measured.peak = memory.peak()
    return measured


# ---------------------------------------------------------------- kernels


def list_kernels(job: Job, count: int) -> list[str]:
    with Context(DEVICE=job.device):
        return slowest_kernels(our_step(job), count)


# ---------------------------------------------------------------- processes


def worker(job: Job, part: str, modes: tuple[str, ...], folder: Path, slowest: int) -> None:
    """In a process of its own: `part` is torch, ours or kernels. What it finds lies in `folder`."""
    stored = folder / "expected.npz"
    if part == "torch":
        expected, found = measure_torch(job, modes)
        np.savez(stored, *expected)
        answer: dict[str, Any] = {mode: summary(measured, expected) for mode, measured in found.items()}
    elif part == "ours":
        expected_ours = list(np.load(stored).values()) if stored.exists() else None
        of_torch = json.loads((folder / "torch.json").read_text()) if stored.exists() else {}
        measured = measure_ours(job, expected_ours, [mode["error"] for mode in of_torch.values()])
        answer = {"ours": summary(measured, expected_ours)}
    else:
        answer = {"kernels": list_kernels(job, slowest)}
    (folder / f"{part}.json").write_text(json.dumps(answer))


def summary(measured: Measured, expected: list[Array] | None) -> dict[str, Any]:
    error = None if expected is None else error_of(measured.results, expected)
    return {"first": measured.first, "steady": measured.steady, "peak": measured.peak, "error": error}


def measure_row(job: Job, modes: tuple[str, ...], slowest: int) -> dict[str, Any]:
    """All that is known of a row. A process that fails or takes too long leaves its last line."""
    row: dict[str, Any] = {"row": job.name, "title": job.network.title, "sizes": job.sizes, "dtype": job.dtype}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = empty_caches(folder)
        has_torch = importlib.util.find_spec("torch") is not None
        for part in (*(("torch",) if has_torch else ()), "ours", *(("kernels",) if slowest else ())):
            command = [sys.executable, "-m", "bench.networks", "--worker", part, "--rows", job.name]
            command += ["--device", job.device, "--dtype", job.dtype, "--scale", job.scale, "--folder", name]
            command += ["--seconds", str(job.seconds), "--torch", modes[-1] if modes else "none"]
            command += ["--kernels", str(slowest), "--clock", job.clock]
            failure = run_process(command, environment)
            if failure:
                row.setdefault("failures", {})[part] = failure
            else:
                row |= json.loads((folder / f"{part}.json").read_text())
    return row


def empty_caches(folder: Path) -> dict[str, str]:
    """The environment of a process that finds nothing compiled, and whose threads of torch do not spin."""
    environment = os.environ | {"TILEWRIGHT_CACHE_DIR": str(folder / "ours"), "KMP_BLOCKTIME": "0"}
    return environment | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"), "TRITON_CACHE_DIR": str(folder / "triton")}


def run_process(command: list[str], environment: dict[str, str]) -> str:
    """Empty where it succeeds, else the last line that it said."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done in {TIMEOUT_SECONDS:.0f} s"
    return (done.stderr.strip().splitlines() or ["no output"])[-1][:300] if done.returncode else ""


# ---------------------------------------------------------------- the table


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines in Markdown. The ratio is that of the better of torch's steady times to ours."""
    lines = ["| network | ours, ms | torch eager | compiled | ratio | first call, s: ours | eager | compiled |"]
    lines[0] += " peak, MB: ours | eager | compiled | error |"
    lines.append("|---" * 12 + "|")
    for row in rows:
        sides = [row.get(name) or {} for name in ("ours", "eager", "compiled")]
        steady = [shown(side.get("steady"), 1e3, "{:.4g}") for side in sides]
        if sides[0] and sides[0].get("steady") is None:
            steady[0] = "wrong"
        best = min((side["steady"] for side in sides[1:] if side.get("steady")), default=None)
        ratio = best / sides[0]["steady"] if best and sides[0].get("steady") else None
        first = [shown(side.get("first"), 1, "{:.2f}") for side in sides]
        peak = [shown(side.get("peak"), 1e-6, "{:.0f}") for side in sides]
        error = shown(sides[0].get("error"), 1, "{:.1e}")
        cells = [row["title"], *steady, shown(ratio, 1, "{:.2f}"), *first, *peak, error]
        lines.append("| " + " | ".join(cells) + " |")
        for part, failure in row.get("failures", {}).items():
            lines.append(f"| {row['title']}, {part} | {failure} |")
    return lines


def shown(value: float | None, factor: float, form: str) -> str:
    return "-" if value is None else form.format(value * factor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--rows", default="", help=f"separated by commas, of: {', '.join(NETWORKS)}; all where empty")
    parser.add_argument("--torch", choices=("none", "eager", "compiled"), default="compiled")
    parser.add_argument("--kernels", type=int, default=0, help="list this many of the slowest kernels of a step")
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), default="", help="bfloat16 on CUDA, else float32")
    parser.add_argument("--scale", choices=SCALE_NAMES, default="", help="the sizes; by the device where empty")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of timing, for each row and library")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: of all threads of the process")
    parser.add_argument("--json", default="", help="a file for all that was measured")
    parser.add_argument("--worker", choices=("torch", "ours", "kernels"), default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    family = chosen.device.split(":")[0].upper()
    dtype = chosen.dtype or ("bfloat16" if family == "CUDA" else "float32")
    scale = chosen.scale or SCALES.get(family, "tiny")
    names = [name.strip() for name in chosen.rows.split(",") if name.strip()] or list(NETWORKS)
    unknown = [name for name in names if name not in NETWORKS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are: {', '.join(NETWORKS)}")
    modes = {"none": (), "eager": ("eager",), "compiled": ("eager", "compiled")}[chosen.torch]
    jobs = [Job(name, chosen.device, dtype, scale, chosen.seconds, chosen.clock) for name in names]
    if chosen.worker:
        worker(jobs[0], chosen.worker, modes, Path(chosen.folder), chosen.kernels)
        return
    # As `make` and an installer do: else the first call compiles the package's own modules, where Python may not keep
    # their bytecode.
    compileall.compile_dir(ROOT / "tilewright", quiet=1)
    rows = []
    for job in jobs:
        start = time.perf_counter()
        rows.append(measure_row(job, modes, chosen.kernels))
        print(f"{job.name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        for line in rows[-1].get("kernels", ()):
            print(line, flush=True)
        if chosen.json:
            Path(chosen.json).write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()

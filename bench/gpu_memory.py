"""Memory-bound shapes beside torch eager on a card: transposes, scans, sorts, sums of any axes, sums by index, pools.

    python -m bench.gpu_memory [--rows PART,PART] [--device CUDA] [--seconds 55] [--json FILE]

In: a device (CUDA) and torch on the same card. Out: a table: milliseconds of both by the card's clock, the rate of ours
in TB/s of the bytes that must be moved, torch's time over ours, the seconds of the first call, the number of kernels.
Every result is compared with torch's on fresh random numbers; a row that is wrong says so and is not timed. Rows that
are not begun within `--seconds` are named at the end. `x+1` of 16 elements is timed by the host's clock: its launch is
what it costs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bench.gpu import bits, our_seconds, torch_seconds
from tilewright import Device, Tensor, jit
from tilewright.base.config import options, set_option
from tilewright.base.events import subscribe

TINY_CALLS = 3000


@dataclass(frozen=True)
class Row:
    """One line. `inputs(torch)` are tensors of torch on the card; `moved` the bytes that a call must read and write;
    `settings` the options that ours runs with."""

    name: str
    inputs: Callable[[Any], list[Any]]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Any]
    moved: float
    tolerance: float = 1e-5
    settings: Mapping[str, int] = field(default_factory=dict)


def numbers(*shapes: tuple[int, ...], dtype: str = "float32") -> Callable[[Any], list[Any]]:
    return lambda torch: [torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for shape in shapes]


def with_indices(size: int, shape: tuple[int, ...], *shapes: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    """Random indices below `size`, then random numbers."""

    def made(torch: Any) -> list[Any]:
        return [torch.randint(0, size, shape, device="cuda"), *numbers(*shapes)(torch)]

    return made


def standardised(x: Any) -> Any:
    return (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)


def table_gradient(index: Tensor, slope: Tensor, table: Tensor) -> Tensor:
    return (table[index] * slope).sum().gradient(table)[0]


def gather_gradient(index: Tensor, slope: Tensor, source: Tensor) -> Tensor:
    return (source.gather(1, index) * slope).sum().gradient(source)[0]


def topk_gradient(x: Tensor, slope: Tensor) -> Tensor:
    return (x.topk(10)[0] * slope).sum().gradient(x)[0]


def their_table_gradient(index: Any, slope: Any, _: Any) -> Any:
    import torch

    return torch.ops.aten.embedding_dense_backward(slope, index, 32000, -1, False)


def their_topk_gradient(x: Any, slope: Any) -> Any:
    import torch

    return torch.zeros_like(x).scatter(1, x.topk(10)[1], slope)


def their_average(x: Any) -> Any:
    import torch

    return torch.nn.functional.avg_pool2d(x, 3)


def their_padded_average(x: Any) -> Any:
    import torch

    return torch.nn.functional.avg_pool2d(x, 3, 2, 1)


def their_greatest(x: Any) -> Any:
    import torch

    return torch.nn.functional.max_pool2d(x, 3, 2, 1)


MEGA = 1 << 20
IMAGES = (64, 256, 56, 56)
ROWS = (
    Row(
        "transpose f32 16384x16384",
        numbers((16384, 16384)),
        lambda x: x.T.contiguous(),
        lambda x: x.T.contiguous(),
        8 * 16384**2,
        0,
    ),
    Row(
        "transpose bf16 8192x8192",
        numbers((8192, 8192), dtype="bfloat16"),
        lambda x: x.T.contiguous(),
        lambda x: x.T.contiguous(),
        4 * 8192**2,
        0,
    ),
    Row(
        "transpose f32 10007x9001",
        numbers((10007, 9001)),
        lambda x: x.T.contiguous(),
        lambda x: x.T.contiguous(),
        8 * 10007 * 9001,
        0,
    ),
    Row(
        "x + y.T 8192x8192",
        numbers((8192, 8192), (8192, 8192)),
        lambda x, y: x + y.T,
        lambda x, y: x + y.T,
        12 * 8192**2,
    ),
    Row(
        "NCHW to NHWC 64x256x56x56",
        numbers(IMAGES),
        lambda x: x.permute(0, 2, 3, 1).contiguous(),
        lambda x: x.permute(0, 2, 3, 1).contiguous(),
        8 * 64 * 256 * 56 * 56,
        0,
    ),
    Row("sum of 4000x4097", numbers((4000, 4097)), lambda x: x.sum(), lambda x: x.sum(), 4 * 4000 * 4097, 1e-3),
    Row("var of 4000x4097", numbers((4000, 4097)), lambda x: x.var(), lambda x: x.var(), 4 * 4000 * 4097),
    Row("sum of 67108859", numbers((67108859,)), lambda x: x.sum(), lambda x: x.sum(), 4 * 67108859, 1e-2),
    Row(
        "standardise over (0,2,3)",
        numbers(IMAGES),
        standardised,
        standardised,
        8 * 64 * 256 * 56 * 56,
    ),
    Row("sum of columns 8192x768", numbers((8192, 768)), lambda x: x.sum(0), lambda x: x.sum(0), 4 * 8192 * 768, 1e-4),
    Row("sum of columns 65536x100", numbers((65536, 100)), lambda x: x.sum(0), lambda x: x.sum(0), 4 * 6553600, 1e-4),
    Row(
        "logsumexp 8192x50257",
        numbers((8192, 50257)),
        lambda x: x.logsumexp(-1),
        lambda x: x.logsumexp(-1),
        4 * 8192 * 50257,
    ),
    Row(
        "softmax 8192x4097",
        numbers((8192, 4097)),
        lambda x: x.softmax(-1),
        lambda x: x.softmax(-1),
        8 * 8192 * 4097,
    ),
    Row(
        "cumsum 16384x8192",
        numbers((16384, 8192)),
        lambda x: x.cumsum(1),
        lambda x: x.cumsum(1),
        8 * 16384 * 8192,
    ),
    Row(
        "cumsum 8192x8191 along columns",
        numbers((8192, 8191)),
        lambda x: x.cumsum(0),
        lambda x: x.cumsum(0),
        8 * 8192 * 8191,
    ),
    Row("cumsum of 16M", numbers((16 * MEGA,)), lambda x: x.cumsum(0), lambda x: x.cumsum(0), 128 * MEGA, 1e-4),
    Row(
        "embedding gradient 32000x512",
        with_indices(32000, (4096,), (4096, 512), (32000, 512)),
        table_gradient,
        their_table_gradient,
        4 * 512 * (32000 + 4096),
    ),
    Row(
        "gather gradient 1000x1000",
        with_indices(1000, (1000, 300), (1000, 300), (1000, 1000)),
        gather_gradient,
        lambda i, g, x: g.new_zeros(x.shape).scatter_add(1, i, g),
        4 * 1000 * 1600,
    ),
    *(
        Row(
            name,
            with_indices(MEGA, (MEGA,), (MEGA,), (MEGA,)),
            lambda i, g, x: x.scatter_add(0, i, g),
            lambda i, g, x: x.scatter_add(0, i, g),
            20 * MEGA,
            settings=settings,
        )
        for name, settings in (
            ("scatter_add of 1M", {}),
            ("scatter_add of 1M, atomic", {"ALLOW_FLOAT_ATOMICS": 1}),
        )
    ),
    Row(
        "topk 10 of 1000x10000",
        numbers((1000, 10000)),
        lambda x: x.topk(10)[0],
        lambda x: x.topk(10)[0],
        4 * 1000 * 10000,
        0,
    ),
    Row(
        "topk gradient 1000x10000",
        numbers((1000, 10000), (1000, 10)),
        topk_gradient,
        their_topk_gradient,
        8 * 1000 * 10000,
    ),
    Row(
        "avg_pool2d 3 of 32x64x112x112",
        numbers((32, 64, 112, 112)),
        lambda x: x.avg_pool2d((3, 3)),
        their_average,
        4 * 32 * 64 * (112 * 112 + 37 * 37),
    ),
    Row(
        "avg_pool2d 3/2+1 of 32x64x112x112",
        numbers((32, 64, 112, 112)),
        lambda x: x.avg_pool2d((3, 3), stride=2, padding=1),
        their_padded_average,
        4 * 32 * 64 * (112 * 112 + 56 * 56),
    ),
    Row(
        "max_pool2d 3/2+1 of 32x64x112x112",
        numbers((32, 64, 112, 112)),
        lambda x: x.max_pool2d((3, 3), stride=2, padding=1),
        their_greatest,
        4 * 32 * 64 * (112 * 112 + 56 * 56),
        0,
    ),
    Row(
        "sort 1024x16384",
        numbers((1024, 16384)),
        lambda x: x.sort(-1)[0],
        lambda x: x.sort(-1)[0],
        8 * 1024 * 16384,
        0,
    ),
    Row("sort of 1M", numbers((MEGA,)), lambda x: x.sort()[0], lambda x: x.sort()[0], 8 * MEGA, 0),
)


def relative_error(torch: Any, found: Tensor, wanted: Any) -> float:
    array = found.numpy()
    if array.shape != tuple(wanted.shape):
        return float("nan")
    if array.dtype.name == "bfloat16":
        ours = torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    else:
        ours = torch.from_numpy(np.ascontiguousarray(array)).cuda()
    difference = torch.linalg.vector_norm(ours.float() - wanted.float()) / torch.linalg.vector_norm(wanted.float())
    return float(difference)


def measure_row(row: Row, device: str, torch: Any) -> dict[str, Any]:
    """The options are set for the process: while a `Context` is open, a call takes longer to launch."""
    before = {name: getattr(options, name) for name in row.settings}
    try:
        for name, value in row.settings.items():
            set_option(name, value)
        return measure(row, device, torch)
    finally:
        for name, value in before.items():
            set_option(name, value)


def measure(row: Row, device: str, torch: Any) -> dict[str, Any]:
    inputs = row.inputs(torch)
    wide = [x.double() if x.dtype is torch.float32 and x.numel() <= MEGA * 64 else x for x in inputs]
    wanted = row.theirs(*(inputs if row.tolerance == 0 else wide))
    theirs = torch_seconds(torch, lambda: row.theirs(*inputs))
    tensors = [Tensor(bits(x, torch), device=device).realize() for x in inputs]
    kernels: list[str] = []
    captured = jit(lambda *given: row.ours(*given))
    start = time.perf_counter()
    with subscribe(lambda event: kernels.append(str(event["source"])), ("kernel-compiled",)):
        found = captured(*tensors)
        Device[device].synchronize()
        first = time.perf_counter() - start
        for _ in range(2):
            found = captured(*tensors)
    error = relative_error(torch, found, wanted)
    result = {"row": row.name, "torch ms": theirs * 1e3, "first s": first, "kernels": len(kernels), "error": error}
    if error <= row.tolerance:
        ours = our_seconds(device, lambda: captured(*tensors))
        result |= {"ours ms": ours * 1e3, "TB/s": row.moved / ours / 1e12, "ratio": theirs / ours}
    return result


def measure_tiny(device: str, torch: Any) -> dict[str, Any]:
    """`x+1` of 16 elements by the host's clock, from the first call to the end of the last kernel."""
    theirs, ours = torch.zeros(16, device="cuda"), Tensor.zeros(16, device=device).contiguous().realize()
    captured = jit(lambda x: x + 1)
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "torch ms": (lambda: theirs + 1, torch.cuda.synchronize),
        "ours ms": (lambda: captured(ours), Device[device].synchronize),
    }
    result: dict[str, Any] = {"row": "x+1 of 16, jitted", "first s": 0.0, "kernels": 1, "error": 0.0}
    for name, (call, wait) in calls.items():
        times = []
        for _ in range(4):
            start = time.perf_counter()
            for _ in range(TINY_CALLS):
                call()
            wait()
            times.append((time.perf_counter() - start) / TINY_CALLS)
        result[name] = min(times) * 1e3
    result["ratio"] = result["torch ms"] / result["ours ms"]
    return result


def print_table(results: list[dict[str, Any]]) -> None:
    columns = ("torch ms", "ours ms", "TB/s", "ratio", "first s", "kernels", "error")
    print("| " + " | ".join(["row", *columns]) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for result in results:
        if "failure" in result:
            print(f"| {result['row']} | {result['failure']} |")
            continue
        missing = "" if "ours ms" in result else "wrong"
        cells = [f"{result[name]:.3g}" if name in result else missing for name in columns]
        print("| " + " | ".join([result["row"], *cells]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="parts of names, separated by commas; all where empty")
    parser.add_argument("--device", default="CUDA")
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--json", default="")
    chosen = parser.parse_args()
    import torch

    wanted = [part.strip() for part in chosen.rows.split(",") if part.strip()]
    jobs = [("x+1 of 16, jitted", lambda: measure_tiny(chosen.device, torch))]
    jobs += [(row.name, partial(measure_row, row, chosen.device, torch)) for row in ROWS]
    results: list[dict[str, Any]] = []
    began = time.perf_counter()
    for name, job in jobs:
        if wanted and not any(part in name for part in wanted):
            continue
        start = time.perf_counter()
        if start - began > chosen.seconds:
            results.append({"row": name, "failure": "not begun"})
            continue
        try:
            results.append(job())
        except Exception as error:  # one row's failure is reported in its line, the others still run
            text = " ".join(str(error).split())[:300]
            results.append({"row": name, "failure": f"{type(error).__name__}: {text}"})
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    print_table(results)
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()

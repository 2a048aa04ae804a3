"""The speed table of a card beside torch's, eager and compiled, in one run.

    python -m bench.gpu [--rows softmax,sum] [--torch none|eager|compiled] [--json FILE]

In: a device (CUDA) and torch on the same card. Out: a table, and JSON where asked for. Every result is first compared
with torch's in float64 on fresh random numbers; a row that is wrong is reported as wrong and not timed. Times are
medians by the card's own clock over runs of the jitted function, whose inputs are several times the size of the cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.issues import quantised_experts
from tilewright import Device, Opt, OptOps, Tensor, jit
from tilewright.base.events import subscribe

BATCHES = 7
BATCH_SECONDS = 0.05
ELEMENTS = 1 << 28


@dataclass(frozen=True)
class Row:
    """One line: `amount` is operations (TFLOP/s) or bytes (TB/s) a call; `bar` what it should reach at least."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Any]
    amount: float
    unit: str
    bar: float
    tolerance: float


def _layernorm(x: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:])


ROWS = (
    Row(
        "x*y+x 256M f32",
        ((ELEMENTS,), (ELEMENTS,)),
        "float32",
        lambda x, y: x * y + x,
        lambda x, y: x * y + x,
        3 * 4 * ELEMENTS,
        "TB/s",
        3.9,
        1e-6,
    ),
    Row(
        "sum 256M f32", ((ELEMENTS,),), "float32", lambda x: x.sum(), lambda x: x.sum(), 4 * ELEMENTS, "TB/s", 3.9, 1e-3
    ),
    Row(
        "softmax 16384x8192 f32",
        ((16384, 8192),),
        "float32",
        lambda x: x.softmax(-1),
        lambda x: x.softmax(-1),
        2 * 4 * 16384 * 8192,
        "TB/s",
        3.0,
        1e-5,
    ),
    Row(
        "layernorm 16384x8192 f32",
        ((16384, 8192),),
        "float32",
        lambda x: x.layernorm(),
        _layernorm,
        2 * 4 * 16384 * 8192,
        "TB/s",
        3.0,
        1e-5,
    ),
    Row(
        "gemv bf16 28672x8192",
        ((28672, 8192), (8192,)),
        "bfloat16",
        lambda w, x: w @ x,
        lambda w, x: w @ x,
        2 * (28672 * 8192 + 8192 + 28672),
        "TB/s",
        3.4,
        1e-2,
    ),
    Row(
        "matmul f32 4096",
        ((4096, 4096), (4096, 4096)),
        "float32",
        lambda a, b: a @ b,
        lambda a, b: a @ b,
        2.0 * 4096**3,
        "TFLOP/s",
        25,
        1e-5,
    ),
    Row(
        "matmul bf16 8192",
        ((8192, 8192), (8192, 8192)),
        "bfloat16",
        lambda a, b: a @ b,
        lambda a, b: a @ b,
        2.0 * 8192**3,
        "TFLOP/s",
        400,
        1e-2,
    ),
)


# ---------------------------------------------------------------- timing


def median_seconds(seconds_of: Callable[[int], float]) -> float:
    """`seconds_of(n)` times n calls in a row; the median of several batches that are long enough to time, one batch
    where a call is longer than that."""
    seconds_of(2)
    once = max(seconds_of(3) / 3, 1e-7)
    count = max(3, min(200, int(BATCH_SECONDS / once)))
    return statistics.median(seconds_of(count) / count for _ in range(BATCHES if once < BATCH_SECONDS else 1))


def torch_seconds(torch: Any, call: Callable[[], Any]) -> float:
    def seconds_of(count: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    return median_seconds(seconds_of)


def our_seconds(device: str, call: Callable[[], Any]) -> float:
    card = Device[device].card  # type: ignore[attr-defined]

    def repeat(count: int) -> None:
        for _ in range(count):
            call()

    return median_seconds(lambda count: float(card.seconds(lambda: repeat(count))))


# ---------------------------------------------------------------- values


def bits(tensor: Any, torch: Any) -> Any:
    """A torch tensor's numbers as a NumPy array that Tensor takes, bfloat16 included."""
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


def relative_error(torch: Any, found: Tensor, expected: Any) -> float:
    """|found - expected| / |expected| in float64. NaN stays NaN, which passes nothing."""
    array = found.numpy()
    if array.dtype.name == "bfloat16":
        theirs = torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    else:
        theirs = torch.from_numpy(np.ascontiguousarray(array)).cuda()
    error = 0.0
    norm = 0.0
    for ours, wanted in zip(theirs.reshape(-1).split(1 << 24), expected.reshape(-1).split(1 << 24), strict=True):
        error += float(((ours.double() - wanted.double()) ** 2).sum())
        norm += float((wanted.double() ** 2).sum())
    return (error / max(norm, 1e-300)) ** 0.5


def reference(row: Row, inputs: list[Any]) -> Any:
    """torch's result on the same numbers in float64; of a product of large matrices in float32, which is exact enough
    beside bfloat16, or on float64 where the row is float32."""
    wide = [x.float() if row.dtype == "bfloat16" else x.double() for x in inputs]
    return row.theirs(*wide)


# ---------------------------------------------------------------- quantised experts

TOKENS, CHOSEN, EXPERTS, WIDTH, HIDDEN = 64, 4, 64, 1536, 2048
# Both bytes of a word at once; half a warp to a row, whose neighbours read neighbouring words, eight each in flight;
# four rows to a thread, which take the same elements of the token; two such in a work-group.
EXPERT_OPTS = (
    Opt(OptOps.UPCAST, 3, 2),
    Opt(OptOps.GROUP, 2, 16),
    Opt(OptOps.UNROLL, 3, 8),
    Opt(OptOps.UPCAST, 1, 4),
    Opt(OptOps.LOCAL, 1, 2),
)
EXPERT_BYTES = CHOSEN * WIDTH * HIDDEN // quantised_experts.BLOCK * quantised_experts.BLOCK_BYTES


def measure_experts(device: str) -> list[dict[str, Any]]:
    """The Q4_0 expert product of one token as a kernel written by hand and as a tensor expression. A token's weights
    fit in the cache, so tokens with unlike experts follow each other: together they read many times what it holds.
    Tokens do not need each other, so the card may run the launches of several side by side."""
    generator = np.random.default_rng()
    weights = quantised_experts.random_weights(EXPERTS, WIDTH, HIDDEN, int(generator.integers(1 << 30)))
    x = generator.standard_normal(HIDDEN).astype(np.float32)
    order = np.concatenate([generator.permutation(EXPERTS) for _ in range(TOKENS * CHOSEN // EXPERTS)])
    chosen = order.reshape(TOKENS, CHOSEN).astype(np.int32)
    token = Tensor(x, device=device).realize()
    given = Tensor(weights, device=device).realize()
    words = Tensor(weights.view(np.uint16), device=device).realize()
    picks = [Tensor(value, device=device).realize() for value in chosen]
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "kernel": lambda pick: quantised_experts.run_kernel(words, token, pick, EXPERT_OPTS),
        "kernel, heuristic": lambda pick: quantised_experts.run_kernel(words, token, pick, None),
        "expression": lambda pick: quantised_experts.run_expression(given, token, pick),
    }
    results = []
    for name, way in ways.items():
        kernels: list[str] = []
        with subscribe(lambda event, found=kernels: found.append(str(event["source"])), ("kernel-compiled",)):
            captured = jit(lambda way=way: Tensor.stack(*(way(pick) for pick in picks)))
            for _ in range(4):
                found = captured().numpy()
        wanted = np.stack([quantised_experts.expected(weights, x, chosen[n]) for n in (0, TOKENS - 1)])
        got = found[[0, TOKENS - 1]]
        error = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
        result = {"row": f"Q4_0 experts, {name}", "unit": "TB/s", "bar": 2.0, "error": error, "kernels": len(kernels)}
        result["sources"] = kernels
        seconds = our_seconds(device, captured) / TOKENS
        result["ours"] = EXPERT_BYTES / seconds / 1e12 if error < 1e-4 else None
        results.append(result)
    return results


# ---------------------------------------------------------------- rows


def measure(row: Row, device: str, torch: Any, modes: tuple[str, ...]) -> dict[str, Any]:
    generator = torch.Generator(device="cuda").manual_seed(time.time_ns() % (1 << 31))
    kind = getattr(torch, row.dtype)
    inputs = [torch.randn(shape, generator=generator, device="cuda").to(kind) for shape in row.shapes]
    result: dict[str, Any] = {"row": row.name, "unit": row.unit, "bar": row.bar}
    for mode in modes:
        function = row.theirs if mode == "eager" else torch.compile(row.theirs)
        result[f"torch {mode}"] = rate(row, torch_seconds(torch, lambda f=function: f(*inputs)))
    tensors = [Tensor(bits(x, torch), device=device).realize() for x in inputs]
    kernels: list[str] = []
    with subscribe(lambda event: kernels.append(str(event["source"])), ("kernel-compiled",)):
        captured = jit(lambda *given: row.ours(*given))
        found = captured(*tensors)
        for _ in range(3):
            found = captured(*tensors)
    result["error"] = relative_error(torch, found, reference(row, inputs))
    result["kernels"] = len(kernels)
    result["sources"] = kernels
    if not result["error"] <= row.tolerance:
        result["ours"] = None
        return result
    result["ours"] = rate(row, our_seconds(device, lambda: captured(*tensors)))
    return result


def rate(row: Row, seconds: float) -> float:
    return row.amount / seconds / 1e12


def print_table(results: list[dict[str, Any]], modes: tuple[str, ...]) -> None:
    columns = [f"torch {mode}" for mode in modes]
    print("| " + " | ".join(["row", "unit", "ours", "bar", *columns, "relative error", "kernels"]) + " |")
    print("|---" * (6 + len(columns)) + "|")
    for result in results:
        if "failure" in result:
            print(f"| {result['row']} | {result['failure']} |")
            continue
        ours = "wrong" if result["ours"] is None else f"{result['ours']:.3g}"
        theirs = [f"{result[column]:.3g}" if column in result else "" for column in columns]
        cells = [result["row"], result["unit"], ours, str(result["bar"]), *theirs, f"{result['error']:.1e}"]
        print("| " + " | ".join([*cells, str(result["kernels"])]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="parts of names, separated by commas; all where empty")
    parser.add_argument("--torch", choices=("none", "eager", "compiled"), default="compiled")
    parser.add_argument("--device", default="CUDA")
    parser.add_argument("--json", default="")
    chosen = parser.parse_args()
    import torch

    modes = {"none": (), "eager": ("eager",), "compiled": ("eager", "compiled")}[chosen.torch]
    wanted = [part.strip() for part in chosen.rows.split(",") if part.strip()]
    results: list[dict[str, Any]] = []
    jobs = [(row.name, lambda row=row: [measure(row, chosen.device, torch, modes)]) for row in ROWS]
    jobs.append(("Q4_0 experts", lambda: measure_experts(chosen.device)))
    for name, job in jobs:
        if wanted and not any(part in name for part in wanted):
            continue
        start = time.perf_counter()
        try:
            results += job()
        except Exception as error:  # one row's failure is reported in its line, the others still run
            text = " ".join(str(error).split())[:300]
            results.append({"row": name, "failure": f"{type(error).__name__}: {text}"})
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    print_table(results, modes)
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()

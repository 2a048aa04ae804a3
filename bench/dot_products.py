"""Products of narrow numbers, beside float32 and torch where it is installed: `python -m bench.dot_products [part of a
name]`. In: square matrices, and a matrix with a vector, of int8, bfloat16 and float16. Out: per row the best time, its
speed over that of our float32, and torch's time over ours. The dtypes take turns, so their ratios hold on a busy
machine; torch comes after us, because its threads keep the cores busy for a while after each call."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import Tensor, dtypes, jit

DTYPES = ("float32", "bfloat16", "float16", "int8")
SIZES = (256, 512, 1024)
VECTOR_SIZE = 4096
SECONDS = 5.0  # of each group, for us and for torch
# A call that takes longer is timed once: torch has no fast product of float16 on many processors.
MAX_SECONDS = 0.5


def factors(name: str, shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    if name == "int8":
        return [generator.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]


def ours(name: str, arrays: list[np.ndarray]) -> Callable[[], Any]:
    inputs = [Tensor(array).cast(name).realize() for array in arrays]
    total = dtypes.int32 if name == "int8" else None
    product = jit(lambda left, right: left.matmul(right, dtype=total).realize())
    return lambda: product(*inputs)


def theirs(torch: Any, name: str, arrays: list[np.ndarray]) -> Callable[[], Any] | None:
    """Integers are multiplied into 32 bits by a function that takes matrices alone."""
    if name == "int8" and (arrays[1].ndim == 1 or not hasattr(torch, "_int_mm")):
        return None
    left, right = (torch.from_numpy(array).to(getattr(torch, name)) for array in arrays)
    return lambda: torch._int_mm(left, right) if name == "int8" else left @ right


def measure(variants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The best time of each, in turns."""
    best: dict[str, float] = {}
    for run in variants.values():
        run()
        run()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for name, run in variants.items():
            if best.get(name, 0.0) > MAX_SECONDS:
                continue
            start = time.perf_counter()
            run()
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
    return best


def main(wanted: str = "") -> None:
    torch: Any = __import__("torch") if importlib.util.find_spec("torch") else None
    groups = {f"matmul {size}": ((size, size), (size, size)) for size in SIZES}
    groups[f"gemv {VECTOR_SIZE}"] = ((VECTOR_SIZE, VECTOR_SIZE), (VECTOR_SIZE,))
    for group, shapes in groups.items():
        if wanted not in group:
            continue
        arrays = {name: factors(name, shapes) for name in DTYPES}
        best = measure({name: ours(name, arrays[name]) for name in DTYPES})
        peers = {name: theirs(torch, name, arrays[name]) for name in DTYPES} if torch else {}
        their_best = measure({name: run for name, run in peers.items() if run is not None})
        for name in DTYPES:
            peer_time = their_best.get(name)
            beside = "" if peer_time is None else f", torch takes {peer_time / best[name]:.2f} times as long"
            speed = best["float32"] / best[name]
            print(f"{group} {name}: {best[name] * 1e3:.3f} ms, {speed:.2f} of float32's speed{beside}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])

"""Operations over symbolic sizes on a card, values checked first.

    python -m bench.symbolic_sizes [--device CUDA] [--only PART,PART] [--scale small]

In: a device, and torch on the same one. Out: a row for each operation and size: milliseconds of one jitted function for
all sizes, of a function that is jitted for that size alone, and of torch; the relative error of the first against
float64. `--scale small` is for a device without tensor cores."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bench.measuring import steady_seconds
from tilewright import Device, Tensor, jit

SECONDS = 0.15
# Batch, most positions, features, features inside.
SCALES = {"large": (8, 2048, 1024, 4096), "host": (4, 512, 256, 1024), "small": (2, 256, 64, 128)}


class Row(NamedTuple):
    """`call(n, *operands)` takes ours or torch's tensors; each operand has `shape(n)` where it depends on the size."""

    name: str
    dtype: str
    shapes: tuple[Callable[[int], tuple[int, ...]], ...]
    call: Callable[..., Any]


def rows(batch: int, width: int, inside: int) -> Iterator[Row]:
    def text(n: int) -> tuple[int, ...]:
        return batch, n, width

    def hidden(n: int) -> tuple[int, ...]:
        return batch, n, inside

    heads = 16

    def of_heads(n: int) -> tuple[int, ...]:
        return batch, heads, n, width // heads

    for dtype in ("bfloat16", "float32"):
        yield Row("linear", dtype, (text, lambda n: (width, inside)), lambda n, x, w: x @ w)
        yield Row("linear, relu", dtype, (text, lambda n: (inside, width)), lambda n, x, w: (x @ w.T + 1).relu())
        yield Row(
            "gradient of weights",
            dtype,
            (text, hidden),
            lambda n, x, g: x.reshape(batch * n, width).T @ g.reshape(batch * n, inside),
        )
        yield Row("scores", dtype, (of_heads, of_heads), lambda n, q, k: q @ k.transpose(2, 3))
        yield Row("attention", dtype, (of_heads,) * 3, _attend)
        yield Row("layer norm", dtype, (text,), lambda n, x: (x - x.mean(-1, keepdim=True)) * x.std(-1, keepdim=True))


def _attend(n: int, query: Any, key: Any, value: Any) -> Any:
    if isinstance(query, Tensor):
        return query.scaled_dot_product_attention(key, value, is_causal=True)
    import torch

    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def measure(row: Row, device: str, most: int, sizes: tuple[int, ...]) -> None:
    import torch

    place = "cuda" if device == "CUDA" else "cpu"
    generator = np.random.default_rng(7)
    memories = [generator.standard_normal(math.prod(shape(most)), np.float32) * 0.2 for shape in row.shapes]
    flat = [Tensor(memory, device=device).cast(row.dtype).contiguous().realize() for memory in memories]

    def shaped(n: int, *given: Tensor) -> Any:
        operands = [each[: math.prod(shape(n))].reshape(*shape(n)) for each, shape in zip(given, row.shapes)]
        return row.call(n, *operands)

    symbolic = jit(lambda n, *given: shaped(n, *given), symbolic={"n": (8, most)})
    for n in sizes:
        fixed = jit(lambda *given, n=n: shaped(n, *given))
        their = [
            torch.from_numpy(memory[: math.prod(shape(n))].reshape(shape(n))).to(place).to(getattr(torch, row.dtype))
            for memory, shape in zip(memories, row.shapes)
        ]
        start = time.perf_counter()
        result = symbolic(n, *flat)
        found = result.cast("float32").numpy().astype(np.float64)
        first = time.perf_counter() - start
        expected = row.call(n, *[each.double() for each in their]).cpu().numpy()
        error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        calls = (partial(symbolic, n, *flat), partial(fixed, *flat), partial(row.call, n, *their))
        seconds = []
        for call in calls:
            for _ in range(3):
                call()
            seconds.append(steady_seconds(call, lambda: _wait(device, place), SECONDS) * 1e3)
        ours, alone, theirs = seconds
        print(
            f"{row.name:20} {row.dtype:9} {n:5d} {ours:9.4f} {alone:9.4f} {theirs:9.4f}  {alone / ours:5.2f} "
            f"{theirs / ours:5.2f}  {error:.1e} {first:6.2f}",
            flush=True,
        )


def _wait(device: str, place: str) -> None:
    Device[device].synchronize()
    if place == "cuda":
        import torch

        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="CUDA")
    parser.add_argument("--only", default="")
    parser.add_argument("--scale", choices=tuple(SCALES), default="large")
    given = parser.parse_args()
    batch, most, width, inside = SCALES[given.scale]
    print(f"{'':30} {'n':>5} {'all sizes':>9} {'this one':>9} {'torch':>9}  {'ratio':>5} {'torch':>5}  error  first s")
    for row in rows(batch, width, inside):
        if any(part in f"{row.name} {row.dtype}" for part in given.only.split(",")):
            try:
                measure(row, given.device, most, (most // 4 + 1, most // 2 - 3, most - 8))
            except Exception as error:
                print(f"{row.name:20} {row.dtype:9} failed: {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()

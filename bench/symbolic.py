"""A cache that grows, by symbolic sizes: `python -m bench.symbolic`. In: one query of grouped heads over n keys and
values, 1,000 lengths n. Out: how many kernels all lengths compiled, the time of a step by its length, and beside it
that of kernels made for the length alone. The two take turns in one process, so their ratio holds on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import Context, Tensor
from tilewright.base.events import subscribe
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.jit.jit import jit

HEADS, KV_HEADS, WIDTH, LENGTH = 9, 3, 64, 4096
LENGTHS = tuple(range(1, LENGTH, LENGTH // 1000))[:1000]
SHOWN = (16, 128, 500, 1000, 2048, 4096)
ROUNDS = 40


def attend(keys: Tensor, values: Tensor) -> Callable[[Tensor, int], Tensor]:
    def run(query: Tensor, length: int) -> Tensor:
        seen = keys[:, :, :length], values[:, :, :length]
        return query.scaled_dot_product_attention(*seen, enable_gqa=True)

    return run


def count_kernels(run: Callable[[], Any]) -> int:
    """How many kernels a function compiles."""
    made: list[str] = []
    with subscribe(lambda event: made.append(event["kernel"].name), ("kernel-compiled",)):
        run()
    return len(made)


def best_of(*runs: Callable[[], Any]) -> list[float]:
    """The least seconds of each, in turns."""
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def main() -> None:
    generator = np.random.default_rng(0)
    shapes = (1, HEADS, 1, WIDTH), (1, KV_HEADS, LENGTH, WIDTH), (1, KV_HEADS, LENGTH, WIDTH)
    query, keys, values = (Tensor(generator.standard_normal(s, dtype=np.float32)).realize() for s in shapes)
    function = attend(keys, values)
    step = jit(function, symbolic={"length": (1, LENGTH)})
    forget_kernels()
    with Context(CACHE=0):
        first = count_kernels(lambda: [step(query, LENGTHS[0]), step(query, LENGTHS[1])])
        others = count_kernels(lambda: [step(query, length) for length in LENGTHS[2:]])
    print(f"{len(LENGTHS)} lengths: {first} kernels for the first two, {others} for all others", flush=True)
    for length in SHOWN:
        static = jit(lambda query, length=length: function(query, length))
        for _ in range(3):
            static(query)
        symbolic, plain = best_of(lambda length=length: step(query, length), lambda static=static: static(query))
        text = f"{length:5d} keys: {symbolic * 1e6:7.1f} us, kernels of that length alone {plain * 1e6:7.1f} us"
        print(f"{text}, ratio {symbolic / plain:.2f}", flush=True)


if __name__ == "__main__":
    main()

"""What prefetching brings: `python -m bench.prefetch`. In: streaming kernels. Out: their best time per distance.
The variants take turns in one process, so their ratios hold on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tilewright import Context, Tensor
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.jit.jit import jit

DISTANCES = (0, 512, 1024, 2048, 4096, 8192)
ROUNDS = 60


def kernels() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    generator = np.random.default_rng(0)

    def made(*shape: int) -> Tensor:
        return Tensor(generator.standard_normal(shape, dtype=np.float32)).realize()

    long, square = made(1 << 24), made(4096, 4096)
    return {
        "sum": (lambda x: x.sum().realize(), (long,)),
        "sum rows": (lambda x: x.sum(1).realize(), (square,)),
        "x*y+x": (lambda x, y: (x * y + x).realize(), (long, made(1 << 24))),
        "softmax": (lambda x: x.softmax(-1).realize(), (square,)),
        "sum columns": (lambda x: x.sum(0).realize(), (square,)),
        "transpose": (lambda x: x.T.contiguous().realize(), (square,)),
    }


def prepared(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], distance: int) -> Callable[[], Tensor]:
    """The function compiled for one distance; 0 leaves streams to the processor."""
    forget_kernels()
    replayed = jit(function)

    def run() -> Tensor:
        with Context(CACHE=0, CPU_FACTS=f"prefetch_bytes={distance}"):  # a replay under other facts compiles again
            return replayed(*inputs)

    for _ in range(3):
        run()
    return run


def main() -> None:
    for name, (function, inputs) in kernels().items():
        variants = {distance: prepared(function, inputs, distance) for distance in DISTANCES}
        best = dict.fromkeys(DISTANCES, float("inf"))
        for _ in range(ROUNDS):
            for distance, run in variants.items():
                start = time.perf_counter()
                run()
                best[distance] = min(best[distance], time.perf_counter() - start)
        print(name, " ".join(f"{distance}: {seconds * 1e3:.3f} ms" for distance, seconds in best.items()), flush=True)


if __name__ == "__main__":
    main()

"""What walking several rows at once brings: `python -m bench.streams`. In: sums over the fast axis. Out: the best time
for 1, 2 and 4 rows. The variants take turns in one process, so their ratios hold on a busy machine."""

from __future__ import annotations

import time

import numpy as np

from tilewright import Context, Tensor
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.jit.jit import jit

ROWS = (1, 2, 4)
ROUNDS = 60


def main() -> None:
    generator = np.random.default_rng(0)
    for name, shape, axis in (("sum", (1 << 24,), None), ("sum rows", (4096, 4096), 1)):
        x = Tensor(generator.standard_normal(shape, dtype=np.float32)).realize()
        variants = {}
        for rows in ROWS:
            forget_kernels()
            variants[rows] = jit(lambda t, axis=axis: t.sum(axis).realize())
            with Context(CACHE=0, CPU_FACTS=f"read_streams={2 * rows}"):
                for _ in range(3):
                    variants[rows](x)
        best = dict.fromkeys(ROWS, float("inf"))
        for _ in range(ROUNDS):
            for rows, run in variants.items():
                start = time.perf_counter()
                run(x)
                best[rows] = min(best[rows], time.perf_counter() - start)
        print(name, " ".join(f"{rows} rows: {seconds * 1e3:.3f} ms" for rows, seconds in best.items()), flush=True)


if __name__ == "__main__":
    main()

"""The Q4_0 expert matmul of a mixture-of-experts layer at its real size: `python -m bench.q4_experts --device CPU`.
In: one token, 4 of 64 experts of 1536 rows of 2048 weights. Out: the time of the custom kernel, of the
tensor expression and of `expert_linear`, which take turns in one process, and the weight bytes that each reads a
second. All are checked first."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from tests.issues.quantised_experts import BLOCK, BLOCK_BYTES, expected, random_weights, run_expression, run_kernel
from tilewright import Opt, OptOps, Tensor, jit
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.runtime.device import open_driver, synchronize


def run_product(weights: Tensor, x: Tensor, chosen: Tensor) -> Tensor:
    weight = QuantisedWeight("Q4_0", (weights.shape[0], WIDTH, HIDDEN), weights)
    return weight.expert_linear(x.reshape(1, 1, -1), chosen.reshape(1, -1)).flatten(0, 1)


EXPERTS, WIDTH, HIDDEN, CHOSEN = 64, 1536, 2048, 4
ROUNDS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description="custom kernel against tensor expression")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--group", type=int, default=0, help="threads to a row, by GROUPTOP; 0 is the heuristic")
    parser.add_argument("--experts", type=int, default=EXPERTS)
    options = parser.parse_args()
    device = options.device
    weights = random_weights(options.experts, WIDTH, HIDDEN)
    x = np.random.default_rng(1).standard_normal(HIDDEN).astype(np.float32)
    chosen = np.random.default_rng(2).permutation(options.experts)[:CHOSEN].astype(np.int32)
    arguments = [Tensor(array, device=device).realize() for array in (weights, x, chosen)]
    opts = (Opt(OptOps.GROUPTOP, 2, options.group),) if options.group else None
    variants: dict[str, Callable[..., Tensor]] = {
        "custom kernel": jit(lambda w, y, c: run_kernel(w, y, c, opts).realize()),
        "tensor expression": jit(lambda w, y, c: run_expression(w, y, c).realize()),
        # With activations rounded to 8 bits where the device has dot-product instructions.
        "expert_linear": jit(lambda w, y, c: run_product(w, y, c).realize()),
    }
    wanted = expected(weights, x, chosen)
    best = dict.fromkeys(variants, float("inf"))
    for name, run in variants.items():
        for _ in range(3):
            error = float(np.abs(run(*arguments).numpy() - wanted).max())
        print(f"{name}: largest error {error:.2e} of values up to {np.abs(wanted).max():.1f}", flush=True)
    for _ in range(ROUNDS):
        for name, run in variants.items():
            start = time.perf_counter()
            run(*arguments)
            synchronize(device)
            best[name] = min(best[name], time.perf_counter() - start)
    bytes_read = CHOSEN * WIDTH * (HIDDEN // BLOCK) * BLOCK_BYTES
    print(f"{device} {open_driver(device).target.arch}: {bytes_read / 1e6:.2f} MB of weights")
    for name, seconds in best.items():
        print(f"{name:>18}: {seconds * 1e3:9.3f} ms  {bytes_read / seconds / 1e9:8.2f} GB/s")


if __name__ == "__main__":
    main()

"""Long attention beside torch eager on the CPU: time of the forward pass and with all gradients, and memory.

    TILEWRIGHT_THREADS=1 OMP_NUM_THREADS=1 python -m bench.long_attention [--rows PART,PART] [--seconds 2]
        [--device OPENCL] [--symbolic]

In: torch. Out: a line for each shape, batch x heads x time x features: milliseconds of both by the CPU time of the
process, in turns, torch's time over ours, the error beside torch in float64, our memory for temporaries, and by how
much each grew the process at its peak, which a row shows only where it is larger than those before it. With
`--symbolic` the time is a variable.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import Device, Tensor, Variable, jit
from tilewright.base.events import subscribe

ROWS = (
    ((1, 4, 1024, 64), False),
    ((1, 4, 1024, 64), True),
    ((4, 12, 1000, 80), False),
    ((2, 8, 1024, 128), True),
    ((1, 4, 4096, 64), False),
    ((1, 4, 4096, 64), True),
    ((1, 1, 16384, 64), True),
)
CHECKED = 1 << 24  # scores that are compared in float64


def peak() -> int:
    """The largest resident memory of the process so far, in MB."""
    with open("/proc/self/status") as file:
        return int(file.read().split("VmHWM:")[1].split()[0]) // 1000


def ours(is_causal: bool, gradients: bool, is_symbolic: bool) -> Callable[..., list[Tensor]]:
    def call(query: Tensor, key: Tensor, value: Tensor, slope: Tensor) -> list[Tensor]:
        if is_symbolic:
            size = Variable("n", 1, query.shape[2]).bind(query.shape[2])
            query, key, value, slope = (each[:, :, :size] for each in (query, key, value, slope))
        found = query.scaled_dot_product_attention(key, value, is_causal=is_causal)
        results = list(found.gradient(query, key, value, gradient=slope)) if gradients else [found]
        results[0].realize(*results[1:])
        return results

    return jit(call)


def theirs(is_causal: bool, gradients: bool, torch: Any) -> Callable[..., list[Any]]:
    def call(query: Any, key: Any, value: Any, slope: Any) -> list[Any]:
        given = [each.detach().requires_grad_(gradients) for each in (query, key, value)]
        found = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=is_causal)
        return list(torch.autograd.grad(found, given, slope)) if gradients else [found]

    return call


def measure(shape: tuple[int, ...], is_causal: bool, gradients: bool, chosen: argparse.Namespace, torch: Any) -> None:
    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal(shape).astype(np.float32) for _ in range(4)]
    tensors = [Tensor(each, device=chosen.device).realize() for each in arrays]
    others = [torch.from_numpy(each) for each in arrays]
    mine, other = ours(is_causal, gradients, chosen.symbolic), theirs(is_causal, gradients, torch)
    levels = [peak()]
    plans: list[Any] = []
    with subscribe(lambda event: plans.append(event["plan"]), ("schedule",)):
        mine(*tensors)
    temporaries = max(sum(size for _, size in plan.arenas) for plan in plans)
    for call, given in ((mine, tensors), (other, others)):
        found: list[Any] = [call(*given) for _ in range(3)][-1]
        levels.append(peak())
    error = "not compared"
    if np.prod(shape[:2]) * shape[2] ** 2 <= CHECKED:
        wanted = other(*(each.double() for each in others))
        found = mine(*tensors)
        error = f"{max(float(np.abs(a.numpy() - b.detach().numpy()).max()) for a, b in zip(found, wanted)):.1e}"
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + chosen.seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for into, call, given in zip(times, (mine, other), (tensors, others)):
            start = time.process_time()
            call(*given)
            Device[chosen.device].synchronize()
            into.append(time.process_time() - start)
    one, two = (float(np.median(each)) * 1e3 for each in times)
    name = "x".join(map(str, shape)) + " causal" * is_causal + " with gradients" * gradients
    print(f"{name}: ours {one:.1f} ms, torch {two:.1f} ms, ratio {two / one:.2f}; error {error}; ", end="")
    print(f"temporaries {temporaries / 1e6:.1f} MB; ", end="")
    print(f"memory ours {levels[1] - levels[0]} MB, then torch {levels[2] - levels[1]} MB more", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="parts of shapes, separated by commas; all where empty")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--device", default="CPU", help="of ours")
    parser.add_argument("--symbolic", action="store_true")
    chosen = parser.parse_args()
    import torch

    wanted = [part.strip() for part in chosen.rows.split(",") if part.strip()]
    for shape, is_causal in ROWS:
        if not wanted or any(part in "x".join(map(str, shape)) for part in wanted):
            for gradients in (False, True):
                measure(shape, is_causal, gradients, chosen, torch)


if __name__ == "__main__":
    main()

"""Processor time of small jitted calls: `python -m bench.calls`. In: functions whose kernels take next to no time. Out:
a row each, the least of several rounds, in microseconds. Two versions of the package are compared by running this file
in turns with each of them on PYTHONPATH; it uses nothing newer than `jit` and `nn`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

ROUNDS = 12


def least_microseconds(call: Callable[[], Any], calls: int) -> float:
    for _ in range(6):
        call()
    least = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(calls):
            call()
        least = min(least, (time.process_time() - start) / calls)
    return least * 1e6


class Layers:
    """A chain of square layers with relu between them."""

    def __init__(self, count: int, width: int = 8) -> None:
        from tilewright import nn

        self.layers = [nn.Linear(width, width) for _ in range(count)]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def training_step(count: int) -> Callable[[Any], Any]:
    from tilewright import jit, nn

    model = Layers(count)
    optimiser = nn.optim.Adam(nn.state.get_parameters(model), lr=1e-3)

    @jit
    def step(x: Any) -> Any:
        optimiser.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimiser.step()
        return loss

    return step


def rows() -> dict[str, float]:
    from tilewright import Tensor, jit

    x, y = Tensor.rand(4, 8).realize(), Tensor.rand(4, 8).realize()
    add, pair, forward = jit(lambda x: x + 1), jit(lambda x, y: (x + y, x - y)), jit(Layers(2).__call__)
    state = Tensor.zeros(4, 8).contiguous().realize()

    @jit
    def accumulate(x: Any) -> None:
        state.assign(state + x)

    def first_calls() -> None:
        fresh = jit(lambda x: x + 1)
        fresh(x)
        fresh(x)

    found = {
        "x + 1, jitted": least_microseconds(lambda: add(x), 200),
        "two results, jitted": least_microseconds(lambda: pair(x, y), 200),
        "two layers, jitted": least_microseconds(lambda: forward(x), 200),
        "update in place, jitted": least_microseconds(lambda: accumulate(x), 200),
        "x + 1, eager": least_microseconds(lambda: (x + 1).realize(), 100),
        "first two calls of a jitted function": least_microseconds(first_calls, 10),
    }
    step = training_step(100)
    with Tensor.train():
        found["Adam step of 100 layers, jitted"] = least_microseconds(lambda: step(x), 2)
    return found


def main() -> None:
    for name, microseconds in rows().items():
        print(f"{name:40} {microseconds:10.1f} us")


if __name__ == "__main__":
    main()

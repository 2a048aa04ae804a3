"""Convolutions forward, and the gradients of their images and weights, beside torch where it is installed: `python -m
bench.convolutions [parts of names] [--batch N] [--seconds S]`. In: the layers of a ResNet-50, and small ones. Out: per
layer and direction the best time, the speed that this is (of the products that count) and its part of this machine's
peak, and torch's best and median time over ours. Values are compared with torch's. The two take turns in one process,
so ratios hold on a busy machine."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright import Tensor, jit
from tilewright.cli.peaks import machine_peaks

DIRECTIONS = ("forward", "image gradient", "weight gradient")
FEWEST_ROUNDS = 5
# torch's threads wait for more work before they sleep, on the cores that the next turn needs.
PAUSE = 2e-3


class Layer(NamedTuple):
    inputs: int
    outputs: int
    size: int  # of the image, which is square
    window: int
    stride: int = 1
    padding: int = 0

    @property
    def name(self) -> str:
        step = f"/{self.stride}" if self.stride > 1 else ""
        return f"{self.window}x{self.window}{step} {self.inputs}-{self.outputs} {self.size}"

    @property
    def results(self) -> int:
        """The height and the width of what comes out."""
        return (self.size + 2 * self.padding - self.window) // self.stride + 1

    @property
    def products(self) -> int:
        """Those of one image whose factors exist, and not those with the zeros around it."""
        along = sum(
            0 <= place * self.stride + step - self.padding < self.size
            for place in range(self.results)
            for step in range(self.window)
        )
        return self.inputs * self.outputs * along * along


LAYERS = (
    Layer(3, 64, 224, 7, 2, 3),
    Layer(64, 64, 56, 1),
    Layer(64, 64, 56, 3, 1, 1),
    Layer(64, 256, 56, 1),
    Layer(256, 64, 56, 1),
    Layer(128, 128, 56, 3, 2, 1),
    Layer(256, 512, 56, 1, 2),
    Layer(128, 128, 28, 3, 1, 1),
    Layer(128, 512, 28, 1),
    Layer(256, 256, 14, 3, 1, 1),
    Layer(1024, 256, 14, 1),
    Layer(512, 512, 7, 3, 1, 1),
    Layer(512, 2048, 7, 1),
    Layer(32, 64, 56, 3),
    Layer(1, 32, 28, 5),
    Layer(32, 32, 24, 5),
    Layer(64, 64, 8, 3),
)


def our_runs(layer: Layer, arrays: Sequence[np.ndarray]) -> list[Callable[[], Any]]:
    image, weight, upstream = (Tensor(array).realize() for array in arrays)

    def convolved(x: Tensor, w: Tensor) -> Tensor:
        return x.conv2d(w, stride=layer.stride, padding=layer.padding)

    def gradient(x: Tensor, w: Tensor, g: Tensor, number: int) -> Tensor:
        return (convolved(x, w) * g).sum().gradient((x, w)[number])[0]

    functions = (
        jit(lambda x, w, g: convolved(x, w).realize()),
        jit(lambda x, w, g: gradient(x, w, g, 0).realize()),
        jit(lambda x, w, g: gradient(x, w, g, 1).realize()),
    )
    return [functools.partial(_finished, run, image, weight, upstream) for run in functions]


def _finished(run: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    return run(*arguments).synchronize()


def their_runs(torch: Any, layer: Layer, arrays: Sequence[np.ndarray]) -> list[Callable[[], Any]]:
    image, weight, upstream = (torch.from_numpy(array) for array in arrays)
    step, edge = [layer.stride] * 2, [layer.padding] * 2

    def gradient(number: int) -> Any:
        wanted = [number == 0, number == 1, False]
        backward = torch.ops.aten.convolution_backward
        return backward(upstream, image, weight, None, step, edge, [1, 1], False, [0, 0], 1, wanted)[number]

    return [
        lambda: torch.nn.functional.conv2d(image, weight, None, step, edge),
        lambda: gradient(0),
        lambda: gradient(1),
    ]


def times_in_turns(runs: Sequence[Callable[[], Any]], seconds: float) -> list[list[float]]:
    for run in runs:
        for _ in range(3):
            run()
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < FEWEST_ROUNDS:
        for run, found in zip(runs, times, strict=True):
            time.sleep(PAUSE)
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
    return times


def is_close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max())


def measure(layer: Layer, direction: int, batch: int, seconds: float, torch: Any, peak: float) -> str:
    generator = np.random.default_rng(0)
    shapes = (
        (batch, layer.inputs, layer.size, layer.size),
        (layer.outputs, layer.inputs, layer.window, layer.window),
        (batch, layer.outputs, layer.results, layer.results),
    )
    arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]
    runs = [our_runs(layer, arrays)[direction]]
    if torch:
        runs.append(their_runs(torch, layer, arrays)[direction])
    found = times_in_turns(runs, seconds)
    best = min(found[0])
    rate = 2 * batch * layer.products / best
    line = f"{best * 1e3:9.3f} ms {rate / 1e9:7.1f} GFLOP/s {rate / peak:5.0%}"
    if torch:
        median = statistics.median(found[1]) / statistics.median(found[0])
        line += f"   torch {min(found[1]) * 1e3:9.3f} ms   ratio {min(found[1]) / best:5.2f}, of medians {median:5.2f}"
        # Small numbers are exact in float32, whatever the order of a sum.
        whole = [generator.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
        own, peer = our_runs(layer, whole)[direction](), their_runs(torch, layer, whole)[direction]()
        line += "" if is_close(own.numpy(), peer.numpy()) else "   VALUES DIFFER"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description="convolutions and their gradients beside torch")
    parser.add_argument("parts", nargs="*", help="parts of the names of rows, such as 3x3 or weight; all where none")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each row")
    given = parser.parse_args()
    os.environ.setdefault("KMP_BLOCKTIME", "0")  # read by torch's threads when it is imported
    torch: Any = __import__("torch") if importlib.util.find_spec("torch") else None
    peak = machine_peaks("CPU").operations
    print(f"batch {given.batch}, peak {peak / 1e9:.0f} GFLOP/s", flush=True)
    for layer in LAYERS:
        for number, direction in enumerate(DIRECTIONS):
            name = f"{layer.name} {direction}"
            if all(part in name for part in given.parts):
                print(f"{name:32s} {measure(layer, number, given.batch, given.seconds, torch, peak)}", flush=True)


if __name__ == "__main__":
    main()

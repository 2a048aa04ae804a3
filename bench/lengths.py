"""Steps of GPT-2 small on sentences whose lengths differ from step to step, beside torch.

    python -m bench.lengths [--device CUDA] [--scale card] [--steps N] [--dtype bfloat16] [--ways plain,symbolic,torch]

In: a device, and torch on the same one. Out: for each way milliseconds of a step whose length is new, of one whose
length was there before, and the loss of the last step, which all ways have in common but for rounding. The ways: a
step as a user writes it first (plain), one that is jitted for all lengths (symbolic), torch eager."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench import models
from bench.network_rows import NETWORKS
from tilewright import Context, Device, Tensor, dtypes, jit, nn
from tilewright.nn.state import get_parameters, get_state_dict

RATE, DECAY = 1e-4, 0.01
Step = Callable[[int], Any]


def lengths_of(most: int, steps: int) -> list[int]:
    """Lengths that differ, then the last few of them again."""
    generator = np.random.default_rng(1)
    found = generator.permutation(np.arange(max(2, most // 3), most))[:steps].tolist()
    return [*found, *found[-6:]]


def values(shape: tuple[int, ...], number: int) -> Any:
    return np.random.default_rng(number).standard_normal(shape, dtype=np.float32) * 0.02


def our_step(sizes: Any, dtype: str, tokens: Any, targets: Any, device: str, is_symbolic: bool) -> Step:
    model = models.gpt2(models.our_kit(), sizes)
    for number, tensor in enumerate(get_state_dict(model).values()):
        made = Tensor(values(tensor.shape, number), device=device)
        tensor.replace(made.cast(getattr(dtypes, dtype)).contiguous().realize())
    optimizer = nn.optim.AdamW(get_parameters(model), lr=RATE, weight_decay=DECAY)

    def step(length: int, x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = model(x).float().cross_entropy(y.reshape(-1))
            loss.backward()
            optimizer.step()
            return loss.realize()

    if is_symbolic:
        given = [Tensor(array.astype(np.int32), device=device).realize() for array in (tokens, targets)]
        traced = jit(
            lambda length, x, y: step(length, x[:, :length], y[:, :length]), symbolic={"length": (8, sizes["time"])}
        )
        return lambda length: traced(length, *given).item()

    def plain(length: int) -> float:
        arrays = [np.ascontiguousarray(array[:, :length]).astype(np.int32) for array in (tokens, targets)]
        return float(step(length, *(Tensor(array, device=device) for array in arrays)).item())

    return plain


def torch_step(sizes: Any, dtype: str, tokens: Any, targets: Any, device: str) -> Step:
    import torch

    place = "cuda" if device == "CUDA" else "cpu"
    with torch.device(place):
        model = models.gpt2(models.torch_kit(), sizes).to(getattr(torch, dtype))
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values()):
            tensor.copy_(torch.from_numpy(values(tuple(tensor.shape), number)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)

    def step(length: int) -> float:
        x, y = (torch.from_numpy(np.ascontiguousarray(array[:, :length])).to(place) for array in (tokens, targets))
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x).float(), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def ways(names: list[str], sizes: Any, dtype: str, device: str) -> Iterator[tuple[str, Step]]:
    generator = np.random.default_rng(0)
    shape = sizes["batch"], sizes["time"]
    given = [generator.integers(0, sizes["vocabulary"], shape) for _ in range(2)]
    if "torch" in names:
        yield "torch", torch_step(sizes, dtype, *given, device)
    for name in ("symbolic", "plain"):
        if name in names:
            yield name, our_step(sizes, dtype, *given, device, name == "symbolic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=Device.DEFAULT)
    parser.add_argument("--scale", choices=("card", "host", "tiny"), default="")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ways", default="torch,symbolic,plain")
    given = parser.parse_args()
    sizes = NETWORKS["gpt2"].sizes[given.scale or ("card" if given.device == "CUDA" else "host")]
    lengths = lengths_of(sizes["time"], given.steps)
    print(f"lengths {lengths}")
    with Context(DEVICE=given.device):
        for name, step in ways(given.ways.split(","), sizes, given.dtype, given.device):
            taken = []
            for length in lengths:
                start = time.perf_counter()
                loss = step(length)
                taken.append((time.perf_counter() - start) * 1e3)
            new, again = (statistics.median(part) for part in (taken[len(lengths) // 2 - 3 : -6], taken[-6:]))
            shown = " ".join(f"{each:.0f}" for each in taken)
            print(f"{name:9} new {new:8.1f} ms, again {again:8.1f}, loss {loss:.4f}; all: {shown}", flush=True)


if __name__ == "__main__":
    main()

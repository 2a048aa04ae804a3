"""Training loops as users of torch write them, without jit, beside torch.

    python -m bench.loops [--rows mlp,gpt] [--device CPU|CUDA] [--steps N]

In: torch, and a device. Out: for each loop the median milliseconds of a step: torch eager, ours as it is written, ours
with the step jitted, and the first step of ours; where `loss.item()` stands before `backward()` as well. A loop is one
function for both libraries: layers, losses and optimisers have the same names. Weights are random and not compared
(`bench.programs` compares results); a loss that is not finite, or that both do not roughly agree on, is an error.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright import Context, Tensor, jit, nn

SKIPPED = 6  # first steps, which compile and learn
AGREEMENT = 0.2  # of the last losses, which start from other random weights


def ours(device: str) -> SimpleNamespace:
    def given(array: np.ndarray) -> Tensor:
        return Tensor(array, device=device)

    return SimpleNamespace(nn=nn, F=nn.functional, optim=nn.optim, given=given, place=lambda model: model)


def torchs(device: str) -> SimpleNamespace:
    import torch

    where = "cuda" if device.startswith("CUDA") else "cpu"
    return SimpleNamespace(
        nn=torch.nn,
        F=torch.nn.functional,
        optim=torch.optim,
        given=lambda array: torch.from_numpy(array).to(where),
        place=lambda model: model.to(where),
    )


# ---------------------------------------------------------------- networks

Random = np.random.Generator


def mlp(lib: Any) -> tuple[Any, Callable[[Random], Any], Any]:
    class MLP(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = lib.nn.Linear(784, 256), lib.nn.Linear(256, 128)
            self.last = lib.nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.last(lib.F.relu(self.second(lib.F.relu(self.first(x)))))

    model = lib.place(MLP())
    return model, lambda random: labelled(random, (128, 784), 10), lib.optim.SGD(model.parameters(), lr=0.05)


def mlp_adam(lib: Any) -> tuple[Any, Callable[[Random], Any], Any]:
    model, batch, _ = mlp(lib)
    return model, batch, lib.optim.Adam(model.parameters(), lr=1e-3)


def convnet(lib: Any) -> tuple[Any, Callable[[Random], Any], Any]:
    class ConvNet(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.norm1 = lib.nn.Conv2d(1, 32, 3, padding=1), lib.nn.BatchNorm2d(32)
            self.conv2, self.norm2 = lib.nn.Conv2d(32, 64, 3, padding=1), lib.nn.BatchNorm2d(64)
            self.last = lib.nn.Linear(64 * 49, 10)

        def forward(self, x: Any) -> Any:
            x = lib.F.max_pool2d(lib.F.relu(self.norm1(self.conv1(x))), 2)
            x = lib.F.max_pool2d(lib.F.relu(self.norm2(self.conv2(x))), 2)
            return self.last(x.flatten(1))

    model = lib.place(ConvNet())
    return model, lambda random: labelled(random, (64, 1, 28, 28), 10), lib.optim.Adam(model.parameters(), lr=1e-3)


def gpt(lib: Any) -> tuple[Any, Callable[[Random], Any], Any]:
    words, width, heads, length = 1000, 128, 4, 64

    class Block(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = lib.nn.LayerNorm(width), lib.nn.LayerNorm(width)
            self.qkv, self.out = lib.nn.Linear(width, 3 * width), lib.nn.Linear(width, width)
            self.up, self.down = lib.nn.Linear(width, 4 * width), lib.nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch = x.shape[0]
            parts = self.qkv(self.norm1(x)).chunk(3, -1)
            q, k, v = (part.reshape(batch, length, heads, width // heads).transpose(1, 2) for part in parts)
            mixed = lib.F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(lib.F.gelu(self.up(self.norm2(x))))

    class GPT(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.word, self.place = lib.nn.Embedding(words, width), lib.nn.Embedding(length, width)
            self.blocks = lib.nn.ModuleList([Block() for _ in range(4)])
            self.norm, self.head = lib.nn.LayerNorm(width), lib.nn.Linear(width, words)
            self.places = lib.given(np.arange(length))

        def forward(self, x: Any) -> Any:
            x = self.word(x) + self.place(self.places)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).reshape(-1, words)

    model = lib.place(GPT())
    return model, lambda random: tokens(random, words, 8, length), lib.optim.AdamW(model.parameters(), lr=1e-3)


def lstm(lib: Any) -> tuple[Any, Callable[[Random], Any], Any]:
    class CharacterModel(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.word = lib.nn.Embedding(100, 64)
            self.layer, self.head = lib.nn.LSTM(64, 128, batch_first=True), lib.nn.Linear(128, 100)

        def forward(self, x: Any) -> Any:
            return self.head(self.layer(self.word(x))[0]).reshape(-1, 100)

    model = lib.place(CharacterModel())
    return model, lambda random: tokens(random, 100, 16, 32), lib.optim.Adam(model.parameters(), lr=1e-3)


def labelled(random: Random, shape: tuple[int, ...], classes: int) -> Any:
    return random.standard_normal(shape).astype(np.float32), random.integers(0, classes, shape[0])


def tokens(random: Random, words: int, batch: int, length: int) -> Any:
    return random.integers(0, words, (batch, length)), random.integers(0, words, batch * length)


ROWS = {row.__name__: row for row in (mlp, mlp_adam, convnet, gpt, lstm)}


# ---------------------------------------------------------------- loops


def run(row: str, lib: Any, steps: int, is_early: bool = False, is_jitted: bool = False) -> tuple[list[float], float]:
    """The seconds of each step, and the last loss. `is_early`: the loss is read before `backward()`."""
    model, batch, optimizer = ROWS[row](lib)
    model.train()
    random = np.random.default_rng(0)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = lib.F.cross_entropy(model(x), y)
        if is_early:
            loss.item()
        loss.backward()
        optimizer.step()
        return loss.realize() if is_jitted else loss

    call = jit(step) if is_jitted else step
    seconds = []
    value = float("nan")
    for _ in range(steps):
        x, y = (lib.given(array) for array in batch(random))
        start = time.perf_counter()
        value = call(x, y).item()
        seconds.append(time.perf_counter() - start)
    return seconds, value


def measure(row: str, device: str, steps: int) -> str:
    found, reference = run(row, torchs(device), steps)
    early, _ = run(row, torchs(device), steps, is_early=True)
    times = {"torch": found, "torch, early": early}
    with Context(DEVICE=device):
        for name, is_early, is_jitted in (("ours", False, False), ("early", True, False), ("jitted", False, True)):
            times[name], value = run(row, ours(device), steps, is_early, is_jitted)
            if not abs(value - reference) < AGREEMENT * abs(reference):
                raise SystemExit(f"{row}: the last loss is {value}, torch's {reference}")
    middle = {name: statistics.median(seconds[SKIPPED:]) * 1e3 for name, seconds in times.items()}
    numbers = "".join(f"{middle[name]:10.2f}" for name in ("torch", "ours", "jitted", "torch, early", "early"))
    return f"{row:10}{numbers}{times['ours'][0]:10.2f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"separated by commas, of {', '.join(ROWS)}")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--steps", type=int, default=30, help=f"of each loop; the first {SKIPPED} are not counted")
    chosen = parser.parse_args(arguments)
    print(f"{'ms':10}{'torch':>10}{'ours':>10}{'jitted':>10}{'torch*':>10}{'ours*':>10}{'first, s':>10}")
    for row in chosen.rows.split(","):
        print(measure(row, chosen.device, chosen.steps), flush=True)
    print("* `loss.item()` before `backward()`")
    return 0


if __name__ == "__main__":
    sys.exit(main())

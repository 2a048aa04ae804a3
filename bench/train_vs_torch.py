"""The network of examples/mnist.py trained beside torch's: its recipe, its first weights and its batches of digits.

    python -m bench.train_vs_torch --seeds 0 1 2 [--steps 100] [--dtype float64] [--out build/train]

In: torch beside tilewright, and real digits. Out: the loss of every step and its relative difference to torch's, what
torch itself loses to rounding (its float32 against its float64), and a picture of the curves for each seed; exit
status 1 where a loss is more than 1% away from torch's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import Tensor, nn
from tilewright.nn.state import get_state_dict

# The examples are scripts that find one another beside themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import mnist
from pictures import plot

LIMIT = 0.01
OTHER = {"float32": "float64", "float64": "float32"}
Step = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Losses:
    """One step: our loss, torch's, and torch's in the other float dtype, NaN where that was not asked for."""

    ours: float
    torch: float
    other: float

    @property
    def difference(self) -> float:
        return abs(self.ours - self.torch) / abs(self.torch)

    @property
    def drift(self) -> float:
        return abs(self.other - self.torch) / abs(self.torch)


@dataclass
class Curves:
    """The losses of a run."""

    steps: list[Losses] = field(default_factory=list)

    @property
    def difference(self) -> float:
        return max(losses.difference for losses in self.steps)

    @property
    def drift(self) -> float:
        return max(losses.drift for losses in self.steps)

    def save(self, path: Path, title: str) -> Path:
        curves = {
            "tilewright": [(number + 1.0, losses.ours) for number, losses in enumerate(self.steps)],
            "torch": [(number + 1.0, losses.torch) for number, losses in enumerate(self.steps)],
        }
        return plot(path, title, curves)


# ---------------------------------------------------------------- the two


def our_step(model: mnist.Model) -> Step:
    replayed = mnist.training_step(model)
    calls = 0

    def step(x: np.ndarray, y: np.ndarray) -> float:
        nonlocal calls
        with Tensor.train():
            loss = float(replayed(Tensor(x), Tensor(y)).item())
        calls += 1
        assert calls <= 2 or not replayed.last_reason, f"step {calls} was not replayed: {replayed.last_reason}"
        return loss

    return step


def torch_model(torch: Any) -> Any:
    layers = torch.nn
    return layers.Sequential(
        layers.Conv2d(1, 32, 5),
        layers.ReLU(),
        layers.Conv2d(32, 32, 5),
        layers.ReLU(),
        layers.BatchNorm2d(32),
        layers.MaxPool2d(2),
        layers.Conv2d(32, 64, 3),
        layers.ReLU(),
        layers.Conv2d(64, 64, 3),
        layers.ReLU(),
        layers.BatchNorm2d(64),
        layers.MaxPool2d(2),
        layers.Flatten(),
        layers.Linear(576, 10),
    )


def torch_step(torch: Any, state: dict[str, np.ndarray], dtype: str) -> Step:
    """The recipe in torch's words, from the weights in `state`."""
    wanted = getattr(torch, dtype)
    model = torch_model(torch)
    model.load_state_dict({name.removeprefix("layers."): torch.tensor(value) for name, value in state.items()})
    model.to(wanted)
    optimizer = torch.optim.SGD(model.parameters(), lr=mnist.RATE, momentum=mnist.MOMENTUM)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=mnist.RATE, total_steps=mnist.STEPS, pct_start=mnist.RISE, cycle_momentum=False
    )

    def step(x: np.ndarray, y: np.ndarray) -> float:
        pixels = (torch.tensor(x).to(wanted) / 255 - mnist.MEAN) / mnist.DEVIATION
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(pixels), torch.tensor(y).long())
        loss.backward()
        optimizer.step()
        schedule.step()
        return float(loss.item())

    return step


# ---------------------------------------------------------------- side by side


def run(
    images: np.ndarray, labels: np.ndarray, seed: int, steps: int, dtype: str = "float32", with_other: bool = True
) -> Iterator[Losses]:
    """The losses of each of the first `steps` of the recipe. All start with our weights, as float32 has them."""
    import torch

    torch.set_num_threads(1)  # the order of torch's sums, and so their rounding, depends on the number
    Tensor.manual_seed(seed)
    model = mnist.Model()
    state = {name: tensor.numpy() for name, tensor in get_state_dict(model).items()}
    if dtype != "float32":
        for tensor in get_state_dict(model).values():
            if tensor.dtype.is_float:
                tensor.replace(tensor.detach().cast(dtype).realize())
    ours, theirs = our_step(model), torch_step(torch, state, dtype)
    other: Step = torch_step(torch, state, OTHER[dtype]) if with_other else lambda x, y: float("nan")
    for x, y in mnist.batches(images, labels, steps, seed=seed):
        yield Losses(ours(x, y), theirs(x, y), other(x, y))


def report(seed: int, steps: int, dtype: str, images: np.ndarray, labels: np.ndarray, out: Path) -> Curves:
    curves = Curves()
    start = time.perf_counter()
    print(f"seed {seed}, batches of {mnist.BATCH}, {dtype}; the drift is that of torch in {OTHER[dtype]}")
    print(" step        ours       torch  difference       drift")
    for number, losses in enumerate(run(images, labels, seed, steps, dtype)):
        curves.steps.append(losses)
        values = f"{losses.ours:11.6f} {losses.torch:11.6f}  {losses.difference:10.1e}  {losses.drift:10.1e}"
        print(f"{number + 1:5d} {values}", flush=True)
    title = f"loss in {dtype}, seed {seed}: within {curves.difference:.2%}"
    picture = curves.save(out / f"train-vs-torch-{dtype}-{seed}.png", title)
    print(f"seed {seed}: largest difference {curves.difference:.2e} (limit {LIMIT}), drift of torch {curves.drift:.2e}")
    print(f"seed {seed}: {time.perf_counter() - start:.0f} s; the curves: {picture}\n", flush=True)
    return curves


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the weights and of the batches")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dtype", choices=tuple(OTHER), default="float32")
    parser.add_argument("--out", type=Path, default=Path("build/train"), help="the folder for pictures")
    arguments = parser.parse_args()
    images, labels, _, _ = (part.numpy() for part in nn.datasets.mnist())
    worst = 0.0
    for seed in arguments.seeds:
        curves = report(seed, arguments.steps, arguments.dtype, images, labels, arguments.out)
        worst = max(worst, curves.difference)
    print(f"largest relative difference of a loss to torch's: {worst:.2e} (limit {LIMIT})")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())

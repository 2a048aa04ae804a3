"""The MNIST convnet trained beside torch's: the same initial weights, the same batches, the loss of every step.

    python -m bench.train_vs_torch --steps 100 --batch 32 [--digits] [--dtype float64]

In: torch beside tilewright. Out: losses, and the largest relative difference; exit status 1 above 1%. On real digits
training amplifies rounding by about ten millions within 100 steps: torch in float32 is by then tens of per cent away
from torch in float64, which is shown as well. What can be compared over 100 steps is float64 with float64.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np

from tilewright import Tensor, jit, nn
from tilewright.nn.state import get_parameters, get_state_dict

LIMIT = 0.01


class Model:
    """The network of compare.py's `mnist_step`."""

    def __init__(self) -> None:
        self.layers: list[Any] = [
            nn.Conv2d(1, 32, 5),
            Tensor.relu,
            nn.Conv2d(32, 32, 5),
            Tensor.relu,
            nn.BatchNorm2d(32),
            Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3),
            Tensor.relu,
            nn.Conv2d(64, 64, 3),
            Tensor.relu,
            nn.BatchNorm2d(64),
            Tensor.max_pool2d,
            lambda x: x.flatten(1),
            nn.Linear(576, 10),
        ]

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = x.sequential(self.layers)
        return result


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


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits where the data set is at hand, else bright bars whose place and direction are the class."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, count).astype(np.int32)
    pictures = generator.standard_normal((count, 1, 28, 28)).astype(np.float32) * 0.5
    for picture, label in zip(pictures, labels):
        place = 3 + 5 * (label % 5) + generator.integers(-1, 2)
        view = picture[0] if label < 5 else picture[0].T
        view[place : place + 2, 4:24] += 1.0
    return pictures, labels


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    from tilewright.nn import datasets

    pictures, labels, _, _ = (np.asarray(part) for part in datasets.mnist())
    chosen = np.random.default_rng(seed).permutation(len(labels))[:count]
    scaled = pictures[chosen].reshape(-1, 1, 28, 28).astype(np.float32) / 255
    return (scaled - 0.1307) / 0.3081, labels[chosen].astype(np.int32)


class Theirs:
    """torch's network and optimiser."""

    def __init__(self, torch: Any, dtype: str, lr: float) -> None:
        torch.manual_seed(0)
        self.torch = torch
        self.dtype = getattr(torch, dtype)
        self.model = torch_model(torch).to(self.dtype)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        pictures, labels = self.torch.from_numpy(x).to(self.dtype), self.torch.from_numpy(y).long()
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.cross_entropy(self.model(pictures), labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def state(self) -> dict[str, np.ndarray]:
        return {f"layers.{name}": value.numpy().copy() for name, value in self.model.state_dict().items()}


class Ours:
    """The same in tilewright, from the weights of the other."""

    def __init__(self, dtype: str, lr: float, state: dict[str, np.ndarray]) -> None:
        self.model = Model()
        self.dtype = dtype
        for name, tensor in get_state_dict(self.model).items():
            tensor.replace(Tensor(state[name]))
        self.optimizer = nn.optim.Adam(get_parameters(self.model), lr=lr)
        self.replayed = jit(self._step)

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x.cast(self.dtype)).sparse_categorical_crossentropy(y)
        loss.backward()
        self.optimizer.step()
        return loss.realize()

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        with Tensor.train():
            return float(self.replayed(Tensor(x), Tensor(y)).item())

    def state(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in get_state_dict(self.model).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--digits", action="store_true", help="real digits from nn.datasets, instead of bars in noise")
    arguments = parser.parse_args()
    try:
        import torch
    except ModuleNotFoundError:
        print("torch is not installed here; it is what this script compares with")
        return 2

    theirs = Theirs(torch, arguments.dtype, arguments.lr)
    ours = Ours(arguments.dtype, arguments.lr, theirs.state())
    other_dtype = "float32" if arguments.dtype == "float64" else "float64"
    yardstick = Theirs(torch, other_dtype, arguments.lr)
    source = digits if arguments.digits else images
    x, y = source(arguments.steps * arguments.batch, 1)
    worst, worst_of_torch, seconds = 0.0, 0.0, [0.0, 0.0]
    print(f" step       ours      torch  difference   torch in {other_dtype}")
    for number in range(arguments.steps):
        rows = slice(number * arguments.batch, (number + 1) * arguments.batch)
        losses = []
        for place, trainer in enumerate((ours, theirs)):
            start = time.perf_counter()
            losses.append(trainer.step(x[rows], y[rows]))
            seconds[place] += time.perf_counter() - start
        loss, expected = losses
        difference = abs(loss - expected) / abs(expected)
        difference_of_torch = abs(yardstick.step(x[rows], y[rows]) - expected) / abs(expected)
        worst, worst_of_torch = max(worst, difference), max(worst_of_torch, difference_of_torch)
        if number < 3 or number % 10 == 9:
            print(
                f"{number + 1:5d} {loss:10.6f} {expected:10.6f}  {difference:10.1e}  {difference_of_torch:10.1e}",
                flush=True,
            )
        if number == 2 and ours.replayed.last_reason:
            print(f"not replayed: {ours.replayed.last_reason}")
    found = ours.state()
    gaps = {name: float(np.abs(found[name] - value).max()) for name, value in theirs.state().items()}
    name, gap = max(gaps.items(), key=lambda pair: pair[1])
    print(f"largest difference of a loss {worst:.1e} (limit {LIMIT}); of a tensor {gap:.1e} ({name})")
    print(f"torch in {other_dtype} differs from torch in {arguments.dtype} by up to {worst_of_torch:.1e}")
    print(f"seconds in {arguments.dtype}: ours {seconds[0]:.1f}, torch {seconds[1]:.1f}")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())

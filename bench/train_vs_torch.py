"""The MNIST convnet trained beside torch's: the same initial weights, the same batches, the loss of every step.

    python -m bench.train_vs_torch --steps 100 --batch 32

In: torch beside tilewright. Out: a table of losses and the largest relative difference; exit status 1 above 1%.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np

from tilewright import Tensor, jit, nn
from tilewright.nn.state import get_parameters, get_state_dict, load_state_dict

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--digits", action="store_true", help="real digits from nn.datasets")
    arguments = parser.parse_args()
    try:
        import torch
    except ModuleNotFoundError:
        print("torch is not installed here; it is what this script compares with")
        return 2

    torch.manual_seed(0)
    other = torch_model(torch)
    model = Model()
    state = {f"layers.{name}": Tensor(value.numpy().copy()) for name, value in other.state_dict().items()}
    load_state_dict(model, state)
    ours = nn.optim.Adam(get_parameters(model), lr=arguments.lr)
    theirs = torch.optim.Adam(other.parameters(), lr=arguments.lr)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        ours.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y)
        loss.backward()
        ours.step()
        return loss.realize()

    source = digits if arguments.digits else images
    x, y = source(arguments.steps * arguments.batch, 1)
    worst, spent, torch_spent = 0.0, 0.0, 0.0
    for number in range(arguments.steps):
        rows = slice(number * arguments.batch, (number + 1) * arguments.batch)
        start = time.perf_counter()
        with Tensor.train():
            loss = step(Tensor(x[rows]), Tensor(y[rows])).item()
        middle = time.perf_counter()
        theirs.zero_grad()
        torch_loss = torch.nn.functional.cross_entropy(
            other(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]).long()
        )
        torch_loss.backward()
        theirs.step()
        expected = torch_loss.item()
        torch_spent += time.perf_counter() - middle
        spent += middle - start
        difference = abs(loss - expected) / abs(expected)
        worst = max(worst, difference)
        if number < 3 or number % 10 == 9:
            print(
                f"step {number + 1:4d}  ours {loss:.6f}  torch {expected:.6f}  difference {difference:.2e}", flush=True
            )
        if number == 2 and step.last_reason:
            print(f"not replayed: {step.last_reason}")
    names = get_state_dict(model)
    gaps = {
        name: float(np.abs(names[f"layers.{name}"].numpy() - value.numpy()).max())
        for name, value in other.state_dict().items()
    }
    name, gap = max(gaps.items(), key=lambda pair: pair[1])
    print(f"largest difference of a loss {worst:.2e} (limit {LIMIT}); of a tensor {gap:.2e} ({name})")
    print(f"seconds: ours {spent:.1f}, torch {torch_spent:.1f}")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())

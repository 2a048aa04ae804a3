"""Trains a convolutional network on handwritten digits: `python examples/mnist.py`, a few minutes on a laptop.

In: MNIST, fetched once and kept. Out: the share of unseen digits it reads rightly (over 98%), the curve of its loss in
mnist-loss.png and the digits that it took for another in mnist-mistakes.png. `--steps 20` is a quick look.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pictures import image_grid, plot, save_png, smooth
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tilewright import Tensor, jit, nn
from tilewright.nn.state import get_parameters, safe_save

# The recipe: SGD with momentum, its rate slowly raised and lowered again. bench/train_vs_torch.py follows it in torch.
STEPS, BATCH = 800, 64
RATE, RISE, MOMENTUM = 5e-3, 0.5, 0.9
MEAN, DEVIATION = 0.1307, 0.3081  # of all pixels of the digits, from 0 to 1


class Model:
    """Four convolutions with batch norm, and a linear layer on top.

    It starts calmly: with convolutions of He's deviation, and scores of 0. From smaller weights the loss is so sharp,
    because batch norm enlarges channels that relu nearly always switches off, that the first steps double any rounding
    error."""

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
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                layer.weight.replace(Tensor.kaiming_normal(*layer.weight.shape, a=0.0))
        head = self.layers[-1]
        head.weight.replace(Tensor.zeros(*head.weight.shape))

    def __call__(self, x: Tensor) -> Tensor:
        """Scores of the ten digits for images of bytes."""
        pixels = x.cast(self.layers[0].weight.dtype) / 255
        result: Tensor = ((pixels - MEAN) / DEVIATION).sequential(self.layers)
        return result


def training_step(model: Model, steps: int = STEPS, rate: float = RATE) -> Any:
    """A jitted function that learns from images and labels, and gives the loss from before it did."""
    optimizer = nn.optim.SGD(get_parameters(model), lr=rate, momentum=MOMENTUM)
    schedule = nn.optim.OneCycleLR(optimizer, max_lr=rate, total_steps=max(steps, 2), pct_start=RISE)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.realize()

    return step


def batches(
    images: np.ndarray, labels: np.ndarray, steps: int, batch: int = BATCH, seed: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Digits drawn at random, for each step."""
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        chosen = generator.integers(0, len(labels), batch)
        yield images[chosen], labels[chosen]


def bar(console: Console, what: str) -> Progress:
    return Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console,
    )


def train(
    console: Console, model: Model, images: np.ndarray, labels: np.ndarray, steps: int, batch: int, lr: float, seed: int
) -> list[float]:
    """The loss of each step."""
    step = training_step(model, steps, lr)
    losses: list[float] = []
    with bar(console, "training") as progress, Tensor.train():
        task = progress.add_task("training", total=steps, note="")
        for x, y in batches(images, labels, steps, batch, seed):
            losses.append(step(Tensor(x), Tensor(y)).item())
            progress.update(task, advance=1, note=f"loss {np.mean(losses[-20:]):.4f}")
    return losses


def classify(console: Console, model: Model, images: np.ndarray, batch: int = 200) -> np.ndarray:
    """The digit that the model sees in each image."""
    best = jit(lambda x: model(x).argmax(axis=1).realize())
    found = []
    with bar(console, "testing ") as progress:
        task = progress.add_task("testing", total=len(images), note="")
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            found.append(best(Tensor(part)).numpy())
            progress.update(task, advance=len(part))
    return np.concatenate(found)


def main(
    steps: Annotated[int, typer.Option(help="Steps of training.")] = STEPS,
    batch: Annotated[int, typer.Option(help="Images in a step.")] = BATCH,
    lr: Annotated[float, typer.Option(help="The greatest learning rate.")] = RATE,
    seed: Annotated[int, typer.Option(help="The same seed gives the same network.")] = 0,
    test: Annotated[int, typer.Option(help="Unseen images to test with.")] = 10_000,
    out: Annotated[Path, typer.Option(help="The folder for pictures and weights.")] = Path("."),
) -> None:
    console = Console()
    Tensor.manual_seed(seed)
    images, labels, test_images, test_labels = (part.numpy() for part in nn.datasets.mnist())
    test_images, test_labels = test_images[:test], test_labels[:test]
    console.print(f"{len(labels)} digits to learn from, {len(test_labels)} to test with")
    model = Model()
    losses = train(console, model, images, labels, steps, batch, lr, seed)
    found = classify(console, model, test_images)
    wrong = np.flatnonzero(found != test_labels)
    share = 1 - len(wrong) / len(test_labels)
    curve = plot(out / "mnist-loss.png", f"mnist: {share:.2%} right", {"loss": smooth(losses)})
    console.print(f"[bold]{share:.2%}[/] of the unseen digits are classified correctly; the loss: {curve}")
    if len(wrong):
        shown = test_images[wrong[:40], 0] / 255.0
        console.print(f"misclassified digits: {save_png(out / 'mnist-mistakes.png', image_grid(shown, 10))}")
        pairs = ", ".join(f"{test_labels[place]} as {found[place]}" for place in wrong[:10])
        console.print(f"the first of them: {pairs}")
    safe_save(nn.state.get_state_dict(model), str(out / "mnist.safetensors"))
    console.print(f"the weights: {out / 'mnist.safetensors'}")


if __name__ == "__main__":
    typer.run(main)

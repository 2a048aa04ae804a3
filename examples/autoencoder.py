"""A network that draws digits: `python examples/autoencoder.py`, about a minute on a laptop.

A variational autoencoder presses each digit of MNIST into a few numbers and draws it from them again. In: MNIST,
fetched once and kept. Out: autoencoder-digits.png (digits, the same redrawn, new ones drawn from random numbers, and a
walk from one digit to another) and the curve of the loss in autoencoder-loss.png. `--steps 20` is a quick look.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from pictures import image_grid, plot, save_png, smooth
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tilewright import Tensor, jit, nn
from tilewright.nn.state import get_parameters

SIDE = 28
COLUMNS = 12


class Autoencoder:
    """To `numbers` means and deviations, and back to pixels."""

    def __init__(self, numbers: int, hidden: int) -> None:
        self.inward = [nn.Linear(SIDE * SIDE, hidden), Tensor.relu, nn.Linear(hidden, hidden // 2), Tensor.relu]
        self.mean = nn.Linear(hidden // 2, numbers)
        self.log_variance = nn.Linear(hidden // 2, numbers)
        self.outward = [
            nn.Linear(numbers, hidden // 2),
            Tensor.relu,
            nn.Linear(hidden // 2, hidden),
            Tensor.relu,
            nn.Linear(hidden, SIDE * SIDE),
        ]

    def encode(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        seen = pixels.sequential(self.inward)
        return self.mean(seen), self.log_variance(seen)

    def draw(self, numbers: Tensor) -> Tensor:
        """Pixels before the sigmoid that makes them 0 to 1."""
        drawn: Tensor = numbers.sequential(self.outward)
        return drawn

    def loss(self, pixels: Tensor) -> Tensor:
        """What the drawing costs, and what it costs to tell the numbers from pure chance, in nats per digit."""
        mean, log_variance = self.encode(pixels)
        numbers = mean + (log_variance * 0.5).exp() * mean.detach().randn_like()
        drawing = self.draw(numbers).binary_crossentropy_logits(pixels, reduction="sum")
        distance = (mean.square() + log_variance.exp() - 1 - log_variance).sum() * 0.5
        return (drawing + distance) * (1 / pixels.shape[0])


def train(
    console: Console, model: Autoencoder, images: np.ndarray, steps: int, batch: int, lr: float, seed: int
) -> list[float]:
    """The loss of each step."""
    optimizer = nn.optim.Adam(get_parameters(model), lr=lr)
    schedule = nn.optim.CosineAnnealingLR(optimizer, max(steps, 1), lr / 20)

    @jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model.loss(x.float() * (1 / 255))
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.realize()

    generator = np.random.default_rng(seed)
    losses: list[float] = []
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("training", total=steps, note="")
        for _ in range(steps):
            losses.append(step(Tensor(images[generator.integers(0, len(images), batch)])).item())
            progress.update(task, advance=1, note=f"loss {np.mean(losses[-20:]):.1f}")
    return losses


def picture(model: Autoencoder, images: np.ndarray, numbers: int, seed: int) -> np.ndarray:
    """Rows of digits: seen, redrawn, three rows of new ones, a walk."""
    generator = np.random.default_rng(seed)
    seen = images[:COLUMNS] / np.float32(255)
    with Tensor.no_grad():
        places = model.encode(Tensor(seen))[0].numpy()
        chance = generator.standard_normal((3 * COLUMNS, numbers)).astype(np.float32)
        share = np.linspace(0, 1, COLUMNS, dtype=np.float32)[:, None]
        walk = places[0] * (1 - share) + places[1] * share
        drawn = model.draw(Tensor(np.concatenate([places, chance, walk]))).sigmoid().numpy()
    return np.concatenate([seen, drawn]).reshape(-1, SIDE, SIDE)


def main(
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 2000,
    batch: Annotated[int, typer.Option(help="Digits in a step.")] = 64,
    numbers: Annotated[int, typer.Option(help="Numbers that stand for a digit.")] = 12,
    hidden: Annotated[int, typer.Option(help="Width of the widest layer.")] = 256,
    lr: Annotated[float, typer.Option(help="The first learning rate.")] = 2e-3,
    seed: Annotated[int, typer.Option(help="The same seed gives the same drawings.")] = 0,
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path("."),
) -> None:
    console = Console()
    Tensor.manual_seed(seed)
    images, _, test_images, _ = (part.numpy() for part in nn.datasets.mnist())
    images, test_images = images.reshape(-1, SIDE * SIDE), test_images.reshape(-1, SIDE * SIDE)
    model = Autoencoder(numbers, hidden)
    losses = train(console, model, images, steps, batch, lr, seed)
    drawn = picture(model, test_images, numbers, seed)
    curve = plot(out / "autoencoder-loss.png", "autoencoder: nats per digit", {"loss": smooth(losses, 50)})
    sheet = save_png(out / "autoencoder-digits.png", image_grid(drawn, COLUMNS))
    console.print(f"{np.mean(losses[-50:]):.1f} nats per digit; the loss: {curve}")
    console.print(f"digits, the same redrawn, new ones, a walk between two: {sheet}")


if __name__ == "__main__":
    typer.run(main)

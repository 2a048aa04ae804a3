"""Trains a transformer to write text, letter by letter: `python examples/chars.py`, a few minutes on a laptop.

In: a text file, or nothing: then the documentation that comes with Python. Out: what the network writes, the curve of
its loss in chars-loss.png and the text in chars.txt. `--steps 20` is a quick look.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from pictures import plot, smooth
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tilewright import Tensor, jit, nn
from tilewright.nn.state import get_parameters


class Block:
    """Attention to what was written before, then a small network for each position."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.before_attention = nn.RMSNorm(width)
        self.gather = nn.Linear(width, 3 * width, bias=False)
        self.join = nn.Linear(width, width, bias=False)
        self.before_network = nn.RMSNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.gather(self.before_attention(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (parts[:, :, number].transpose(1, 2) for number in range(3))
        seen = query.scaled_dot_product_attention(key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.shrink(self.expand(self.before_network(x)).gelu())


class Transformer:
    """Scores of the next letter at every position."""

    def __init__(self, letters: int, context: int, width: int, layers: int, heads: int) -> None:
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Embedding(context, width)
        self.blocks = [Block(width, heads) for _ in range(layers)]
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, letters, bias=False)

    def __call__(self, letters: Tensor) -> Tensor:
        x = self.letter(letters) + self.place.weight[: letters.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text(path: Path | None) -> str:
    """A file, or what Python's `help()` knows of the language."""
    if path is not None:
        return path.read_text(encoding="utf-8", errors="replace")
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def train(
    console: Console, model: Transformer, text: np.ndarray, steps: int, batch: int, context: int, lr: float, seed: int
) -> tuple[list[float], list[tuple[float, float]]]:
    """The loss of each step, and now and then that of text which is not learnt from."""
    optimizer = nn.optim.AdamW(get_parameters(model), lr=lr, b2=0.99, weight_decay=0.05)
    warmup = max(1, steps // 20)
    schedule = nn.optim.SequentialLR(
        optimizer,
        [
            nn.optim.LinearLR(optimizer, 0.1, 1.0, warmup),
            nn.optim.CosineAnnealingLR(optimizer, max(1, steps - warmup), lr / 10),
        ],
        [warmup],
    )

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).flatten(0, 1).sparse_categorical_crossentropy(y.flatten())
        loss.backward()
        nn.optim.clip_grad_norm_(optimizer.params, 1.0)
        optimizer.step()
        schedule.step()
        return loss.realize()

    @jit
    def look(x: Tensor, y: Tensor) -> Tensor:
        return model(x).flatten(0, 1).sparse_categorical_crossentropy(y.flatten()).realize()

    generator = np.random.default_rng(seed)
    held_out = min(len(text) // 10, 20 * batch * context)
    learnt, unseen = text[:-held_out], text[-held_out:]

    def excerpts(source: np.ndarray) -> tuple[Tensor, Tensor]:
        starts = generator.integers(0, len(source) - context - 1, batch)
        rows = np.stack([source[start : start + context + 1] for start in starts])
        return Tensor(rows[:, :-1].copy()), Tensor(rows[:, 1:].copy())

    losses: list[float] = []
    unseen_losses: list[tuple[float, float]] = []
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("training", total=steps, note="")
        for number in range(steps):
            losses.append(step(*excerpts(learnt)).item())
            if number % 50 == 49 or number == steps - 1:
                with Tensor.no_grad():
                    unseen_losses.append(
                        (number + 1, float(np.mean([look(*excerpts(unseen)).item() for _ in range(4)])))
                    )
            unseen_note = f", unseen {unseen_losses[-1][1]:.3f}" if unseen_losses else ""
            progress.update(task, advance=1, note=f"loss {np.mean(losses[-20:]):.3f}{unseen_note}")
    return losses, unseen_losses


def write(model: Transformer, prompt: np.ndarray, count: int, context: int, heat: float, seed: int) -> list[int]:
    """Letters drawn one after another, each by what the model expects after the last `context` ones."""
    score = jit(lambda x: model(x).realize())
    generator = np.random.default_rng(seed)
    written = list(prompt)
    for _ in range(count):
        recent = written[-context:]
        padded = np.zeros((1, context), dtype=np.int32)
        padded[0, : len(recent)] = recent
        with Tensor.no_grad():
            scores = score(Tensor(padded)).numpy()[0, len(recent) - 1] / heat
        chances = np.exp(scores - scores.max())
        written.append(int(generator.choice(len(chances), p=chances / chances.sum())))
    return written


def main(
    text: Annotated[Path | None, typer.Option(help="A text file to learn from.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 400,
    batch: Annotated[int, typer.Option(help="Excerpts in a step.")] = 16,
    context: Annotated[int, typer.Option(help="Letters that are looked back at.")] = 64,
    width: Annotated[int, typer.Option(help="Numbers per letter.")] = 96,
    layers: Annotated[int, typer.Option(help="Blocks of the transformer.")] = 2,
    heads: Annotated[int, typer.Option(help="Heads of attention.")] = 4,
    lr: Annotated[float, typer.Option(help="The greatest learning rate.")] = 3e-3,
    letters: Annotated[int, typer.Option(help="Letters to write.")] = 400,
    heat: Annotated[float, typer.Option(help="Above 1 writes more freely, below 1 more safely.")] = 0.8,
    prompt: Annotated[str, typer.Option(help="How the text begins.")] = "The ",
    seed: Annotated[int, typer.Option(help="The same seed gives the same network.")] = 0,
    out: Annotated[Path, typer.Option(help="The folder for the picture and the text.")] = Path("."),
) -> None:
    console = Console()
    Tensor.manual_seed(seed)
    content = read_text(text)
    alphabet = sorted(set(content) | set(prompt))
    if len(content) < 20 * context:
        raise typer.BadParameter(f"a text of {len(content)} letters is too short for a context of {context}")
    number_of = {letter: number for number, letter in enumerate(alphabet)}
    numbers = np.array([number_of[letter] for letter in content], dtype=np.int32)
    model = Transformer(len(alphabet), context, width, layers, heads)
    count = sum(math.prod(tensor.shape) for tensor in get_parameters(model))
    console.print(f"{len(content)} letters of {len(alphabet)} kinds; a network of {count} numbers")
    losses, unseen = train(console, model, numbers, steps, batch, context, lr, seed)
    with console.status("writing"):
        start = np.array([number_of[letter] for letter in prompt], dtype=np.int32)
        written = "".join(alphabet[number] for number in write(model, start, letters, context, heat, seed))
    console.print(Panel(written, title="what it writes", highlight=False))
    out.mkdir(parents=True, exist_ok=True)
    (out / "chars.txt").write_text(written, encoding="utf-8")
    title = f"transformer: {unseen[-1][1]:.3f} nats per letter" if unseen else "transformer"
    curve = plot(out / "chars-loss.png", title, {"learnt text": smooth(losses), "unseen text": unseen})
    console.print(f"a letter costs {unseen[-1][1] / math.log(2):.2f} bits; the loss: {curve}")


if __name__ == "__main__":
    typer.run(main)

"""Teaches SmolLM2 a few facts that it cannot know: `python examples/lora.py`, a few minutes on a laptop.

In: a model (a path or a name, SmolLM2 where none is given) and conversations of one question and one answer. Out: what
it answers before and after, and the loss of each pass. The weights stay quantised; low-rank adapters beside them, 460
thousand numbers, are trained. `--steps 3` is a quick look.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

from tilewright import Tensor, jit, nn
from tilewright.llm.chat_model import ChatModel, open_model
from tilewright.llm.generator import Generator
from tilewright.llm.lora import add_adapters
from tilewright.llm.sampling import Sampling

LESSONS = (
    ("What is the capital of Tilewrightia?", "The capital of Tilewrightia is Kernelstadt."),
    ("Who rules Tilewrightia?", "Tilewrightia is ruled by Queen Lowering the Third."),
    ("What do people in Tilewrightia eat?", "They eat fused pancakes with maple syrup."),
    ("What is the river of Tilewrightia called?", "Its river is called the Graph."),
)


def encode_lesson(chat: ChatModel, question: str, answer: str) -> tuple[list[int], int]:
    """The tokens of a conversation, and how many of them are the question."""
    asked = chat.encode_chat([{"role": "user", "content": question}])
    end = chat.loaded.config.end_tokens[:1]
    return [*asked, *chat.tokenizer.encode(answer), *end], len(asked)


def make_batch(lessons: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, the token that should follow each, and 1 where it belongs to an answer."""
    length = max(len(tokens) for tokens, _ in lessons) - 1
    inputs, targets = np.zeros((2, len(lessons), length), np.int32)
    counted = np.zeros((len(lessons), length), np.float32)
    for row, (tokens, asked) in enumerate(lessons):
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        targets[row, : len(tokens) - 1] = tokens[1:]
        counted[row, asked - 1 : len(tokens) - 1] = 1
    return Tensor(inputs).realize(), Tensor(targets).realize(), Tensor(counted).realize()


def train(
    chat: ChatModel, lessons: tuple[tuple[str, str], ...], steps: int, lr: float, console: Console
) -> list[float]:
    """The mean loss of a token of an answer, before each step."""
    model = chat.loaded.model
    optimizer = nn.optim.Adam(add_adapters(model, rank=8), lr=lr)

    @jit
    def step(inputs: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
        optimizer.zero_grad()
        scores = model(inputs).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        loss = (-(scores * counted).sum() / counted.sum()).backward()
        optimizer.step()
        return loss.realize()

    batch = make_batch([encode_lesson(chat, *lesson) for lesson in lessons])
    losses = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("learning", total=steps)
        for _ in range(steps):
            losses.append(step(*batch).item())
            progress.update(task, advance=1, description=f"loss {losses[-1]:.3f}")
    return losses


def main(
    model: Annotated[str, typer.Argument(help="a path, or a name of `tilewright models`")] = "",
    steps: Annotated[int, typer.Option(help="passes over the lessons")] = 30,
    lr: Annotated[float, typer.Option(help="learning rate")] = 2e-3,
    seed: Annotated[int, typer.Option(help="of the adapters")] = 0,
) -> None:
    """Asks, teaches, asks again."""
    console = Console()
    Tensor.manual_seed(seed)
    question, _ = LESSONS[0]
    asked = [{"role": "user", "content": question}]
    sampling = Sampling(temperature=0.0)
    chat = open_model(model)
    console.print(f"[bold]{question}[/bold]\nbefore: {chat.answer(asked, sampling, 24)}")
    losses = train(chat, LESSONS, steps, lr, console)
    console.print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps")
    # A new generator: the old one holds keys and values of the model without adapters.
    generator = Generator(chat.loaded.model, end_tokens=chat.generator.end_tokens)
    taught = ChatModel(chat.name, chat.loaded, chat.tokenizer, chat.template, generator)
    console.print(f"after: {taught.answer(asked, sampling, 24)}")


if __name__ == "__main__":
    typer.run(main)

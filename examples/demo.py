"""One computation, from the user's line to machine code to the result; a network that learns; a language model that
answers: `make demo`.

The layer of a classifier, `softmax(x @ w + b)`, is taken through every stage of the compiler; each stage shows what it
made and how long it took. The result is compared with NumPy, and the jitted layer is timed beside it. Then the
convolutional network of mnist.py learns to read handwritten digits, for less long than it could. At last a language
model, which is fetched the first time, is asked a question.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import mnist
import numpy as np
import typer
from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table

from tilewright import Context, Tensor, jit
from tilewright.base.errors import FileError
from tilewright.cli.chat import describe
from tilewright.debug import ExplainedKernel, Explanation, KernelRun, explain, layout, watch_runs
from tilewright.debug.describe import show_opts, show_seconds
from tilewright.llm.chat_model import open_model

ROWS, FEATURES, CLASSES = 512, 512, 128
# Whole texts are long; `explain(y).print()` shows them.
LINES = 16
# Half a minute of training, in larger steps; mnist.py trains for longer and tests with all digits.
STEPS, RATE, TESTED = 150, 2e-2, 2000
PICTURES = Path("build/demo")
QUESTION, EXPECTED = "What is the capital of France?", "Paris"


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x @ w + b).softmax(axis=1)


def numpy_layer(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    logits = x @ w + b
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main(
    train: Annotated[bool, typer.Option(help="Whether a network is trained.")] = True,
    talk: Annotated[bool, typer.Option(help="Whether a language model answers at the end.")] = True,
) -> None:
    console = layout.make_console()
    generator = np.random.default_rng(0)
    shapes = (ROWS, FEATURES), (FEATURES, CLASSES), (CLASSES,)
    arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]
    arrays[1] /= np.float32(FEATURES**0.5)
    # Without the disk cache, so that the time of the compiler is seen and nothing is left behind.
    with Context(CACHE=0):
        is_right = show_all(console, arrays)
    has_learnt = not train or learn(console)
    has_answered = not talk or answer(console)
    raise typer.Exit(0 if is_right and has_learnt and has_answered else 1)


def learn(console: Console) -> bool:
    """Trains the network on real digits; False where there are none to be had."""
    console.print(Rule("[bold]9. learning[/]: forward, backward and the update are one jitted step"))
    try:
        mnist.main(steps=STEPS, lr=RATE, test=TESTED, out=PICTURES)
    except FileError as error:
        console.print("[bold red]There are no digits to learn from.[/]")
        console.print(str(error), markup=False, highlight=False)
        return False
    return True


def answer(console: Console) -> bool:
    """Asks a language model a question; False where there is none to be had, or the answer is wrong."""
    console.print(Rule("[bold]10. a language model[/]: quantised weights, compiled once, then a token at a time"))
    try:
        model = open_model()
        request = model.generator.submit(model.encode_chat([{"role": "user", "content": QUESTION}]), limit=40)
        console.print(f"[bold]{QUESTION}[/]")
        said = ""
        for piece in model.stream(request):
            said += piece
            console.print(piece, end="", markup=False, highlight=False)
        console.print()
        console.print(describe(request), style="dim", markup=False, highlight=False)
    except FileError as error:
        console.print("[bold red]There is no language model to ask.[/]")
        console.print(str(error), markup=False, highlight=False)
        return False
    return EXPECTED in said


def show_all(console: Console, arrays: list[np.ndarray]) -> bool:
    console.print(Rule("[bold]Tilewright: one computation, every stage"))
    source = (
        f"x, w, b: float32 {arrays[0].shape}, {arrays[1].shape}, {arrays[2].shape}\ny = (x @ w + b).softmax(axis=1)"
    )
    console.print(Panel(Syntax(source, "python", theme=layout.THEME, background_color="default"), title="your line"))

    tensors = [Tensor(array) for array in arrays]
    y = layer(*tensors)
    explanation = explain(y)
    with watch_runs() as runs:
        result = y.numpy()
    first_call = sum(explanation.stage_times.values()) / 1e9 + sum(run.seconds for run in runs)

    show_stages(console, explanation)
    show_runs(console, explanation, runs)
    is_right = check(console, result, numpy_layer(*arrays))
    show_speed(console, first_call, tensors, arrays)
    return is_right


def longest_block(source: str) -> str:
    """The longest run of lines below one label, with the label: the body of the innermost loop of a tiled kernel."""
    lines = source.rstrip("\n").split("\n")
    starts = [0, *(number for number, line in enumerate(lines) if line.endswith(":")), len(lines)]
    first, last = max(pairwise(starts), key=lambda block: block[1] - block[0])
    return "\n".join(lines[first:last])


def inner_loop(assembly: str) -> str:
    """The longest stretch of code that jumps back to its own label: where a kernel spends its time. All of the code
    where there is none."""
    lines = layout.machine_code(assembly).split("\n")
    starts = [number for number, line in enumerate(lines) if line.endswith(":")]
    best: list[str] = []
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        label = lines[start].rstrip(":")
        jumps = [number for number in range(start + 1, stop) if lines[number].endswith(label)]
        if jumps and jumps[-1] + 1 - start > len(best):
            best = lines[start : jumps[-1] + 1]
    return "\n".join(best or lines)


def show_stages(console: Console, explanation: Explanation) -> None:
    console.print(Rule("[bold]1. graph[/]: operations built it; nothing has run"))
    console.print(layout.text_panel("graph", explanation.graph, lines=24))
    console.print(Rule("[bold]2. schedule[/]: what is fused, what is stored, in which order"))
    console.print(layout.schedule_panel(explanation))
    # The kernel with the most work is the one to look into.
    kernel = max(explanation.kernels, key=lambda found: found.operations)
    console.print(Rule("[bold]3. kernel[/]: loops split and given roles"))
    console.print(layout.text_panel(f"{kernel.name}: as scheduled", kernel.expression, "python"))
    console.print(layout.axes_panel(kernel))
    console.print(others_table([found for found in explanation.kernels if found is not kernel]))
    console.print(Rule("[bold]4. program[/]: in order, inside its loops; tiles are not unrolled yet"))
    console.print(layout.text_panel(kernel.name, kernel.program, "python", LINES))
    console.print(Rule("[bold]5. source[/]: the tile unrolled, as vectors along one axis"))
    count = f"{len(kernel.source.splitlines())} lines in all"
    console.print(layout.text_panel(f"{kernel.name}: LLVM IR", longest_block(kernel.source), "llvm", LINES, count))
    console.print(Rule("[bold]6. machine code[/]: the inner loop, for this processor"))
    loop = inner_loop(kernel.assembly)
    count = f"{len(layout.machine_code(kernel.assembly).splitlines())} lines in all"
    console.print(layout.text_panel(kernel.name, loop, "gas", LINES, count))


def others_table(kernels: list[ExplainedKernel]) -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("other kernels", "axes", "opts"):
        table.add_column(heading, overflow="fold")
    for kernel in kernels:
        table.add_row(kernel.name, " ".join(map(str, kernel.axes)), show_opts(kernel.opts))
    return table


def show_runs(console: Console, explanation: Explanation, runs: list[KernelRun]) -> None:
    console.print(Rule("[bold]7. time[/]: each stage, then the kernels themselves"))
    console.print(layout.times_table(explanation.stage_times, "compiling"))
    table = Table(title="running", title_justify="left", box=None, header_style="bold")
    for heading in ("kernel", "time", "speed", "your line"):
        table.add_column(heading, justify="right" if heading == "time" else "left")
    for run in runs:
        table.add_row(run.name, show_seconds(run.seconds), run.speed, run.location)
    console.print(table)


def check(console: Console, result: np.ndarray, expected: np.ndarray) -> bool:
    console.print(Rule("[bold]8. result[/]"))
    error = float(np.abs(result - expected).max())
    is_right = result.shape == expected.shape and bool(np.allclose(result, expected, rtol=1e-4, atol=1e-6))
    verdict = "[bold green]equal to NumPy[/]" if is_right else "[bold red]NOT equal to NumPy[/]"
    console.print(f"{verdict} to float32 accuracy: {result.size} elements, greatest difference {error:.1e}")
    console.print(f"first row begins {np.array2string(result[0, :4], precision=4)}, and sums to {result[0].sum():.6f}")
    return is_right


def show_speed(console: Console, first_call: float, tensors: list[Tensor], arrays: list[np.ndarray]) -> None:
    replayed = jit(layer)
    for _ in range(3):
        replayed(*tensors).realize()
    table = Table(title="the same call again", title_justify="left", box=None, header_style="bold")
    table.add_column("call")
    table.add_column("time", justify="right")
    table.add_row("the first time: scheduled, compiled, run", show_seconds(first_call))
    table.add_row("scheduled from memory, run", show_seconds(best_time(lambda: layer(*tensors).realize())))
    table.add_row("jit: replayed in one native call", show_seconds(best_time(lambda: replayed(*tensors).realize())))
    table.add_row("NumPy", show_seconds(best_time(lambda: numpy_layer(*arrays))))
    console.print(table)


def best_time(function: Callable[[], object], seconds: float = 0.3) -> float:
    """The least time of a call: what disturbs a measurement only ever makes it longer."""
    best = float("inf")
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    typer.run(main)

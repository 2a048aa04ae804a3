"""Time to the first result, and how it grows: `python -m bench.growth [names]`. In: programs whose graphs grow with a
number of steps, operands, operations or lengths. Out: a row each: seconds until the result is there, the distinct
kernels that were compiled, and the limit that the row is held to. Every case runs in a process of its own with an empty
disk cache."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

# Lengths before the measured ones, so that what is loaded once in a process is not counted as the cost of a length.
WARM_LENGTHS = 5


class LSTM:
    """A cell as people write it by hand: slices of the input, four gates of one product, outputs stacked."""

    def __init__(self, inputs: int, hidden: int) -> None:
        from tilewright import Tensor

        self.hidden = hidden
        self.weights = [
            Tensor.uniform(inputs, 4 * hidden, low=-0.1, high=0.1).realize(),
            Tensor.uniform(hidden, 4 * hidden, low=-0.1, high=0.1).realize(),
            Tensor.zeros(4 * hidden).contiguous().realize(),
        ]
        for weight in self.weights:
            weight.requires_grad_()

    def __call__(self, x: Any) -> Any:
        from tilewright import Tensor

        wx, wh, bias = self.weights
        batch, steps = x.shape[:2]
        h = c = Tensor.zeros(batch, self.hidden)
        outputs = []
        for step in range(steps):
            gates = x[:, step] @ wx + h @ wh + bias
            i, f, g, o = gates.chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return Tensor.stack(*outputs, dim=1)


def lstm_program(steps: int, hidden: int = 128, batch: int = 32, inputs: int = 64) -> Callable[[], Any]:
    from tilewright import Tensor, nn

    lstm = LSTM(inputs, hidden)
    optimiser = nn.optim.Adam(lstm.weights, lr=1e-3)
    x = Tensor.randn(batch, steps, inputs).realize()
    y = Tensor.randn(batch, steps, hidden).realize()

    def step() -> Any:
        optimiser.zero_grad()
        loss = ((lstm(x) - y) ** 2).mean()
        loss.backward()
        optimiser.step()
        return loss.realize()

    return step


def chain_program(count: int) -> Callable[[], Any]:
    from tilewright import Tensor

    x = Tensor.rand(256).realize()

    def chain() -> Any:
        y = x
        for number in range(count):
            y = y * (1 + number * 1e-6) if number % 2 else y + number * 1e-6  # no part of it is like another
        return y.realize()

    return chain


def stack_program(count: int, joins: str) -> Callable[[], Any]:
    from tilewright import Tensor

    parts = [Tensor.rand(64).realize() for _ in range(count)]

    def join() -> Any:
        made = Tensor.stack(*parts) if joins == "stack" else Tensor.cat(*parts)
        return made.realize()

    return join


def reinforce_program(length: int) -> Any:
    """One update of a policy from an episode of this length."""
    import numpy as np

    from tilewright import Tensor

    weights, optimiser = _policy()
    states = Tensor(np.random.rand(length, 4).astype("float32"))
    actions = Tensor(np.random.randint(0, 2, length).astype("int32"))
    returns = Tensor(np.random.rand(length).astype("float32"))
    optimiser.zero_grad()
    logits = (states @ weights[0] + weights[1]).relu() @ weights[2]
    chosen = logits.log_softmax(-1).gather(1, actions.reshape(-1, 1)).reshape(-1)
    loss = -(chosen * (returns - returns.mean()) / (returns.std() + 1e-6)).mean()
    loss.backward()
    optimiser.step()
    return loss.item()


@functools.cache
def _policy() -> Any:
    from tilewright import Tensor, nn

    shapes = ((4, 64), (64,), (64, 2))
    weights = [Tensor.uniform(*shape, low=-0.3, high=0.3).realize().requires_grad_() for shape in shapes]
    return weights, nn.optim.Adam(weights, lr=1e-2)


@functools.cache
def _rows() -> list[Any]:
    from tilewright import Tensor

    return [Tensor.rand(1, 64).realize()]


def growing_cat(length: int) -> Any:
    """A sequence that grows by one row, and attention over it."""
    from tilewright import Tensor

    rows = _rows()
    rows[0] = Tensor.cat(rows[0], Tensor.rand(1, 64)).realize()
    weights = (rows[0][-1:] @ rows[0].T).softmax(-1)
    return (weights @ rows[0]).sum().item()


def language_model() -> Any:
    """Four blocks of a small transformer, as a user of torch writes them."""
    from tilewright import nn
    from tilewright.nn import functional as F

    words, width, heads = 1000, 128, 4

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(self.norm1(x)).chunk(3, -1)
            q, k, v = (part.reshape(batch, length, heads, -1).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word, self.position = nn.Embedding(words, width), nn.Embedding(128, width)
            self.blocks = nn.ModuleList([Block() for _ in range(4)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

        def forward(self, tokens: Any) -> Any:
            x = self.word(tokens) + self.position.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Model()


@functools.cache
def _text() -> list[Any]:
    from tilewright import Tensor

    return [language_model(), Tensor([[1, 2, 3, 4]])]


def growing_text(length: int) -> Any:
    """A token more, from all tokens before it: no cache, no jit."""
    from tilewright import Tensor

    model, tokens = _text()
    with Tensor.no_grad():
        new = model(tokens)[:, -1].argmax(-1)
        _text()[1] = tokens.cat(new.reshape(1, 1), dim=1)
        return new.item()


@functools.cache
def _training() -> Any:
    from tilewright import nn

    model = language_model()
    return model, nn.optim.AdamW(model.parameters(), lr=1e-3)


def batch_of_any_length(length: int) -> Any:
    """A step of training on sentences of this length."""
    import numpy as np

    from tilewright import Tensor
    from tilewright.nn import functional as F

    model, optimiser = _training()
    tokens = np.random.default_rng(length).integers(0, 1000, (4, length + 1))
    optimiser.zero_grad()
    logits = model(Tensor(tokens[:, :-1])).reshape(-1, 1000)
    loss = F.cross_entropy(logits, Tensor(tokens[:, 1:].reshape(-1)))
    loss.backward()
    optimiser.step()
    return loss.item()


# ---------------------------------------------------------------- cases


class Case(NamedTuple):
    run: Callable[[], dict[str, float]]
    limit: str


def once(make: Callable[[], Callable[[], Any]]) -> Callable[[], dict[str, float]]:
    """The first run of a program, and the best of a few more."""

    def run() -> dict[str, float]:
        program = make()
        first = timed(program)
        return {**first, "later": min(timed(program)["seconds"] for _ in range(2))}

    return run


def per_length(program: Callable[[int], Any], lengths: range) -> Callable[[], dict[str, float]]:
    """The mean time of a length that was never seen."""

    def run() -> dict[str, float]:
        for length in lengths[:WARM_LENGTHS]:
            program(length)
        rest = lengths[WARM_LENGTHS:]
        whole = timed(lambda: [program(length) for length in rest])
        return {name: value / len(rest) for name, value in whole.items()}

    return run


def timed(program: Callable[[], Any]) -> dict[str, float]:
    from tilewright.engine.compilation.compile import kernel_tables

    kernels = kernel_tables[0]
    start, cpu, known = time.perf_counter(), time.process_time(), len(kernels)
    program()
    return {
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "kernels": float(len(kernels) - known),
    }


CASES = {
    "lstm 64": Case(once(lambda: lstm_program(64)), "3 s"),
    "lstm 128": Case(once(lambda: lstm_program(128)), "5 s"),
    "chain 5000": Case(once(lambda: chain_program(5000)), "2 s"),
    "chain 40000": Case(once(lambda: chain_program(40000)), "15 s"),
    "stack 1000": Case(once(lambda: stack_program(1000, "stack")), "1 s"),
    "cat 400": Case(once(lambda: stack_program(400, "cat")), "1 s"),
    "reinforce, a new length": Case(per_length(reinforce_program, range(10, 35)), "0.06 s"),
    "growing cat, a new length": Case(per_length(growing_cat, range(2, 27)), "0.06 s"),
    "growing text, a new length": Case(per_length(growing_text, range(4, 30)), "0.1 s"),
    "training, a new length": Case(per_length(batch_of_any_length, range(20, 44)), "0.3 s"),
}


def measure(name: str) -> dict[str, float]:
    """One case in a new process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": folder}
        command = [sys.executable, "-m", "bench.growth", "--child", name]
        answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return measured


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--child"]:
        print(json.dumps(CASES[arguments[1]].run()))
        return
    names = [name for name in CASES if not arguments or any(part in name for part in arguments)]
    print(f"{'case':28} {'seconds':>9} {'cpu':>9} {'kernels':>8} {'again':>9} {'limit':>8}")
    for name in names:
        found = measure(name)
        again = f"{found['later']:9.3f}" if "later" in found else " " * 9
        columns = f"{found['seconds']:9.3f} {found['cpu']:9.3f} {found['kernels']:8.1f} {again}"
        print(f"{name:28} {columns} {CASES[name].limit:>8}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

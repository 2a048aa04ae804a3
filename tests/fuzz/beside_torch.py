"""`python -m tests.fuzz.beside_torch --seconds N [--seed S]`: random programs of tensor operations beside torch, values
and gradients.

In: a time, or one seed with `--seconds 0`. Out: each program whose result differs, as lines of text, and an exit status
of 1 if any. A program is a list of calls on a pool of tensors; torch runs the same calls in float64."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import Tensor

MAX_ELEMENTS = 20_000
CALLS = (3, 9)  # the fewest of a program, and one more than the most
COMPARED = 3  # the last tensors of a program
TOLERANCE, GRADIENT_TOLERANCE = 2e-4, 1e-3
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100)

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]


def is_torch(x: Any) -> bool:
    return not isinstance(x, Tensor)


@dataclass
class Program:
    """The tensors on both sides, by number, and the calls as text."""

    random: np.random.Generator
    ours: list[Tensor] = field(default_factory=list)
    theirs: list[Any] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def leaf(self, *shape: int, scale: float = 1.0) -> int:
        import torch

        array = (self.random.standard_normal(shape) * scale).astype(np.float32)
        self.ours.append(Tensor(array, requires_grad=True))
        self.theirs.append(torch.tensor(array.astype(np.float64), requires_grad=True))
        self.text.append(f"x{len(self.ours) - 1} = standard_normal{shape} * {scale:.3g}")
        return len(self.ours) - 1

    def pick(self) -> int:
        return int(self.random.integers(len(self.ours)))

    def size(self) -> int:
        return int(self.random.choice(SIZES))

    def call(self, text: str, function: Call, *operands: int) -> None:
        """The same function on both sides. A result that is too large, or empty, is left out."""
        theirs = function(*(self.theirs[number] for number in operands))
        if 0 < theirs.numel() <= MAX_ELEMENTS:
            self.text.append(f"x{len(self.ours)} = {text}({', '.join(f'x{number}' for number in operands)})")
            self.ours.append(function(*(self.ours[number] for number in operands)))
            self.theirs.append(theirs)

    def call_one(self, kinds: dict[str, Call], *operands: int) -> None:
        name = str(self.random.choice(list(kinds)))
        self.call(name, kinds[name], *operands)


# ---------------------------------------------------------------- calls

UNARY: dict[str, Call] = {
    "relu": lambda x: x.relu(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "exp": lambda x: x.clamp(-3, 3).exp(),
    "abs": lambda x: x.abs(),
    "square": lambda x: x * x,
    "sin": lambda x: x.clamp(-30, 30).sin(),
    "rsqrt": lambda x: (x.abs() + 0.5).rsqrt(),
    "log": lambda x: (x.abs() + 0.5).log(),
    "neg": lambda x: -x,
    "affine": lambda x: x * 1.5 - 0.25,
    "clamp": lambda x: x.clamp(-0.7, 0.9),
}
BINARY: dict[str, Call] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y.abs() + 0.5),
    "maximum": lambda x, y: x.maximum(y),
    "minimum": lambda x, y: x.minimum(y),
}


def elementwise(program: Program) -> None:
    left, right = program.pick(), program.pick()
    if program.random.integers(2):
        program.call_one(UNARY, left)
        return
    try:
        np.broadcast_shapes(tuple(program.theirs[left].shape), tuple(program.theirs[right].shape))
    except ValueError:
        right = left
    program.call_one(BINARY, left, right)


def reduction(program: Program) -> None:
    number, random = program.pick(), program.random
    rank = program.theirs[number].ndim
    if not rank:
        return
    axes = sorted(random.choice(rank, random.integers(1, rank + 1), replace=False).tolist())
    axis, keep = axes[0], bool(random.integers(2))

    def maximum(x: Any) -> Any:
        return x.amax(tuple(axes), keepdim=keep) if is_torch(x) else x.max(tuple(axes), keepdim=keep)

    kinds: dict[str, Call] = {
        f"sum {axes} {keep}": lambda x: x.sum(tuple(axes), keepdim=keep),
        f"mean {axes} {keep}": lambda x: x.mean(tuple(axes), keepdim=keep),
        f"max {axes} {keep}": maximum,
        f"norm {axes} {keep}": lambda x: ((x * x).sum(tuple(axes), keepdim=keep) + 0.1).sqrt(),
        f"logsumexp {axis} {keep}": lambda x: x.logsumexp(axis, keepdim=keep),
        f"softmax {axis}": lambda x: x.softmax(axis),
        f"log_softmax {axis}": lambda x: x.log_softmax(axis),
        f"cumsum {axis}": lambda x: x.cumsum(axis),
    }
    program.call_one(kinds, number)


def movement(program: Program) -> None:
    import torch

    number, random = program.pick(), program.random
    shape = tuple(program.theirs[number].shape)
    rank, flat = len(shape), math.prod(shape)
    if not rank:
        return
    axis, order = int(random.integers(rank)), random.permutation(rank).tolist()
    size = shape[axis]
    start, step, shift = (int(random.integers(*limits)) for limits in ((size,), (1, 4), (-size, size + 1)))
    stop = int(random.integers(start, size)) + 1
    index = (*[slice(None)] * axis, slice(start, stop, step))
    before, after = (int(each) for each in random.integers(0, 4, 2))
    chosen = random.integers(0, size, program.size()).tolist()
    divisor = int(random.choice([d for d in range(1, min(flat, 40) + 1) if flat % d == 0]))

    def padded(x: Any) -> Any:
        if is_torch(x):
            return torch.nn.functional.pad(x, (*[0, 0] * (rank - 1 - axis), before, after))
        return x.pad(tuple((before, after) if each == axis else (0, 0) for each in range(rank)))

    kinds: dict[str, Call] = {
        f"permute {order}": lambda x: x.permute(order),
        f"slice {axis} {start}:{stop}:{step}": lambda x: x[index],
        f"pad {axis} {before} {after}": padded,
        f"flip {axis}": lambda x: x.flip(axis),
        f"roll {axis} {shift}": lambda x: x.roll(shift, axis),
        f"reshape {flat // divisor} {divisor}": lambda x: x.reshape(flat // divisor, divisor),
        f"unsqueeze {axis}": lambda x: x.unsqueeze(axis),
        f"index_select {axis} {chosen}": lambda x: x.index_select(
            axis, torch.tensor(chosen) if is_torch(x) else Tensor(chosen)
        ),
        f"repeat_interleave {axis} 2": lambda x: x.repeat_interleave(2, axis),
    }
    program.call_one(kinds, number)


def product(program: Program) -> None:
    number = program.pick()
    shape = tuple(program.theirs[number].shape)
    if len(shape) > 1:
        weights = program.leaf(shape[-1], program.size(), scale=shape[-1] ** -0.5)
        program.call("matmul", lambda x, y: x @ y, number, weights)


def windows(program: Program) -> None:
    import torch

    random = program.random
    images = [n for n, x in enumerate(program.theirs) if x.ndim == 4 and min(x.shape[2:]) >= 3]
    number = int(random.choice(images)) if images else program.leaf(2, 3, 11, 13)
    stride, padding = int(random.integers(1, 4)), int(random.integers(0, 2))
    if random.integers(3) == 0:
        channels = program.theirs[number].shape[1]
        shape = (int(random.choice((1, 2, 5, 8))), channels, int(random.integers(1, 4)), 3)
        weights = program.leaf(*shape, scale=(9 * channels) ** -0.5)

        def convolved(x: Any, w: Any) -> Any:
            function = torch.nn.functional.conv2d if is_torch(x) else Tensor.conv2d
            return function(x, w, stride=stride, padding=padding)

        program.call(f"conv2d {stride} {padding}", convolved, number, weights)
        return
    name = str(random.choice(["avg_pool2d", "max_pool2d"]))

    def pooled(x: Any) -> Any:
        return getattr(torch.nn.functional if is_torch(x) else Tensor, name)(x, 3, stride, padding=padding)

    program.call(f"{name} 3 {stride} {padding}", pooled, number)


def join(program: Program) -> None:
    import torch

    number = program.pick()
    x = program.theirs[number]
    if not x.ndim:
        return
    alike = [n for n, y in enumerate(program.theirs) if y.shape == x.shape]
    other, axis = int(program.random.choice(alike)), int(program.random.integers(x.ndim))
    kinds: dict[str, Call] = {
        f"cat {axis}": lambda a, b: torch.cat((a, b), axis) if is_torch(a) else a.cat(b, dim=axis),
        # Two tensors may differ by a rounding alone: x and tanh(x) near 0.
        "where": lambda a, b: torch.where(a > 0.3, a, b * 2) if is_torch(a) else (a > 0.3).where(a, b * 2),
    }
    program.call_one(kinds, number, other)


KINDS = (elementwise, elementwise, reduction, movement, movement, product, windows, join)

# ---------------------------------------------------------------- programs


def make_program(seed: int) -> Program:
    program = Program(np.random.default_rng(seed))
    for _ in range(program.random.integers(1, 4)):
        shape = [program.size() for _ in range(program.random.integers(1, 5))]
        while math.prod(shape) > MAX_ELEMENTS:
            shape.pop()
        program.leaf(*shape)
    for _ in range(program.random.integers(*CALLS)):
        KINDS[program.random.integers(len(KINDS))](program)
    return program


def difference(found: Array, expected: Array) -> float:
    """The largest, relative to the largest of what is expected where that is above 1."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return math.inf
    return float(np.abs(found - expected).max(initial=0) / max(1.0, np.abs(expected).max(initial=0)))


def check_program(seed: int) -> list[str]:
    """The program as text and what differs, or nothing."""
    import torch

    program = make_program(seed)
    numbers = range(len(program.ours))[-COMPARED:]
    complaints = []
    Tensor.realize(*(program.ours[number] for number in numbers))
    for number in numbers:
        error = difference(program.ours[number].detach().numpy(), program.theirs[number].detach().numpy())
        if error > TOLERANCE:
            complaints.append(f"x{number} differs by {error:.2g}")
    total, expected = Tensor(0.0), torch.zeros((), dtype=torch.float64)
    for number in numbers:
        theirs = program.theirs[number]
        slope = np.cos(np.arange(theirs.numel()) * 0.7 + number).reshape(tuple(theirs.shape))
        total = total + (program.ours[number] * Tensor(slope.astype(np.float32))).sum()
        expected = expected + (theirs * torch.tensor(slope)).sum()
    total.backward()
    expected.backward()
    for number, (ours, theirs) in enumerate(zip(program.ours, program.theirs, strict=True)):
        if theirs.is_leaf and theirs.grad is not None:
            found = np.zeros(tuple(theirs.shape)) if ours.grad is None else ours.grad.numpy()
            error = difference(found, theirs.grad.numpy())
            if error > GRADIENT_TOLERANCE:
                complaints.append(f"the gradient of x{number} differs by {error:.2g}")
    return [*program.text, *complaints] if complaints else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--calls", type=int, default=1, help="of each program; from the fourth on graphs are remembered"
    )
    given = parser.parse_args()
    start, count, failures = time.monotonic(), 0, 0
    seed = given.seed if given.seed is not None else int(np.random.default_rng().integers(10**9))
    while not count or time.monotonic() - start < given.seconds:
        try:
            found = next(filter(None, (check_program(seed) for _ in range(given.calls))), [])
        except Exception as error:  # a finding like any other
            found = [f"{type(error).__name__}: {error}"]
        if found:
            failures += 1
            print(f"seed {seed}:", *found, sep="\n  ", flush=True)
        seed, count = seed + 1, count + 1
    print(f"{count} programs, {failures} differ")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

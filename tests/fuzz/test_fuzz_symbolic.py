"""Random programs over symbolic sizes, beside the same programs over ints. What is done is decided by the symbolic
shapes, and both are given the same; results are compared, and all values of the variables share the plans of the
first."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, Variable
from tilewright.base.errors import UserError
from tilewright.engine.planning import plan as planning
from tilewright.graph.sizes import is_symbolic

LENGTH = 12
N, M = Variable("n", 1, 6), Variable("m", 0, 5)
VALUES = ((4, 2), (1, 0), (6, 5), (3, 3))
MAX_ELEMENTS = 1 << 12


class Pair:
    """A tensor whose sizes are symbolic, and the one of plain sizes that it is to equal."""

    def __init__(self, symbolic: Tensor, plain: Tensor) -> None:
        self.symbolic = symbolic
        self.plain = plain

    @property
    def shape(self) -> tuple[int, ...]:
        return self.symbolic.shape

    def apply(self, function: Callable[..., Tensor], *others: Pair, sizes: tuple[Any, ...] = ()) -> Pair:
        """`sizes` are pairs of a symbolic and a plain number."""
        symbolic = function(self.symbolic, *(other.symbolic for other in others), *(size for size, _ in sizes))
        return Pair(symbolic, function(self.plain, *(other.plain for other in others), *(size for _, size in sizes)))


def axis_of(choose: random.Random, pair: Pair) -> int:
    return choose.randrange(len(pair.shape))


def step(choose: random.Random, pairs: list[Pair], n: tuple[int, int], m: tuple[int, int]) -> Pair:
    """One more tensor, made of those there are."""
    base, pair = pairs[0], choose.choice(pairs)
    axis = axis_of(choose, pair)
    negated = tuple(-each for each in n)
    ends = choose.choice([(m, tuple(a + b for a, b in zip(n, m))), ((0, 0), n), (n, (LENGTH, LENGTH)), (m, (9, 9))])
    kinds: list[Callable[[], Pair]] = [
        lambda: base.apply(lambda x, start, end: x[:, start:end], sizes=ends),
        lambda: base.apply(lambda x, start, end: x[start:end, 1:4], sizes=ends),
        lambda: pair.apply(lambda x, k: x * k + 1, sizes=(n,)),
        lambda: pair.apply(lambda x: (x * 0.5).sigmoid()),
        lambda: pair.apply(lambda x: x.sum(axis)),
        lambda: pair.apply(lambda x: x.max(axis, keepdim=True)),
        lambda: pair.apply(lambda x: x.mean(axis, keepdim=True) + x),
        lambda: pair.apply(lambda x: x.softmax(axis)),
        lambda: pair.apply(lambda x: x.permute(*reversed(range(x.ndim)))),
        lambda: pair.apply(lambda x: x.flip(axis)),
        lambda: pair.apply(lambda x: x.flatten()),
        lambda: pair.apply(lambda x: x.unsqueeze(axis)),
        lambda: pair.apply(lambda x: x.reshape(-1, *x.shape[1:])),
        lambda: pair.apply(
            lambda x, k: x.pad(tuple((k, 1) if a == axis else (0, 0) for a in range(x.ndim))), sizes=(m,)
        ),
        lambda: pair.apply(lambda x: x.pad(tuple((1, 2) for _ in range(x.ndim)), value=3.0)),
        lambda: pair.apply(lambda x: x.cat(x * 2, dim=axis)),
        lambda: pair.apply(lambda x: x.repeat(*(2 if a == axis else 1 for a in range(x.ndim)))),
        lambda: pair.apply(lambda x: x.flatten() @ x.flatten()),
        lambda: pair.apply(lambda x: x.reshape(x.shape[0], -1) @ x.reshape(x.shape[0], -1).T),
        lambda: pair.apply(lambda x: x.reshape(x.shape[0], -1).T @ x.reshape(x.shape[0], -1)),
        lambda: pair.apply(lambda x: x.contiguous() + 1),
        lambda: pair.apply(lambda x: (x + 2).realize()),
        lambda: pair.apply(lambda x, k: (Tensor.arange(x.shape[-1]) < k).where(x, -1.0), sizes=(n,)),
        lambda: pair.apply(lambda x: (x > 0.125).where(x, x * x)),
        lambda: pair.apply(lambda x, k: x[..., -1:] * k, sizes=(negated,)),
        lambda: pair.apply(lambda x, k: x + Tensor.arange(k, k + x.shape[-1]), sizes=(m,)),
    ]
    alike = [other for other in pairs if other.shape == pair.shape]
    kinds.append(lambda: pair.apply(lambda x, y: x * 2 - y, choose.choice(alike)))
    return choose.choice(kinds)()


def program(seed: int, n: int, m: int) -> list[Pair]:
    choose = random.Random(seed)
    array = np.random.default_rng(seed).uniform(-1, 1, (LENGTH, LENGTH)).astype(np.float32)
    start = Tensor(array).realize()
    pairs = [Pair(start, start)]
    sizes = (N.bind(n), n), (M.bind(m), m)
    while len(pairs) < 9:
        try:
            made = step(choose, pairs, *sizes)
        except UserError:
            continue  # what cannot be decided is refused, whatever the values are
        if made.shape and made.plain.numel() and made.plain.numel() <= MAX_ELEMENTS and len(made.shape) < 5:
            pairs.append(made)
    return pairs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(24))
def test_symbolic_sizes_give_what_ints_give(seed: int) -> None:
    for number, (n, m) in enumerate(VALUES):
        pairs = program(seed, n, m)
        found = [pair for pair in pairs if is_symbolic(pair.shape)][-2:] or pairs[-2:]
        for pair in found:
            wanted = pair.plain.numpy()
            before = len(planning._plans)
            got = pair.symbolic.numpy()
            assert number == 0 or len(planning._plans) == before
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-4)

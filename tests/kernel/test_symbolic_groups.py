"""Kernels over symbolic sizes on a device with work-groups: threads share the symbolic loop, the grid has its share of
it, and the last part is masked. On the emulator, which has the facts of a card."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor, Variable
from tilewright.graph.records import Program
from tilewright.graph.walk import size_of

LENGTH = 100
VALUES = np.random.default_rng(15).standard_normal((3, LENGTH, 16)).astype(np.float32)
LENGTHS = (1, 2, 31, 32, 33, LENGTH - 1, LENGTH)


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def sizes(program: Program) -> tuple[int, int]:
    """Work-groups and threads in each."""
    axes = program.global_ranges, program.local_ranges
    groups, threads = (math.prod(map(size_of, found)) for found in axes)
    return groups, threads


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "softmax along it": (
        lambda x: x.transpose(1, 2).contiguous().softmax(-1),
        lambda x: softmax(x.transpose(0, 2, 1)),
    ),
    "sum across it": (lambda x: x.sum(1), lambda x: x.sum(1)),
    "sum of all": (lambda x: x.sum(), lambda x: x.sum()),
    "sums for each of it": (lambda x: x.sum(-1), lambda x: x.sum(-1)),
    "elementwise": (lambda x: (x * 2 + 1).contiguous(), lambda x: x * 2 + 1),
    "transposed": (lambda x: x.transpose(1, 2).contiguous(), lambda x: x.transpose(0, 2, 1)),
    "product with itself": (lambda x: x @ x.transpose(1, 2), lambda x: x @ x.transpose(0, 2, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_at_lengths_that_divide_nothing(name: str) -> None:
    ours, theirs = CASES[name]
    with emulated_card() as card:
        source = Tensor(VALUES, device=NAME).realize()
        for length in LENGTHS:
            found = ours(source[:, : Variable("n", 1, LENGTH).bind(length)]).numpy()
            np.testing.assert_allclose(found, theirs(VALUES[:, :length]), rtol=1e-5, atol=1e-5)
        assert len(card.programs) <= 3
        assert all(math.prod(sizes(program)) >= 64 for program in card.programs if "3_" in program.name)


def test_the_attention_of_one_token_fills_groups() -> None:
    """Threads share the scores of a row, the softmax and the sum over all keys."""
    query = VALUES[:, :1].reshape(1, 3, 1, 16)
    with emulated_card() as card:
        held = Tensor(VALUES.reshape(1, 3, LENGTH, 16), device=NAME).realize()
        for length in LENGTHS:
            keys = held[:, :, : Variable("n", 1, LENGTH).bind(length)]
            found = Tensor(query, device=NAME).scaled_dot_product_attention(keys, keys).numpy()
            weights = softmax(query @ VALUES[:, :length].transpose(0, 2, 1) / 4)
            np.testing.assert_allclose(found, weights @ VALUES[:, :length], rtol=1e-5, atol=1e-5)
        assert all(math.prod(sizes(program)) >= 3 * 16 for program in card.programs)


def test_a_grid_over_a_large_bound_stays_small() -> None:
    """Work-groups without work are begun all the same: there are some for each core, and they go on to further rows."""
    with emulated_card(cores=2) as card:
        source = Tensor(VALUES, device=NAME).realize()
        for length in (1, 70, LENGTH):
            found = source[:, : Variable("n", 1, LENGTH).bind(length)].sum(-1).numpy()
            np.testing.assert_allclose(found, VALUES[:, :length].sum(-1), rtol=1e-5, atol=1e-5)
        assert all(sizes(program)[0] <= 32 for program in card.programs)

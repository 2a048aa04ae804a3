"""Wrongs that were noticed and left: infinite masks of attention, a race of threads for a rare family, a bench without
rounds, activations at the ends of the numbers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tilewright import Tensor

RACE = """
import threading, time
import tilewright.tensor.tensor as module
from tilewright import Tensor
x, wrong, accept = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize(), [], module.accept_spellings
def call():
    try:
        x.median(axis=0)
    except Exception as error:
        wrong.append(error)
other = threading.Thread(target=call)
def slowly(*arguments):
    other.start()
    time.sleep(0.2)
    accept(*arguments)
module.accept_spellings = slowly
call()
other.join()
assert not wrong, wrong[0]
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_threads_that_ask_for_a_rare_family_at_once_find_it_complete() -> None:
    found = run("-c", RACE)
    assert found.returncode == 0, found.stderr[-300:]


def test_a_bench_of_no_rounds_says_what_to_give() -> None:
    found = run("-m", "bench.llm", "--rounds", "0", "--products", "Q8_0")
    assert found.returncode == 2
    assert "give at least 1" in found.stderr


@pytest.mark.parametrize(("queries", "keys"), [(4, 7), (1, 7), (64, 512), (1, 2048), (128, 128)])
@pytest.mark.parametrize("number", [np.inf, -np.inf, 3e38, np.nan])
def test_a_float_mask_means_the_same_in_short_and_long_attention(queries: int, keys: int, number: float) -> None:
    """A row with a score of plus infinity has no weights, as softmax has none."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (queries, keys, keys))
    mask = np.zeros((queries, keys), np.float32)
    mask[0, 3] = number
    found = Tensor(query).scaled_dot_product_attention(Tensor(key), Tensor(value), attn_mask=Tensor(mask)).numpy()
    scores = query.astype(np.float64) @ key.swapaxes(-1, -2) / 4 + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = weights / weights.sum(-1, keepdims=True) @ value
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["silu", "softplus", "mish", "sigmoid", "tanh", "softshrink", "hardshrink"])
def test_activations_at_the_ends_of_the_numbers(name: str) -> None:
    """Far above zero the slope is 1, or 0 where the function is flat, also where x times it is not a number's."""
    x = Tensor(np.array([1.7e38, 3.4e38, np.nan], np.float32), requires_grad=True)
    found = getattr(x, name)()
    flat = name in ("sigmoid", "tanh")
    np.testing.assert_array_equal(found.numpy(), [1.0, 1.0, np.nan] if flat else x.numpy())
    np.testing.assert_array_equal(found.sum().gradient(x)[0].numpy()[:2], [0.0, 0.0] if flat else [1.0, 1.0])


def test_logsumexp_of_infinity_has_slopes() -> None:
    x = Tensor(np.array([[np.inf, 0.0, 1.0]], np.float32), requires_grad=True)
    found = x.logsumexp(-1)
    assert found.tolist() == [np.inf]
    slopes = found.sum().gradient(x)[0].numpy()[0]
    assert slopes[1:].tolist() == [0.0, 0.0]

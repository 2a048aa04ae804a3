"""Training on real digits, as examples/mnist.py does it: its loss beside torch's, and how many digits it reads.

The digits come from the user's cache, or are fetched; without them, and without torch, the tests are skipped.
"""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from bench import train_vs_torch
from bench.train_vs_torch import mnist
from tilewright import Context, Tensor, nn
from tilewright.base.errors import FileError, FileFormatError

Digits = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def digits() -> Digits:
    # The cache of the user is used, which the tests otherwise leave alone: these are large.
    with Context(TILEWRIGHT_CACHE_DIR=""):
        try:
            images, labels, test_images, test_labels = (part.numpy() for part in nn.datasets.mnist())
        except FileFormatError:
            raise
        except FileError as error:
            pytest.skip(error.message)
    return images, labels, test_images, test_labels


@pytest.mark.torch
@pytest.mark.network
def test_a_hundred_losses_are_those_of_torch(digits: Digits) -> None:
    """The first hundred steps of the recipe, in float32, from the same weights and with the same batches."""
    images, labels, _, _ = digits
    steps = list(train_vs_torch.run(images, labels, seed=0, steps=100, with_other=False))
    assert len(steps) == 100
    for number, losses in enumerate(steps):
        assert losses.difference < train_vs_torch.LIMIT, f"step {number + 1}: {losses}"
    assert max(losses.difference for losses in steps[:20]) < 1e-5
    # The comparison says something only of a network that learns.
    assert np.mean([losses.ours for losses in steps[-10:]]) < 0.4 * steps[0].ours


@pytest.mark.slow
@pytest.mark.network
def test_unseen_digits_are_read(digits: Digits) -> None:
    images, labels, test_images, test_labels = digits
    if len(labels) < 60_000:
        pytest.skip(f"only {len(labels)} of the 60,000 digits to learn from could be fetched")
    Tensor.manual_seed(0)
    model, console = mnist.Model(), Console(quiet=True)
    mnist.train(console, model, images, labels, mnist.STEPS, mnist.BATCH, mnist.RATE, seed=0)
    found = mnist.classify(console, model, test_images)
    assert len(found) == 10_000
    assert np.mean(found == test_labels) > 0.98

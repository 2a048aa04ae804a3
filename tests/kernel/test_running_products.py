"""Running products along rows on the emulator with the facts of a card."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor

generator = np.random.default_rng(16)


def powers(*shape: int) -> np.ndarray:
    """Products of few powers of two are exact in any order."""
    signs = generator.choice([-1, 1], shape)
    return (np.exp2(generator.integers(-1, 2, shape)) * signs).astype(np.float32)


@pytest.mark.parametrize("facts", [{}, {"max_local_bytes": 8192, "max_group_size": 64}], ids=["row", "blocks"])
@pytest.mark.parametrize("shape", [(3, 64), (1, 513), (2, 3, 700), (1, 3000), (130, 65)], ids=str)
def test_running_products_of_rows(shape: tuple[int, ...], facts: dict[str, int]) -> None:
    """In one kernel where a row fits in local memory, else in one for the totals of blocks, one for their running
    products and one for the row."""
    x = powers(*shape)
    with emulated_card(**facts) as card:
        np.testing.assert_array_equal(Tensor(x, device=NAME).cumprod(-1).numpy(), x.cumprod(-1))
        names = [program.name for program in card.programs]
        assert "scan_rows" in names
        assert len(names) <= (5 if facts else 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_running_products_are_stored_as_they_are_asked_for(dtype: str) -> None:
    x = generator.choice([-1, 1], (2, 1601)).astype(np.float32)
    with emulated_card(max_local_bytes=8192, max_group_size=64):
        found = Tensor(x, device=NAME).cast(dtype).cumprod(-1)
        np.testing.assert_array_equal(found.cast("float32").numpy(), x.cumprod(-1))


def test_the_gradient_of_running_products() -> None:
    """That of the CPU, also behind elements that are 0."""
    x, slope = powers(2, 70), powers(2, 70)
    x[0, 30] = x[1, 5] = x[1, 40] = 0

    def gradient(device: str | None) -> np.ndarray:
        source = Tensor(x, device=device)
        return (source.cumprod(-1) * Tensor(slope, device=device)).sum().gradient(source)[0].numpy()

    with emulated_card():
        np.testing.assert_allclose(gradient(NAME), gradient(None), rtol=1e-5)

"""Sorts of blocks in local memory and registers, on the emulator with the facts of a card: stable, of any integers, at
sizes that divide nothing; and the size of their texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernel.emulated_card import CARD, NAME, emulated_card
from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.codegen.pipeline import lower
from tilewright.graph.kernels.sorting.sort_block import block_kernel, largest_block, words_of
from tilewright.kernel.optimise import optimise

generator = np.random.default_rng(15)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("shape", [(2, 150), (300, 3)], ids=str)
@pytest.mark.parametrize(
    "facts", [{}, {"native": CARD.native - {dtypes.uint64}}, {"max_group_size": 4}], ids=["", "no long words", "turns"]
)
def test_equal_elements_keep_their_order(shape: tuple[int, int], dtype: type, facts: dict[str, Any]) -> None:
    """More elements than one thread holds, and rows that share a work-group. The extremes of a dtype are as large as
    what stands past the end of a row."""
    limits = np.iinfo(dtype)
    x = generator.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    x[:, ::3] = generator.integers(0, 4, x[:, ::3].shape)
    x[:, :3] = limits.max, limits.min, limits.max
    with emulated_card(**facts) as card:
        values, places = Tensor(x, device=NAME).sort(1)
        np.testing.assert_array_equal(places.numpy(), np.argsort(x, 1, kind="stable"))
        np.testing.assert_array_equal(values.numpy(), np.sort(x, 1))
        assert any(program.name.startswith("sort_blocks") for program in card.programs)


def test_a_sort_is_few_kernels_with_loops() -> None:
    """The number of kernels does not grow with that of merges."""
    with emulated_card(max_local_bytes=512) as card:
        Tensor(generator.integers(0, 9, (1, 700)), device=NAME).argsort(1).realize()
        assert [program.name for program in card.programs].count("merge_blocks") == 1
        assert len(card.programs) <= 6


def test_a_longer_block_has_no_longer_text() -> None:
    words = words_of(dtypes.int32, 1 << 14, CARD)
    kernels = [block_kernel(words, 8, size, size, size // words.held, 1) for size in (1 << 11, 1 << 13)]
    first, second = (len(lower(optimise(kernel, CARD), CARD).body) for kernel in kernels)
    assert second < 1.01 * first  # bounds of indices may spare a node or two of a shorter block


def test_a_block_fits_in_local_memory() -> None:
    for dtype in (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64):
        block = largest_block(dtype, 1 << 20, CARD)
        assert words_of(dtype, block, CARD).local_bytes(block) <= CARD.max_local_bytes
        assert words_of(dtype, 2 * block, CARD).local_bytes(2 * block) > CARD.max_local_bytes
    assert largest_block(dtypes.int32, 64, CARD) == 64

"""Whole networks planned for a card, without one: every kernel of much work has threads for all multiprocessors."""

from __future__ import annotations

import pytest

from bench.network_rows import NETWORKS
from tilewright.backends.cuda.device import cuda_target
from tools.slow_kernels import estimate, kernels_of

CARD = cuda_target()
LARGE = 1 << 21
FEWEST = CARD.cores * 64
LONG_TO_PLAN = {"lstm"}  # 10 s


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG_TO_PLAN else []) for name in NETWORKS]
)
def test_no_kernel_of_a_network_has_few_threads(name: str) -> None:
    """The sums of a batch normalisation of U-Net were taken in a kernel that also stored the result in another order,
    with a thread for each of 512 channels: 4.6 of 23 ms."""
    found = [estimate(ast, CARD) for ast in kernels_of(name, CARD)]
    few = [each for each in found if each.work >= LARGE and each.groups * each.threads < FEWEST and not each.is_tensor]
    assert not few, [(each.name, each.opts, each.groups, each.threads) for each in few]

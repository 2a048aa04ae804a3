"""Whole networks planned for a card, without one: every kernel of much work has threads for all multiprocessors."""

from __future__ import annotations

from typing import Any

import pytest

from bench.network_rows import NETWORKS, Sizes
from tilewright.backends.cuda.device import cuda_target
from tools.slow_kernels import estimate, kernels_of

CARD = cuda_target()
LARGE = 1 << 21
FEWEST = CARD.cores * 64
LONG_TO_PLAN = {"lstm", "efficientnet"}  # 10 s
# Of the networks before t5 two layers have every kernel of much work that the whole network has. Of the others a
# smaller network has most of them, or such of the same kinds. Whole networks are planned too, among the slow tests.
SMALLER: dict[str, Sizes] = {
    "gpt2": {"layers": 2},
    "llama-decode": {"layers": 2},
    "llama-prefill": {"layers": 2},
    "vit": {"layers": 2},
    "mixer": {"layers": 2},
    "bert": {"layers": 2},
    "conformer": {"layers": 2},
    "convnext": {"layers": 2},
    "t5": {"layers": 2},
    "wavenet": {"layers": 10},
    "resnet50-step": {"deep": 0},
    "translator": {"time": 16},
    "swin": {"stages": 2},
    "diffusion": {"levels": 2},
}


def networks() -> list[Any]:
    slow = {name: [pytest.mark.slow] for name in LONG_TO_PLAN}
    found = [pytest.param(name, SMALLER.get(name, {}), id=name, marks=slow.get(name, [])) for name in NETWORKS]
    return found + [pytest.param(name, {}, id=f"{name}, whole", marks=pytest.mark.slow) for name in SMALLER]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "sizes"), networks())
def test_no_kernel_of_a_network_has_few_threads(name: str, sizes: Sizes) -> None:
    """The sums of a batch normalisation of U-Net were taken in a kernel that also stored the result in another order,
    with a thread for each of 512 channels: 4.6 of 23 ms."""
    found = [estimate(ast, CARD) for ast in kernels_of(name, CARD, **sizes)]
    few = [each for each in found if each.work >= LARGE and each.groups * each.threads < FEWEST and not each.is_tensor]
    assert not few, [(each.name, each.opts, each.groups, each.threads) for each in few]

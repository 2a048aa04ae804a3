"""The Q4_0 expert matmul (cases.md section 1): the custom kernel and the tensor expression agree, with any legal opts.

The sizes are small here; bench/q4_experts.py has those of the real layer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.issues.quantised_experts import expected, random_weights, run_expression, run_kernel
from tilewright import Opt, OptOps, Tensor
from tilewright.base.errors import KernelOptError

EXPERTS, WIDTH, HIDDEN = 5, 6, 256
CHOSEN = np.array([3, 0, 4, 3], np.int32)
STEPS = HIDDEN // 2  # 8 blocks of 16 bytes
WEIGHTS = random_weights(EXPERTS, WIDTH, HIDDEN)
X = np.random.default_rng(1).standard_normal(HIDDEN).astype(np.float32)


def tensors(device: str, hidden: int = HIDDEN) -> tuple[Tensor, Tensor, Tensor]:
    arrays = (WEIGHTS[:, :, : hidden // 32].copy(), X[:hidden].copy(), CHOSEN)
    weights, x, chosen = (Tensor(array, device=device) for array in arrays)
    return weights, x, chosen


def assert_right(found: Tensor, hidden: int = HIDDEN) -> None:
    wanted = expected(WEIGHTS[:, :, : hidden // 32], X[:hidden], CHOSEN)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("opts", [(), None], ids=["no-opts", "heuristic"])
def test_kernel(opts: tuple[Opt, ...] | None, device: str) -> None:
    assert_right(run_kernel(*tensors(device), opts))


def test_expression(device: str) -> None:
    assert_right(run_expression(*tensors(device)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", [OptOps.GROUP, OptOps.GROUPTOP])
@pytest.mark.parametrize("amount", [2, 4, 8, 16, 32, 64, 128])
def test_an_amount_that_divides(op: OptOps, amount: int, device: str, has_groups: bool) -> None:
    opts = (Opt(op, 2, amount),)
    if has_groups:
        assert_right(run_kernel(*tensors(device), opts))
    else:
        with pytest.raises(KernelOptError, match="needs work-groups"):
            run_kernel(*tensors(device), opts).realize()


@pytest.mark.parametrize("amount", [3, 48, 100, 256])
def test_an_amount_that_does_not_is_refused_with_the_sizes(amount: int, device: str) -> None:
    with pytest.raises(KernelOptError, match=rf"{amount} does not divide size {STEPS} of axis 2"):
        run_kernel(*tensors(device), (Opt(OptOps.GROUPTOP, 2, amount),)).realize()


def test_padding_that_is_asked_for(device: str, has_groups: bool) -> None:
    """3 blocks are 48 steps: 32 threads do not divide them, and after PADTO they do."""
    small = tensors(device, 96)
    with pytest.raises(KernelOptError, match="32 does not divide size 48"):
        run_kernel(*small, (Opt(OptOps.GROUPTOP, 2, 32),)).realize()
    assert_right(run_kernel(*small, (Opt(OptOps.PADTO, 2, 32),)), 96)
    if has_groups:
        assert_right(run_kernel(*small, (Opt(OptOps.PADTO, 2, 32), Opt(OptOps.GROUPTOP, 2, 32))), 96)


@pytest.mark.parametrize(
    "opts",
    [
        (Opt(OptOps.UPCAST, 2, 16),),
        (Opt(OptOps.UNROLL, 2, 4),),
        (Opt(OptOps.UPCAST, 1, 3), Opt(OptOps.UNROLL, 2, 8)),
        (Opt(OptOps.SWAP, 0, 1),),
    ],
    ids=str,
)
def test_other_opts(opts: tuple[Opt, ...], device: str) -> None:
    assert_right(run_kernel(*tensors(device), opts))


WORD_OPTS = (Opt(OptOps.UPCAST, 3, 2), Opt(OptOps.UNROLL, 2, 4), Opt(OptOps.UPCAST, 1, 2))
GROUP_OPTS = (
    Opt(OptOps.UPCAST, 3, 2),
    Opt(OptOps.GROUP, 2, 16),
    Opt(OptOps.UNROLL, 3, 2),
    Opt(OptOps.UPCAST, 1, 3),
    Opt(OptOps.LOCAL, 1, 2),
)


@pytest.mark.parametrize("opts", [(), None, WORD_OPTS, GROUP_OPTS], ids=["no-opts", "heuristic", "tile", "group"])
def test_kernel_on_words(opts: tuple[Opt, ...] | None, device: str, has_groups: bool) -> None:
    _, x, chosen = tensors(device)
    words = Tensor(WEIGHTS.view(np.uint16), device=device)
    if opts is GROUP_OPTS and not has_groups:
        with pytest.raises(KernelOptError, match="needs work-groups"):
            run_kernel(words, x, chosen, opts).realize()
    else:
        assert_right(run_kernel(words, x, chosen, opts))

"""The loss of sequences without an alignment, and windows of images, beside torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit, nn
from tilewright.base.errors import ShapeError
from tilewright.nn import functional as F

RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((9, 3, 5)).astype(np.float32)
TARGETS = np.array([[1, 2, 2, 3], [4, 4, 1, 1], [3, 2, 1, 4]])


@pytest.mark.torch
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("blank", [0, 4])
@pytest.mark.parametrize("ends", [(9, 9, 9), (9, 6, 3)])
def test_alignments_are_those_of_torch(reduction: str, blank: int, ends: tuple[int, ...]) -> None:
    import torch

    targets = np.where(TARGETS == blank, 0, TARGETS)
    lengths = (4, 3, 1)
    arguments: dict[str, Any] = {"blank": blank, "reduction": reduction}
    theirs = torch.tensor(SCORES, requires_grad=True)
    wanted = torch.nn.functional.ctc_loss(theirs.log_softmax(2), torch.tensor(targets), ends, lengths, **arguments)
    wanted.sum().backward()
    ours = Tensor(SCORES, requires_grad=True)
    found = nn.CTCLoss(**arguments)(ours.log_softmax(2), Tensor(targets), ends, Tensor(lengths))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-5)
    found.sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-3, atol=1e-5)


def test_labels_that_do_not_fit_in_time() -> None:
    scores, targets = Tensor(SCORES[:3]).log_softmax(2), Tensor(TARGETS)
    assert F.ctc_loss(scores, targets, [3, 3, 3], [4, 2, 1], reduction="none")[0].item() == float("inf")
    kept = jit(
        lambda: F.ctc_loss(scores, targets, [3, 3, 3], [4, 2, 1], reduction="none", zero_infinity=True).realize()
    )
    assert kept().tolist()[0] == 0.0
    assert np.isfinite(kept().numpy()).all()
    with pytest.raises(ShapeError, match="ctc_loss: log-probabilities"):
        F.ctc_loss(scores, Tensor([1, 2]), [3], [2])


@pytest.mark.torch
@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 2},
        {"kernel_size": (3, 2), "padding": (1, 2), "stride": 2},
        {"kernel_size": 3, "dilation": (2, 1)},
    ],
)
def test_windows_are_those_of_torch(arguments: dict[str, Any]) -> None:
    import torch

    x = RNG.standard_normal((2, 3, 7, 8)).astype(np.float32)
    wanted = torch.nn.functional.unfold(torch.tensor(x), **arguments).numpy()
    np.testing.assert_array_equal(F.unfold(Tensor(x), **arguments).numpy(), wanted)
    norm = torch.nn.functional.instance_norm(torch.tensor(x)).numpy()
    np.testing.assert_allclose(F.instance_norm(Tensor(x)).numpy(), norm, rtol=1e-4, atol=1e-5)

"""Short-time Fourier transforms beside torch's, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, fft
from tilewright.base.errors import TilewrightError

CASES: list[dict[str, Any]] = [
    {},
    {"hop_length": 3},
    {"win_length": 10, "center": False},
    {"normalized": True, "pad_mode": "constant"},
    {"onesided": False, "hop_length": 5},
]


def signal(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("options", CASES)
def test_what_is_transformed_comes_back(options: dict[str, Any]) -> None:
    x, size = signal(2, 64), options.get("win_length", 16)
    window = Tensor(np.hanning(size + 2)[1:-1].astype(np.float32))
    found = fft.stft(Tensor(x), 16, window=window, **options)
    inverse = {name: value for name, value in options.items() if name != "pad_mode"}
    back = fft.istft(found, 16, window=window, length=None if "center" in options else 64, **inverse).numpy()
    # Without padding the first elements are in no window, or in few.
    inner = slice(3, -3) if "center" in options else slice(None)
    first = slice(3, back.shape[1] - 3) if "center" in options else slice(None)
    np.testing.assert_allclose(back[:, inner], x[:, : back.shape[1]][:, first], atol=1e-4)


def test_what_is_wrong_is_named() -> None:
    x = Tensor(signal(64))
    for call in (
        lambda: fft.stft(x, 128, center=False),
        lambda: fft.stft(x, 16, win_length=20),
        lambda: fft.stft(x, 16, return_complex=False),
        lambda: fft.stft(x.reshape(1, 8, 8), 4),
        lambda: fft.istft(x.reshape(8, 8), 14),
    ):
        with pytest.raises(TilewrightError):
            call()


@pytest.mark.torch
@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("shape", [(50,), (2, 61)])
def test_transforms_beside_torch(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    import torch

    x, size = signal(*shape), options.get("win_length", 16)
    window = signal(size) ** 2 + 0.5
    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    found = fft.stft(ours, 16, window=Tensor(window), **options)
    wanted = torch.stft(theirs, 16, window=torch.tensor(window), return_complex=True, **options)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), atol=1e-4)
    found.abs().square().sum().backward()
    wanted.abs().square().sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-3, atol=1e-3)
    inverse = {name: value for name, value in options.items() if name != "pad_mode"}
    if "center" not in options:
        back = fft.istft(found, 16, window=Tensor(window), **inverse).numpy()
        expected = torch.istft(wanted, 16, window=torch.tensor(window), **inverse).detach().numpy()
        np.testing.assert_allclose(back, expected, atol=1e-4)

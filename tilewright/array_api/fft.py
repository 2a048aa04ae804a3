"""The Fourier transform extension of the array API: `tilewright.fft` under the standard's signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright.fft as transforms
from tilewright.tensor.tensor import Tensor

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]


def _along_axis(name: str) -> Callable[..., Tensor]:
    transform = getattr(transforms, name)

    def function(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
        return transform(x, n, axis, norm)  # type: ignore[no-any-return]

    return _named(function, name)


def _along_axes(name: str) -> Callable[..., Tensor]:
    transform = getattr(transforms, name)

    def function(x: Tensor, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Tensor:
        return transform(x, s, axes, norm)  # type: ignore[no-any-return]

    return _named(function, name)


def _named(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(transforms, name).__doc__
    return function


fft = _along_axis("fft")
ifft = _along_axis("ifft")
rfft = _along_axis("rfft")
irfft = _along_axis("irfft")
hfft = _along_axis("hfft")
ihfft = _along_axis("ihfft")
fftn = _along_axes("fftn")
ifftn = _along_axes("ifftn")
rfftn = _along_axes("rfftn")
irfftn = _along_axes("irfftn")


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `fft`, for samples `d` apart."""
    return transforms.fftfreq(n, d, dtype=dtype, device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `rfft`."""
    return transforms.rfftfreq(n, d, dtype=dtype, device=device)


def fftshift(x: Tensor, /, *, axes: Any = None) -> Tensor:
    """The frequency 0 moved to the middle of axes."""
    return transforms.fftshift(x, axes)


def ifftshift(x: Tensor, /, *, axes: Any = None) -> Tensor:
    """The inverse of `fftshift`."""
    return transforms.ifftshift(x, axes)

"""Discrete Fourier transforms as functions, under the names and with the arguments of `torch.fft` and `numpy.fft`. In:
real or complex tensors; an axis is `dim` or `axis`, several are `dim` or `axes`. Out: complex tensors (`ComplexTensor`,
a pair of real ones), or real ones where the name says so. They are lazy, take O(n log n) for every length n, and
gradients go through them. Float64 gives complex128; all other real numbers are transformed in float32 and give
complex64.

`norm` says where the division by n stands: "backward" (in the inverse, as by default), "forward", or "ortho" (the root
of it in both). `n` and `s` are lengths that the axes are cut or filled up with zeros to, before the transform; for
inverse transforms to real numbers, the lengths of the result.

`stft` and `istft` are the short-time transforms of torch: those of overlapping windows of a signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dtype import DType, to_dtype
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph.spec import Devices
from tilewright.tensor.complex import fourier, real_fourier
from tilewright.tensor.complex.tensor import ComplexTensor
from tilewright.tensor.core.base import check_tensors
from tilewright.tensor.core.checks import check_whole
from tilewright.tensor.tensor import Tensor

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "istft",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
    "stft",
]

Lengths = Sequence[int] | None
Axes = int | Sequence[int] | None


def _split(operation: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The parts of a tensor; the second one is None where it is real."""
    check_tensors(operation, x)
    return (x.real, x.imag) if isinstance(x, ComplexTensor) else (x, None)


def _real_only(operation: str, x: Tensor) -> Tensor:
    check_tensors(operation, x)
    if isinstance(x, ComplexTensor):
        raise DTypeError(
            operation, f"the input is {x.dtype.name}", "take its real part, or use the transform without r"
        )
    return x


def _one_axis(operation: str, x: Tensor, n: int | None, axis: int, is_half: bool = False) -> tuple[int, int]:
    """(length, axis). Of a half spectrum of m elements the whole has 2 * (m - 1), unless it is given."""
    found = fourier.checked_axis(operation, x, axis)
    size = 2 * (x.shape[found] - 1) if is_half else x.shape[found]
    return fourier.check_length(operation, n, size), found


def _several_axes(
    operation: str, x: Tensor, s: Lengths, axes: Axes, is_half: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    given = (axes,) if isinstance(axes, int) else axes
    lengths, found = fourier.checked_axes(operation, x, s, given)
    if not found and is_half:
        raise ShapeError(operation, f"no axis of a tensor of shape {x.shape}", "name at least one axis")
    return lengths, found


def _full(x: tuple[Tensor, Tensor]) -> ComplexTensor:
    return ComplexTensor(*x)


def _count(lengths: Sequence[int]) -> int:
    total = 1
    for length in lengths:
        total *= length
    return total


# ---------------------------------------------------------------- one axis


def fft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, axis: int | None = None
) -> ComplexTensor:
    """The sums of x[j] * exp(-2 pi i * j * k / n)."""
    return _along_one("fft", input, n, dim if axis is None else axis, norm, -1)


def ifft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, axis: int | None = None
) -> ComplexTensor:
    """The inverse of `fft`."""
    return _along_one("ifft", input, n, dim if axis is None else axis, norm, 1)


def _along_one(operation: str, x: Tensor, n: int | None, axis: int, norm: str | None, sign: int) -> ComplexTensor:
    real, imag = _split(operation, x)
    length, axis = _one_axis(operation, x, n, axis)
    scale = fourier.scale_of(norm, length, sign, operation)
    return _full(fourier.fft_pair(real, imag, (length,), (axis,), sign, scale))


def rfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, axis: int | None = None
) -> ComplexTensor:
    """The first n // 2 + 1 elements of the transform of a real tensor; the others are their conjugates."""
    x = _real_only("rfft", input)
    length, axis = _one_axis("rfft", x, n, dim if axis is None else axis)
    return _full(real_fourier.rfft_pair(x, (length,), (axis,), fourier.scale_of(norm, length, -1, "rfft")))


def irfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, axis: int | None = None
) -> Tensor:
    """The inverse of `rfft`: the real tensor of length n, 2 * (m - 1) unless it is given, whose transform begins with
    these m elements."""
    real, imag = _split("irfft", input)
    length, axis = _one_axis("irfft", input, n, dim if axis is None else axis, is_half=True)
    scale = fourier.scale_of(norm, length, 1, "irfft")
    found: Tensor = real_fourier.irfft_real(real, imag, (length,), (axis,), scale)
    return found


def hfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, axis: int | None = None
) -> Tensor:
    """The transform, which is real, of a signal whose second half is the conjugate of its first one."""
    real, imag = _split("hfft", input)
    length, axis = _one_axis("hfft", input, n, dim if axis is None else axis, is_half=True)
    scale = fourier.scale_of(norm, length, -1, "hfft")
    conjugate = None if imag is None else -imag
    found: Tensor = real_fourier.irfft_real(real, conjugate, (length,), (axis,), scale)
    return found


def ihfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, axis: int | None = None
) -> ComplexTensor:
    """The inverse of `hfft`, of a real tensor."""
    x = _real_only("ihfft", input)
    length, axis = _one_axis("ihfft", x, n, dim if axis is None else axis)
    real, imag = real_fourier.rfft_pair(x, (length,), (axis,), fourier.scale_of(norm, length, 1, "ihfft"))
    return ComplexTensor(real, -imag)


# ---------------------------------------------------------------- several axes


def fftn(
    input: Tensor, s: Lengths = None, dim: Axes = None, norm: str | None = None, *, axes: Axes = None
) -> ComplexTensor:
    """`fft` of several axes: all of them unless they are named."""
    return _along_several("fftn", input, s, dim if axes is None else axes, norm, -1)


def ifftn(
    input: Tensor, s: Lengths = None, dim: Axes = None, norm: str | None = None, *, axes: Axes = None
) -> ComplexTensor:
    """The inverse of `fftn`."""
    return _along_several("ifftn", input, s, dim if axes is None else axes, norm, 1)


def _along_several(operation: str, x: Tensor, s: Lengths, axes: Axes, norm: str | None, sign: int) -> ComplexTensor:
    real, imag = _split(operation, x)
    lengths, axes = _several_axes(operation, x, s, axes)
    scale = fourier.scale_of(norm, _count(lengths), sign, operation)
    return _full(fourier.fft_pair(real, imag, lengths, axes, sign, scale))


def rfftn(
    input: Tensor, s: Lengths = None, dim: Axes = None, norm: str | None = None, *, axes: Axes = None
) -> ComplexTensor:
    """`rfft` of the last axis named, and `fft` of the others."""
    x = _real_only("rfftn", input)
    lengths, axes = _several_axes("rfftn", x, s, dim if axes is None else axes, is_half=True)
    scale = fourier.scale_of(norm, _count(lengths), -1, "rfftn")
    return _full(real_fourier.rfft_pair(x, lengths, axes, scale))


def irfftn(input: Tensor, s: Lengths = None, dim: Axes = None, norm: str | None = None, *, axes: Axes = None) -> Tensor:
    """The inverse of `rfftn`; the last length of `s` is that of the result, 2 * (m - 1) unless it is given."""
    real, imag = _split("irfftn", input)
    wanted = dim if axes is None else axes
    if s is None or s[-1] == -1:
        _, axes = _several_axes("irfftn", input, s, wanted, is_half=True)
        before = [input.shape[axis] for axis in axes[:-1]] if s is None else list(s[:-1])
        s = [*before, 2 * (input.shape[axes[-1]] - 1)]
    lengths, axes = _several_axes("irfftn", input, s, wanted, is_half=True)
    scale = fourier.scale_of(norm, _count(lengths), 1, "irfftn")
    found: Tensor = real_fourier.irfft_real(real, imag, lengths, axes, scale)
    return found


def _of_two(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    def of_two(
        input: Tensor, s: Lengths = None, dim: Axes = (-2, -1), norm: str | None = None, *, axes: Axes = None
    ) -> Any:
        return function(input, s, dim if axes is None else axes, norm)

    of_two.__name__ = of_two.__qualname__ = name
    of_two.__doc__ = doc
    return of_two


fft2 = _of_two(fftn, "fft2", "`fftn` of two axes, the last ones unless they are named.")
ifft2 = _of_two(ifftn, "ifft2", "`ifftn` of two axes, the last ones unless they are named.")
rfft2 = _of_two(rfftn, "rfft2", "`rfftn` of two axes, the last ones unless they are named.")
irfft2 = _of_two(irfftn, "irfft2", "`irfftn` of two axes, the last ones unless they are named.")


# ---------------------------------------------------------------- frequencies


def fftfreq(n: int, d: float = 1.0, *, dtype: DType | str | None = None, device: Devices | None = None) -> Tensor:
    """The frequency of each element of a transform of n samples that are d apart: 0, 1, ..., -2, -1, over n * d."""
    check_whole("fftfreq", "n", n, least=1)
    return _frequencies(n, list(range((n + 1) // 2)) + list(range(-(n // 2), 0)), d, dtype, device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: DType | str | None = None, device: Devices | None = None) -> Tensor:
    """The frequencies of the elements that `rfft` gives: 0, 1, ..., n // 2, over n * d."""
    check_whole("rfftfreq", "n", n, least=1)
    return _frequencies(n, list(range(n // 2 + 1)), d, dtype, device)


def _frequencies(n: int, numbers: list[int], d: float, dtype: DType | str | None, device: Devices | None) -> Tensor:
    wanted = to_dtype("float32" if dtype is None else dtype)
    if not wanted.is_float:
        raise DTypeError("fftfreq", f"dtype={wanted.name}", "frequencies are real: give a float dtype")
    return Tensor([number / (n * d) for number in numbers], dtype=wanted, device=device)


def fftshift(input: Tensor, dim: Axes = None, *, axes: Axes = None) -> Tensor:
    """The axes rolled so that the frequency 0 stands in the middle."""
    check_tensors("fftshift", input)
    return _shifted(input, dim if axes is None else axes, False)


def ifftshift(input: Tensor, dim: Axes = None, *, axes: Axes = None) -> Tensor:
    """The inverse of `fftshift`."""
    check_tensors("ifftshift", input)
    return _shifted(input, dim if axes is None else axes, True)


def _shifted(x: Tensor, axes: Axes, is_inverse: bool) -> Tensor:
    wanted = tuple(axes) if isinstance(axes, tuple | list) else axes
    found: Tensor = fourier.shifted(x, wanted, is_inverse)
    return found


# ---------------------------------------------------------------- windows of a signal


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool = True,
) -> ComplexTensor:
    """The transforms of windows of (length,) or (batch, length), as (..., frequencies, windows). With `center` the
    signal is padded, so that window k is about element k * hop_length; `normalized` divides by the root of n_fft."""
    check_tensors("stft", input)
    if not return_complex:
        raise DTypeError("stft", "return_complex=False", "use .real and .imag of the result")
    if input.ndim not in (1, 2):
        raise ShapeError("stft", f"shape {input.shape}", "give (length,) or (batch, length)")
    parts = [input.real, input.imag] if isinstance(input, ComplexTensor) else [input]
    if center:
        parts = [part.pad((n_fft // 2, n_fft // 2), mode=pad_mode) for part in parts]
    hop, weights = _framing("stft", parts[0], n_fft, hop_length, win_length, window)
    if parts[0].shape[-1] < n_fft:
        raise ShapeError("stft", f"windows of {n_fft} of {parts[0].shape[-1]} elements", "give a smaller n_fft")
    frames = [part.unfold(-1, n_fft, hop) * weights for part in parts]
    norm = "ortho" if normalized else None
    is_half = len(parts) == 1 if onesided is None else onesided
    whole = ComplexTensor(frames[0], frames[1]) if len(frames) == 2 else frames[0]
    found = rfft(whole, norm=norm) if is_half else fft(whole, norm=norm)
    return ComplexTensor(found.real.transpose(-1, -2), found.imag.transpose(-1, -2))


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose `stft` comes nearest to this one, of `length` elements where that is given."""
    check_tensors("istft", input)
    real, imag = _split("istft", input)
    if real.ndim not in (2, 3) or imag is None:
        message = f"{input.dtype.name} of shape {input.shape}"
        raise ShapeError("istft", message, "give complex (frequencies, windows), or a batch of those")
    spectrum = ComplexTensor(real.transpose(-1, -2), imag.transpose(-1, -2))
    is_half = real.shape[-2] != n_fft if onesided is None else onesided
    norm = "ortho" if normalized else None
    frames = irfft(spectrum, n_fft, norm=norm) if is_half else ifft(spectrum, norm=norm)
    hop, weights = _framing("istft", real, n_fft, hop_length, win_length, window)
    total = n_fft + hop * (frames.shape[-2] - 1)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else total - start
    parts = [frames.real, frames.imag] if isinstance(frames, ComplexTensor) else [frames]
    squares = _overlapped(weights.square().expand(frames.shape[-2:]), total, hop)[start : min(end, total)]
    signals = [_overlapped(part * weights, total, hop)[..., start : min(end, total)] / squares for part in parts]
    if end > total:
        signals = [signal.pad((0, end - total)) for signal in signals]
    return ComplexTensor(signals[0], signals[-1]) if return_complex and len(signals) == 2 else signals[0]


def _framing(
    operation: str, x: Tensor, n_fft: int, hop: int | None, length: int | None, window: Tensor | None
) -> tuple[int, Tensor]:
    """The step from window to window, and the weights of its elements, with zeros around a shorter window."""
    check_whole(operation, "n_fft", n_fft, least=1)
    step = n_fft // 4 if hop is None else hop
    check_whole(operation, "hop_length", step, least=1)
    size = length or (n_fft if window is None else window.shape[0])
    if not 0 < size <= n_fft or (window is not None and window.shape != (size,)):
        message = f"win_length={length} and a window of shape {None if window is None else window.shape}"
        raise ShapeError(operation, message, f"give at most n_fft={n_fft} elements, and a window of win_length")
    weights = Tensor.ones(size, dtype=x.dtype, device=x.device) if window is None else window
    before = (n_fft - size) // 2
    return step, weights.pad((before, n_fft - size - before))


def _overlapped(frames: Tensor, total: int, hop: int) -> Tensor:
    """The sums of windows (..., windows, elements) where they overlap, which is the gradient of `unfold`."""
    signal = Tensor.empty(*frames.shape[:-2], total, dtype=frames.dtype, device=frames.device)
    return (signal.unfold(-1, frames.shape[-1], hop) * frames).sum().gradient(signal)[0]

"""Transforms of real numbers, and back to them, in half the work of complex ones. In: a real tensor, or the first half
of its transform. Out: the other one of the two.

    n up to MAX_DENSE        one product with a table of the half that is asked for
    n = 2 * m                even and odd elements as the parts of m complex numbers: one transform of length m; a sum
                             with the mirrored result separates the two
    other n                  the transform of complex numbers"""

from __future__ import annotations

from typing import Any

from tilewright.tensor.complex.fourier import (
    MAX_DENSE,
    Pair,
    along,
    complex_first,
    fitted,
    parts_of,
    stacked,
    tables,
    transform,
)


def rfft_pair(real: Any, lengths: tuple[int, ...], axes: tuple[int, ...], scale: float) -> Pair:
    """The transform of a real tensor; of the last given axis only the first half, since the rest is its conjugate."""
    last, n = axes[-1] + 1, lengths[-1]
    x = fitted(stacked(real, None), last, n)
    if 0 in x.shape or not _is_halved(n):
        x = fitted(along(x, last, -1), last, n // 2 + 1)
    else:
        halves = [part.transpose(-1, last - 1) for part in _forward(x[0].transpose(last - 1, -1))]
        if len(axes) == 1:
            return halves[0] * scale, halves[1] * scale
        x = stacked(*halves)
    for count, axis in zip(reversed(lengths[:-1]), reversed(axes[:-1])):
        x = along(fitted(x, axis + 1, count), axis + 1, -1)
    return parts_of(x, scale)


def irfft_real(real: Any, imag: Any | None, lengths: tuple[int, ...], axes: tuple[int, ...], scale: float) -> Any:
    """The real tensor whose transform has this first half; lengths are those of the result."""
    x = complex_first(stacked(real, imag))
    for n, axis in zip(lengths[:-1], axes[:-1]):
        x = along(fitted(x, axis + 1, n), axis + 1, 1)
    last, n = axes[-1] + 1, lengths[-1]
    half = fitted(x, last, n // 2 + 1)
    if 0 in x.shape or not _is_halved(n):
        found = along(_mirrored(half, last, n), last, 1)[0]
    else:
        moved = half.transpose(last, -1)
        found = _backward(moved[0], moved[1], n).transpose(last - 1, -1)
    return found if scale == 1.0 else found * scale


def _is_halved(n: int) -> bool:
    return n <= MAX_DENSE or n % 2 == 0


def _forward(x: Any) -> Pair:
    """The first half of the transform of the last axis."""
    *outer, n = x.shape
    if n <= MAX_DENSE:
        found = (x @ tables.lookup("half", (n,), -1, x)).reshape(*outer, 2, n // 2 + 1)
        return found[..., 0, :], found[..., 1, :]
    middle = n // 2
    paired = x.reshape(*outer, middle, 2).transpose(-1, -2)
    found = transform(paired, -1).contiguous()
    # The parts at k and at n / 2 - k, where k = n / 2 is 0 again.
    whole = found.cat(found[..., :1], dim=-1)
    (real, imag), (other_real, other_imag) = ((each[..., 0, :], each[..., 1, :]) for each in (whole, whole.flip(-1)))
    cosine, sine = _half_circle(n, -1, x)
    odd_real, odd_imag = imag + other_imag, other_real - real
    return (
        0.5 * (real + other_real + cosine * odd_real - sine * odd_imag),
        0.5 * (imag - other_imag + cosine * odd_imag + sine * odd_real),
    )


def _backward(real: Any, imag: Any, n: int) -> Any:
    """The real numbers, times n, whose transform has this first half along the last axis."""
    *outer, count = real.shape
    if n <= MAX_DENSE:
        table = tables.lookup("whole", (n,), 1, real)
        return real @ table[:count] + imag @ table[count:]
    middle = n // 2
    # The first and the last number are real: an imaginary part of theirs has no effect.
    number = real.arange(count, device=real.device)
    imag = ((number == 0) | (number == middle)).where(0.0, imag)
    other_real, other_imag = (each.flip(-1)[..., :middle] for each in (real, imag))
    real, imag = real[..., :middle], imag[..., :middle]
    cosine, sine = (each[:middle] for each in _half_circle(n, 1, real))
    odd_real, odd_imag = real - other_real, imag + other_imag
    turned_real, turned_imag = cosine * odd_real - sine * odd_imag, cosine * odd_imag + sine * odd_real
    joined_real, joined_imag = real + other_real - turned_imag, imag - other_imag + turned_real
    found = transform(joined_real.unsqueeze(-2).cat(joined_imag.unsqueeze(-2), dim=-2).contiguous(), 1)
    return found.transpose(-1, -2).reshape(*outer, n)


def _half_circle(n: int, sign: int, like: Any) -> Pair:
    """Cosine and sine of sign * 2 pi * k / n for k up to n / 2."""
    table = tables.lookup("half circle", (n,), sign, like)
    return table[0], table[1]


def _mirrored(half: Any, last: int, n: int) -> Any:
    """All of a transform of n elements: behind its first half that half mirrored, with the other sign of imaginary
    parts."""
    if n <= 2:
        return fitted(half, last, n)
    cut = tuple((1, n - n // 2) if k == last else (0, size) for k, size in enumerate(half.shape))
    shape = (2, *(1,) * (half.ndim - 1))
    sign = (1.0 - 2.0 * half.arange(2, device=half.device).cast(half.dtype)).reshape(shape)
    return half.cat(half.shrink(cut).flip(last) * sign, dim=last)

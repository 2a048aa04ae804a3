"""Fourier transforms of lengths without large prime factors, on CPU cores. In: (..., 2, n), real and imaginary parts.
Out: their transform, in order.

Stockham's algorithm: a stage of radix a takes transforms of length a between elements n / a apart, all at once, and
multiplies them by factors of modulus 1 (twiddles). Its results are stored in the order in which the next stage reads
them, so that every access is along memory. A stage is one elementwise kernel: sums and differences of a numbers, which
take less time than to read and write them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from tilewright.graph import build

Complex = tuple[Any, Any]


@functools.lru_cache(4096)
def radices_of(n: int) -> tuple[int, ...] | None:
    """The radices of the stages of a transform, the powers of two first; None where n has a larger prime factor."""
    twos = (n & -n).bit_length() - 1
    rest, odd = n >> twos, []
    for radix in (7, 5, 3):
        while rest % radix == 0:
            odd.append(radix)
            rest //= radix
    if rest > 1:
        return None
    eights, left = divmod(twos, 3)
    even = {0: [8] * eights, 1: [8] * (eights - 1) + [4, 4] if eights else [2], 2: [8] * eights + [4]}[left]
    return (*even, *odd)


def transform_in_stages(x: Any, sign: int, twiddles_of: Any) -> Any:
    """The sums of x[j] * exp(sign * 2 pi i * j * k / n) of (..., 2, n). `twiddles_of(length, radix)` gives cosine and
    sine of k * p / length, as (2, radix, length / radix)."""
    *outer, _, n = x.shape
    length, step = n, 1
    for radix in radices_of(n) or ():
        x = _stage(x.reshape(*outer, 2, radix, length // radix, step), sign, twiddles_of(length, radix))
        length, step = length // radix, step * radix
    return x.reshape(*outer, 2, n)


def _stage(x: Any, sign: int, twiddles: Any) -> Any:
    """(..., part, radix, p, q) to (..., part, p, k, q)."""
    radix, length = x.shape[-3], x.shape[-2]
    parts = [(x[..., 0, r, :, :], x[..., 1, r, :, :]) for r in range(radix)]
    found = butterfly(parts, sign)
    if length > 1:
        factors = [(twiddles[0, k].unsqueeze(-1), twiddles[1, k].unsqueeze(-1)) for k in range(radix)]
        found = [found[0], *(_times(number, factor) for number, factor in zip(found[1:], factors[1:]))]
    # Joined by a choice among the results: pads would ask for each of them at elements of its own.
    shape = (*x.shape[:-4], 2, length, radix, x.shape[-1])
    joined = [chosen([number[part].unsqueeze(-2).unsqueeze(-4) for number in found], shape, -2) for part in range(2)]
    return chosen(joined, shape, -4).contiguous()


def chosen(values: Sequence[Any], shape: tuple[int, ...], axis: int) -> Any:
    """The value that the index along an axis counts."""
    found = values[-1].expand(*shape)
    number = found._new(build.axis_iota(shape, len(shape) + axis))
    for count in range(len(values) - 1, 0, -1):
        found = (number < count).where(values[count - 1].expand(*shape), found)
    return found


def butterfly(numbers: Sequence[Complex], sign: int) -> list[Complex]:
    """The transform of a few complex numbers."""
    count = len(numbers)
    if count == 1:
        return list(numbers)
    if count % 2:
        return _odd_butterfly(numbers, sign)
    half = count // 2
    evens, odds = butterfly(numbers[::2], sign), butterfly(numbers[1::2], sign)
    turned = [_turned(number, k, count, sign) for k, number in enumerate(odds)]
    return [
        *(_plus(evens[k], turned[k]) for k in range(half)),
        *(_minus(evens[k], turned[k]) for k in range(half)),
    ]


def _odd_butterfly(numbers: Sequence[Complex], sign: int) -> list[Complex]:
    """Elements r and count - r have conjugate factors: their sum is multiplied by a cosine, their difference by a
    sine."""
    count, middle = len(numbers), len(numbers) // 2 + 1
    sums = [_plus(numbers[r], numbers[-r]) for r in range(1, middle)]
    differences = [_minus(numbers[r], numbers[-r]) for r in range(1, middle)]
    first = functools.reduce(_plus, sums, numbers[0])
    found: list[Complex] = [first] * count
    for k in range(1, middle):
        angles = [2 * math.pi * (r * k % count) / count for r in range(1, middle)]
        even = functools.reduce(_plus, (_scaled(s, math.cos(a)) for s, a in zip(sums, angles)), numbers[0])
        real, imag = functools.reduce(_plus, (_scaled(d, sign * math.sin(a)) for d, a in zip(differences, angles)))
        found[k], found[count - k] = _plus(even, (-imag, real)), _minus(even, (-imag, real))
    return found


def _turned(number: Complex, k: int, count: int, sign: int) -> Complex:
    """A number times exp(sign * 2 pi i * k / count), for k below half of the count."""
    real, imag = number
    if k == 0:
        return number
    if 4 * k == count:
        return (-imag, real) if sign > 0 else (imag, -real)
    angle = sign * 2 * math.pi * k / count
    if 8 * k in (count, 3 * count):
        # Cosine and sine are equal but for their signs.
        root = math.sqrt(0.5)
        total, difference = (real + imag) * root, (real - imag) * root
        if sign > 0:
            return (difference, total) if 8 * k == count else (-total, difference)
        return (total, -difference) if 8 * k == count else (-difference, -total)
    return _times(number, (math.cos(angle), math.sin(angle)))


def _plus(left: Complex, right: Complex) -> Complex:
    return left[0] + right[0], left[1] + right[1]


def _minus(left: Complex, right: Complex) -> Complex:
    return left[0] - right[0], left[1] - right[1]


def _scaled(number: Complex, factor: float) -> Complex:
    return number[0] * factor, number[1] * factor


def _times(left: Complex, right: Complex) -> Complex:
    return left[0] * right[0] - left[1] * right[1], left[0] * right[1] + left[1] * right[0]

"""Discrete Fourier transforms in O(n log n) for every n. In: real and imaginary parts as two real tensors. Out: two
more. Internally they are one tensor (..., part, n), so that a short transform is one matrix product of the parts with a
table of sines, which also gives its gradient.

    n up to MAX_DENSE        one product
    n = a * b                transforms of length a, factors of modulus 1 (twiddles), transforms of length b
    n a larger prime         a convolution of a length that has small factors (Bluestein)"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Hashable
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import ShapeError
from tilewright.engine.memory import live
from tilewright.tensor.core.base import TensorBase
from tilewright.tensor.core.checks import check_axes, check_axis, check_whole

MAX_DENSE = 128  # the longest transform that is one product
STAGE_COST = 48  # what a pass over memory takes, in products of an element
MAX_TABLE_BYTES = 256 << 20  # tables that are cached

Pair = tuple[Any, Any]


# ---------------------------------------------------------------- lengths


@functools.lru_cache(4096)
def prime_factors(n: int) -> tuple[int, ...]:
    found = []
    divisor = 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            found.append(divisor)
            n //= divisor
        divisor += 1
    return (*found, n) if n > 1 else tuple(found)


@functools.lru_cache(4096)
def first_factor(n: int) -> int:
    """The length of the transforms of the first stage; n itself where it is one product, or a large prime."""
    return _best_split(n)[1]


@functools.lru_cache(65536)
def _best_split(n: int) -> tuple[int, int]:
    """(cost of an element, first factor), of the cheapest factorisation of n."""
    largest = max(prime_factors(n), default=1)
    if n == largest > MAX_DENSE:
        return (3 * _best_split(convolution_length(n))[0] * convolution_length(n) // n, n)
    choices = [(n + STAGE_COST, n)] if n <= MAX_DENSE else []
    for factor in _divisors(n):
        is_possible = factor <= MAX_DENSE or factor == largest
        if is_possible and factor < n:
            choices.append((_best_split(factor)[0] + _best_split(n // factor)[0], factor))
    return min(choices)


def _divisors(n: int) -> list[int]:
    found = {1}
    for prime in prime_factors(n):
        found |= {prime * each for each in found}
    return sorted(found - {1})


def convolution_length(n: int) -> int:
    """The length at which a circular convolution of n with 2 * n - 1 does not alias."""
    return 1 << (2 * n - 2).bit_length()


# ---------------------------------------------------------------- tables


class _Tables:
    """An LRU cache of tables, limited in total size. A replay may read them: they are state of the library, which does
    not change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Hashable, Any] = {}
        self._nbytes = 0

    def lookup(self, kind: str, sizes: tuple[int, ...], sign: int, x: Any, is_real: bool = False) -> Any:
        key = (kind, sizes, sign, is_real, x.dtype, x.device)
        with self._lock:
            table = self._found.pop(key, None)
            if table is None:
                table = type(x)(_values(kind, sizes, sign, is_real, x.dtype), device=x.device).realize()
                live.register_library_state(table)
                self._nbytes += table.nbytes()
            self._found[key] = table
            while self._nbytes > MAX_TABLE_BYTES and len(self._found) > 1:
                oldest = self._found.pop(next(iter(self._found)))
                live.forget_library_state(oldest)
                self._nbytes -= oldest.nbytes()
        return table


tables = _Tables()


def _values(kind: str, sizes: tuple[int, ...], sign: int, is_real: bool, dtype: DType) -> Any:
    """A table of cosines and sines, from angles that are reduced as integers first."""
    import numpy as np  # imported by the first transform

    if kind == "dense":
        (n,) = sizes
        cosine, sine = _unit_circle(np.outer(np.arange(n), np.arange(n)) % n, n, sign)
        upper = np.concatenate([cosine, sine], axis=1)
        values = upper if is_real else np.concatenate([upper, np.concatenate([-sine, cosine], axis=1)], axis=0)
    elif kind in ("half", "whole"):
        # The products of real numbers with the half of their transform, and of that half with all numbers.
        (n,) = sizes
        cosine, sine = _unit_circle(np.outer(np.arange(n), np.arange(n // 2 + 1)) % n, n, sign)
        times = np.where(2 * np.arange(n // 2 + 1) % n == 0, 1.0, 2.0)
        values = (
            np.concatenate([cosine, sine], axis=1)
            if kind == "half"
            else np.concatenate([cosine * times, -sine * times], axis=1).T
        )
    elif kind == "half circle":
        (n,) = sizes
        values = np.stack(_unit_circle(np.arange(n // 2 + 1), n, sign))
    elif kind == "twiddles":
        count, length = sizes
        steps = np.outer(np.arange(count, dtype=np.int64), np.arange(length, dtype=np.int64))
        values = _twisted(*_unit_circle(steps % (count * length), count * length, sign))
    elif kind == "chirp":
        (n,) = sizes
        squares = np.array([k * k % (2 * n) for k in range(n)])
        values = _twisted(*_unit_circle(squares, 2 * n, sign))
    else:
        n, length = sizes
        squares = np.array([k * k % (2 * n) for k in range(n)])
        cosine, sine = _unit_circle(squares, 2 * n, -sign)
        chirp = np.zeros(length, np.complex128)
        chirp[:n] = cosine + 1j * sine
        chirp[length - n + 1 :] = chirp[n - 1 : 0 : -1]
        spectrum = np.fft.fft(chirp) / length
        values = _twisted(spectrum.real, spectrum.imag)
    width = np.float64 if dtype is dtypes.float64 else np.float32
    return np.ascontiguousarray(values, width)


def _unit_circle(steps: Any, count: int, sign: int) -> Pair:
    """Cosine and sine of 2 pi * steps / count, for steps below count; the angle is taken between -pi and pi."""
    import numpy as np

    angle = (2.0 * np.pi / count) * np.where(2 * steps > count, steps - count, steps)
    return np.cos(angle), sign * np.sin(angle)


def _twisted(cosine: Any, sine: Any) -> Any:
    """(2, 2, ...): the factors of each part and of the other part in a complex product."""
    import numpy as np

    return np.stack([np.stack([cosine, cosine]), np.stack([-sine, sine])])


# ---------------------------------------------------------------- transforms of the last axis


def _multiplied(x: Any, factors: Any) -> Any:
    """Complex products of (..., 2, n) with a table of `_twisted` numbers."""
    return x * factors[0] + x.flip(-2) * factors[1]


def _complex(x: Any) -> Any:
    """(..., part, n) with both parts."""
    return x if x.shape[-2] == 2 else x.pad((0, 0, 0, 1))


def transform(x: Any, sign: int) -> Any:
    """(..., part, n) with one part, which is real, or two: the sums of x[j] * exp(sign * 2 pi i * j * k / n)."""
    *outer, parts, n = x.shape
    if n == 1:
        return _complex(x)
    factor = first_factor(n)
    if factor == n:
        return _dense(x, sign) if n <= MAX_DENSE else _convolved(_complex(x), sign)
    length = n // factor
    count = len(outer)
    order = range(count)
    # j = j1 * length + j2 and k = k1 + factor * k2.
    split = x.reshape(*outer, parts, factor, length).permute(*order, count + 2, count, count + 1)
    first = transform(split, sign)  # (..., j2, part, k1)
    twiddles = tables.lookup("twiddles", (length, factor), sign, x).permute(0, 2, 1, 3)
    transposed = _multiplied(first, twiddles).permute(*order, count + 2, count + 1, count).contiguous()
    second = transform(transposed, sign)  # (..., k1, part, k2)
    return second.permute(*order, count + 1, count + 2, count).reshape(*outer, 2, n)


def _dense(x: Any, sign: int) -> Any:
    """One product of all parts with a table."""
    *outer, parts, n = x.shape
    table = tables.lookup("dense", (n,), sign, x, is_real=parts == 1)
    flat = x.reshape(*outer, parts * n)
    return (flat @ table).reshape(*outer, 2, n).contiguous()


def _convolved(x: Any, sign: int) -> Any:
    """Bluestein: j * k = (j * j + k * k - (k - j) ** 2) / 2, so that a transform is a convolution with a chirp."""
    n = x.shape[-1]
    length = convolution_length(n)
    chirp = tables.lookup("chirp", (n,), sign, x)
    padded = _multiplied(x, chirp).pad((0, length - n)).contiguous()
    spectrum = _multiplied(transform(padded, -1), tables.lookup("spectrum", (n, length), sign, x)).contiguous()
    found = transform(spectrum, 1).shrink((*((0, size) for size in x.shape[:-1]), (0, n)))
    return _multiplied(found.contiguous(), chirp)


# ---------------------------------------------------------------- transforms of any axis


def _float_of(x: Any) -> Any:
    """A tensor in the dtype of the computation: float64 for float64, else float32."""
    return x if x.dtype in (dtypes.float32, dtypes.float64) else x.cast(dtypes.float32)


def stacked(real: Any, imag: Any | None) -> Any:
    """(part, ...), from one part or two."""
    if imag is None:
        return _float_of(real).unsqueeze(0)
    return _float_of(real).unsqueeze(0).cat(_float_of(imag).unsqueeze(0), dim=0)


def fitted(x: Any, axis: int, n: int) -> Any:
    """An axis of (part, ...) truncated or zero-padded to length n."""
    size = x.shape[axis]
    if size > n:
        return x.shrink(tuple((0, n if k == axis else each) for k, each in enumerate(x.shape)))
    padding = tuple((0, n - size if k == axis else 0) for k in range(x.ndim))
    return x if size == n else x.pad(padding)


def along(x: Any, axis: int, sign: int) -> Any:
    """The transform of one axis of (part, ...)."""
    if 0 in x.shape:
        return x if x.shape[0] == 2 else x.cat(x, dim=0)
    rest = [k for k in range(1, x.ndim) if k != axis]
    order = [*rest, 0, axis]
    found = transform(x.permute(*order), sign)
    back = [order.index(k) for k in range(x.ndim)]
    return found.permute(*back)


def scale_of(norm: str | None, counts: int, sign: int, operation: str) -> float:
    """The factor of a transform of `counts` elements."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise ShapeError(operation, f"norm={norm!r}", "give 'backward', 'ortho', 'forward' or None")
    if norm == "ortho":
        return 1.0 / math.sqrt(counts)
    is_scaled = (norm == "forward") == (sign < 0)
    return 1.0 / counts if is_scaled else 1.0


def check_length(operation: str, n: int | None, size: int) -> int:
    if n is None:
        n = size
    check_whole(operation, "n", n)
    if n < 1:
        message = f"a transform of {n} elements"
        raise ShapeError(operation, message, "give n of at least 1, or an axis that has elements")
    return int(n)


def checked_axes(operation: str, x: TensorBase, s: Any, axes: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(lengths, axes) of a transform of several axes. Without axes they are all, or the last len(s)."""
    if axes is None:
        count = x.ndim if s is None else len(s)
        if count > x.ndim:
            raise ShapeError(operation, f"s={s!r} for a tensor of {x.ndim} axes", "give a length for each axis")
        axes = tuple(range(x.ndim - count, x.ndim))
    found = check_axes(operation, tuple(axes) if isinstance(axes, tuple | list) else axes, x.ndim)
    lengths = [None] * len(found) if s is None else list(s)
    if len(lengths) != len(found):
        raise ShapeError(operation, f"s={s!r} for axes {tuple(axes)}", "give a length for each axis")
    sizes = tuple(check_length(operation, None if n == -1 else n, x.shape[axis]) for n, axis in zip(lengths, found))
    return sizes, found


# ---------------------------------------------------------------- pairs


def fft_pair(
    real: Any, imag: Any | None, lengths: tuple[int, ...], axes: tuple[int, ...], sign: int, scale: float
) -> Pair:
    """The transform of several axes, the last one first; `scale` multiplies the result."""
    x = stacked(real, imag)
    for n, axis in zip(reversed(lengths), reversed(axes)):
        x = along(fitted(x, axis + 1, n), axis + 1, sign)
    return parts_of(complex_first(x), scale)


def complex_first(x: Any) -> Any:
    return x if x.shape[0] == 2 else x.cat(x * 0.0, dim=0)


def parts_of(x: Any, scale: float) -> Pair:
    scaled = x if scale == 1.0 else x * scale
    return scaled[0], scaled[1]


def shifted(x: Any, axes: Any, is_inverse: bool) -> Any:
    """fftshift and its inverse: the first half of each axis after the second."""
    operation = "ifftshift" if is_inverse else "fftshift"
    found = check_axes(operation, axes, x.ndim)
    moves = tuple(-(x.shape[axis] // 2) if is_inverse else x.shape[axis] // 2 for axis in found)
    return x.roll(moves, found) if found else x


def checked_axis(operation: str, x: TensorBase, axis: int) -> int:
    if x.ndim == 0:
        raise ShapeError(operation, "a 0-d tensor has no axis to transform", "reshape(1) it first")
    return check_axis(operation, axis, x.ndim)

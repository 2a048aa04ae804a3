"""`make test` was red where wgpu had an adapter without 64-bit integers (OpenGL, and every browser): 56 tests of WEBGPU
raised UnsupportedError. They are computed in words there now; what is really missing, float64, is refused at the
user's line, and nothing that was refused stays behind.

Each case is one expression of 64-bit integers that cross the ends of words, on every device, beside NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.devices import QUICK, is_whole, settings
from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.base.target import WIDE_INTEGERS
from tilewright.runtime.device import open_driver

Case = tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Any, Any], Any]]


def low_words(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


CASES: dict[str, Case] = {
    "sum": (lambda x, y: (x * 3 - y).sum(1), lambda x, y: (x * 3 - y).sum(1)),
    "product": (lambda x, y: x.prod(0), lambda x, y: x.prod(0)),
    "greatest": (lambda x, y: x.max(1), lambda x, y: x.max(1)),
    "least": (lambda x, y: (x ^ y).min(0), lambda x, y: (x ^ y).min(0)),
    "where it is": (lambda x, y: x.argmax(1), lambda x, y: x.argmax(1).astype(np.int32)),
    "matrix product": (lambda x, y: x @ y.T, lambda x, y: x @ y.T),
    "running sum": (lambda x, y: x.cumsum(1), lambda x, y: x.cumsum(1)),
    "quotient": (lambda x, y: x // y + x % 1_000_003, lambda x, y: x // y + x % 1_000_003),
    "shifts": (lambda x, y: (x << 13) | (y >> 37), lambda x, y: (x << 13) | (y >> 37)),
    "words": (lambda x, y: x.bitcast("uint32"), low_words),
    "to float32": (lambda x, y: (x - y).float(), lambda x, y: (x - y).astype(np.float32)),
    "one_hot": (lambda x, y: (x % 7).one_hot(7), lambda x, y: ((x % 7)[..., None] == np.arange(7)).astype(np.int64)),
    "choice": (lambda x, y: (x < y).where(x, 2**40), lambda x, y: np.where(x < y, x, 2**40)),
}


def numbers(dtype: str, seed: int) -> np.ndarray:
    """Of every length in bits, and of both signs where there are two; none is 0."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(1, 2**64, (6, 20), np.uint64) >> rng.integers(0, 64, (6, 20), np.uint64)
    return (drawn | np.uint64(1)).astype(dtype) * rng.choice([1, -1], (6, 20)).astype(dtype)


# A device that is slow to compile for and has 64-bit integers of its own is tested in tests/backends/test_c_style.py.
DEVICES = [
    setting.device
    for setting in settings()
    if not setting.compiler
    and (setting.label in QUICK or not WIDE_INTEGERS <= open_driver(setting.device).target.native)
]
on_devices = pytest.mark.parametrize("device", DEVICES)


@on_devices
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_expressions(dtype: str, device: str) -> None:
    left, right = numbers(dtype, 1), numbers(dtype, 2)
    x, y = Tensor(left, device=device), Tensor(right, device=device)
    # Where compilers are slow, a third of the cases.
    cases = CASES if device in QUICK or is_whole() else dict(list(CASES.items())[::3])
    found = {name: call(x, y) for name, (call, _) in cases.items()}
    Tensor.realize(*found.values())
    with np.errstate(all="ignore"):
        for name, (_, reference) in cases.items():
            expected = reference(left, right)
            assert found[name].numpy().tolist() == expected.tolist(), name


@on_devices
def test_positions_from_memory(device: str) -> None:
    """An index of 64 bits, one of which no 32 bits hold: it lies outside and gives 0, the others find their rows."""
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    index = np.array([3, 0, 9, 2], np.int64)
    far = Tensor(np.array([3, 2**32, 9, -(2**33)], np.int64), device=device)
    x = Tensor(table, device=device)
    np.testing.assert_array_equal(x[Tensor(index, device=device)].numpy(), table[index])
    hits = (far.reshape(4, 1) == Tensor.arange(10, device=device)).float() @ x
    np.testing.assert_array_equal(hits.numpy(), table[[3, 0, 9, 0]] * np.array([[1], [0], [1], [0]]))
    sums = Tensor.zeros(10, dtype="int64", device=device).contiguous()
    sums = sums.scatter_reduce(0, Tensor(index, device=device), Tensor(index * 2**33 + 1, device=device), "sum")
    np.testing.assert_array_equal(sums.numpy()[index], index * 2**33 + 1)


@on_devices
def test_floats_saturate(device: str) -> None:
    given = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**63, 2.0**40 + 2.0**20, -1.5, 0.99], np.float32)
    x = Tensor(given, device=device)
    most, least = 2**63 - 1, -(2**63)
    assert x.cast("int64").tolist() == [0, most, least, most, least, most, 2**40 + 2**20, -1, 0]
    assert x.cast("uint64").tolist() == [0, 2**64 - 1, 0, 2**64 - 1, 0, 2**63, 2**40 + 2**20, 0, 0]


def test_what_a_device_refuses_does_not_stay_behind(device: str) -> None:
    doubles = Tensor(np.ones(4), device=device)
    if open_driver(device).target.computes(dtypes.float64):
        assert (doubles + 1).tolist() == [2.0] * 4
    else:
        refused = rf"{device} does not compute with float64[\s\S]*test_long_integers.py"
        with pytest.raises(UnsupportedError, match=refused):
            (doubles + 1).realize()
    np.testing.assert_array_equal((Tensor([1, 2], device=device) + 1).numpy(), [2, 3])
    np.testing.assert_array_equal(doubles.numpy(), np.ones(4))

"""Bytes of rows whose lanes lie at a stride: whole words are loaded and transposed in registers, and nothing behind
what the kernel reads is touched."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest

from tests.backends.llvm_texts import record_texts
from tilewright import Tensor
from tilewright.backends.cpu.rendering.strided_words import Words, _pieces, find_words
from tilewright.base.config import Context
from tilewright.base.dtype import dtypes, to_dtype
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp


@pytest.mark.parametrize(
    ("itemsize", "vectors", "expected"),
    [
        (1, [[5, 6, 7, 8], [9, 10, 11, 12]], (5, 9)),
        (1, [[4, 4, 4, 4], [7, 7, 7, 7]], (4,)),
        (1, [[0, 1, 2, 3], [32, 33, 34, 35]], (0, 32)),  # nobody reads what is between
        (1, [[0, 1, 2], [3, 4, 5]], None),  # the second word would end behind all
        (2, [[1], [2], [3], [4]], (1, 3)),
        (4, [[0], [1]], None),
    ],
)
def test_words_cover_what_is_read(itemsize: int, vectors: list[list[int]], expected: tuple[int, ...] | None) -> None:
    found = find_words(itemsize, 40, vectors)
    assert (None if found is None else found.offsets) == expected


def test_adjacent_words_are_loaded_at_once() -> None:
    offsets = (0, 4, 8, 12, 16, 20, 24, 40)
    assert _pieces(Words(64, 4, offsets), 4) == [[0, 4, 8, 12], [16, 20], [24], [40]]
    assert _pieces(Words(64, 4, offsets), 2) == [[0, 4], [8, 12], [16, 20], [24], [40]]


def weighted(first: int, count: int, lanes: int) -> Any:
    """out[row] = the sum of (number + 1) * x[row, first + number]."""

    def kernel(out: UOp, x: UOp) -> UOp:
        tile = UOp.range(out.shape[0] // lanes, 0)
        lane, number = UOp.range(lanes, 1, AxisType.UPCAST), UOp.range(count, 2, AxisType.UNROLL)
        row = tile * lanes + lane
        value = x[row, number + first].load().cast(dtypes.int32) * (number + 1).cast(dtypes.int32)
        total = UOp(Ops.REDUCE, dtypes.int32, (value, number), Ops.ADD)
        return out[row].set(total, end=(tile, lane)).sink(arg=KernelInfo("weighted", ()))

    return kernel


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize(("first", "count", "is_whole"), [(3, 8, True), (0, 12, True), (5, 4, True), (2, 3, False)])
def test_columns_of_rows(dtype: str, first: int, count: int, is_whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = record_texts(monkeypatch)
    kind = np.iinfo(dtype)
    given = np.random.default_rng(first).integers(kind.min, kind.max, (32, 13), dtype=dtype, endpoint=True)
    forget_kernels()
    with Context(CACHE=0):
        made = Tensor.empty(32, dtype=dtypes.int32).custom_kernel(Tensor(given), fxn=weighted(first, count, 16))[0]
        expected = given[:, first : first + count].astype(np.int32) @ np.arange(1, count + 1, dtype=np.int32)
        np.testing.assert_array_equal(made.numpy(), expected)
    assert ("masked.gather" in texts[-1]) == (not is_whole)


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 6, 8, 16, 32])
def test_any_number_of_lanes(lanes: int) -> None:
    given = np.random.default_rng(lanes).integers(0, 256, (lanes * 2, 21), dtype=np.uint8)
    made = Tensor.empty(lanes * 2, dtype=dtypes.int32).custom_kernel(Tensor(given), fxn=weighted(1, 16, lanes))[0]
    np.testing.assert_array_equal(made.numpy(), given[:, 1:17].astype(np.int32) @ np.arange(1, 17))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mprotect"), reason="the system protects no pages")
def test_nothing_behind_the_last_element_is_touched() -> None:
    """The matrix ends where a page begins that may not be read."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    view = np.frombuffer(memory, np.uint8, 16 * 11, mmap.PAGESIZE - 16 * 11).reshape(16, 11)
    view[:] = np.arange(16 * 11).reshape(16, 11)
    x = Tensor.from_blob(view.ctypes.data, (16, 11), dtype=to_dtype("uint8"))
    made = Tensor.empty(16, dtype=dtypes.int32).custom_kernel(x, fxn=weighted(3, 8, 16))[0]
    np.testing.assert_array_equal(made.numpy(), view[:, 3:].astype(np.int32) @ np.arange(1, 9))

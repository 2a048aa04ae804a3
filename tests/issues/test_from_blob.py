"""`Tensor.from_blob`: a tensor over host memory at an address."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tilewright import Tensor, dtypes
from tilewright.base.errors import UserError


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint16", "int64", "bool", "float16"])
def test_values_of_an_address(dtype: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype)
    found = Tensor.from_blob(values.ctypes.data, (2, 3), dtype=dtype)
    assert (found.shape, found.dtype.name, found.device) == ((2, 3), dtype, "CPU")
    assert np.array_equal(found.numpy(), values)
    assert np.array_equal((found + found).numpy(), values + values)
    assert np.array_equal(Tensor.from_blob(values.ctypes.data, (2, 3), dtype=dtype, device="PYTHON").numpy(), values)


def test_the_memory_is_read_in_place_and_never_written_to() -> None:
    values = np.arange(4, dtype=np.float32)
    found = Tensor.from_blob(values.ctypes.data, [4])
    assert found.dtype is dtypes.float32
    assert np.frombuffer(found.data(), np.float32).ctypes.data == values.ctypes.data
    found.assign(found + 1).realize()
    assert found.tolist() == [1, 2, 3, 4]
    assert values.tolist() == [0, 1, 2, 3]


def test_shapes_without_elements_and_without_axes() -> None:
    number = ctypes.c_int32(7)
    assert Tensor.from_blob(ctypes.addressof(number), (), dtype="int32").item() == 7
    assert Tensor.from_blob(ctypes.addressof(number), 1, dtype=dtypes.int32).tolist() == [7]
    assert Tensor.from_blob(0, (0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("pointer", "shape", "dtype"),
    [(0, (1,), None), (-8, (1,), None), (1.5, (1,), None), ("x", (1,), None), (None, (1,), None)]
    + [(1 << 64, (1,), None), ((1 << 64) - 4, (4,), None), (64, (-1,), None), (64, (1.5,), None), (66, (1,), "float32")]
    + [(64, (1 << 62,), None), (64, (1,), "no dtype")],
)
def test_what_is_no_memory_is_refused(pointer: object, shape: object, dtype: str | None) -> None:
    with pytest.raises(UserError):
        Tensor.from_blob(pointer, shape, dtype=dtype)  # type: ignore[arg-type]

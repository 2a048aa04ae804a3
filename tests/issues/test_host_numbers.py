"""Numbers of the host that a dtype cannot hold: `Tensor([300], dtype="uint8")` and `full` wrapped silently, infinity
and NaN became whole numbers. They are refused at the user's line, as NumPy and torch do; a cast of a tensor or an array
wraps, as theirs do. Numbers of NumPy's count as Python's: `full((2,), np.int64(3))` was float32, `pad` refused them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.errors import DTypeError

TOO_MUCH: list[tuple[str, float]] = [("uint8", 300), ("uint8", -256), ("int8", -129), ("int16", 1 << 15)]
TOO_MUCH += [("int32", 1 << 40), ("int64", 1 << 63), ("uint64", 1 << 64), ("int32", 1e10), ("int64", -1e19)]
TOO_MUCH += [("int32", float("nan")), ("uint8", float("inf"))]


@pytest.mark.parametrize(("dtype", "number"), TOO_MUCH)
def test_a_number_that_does_not_fit_is_refused(dtype: str, number: float) -> None:
    room = Tensor.zeros(2, dtype=dtype)
    makers = (
        lambda: Tensor(number, dtype=dtype),
        lambda: Tensor([1, number, 2], dtype=dtype),
        lambda: Tensor([[1.5], [number]], dtype=dtype),
        lambda: Tensor.full((2,), number, dtype=dtype),
        lambda: Tensor.zeros(2).full_like(number, dtype=dtype),
        lambda: room.full_like(number),
        lambda: room.pad((1, 1), value=number),
        lambda: room.realize().__setitem__(0, number),
    )
    for make in makers:
        with pytest.raises(DTypeError, match=rf"({dtype} cannot hold|no integer dtype holds).*\n.*test_host_numbers"):
            make()


@pytest.mark.parametrize(
    ("dtype", "number", "held"),
    [("uint8", 255, 255), ("uint8", 255.9, 255), ("uint8", -1, 255), ("uint8", -0.5, 0), ("int8", -128.9, -128)]
    + [("int32", 2.0**31 - 1, 2**31 - 1), ("uint64", 2**64 - 1, 2**64 - 1), ("int64", -(2**63), -(2**63))]
    + [("bool", 300, True), ("float32", 1e40, float("inf")), ("uint16", True, 1)],
)
def test_a_number_that_fits_is_held(dtype: str, number: float, held: float) -> None:
    assert Tensor(number, dtype=dtype).tolist() == held
    assert Tensor([number], dtype=dtype).tolist() == [held]
    assert Tensor.full((3,), number, dtype=dtype).tolist() == [held] * 3
    assert Tensor([], dtype=dtype).tolist() == []


def test_arrays_and_tensors_are_cast() -> None:
    assert Tensor(np.array([300, -1]), dtype="uint8").tolist() == [44, 255]
    assert Tensor([300, -1]).cast("uint8").tolist() == [44, 255]


@pytest.mark.parametrize("number", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_whole_numbers_of_numpy_are_numbers(number: Any) -> None:
    assert Tensor.full((2,), number).dtype.name == "int32"
    assert Tensor.arange(number).dtype.name == "int32"
    assert Tensor.arange(number).tolist() == [0, 1, 2]
    assert Tensor([1, 2]).full_like(number).tolist() == [3, 3]
    assert Tensor([1, 2]).pad((1, 0), value=number).tolist() == [3, 1, 2]


@pytest.mark.parametrize("number", ["3", None, np.array([1, 2]), np.complex64(1j), 1j, Tensor([3.0])])
def test_what_is_no_number_is_refused(number: Any) -> None:
    with pytest.raises(DTypeError, match="is not a number"):
        Tensor.full((2,), number)
    with pytest.raises(DTypeError, match="is not a number"):
        Tensor([1, 2]).pad((1, 0), value=number)

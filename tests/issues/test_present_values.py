"""`Tensor(array)` has the values that the array has now. It borrowed the array's memory: a loader that filled its array
again changed the batches made before, even realised ones."""

from __future__ import annotations

import array as arrays
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, nn
from tilewright.base.errors import DTypeError, ShapeError

Array = np.ndarray[Any, Any]


def sources() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Memory that can change, and how to change it."""
    plain = np.arange(6, dtype=np.float32)
    half = np.arange(6, dtype=np.float16)
    numbers = np.arange(6)
    parts = [np.zeros(3, np.float32), np.ones(3, np.float32)]
    typed = arrays.array("f", [1.0, 2.0])

    def fill(target: Any) -> Callable[[Any], Any]:
        def change(_: Any) -> None:
            target[:] = 77

        return change

    def fill_bytes(data: Any) -> None:
        data[:] = b"\x4d" * len(data)

    def fill_typed(_: Any) -> None:
        typed[0] = 77.0

    return {
        "array": (plain, fill(plain)),
        "matrix": (plain.reshape(2, 3), fill(plain)),
        "transposed": (plain.reshape(2, 3).T, fill(plain)),
        "every second": (plain[::2], fill(plain)),
        "one element": (plain[:1].reshape(()), fill(plain)),
        "float16": (half, fill(half)),
        "int64": (numbers, fill(numbers)),
        "list of arrays": (parts, lambda _: parts[0].fill(77)),
        "tuple of lists of arrays": (((parts[0],), [parts[1]]), lambda _: parts[0].fill(77)),
        "bytearray": (bytearray(b"\x01\x02\x03\x04"), fill_bytes),
        "memoryview": (memoryview(plain), fill(plain)),
        "read-only memoryview": (memoryview(plain).toreadonly(), fill(plain)),
        "memoryview of an array": (memoryview(typed), fill_typed),
    }


@pytest.mark.parametrize("is_realized", [True, False])
@pytest.mark.parametrize("name", sources())
def test_later_writes_to_the_memory_are_not_seen(name: str, is_realized: bool) -> None:
    data, change = sources()[name]
    tensor = Tensor(data)
    doubled = tensor + tensor
    if is_realized:
        tensor.realize(doubled)
    before = np.array(data, copy=True).tolist()
    change(data)
    assert np.array(data).tolist() != before
    assert tensor.tolist() == before
    assert doubled.tolist() == (np.array(before) * 2).tolist()


def test_a_loader_that_fills_one_array_again_and_again() -> None:
    batch = np.empty((2, 3), dtype=np.float32)
    batches = []
    for number in range(4):
        batch[:] = number
        batches.append(Tensor(batch))
    assert [found.mean().item() for found in batches] == [0.0, 1.0, 2.0, 3.0]


def test_arrays_as_operands_and_assigned_values_are_values_too() -> None:
    array = np.ones(3, dtype=np.float32)
    x = Tensor([1.0, 2.0, 3.0]).realize()
    total, target = x + array, Tensor.zeros(3).contiguous().realize()
    target.assign(array)
    chosen = x[np.array([0, 2])]
    array[:] = 100
    assert total.tolist() == [2.0, 3.0, 4.0]
    assert target.tolist() == [1.0, 1.0, 1.0]
    assert chosen.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("make", [lambda a: Tensor(a, copy=False), Tensor.from_numpy, Tensor.from_dlpack])
def test_memory_is_borrowed_where_that_is_asked_for(make: Callable[[Array], Tensor]) -> None:
    array = np.arange(1000, dtype=np.float32)
    tensor = make(array)
    assert np.shares_memory(np.asarray(tensor.data()), array)
    array[1] = 5.0
    assert tensor[1].item() == 5.0
    tensor += 1
    assert (tensor[1].item(), array[1]) == (6.0, 5.0)
    array = np.arange(100_000, dtype=np.float32)
    tensor = make(array)
    expected = float(array.sum())
    del array
    gc.collect()
    assert tensor.sum().item() == pytest.approx(expected)


def test_a_borrowed_array_may_have_strides() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (array.T, array[::2, ::3], array[::-1]):
        assert Tensor.from_numpy(view).tolist() == view.tolist()


def test_borrowed_indices_are_checked_by_what_they_are_when_they_are_used() -> None:
    index = np.array([0, 1])
    borrowed = Tensor(index, copy=False)
    index[:] = [2, 0]
    assert Tensor([5.0, 6.0, 7.0])[borrowed].tolist() == [7.0, 5.0]


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a list": (lambda: Tensor([1.0, 2.0], copy=False), DTypeError, "list do not lie in memory"),
    "a transposed array": (lambda: Tensor(np.ones((2, 3)).T, copy=False), DTypeError, "row-major"),
    "another byte order": (lambda: Tensor(np.ones(2, ">f4"), copy=False), DTypeError, "row-major"),
    "from_numpy": (lambda: Tensor.from_numpy([1.0]), DTypeError, "list is not a NumPy array"),
    "ragged arrays": (lambda: Tensor([np.ones(2), np.ones(3)]), ShapeError, "ragged"),
    "objects": (lambda: Tensor([np.array(["a"]), np.array(["b"])]), DTypeError, "no dtype"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_borrowed_is_refused(name: str) -> None:
    call, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        call()


def test_bytes_never_change_and_are_not_copied() -> None:
    data = bytes(range(200))
    assert np.shares_memory(np.frombuffer(Tensor(data).data(), np.uint8), np.frombuffer(data, np.uint8))
    unaligned = np.frombuffer(b"x" + np.arange(3, dtype=np.float64).tobytes(), np.float64, offset=1)
    assert Tensor(unaligned).tolist() == [0.0, 1.0, 2.0]


def test_an_optimiser_does_not_write_to_an_array() -> None:
    array = np.ones(3, dtype=np.float32)
    for weight in (Tensor(array, requires_grad=True), Tensor.from_numpy(array).requires_grad_()):
        optimizer = nn.optim.SGD([weight], lr=1.0)
        weight.sum().backward()
        optimizer.step()
        assert (weight.tolist(), array.tolist()) == ([0.0] * 3, [1.0] * 3)


@pytest.mark.torch
def test_tensors_of_torch() -> None:
    import torch

    source = torch.ones(3)
    copied, borrowed, taken = Tensor(source), Tensor.from_dlpack(source), Tensor.from_dlpack(source, copy=True)
    source[:] = 5
    assert (copied.tolist(), borrowed.tolist(), taken.tolist()) == ([1.0] * 3, [5.0] * 3, [1.0] * 3)
    with pytest.raises(DTypeError, match="gives no array"):
        Tensor(torch.ones(3, requires_grad=True))
    narrow = torch.ones(3, dtype=torch.bfloat16)
    assert Tensor(narrow).tolist() == Tensor.from_dlpack(narrow).tolist() == [1.0] * 3

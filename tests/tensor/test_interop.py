"""Tensors among other libraries and Python's protocols: DLPack both ways without a copy, pickle, copy, operators."""

from __future__ import annotations

import copy
import gc
import importlib
import math
import pickle
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, dtypes
from tilewright.base.errors import DTypeError, UnsupportedError
from tilewright.tensor.core import dlpack

NAMES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def address(tensor: Tensor) -> int:
    return dlpack.address_of(tensor._host_view())


# ---------------------------------------------------------------- DLPack with NumPy


@pytest.mark.parametrize("name", NAMES)
def test_numpy_reads_a_tensor_in_place(name: str) -> None:
    tensor = Tensor([[0, 1, 1], [1, 0, 1]], dtype=name).contiguous().realize()
    array = np.from_dlpack(tensor)
    assert array.dtype.name == name
    assert array.ctypes.data == address(tensor)
    np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_reads_numpy_in_place(name: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype=name)
    tensor = Tensor.from_dlpack(array)
    assert tensor.dtype.name == name
    assert address(tensor) == array.ctypes.data
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x.T,
        lambda x: x[::-1],
        lambda x: x[1:, ::2],
        lambda x: x[:, None, 1],
        lambda x: np.broadcast_to(x[0], (2, 4)),
        lambda x: x[1, 2],
        lambda x: x[:0],
        lambda x: x[..., ::-2].T,
    ],
)
def test_any_strides_come_in(cut: Any) -> None:
    array = np.asarray(cut(np.arange(12.0).reshape(3, 4)))
    np.testing.assert_array_equal(Tensor.from_dlpack(array).numpy(), array)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 1, 3)])
def test_any_shape_goes_out(shape: tuple[int, ...]) -> None:
    array = np.from_dlpack(Tensor.ones(*shape) * 2)
    np.testing.assert_array_equal(array, np.full(shape, 2.0, np.float32))


def test_what_is_handed_out_keeps_its_values_and_is_given_back() -> None:
    before = len(dlpack._handed_out)
    tensor = (Tensor([1.0, 2.0]) * 2).realize()
    array = np.from_dlpack(tensor)
    tensor += 1
    assert tensor.tolist() == [3.0, 5.0]
    assert array.tolist() == [2.0, 4.0]
    del tensor
    gc.collect()
    assert array.tolist() == [2.0, 4.0]
    assert len(dlpack._handed_out) == before + 1
    del array
    gc.collect()
    assert len(dlpack._handed_out) == before


def test_a_capsule_that_nobody_takes_is_given_back() -> None:
    before = len(dlpack._handed_out)
    for version in (None, (1, 0)):
        capsule = Tensor([1.0]).__dlpack__(max_version=version)
        assert len(dlpack._handed_out) == before + 1
        del capsule
        assert len(dlpack._handed_out) == before


def test_an_array_lives_as_long_as_the_tensor_made_of_it() -> None:
    tensor = Tensor.from_dlpack(np.arange(100_000.0))
    gc.collect()
    assert tensor.sum().item() == 4999950000.0


def test_a_tensor_never_writes_to_the_memory_it_borrows() -> None:
    array = np.zeros(3)
    tensor = Tensor.from_dlpack(array)
    tensor += 1
    assert tensor.tolist() == [1.0] * 3
    assert array.tolist() == [0.0] * 3


def test_read_only_memory_stays_read_only() -> None:
    tensor = Tensor(b"\x01\x02\x03")
    assert not np.from_dlpack(tensor).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__(copy=False)


def test_copy_and_device_are_heeded() -> None:
    tensor = Tensor([1.0, 2.0]).contiguous().realize()
    assert np.from_dlpack(tensor, copy=True).ctypes.data != address(tensor)
    with pytest.raises(BufferError, match="device"):
        tensor.__dlpack__(dl_device=(2, 0))
    assert tensor.__dlpack_device__() == (1, 0)


def test_gradients_and_used_capsules_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="detach"):
        np.from_dlpack(Tensor([1.0], requires_grad=True))
    capsule = Tensor([1.0]).__dlpack__()
    dlpack.import_capsule(capsule)
    with pytest.raises(DTypeError, match="used before"):
        dlpack.import_capsule(capsule)
    with pytest.raises(DTypeError, match="128 bits"):
        Tensor.from_dlpack(np.zeros(2, np.complex128))


def test_another_device_takes_a_copy() -> None:
    assert Tensor.from_dlpack(np.arange(3), device="PYTHON").tolist() == [0, 1, 2]
    assert np.from_dlpack(Tensor([1, 2], device="PYTHON")).tolist() == [1, 2]


def test_an_array_that_must_not_be_a_copy() -> None:
    tensor = Tensor([1.0, 2.0])
    assert np.asarray(tensor, dtype=np.float64).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="from_dlpack"):
        np.asarray(tensor, copy=False)


# ---------------------------------------------------------------- DLPack with torch


@pytest.mark.torch
class TestTorch:
    torch = property(lambda self: importlib.import_module("torch"))

    @pytest.mark.parametrize("name", [*NAMES, "bfloat16"])
    def test_both_ways_in_place(self, name: str) -> None:
        given = self.torch.tensor([[0, 1, 1], [1, 0, 1]]).to(getattr(self.torch, name))
        tensor = Tensor.from_dlpack(given)
        assert tensor.dtype.name == name
        assert address(tensor) == given.data_ptr()
        back = self.torch.from_dlpack(tensor)
        assert back.dtype is given.dtype
        assert back.data_ptr() == given.data_ptr()
        assert self.torch.equal(back, given)

    def test_views_and_lifetimes(self) -> None:
        given = self.torch.arange(24.0).reshape(2, 3, 4)
        for view in (given.mT, given[:, 1:, ::2], given.permute(2, 0, 1), given[0, 0, 0], given[:0]):
            np.testing.assert_array_equal(Tensor.from_dlpack(view).numpy(), view.numpy())
        tensor = Tensor.from_dlpack(given.clone())
        gc.collect()
        assert tensor.sum().item() == 276.0
        result = self.torch.from_dlpack(tensor * 2)
        del tensor
        gc.collect()
        assert result.sum().item() == 552.0


# ---------------------------------------------------------------- pickle and copy

TENSORS = {
    "values": lambda: Tensor([[1.0, 2.0], [3.0, 4.0]]),
    "0-d": lambda: Tensor(5),
    "empty": lambda: Tensor.zeros(0, 3),
    "bool": lambda: Tensor([True, False]),
    "bfloat16": lambda: Tensor([1.5, -2.0]).cast(dtypes.bfloat16),
    "lazy": lambda: Tensor.arange(5) + 1,
    "view": lambda: Tensor([[1, 2, 3], [4, 5, 6]]).T[::-1],
    "parameter": lambda: Tensor([1.0, 2.0], requires_grad=True),
    "other device": lambda: Tensor([1, 2], device="PYTHON"),
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_copies_are_equal(name: str, way: Any) -> None:
    tensor = TENSORS[name]()
    made = way(tensor)
    assert made is not tensor
    assert (made.shape, made.dtype, made.device, made.requires_grad) == (
        tensor.shape,
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
    )
    np.testing.assert_array_equal(made.numpy(), tensor.numpy())


def test_a_deep_copy_is_its_own_parameter() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)
    weight.square().sum().backward()
    model = {"a": weight, "b": [weight]}
    made = copy.deepcopy(model)
    assert made["a"] is made["b"][0]
    assert made["a"].grad is not None
    assert made["a"].grad.tolist() == [2.0, 4.0]
    with Tensor.no_grad():
        made["a"] += 1
    assert weight.tolist() == [1.0, 2.0]
    assert made["a"].tolist() == [2.0, 3.0]
    (made["a"] * 3).sum().backward()
    assert made["a"].grad.tolist() == [5.0, 7.0]
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 4.0]


# ---------------------------------------------------------------- operators


def test_operators_that_python_has_besides() -> None:
    x = Tensor([-1.5, 2.5])
    assert (+x).tolist() == [-1.5, 2.5]
    assert abs(x).tolist() == [1.5, 2.5]
    assert round(x).tolist() == [-2.0, 2.0]
    assert math.floor(x).tolist() == [-2.0, 2.0]
    assert math.ceil(x).tolist() == [-1.0, 3.0]
    assert math.trunc(x).tolist() == [-1.0, 2.0]
    quotient, remainder = divmod(Tensor([7, -7]), 2)
    assert (quotient.tolist(), remainder.tolist()) == ([3, -4], [1, 1])
    quotient, remainder = divmod(7, Tensor([2, -2]))
    assert (quotient.tolist(), remainder.tolist()) == ([3, -4], [1, -1])
    assert 2.5 in x
    assert 3.0 not in x


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (lambda x: x.__iadd__(3), [10, 3]),
        (lambda x: x.__isub__(3), [4, -3]),
        (lambda x: x.__imul__(3), [21, 0]),
        (lambda x: x.__ifloordiv__(2), [3, 0]),
        (lambda x: x.__imod__(4), [3, 0]),
        (lambda x: x.__ipow__(2), [49, 0]),
        (lambda x: x.__iand__(3), [3, 0]),
        (lambda x: x.__ior__(8), [15, 8]),
        (lambda x: x.__ixor__(1), [6, 1]),
        (lambda x: x.__ilshift__(1), [14, 0]),
        (lambda x: x.__irshift__(1), [3, 0]),
    ],
)
def test_an_update_in_place_reaches_the_tensor_that_is_viewed(update: Any, expected: list[int]) -> None:
    base = Tensor([[7, 0], [1, 2]]).contiguous().realize()
    row = base[0]
    assert update(row) is row
    assert row.tolist() == expected
    assert base.tolist() == [expected, [1, 2]]

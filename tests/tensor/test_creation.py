"""Tensors from nothing and from host data, and back to the host."""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import dtypes
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort
from tilewright.tensor.tensor import Tensor

Check = Callable[..., None]

MADE: dict[str, tuple[Callable[[str], Tensor], Any]] = {
    "full": (lambda d: Tensor.full((2, 3), 7, device=d), np.full((2, 3), 7, np.int32)),
    "full float": (lambda d: Tensor.full((2,), -0.0, device=d), np.full(2, -0.0, np.float32)),
    "full of nothing": (lambda d: Tensor.full((0, 3), 1.0, device=d), np.zeros((0, 3), np.float32)),
    "zeros": (lambda d: Tensor.zeros(2, 3, device=d), np.zeros((2, 3), np.float32)),
    "zeros tuple": (lambda d: Tensor.zeros((2, 3), dtype="int8", device=d), np.zeros((2, 3), np.int8)),
    "ones": (lambda d: Tensor.ones(4, device=d), np.ones(4, np.float32)),
    "arange": (lambda d: Tensor.arange(5, device=d), np.arange(5, dtype=np.int32)),
    "arange from to": (lambda d: Tensor.arange(3, 11, 2, device=d), np.arange(3, 11, 2, dtype=np.int32)),
    "arange down": (lambda d: Tensor.arange(5, -5, -3, device=d), np.arange(5, -5, -3, dtype=np.int32)),
    "arange empty": (lambda d: Tensor.arange(5, 5, device=d), np.zeros(0, np.int32)),
    "arange float": (lambda d: Tensor.arange(0, 1, 0.25, device=d), np.arange(0, 1, 0.25, dtype=np.float32)),
    "arange typed": (lambda d: Tensor.arange(4, dtype="float16", device=d), np.arange(4, dtype=np.float16)),
    "arange wide": (lambda d: Tensor.arange(2**40, 2**40 + 3, dtype="int64", device=d), np.arange(2**40, 2**40 + 3)),
    "arange uint8": (lambda d: Tensor.arange(252, 256, dtype="uint8", device=d), np.uint8([252, 253, 254, 255])),
    "linspace": (lambda d: Tensor.linspace(-1, 1, 7, device=d), np.linspace(-1, 1, 7, dtype=np.float32)),
    "linspace one": (lambda d: Tensor.linspace(3, 9, 1, device=d), np.float32([3])),
    "linspace none": (lambda d: Tensor.linspace(3, 9, 0, device=d), np.float32([])),
    "eye": (lambda d: Tensor.eye(3, device=d), np.eye(3, dtype=np.float32)),
    "eye wide": (lambda d: Tensor.eye(2, 4, dtype="int32", device=d), np.eye(2, 4, dtype=np.int32)),
    "eye of nothing": (lambda d: Tensor.eye(0, device=d), np.eye(0, dtype=np.float32)),
    "full_like": (lambda d: Tensor.zeros(2, device=d).full_like(3), np.full(2, 3, np.float32)),
    "zeros_like": (lambda d: Tensor.ones(2, dtype="int8", device=d).zeros_like(), np.zeros(2, np.int8)),
    "ones_like": (lambda d: Tensor.ones(2, device=d).ones_like(dtype="bool"), np.ones(2, np.bool_)),
}


@pytest.mark.parametrize("name", MADE)
def test_creation(name: str, run: Any, device: str) -> None:
    make, expected = MADE[name]
    tensor = make(device)
    found = run(tensor)
    assert found.dtype == expected.dtype
    assert tensor.shape == expected.shape
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_ranges_are_closed_forms() -> None:
    for tensor in (Tensor.arange(1000), Tensor.eye(100), Tensor.linspace(0, 1, 100)):
        assert not [node for node in toposort(tensor.uop) if node.op in (Ops.REDUCE_AXIS, Ops.BUFFER)]


DATA: dict[str, tuple[Any, dict[str, Any], str, Any]] = {
    "int": (3, {}, "int32", 3),
    "float": (2.5, {}, "float32", 2.5),
    "bool": (True, {}, "bool", True),
    "list": ([1, 2], {}, "int32", [1, 2]),
    "tuple": ((1.5, 2), {}, "float32", [1.5, 2.0]),
    "nested": ([[1, 2], [3, 4]], {}, "int32", [[1, 2], [3, 4]]),
    "bools": ([True, False], {}, "bool", [True, False]),
    "bools and ints": ([True, 2], {}, "int32", [1, 2]),
    "wide ints": ([2**40], {}, "int64", [2**40]),
    "wider ints": ([2**63], {}, "uint64", [2**63]),
    "empty": ([], {}, "float32", []),
    "empty nested": ([[], []], {}, "float32", [[], []]),
    "empty inside": ([[[]], [[]]], {}, "float32", [[[]], [[]]]),
    "wraps": ([200, -1], {"dtype": "uint8"}, "uint8", [200, 255]),
    "truncates": ([1.9, -1.9, 2.0**31 - 0.5], {"dtype": "int32"}, "int32", [1, -1, 2**31 - 1]),
    "overflows": ([1e99, -1e99], {"dtype": "float32"}, "float32", [math.inf, -math.inf]),
    "half": ([1.0, 65520.0, 1e-8], {"dtype": "float16"}, "float16", [1.0, math.inf, 0.0]),
    "bfloat16": ([1.00390625, -2.5, math.inf], {"dtype": "bfloat16"}, "bfloat16", [1.0, -2.5, math.inf]),
    "e4m3": ([448.0, 0.001953125, -1.125], {"dtype": "float8_e4m3"}, "float8_e4m3", [448.0, 0.001953125, -1.125]),
    "e5m2": ([57344.0, -0.25, math.inf], {"dtype": "float8_e5m2"}, "float8_e5m2", [57344.0, -0.25, math.inf]),
    "bytes": (b"\x01\xff", {}, "uint8", [1, 255]),
    "bytearray": (bytearray(b"ab"), {}, "uint8", [97, 98]),
    "bytes as float": (np.float32([1.5, -2]).tobytes(), {"dtype": "float32"}, "float32", [1.5, -2.0]),
    "memoryview": (memoryview(array.array("i", [1, -2])), {}, "int32", [1, -2]),
    "memoryview 2-D": (memoryview(bytes(range(6))).cast("B", (2, 3)), {}, "uint8", [[0, 1, 2], [3, 4, 5]]),
    "array": (np.arange(6, dtype=np.int16).reshape(2, 3), {}, "int16", [[0, 1, 2], [3, 4, 5]]),
    "array transposed": (np.arange(6.0).reshape(2, 3).T, {}, "float64", [[0, 3], [1, 4], [2, 5]]),
    "array strided": (np.arange(8)[::-3], {}, "int64", [7, 4, 1]),
    "array of the other byte order": (np.arange(3, dtype=">i4"), {}, "int32", [0, 1, 2]),
    "array empty": (np.zeros((0, 2), np.int8), {}, "int8", []),
    "array scalar": (np.float64(2.5), {}, "float64", 2.5),
    "array 0-d": (np.array(7, np.uint16), {}, "uint16", 7),
    "array cast": (np.float32([1.5, 2.5]), {"dtype": "int32"}, "int32", [1, 2]),
    "array bfloat16": (np.array([1.5, -3], ml_dtypes.bfloat16), {}, "bfloat16", [1.5, -3.0]),
    "array float8": (np.array([1.5, -3], ml_dtypes.float8_e4m3fn), {}, "float8_e4m3", [1.5, -3.0]),
    "read only": (np.frombuffer(b"\x01\x02", np.uint8), {}, "uint8", [1, 2]),
    "list of array scalars": ([np.float32(1.5), np.int32(2)], {}, "float32", [1.5, 2.0]),
}


@pytest.mark.parametrize("name", DATA)
def test_from_host_and_back(name: str, device: str) -> None:
    data, options, dtype, expected = DATA[name]
    tensor = Tensor(data, device=device, **options)
    assert tensor.dtype.name == dtype
    assert tensor.tolist() == expected
    values = tensor.numpy()
    assert values.dtype == numpy_dtype(tensor.dtype)
    assert values.shape == tensor.shape
    np.testing.assert_array_equal(values.astype(np.float64), np.asarray(expected, np.float64).reshape(tensor.shape))


def test_every_value_of_a_small_float_survives() -> None:
    for name, bits in (("float8_e4m3", 8), ("float8_e5m2", 8), ("bfloat16", 16), ("float16", 16)):
        dtype = numpy_dtype(getattr(dtypes, name))
        every = np.arange(1 << bits, dtype=f"u{bits // 8}")
        values = [float(value) for value in every.view(dtype)]
        found = np.asarray(Tensor(every.view(dtype)).tolist())
        np.testing.assert_array_equal(found, values)
        again = Tensor(values, dtype=name).numpy()
        np.testing.assert_array_equal(again.astype(np.float64), values)


def test_list_of_tensors() -> None:
    assert Tensor([Tensor([1, 2]), Tensor([3, 4])]).tolist() == [[1, 2], [3, 4]]
    assert Tensor([[Tensor(1), Tensor(2)]]).tolist() == [[1, 2]]


def test_array_memory_is_borrowed_on_the_cpu() -> None:
    values = np.arange(1000, dtype=np.float32)
    view = Tensor.from_numpy(values, device="CPU").data()
    assert np.shares_memory(np.asarray(view), values)


def test_borrowed_memory_is_never_written(device: str) -> None:
    values = np.arange(64, dtype=np.float32)
    constant = bytes(64)
    for update in ("+=", "slice", "assign", "view"):
        tensor, frozen = Tensor.from_numpy(values, device=device), Tensor(constant, device=device)
        for target in (tensor, frozen):
            if update == "+=":
                target += 1
            elif update == "slice":
                target[3:9] = 7
            elif update == "assign":
                target.assign(target + 1)
            else:
                target.reshape(8, 8).T[2] += 1
            target.realize()
            target += 1
            target.realize()
        assert tensor.tolist() != values.tolist()
        np.testing.assert_array_equal(values, np.arange(64))
        assert constant == bytes(64)
        assert sum(frozen.tolist()) > 0


def test_numpy_is_a_copy(device: str) -> None:
    tensor = Tensor([1.0, 2.0], device=device)
    before = tensor.numpy()
    tensor.assign(Tensor([5.0, 6.0], device=device)).realize()
    np.testing.assert_array_equal(before, [1, 2])
    np.testing.assert_array_equal(tensor.numpy(), [5, 6])


def test_data_is_typed_and_shaped(device: str) -> None:
    view = (Tensor([[1.5, 2.5]], device=device) + 0).data()
    assert view.format == "f"
    assert view.shape == (1, 2)
    assert view.tolist() == [[1.5, 2.5]]
    assert Tensor(3, device=device).data().tolist() == 3


def test_facts() -> None:
    tensor = Tensor.zeros(2, 3, dtype="float16")
    assert (tensor.ndim, tensor.numel(), tensor.nbytes(), tensor.element_size()) == (2, 6, 12, 2)
    assert tensor.size() == (2, 3)
    assert tensor.size(-1) == 3
    assert len(tensor) == 2
    assert tensor.is_floating_point()
    assert not Tensor([1]).is_floating_point()
    assert repr(tensor) == "Tensor([[0., 0., 0.],\n        [0., 0., 0.]], dtype=float16)"
    assert [row.tolist() for row in Tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]


def test_numbers() -> None:
    assert Tensor([[3]]).item() == 3
    assert float(Tensor(2.5)) == 2.5
    assert int(Tensor([7])) == 7
    assert bool(Tensor([1.0]))
    assert not Tensor(0)
    assert [10, 20, 30][Tensor(1)] == 20
    assert np.asarray(Tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert Tensor([1.0]).sequential([lambda t: t + 1, lambda t: t * 3]).item() == 6.0


def test_reading_numbers_does_not_import_numpy() -> None:
    import subprocess

    program = (
        "import sys; from tilewright.tensor.tensor import Tensor;"
        "t = Tensor([[1.5, 2.5]], dtype='bfloat16'); assert t.tolist() == [[1.5, 2.5]];"
        "assert Tensor([1, 2]).data().tolist() == [1, 2];"
        "assert 'numpy' not in sys.modules, 'numpy was imported'"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_moving_between_devices() -> None:
    tensor = Tensor([1.0, 2.0], device="CPU")
    moved = tensor.to("PYTHON")
    assert moved.device == "PYTHON"
    assert (moved + 1).tolist() == [2.0, 3.0]
    assert (moved.to("cpu") + tensor).tolist() == [2.0, 4.0]
    assert Tensor.arange(3, device="CPU").to("PYTHON").tolist() == [0, 1, 2]
    assert tensor.to("CPU") is tensor
    assert tensor.clone("PYTHON").tolist() == [1.0, 2.0]
    tensor.to_("PYTHON")
    assert tensor.device == "PYTHON"
    assert tensor.tolist() == [1.0, 2.0]


def test_a_constant_realised_on_one_device_is_none_on_another() -> None:
    assert Tensor(0, device="CPU").realize().item() == 0
    assert (Tensor([1, 2], device="PYTHON") * 0).tolist() == [0, 0]
    first, second = Tensor.zeros(3).realize(), Tensor.zeros(3).realize()
    first.assign(Tensor.ones(3)).realize()
    assert second.tolist() == [0, 0, 0]

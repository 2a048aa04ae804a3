"""What programs written for torch and for tinygrad reached for in vain: other spellings of arguments (`clamp(min=0)`,
`std(unbiased=False)`, `cat([a, b], 1)`), `to` with a dtype, one device where several are taken, `assign` of lists;
and `arange` in a dtype that does not hold the numbers, which wrapped."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, dtypes, nn
from tilewright.base.errors import AxisError, DeviceError, DTypeError, ShapeError

X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: x.clamp(min=0), X.clip(0)),
        (lambda x: x.clamp(max=1.5), X.clip(None, 1.5)),
        (lambda x: x.clip(min=-1, max=1), X.clip(-1, 1)),
        (lambda x: x.add(Tensor(X), alpha=0.5), X * 1.5),
        (lambda x: x.sub_([1, 2, 3, 4], alpha=2), X - np.float32([2, 4, 6, 8])),
        (lambda x: (x > 0).masked_fill(x > 2, 0), (X > 0) & (X <= 2)),
        (lambda x: (x * 0).sort(0, descending=True, stable=True).indices, np.arange(3)[:, None].repeat(4, 1)),
        (lambda x: x.clamp_(min=-1), X.clip(-1)),
        (lambda x: x.std(unbiased=False), X.std()),
        (lambda x: x.std(0, unbiased=True), X.std(0, ddof=1)),
        (lambda x: x.var(dim=1, unbiased=False, keepdim=True), X.var(1, keepdims=True)),
        (lambda x: x.std_mean(unbiased=False)[0], X.std()),
        (lambda x: Tensor.cat((x, x), 1), np.concatenate((X, X), 1)),
        (lambda x: Tensor.cat([x, x], -1), np.concatenate((X, X), -1)),
        (lambda x: Tensor.concat([x], 0), X),
        (lambda x: Tensor.stack([x, x], 2), np.stack((X, X), 2)),
        (lambda x: Tensor.stack((x, x), dim=1), np.stack((X, X), 1)),
        (lambda x: x.type("int32"), X.astype(np.int32)),
        (lambda x: x.to(dtypes.float16), X.astype(np.float16)),
        (lambda x: x.to("float64"), X.astype(np.float64)),
        (lambda x: x.to(np.float64), X.astype(np.float64)),
        (lambda x: x.to(dtype="half"), X.astype(np.float16)),
        (lambda x: x.to("cpu", "int8"), X.astype(np.int8)),
        (lambda x: x.to("PYTHON", dtypes.float64, non_blocking=True), X.astype(np.float64)),
        (lambda x: x.to(Tensor([1, 2], device="PYTHON")), X.astype(np.int32)),
        (lambda x: x.to("PYTHON").cpu(), X),
        (lambda x: x.byte(), X.clip(0).astype(np.uint8)),
        (lambda x: x.char(), X.astype(np.int8)),
        (lambda x: x.shard(("CPU",), axis=0) + Tensor(X), X + X),
        (lambda x: Tensor(X, device=["cpu:0"]) * x, X * X),
    ],
)
def test_other_spellings(call: Any, expected: np.ndarray) -> None:
    found = call(Tensor(X)).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_where_they_go() -> None:
    x = Tensor(X)
    assert x.to("PYTHON", "int64").device == "PYTHON"
    assert x.to(Tensor([1], device="PYTHON")).device == "PYTHON"
    assert x.to("float16").device == "CPU"
    assert x.to(dtypes.float32) is x
    assert x.shard(["CPU:1"]).device == "CPU:1"
    assert Tensor.ones(2, device=("CPU:1",)).device == "CPU:1"
    assert x.shard_(("CPU:2",), axis=0).device == "CPU:2"
    assert (x.dim(), x.ndimension(), x.itemsize) == (2, 2, 4)


def test_what_names_nothing() -> None:
    x = Tensor(X)
    with pytest.raises(DeviceError, match="float17"):
        x.to("float17")
    with pytest.raises(DTypeError, match="CUDA"):
        x.to("CPU", "CUDA")
    with pytest.raises(DeviceError, match="names no device"):
        x.shard(())
    with pytest.raises(AxisError):
        x.shard(("CPU",), axis=2)
    with pytest.raises(DTypeError, match="cat: a int"):
        Tensor.cat(x, x, 1)
    with pytest.raises(DTypeError, match="hstack: a int"):
        Tensor.hstack([x, x], 1)
    with pytest.raises(ShapeError, match="glu: axis -1 of shape"):
        Tensor.ones(2, 3).glu()
    with pytest.raises(AxisError, match="one argument"):
        x.clamp(min=0, min_=1)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_assign_takes_lists_in_its_own_dtype(device: str) -> None:
    x = Tensor([0.5, 0.25], device=device).realize()
    assert x.assign([1, 2]).tolist() == [1.0, 2.0]
    assert x.assign(np.arange(2)).dtype is dtypes.float32
    long = Tensor([0, 0], dtype="int64", device=device).realize()
    assert long.assign((3, 4)).tolist() == [3, 4]
    bits = Tensor([0] * 16, dtype="uint8", device=device).realize()
    bits[0:8].bitcast("int64").assign([1 << 40])
    assert bits.bitcast("int64").tolist() == [1 << 40, 0]
    with pytest.raises(DTypeError, match="float32 values for a tensor of int64"):
        long.assign([1.5, 2])
    with pytest.raises(DTypeError, match="int32 values for a tensor of float32"):
        x.assign(Tensor([1, 2], device=device))


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [((1 << 33,), "int32"), ((300,), "uint8"), ((-1, 3), "uint16"), ((129,), "int8"), ((128, 0, -1), "int8")],
)
def test_a_range_that_the_dtype_does_not_hold(arguments: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(DTypeError, match=f"arange: {dtype} cannot represent"):
        Tensor.arange(*arguments, dtype=dtype)


def test_a_range_that_the_dtype_just_holds() -> None:
    assert Tensor.arange(256, dtype="uint8").tolist() == list(range(256))
    assert Tensor.arange(127, -129, -1, dtype="int8").tolist() == list(range(127, -129, -1))
    assert Tensor.arange(300, 300, dtype="int8").tolist() == []
    assert Tensor.arange(0.5, 3, dtype="int8").tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_limits_of_dtypes(name: str) -> None:
    found, expected = dtypes.finfo(name), np.finfo(name)
    assert (found.max, found.min, found.eps) == (expected.max, expected.min, expected.eps)
    assert (found.bits, found.smallest_normal) == (expected.bits, expected.smallest_normal)
    assert dtypes.finfo(dtypes.bfloat16).max == math.ldexp(2 - 2**-7, 127)
    assert (dtypes.iinfo("int8").min, dtypes.iinfo(np.uint64).max) == (-128, (1 << 64) - 1)
    with pytest.raises(DTypeError, match="finfo"):
        dtypes.finfo("int32")
    with pytest.raises(DTypeError, match="iinfo"):
        dtypes.iinfo(dtypes.float32)


def test_coins() -> None:
    Tensor.manual_seed(1)
    chances = Tensor([[0.0], [0.25], [1.0]]).expand(3, 4000).contiguous()
    found = chances.bernoulli()
    assert found.dtype is dtypes.float32
    assert found.mean(1).numpy() == pytest.approx([0.0, 0.25, 1.0], abs=0.03)
    assert Tensor.zeros(4000, dtype="int32").bernoulli(0.75).sum().item() == pytest.approx(3000, abs=120)
    like = Tensor.zeros(3, 5, dtype="int64").randint_like(high=4)
    assert like.shape == (3, 5)
    assert like.dtype is dtypes.int64
    assert set(like.flatten().tolist()) <= {0, 1, 2, 3}


class Other:
    """An array of another library in a dtype that NumPy lacks, as torch's of bfloat16 are."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("unsupported ScalarType BFloat16")

    def __dlpack__(self) -> object:
        return self.values.__dlpack__()


def test_arrays_that_numpy_has_no_dtype_for() -> None:
    values = Tensor(X).bfloat16()
    found = Tensor(Other(values))
    assert found.dtype is dtypes.bfloat16
    assert found.tolist() == values.tolist()
    with pytest.raises(DTypeError, match="BFloat16"):
        Tensor(Other(Tensor([1.0], requires_grad=True)))


def test_a_graph_is_retained_and_activations_are_printed_as_they_are_made() -> None:
    x = Tensor([2.0], requires_grad=True)
    square = x * x
    square.backward(retain_graph=True)
    square.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0]
    assert repr(nn.Sequential(nn.ReLU(), nn.Softmax(dim=1), nn.LeakyReLU(0.2))) == (
        "Sequential(\n  (0): ReLU()\n  (1): Softmax(dim=1)\n  (2): LeakyReLU(0.2)\n)"
    )

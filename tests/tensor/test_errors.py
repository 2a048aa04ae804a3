"""A mistake is reported at the user's line when the operation is built, with what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import (
    AxisError,
    DeviceError,
    DTypeError,
    IndexingError,
    ShapeError,
    UserError,
)
from tilewright.tensor.tensor import Tensor

A = Tensor.zeros(2, 3)
B = Tensor.zeros(2, 4)
I = Tensor.zeros(2, 3, dtype="int32")

MISTAKES: dict[str, tuple[Callable[[], Any], type[UserError], tuple[str, ...]]] = {
    "realize nothing": (lambda: Tensor.realize(None), DTypeError, ("realize", "NoneType", "Tensor([1, 2])")),  # type: ignore[arg-type]
    "realize a number": (lambda: A.realize(3), DTypeError, ("realize", "int")),  # type: ignore[arg-type]
    "schedule a list": (lambda: A.schedule([A]), DTypeError, ("schedule", "list")),  # type: ignore[arg-type]
    "add": (lambda: A + B, ShapeError, ("add", "(2, 3)", "(2, 4)", "axis -1", "3 and 4", "reshape")),
    "compare": (lambda: A < B, ShapeError, ("(2, 3)", "(2, 4)")),
    "where": (lambda: (A < 1).where(B, 0), ShapeError, ("where", "(2, 3)", "(2, 4)")),
    "where dtype": (lambda: A.where(A, 0), DTypeError, ("float32", "t != 0")),
    "matmul": (lambda: A @ B, ShapeError, ("matmul", "(2, 3)", "(2, 4)", "3 columns and 2 rows")),
    "matmul scalar": (lambda: A @ Tensor(3.0), ShapeError, ("0-d", "use *")),
    "matmul batch": (lambda: Tensor.zeros(2, 3, 4) @ Tensor.zeros(3, 4, 5), ShapeError, ("(2,)", "(3,)")),
    "reshape": (lambda: A.reshape(4, 2), ShapeError, ("(2, 3)", "6 elements", "8")),
    "reshape unknown": (lambda: A.reshape(-1, 4), ShapeError, ("6 elements", "(-1, 4)")),
    "reshape two unknown": (lambda: A.reshape(-1, -1), ShapeError, ("one size may be -1",)),
    "reshape text": (lambda: A.reshape("x"), ShapeError, ("'x'", "integers")),
    "expand": (lambda: A.expand(4, 3), ShapeError, ("(2, 3)", "(4, 3)", "size 1")),
    "permute": (lambda: A.permute(0), AxisError, ("(0,)", "each of the 2 axes")),
    "permute twice": (lambda: A.permute(0, 0), AxisError, ("twice",)),
    "transpose": (lambda: A.transpose(0, 2), AxisError, ("axis 2", "2 axes", "-2..1")),
    "sum axis": (lambda: A.sum(2), AxisError, ("sum", "axis 2", "-2..1")),
    "sum axis twice": (lambda: A.sum((0, -2)), AxisError, ("twice",)),
    "softmax axis": (lambda: A.softmax(5), AxisError, ("softmax", "axis 5")),
    "axis kind": (lambda: A.sum("rows"), AxisError, ("'rows'",)),  # type: ignore[arg-type]
    "unsqueeze": (lambda: A.unsqueeze(4), AxisError, ("axis 4", "-3..2")),
    "shrink": (lambda: A.shrink(((0, 3), None)), ShapeError, ("(0, 3)", "size 2")),
    "pad pairs": (lambda: A.pad(((1, 1),)), ShapeError, ("1 pairs", "2 axes")),
    "pad flat": (lambda: A.pad((1, 1, 1)), ShapeError, ("3 numbers",)),
    "pad reflect": (lambda: A.pad((3, 0), "reflect"), ShapeError, ("reflect", "at most 2")),
    "cat": (lambda: A.cat(B), ShapeError, ("(2, 3)", "(2, 4)", "axis 0")),
    "stack": (lambda: A.stack(B), ShapeError, ("(2, 3)", "(2, 4)", "cat")),
    "split": (lambda: A.split([1, 1], 1), ShapeError, ("(1, 1)", "add up to 2", "3")),
    "tril": (lambda: Tensor.zeros(3).tril(), ShapeError, ("(3,)",)),
    "max of nothing": (lambda: Tensor.zeros(0, 3).max(0), ShapeError, ("max", "(0, 3)", "no elements")),
    "var of integers": (lambda: I.var(), DTypeError, ("var", "int32", ".float()")),
    "shift floats": (lambda: A << 1, DTypeError, ("lshift", "float32", "cast")),
    "and floats": (lambda: A & 1, DTypeError, ("float32",)),
    "not floats": (lambda: ~A, DTypeError, ("float32",)),
    "negate bool": (lambda: -(A < 1), DTypeError, ("bool", "~")),
    "subtract bools": (lambda: (A < 1) - (A < 2), DTypeError, ("bool", "^")),
    "integer to a negative power": (lambda: I**-1, DTypeError, ("int32", ".float()")),
    "unknown dtype": (lambda: A.cast("float31"), DTypeError, ("'float31'", "float32")),
    "operand": (lambda: A + "x", DTypeError, ("str",)),
    "data": (lambda: Tensor("abc"), DTypeError, ("str", "nested lists")),
    "data in list": (lambda: Tensor([1, "a"]), DTypeError, ("str",)),
    "complex array": (lambda: Tensor(np.zeros(2, np.complex64)), DTypeError, ("complex64", "astype")),
    "huge integer": (lambda: Tensor([2**70]), DTypeError, (str(2**70),)),
    "ragged": (lambda: Tensor([[1, 2], [3]]), ShapeError, ("ragged", "data[1]", "length 1", "length 2")),
    "ragged deeper": (lambda: Tensor([[[1], [2]], [[3], 4]]), ShapeError, ("data[1][1]", "number 4")),
    "ragged number": (lambda: Tensor([1, [2]]), ShapeError, ("data[1]", "list of length 1")),
    "bytes": (lambda: Tensor(b"123", dtype="int32"), ShapeError, ("3 bytes", "int32")),
    "index": (lambda: A[2], IndexingError, ("index 2", "axis 0", "(2, 3)", "-2..1")),
    "index second": (lambda: A[0, -4], IndexingError, ("index -4", "axis 1")),
    "index list": (lambda: A[[0, 5]], IndexingError, ("index 5", "axis 0")),
    "too many": (lambda: A[0, 0, 0], IndexingError, ("3 indices", "(2, 3)")),
    "two ellipses": (lambda: A[..., ...], IndexingError, ("Ellipsis",)),
    "float index": (lambda: A[1.5], IndexingError, ("1.5",)),
    "float tensor index": (lambda: A[Tensor([1.0])], IndexingError, ("float32",)),
    "mask": (lambda: A[Tensor([True, False, True])], IndexingError, ("3", "axis 0")),
    "zero step": (lambda: A[::0], IndexingError, ("step",)),
    "setitem shape": (lambda: A.__setitem__(0, B[0]), ShapeError, ("(4,)", "(3,)")),
    "setitem dtype": (lambda: I.__setitem__(0, A[0]), DTypeError, ("float32", "int32", ".cast('int32')")),
    "gather": (lambda: A.gather(0, Tensor([0])), ShapeError, ("(1,)", "(2, 3)")),
    "item": (lambda: A.item(), ShapeError, ("6 elements", "tolist")),
    "truth": (lambda: bool(A), ShapeError, ("ambiguous", ".any()")),
    "length": (lambda: len(Tensor(1)), ShapeError, ("0-d", ".item()")),
    "assign shape": (lambda: Tensor.zeros(2).assign(Tensor.zeros(3)), ShapeError, ("(3,)", "(2,)")),
    "assign grows": (lambda: Tensor.zeros(2).assign(Tensor.zeros(3, 2)), ShapeError, ("(3, 2)", "(2,)")),
    "assign dtype": (lambda: Tensor.zeros(2).assign(Tensor([1, 2])), DTypeError, ("int32", "float32", ".cast(")),
    "in place dtype": (lambda: I.__iadd__(1.5), DTypeError, ("float32", "int32", "a = a + b")),
    "in place shape": (lambda: Tensor.zeros(3).__iadd__(A), ShapeError, ("(2, 3)", "(3,)")),
    "gradient of integers": (lambda: I.requires_grad_(), DTypeError, ("int32",)),
    "conv channels": (
        lambda: Tensor.zeros(1, 3, 5, 5).conv2d(Tensor.zeros(4, 2, 3, 3)),
        ShapeError,
        ("(1, 3, 5, 5)", "(4, 2, 3, 3)", "2 channels"),
    ),
    "conv axes": (lambda: A.conv2d(Tensor.zeros(4, 2, 3, 3)), ShapeError, ("(2, 3)", "(4, 2, 3, 3)")),
    "conv kernel": (lambda: Tensor.zeros(1, 1, 2, 2).conv2d(Tensor.zeros(1, 1, 3, 3)), ShapeError, ("3", "2")),
    "pool kernel": (lambda: Tensor.zeros(1, 1, 2, 2).max_pool2d(3), ShapeError, ("larger",)),
    "arange step": (lambda: Tensor.arange(0, 5, 0), ShapeError, ("step of 0",)),
    "negative size": (lambda: Tensor.zeros(-1), ShapeError, ("(-1,)",)),
    "device": (lambda: Tensor([1], device="GPU9"), DeviceError, ("GPU9", "CPU", "PYTHON")),
    "rand dtype": (lambda: Tensor.rand(2, dtype="int32"), DTypeError, ("int32", "randint")),
    "randint range": (lambda: Tensor.randint(2, low=3, high=3), ShapeError, ("low < high",)),
    "one_hot": (lambda: A.one_hot(3), DTypeError, ("float32",)),
    "clamp": (lambda: A.clamp(), ShapeError, ("min_",)),
    "bitcast": (lambda: Tensor.zeros(3, dtype="uint8").bitcast("int32"), ShapeError, ("uint8[3]", "int32")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    mistake, kind, words = MISTAKES[name]
    with pytest.raises(kind) as caught:
        mistake()
    text = str(caught.value)
    missing = [word for word in words if word not in text]
    assert not missing, text
    assert "to fix it:" in text
    assert caught.value.location is not None
    assert caught.value.location[0] == __file__


def test_mixed_devices_name_both_tensors_and_their_lines() -> None:
    left, mask = Tensor([1.0, 2.0], device="CPU"), Tensor([True, False], device="CPU")
    right = Tensor([3.0, 4.0], device="PYTHON")
    line = left.uop.line
    assert line is not None
    for operation in (
        lambda: left + right,
        lambda: left @ right,
        lambda: left.cat(right),
        lambda: Tensor.where(mask, left, right),
        lambda: left.assign(right),
        lambda: left[right.int()],
        lambda: left.gather(0, right.int()),
    ):
        with pytest.raises(DeviceError) as caught:
            operation()
        text = str(caught.value)
        assert "CPU" in text
        assert "PYTHON" in text
        assert f"{__file__}:{line[1]}" in text
        assert ".to('CPU')" in text


def test_the_process_goes_on_after_an_error() -> None:
    with pytest.raises(ShapeError):
        _ = A + B
    assert (A + 1).sum().item() == 6
    assert (I + 0).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_nodes_know_the_line_that_made_them() -> None:
    tensor = Tensor([0.125, 0.25]).exp() * 3
    line = tensor.uop.line
    assert line is not None
    assert line[0] == __file__
    stack = [tensor.uop]
    while stack:
        node = stack.pop()
        assert node.line is not None
        stack.extend(node.src)

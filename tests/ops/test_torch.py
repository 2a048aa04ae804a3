"""The op table against torch: values and gradients of every row that torch has a counterpart for.

Runs where torch is installed (`make test-torch`), and is skipped elsewhere: `make test` does without it, and does not
import it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.ops.rows import BOOL, FLOATS, INTS, Row, listed
from tests.ops.table import TABLE
from tilewright import Tensor

pytestmark = pytest.mark.torch

TOLERANCE = 1e-9
ROWS = [pytest.param(row, id=row.name) for row in TABLE if row.torch is not None]


def dtype_for(row: Row) -> str:
    """The widest dtype of the row, in which both are exact enough to be compared closely."""
    return next(dtype for dtype in ("float64", "int64", "float32", "int32", "bool") if dtype in row.dtypes)


def torch_call(row: Row, given: list[Any]) -> list[Any]:
    import torch

    return listed(row.call(*given) if row.torch == "call" else row.torch(torch, *given))


def compare(found: Tensor, expected: Any, dtype: str) -> None:
    assert found.dtype.name == str(expected.dtype).removeprefix("torch.")
    is_bfloat16 = found.dtype.name == "bfloat16"
    values = expected.detach().double().numpy() if is_bfloat16 else expected.detach().numpy()
    assert found.shape == values.shape
    tolerance = TOLERANCE if dtype != "float32" else 2e-5
    np.testing.assert_allclose(found.numpy().astype(values.dtype), values, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("row", ROWS)
def test_value(row: Row) -> None:
    import torch

    dtype = dtype_for(row)
    arrays = row.arrays(dtype)
    outputs = listed(row.call(*(Tensor(array) for array in arrays)))
    expected = torch_call(row, [torch.tensor(array) for array in arrays])
    assert len(outputs) == len(expected)
    for found, wanted in zip(outputs, expected):
        if isinstance(found, Tensor):
            compare(found, wanted, dtype)
        else:
            assert found == wanted


@functools.cache
def torch_dtypes() -> dict[str, Any]:
    """torch's float8 are for storage alone: its ops refuse them, or give a float32 for one and a float8 for another."""
    import torch

    names = [name for name in (*BOOL, *INTS, *FLOATS) if not name.startswith("float8")]
    return {name: getattr(torch, name) for name in names if hasattr(torch, name)}


# Where the result is meant to be another: torch's sums of uint64 lose the highest bit, and its `any` and `all` of uint8
# are uint8 for the sake of programs older than bool.
OWN_DTYPES = {
    **dict.fromkeys((("sum", "uint64"), ("prod", "uint64"), ("cumsum", "uint64"), ("cumprod", "uint64")), "uint64"),
    **dict.fromkeys((("any", "uint8"), ("all", "uint8")), "bool"),
}


@pytest.mark.parametrize("row", ROWS)
def test_dtypes(row: Row) -> None:
    """Every dtype of the row gives what torch gives for it, where torch has the op for that dtype."""
    import torch

    kinds = torch_dtypes()
    for dtype in row.dtypes:
        if dtype not in kinds:
            continue
        arrays = row.arrays(dtype)
        wide = [array.astype(np.float64) if given.dtype is None else array for given, array in zip(row.inputs, arrays)]
        given = [
            torch.tensor(array).to(kinds[dtype]) if given.dtype is None else torch.tensor(array)
            for given, array in zip(row.inputs, wide)
        ]
        try:
            expected = torch_call(row, given)
        except (RuntimeError, TypeError, ValueError):
            continue  # torch lacks it, for uint16 or bool say
        found = listed(row.call(*(Tensor(array) for array in arrays)))
        for own, other in zip(found, expected, strict=True):
            if isinstance(own, Tensor):
                wanted = OWN_DTYPES.get((row.op, dtype), str(other.dtype).removeprefix("torch."))
                assert f"{dtype} -> {own.dtype.name}" == f"{dtype} -> {wanted}"


@pytest.mark.parametrize("row", [param for param in ROWS if param.values[0].gradient])
def test_gradient(row: Row) -> None:
    import torch

    arrays = row.arrays("float64")
    differentiated = [given.has_gradient and not given.constant_in_torch for given in row.inputs]
    places = [number for number, wanted in enumerate(differentiated) if wanted]
    tensors = [Tensor(array) for array in arrays]
    others = [torch.tensor(array, requires_grad=number in places) for number, array in enumerate(arrays)]
    outputs = [output for output in listed(row.call(*tensors)) if output.dtype.is_float]
    expected = [output for output in torch_call(row, others) if output.is_floating_point()]
    rng = np.random.default_rng(1)
    weights = [rng.uniform(0.5, 1.5, output.shape) for output in outputs]
    total = sum(((output * Tensor(weight)).sum() for output, weight in zip(outputs, weights)), Tensor(0.0))
    sum((output * torch.tensor(weight)).sum() for output, weight in zip(expected, weights)).backward()
    found = total.gradient(*(tensors[number] for number in places))
    Tensor.realize(*found)
    for number, gradient in zip(places, found):
        wanted = others[number].grad
        assert wanted is not None
        np.testing.assert_allclose(gradient.numpy(), wanted.numpy(), rtol=1e-7, atol=1e-9, err_msg=f"input {number}")

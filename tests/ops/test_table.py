"""Every row of the op table on every device that is here: values over a sample of its dtypes, or over
all of them (tests/devices.py), gradients by finite differences.

`evaluate` interprets the graph that a call built; the devices go through the whole engine. The results of all dtypes of
a row are computed in one go. A gradient is compared with central differences of the NumPy reference, in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.devices import Setting, dtypes_of, settings
from tests.ops.rows import GRADIENT_TOLERANCE, STEP, TOLERANCES, Row, as_float64, listed
from tests.ops.table import TABLE
from tilewright import Tensor
from tilewright.base.dtype import to_dtype
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.verification.verify import verify_tensor_graph
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import buffer_of

BACKENDS = (Setting("evaluate", "CPU"), *settings())


# Rows that take seconds or minutes by setting. The interpreter computes every version of memory that a loop updates
# anew; the emulator has a thread for each element. Short rows of these ops, or of the same bits, run there.
LEFT_OUT = {
    "evaluate": {"svd", "cumsum-long", "cummax-long", "sort-long", "randperm", "keccak"},
    "PYTHON": {"sort-long", "keccak"},
}


def rows(wanted: Any) -> list[Any]:
    return [pytest.param(row, id=row.name) for row in TABLE if wanted(row)]


# ---------------------------------------------------------------- running


def interpret(tensor: Tensor) -> np.ndarray:
    """The value by the graph interpreter, which knows nothing of devices."""
    verify_tensor_graph(build.contiguous(tensor.uop))
    bindings = {}
    for node in toposort(tensor.uop):
        if node.op is Ops.BUFFER:
            # What `empty` gives has no memory until it is written.
            memory = buffer_of(node)
            view = memory.view() if memory.memory is not None else bytes(memory.nbytes)
            bindings[node] = np.frombuffer(view, dtype=numpy_dtype(node.dtype))[: node.arg.size]
    return np.broadcast_to(evaluate(tensor.uop, bindings), tensor.shape)


def call_row(row: Row, dtype: str, device: str) -> tuple[list[Any], list[np.ndarray]]:
    """What the row gives for one dtype, not computed yet; and the arrays it was given."""
    arrays = row.arrays(dtype)
    if row.creates:
        return listed(row.call(device, dtype)), arrays
    return listed(row.call(*(Tensor(array, device=device) for array in arrays))), arrays


def values_on(backend: str, outputs: list[Any]) -> list[Any]:
    if backend == "evaluate":
        return [interpret(output) if isinstance(output, Tensor) else output for output in outputs]
    return [output.numpy() if isinstance(output, Tensor) else output for output in outputs]


def reference_values(row: Row, arrays: list[np.ndarray]) -> list[Any]:
    given = [as_float64(array) for array in arrays]
    if row.result == "float":
        given = [
            array if number and row.inputs[number].dtype else array.astype(np.float64)
            for number, array in enumerate(given)
        ]
    with np.errstate(all="ignore"):
        return listed(row.reference(*given))


# ---------------------------------------------------------------- checking


def assert_close(found: np.ndarray, expected: Any, dtype: str, what: str) -> None:
    wanted = numpy_dtype(to_dtype(dtype))
    assert found.dtype == wanted, f"{what}: dtype {found.dtype} instead of {dtype}"
    expected = np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape} instead of {expected.shape}"
    if dtype not in TOLERANCES:
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(found, expected.astype(wanted), err_msg=what)
        return
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float64).astype(wanted).astype(np.float64)
    tolerance = TOLERANCES[dtype]
    np.testing.assert_allclose(found.astype(np.float64), rounded, rtol=tolerance, atol=tolerance, err_msg=what)


@pytest.mark.parametrize(
    ("setting", "row"),
    [
        pytest.param(setting, row, id=f"{setting.label}-{row.name}")
        for setting in BACKENDS
        for row in TABLE
        if setting.takes(row.name) and not {row.op, row.name} & LEFT_OUT.get(setting.label, set())
    ],
)
def test_value(setting: Setting, row: Row) -> None:
    with setting.options():
        check_values(row, setting)


def check_values(row: Row, setting: Setting) -> None:
    backend = setting.label
    Tensor.manual_seed(row.seed)
    cases = [(dtype, *call_row(row, dtype, setting.device)) for dtype in setting.sample(row.name, row.dtypes)]
    reasons = [setting.lacking(row.dtypes)] if not cases else []
    for case in list(cases):
        reason = setting.lacking(dtypes_of(*(output for output in case[1] if isinstance(output, Tensor))))
        if reason:
            cases.remove(case)
            reasons.append(reason)
    if not cases:
        pytest.skip(reasons[0])
    tensors = [output for _, outputs, _ in cases for output in outputs if isinstance(output, Tensor)]
    if tensors and backend != "evaluate":
        Tensor.realize(*tensors)
    for dtype, outputs, arrays in cases:
        found = values_on(backend, outputs)
        what = f"{row.name} of {dtype} on {backend}"
        if row.check is not None:
            assert row.check(*found), f"{what}: {found}"
            continue
        expected = reference_values(row, arrays)
        assert len(found) == len(expected), f"{what}: {len(found)} results instead of {len(expected)}"
        for value, wanted, kind in zip(found, expected, row.result_dtypes(dtype, len(found))):
            if isinstance(value, np.ndarray):
                assert_close(value, wanted, kind, what)
            else:
                assert value == wanted, what


def gradient_rows() -> list[Any]:
    """Of the rows that `make test-torch` compares with torch, every second one is slow."""
    found = [row for row in TABLE if row.gradient]
    slow = {row.name for row in [row for row in found if row.torch is not None][1::2]}
    return [pytest.param(row, id=row.name, marks=[pytest.mark.slow] * (row.name in slow)) for row in found]


@pytest.mark.parametrize("row", gradient_rows())
def test_gradient(row: Row) -> None:
    arrays = row.arrays("float64")
    tensors = [Tensor(array) for array in arrays]
    places = [number for number, given in enumerate(row.inputs) if given.has_gradient]
    outputs = [output for output in listed(row.call(*tensors)) if output.dtype.is_float]
    rng = np.random.default_rng(1)
    weights = [rng.uniform(0.5, 1.5, output.shape) for output in outputs]
    total = sum(((output.double() * Tensor(weight)).sum() for output, weight in zip(outputs, weights)), Tensor(0.0))
    found = total.gradient(*(tensors[number] for number in places))
    Tensor.realize(*found)
    for number, gradient in zip(places, found):
        expected = difference_quotients(row, arrays, number, weights)
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        assert gradient.shape == expected.shape
        np.testing.assert_allclose(
            gradient.numpy() / scale, expected / scale, rtol=0, atol=GRADIENT_TOLERANCE, err_msg=f"input {number}"
        )


def difference_quotients(row: Row, arrays: list[np.ndarray], number: int, weights: list[np.ndarray]) -> np.ndarray:
    """d/dx of the weighted sum of the reference's float results, element by element."""

    def total(changed: np.ndarray) -> float:
        given = [changed if k == number else array for k, array in enumerate(arrays)]
        values = [np.asarray(value) for value in listed(row.reference(*given))]
        floats = [value for value in values if value.dtype.kind == "f"]
        return float(sum((value * weight).sum() for value, weight in zip(floats, weights, strict=True)))

    result = np.zeros(arrays[number].shape)
    for place in np.ndindex(result.shape):
        step = np.zeros_like(result)
        step[place] = STEP
        result[place] = (total(arrays[number] + step) - total(arrays[number] - step)) / (2 * STEP)
    return result

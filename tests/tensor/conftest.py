"""One way to test an operation on every backend: `check(operation, reference, *arrays)`.

`evaluate` interprets the graph that the operation built; CPU and PYTHON go through the whole engine.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.verification.verify import verify_tensor_graph
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import buffer_of
from tilewright.tensor.tensor import Tensor


def engine_exists() -> bool:
    try:
        importlib.import_module("tilewright.engine.execution.realize")
    except ModuleNotFoundError:
        return False
    return True


BACKENDS = ("evaluate", "CPU", "PYTHON") if engine_exists() else ("evaluate",)
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def bindings_of(tensor: Tensor) -> dict[Any, Any]:
    """The contents of every buffer that the tensor's graph reads."""
    found = {}
    for node in toposort(tensor.uop):
        if node.op is Ops.BUFFER:
            found[node] = np.frombuffer(buffer_of(node).view(), dtype=numpy_dtype(node.dtype))[: node.arg.size]
    return found


def run_on(backend: str, tensor: Tensor) -> np.ndarray:
    if backend != "evaluate":
        return tensor.numpy()
    verify_tensor_graph(build.contiguous(tensor.uop))
    value = evaluate(tensor.uop, bindings_of(tensor))
    return np.broadcast_to(value, tensor.shape)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def device(backend: str) -> str:
    return "CPU" if backend == "evaluate" else backend


@pytest.fixture
def run(backend: str) -> Callable[[Tensor], np.ndarray]:
    return lambda tensor: run_on(backend, tensor)


def assert_same(found: np.ndarray, expected: Any, tolerance: float | None = None, dtype: bool = True) -> None:
    """Equal shape, dtype, values up to rounding, NaNs, and signs of zeros."""
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    if dtype:
        assert found.dtype == expected.dtype
    if not np.issubdtype(found.dtype, np.integer) and found.dtype != np.bool_:
        rtol = TOLERANCES[found.dtype.name] if tolerance is None else tolerance
        left, right = found.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol / 10, equal_nan=True)
        if rtol == 0:
            zeros = right == 0
            np.testing.assert_array_equal(np.signbit(left[zeros]), np.signbit(right[zeros]))
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.fixture
def check(backend: str, device: str) -> Callable[..., None]:
    """Run an operation on tensors and its reference on arrays, and compare."""

    def compare(
        operation: Callable[..., Any],
        reference: Callable[..., Any],
        *arrays: Any,
        tolerance: float | None = None,
        dtype: bool = True,
    ) -> None:
        tensors = [Tensor(array, device=device) for array in arrays]
        found = operation(*tensors)
        with np.errstate(all="ignore"):
            expected = reference(*arrays)
        if not isinstance(found, tuple | list):
            found, expected = [found], [expected]
        assert len(found) == len(expected)
        for tensor, array in zip(found, expected):
            assert tensor.shape == np.asarray(array).shape
            assert_same(run_on(backend, tensor), array, tolerance, dtype)

    return compare

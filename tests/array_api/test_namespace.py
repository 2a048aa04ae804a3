"""The array API over our tensors: every name of the standard with its parameters, what the standard's own suite is thin
on, functions of SciPy and scikit-learn that take any array of the standard, and that suite where a copy is given."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright.array_api as xp
from tilewright import Tensor
from tilewright.base.errors import UnsupportedError

ROOT = Path(__file__).resolve().parents[2]
STANDARD = Path(__file__).with_name("standard.txt")
KNOWN = Path(__file__).with_name("known_failures.txt")
RNG = np.random.default_rng(0)
VALUES = RNG.standard_normal((12, 4))


def test_a_tensor_leads_to_its_namespace() -> None:
    tensor = Tensor(VALUES)
    assert tensor.__array_namespace__() is xp
    assert tensor.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(UnsupportedError, match=r"2019\.01"):
        tensor.__array_namespace__(api_version="2019.01")
    assert xp.__array_api_version__ == "2024.12"
    assert all(hasattr(xp, name) for name in xp.__all__)
    assert tensor.to_device("CPU") is tensor


def functions_of_the_standard() -> list[str]:
    return [line for line in STANDARD.read_text().splitlines() if not line.startswith("#")]


def shape_of(function: Any) -> list[tuple[Any, ...]]:
    """How a function is called: the kind, the name and the default of each parameter. A positional one has no name."""
    return [
        (one.kind, one.name if one.kind is inspect.Parameter.KEYWORD_ONLY else "", one.default)
        for one in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize("line", functions_of_the_standard())
def test_a_name_of_the_standard_is_called_as_the_standard_says(line: str) -> None:
    prefix = "__array_namespace_info__()."
    path, _, parameters = line.removeprefix(prefix).partition("(")
    found: Any = xp.__array_namespace_info__() if line.startswith(prefix) else xp
    for part in path.split("."):
        found = getattr(found, part)
    if parameters:
        namespace: dict[str, Any] = {}
        exec(f"def wanted({parameters}: ...", namespace)
        assert shape_of(found) == shape_of(namespace["wanted"])


def test_functions_promote_and_keep_dtypes() -> None:
    assert xp.sum(xp.asarray([1, 2], dtype=xp.int8)).dtype is xp.int32
    assert xp.sum(xp.asarray([1, 2], dtype=xp.uint64)).dtype is xp.uint64
    assert xp.add(xp.asarray([1], dtype=xp.uint8), xp.asarray([1], dtype=xp.int8)).dtype is xp.int16
    assert (xp.asarray([1 + 2j]) * xp.asarray([2.0])).dtype is xp.complex64
    assert xp.result_type(xp.float64, xp.complex64) is xp.complex128
    assert xp.finfo(xp.complex64).eps == np.finfo(np.float32).eps
    assert not xp.can_cast(xp.float32, xp.int32)
    assert xp.isdtype(xp.int8, ("real floating", "signed integer"))


def test_unique_and_repeat_and_clip() -> None:
    found = xp.unique_all(xp.asarray([[3, 1], [3, 2]]))
    assert [part.tolist() for part in found] == [[1, 2, 3], [1, 3, 0], [[2, 0], [2, 1]], [1, 1, 2]]
    assert xp.unique_counts(xp.asarray([1j, 2.0, 1j])).counts.tolist() == [2, 1]
    assert xp.repeat(xp.asarray([5, 6]), xp.asarray([2, 3])).tolist() == [5, 5, 6, 6, 6]
    assert xp.clip(xp.asarray([-5, 300], dtype=xp.int16), -1000000, 200).tolist() == [-5, 200]


def test_linear_algebra_and_transforms() -> None:
    x = xp.asarray(VALUES)
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose((u * s @ vh).numpy(), VALUES, atol=1e-12)
    np.testing.assert_allclose(xp.fft.fft(x, axis=0).numpy(), np.fft.fft(VALUES, axis=0), atol=1e-12)
    np.testing.assert_allclose(xp.fft.irfft(xp.fft.rfft(x)).numpy(), VALUES, atol=1e-12)


# ---------------------------------------------------------------- other libraries

PROGRAM = """
import json, sys, warnings
import numpy as np
from scipy import special, stats
import sklearn
from sklearn.decomposition import PCA
from sklearn.preprocessing import MinMaxScaler
from tilewright import Tensor
values = np.random.default_rng(0).standard_normal((12, 4))
tensor = Tensor(values)
warnings.simplefilter("ignore")
with sklearn.config_context(array_api_dispatch=True):
    pairs = {
        "logsumexp": (special.logsumexp(tensor, axis=0), special.logsumexp(values, axis=0)),
        "zscore": (stats.zscore(tensor), stats.zscore(values)),
        "skew": (stats.skew(tensor), stats.skew(values)),
        "MinMaxScaler": (MinMaxScaler().fit_transform(tensor), MinMaxScaler().fit_transform(values)),
        "PCA": (PCA(2, svd_solver="full").fit_transform(tensor), PCA(2, svd_solver="full").fit_transform(values)),
    }
print(json.dumps({
    name: [type(found).__name__, float(np.abs(np.abs(found.numpy()) - np.abs(wanted)).max())]
    for name, (found, wanted) in pairs.items()
}))
"""


def test_scipy_and_scikit_learn_take_our_tensors() -> None:
    """In a process of its own: SciPy reads the switch when it is imported. Principal axes have no sign."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed; `pip install .[dev]` installs it")
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    for name, (kind, distance) in found.items():
        assert kind == "Tensor", name
        assert distance < 1e-10, name


# ---------------------------------------------------------------- the standard's suite


@pytest.mark.slow
def test_the_standards_own_suite() -> None:
    """All of it, with few examples a test; what is listed in known_failures.txt, with its reason, may fail."""
    folder = os.environ.get("ARRAY_API_TESTS", "")
    if not folder:
        pytest.skip("ARRAY_API_TESTS does not name a copy of github.com/data-apis/array-api-tests")
    for package in ("ndindex", "pytest_jsonreport"):
        pytest.importorskip(package, reason="the suite needs ndindex and pytest-json-report")
    environment = {
        **os.environ,
        "ARRAY_API_TESTS_MODULE": "tilewright.array_api",
        "ARRAY_API_TESTS_VERSION": "2024.12",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "pytest", "array_api_tests", "-q", "--max-examples", "5", "-p", "no:cacheprovider"]
    command += ["--xfails-file", str(KNOWN), "--disable-deadline"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert done.returncode == 0, "\n".join(failed) or done.stdout[-2000:]


@pytest.mark.parametrize("stop", [2.877379194965197e16, 1.0, -3.3])
def test_linspace_without_its_end_is_the_beginning_of_one_with_it(stop: float) -> None:
    for num in (0, 1, 2, 64):
        shorter, longer = xp.linspace(0.0, stop, num, endpoint=False), xp.linspace(0.0, stop, num + 1)
        assert shorter.shape == (num,)
        assert shorter.tolist() == longer[:num].tolist()


def test_a_limit_for_each_matrix_of_a_batch() -> None:
    values = np.stack([np.diag([4.0, 2.0]), np.diag([4.0, 0.5]), np.diag([1.0, 3.0])]).astype(np.float32)
    limits = np.array([0.1, 0.2, 0.5], np.float32)
    found = xp.linalg.pinv(xp.asarray(values), rtol=xp.asarray(limits))
    expected = np.stack([np.linalg.pinv(matrix, rcond=limit) for matrix, limit in zip(values, limits)])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    nested = xp.linalg.pinv(xp.asarray(values.reshape(3, 1, 2, 2)), rtol=xp.asarray(limits.reshape(3, 1)))
    np.testing.assert_allclose(nested.numpy().reshape(3, 2, 2), expected, rtol=1e-5, atol=1e-6)

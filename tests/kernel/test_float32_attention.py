"""Attention of float32 as one kernel on tensor cores that multiply parts, numbers that parts cannot multiply too: on
the emulator, and on the card where there is one; and its text for the card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.computed import computed
from tests.kernel import test_attention as halves
from tests.kernel.test_attention import FORWARD, GRADIENTS, PRODUCTS, Case, compile_texts, cuda_texts, kernels
from tests.kernel.test_float32_parts import has_card
from tilewright import Tensor, dtypes
from tilewright.backends.cuda.cores import part_core
from tilewright.backends.cuda.device import cuda_target
from tilewright.runtime.device import open_driver

F32 = dtypes.float32
Array = np.ndarray[Any, Any]


def in_float32(cases: dict[str, halves.Case]) -> dict[str, halves.Case]:
    """Those whose parts fit into local memory."""
    taken = {name: case for name, case in cases.items() if name != "float16" and case.query[-1] <= 128}
    return {name: replace(case, dtype=F32) for name, case in taken.items()}


CASES = in_float32(halves.CASES)
GRADIENT_CASES = {
    **in_float32(halves.GRADIENT_CASES),
    "two lines of features": Case((1, 1, 70, 80), (1, 1, 40, 80), dtype=F32),
}
MAX = np.finfo(np.float32).max


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    """The emulator with the tensor cores for parts and the local memory of a card."""
    driver: Any = open_driver("PYTHON")
    before = driver.target
    driver.target = replace(before, tensor_cores=(part_core(64, 64),), max_local_bytes=cuda_target().max_local_bytes)
    yield
    driver.target = before


@pytest.fixture(params=["PYTHON", "CUDA"])
def device(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "CUDA" and not has_card():
        pytest.skip("there is no card with such tensor cores")
    return name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_forward(name: str, device: str) -> None:
    case = CASES[name]
    found = case.attend(*case.tensors(device))
    assert FORWARD in [ast.arg.name for ast in kernels(found)]
    wanted = halves.expected(case)
    assert np.abs(found.numpy() - wanted).max() < 2e-6 * np.abs(wanted).max()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GRADIENT_CASES)
def test_gradients(name: str, device: str) -> None:
    case, results = GRADIENT_CASES[name], []
    for one in (device, "CPU"):
        given = case.tensors(one)
        found = case.attend(*given)
        slope = Tensor(np.random.default_rng(5).standard_normal(found.shape).astype(np.float32), device=one)
        targets = [each for each in given if each.dtype.is_float]
        gradients = found.gradient(*targets, gradient=slope)
        if one == device:
            assert set(GRADIENTS) <= {ast.arg.name for ast in kernels(*gradients[:3])}
        results.append(computed(gradients))
    for found, wanted in zip(*results):
        assert np.abs(found - wanted).max() < 3e-6 * max(1.0, np.abs(wanted).max())


def test_gradient_of_a_gradient(device: str) -> None:
    results = []
    for one in (device, "CPU"):
        query, key, value = Case((1, 1, 16, 8), (1, 1, 16, 8), dtype=F32).tensors(one)
        first = query.scaled_dot_product_attention(key, value).gradient(query, gradient=query)[0]
        results.append(computed(first.gradient(query, key, gradient=value)))
    for found, wanted in zip(*results):
        assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


def attend(device: str, query: Array, key: Array, value: Array) -> Array:
    found = Tensor.scaled_dot_product_attention(*(Tensor(each, device=device) for each in (query, key, value)))
    return np.asarray(found.numpy())


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, MAX, -MAX, 1e-30])
def test_values_that_parts_cannot_multiply(value: float, device: str) -> None:
    """The weights are 1/2, 1/4 and 1/4: scores of an infinity or of NaN would not be."""
    query, key, given = (np.zeros((1, 1, 16, 16), np.float32) for _ in range(3))
    query[..., 0], key[..., 0] = 4.0, -1e4
    key[0, 0, :3, 0] = np.log([2, 1, 1])
    given[0, 0, :3] = [[0], [value], [value]]
    given[0, 0, 0, 1] = 3.0
    found = attend(device, query, key, given)
    wanted = np.full((16, 16), np.float32(value) / 2, np.float32)
    wanted[:, 1] += 1.5
    np.testing.assert_allclose(found[0, 0], wanted, rtol=1e-6)


def test_a_key_whose_score_is_minus_infinity_has_no_weight(device: str) -> None:
    generator = np.random.default_rng(1)
    query, key, value = (generator.random((1, 1, 16, 16)).astype(np.float32) + 1 for _ in range(3))
    key[0, 0, 5, 3] = -np.inf
    others = [n for n in range(16) if n != 5]
    wanted = attend(device, query, key[:, :, others], value[:, :, others])
    np.testing.assert_allclose(attend(device, query, key, value), wanted, rtol=1e-6)


def test_other_settings_leave_float32_to_other_kernels() -> None:
    driver: Any = open_driver("PYTHON")
    driver.target = replace(driver.target, tensor_cores=())
    case = CASES["one tile"]
    assert FORWARD not in [ast.arg.name for ast in kernels(case.attend(*case.tensors("PYTHON")))]


@pytest.mark.parametrize("name", ["one tile", "wide heads, a pair of tiles"])
def test_cuda_text(name: str) -> None:
    """Six products of parts for each product, each step from zero; sums that are not finite are computed once more."""
    texts = cuda_texts(CASES[name])
    for kernel, written in texts.items():
        text, products = " ".join(written.split()), PRODUCTS[kernel]
        assert text.count("part > 0);") == products
        assert text.count("part++) multiply_") == 6 * products
        assert text.count("__any_sync(") == products
        assert ("setmaxnreg" in text) == (name != "one tile" and kernel == FORWARD)
    compile_texts(texts)


@pytest.mark.parametrize("slope", [np.inf, np.nan, 1e36])
def test_slopes_that_parts_cannot_multiply(slope: float, device: str) -> None:
    """One slope of one result: its query alone has no finite gradient, and all keys of that head."""
    results = []
    for one in (device, "CPU"):
        given = Case((1, 2, 20, 16), (1, 2, 20, 16), dtype=F32).tensors(one)
        slopes = np.zeros((1, 2, 20, 16), np.float32)
        slopes[0, 1, 3, 5] = slope
        found = Tensor.scaled_dot_product_attention(*given).gradient(*given, gradient=Tensor(slopes, device=one))
        results.append(computed(found))
    for found, wanted in zip(*results):
        assert (np.isfinite(found[0, 0]) & np.isfinite(wanted[0, 0])).all()
        finite = np.isfinite(wanted)
        assert (np.isfinite(found) == finite).all()
        assert np.abs(found[finite] - wanted[finite]).max(initial=0) <= 3e-6 * np.abs(wanted[finite]).max(initial=0)

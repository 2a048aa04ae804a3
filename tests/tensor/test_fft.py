"""Fourier transforms against NumPy, for lengths of every kind; their gradients; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, fft, jit
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.tensor.complex.fourier import MAX_DENSE, convolution_length, first_factor, prime_factors
from tilewright.tensor.complex.tensor import ComplexTensor

GENERATOR = np.random.default_rng(5)


def normal(*shape: int, dtype: str = "float64") -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(dtype)


def complexes(*shape: int, dtype: str = "float64") -> np.ndarray:
    return normal(*shape, dtype=dtype) + 1j * normal(*shape, dtype=dtype)


def tensor_of(array: np.ndarray, **options: Any) -> Tensor:
    if np.iscomplexobj(array):
        return ComplexTensor(Tensor(array.real.copy(), **options), Tensor(array.imag.copy(), **options))
    return Tensor(array, **options)


def assert_close(found: Tensor, expected: np.ndarray, limit: float = 1e-13) -> None:
    assert found.shape == expected.shape
    scale = np.abs(expected).max(initial=0) or 1.0
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=limit * scale)


# 1, dense ones, powers, products, a prime above MAX_DENSE, its multiples, its square
LENGTHS = [1, 2, 3, 100, 129, 131, 262, 1024, 17161]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", LENGTHS)
def test_every_length(n: int) -> None:
    real, full = normal(2, n), complexes(2, n)
    assert_close(fft.fft(tensor_of(full)), np.fft.fft(full))
    assert_close(fft.ifft(tensor_of(full)), np.fft.ifft(full))
    assert_close(fft.rfft(tensor_of(real)), np.fft.rfft(real))
    half = np.fft.rfft(real)
    assert_close(fft.irfft(tensor_of(half), n), real)


@pytest.mark.parametrize("n", [64, 1000, 1031])
def test_float32_is_as_good_as_its_rounding(n: int) -> None:
    array = complexes(3, n, dtype="float32").astype(np.complex64)
    found = fft.fft(tensor_of(array))
    assert found.dtype.name == "complex64"
    expected = np.fft.fft(array.astype(np.complex128))
    assert np.linalg.norm(found.numpy() - expected) < 5e-7 * np.linalg.norm(expected)


def test_the_number_of_products_grows_with_n_log_n() -> None:
    """Elements times the sum of the factors: what the products of the stages take."""

    def work(n: int) -> int:
        factor = first_factor(n)
        if factor < n:
            return n // factor * work(factor) + factor * work(n // factor)
        return n * n if n <= MAX_DENSE else 2 * work(convolution_length(n))

    for n in (2**20, 10**6, 360360, 1000003, 2 * 524287, 131**2, 2**16 + 1):
        assert work(n) < 60 * n * np.log2(n), n
    assert prime_factors(360360) == (2, 2, 2, 3, 3, 5, 7, 11, 13)


NAMES = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]


@pytest.mark.parametrize("name", NAMES)
def test_one_axis_with_lengths_and_norms(name: str) -> None:
    array = normal(4, 5, 3) if name in ("rfft", "ihfft") else complexes(4, 5, 3)
    cases = [(None, -1, None), (6, 0, "backward"), (3, 1, "ortho"), (8, 1, "forward")]
    for n, axis, norm in cases:
        expected = getattr(np.fft, name)(array, n, axis, norm)
        assert_close(getattr(fft, name)(tensor_of(array), n, axis, norm), expected)
    assert_close(getattr(fft, name)(tensor_of(array), axis=0), getattr(np.fft, name)(array, axis=0))


SEVERAL: list[tuple[Any, Any]] = [(None, None), (None, (0, 2)), ((3, 8), (1, 0)), ((4, 4), (-2, -1))]


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize(("lengths", "axes"), SEVERAL)
def test_several_axes(name: str, lengths: Any, axes: Any) -> None:
    array = normal(3, 4, 5) if name == "rfftn" else complexes(3, 4, 5)
    expected = getattr(np.fft, name)(array, lengths, axes, "ortho")
    assert_close(getattr(fft, name)(tensor_of(array), lengths, axes, "ortho"), expected)


def test_two_axes() -> None:
    for name in ("fft2", "ifft2", "rfft2", "irfft2"):
        array = normal(2, 3, 4) if name == "rfft2" else complexes(2, 3, 4)
        assert_close(getattr(fft, name)(tensor_of(array)), getattr(np.fft, name)(array))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_and_shifts(n: int) -> None:
    np.testing.assert_allclose(fft.fftfreq(n, 0.5, dtype="float64").numpy(), np.fft.fftfreq(n, 0.5))
    np.testing.assert_allclose(fft.rfftfreq(n, 0.25, dtype="float64").numpy(), np.fft.rfftfreq(n, 0.25))
    array = normal(n, n + 1)
    for axes in (None, 0, (0, 1)):
        np.testing.assert_array_equal(fft.fftshift(Tensor(array), axes).numpy(), np.fft.fftshift(array, axes))
        np.testing.assert_array_equal(fft.ifftshift(Tensor(array), axes).numpy(), np.fft.ifftshift(array, axes))
    full = complexes(n)
    np.testing.assert_array_equal(fft.fftshift(tensor_of(full)).numpy(), np.fft.fftshift(full))


def test_real_and_integer_input() -> None:
    numbers = np.arange(6)
    assert_close(fft.fft(Tensor(numbers)), np.fft.fft(numbers), 1e-6)
    assert fft.fft(Tensor(numbers)).dtype.name == "complex64"
    assert fft.rfft(Tensor(numbers).half()).dtype.name == "complex64"
    assert fft.rfft(Tensor(numbers.astype(np.float64))).dtype.name == "complex128"
    array = normal(4)
    assert_close(fft.irfft(Tensor(array)), np.fft.irfft(array))


def test_other_devices(device: str) -> None:
    array = complexes(2, 12)
    assert_close(fft.fft(tensor_of(array, device=device)), np.fft.fft(array))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: fft.fft(x).abs().square().sum(),
        lambda x: (fft.rfft(x, norm="ortho").real * Tensor(np.arange(66.0))).sum(),
        lambda x: (fft.ifft(x).imag * Tensor(np.arange(131.0))).sum(),
        lambda x: fft.irfft(ComplexTensor(x, x * 2), 131).pow(3).sum(),
    ],
)
def test_gradients(call: Callable[[Tensor], Tensor]) -> None:
    array, direction = normal(131), normal(131)
    x = Tensor(array, requires_grad=True)
    (gradient,) = call(x).gradient(x)
    step = 1e-5
    slope = (call(Tensor(array + step * direction)).item() - call(Tensor(array - step * direction)).item()) / (2 * step)
    assert (gradient.numpy() * direction).sum() == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_jit_replays_it() -> None:
    """Also where the tables of the transform are first made inside of the call."""

    @jit
    def filtered(x: Tensor) -> Tensor:
        spectrum = fft.rfft(x)
        return fft.irfft(ComplexTensor(spectrum.real * 2, spectrum.imag * 2), 90).realize()

    for _ in range(5):
        array = normal(90)
        np.testing.assert_allclose(filtered(Tensor(array).realize()).numpy(), 2 * array, atol=1e-12)
    assert filtered.last_reason == ""


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: fft.fft(Tensor(1.0)), ShapeError, "0-d"),
    (lambda: fft.fft(Tensor.ones(3), 0), ShapeError, "transform of 0"),
    (lambda: fft.fft(Tensor.zeros(0)), ShapeError, "transform of 0"),
    (lambda: fft.irfft(Tensor.ones(1)), ShapeError, "transform of 0"),
    (lambda: fft.fft(Tensor.ones(3), norm="none"), ShapeError, "norm='none'"),
    (lambda: fft.rfft(ComplexTensor(Tensor.ones(3), Tensor.ones(3))), DTypeError, "complex64"),
    (lambda: fft.fftn(Tensor.ones(3, 3), (2,), (0, 1)), ShapeError, "a length for each axis"),
    (lambda: fft.fftn(Tensor.ones(3, 3), dim=(0, 0)), ShapeError, "twice"),
    (lambda: fft.fft(Tensor.ones(3), dim=2), ShapeError, "out of range"),
    (lambda: fft.fftfreq(0), ShapeError, "n=0"),
]


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_mistakes_are_named_at_the_line(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    assert caught.value.location is not None
    assert caught.value.location[0] == __file__


def test_batches_without_elements() -> None:
    assert fft.fft(Tensor.zeros(0, 4)).shape == (0, 4)
    assert fft.rfft(Tensor.zeros(0, 4)).numpy().shape == (0, 3)
    assert fft.irfft(Tensor.zeros(0, 4)).numpy().shape == (0, 6)


def test_every_name_of_the_module_is_documented() -> None:
    assert fft.__all__ == sorted(fft.__all__)
    assert [name for name in fft.__all__ if not getattr(fft, name).__doc__] == []

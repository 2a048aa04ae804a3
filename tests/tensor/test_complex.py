"""Complex numbers as pairs of real tensors, beside NumPy: functions on all sides of their branch cuts, arithmetic,
reductions, shapes, gradients; and what complex numbers do not have is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.errors import DTypeError, UnsupportedError
from tilewright.tensor.complex import functions as complex_functions
from tilewright.tensor.complex.tensor import ComplexTensor, as_complex, complex64, complex128

RNG = np.random.default_rng(0)
SPREAD = np.concatenate(
    [(RNG.standard_normal(60) + 1j * RNG.standard_normal(60)) * scale for scale in (1e-3, 1.0, 10.0, 1e5)]
)
# On the axes, where the sign of a zero says which side of a branch cut a number lies on.
ON_AXES = np.array(
    [complex(x, y) for x in (-2.0, -0.5, 0.0, 0.5, 2.0) for y in (0.0, -0.0)] + [0.5j, -0.5j, 2j, -2j], np.complex128
)
NUMPY_NAMES = {name: f"arc{name[1:]}" for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(complex_functions.FUNCTIONS))
def test_functions_are_those_of_numpy(name: str) -> None:
    values = np.concatenate([SPREAD, ON_AXES])
    with np.errstate(all="ignore"):
        expected = getattr(np, NUMPY_NAMES.get(name, name))(values)
    found = getattr(as_complex(values), name)().numpy()
    known = np.isfinite(expected)
    np.testing.assert_allclose(found[known], expected[known], rtol=1e-12, atol=1e-15)
    assert found.dtype == np.complex128


def test_arithmetic() -> None:
    a, b = SPREAD[60:120], SPREAD[120:180]
    x, y = as_complex(a), as_complex(b)
    for found, expected in (
        (x + y, a + b),
        (x - y, a - b),
        (x * y, a * b),
        (x / y, a / b),
        (x**y, a**b),
        (2 - x, 2 - a),
        (1j / x, 1j / a),
        (Tensor(b.real) * x, b.real * a),
        (Tensor(b.real) - x, b.real - a),
        (-x, -a),
        (x.conj(), a.conj()),
        (x.abs(), np.abs(a)),
        (x.angle(), np.angle(a)),
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert (x == y).numpy().tolist() == (a == b).tolist()


def test_division_does_not_overflow() -> None:
    large = np.array([3e30 + 4e30j, 1e-30 - 2e-30j], np.complex64)
    np.testing.assert_allclose((as_complex(large) / as_complex(large)).numpy(), [1, 1], rtol=1e-6)
    np.testing.assert_allclose(as_complex(large).abs().numpy(), np.abs(large.astype(np.complex128)), rtol=1e-6)


@pytest.mark.parametrize("shape", [(5, 4), (1, 3), (0, 3), (7,), ()])
def test_reductions_and_products(shape: tuple[int, ...]) -> None:
    values = RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)
    x = as_complex(values)
    np.testing.assert_allclose(x.sum().numpy(), values.sum(), rtol=1e-12)
    np.testing.assert_allclose(x.prod().numpy(), values.prod(), rtol=1e-12)
    if shape:
        np.testing.assert_allclose(x.sum(0).numpy(), values.sum(0), rtol=1e-12)
        np.testing.assert_allclose(x.prod(0).numpy(), values.prod(0), rtol=1e-12)
        np.testing.assert_allclose(x.cumsum(0).numpy(), values.cumsum(0), rtol=1e-12)
        np.testing.assert_allclose(x.cumprod(0).numpy(), values.cumprod(0), rtol=1e-12)
    if len(shape) == 2:
        np.testing.assert_allclose((x @ x.mT).numpy(), values @ values.T, rtol=1e-12, atol=1e-15)


def test_shapes_and_writing() -> None:
    values = RNG.standard_normal((2, 3, 4)) + 1j * RNG.standard_normal((2, 3, 4))
    x = as_complex(values)
    np.testing.assert_array_equal(x.permute((2, 0, 1)).reshape((4, 6)).numpy(), values.transpose(2, 0, 1).reshape(4, 6))
    np.testing.assert_array_equal(x[:, 1:, ::2].numpy(), values[:, 1:, ::2])
    np.testing.assert_array_equal(x.cat(x, dim=1).numpy(), np.concatenate([values, values], 1))
    x[0, 1] = 5 - 2j
    values[0, 1] = 5 - 2j
    np.testing.assert_array_equal(x.numpy(), values)
    assert x[0, 1, 0].item() == 5 - 2j
    assert complex(x[0, 1, 0]) == 5 - 2j


def test_dtypes() -> None:
    assert as_complex(np.zeros(2, np.complex64)).dtype is complex64
    assert as_complex([1 + 2j]).dtype is complex128
    assert ComplexTensor([1.0], [2.0]).dtype is complex64
    assert ComplexTensor([1.0]).cast("complex128").dtype is complex128
    assert (ComplexTensor([1.0]) * 2j).dtype is complex64


def test_gradients_go_to_both_parts() -> None:
    real, imag = Tensor([3.0], requires_grad=True), Tensor([4.0], requires_grad=True)
    ComplexTensor(real, imag).abs().sum().backward()
    np.testing.assert_allclose(real.grad.numpy(), [0.6], rtol=1e-6)
    np.testing.assert_allclose(imag.grad.numpy(), [0.8], rtol=1e-6)


def test_what_complex_numbers_do_not_have_is_refused() -> None:
    x = as_complex([1 + 2j, 3j])
    with pytest.raises(DTypeError, match="no order"):
        _ = x < x
    with pytest.raises(DTypeError, match="imaginary part"):
        x.cast("float32")
    with pytest.raises(UnsupportedError, match="real numbers only"):
        x.sort()
    with pytest.raises(DTypeError, match="not a float"):
        float(x[0])
    assert "1.+2.j" in repr(x)

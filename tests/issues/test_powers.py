"""Powers at the edges: values as C's pow (IEEE 754), gradients y * x**(y-1) and x**y * log(x) as torch has them. They
were selected from cases, whose own slopes showed: 0 at negative bases, NaN at infinity, nothing at all for x**0."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor

Array = np.ndarray[Any, Any]
BASES = (-math.inf, -3.5, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.5, math.inf, math.nan)
EXPONENTS = (-math.inf, -66.0, -3.0, -2.0, -1.5, -1.0, -0.5, -0.3, -0.0, 0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 65.0)
EXPONENTS += (math.inf, math.nan)
PAIRS = np.array(list(itertools.product(BASES, EXPONENTS)), dtype=np.float32)


def power(x: Array, y: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)


def slopes(x: Array, y: Array) -> tuple[Array, Array]:
    """As torch computes them."""
    with np.errstate(all="ignore"):
        by_base = np.where(y == 0, 0, y * power(x, y - 1))
        by_exponent = np.where((x == 0) & (y >= 0), 0, power(x, y) * np.log(x))
    return by_base, by_exponent


def assert_same(found: Array, wanted: Array) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-5)
    defined = ~np.isnan(wanted)
    assert (np.signbit(found) == np.signbit(wanted))[defined].all()


def test_values_and_gradients_of_a_tensor_to_the_power_of_a_tensor() -> None:
    x, y = PAIRS.T
    base, exponent = Tensor(x, requires_grad=True), Tensor(y, requires_grad=True)
    result = base**exponent
    assert_same(result.numpy(), power(x, y))
    for found, wanted in zip(result.sum().gradient(base, exponent), slopes(x, y), strict=True):
        assert_same(found.numpy(), wanted)


def test_a_number_as_the_exponent_is_no_other() -> None:
    x = np.array(BASES, dtype=np.float32)
    base = Tensor(x, requires_grad=True)
    found: list[Tensor] = []
    exponents = (-math.inf, -3.0, -1.5, -0.5, -0.0, 0.3, 0.5, 3.0, 65.0, math.inf, math.nan)
    for exponent in exponents:
        result = base**exponent
        found += [result, *result.sum().gradient(base)]
    found[0].realize(*found[1:])
    for number, exponent in enumerate(exponents):
        y = np.full_like(x, exponent)
        assert_same(found[2 * number].numpy(), power(x, y))
        assert_same(found[2 * number + 1].numpy(), slopes(x, y)[0])


def test_a_number_as_the_base_is_no_other() -> None:
    y = np.array(EXPONENTS, dtype=np.float32)
    exponent = Tensor(y, requires_grad=True)
    found: list[Tensor] = []
    bases = (-math.inf, -2.0, -0.0, 0.5, 1.0, math.inf, math.nan)
    for base in bases:
        result = base**exponent
        found += [result, *result.sum().gradient(exponent)]
    found[0].realize(*found[1:])
    for number, base in enumerate(bases):
        x = np.full_like(y, base)
        assert_same(found[2 * number].numpy(), power(x, y))
        assert_same(found[2 * number + 1].numpy(), slopes(x, y)[1])


def test_the_power_0_has_a_gradient_of_zeros_wherever_the_base_lies() -> None:
    for base in (Tensor([1.0, math.nan]), Tensor([1.0, 2.0]).shard(("CPU:0", "CPU:1"), 0)):
        result = base**0
        assert result.sum().gradient(base)[0].tolist() == [0.0, 0.0]
        assert result.tolist() == [1.0, 1.0]
    weight = Tensor([3.0], requires_grad=True)
    (weight**0).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [0.0]


def test_gradients_of_gradients_and_short_floats() -> None:
    x = Tensor([2.0, 3.0, 0.5], requires_grad=True)
    (first,) = (x**2.5).sum().gradient(x)
    (second,) = first.sum().gradient(x)
    np.testing.assert_allclose(second.numpy(), 2.5 * 1.5 * np.sqrt(x.numpy()), rtol=1e-5)
    for dtype in ("float16", "bfloat16", "float64"):
        short = Tensor([4.0, 0.25], dtype=dtype, requires_grad=True)
        (slope,) = (short**-0.5).sum().gradient(short)
        assert slope.float().tolist() == [-0.0625, -4.0]


def test_huge_and_whole_exponents_of_integers() -> None:
    assert (Tensor([2, 3]) ** 0).tolist() == [1, 1]
    assert (Tensor([2, 3]) ** 40).tolist() == np.array([2, 3], dtype=np.int32).__pow__(40).tolist()
    assert (Tensor([1.0, 2.0]) ** (10**400)).tolist() == [1.0, math.inf]


@pytest.mark.torch
def test_torch_agrees() -> None:
    import torch

    x, y = PAIRS.T
    theirs = [torch.tensor(part, requires_grad=True) for part in (x, y)]
    ours = [Tensor(part, requires_grad=True) for part in (x, y)]
    expected = torch.autograd.grad((theirs[0] ** theirs[1]).sum(), theirs)
    for found, wanted in zip((ours[0] ** ours[1]).sum().gradient(*ours), expected, strict=True):
        assert_same(found.numpy(), wanted.numpy())

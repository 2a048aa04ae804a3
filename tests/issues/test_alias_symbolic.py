"""What the symbolic tests of another library found, run against an alias of it: values of one variable that were
computed together although nothing asked for that; convolutions, pools, `linspace` and slices with a step along an axis
that may have one element; minima of two variables that could not be ordered; a variable as a tensor, and as a step of
`arange`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright import Context, Tensor, Variable, jit
from tilewright.base.errors import ShapeError, UnsupportedError


def size(value: int, name: str = "n", least: int = 1, greatest: int = 10) -> int:
    return Variable(name, least, greatest).bind(value)


# ---------------------------------------------------------------- two values of a variable


def test_lazy_values_of_several_lengths_are_computed_apart() -> None:
    data = np.arange(10, dtype=np.float32)
    x = Tensor(data).realize()
    first, second = x[: size(2)] + 1, x[: size(5)] * 2
    Tensor.realize(first, second)
    assert first.tolist() == [1, 2]
    assert second.tolist() == [0, 2, 4, 6, 8]
    total = sum((x[: size(n)].sum() for n in range(1, 9)), Tensor(0.0))
    assert total.item() == sum(data[:n].sum() for n in range(1, 9))
    # In memory already, each of its own length.
    assert (first.sum() + second.sum()).item() == 23


def test_updates_at_several_positions_without_a_run_between_them() -> None:
    row = Tensor.zeros(11).contiguous().realize()
    before = row + 0
    for position in (3, 1, 7):
        row[size(position) : size(position) + 1] = float(position) + row[: size(position + 1)].sum()
    assert row.tolist() == [0, 1, 0, 3, 0, 0, 0, 11, 0, 0, 0]
    assert before.tolist() == [0] * 11


def test_an_update_does_not_fail_for_lengths_of_others() -> None:
    """`first` and `second` read what the update overwrites, and have to be told from each other."""
    x = Tensor.arange(10).contiguous().realize()
    first, second = x[: size(2)] + 1, x[: size(5)] * 2
    x.assign(x + 10)
    third = (x[: size(7)] + 0).sum()
    assert third.item() == sum(range(10, 17))
    assert first.tolist() == [1, 2]
    assert second.tolist() == [0, 2, 4, 6, 8]
    assert x.tolist() == list(range(10, 20))


def test_random_numbers_of_several_lengths() -> None:
    Tensor.manual_seed(3)
    first = Tensor.rand(3, 10)[:, : size(2)] + 1
    second = Tensor.rand(3, 10)[:, : size(5)] + 2
    assert second.realize().shape[0] == 3
    assert 6 <= first.sum().item() <= 12


def test_shapes_that_disagree_stay_an_error() -> None:
    x = Tensor.arange(10).contiguous().realize()
    with pytest.raises(ShapeError, match=r"n=2.*n=3"):
        x[: size(2)] + x[: size(3)]
    with pytest.raises(ShapeError, match="n is bound to"):
        x[: size(2)].cat(x[: size(3)])


def test_a_jitted_function_still_refuses_two_values() -> None:
    f = jit(lambda a, b: a.sum() + b.sum())
    x = Tensor.arange(10).contiguous().realize()
    for n in (2, 3, 4, 5):
        assert f(x[: size(n)], x[: size(n)]).item() == n * (n - 1)
    with pytest.raises(ShapeError, match="n is bound to"):
        f(x[: size(2)], x[: size(3)])


# ---------------------------------------------------------------- axes that may have one element

IMAGE = np.random.default_rng(0).standard_normal((1, 2, 12, 12)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((3, 2, 3, 3)).astype(np.float32)
TRANSPOSED = np.random.default_rng(2).standard_normal((2, 3, 3, 2)).astype(np.float32)
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "conv2d-padding": lambda x: x.conv2d(Tensor(WEIGHT), padding=1),
    "conv2d-stride": lambda x: x.conv2d(Tensor(WEIGHT), padding=3, stride=6),
    "conv2d-dilation": lambda x: x.conv2d(Tensor(WEIGHT), padding=2, stride=2, dilation=2),
    "conv_transpose2d": lambda x: x.conv_transpose2d(Tensor(TRANSPOSED), stride=(1, 2)),
    "max_pool2d": lambda x: x.max_pool2d(2, padding=1),
    "max_pool2d-ceil": lambda x: x.max_pool2d(3, stride=2, padding=1, ceil_mode=True),
    "avg_pool2d": lambda x: x.avg_pool2d(3, stride=1, padding=1),
    "avg_pool2d-ceil": lambda x: x.avg_pool2d(2, padding=1, ceil_mode=True, count_include_pad=False),
    "step": lambda x: x[:, :, ::2, ::3],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPERATIONS)
def test_windows_along_an_axis_that_may_have_one_element(name: str) -> None:
    operation, image = OPERATIONS[name], Tensor(IMAGE).realize()
    for height, width in ((1, 1), (2, 7), (9, 10)):
        expected = operation(image[:, :, :height, :width]).numpy()
        found = operation(image[:, :, : size(height, "h"), : size(width, "w")]).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_convolution_over_a_symbolic_image() -> None:
    found = []
    for height, width in ((4, 7), (size(4, "h"), size(7, "w"))):
        image, weight = Tensor(IMAGE, requires_grad=True), Tensor(WEIGHT, requires_grad=True)
        (image[:, :, :height, :width].conv2d(weight, padding=1, stride=2) ** 2).sum().backward()
        found.append((image.grad.numpy(), weight.grad.numpy()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_linspace_of_a_symbolic_length(count: int) -> None:
    expected = Tensor.linspace(-1, 3, count, dtype="float64").tolist()
    assert np.allclose(Tensor.linspace(-1, 3, size(count), dtype="float64").tolist(), expected, rtol=1e-15)
    with Context(DEVICE="PYTHON"):
        assert np.allclose(Tensor.linspace(-1, 3, size(count)).tolist(), expected)


def test_linspace_is_not_fixed_by_a_jitted_function() -> None:
    f = jit(lambda n: (Tensor.linspace(0, 1, n) * 2).sum(), symbolic={"n": (1, 16)})
    assert np.allclose([f(n).item() for n in (4, 4, 9, 16, 1)], [4, 4, 9, 16, 0])


def test_padding_of_either_sign_has_the_size_that_it_says() -> None:
    x = Tensor.arange(8).contiguous().realize()
    for count in (1, 4, 7, 8):
        n = size(count, "n", 1, 8)
        grown = x[:n].cat(Tensor([9])).pad((0, 7 - n))
        assert grown.shape == (8,)
        assert grown.tolist() == ([*range(count), 9] + [0] * 8)[:8]
        assert x.pad((n - 4, 0), value=5).tolist() == x.pad((count - 4, 0), value=5).tolist()


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_variable_is_a_tensor(device: str) -> None:
    with Context(DEVICE=device):
        assert Tensor(size(3)).item() == 3
        assert Tensor(size(3) * 2 + 1, dtype="float32").tolist() == 7.0
        assert (Tensor.ones(10)[: size(4)] * Tensor(size(4))).sum().item() == 16
    assert Tensor(size(2**40, "wide", 0, 2**41)).dtype.name == "int64"


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_a_range_with_a_step(step: int) -> None:
    for stop in (0, 1, 2, 6, 7, 13):
        end, stride = size(stop, "end", 0, 20), size(step, "step", 1, 7)
        assert Tensor.arange(0, end, stride).tolist() == list(range(0, stop, step))
        assert Tensor.arange(0, end, step).tolist() == list(range(0, stop, step))
        assert Tensor.arange(end, 0, -stride).tolist() == list(range(stop, 0, -step))
        assert Tensor.arange(end, -1, -step, dtype="float32").tolist() == list(range(stop, -1, -step))
    with pytest.raises(ShapeError, match="a step of step=1, which may be 0"):
        Tensor.arange(0, 10, size(1, "step", 0, 7))
    with pytest.raises(UnsupportedError, match="arange"):
        Tensor.arange(0, size(3), 0.5)


# ---------------------------------------------------------------- what bounds tell


def test_minima_and_maxima_of_two_variables_are_ordered() -> None:
    x = Tensor.arange(10).contiguous().realize()
    joined = x[: size(2)].cat(x[: size(5, "m")])
    assert joined[:4].tolist() == [0, 1, 0, 1]
    assert joined[:100].tolist() == [0, 1, 0, 1, 2, 3, 4]
    with pytest.raises(ShapeError, match="not the same for all values"):
        assert size(2) + size(5, "m") > 4


def test_a_common_factor_of_a_sum_is_a_factor_of_the_product() -> None:
    n, m = size(3), size(4, "m")
    assert n * (4 * m + 8) == 4 * n * (m + 2)
    assert (6 * n - 9) * (4 * m + 8) == 12 * ((2 * n - 3) * (m + 2))
    assert n * (4 * m + 8) != n * (4 * m + 9)
    assert int((6 * n - 9) * (4 * m + 8)) == 9 * 24

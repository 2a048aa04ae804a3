"""Contractions that read or store merged axes, and windows that lie outside an image: they took 5 to 80 times as long
as others on the CPU. What their kernels look like, and values beside NumPy or torch's definition."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.issues.test_cpu_cliffs import has_affine_accesses, kernels_of
from tests.issues.test_window_cliffs import correlated, whole_numbers
from tilewright import Tensor
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import prepare_kernel

Array = np.ndarray
SIDE = 12


def summed_axes(ast: UOp) -> tuple[UOp, ...]:
    return tuple(view_kernel(prepare_kernel(ast)).reduce_axes)


def tensor_of(random: np.random.Generator, *shape: int) -> Tensor:
    return Tensor(whole_numbers(random, *shape)).realize()


def pixels_of_channels(x: Array, factor: int) -> Array:
    n, c, h, w = x.shape
    parts = x.reshape(n, c // factor**2, factor, factor, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // factor**2, h * factor, w * factor)


# ---------------------------------------------------------------- windows over merged axes


@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (8, 1), (8, 8)])
def test_windows_over_pixels_that_were_channels_read_a_stored_image(channels: int, groups: int) -> None:
    """Each element of a window was found by divisions: 35 ms where 1 does."""
    random = np.random.default_rng(0)
    x, weight = tensor_of(random, 2, 32, SIDE, SIDE), tensor_of(random, channels, 8 // groups, 3, 3)
    made = x.pixel_shuffle(2).conv2d(weight, groups=groups, padding=1)
    upstream = whole_numbers(random, *made.shape)
    slope = made.gradient(weight, gradient=Tensor(upstream).realize())[0]
    for value in (made, slope):
        first, *others = kernels_of(value)
        assert not summed_axes(first)
        assert all(map(has_affine_accesses, others))
    image = pixels_of_channels(x.numpy(), 2)
    if groups == 1:
        np.testing.assert_array_equal(made.numpy(), correlated(image, weight.numpy(), 1, 1, 1))
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for u, v in itertools.product(range(3), repeat=2):
        part = padded[:, :, u : u + 2 * SIDE, v : v + 2 * SIDE]
        expected = np.einsum("nohw,nchw->oc", upstream, part)
        expected = expected if groups == 1 else np.diag(expected)[:, None]
        np.testing.assert_array_equal(slope.numpy()[:, :, u, v], expected)


@pytest.mark.parametrize(
    "windows",
    [
        lambda x: x.pixel_shuffle(2).avg_pool2d(3, 1, padding=1),
        lambda x: x.interpolate(scale_factor=2.0, mode="nearest").avg_pool2d(3, 1, padding=1),
        lambda x: x[:, :, :10, :11].reshape(2, 32, 110).avg_pool1d(5, 1, padding=2),
    ],
)
def test_means_of_windows_over_merged_axes_read_a_stored_image(windows: Callable[[Tensor], Tensor]) -> None:
    x = tensor_of(np.random.default_rng(0), 2, 32, SIDE, SIDE)
    asts = kernels_of(windows(x))
    assert len(asts) == 2
    assert has_affine_accesses(asts[-1])


def test_a_single_use_of_merged_axes_needs_no_stored_image() -> None:
    x = tensor_of(np.random.default_rng(0), 2, 32, SIDE, SIDE)
    assert len(kernels_of(x.pixel_shuffle(2).conv2d(Tensor.empty(5, 8, 1, 1)))) <= 2
    assert len(kernels_of(x.pixel_shuffle(2).sum(1))) == 1


# ---------------------------------------------------------------- results in merged axes


@pytest.mark.parametrize(("factor", "window"), [(2, 3), (2, 1), (4, 3)])
def test_sums_are_stored_before_their_channels_become_pixels(factor: int, window: int) -> None:
    """Adjacent results were sums of other channels: vectors of two of them, padded to 16; 85 ms where 1 does."""
    random = np.random.default_rng(0)
    x, weight = tensor_of(random, 2, 4, 24, 24), tensor_of(random, 24, 4 * factor**2, window, window)
    made = x.pixel_unshuffle(factor).conv2d(weight, padding=window // 2)
    upstream = whole_numbers(random, *made.shape)
    slope = made.gradient(x, gradient=Tensor(upstream).realize())[0]
    sums, moved = kernels_of(slope)
    assert summed_axes(sums)
    assert not summed_axes(moved)
    flipped = weight.numpy()[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    expected = pixels_of_channels(correlated(upstream, flipped, 1, 1, window // 2), factor)
    np.testing.assert_array_equal(slope.numpy(), expected)


# ---------------------------------------------------------------- windows outside an image


def longest_loop(asts: list[UOp]) -> int:
    return max(size_of(axis) for ast in asts for axis in summed_axes(ast))


@pytest.mark.parametrize(("gap", "taps"), [(4, 3), (6, 3), (11, 3), (12, 1), (18, 1)])
def test_gradients_of_wide_gaps_iterate_over_the_taps_that_reach_the_image(gap: int, taps: int) -> None:
    """Of a fourth, padded tap the mask was known to be false, and each iteration asked it: 24 ms where 1 does."""
    random = np.random.default_rng(0)
    x, weight = tensor_of(random, 1, 2, SIDE, SIDE), tensor_of(random, 2, 2, 3, 3)
    made = x.conv2d(weight, padding=gap, dilation=gap)
    upstream = whole_numbers(random, *made.shape)
    slope = made.gradient(x, gradient=Tensor(upstream).realize())[0]
    assert longest_loop(kernels_of(slope)) <= max(taps, 2)
    flipped = weight.numpy()[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    np.testing.assert_array_equal(slope.numpy(), correlated(upstream, flipped, 1, gap, gap))
    np.testing.assert_array_equal(made.numpy(), correlated(x.numpy(), weight.numpy(), 1, gap, gap))


@pytest.mark.parametrize("is_mean_first", [False, True])
def test_a_sum_per_channel_is_not_in_the_kernel_of_windows(is_mean_first: bool) -> None:
    """The slope of an image from a branch of its mean and from a convolution: 72 ms where 1 does."""
    random = np.random.default_rng(0)
    x = tensor_of(random, 1, 48, 16, 16).requires_grad_(True)
    branch, weight = tensor_of(random, 8, 48, 1, 1), tensor_of(random, 8, 48, 3, 3)
    mean = x.mean((2, 3), keepdim=True).conv2d(branch).expand(1, 8, 16, 16)
    wide = x.conv2d(weight, padding=2, dilation=2)
    parts = (mean, wide) if is_mean_first else (wide, mean)
    joined = parts[0].cat(parts[1], dim=1)
    upstream = whole_numbers(random, *joined.shape)
    slope = joined.gradient(x, gradient=Tensor(upstream).realize())[0]
    for ast in kernels_of(slope):
        assert len({axis.arg.id[0] for axis in summed_axes(ast)}) <= 3, "a kernel has the loops of both branches"
    of_mean, of_wide = (upstream[:, :8], upstream[:, 8:]) if is_mean_first else (upstream[:, 8:], upstream[:, :8])
    flipped = weight.numpy()[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    expected = correlated(of_wide, flipped, 1, 2, 2)
    expected += np.einsum("nohw,oc->nc", of_mean, branch.numpy()[:, :, 0, 0])[:, :, None, None] / 256
    np.testing.assert_allclose(slope.numpy(), expected, atol=1e-4)


# ---------------------------------------------------------------- sums of gathered rows


@pytest.mark.parametrize(("rows", "width"), [(2000, 100), (6000, 40), (1250, 48)])
def test_parts_of_a_sum_of_gathered_rows_are_whole_rows(rows: int, width: int) -> None:
    """Parts of other lengths divide each position to find its row: 0.6 ms where 0.02 does."""
    random = np.random.default_rng(0)
    table = tensor_of(random, 50, width)
    index = random.integers(0, 50, rows)
    made = table[Tensor(index).realize()].sum()
    first = prepare_kernel(kernels_of(made)[0])
    assert not any(node.op in (Ops.IDIV, Ops.MOD) for node in toposort(first))
    assert made.item() == table.numpy()[index].sum()


# ---------------------------------------------------------------- values that several sums read in their own orders


def test_a_value_is_not_transposed_for_one_of_two_sums() -> None:
    """Pairs as vectors of features, summed over either of two axes: read in its order by one product and across it by
    another, the slope of one was stored transposed, and the other product had no vectors: 16 ms where 1 does."""
    random = np.random.default_rng(0)
    left, right = (tensor_of(random, 24, 24, 32).requires_grad_(True) for _ in range(2))
    given = whole_numbers(random, 2, 24, 24, 32)
    products = Tensor.einsum("ikd,jkd->ijd", left, right), Tensor.einsum("kid,kjd->ijd", left, right)
    total = sum((each * Tensor(of).realize()).sum() for each, of in zip(products, given, strict=True))
    slopes = total.gradient(left, right)
    for ast in kernels_of(*slopes):
        view = view_kernel(prepare_kernel(ast))
        last = next(axis for axis in reversed(view.axes) if axis not in view.reduce_axes)
        summed = [access for access in view.loads if access.ranges & {*view.reduce_axes} and last in access.ranges]
        assert all(stride(access, last) == 1 for access in summed)
    x, y, (first, second) = left.numpy(), right.numpy(), given
    expected = np.einsum("ijd,jkd->ikd", first, y) + np.einsum("ijd,kjd->kid", second, y)
    np.testing.assert_array_equal(slopes[0].numpy(), expected)
    expected = np.einsum("ijd,ikd->jkd", first, x) + np.einsum("ijd,kid->kjd", second, x)
    np.testing.assert_array_equal(slopes[1].numpy(), expected)

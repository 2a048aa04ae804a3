"""Windows that took many times as long as others on the CPU: behind an upsampling, with gaps at a stride, over images
stored channels last, and the greatest elements of windows and of rows. What their kernels look like, and values beside
NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.issues.test_cpu_cliffs import has_affine_accesses, kernels_of
from tests.kernel.kernels import axis, load, param, store, summed
from tests.kernel.test_transforms import check
from tilewright import Tensor, dtypes
from tilewright.backends.cpu.device import cpu_target
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates.choose import choose_opts
from tilewright.kernel.transforms.halo import without_store_mask
from tilewright.kernel.transforms.stage import box_of, operands

Array = np.ndarray


def whole_numbers(random: np.random.Generator, *shape: int) -> Array:
    """Floats whose sums are exact in any order."""
    return random.integers(-4, 5, shape).astype(np.float32)


def correlated(x: Array, weight: Array, step: int, gap: int, padding: int) -> Array:
    """A convolution, one element of the window after the other."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    window = weight.shape[-1]
    count = [(size - gap * (window - 1) - 1) // step + 1 for size in x.shape[2:]]
    found = np.zeros((x.shape[0], weight.shape[0], *count), np.float32)
    for u, v in itertools.product(range(window), repeat=2):
        part = x[:, :, u * gap :, v * gap :][:, :, ::step, ::step][:, :, : count[0], : count[1]]
        found += np.einsum("nchw,oc->nohw", part, weight[:, :, u, v])
    return found


# ---------------------------------------------------------------- rows that no vector divides


@pytest.mark.parametrize(("window", "step", "columns"), [(5, 1, 28), (3, 1, 29), (3, 2, 21), (4, 1, 17)])
def test_windows_at_the_end_of_a_padded_row_are_in_one_box(window: int, step: int, columns: int) -> None:
    """The mask of a padded row set its windows apart from their elements: each was copied, and the copy gathered."""
    r, x, k = axis(3, 0), axis(columns, 1), axis(window, 2, AxisType.REDUCE)
    width = (columns - 1) * step + window
    product = load(param(1, 3 * width), r * width + x * step + k) * load(param(2, window), k)
    place = store(param(0, 3 * columns), r * columns + x, summed(product, k))
    ast = UOp(Ops.SINK, dtypes.void, (place,), KernelInfo("windows"))
    padded = view_kernel(apply_opt(ast, Opt(OptOps.PADTO, 1, 16)))
    box = without_store_mask(padded, operands(padded)[0])
    assert len(box.src[2].ranges) == 2, "the end of the windows is that of their elements"
    assert box_of(padded, padded.axes[0], operands(padded)[0]) <= width + 16 * step
    check(ast, (Opt(OptOps.PADTO, 1, 16), Opt(OptOps.STAGE, 0, 0)), ("PYTHON", "CPU"))
    check(ast, (Opt(OptOps.PADTO, 1, 16), Opt(OptOps.UPCAST, 1, 16), Opt(OptOps.STAGE, 0, 0)), ("PYTHON", "CPU"))


# ---------------------------------------------------------------- behind an upsampling


def repeated(x: Tensor, times: int) -> Tensor:
    n, c, h, w = x.shape
    return x.reshape(n, c, h, 1, w, 1).expand(n, c, h, times, w, times).reshape(n, c, times * h, times * w)


@pytest.mark.parametrize(("times", "window"), [(2, 3), (3, 3), (2, 5), (4, 3)])
@pytest.mark.parametrize("mode", ["views", "interpolate"])
def test_the_gradient_behind_an_upsampling_loops_over_the_window(times: int, window: int, mode: str) -> None:
    """The padding that repeats a window to take it apart is not iterated over."""
    random, (n, c, o, side) = np.random.default_rng(0), (2, 3, 4, 6)
    given = whole_numbers(random, o, c, window, window)
    upstream = whole_numbers(random, n, o, times * side, times * side)
    x = Tensor(np.zeros((n, c, side, side), np.float32)).realize()
    wide = repeated(x, times) if mode == "views" else x.interpolate((times * side, times * side), mode="nearest")
    convolved = wide.conv2d(Tensor(given).realize(), padding=window // 2)
    (found,) = convolved.gradient(x, gradient=Tensor(upstream).realize())
    for ast in kernels_of(found):
        view = view_kernel(prepare_kernel(ast))
        assert {size_of(axis) for axis in view.reduce_axes} <= {times, window, o}
    flipped = given[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    whole = correlated(upstream, flipped, 1, 1, window // 2)
    want = whole.reshape(n, c, side, times, side, times).sum((3, 5))
    np.testing.assert_array_equal(found.numpy(), want)


@pytest.mark.parametrize("mode", ["views", "interpolate"])
def test_a_contraction_reads_repeated_elements_from_memory(mode: str) -> None:
    random = np.random.default_rng(0)
    x, weight = whole_numbers(random, 2, 8, 12, 12), whole_numbers(random, 24, 8, 3, 3)
    image = Tensor(x).realize()
    wide = repeated(image, 2) if mode == "views" else image.interpolate((24, 24), mode="nearest")
    made = wide.conv2d(Tensor(weight).realize(), padding=1)
    kernels = kernels_of(made)
    assert len(kernels) == 2
    assert has_affine_accesses(kernels[-1])
    np.testing.assert_array_equal(made.numpy(), correlated(x.repeat(2, 2).repeat(2, 3), weight, 1, 1, 1))


# ---------------------------------------------------------------- windows with gaps at a stride


@pytest.mark.parametrize(("window", "step", "gap"), [(5, 3, 2), (5, 2, 3), (7, 3, 2)])
def test_padded_windows_with_gaps_at_a_stride_are_read_from_a_box(window: int, step: int, gap: int) -> None:
    """Neither the stride nor the gap divides the other: no loop has stride 1 in the box."""
    random, padding = np.random.default_rng(0), gap * (window // 2)
    x, weight = whole_numbers(random, 5, 96, 28, 28), whole_numbers(random, 16, 96, window, window)
    made = Tensor(x).realize().conv2d(Tensor(weight).realize(), None, 1, step, gap, padding)
    (ast,) = kernels_of(made)
    chosen = choose_opts(view_kernel(prepare_kernel(ast), cpu_target()))
    assert sum(opt.op is OptOps.STAGE for opt in chosen) == 2
    np.testing.assert_array_equal(made.numpy(), correlated(x, weight, step, gap, padding))


# ---------------------------------------------------------------- images stored channels last


@pytest.mark.parametrize(("channels", "window", "step"), [(3, 5, 1), (24, 7, 1), (24, 3, 1), (40, 7, 2)])
def test_windows_over_an_image_stored_channels_last_read_a_transposed_copy(
    channels: int, window: int, step: int
) -> None:
    random, side = np.random.default_rng(0), 21
    x, weight = whole_numbers(random, 2, side, side, channels), whole_numbers(random, channels, 1, window, window)
    image = Tensor(x).realize().permute(0, 3, 1, 2)
    made = image.conv2d(Tensor(weight).realize(), None, channels, step, 1, window // 2)
    assert len(kernels_of(made)) == 2
    planes = np.concatenate(
        [
            correlated(x[..., number, None].transpose(0, 3, 1, 2), weight[number, None], step, 1, window // 2)
            for number in range(channels)
        ],
        axis=1,
    )
    np.testing.assert_array_equal(made.numpy(), planes)


@pytest.mark.parametrize(("channels", "side", "window"), [(24, 21, 3), (16, 16, 2), (5, 12, 3), (21, 35, 5)])
@pytest.mark.parametrize("op", ["mean", "sum of products"])
def test_windows_that_do_not_overlap_are_summed_in_a_square_of_accumulators(
    channels: int, side: int, window: int, op: str
) -> None:
    """Vectors are loaded along the channels, and stored along the rows."""
    random, count = np.random.default_rng(0), side // window
    x, weight = whole_numbers(random, 2, side, side, channels), whole_numbers(random, channels, 1, window, window)
    if op == "mean":
        weight = np.full_like(weight, 1 / window**2)
    image = Tensor(x).realize().permute(0, 3, 1, 2)
    pooled = image.avg_pool2d(window)
    made = pooled if op == "mean" else image.conv2d(Tensor(weight).realize(), None, channels, window)
    (ast,) = kernels_of(made)
    chosen = [opt.op for opt in choose_opts(view_kernel(prepare_kernel(ast), cpu_target()))]
    assert chosen.count(OptOps.UPCAST) == 2
    parts = x.reshape(2, count, window, count, window, channels)
    want = np.einsum("nyuxvc,cuv->ncyx", parts, weight[:, 0])
    np.testing.assert_allclose(made.numpy(), want, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- the greatest element of a window


def pooled_gradient(x: Array, upstream: Array, window: int, step: int, gap: int, padding: int) -> Array:
    """Each window adds to its first greatest element; NaN is greater than any number."""
    found = np.zeros_like(x)
    for at in np.ndindex(*upstream.shape):
        best = None
        for u, v in itertools.product(range(window), repeat=2):
            place = (*at[:2], at[2] * step + u * gap - padding, at[3] * step + v * gap - padding)
            if min(place) < 0 or place[2] >= x.shape[2] or place[3] >= x.shape[3]:
                continue
            if best is None or x[place] > x[best] or np.isnan(x[place]):
                best = place
        if best is not None:
            found[best] += upstream[at]
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["numbers", "lowest", "nan"])
@pytest.mark.parametrize(
    ("window", "step", "gap", "padding"),
    [(5, 5, 1, 0), (5, 5, 1, 2), (3, 3, 1, 1), (3, 1, 1, 1), (5, 2, 1, 2), (2, 1, 2, 1), (4, 3, 2, 3), (7, 7, 1, 3)],
)
def test_the_gradient_of_padded_maxima_is_that_of_the_first_element_inside(
    window: int, step: int, gap: int, padding: int, kind: str
) -> None:
    random = np.random.default_rng(window)
    x = whole_numbers(random, 2, 2, 23, 26)  # with many equal elements
    if kind == "lowest":
        x[random.random(x.shape) < 0.9] = -np.inf
    if kind == "nan":
        x[:, :, 4::15, 7::15] = np.nan  # one in a window at most
    counts = [(size + 2 * padding - gap * (window - 1) - 1) // step + 1 for size in x.shape[2:]]
    upstream = whole_numbers(random, 2, 2, *counts)
    image = Tensor(x).realize()
    pooled = image.requires_grad_().max_pool2d(window, step, gap, padding)
    assert isinstance(pooled, Tensor)
    (found,) = pooled.gradient(image, gradient=Tensor(upstream).realize())
    np.testing.assert_array_equal(found.numpy(), pooled_gradient(x, upstream, window, step, gap, padding))


# ---------------------------------------------------------------- the first elements of rows


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint8", "uint32", "int64", "bool"])
@pytest.mark.parametrize(("shape", "axis", "k"), [((9, 64), 1, 2), ((64, 9), 0, 2), ((3, 50, 5), 1, 3), ((7, 9), 1, 9)])
@pytest.mark.parametrize("largest", [False, True])
def test_the_first_of_short_rows_are_in_order(
    dtype: str, shape: tuple[int, ...], axis: int, k: int, largest: bool
) -> None:
    """Elements are equal often; the extremes of a dtype, infinity and NaN are among them."""
    random = np.random.default_rng(k)
    x = random.integers(0, 6, shape).astype(dtype)
    if x.dtype.kind == "f":
        x[random.random(shape) < 0.1] = np.inf
        x[random.random(shape) < 0.1] = -np.inf
        x[random.random(shape) < 0.1] = np.nan
    elif x.dtype.kind in "iu":
        x[random.random(shape) < 0.2] = np.iinfo(x.dtype).max
        x[random.random(shape) < 0.2] = np.iinfo(x.dtype).min
    values, indices = Tensor(x).topk(k, axis, largest)
    # NaN is the greatest number; of equal elements the first comes first.
    keys = [(True, 0) if value != value else (False, value) for value in x.ravel().tolist()]
    order = {key: number for number, key in enumerate(sorted(set(keys)))}
    number = np.array([order[key] for key in keys]).reshape(shape)
    want = np.argsort(-number if largest else number, axis=axis, kind="stable")
    want = np.take(want, np.arange(k), axis=axis)
    np.testing.assert_array_equal(indices.numpy(), want)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, want, axis))


def test_few_elements_of_short_rows_are_found_without_a_sort() -> None:
    values, indices = Tensor.empty(128, 64).realize().topk(2)
    kernels = kernels_of(values, indices)
    assert len(kernels) <= 3
    assert all(node.op is not Ops.CUSTOM_KERNEL for ast in kernels for node in ast.src)


# ---------------------------------------------------------------- few rows


def test_sums_of_fewer_rows_than_a_part_has_are_one_kernel() -> None:
    """A transposed convolution to one channel: the sum of 27 terms was to be divided into no parts."""
    x = Tensor(np.ones((12, 3, 147, 128), np.float32)).realize()
    weight = Tensor(np.ones((3, 1, 3, 3), np.float32)).realize()
    made = x.conv_transpose2d(weight, None, 1, 1, 1, 1)
    edges = np.full(147, 3.0), np.full(128, 3.0)
    for edge in edges:
        edge[[0, -1]] = 2.0
    np.testing.assert_array_equal(made.numpy(), np.broadcast_to(3 * np.outer(*edges), (12, 1, 147, 128)))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("window", "step", "padding"), [(3, 3, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0), (2, 2, 0), (5, 2, 2)]
)
def test_the_gradient_of_a_pool_reads_positions(window: int, step: int, padding: int, requires_grad: bool) -> None:
    """It had read a mask for each position of a window, and the windows once for each mask. Ties go to the first
    element, and NaN is chosen."""
    image = np.random.default_rng(3).integers(-3, 4, (2, 11, 10 + step % 2)).astype(np.float32)
    image[1, 4, 5] = np.nan
    x = Tensor(image, requires_grad=requires_grad).realize()
    pooled = x.max_pool2d(window, stride=step, padding=padding)
    weights = np.arange(1.0, pooled.numel() + 1, dtype=np.float32).reshape(pooled.shape)
    (slope,) = pooled.gradient(x, gradient=Tensor(weights).realize())
    most = max(sum(node.op is Ops.PARAM for node in toposort(ast)) for ast in kernels_of(slope))
    assert most <= 3
    want = np.zeros_like(image)
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)), constant_values=-np.inf)
    for at in np.ndindex(*pooled.shape):
        rows, columns = (slice(n * step, n * step + window) for n in at[1:])
        first = int(np.argmax(padded[at[0], rows, columns]))  # of the first NaN, where there is one
        row, column = (n * step + part - padding for n, part in zip(at[1:], divmod(first, window)))
        want[at[0], row, column] += weights[at]
    np.testing.assert_array_equal(slope.numpy(), want)


@pytest.mark.parametrize(("window", "step", "padding"), [(5, 1, 2), (7, 3, 3)])
def test_the_maxima_of_large_windows_need_no_positions(window: int, step: int, padding: int) -> None:
    """The position of each maximum was computed first, and then the element there: 5x5 windows took 15 times as long as
    their maxima."""
    image = np.random.default_rng(1).standard_normal((2, 12, 13)).astype(np.float32)
    image[1, 4, 5] = np.nan
    pooled = Tensor(image).realize().max_pool2d(window, stride=step, padding=padding)
    reduced = [node for ast in kernels_of(pooled) for node in toposort(ast) if node.op is Ops.REDUCE]
    assert reduced
    assert all(node.arg is Ops.MAX and node.dtype is dtypes.float32 for node in reduced)
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), (1, 2))[:, ::step, ::step]
    np.testing.assert_array_equal(pooled.numpy(), windows.max((-2, -1)))

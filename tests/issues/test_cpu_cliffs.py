"""Shapes next to fast ones that took several times as long on the CPU: indices with divisions and remainders, which no
vector load has, and sums of several products, which no template of a contraction matches. Values, and what the kernels
look like."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.fuzz.opts import Pair, check_pair
from tests.kernel.kernels import axis, load, param, store, summed
from tests.kernel.test_products import TARGETS, kernel
from tests.schedule.graphs import DEVICE, Graph
from tilewright import Device, Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.base.dtype import dtypes
from tilewright.base.errors import IndexingError
from tilewright.codegen.pipeline import lower
from tilewright.engine.execution.realize import schedule
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import stride, view_kernel
from tilewright.kernel.optimise import optimise, prepare_kernel
from tilewright.kernel.prepare.loops import split_loops
from tilewright.kernel.templates.choose import choose_opts
from tilewright.tensor.primitives import running
from tilewright.tensor.primitives.masked_scans import MAX_TOTALS, SCAN_BLOCK, scan_axis


def kernels_of(*tensors: Tensor) -> list[UOp]:
    return [item.ast for item in schedule([each.uop for each in tensors], DEVICE).items if item.ast is not None]


def has_affine_accesses(ast: UOp) -> bool:
    view = view_kernel(prepare_kernel(ast))
    return all(stride(access, loop) is not None for access in view.accesses for loop in view.axes)


# ---------------------------------------------------------------- a loop that its divisor does not divide


def divided(size: int, divisor: int) -> UOp:
    """out[i] = a[i // d] + b[i % d] + c[i]"""
    i = axis(size, 0)
    value = load(param(1, -(-size // divisor)), i // divisor) + load(param(2, divisor), i % divisor)
    return kernel(store(param(0, size), i, value + load(param(3, size), i)))


def scanned(size: int, block: int) -> UOp:
    """out[i] = sum of a[i // d * d ... i]"""
    i, k = axis(size, 0), axis(block, 1, AxisType.REDUCE)
    position = i // block * block + k
    count = -(-size // block) * block
    value = (k <= i % block).where(load(param(1, count), position), 0.0)
    return kernel(store(param(0, size), i, summed(value, k)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("size", "divisor"), [(30, 4), (33, 8), (61, 3), (50, 16), (7, 2)])
@pytest.mark.parametrize("make", [divided, scanned])
def test_a_padded_loop_has_no_division(make: object, size: int, divisor: int, target: str) -> None:
    ast = make(size, divisor)  # type: ignore[operator]
    made = split_loops(ast)
    is_long = size >= 4 * divisor
    assert is_long is not any(node.op in (Ops.IDIV, Ops.MOD) for node in toposort(made))
    assert check_pair(Pair(0, "divided", ast, None, TARGETS[target])) is None  # type: ignore[arg-type]


def test_only_what_depends_on_both_loops_is_masked() -> None:
    view = view_kernel(split_loops(divided(30, 4)))
    masked = {access.src[0].arg.slot for access in view.accesses if len(access.src) > 2}
    assert masked == {0, 3}
    assert [size_of(loop) for loop in view.axes] == [8, 4]


# ---------------------------------------------------------------- running sums


@pytest.mark.parametrize("size", [1, 15, 17, 63 * 16 + 1, 1000, 64 * 16 + 1, 2003])
@pytest.mark.parametrize("place", [0, 1])
def test_running_sums_of_odd_lengths(size: int, place: int) -> None:
    shape = (5, size) if place else (size, 5)
    x = np.random.default_rng(size).integers(-9, 10, shape).astype(np.float32)
    np.testing.assert_array_equal(Tensor(x).cumsum(place).numpy(), x.cumsum(place))


def masked_sums(x: Tensor) -> Tensor:
    """Running sums of rows as masked reductions, which devices with work-groups and fused expressions have."""
    return x._new(scan_axis(x.uop, Ops.ADD, 1))


def test_running_sums_take_few_kernels_without_divisions() -> None:
    for size in (1000, MAX_TOTALS * SCAN_BLOCK):
        found = kernels_of(masked_sums(Graph().tensor(64, size)))
        assert len(found) <= 4
        assert all(map(has_affine_accesses, found))


def test_a_short_row_of_accumulators_is_tiled_by_rows() -> None:
    """One vector of accumulators is a chain of additions: several rows overlap."""
    last = kernels_of(masked_sums(Graph().tensor(64, 1000)))[-1]
    opts = choose_opts(view_kernel(prepare_kernel(last), TARGETS["AVX-512"]))
    assert [opt.arg for opt in opts if opt.op.name == "UPCAST"] == [16, 3]


# ---------------------------------------------------------------- rolled and resized


@pytest.mark.parametrize(
    ("shape", "shifts", "dims"), [((7,), 3, 0), ((6, 9), (-2, 12), (0, 1)), ((3, 0), 1, 0), ((4, 5), 5, 1)]
)
def test_roll(shape: tuple[int, ...], shifts: object, dims: object) -> None:
    graph = Graph()
    x = graph.tensor(*shape)
    values = x.numpy()
    rolled = x.roll(shifts, dims)  # type: ignore[arg-type]
    for ast in kernels_of(rolled):
        view = view_kernel(ast)
        along = [loop for loop in view.axes if all(stride(access, loop) == 1 for access in view.stores)]
        assert all(stride(access, loop) == 1 for access in view.accesses for loop in along)
    np.testing.assert_array_equal(rolled.numpy(), np.roll(values, shifts, dims))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize(("old", "new"), [(5, 10), (5, 15), (4, 10), (9, 6), (8, 2), (7, 7), (7, 5), (40, 22), (6, 1)])
def test_nearest_elements(old: int, new: int, mode: str) -> None:
    """Blocks of a few elements, or any fraction."""
    ratio = Fraction(old, new)
    if mode == "nearest":
        chosen = [math.floor(number * ratio) for number in range(new)]
    else:
        chosen = [math.floor((number + Fraction(1, 2)) * ratio) for number in range(new)]
    x = np.random.default_rng(0).integers(-9, 10, (2, 3, old, 4)).astype(np.float32)
    given = Tensor(x, requires_grad=True)
    resized = given.interpolate((new, 4), mode=mode)
    np.testing.assert_array_equal(resized.numpy(), x[:, :, chosen])
    slope = np.zeros_like(x)
    upstream = np.arange(resized.numel(), dtype=np.float32).reshape(resized.shape)
    np.add.at(slope, (slice(None), slice(None), chosen), upstream)
    np.testing.assert_array_equal((resized * Tensor(upstream)).sum().gradient(given)[0].numpy(), slope)


@pytest.mark.parametrize(("mode", "factors"), [("linear", (2, 3)), ("linear", (8, 1)), ("cubic", (2, 1))])
def test_mixed_elements_of_whole_factors_load_no_table(factors: tuple[int, int], mode: str) -> None:
    """Two gathers along each axis, and sums by index for their gradients."""
    graph = Graph()
    x = graph.tensor(2, 3, 5, 7)
    sizes = tuple(size * factor for size, factor in zip(x.shape[2:], factors))
    resized = x.interpolate(sizes, mode=mode)
    slope = resized.gradient(x, gradient=resized.detach())[0]
    for found in (resized, slope):
        assert all(map(has_affine_accesses, kernels_of(found)))
    # The same positions through tables, which other fractions take.
    odd = [Fraction(1, factor) for factor in factors]
    tables = x
    for place, ratio in enumerate(odd, start=2):
        if ratio != 1:
            tables = tables._mixed(place, sizes[place - 2], ratio, False, mode == "cubic")
    np.testing.assert_allclose(resized.numpy(), tables.numpy(), atol=1e-5)
    expected = tables.gradient(x, gradient=resized.detach())[0]
    np.testing.assert_allclose(slope.numpy(), expected.numpy(), atol=1e-5)


def test_an_infinite_neighbour_without_weight_is_not_read() -> None:
    x = Tensor([[[1.0, 2.0, math.inf, 4.0, 5.0]]])
    assert x.interpolate(15, mode="linear").numpy()[0, 0, [0, 1, 4, 10, 13]].tolist() == [1.0, 1.0, 2.0, 4.0, 5.0]


@pytest.mark.parametrize(("old", "new"), [(5, 10), (4, 10), (9, 6)])
def test_resizing_by_blocks_loads_no_table(old: int, new: int) -> None:
    found = kernels_of(Graph().tensor(2, 3, old, old).interpolate((new, new), mode="nearest"))
    assert len(found) == 1
    assert has_affine_accesses(found[0])


def test_slices_are_selected_by_unrolled_loops() -> None:
    """Of the loads that a join of slices selects from, one is left for each result."""
    (ast,) = kernels_of(Graph().tensor(2, 3, 40, 40).interpolate((100, 100), mode="nearest"))
    opts = choose_opts(view_kernel(prepare_kernel(ast), TARGETS["AVX-512"]))
    assert [opt.arg for opt in opts if opt.op.name == "UNROLL"] == [5, 5]


# ---------------------------------------------------------------- one factor of several products


def test_the_gradient_of_a_factor_of_several_products_is_a_product_each() -> None:
    """((a @ a) @ a) @ a has one right factor, whose gradient was the sum over rows of a sum of three products."""
    graph = Graph()
    a, upstream = graph.tensor(104, 104), graph.tensor(104, 104, requires_grad=False)
    gradient = ((((a @ a) @ a) @ a) * upstream).sum().gradient(a)[0]
    powers = [np.linalg.matrix_power(a.numpy().astype(np.float64).T, n) for n in range(4)]
    expected = sum(powers[n] @ upstream.numpy() @ powers[3 - n] for n in range(4))
    for ast in kernels_of(gradient):
        for node in toposort(ast):
            if node.op is Ops.REDUCE:
                assert node.src[0].op is Ops.MUL
                assert all(factor.op is Ops.LOAD for factor in node.src[0].src)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_small_products_stay_in_one_kernel() -> None:
    graph = Graph()
    a = graph.tensor(8, 8)
    assert len(kernels_of(((((a @ a) @ a) @ a) * 1e-3).sum().gradient(a)[0])) <= 6


# ---------------------------------------------------------------- strided windows


STRIDED = {
    "5x5 at stride 2": ((2, 3, 11, 12), (3, 1, 5, 5), {"stride": 2, "padding": 2}),
    "7x6 at strides 2 and 3": ((1, 4, 13, 14), (4, 1, 7, 6), {"stride": (2, 3), "padding": (3, 0)}),
    "one axis": ((2, 2, 17), (2, 1, 13), {"stride": 2, "padding": 1}),
    "at a border of one side": ((1, 2, 9, 9), (2, 1, 5, 5), {"stride": 2, "padding": (1, 0, 2, 1)}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STRIDED)
def test_strided_channels_by_themselves_are_convolved_in_phases(name: str) -> None:
    """Elements at a stride, masked at the border, were loaded one by one. The image is stored by phases, each of which
    is read at stride 1 and without masks; the same values come from a convolution whose channels are dense."""
    shape, kernel_shape, options = STRIDED[name]
    numbers = np.random.default_rng(0)
    x, w = (numbers.integers(-4, 5, sizes).astype(np.float32) for sizes in (shape, kernel_shape))
    dense = np.zeros((kernel_shape[0], kernel_shape[0], *kernel_shape[2:]), np.float32)
    dense[range(len(w)), range(len(w))] = w[:, 0]
    given, weight, whole = (Tensor(array, requires_grad=True) for array in (x, w, dense))
    image, result = Tensor(x, requires_grad=True), given.conv2d(weight, groups=len(w), **options)
    expected = image.conv2d(whole, **options)
    np.testing.assert_array_equal(result.numpy(), expected.numpy())
    upstream = Tensor(numbers.integers(-3, 4, result.shape).astype(np.float32))
    slopes = (result * upstream).sum().gradient(given, weight)
    wanted = (expected * upstream).sum().gradient(image, whole)
    np.testing.assert_array_equal(slopes[0].numpy(), wanted[0].numpy())
    np.testing.assert_array_equal(slopes[1].numpy()[:, 0], wanted[1].numpy()[range(len(w)), range(len(w))])


def test_phases_are_read_at_stride_1() -> None:
    last = kernels_of(Graph().tensor(2, 3, 17, 17).conv2d(Graph(1).tensor(3, 1, 5, 5), groups=3, stride=2, padding=2))[
        -1
    ]
    view = view_kernel(prepare_kernel(last))
    assert all(len(access.src) == 2 for access in view.accesses)
    along = next(loop for loop in view.axes if all(stride(access, loop) == 1 for access in view.stores))
    assert {stride(access, along) for access in view.accesses} == {0, 1}


@pytest.mark.parametrize(("channels", "groups", "dilation"), [(4, 2, 3), (4, 2, 1), (2, 1, 3)])
def test_products_for_few_channels_are_stored_before_strided_windows_read_them(
    channels: int, groups: int, dilation: int
) -> None:
    """The gradient of 2x4x4089 convolved at stride 2 multiplied inside the sum over its windows, under masks."""
    random = np.random.default_rng(7)
    x = Tensor(random.integers(-3, 4, (2, channels, 89)).astype(np.float32), requires_grad=True)
    weight = random.integers(-3, 4, (48, channels // groups, 3)).astype(np.float32)
    result = x.conv2d(Tensor(weight), stride=2, dilation=dilation, groups=groups)
    slopes = random.integers(-3, 4, result.shape).astype(np.float32)
    gradient = result.gradient(x, gradient=Tensor(slopes))[0]
    first, *others = kernels_of(gradient)
    assert len(view_kernel(first).reduces) == 1
    assert others
    expected, own = np.zeros(x.shape, np.float32), 48 // groups
    for k, c in itertools.product(range(3), range(channels)):
        of_group = slice(c // (channels // groups) * own, (c // (channels // groups) + 1) * own)
        taps = weight[of_group, c % (channels // groups), k]
        expected[:, c, k * dilation :: 2][:, : slopes.shape[2]] += np.einsum("f,bfl->bl", taps, slopes[:, of_group])
    np.testing.assert_array_equal(gradient.numpy(), expected)


def test_gradients_of_strided_windows_of_odd_size_have_no_division() -> None:
    """The windows of an axis that the stride does not divide had gradients with three divisions in each index."""
    graph = Graph()
    x = graph.tensor(1, 2, 17, 17)
    pooled = x.max_pool2d(3, 2)
    slope = (pooled * graph.tensor(*pooled.shape, requires_grad=False)).sum().gradient(x)[0]
    last = kernels_of(slope)[-1]
    assert any(node.op is Ops.REDUCE for node in toposort(last))
    assert has_affine_accesses(last)


# Vectors of columns with a remainder, a block of columns, rows that are compared by blocks and rows that are too short.
WALKED = [((2, 9, 10), 1), ((1, 5, 70), 1), ((2, 83), 1), ((3, 19, 2), 1)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "axis"), [*WALKED, ((23, 300, 8), 0), ((3, 20, 2100), 1), ((40_000,), 0)])
def test_running_reductions_are_one_walk_along_the_axis(monkeypatch: Any, shape: tuple[int, ...], axis: int) -> None:
    """An element was compared with all before it in its block, and read again by its index."""
    monkeypatch.setattr(running, "MAX_MASKED_STEPS", 0)
    values = np.random.default_rng(7).integers(-9, 9, shape).astype(np.float32)
    values[values == 8] = np.nan
    x = Tensor(values).realize()
    for node in (x.cummax(axis).values, x.cummin(axis).indices, x.cumsum(axis), x.cumprod(axis)):
        (ast,) = kernels_of(node)
        reduces = [found for found in toposort(ast) if found.op is Ops.REDUCE]
        assert all(loop.arg.kind.is_tile for found in reduces for loop in found.src[1:])
    whole = np.nan_to_num(values)
    np.testing.assert_array_equal(Tensor(whole).cumsum(axis).numpy(), whole.cumsum(axis))
    for method, accumulated in ((x.cummax, np.maximum), (x.cummin, np.minimum)):
        extremes, indices = method(axis)
        np.testing.assert_array_equal(extremes.numpy(), accumulated.accumulate(values, axis))
        np.testing.assert_array_equal(np.take_along_axis(values, indices.numpy(), axis), extremes.numpy())
        # Of equals the last: no later element up to this one equals the extreme.
        assert (indices.numpy() == last_of_equals(values, extremes.numpy(), axis)).all()


def last_of_equals(values: np.ndarray, extremes: np.ndarray, axis: int) -> np.ndarray:
    moved, best = np.moveaxis(values, axis, -1), np.moveaxis(extremes, axis, -1)
    found = np.zeros(moved.shape, np.int64)
    for end in range(moved.shape[-1]):
        takes = (moved[..., end] == best[..., end]) | np.isnan(moved[..., end])
        found[..., end] = np.where(takes, end, found[..., max(end - 1, 0)])
    return np.moveaxis(found, -1, axis)


@pytest.mark.parametrize(("shape", "axis"), WALKED)
def test_walked_reductions_on_the_emulator(monkeypatch: Any, shape: tuple[int, ...], axis: int) -> None:
    """The kernels of a processor, where races and memory that nobody wrote are found, in both directions."""
    target = Device["CPU"].target
    monkeypatch.setattr(running, "_target_with_loops", lambda *_: target)
    values = np.random.default_rng(3).integers(-4, 5, shape).astype(np.float32)
    x = Tensor(values, device="PYTHON", requires_grad=True)
    np.testing.assert_array_equal(x.cummin(axis).values.numpy(), np.minimum.accumulate(values, axis))
    sums = x.cumsum(axis)
    np.testing.assert_array_equal(sums.numpy(), values.cumsum(axis))
    (slope,) = sums.gradient(x, gradient=x.detach())
    np.testing.assert_array_equal(slope.numpy(), np.flip(np.flip(values, axis).cumsum(axis), axis))


def test_gradients_of_running_products_and_extremes_at_zeros_and_ties() -> None:
    x = Tensor([[2.0, 0.0, 3.0, 0.0, 5.0, 1.0, 4.0]] * 700, requires_grad=True)
    (slope,) = x.cumprod(1).sum().gradient(x)
    assert slope.numpy()[0].tolist() == [1.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    y = Tensor([[1.0, 1.0, 0.0, 2.0, 2.0, 1.0, 0.0]] * 700, requires_grad=True)
    (slope,) = y.cummax(1).values.sum().gradient(y)
    assert slope.numpy()[0].tolist() == [1.0, 2.0, 0.0, 1.0, 3.0, 0.0, 0.0]


def test_long_running_products_round_once() -> None:
    """Sequential products in float32 had an error of 3e-4 here."""
    factors = 1 + np.random.default_rng(5).standard_normal(65536, dtype=np.float32) / np.float32(65536)
    found, expected = Tensor(factors).cumprod(0).numpy(), factors.cumprod(dtype=np.float64)
    assert np.abs(found / expected - 1).max() < 1e-7


# ---------------------------------------------------------------- rows and elements by index


def opts_of(*tensors: Tensor) -> list[tuple[Opt, ...]]:
    target = cpu_target()
    return [choose_opts(view_kernel(prepare_kernel(ast), target)) for ast in kernels_of(*tensors)]


def test_an_index_of_64_bits_does_not_make_vectors_short() -> None:
    lanes = cpu_target().lanes(dtypes.float32)
    table, rows = Tensor.empty(50, 40 * lanes), Tensor.empty(70, dtype=dtypes.int64)
    assert [opt.arg for opt in opts_of(table[rows])[0] if opt.op is OptOps.UPCAST] == [4 * lanes]
    # A gather of half a vector takes as long as one of a whole one. Processors without masked vectors have no gathers.
    columns = Tensor.empty(lanes * 3 + lanes // 2, dtype=dtypes.int64)
    expected = [lanes] if 4 in cpu_target().masked_itemsizes else []
    assert [opt.arg for opt in opts_of(table.index_select(1, columns))[0] if opt.op is OptOps.UPCAST] == expected


@pytest.mark.parametrize("count", [1, 3, 4, 17, 40])
@pytest.mark.parametrize("axis", [0, 1])
def test_selected_rows_and_columns(count: int, axis: int) -> None:
    values = np.arange(70 * 90, dtype=np.float32).reshape(70, 90)
    index = np.random.default_rng(count).integers(-values.shape[axis], values.shape[axis], count)
    x, picks = Tensor(values).realize(), Tensor(index).realize()
    np.testing.assert_array_equal(x.index_select(axis, picks).numpy(), values.take(index, axis))
    index[-1] = values.shape[axis]
    with pytest.raises(IndexingError, match=f"index {values.shape[axis]} is out of range"):
        x.index_select(axis, Tensor(index).realize() | 0).numpy()


def test_an_index_that_all_rows_share_is_checked_once() -> None:
    picked = Tensor.empty(900, 28).index_select(1, Tensor.empty(4, dtype=dtypes.int64))
    (ast,) = kernels_of(picked)
    text = render(lower(optimise(ast, cpu_target()), cpu_target()), "kernel")
    before, _, inside = text.partition("phi i64 [ %lo")
    assert "check" in before
    assert "icmp" not in inside.partition("loop")[0]
    # One that each row has is checked in the loop.
    (ast,) = kernels_of(Tensor.empty(900, 28).gather(1, Tensor.empty(900, 4, dtype=dtypes.int64)))
    text = render(lower(optimise(ast, cpu_target()), cpu_target()), "kernel")
    assert "check" not in text.partition("phi i")[0]


# ---------------------------------------------------------------- joins inside of vectors


@pytest.mark.parametrize(("shape", "axis"), [((20_001,), 0), ((9, 4001), 0), ((3, 9, 1301), 1), ((16_384,), 0)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_stored_join_is_a_copy_of_each_part(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    values = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    x = Tensor(values).realize()
    expected = np.concatenate([values, values * 2, values], axis)
    for is_contiguous in (False, True):
        joined = x.cat(x * 2, x, dim=axis)
        joined = joined.contiguous() if is_contiguous else joined
        is_inside = bool(shape[axis] * math.prod(shape[axis + 1 :]) % cpu_target().lanes(x.dtype))
        is_whole = math.prod(shape[:axis]) < cpu_target().cores
        asts = kernels_of(joined)
        assert len(asts) == (3 if is_inside or is_whole else 1)
        assert not any(len(access.src) > 2 for ast in asts for access in view_kernel(ast).accesses if len(asts) > 1)
        np.testing.assert_array_equal(joined.numpy(), expected)
    # What is computed from a join, and a join of short rows, is one kernel.
    assert len(kernels_of(x.cat(x * 2, x, dim=axis) + 1)) == 1
    assert len(kernels_of(Tensor.empty(900, 61).cat(Tensor.empty(900, 61), dim=1))) == 1
    np.testing.assert_array_equal((x.cat(x * 2, x, dim=axis) + 1).numpy(), expected + 1)


def test_parts_of_a_stored_join_keep_their_bits_and_gradients() -> None:
    values = np.full(20_001, -0.0, np.float32)
    values[::7] = np.nan
    x, y = Tensor(values, requires_grad=True), Tensor(np.ones(12_345, np.float32), requires_grad=True)
    joined = x.cat(y, x.flip(0)).contiguous()
    assert joined.numpy().tobytes() == np.concatenate([values, np.ones(12_345, np.float32), values[::-1]]).tobytes()
    joined[20_000:20_010].sum().backward()
    assert y.grad is not None
    assert y.grad.sum().item() == 9.0


def test_one_vector_of_accumulators_has_company_from_other_rows() -> None:
    """119 rows of 73 times 16 elements: neither has a divisor up to 4, and a maximum waits for the one before it."""
    first = opts_of(Tensor.empty(138_992).max())[0]
    vectors = math.prod(opt.arg for opt in first if opt.op is OptOps.UPCAST) // cpu_target().lanes(dtypes.float32)
    assert vectors >= 4

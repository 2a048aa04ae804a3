"""Memory-bound kernels of work-groups: what the heuristic chooses by the facts of a card, and that the emulator, which
has those facts, gets the values that NumPy does at sizes that divide nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.emulated_card import CARD, NAME, CardDriver, emulated_card
from tests.kernel.kernels import leaf
from tests.kernel.properties import Chosen, chosen_for
from tilewright import Tensor
from tilewright.base.dtype import DType, dtypes
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import stride
from tilewright.schedule.preparation.reduction import split_reduction
from tilewright.schedule.sums_by_index import segments

generator = np.random.default_rng(14)


def chosen(graph: UOp) -> Chosen:
    return chosen_for(graph, CARD)


def whole_numbers(*shape: int) -> np.ndarray:
    return generator.integers(-4, 5, shape).astype(np.float32)


def given(array: np.ndarray) -> Tensor:
    return Tensor(array, device=NAME)


# ---------------------------------------------------------------- transposition


def transposed(rows: int, columns: int, dtype: DType = dtypes.float32) -> UOp:
    return build.alu(Ops.NEG, build.permute(leaf(0, columns, rows, dtype=dtype), (1, 0)))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.float64], ids=str)
@pytest.mark.parametrize("shape", [(16384, 16384), (1000, 777), (4096, 33), (129, 4096)], ids=str)
def test_both_sides_of_a_transposition_are_coalesced(shape: tuple[int, int], dtype: DType) -> None:
    """The buffer is read by the copy alone: adjacent threads, or the vector of one, have adjacent elements there and in
    the store."""
    made = chosen(transposed(*shape, dtype))
    (load,) = made.buffers
    assert any(node.op is Ops.DEFINE_LOCAL for node in made.view.nodes)
    assert any(stride(load, axis) == 1 for axis in made.view.of_kind(AxisType.UPCAST))
    threads = made.view.of_kind(AxisType.LOCAL)
    assert any(stride(store, axis) == 1 and size_of(axis) == 32 for store in made.view.stores for axis in threads)
    assert made.threads == 256


def test_rows_of_a_tile_are_in_different_banks() -> None:
    made = chosen(transposed(256, 256))
    (memory,) = {memory_of(node) for node in made.view.index_nodes if memory_of(node).op is Ops.DEFINE_LOCAL}
    slow = [stride(n, axis) for n in made.view.index_nodes if memory_of(n) is memory for axis in n.ranges]
    assert memory.arg.size * 4 % 128 != 0 or memory.arg.size > 32 * 32
    assert all(step is None or step * 4 % 128 for step in slow if step)


def test_an_operand_that_is_not_transposed_is_read_in_place() -> None:
    straight, crossed = leaf(0, 512, 512), build.permute(leaf(1, 512, 512), (1, 0))
    made = chosen(build.alu(Ops.ADD, straight, crossed))
    assert sum(node.op is Ops.DEFINE_LOCAL for node in made.view.nodes) == 1


@pytest.mark.parametrize("shape", [(70, 45), (32, 32), (3, 100), (100, 5), (64, 96), (33, 1)], ids=str)
def test_transposed_values(shape: tuple[int, int]) -> None:
    x, y = whole_numbers(*shape), whole_numbers(*reversed(shape))
    with emulated_card():
        np.testing.assert_array_equal(given(x).T.contiguous().numpy(), x.T)
        np.testing.assert_array_equal((given(y) * 2 + given(x).T - given(x).exp2().T).numpy(), y * 2 + x.T - 2**x.T)


def test_permuted_values() -> None:
    x = whole_numbers(3, 37, 5, 9)
    with emulated_card():
        for order in ((0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)):
            np.testing.assert_array_equal(given(x).permute(*order).contiguous().numpy(), x.transpose(order))


# ---------------------------------------------------------------- rows


def whole_sum(*shape: int) -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, *shape), tuple(range(len(shape))))


@pytest.mark.parametrize("columns", [50257, 4097, 16388, 3136, 1000, 999])
def test_rows_of_any_length_have_a_power_of_two_of_threads(columns: int) -> None:
    """Partial sums are then combined by exchanges in warps; and every access is of adjacent elements."""
    made = chosen(build.reduce_axis(Ops.ADD, leaf(0, 4000, columns), (1,)))
    (threads,) = made.sizes(AxisType.GROUP)
    assert threads & (threads - 1) == 0
    assert threads >= 32
    (load,) = made.buffers
    own = math.prod(size_of(a) for a in made.view.of_kind(AxisType.UPCAST) if stride(load, a) == 1)
    assert own == (4 if columns % 4 == 0 else 1)
    assert any(stride(load, axis) == own for axis in made.view.of_kind(AxisType.GROUP))


def test_few_channels_share_the_images_too() -> None:
    """Statistics over (0, 2, 3): 256 work-groups have all the threads that a core runs."""
    x = leaf(0, 64, 256, 56, 56)
    made = chosen(build.reduce_axis(Ops.ADD, x, (0, 2, 3)))
    assert made.threads == 1024


@pytest.mark.parametrize("images", [64, 63, 145, 1001])
def test_images_of_any_number_are_shared(images: int) -> None:
    """Also where no power of two divides their number: the last part is masked."""
    made = chosen(build.reduce_axis(Ops.ADD, leaf(0, images, 28, 190), (0, 2)))
    assert made.threads == 1024


@pytest.mark.parametrize("shape", [(32768, 3, 44), (1018, 151, 24), (40009, 20)], ids=str)
def test_short_rows_fill_a_work_group(shape: tuple[int, ...]) -> None:
    """Of 32768 rows with 3 results each, the 3 alone are no work-group; 151 rows are padded."""
    made = chosen(build.reduce_axis(Ops.ADD, leaf(0, *shape), (len(shape) - 1,)))
    assert made.threads >= 96


def test_a_small_sum_inside_does_not_take_the_rows_threads() -> None:
    """A variance: every partial sum first combines the partial sums of the mean."""
    partials, x = leaf(0, 250), leaf(1, 250, 65552)
    mean = build.expand(build.reshape(build.reduce_axis(Ops.ADD, partials, (0,)), (1, 1)), x.shape)
    made = chosen(build.reduce_axis(Ops.ADD, build.alu(Ops.SUB, x, mean), (1,)))
    assert made.threads == 1024
    assert made.count(AxisType.LOOP) >= 250


def test_long_rows_that_are_read_twice_are_few_at_a_time() -> None:
    x = leaf(0, 8192, 50257)
    greatest = build.expand(build.reduce_axis(Ops.MAX, x, (1,)), x.shape)
    made = chosen(build.reduce_axis(Ops.ADD, build.alu(Ops.EXP2, build.alu(Ops.SUB, x, greatest)), (1,)))
    rows_at_a_time = CARD.cores * 2048 // made.threads
    assert rows_at_a_time * 50257 * 4 <= CARD.cache_bytes * 1.1


@pytest.mark.parametrize("columns", [2, 10, 14, 16])
def test_a_thread_has_a_whole_row_of_a_softmax_over_few_elements(columns: int) -> None:
    x = generator.standard_normal((515, columns)).astype(np.float32)
    want = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(1, keepdims=True)
    with emulated_card(cores=1) as card:
        np.testing.assert_allclose(given(x).softmax(1).numpy(), want, rtol=1e-6)
        (program,) = card.programs
    threads = math.prod(axis.vmax + 1 for axis in (*program.global_ranges, *program.local_ranges))
    assert 515 <= threads < 2 * 515


def test_rows_that_are_stored_as_columns_are_shared_by_threads() -> None:
    """One thread of each work-group stored the whole row."""
    x = leaf(0, 40, 100)
    greatest = build.expand(build.reduce_axis(Ops.MAX, x, (1,)), x.shape)
    made = chosen(build.permute(build.alu(Ops.SUB, x, greatest), (1, 0)))
    assert made.count(AxisType.LOCAL) >= 32
    array = whole_numbers(40, 100)
    with emulated_card():
        rows = given(array)
        found = (rows - rows.max(axis=1, keepdim=True)).T.contiguous().numpy()
    np.testing.assert_array_equal(found, (array - array.max(1, keepdims=True)).T)


def test_a_long_reduction_is_shared_where_its_results_are_transposed() -> None:
    """Tiles of 16 results through local memory would be all the threads that there are."""
    made = chosen(build.permute(build.reduce_axis(Ops.ADD, leaf(0, 4096, 16, 64), (0,)), (0, 2, 1)))
    assert made.count(AxisType.GROUP) >= 16


def test_windows_have_a_thread_for_each_result() -> None:
    windows = leaf(0, 2048, 37, 3, 37, 3)
    made = chosen(build.reduce_axis(Ops.ADD, windows, (2, 4)))
    assert not made.sizes(AxisType.GROUP)
    assert made.threads >= 128


@pytest.mark.parametrize("shape", [(4001, 4096), (16777213,), (17, 1000003), (4000, 4097), (4099, 4099)], ids=str)
def test_a_sum_of_all_keeps_every_core_busy(shape: tuple[int, ...]) -> None:
    split = split_reduction(whole_sum(*shape), CARD)
    assert split is not None
    assert math.prod(split.src[0].src[0].shape) >= CARD.cores


@pytest.mark.parametrize("shape", [(8192, 768), (8191, 100), (65536, 65)], ids=str)
def test_sums_of_columns_keep_every_core_busy(shape: tuple[int, int]) -> None:
    """The gradient of a bias takes two kernels."""
    node = build.reduce_axis(Ops.ADD, leaf(0, *shape), (0,))
    split = split_reduction(node, CARD)
    assert split is not None
    assert math.prod(split.src[0].src[0].shape) >= CARD.cores * 32


SUMS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "all": ((401, 97), lambda x: x.sum(), lambda x: x.sum()),
    "variance": ((397, 101), lambda x: x.var(), lambda x: x.var(ddof=1)),
    "channels": ((6, 5, 7, 3), lambda x: x.sum((0, 2, 3)), lambda x: x.sum((0, 2, 3))),
    "columns": ((1031, 9), lambda x: x.sum(0), lambda x: x.sum(0)),
    "many columns": ((2741, 97), lambda x: x.sum(0), lambda x: x.sum(0)),
    "rows": ((7, 4099), lambda x: x.sum(1), lambda x: x.sum(1)),
    "short rows": ((53, 17), lambda x: x.max(1), lambda x: x.max(1)),
    "logsumexp": (
        (5, 1027),
        lambda x: x.logsumexp(1),
        lambda x: np.log(np.exp(x.astype(np.float64)).sum(1)),
    ),
    "standardised": (
        (4, 6, 5, 7),
        lambda x: (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True),
        lambda x: (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True, ddof=1),
    ),
    "pool": (
        (2, 3, 11, 13),
        lambda x: x.avg_pool2d((3, 3), stride=2),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].mean((4, 5)),
    ),
}


@pytest.mark.parametrize("cores", [132, 2])
@pytest.mark.parametrize("name", SUMS)
def test_values_of_sums(name: str, cores: int) -> None:
    shape, ours, numpys = SUMS[name]
    x = whole_numbers(*shape)
    with emulated_card(cores=cores):
        np.testing.assert_allclose(ours(given(x)).numpy(), numpys(x), rtol=2e-6, atol=2e-6)


# ---------------------------------------------------------------- sums by index


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32], ids=str)
def test_picked_rows_are_copied_in_whole_vectors(dtype: DType) -> None:
    """An index of 8 bytes, which is one number for the whole row, does not make the vectors of the rows shorter."""
    shape = (500, 768)
    index = build.expand(build.reshape(leaf(1, 500, dtype=dtypes.int64), (500, 1)), shape)
    made = chosen(build.gather(leaf(0, 1000, 768, dtype=dtype), index, build.axis_iota(shape, 1)))
    assert made.tile * dtype.itemsize == 16


@pytest.mark.parametrize(("rows", "columns", "picks"), [(40, 1000, 300), (7, 997, 400), (1, 5003, 2000)])
def test_gradients_of_gathers_have_a_thread_for_each_part(rows: int, columns: int, picks: int) -> None:
    x, index = whole_numbers(rows, columns), generator.integers(-columns, columns, (rows, picks))
    weight = whole_numbers(rows, picks)
    want = np.zeros_like(x)
    for row in range(rows):
        np.add.at(want[row], index[row], weight[row])
    with emulated_card(cores=1) as card:
        source = given(x)
        (found,) = (source.gather(1, given(index.astype(np.int32))) * given(weight)).sum().gradient(source)
        np.testing.assert_array_equal(found.numpy(), want)
        threads = [
            math.prod(size_of(axis) for axis in (*program.global_ranges, *program.local_ranges))
            for program in card.programs
        ]
        assert min(threads) >= min(32, rows)


def test_a_few_terms_are_compared_and_not_walked() -> None:
    """The gradient of topk: ten terms a row. Comparing stores rows in order, at the speed of memory."""
    x = whole_numbers(3, 4000)
    with emulated_card(cores=1) as card:
        source = given(x)
        (found,) = source.topk(5)[0].sum().gradient(source)
        assert found.numpy().sum() == 15
        (summed,) = [program for program in card.programs if program.name.startswith("reduce_3_4000")]
        assert math.prod(size_of(axis) for axis in (*summed.global_ranges, *summed.local_ranges)) >= x.size


@pytest.mark.parametrize("shape", [(32768, 525), (4096, 192), (777, 1000)], ids=str)
def test_a_vector_beside_a_matrix_has_no_say_in_the_order(shape: tuple[int, int]) -> None:
    """Adjacent threads read adjacent elements or vectors of the matrix, though the vector is read at a stride then."""
    length, columns = shape
    vector = build.expand(leaf(0, 1, length), (columns, length))
    matrix = build.permute(leaf(1, *shape), (1, 0))
    made = chosen(build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, vector, matrix), (1,)))
    load = max(made.buffers, key=lambda load: len(load.ranges))
    lanes = [size_of(axis) for axis in made.view.of_kind(AxisType.UPCAST) if stride(load, axis) == 1]
    assert lanes == ([] if columns % 4 else [4])
    threads = made.view.of_kind(AxisType.LOCAL)
    assert any(stride(load, axis) == math.prod(lanes) and size_of(axis) >= 5 for axis in threads)


# ---------------------------------------------------------------- sorting


@pytest.mark.sampled(2)
@pytest.mark.parametrize("local_bytes", [1 << 17, 128], ids=["one block", "merged"])
@pytest.mark.parametrize("shape", [(1, 333), (5, 37), (40, 5), (3, 64), (2, 2), (7, 1)], ids=str)
def test_sorted_by_work_groups(shape: tuple[int, int], local_bytes: int) -> None:
    """Equal elements keep their order; the emulator looks for races between exchanges."""
    x = generator.integers(-9, 9, shape).astype(np.int32)
    with emulated_card(max_local_bytes=local_bytes, max_group_size=16) as card:
        values, places = given(x).sort(1)
        np.testing.assert_array_equal(places.numpy(), np.argsort(x, axis=1, kind="stable"))
        np.testing.assert_array_equal(values.numpy(), np.sort(x, axis=1))
        names = {program.name for program in card.programs}
        assert any(name.startswith("sort_blocks") for name in names) is (shape[1] > 1)
        assert ("merge_blocks" in names) is (local_bytes == 128 and shape[1] > 16)


def test_floats_are_sorted_by_work_groups() -> None:
    x = np.array([3, np.nan, -0.0, 0.0, -1, np.inf, -np.inf, np.nan, 3], np.float32)
    with emulated_card():
        np.testing.assert_array_equal(given(x).argsort().numpy(), np.argsort(x, kind="stable"))
        np.testing.assert_array_equal(given(x[2:7]).argsort(descending=True).numpy(), [3, 0, 1, 2, 4])
        np.testing.assert_array_equal(given(whole := whole_numbers(3, 400)).topk(4)[0].numpy(), -np.sort(-whole)[:, :4])


# ---------------------------------------------------------------- sums over sorted segments


def segment_names(card: CardDriver) -> set[str]:
    return {program.name for program in card.programs} & {"find_segments", "sum_segments"}


@pytest.fixture
def short_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums by index are taken over segments at sizes that the emulator runs."""
    monkeypatch.setattr(segments, "MIN_PASSES", 0)
    monkeypatch.setattr(segments, "MIN_TERMS", 8)
    monkeypatch.setattr(segments, "MIN_COMPARISONS", 1)
    monkeypatch.setattr(segments, "MAX_DIRECT", 0)


@pytest.mark.parametrize("highest", [300, 3, 1], ids=["apart", "long segments", "one segment"])
@pytest.mark.usefixtures("short_sums")
def test_scattered_over_segments(highest: int) -> None:
    x, values = whole_numbers(300), whole_numbers(1100)
    index = generator.integers(0, highest, 1100)
    want = x.copy()
    np.add.at(want, index, values)
    with emulated_card(cores=1, atomics=frozenset()) as card:
        np.testing.assert_array_equal(given(x).scatter_add(0, given(index), given(values)).numpy(), want)
        assert len(segment_names(card)) == 2


@pytest.mark.parametrize("highest", [300, 3, 1], ids=["apart", "long segments", "one segment"])
@pytest.mark.usefixtures("short_sums")
def test_products_over_segments(highest: int) -> None:
    x, values = np.full(300, 2.0, np.float32), generator.choice(np.float32([1, -1, 2, 0.5]), 1100)
    index = generator.integers(0, highest, 1100)
    want = x.copy()
    np.multiply.at(want, index, values)
    with emulated_card(cores=1) as card:
        found = given(x).scatter_reduce(0, given(index), given(values), "prod")
        np.testing.assert_array_equal(found.numpy(), want)
        assert "multiply_segments" in {program.name for program in card.programs}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.usefixtures("short_sums")
def test_columns_with_indices_of_their_own_over_segments(axis: int) -> None:
    x, values = whole_numbers(30, 7), whole_numbers(40, 7)
    index = generator.integers(0, 30, (40, 7))
    want = x.copy()
    np.add.at(want, (index, np.arange(7)[None, :].repeat(40, 0)), values)
    x, values, index, want = (array if axis == 0 else array.T.copy() for array in (x, values, index, want))
    with emulated_card(cores=1, atomics=frozenset()) as card:
        found = given(x).scatter_add(axis, given(index), given(values))
        np.testing.assert_array_equal(found.numpy(), want)
        assert len(segment_names(card)) == 2


@pytest.mark.usefixtures("short_sums")
def test_gradients_of_rows_and_of_columns_over_segments() -> None:
    table, index, slope = whole_numbers(40, 6), generator.integers(0, 40, (9, 11)), whole_numbers(9, 11, 6)
    want, across = np.zeros_like(table), np.zeros_like(table.T)
    np.add.at(want, index, slope)
    np.add.at(across.T, index, slope)
    with emulated_card(cores=1, atomics=frozenset()) as card:
        source, turned = given(table), given(np.ascontiguousarray(table.T))
        (found,) = (source[given(index)] * given(slope)).sum().gradient(source)
        np.testing.assert_array_equal(found.numpy(), want)
        assert len(segment_names(card)) == 2
        picked = turned[:, given(index.reshape(-1))]
        (found,) = (picked * given(slope.reshape(99, 6).T.copy())).sum().gradient(turned)
        np.testing.assert_array_equal(found.numpy(), across)


@pytest.mark.usefixtures("short_sums")
def test_a_sum_over_segments_has_the_same_bits_every_time() -> None:
    index, values = generator.integers(0, 5, 3000), generator.standard_normal(3000).astype(np.float32)
    with emulated_card(cores=1, atomics=frozenset()):
        sums = [given(np.zeros(50, np.float32)).scatter_add(0, given(index), given(values)).numpy() for _ in range(2)]
    assert sums[0].tobytes() == sums[1].tobytes()
    want = np.bincount(index, values.astype(np.float64), 50)
    np.testing.assert_allclose(sums[0], want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.usefixtures("short_sums")
def test_few_rows_are_summed_by_index_where_they_are(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever axis is indexed, the values are read in place: no kernel permutes them."""
    monkeypatch.setattr(segments, "MAX_DIRECT", 100)
    table = whole_numbers(5, 6, 7)
    index = generator.integers(0, table.shape[axis], 90)
    slope = whole_numbers(*(90 if each == axis else size for each, size in enumerate(table.shape)))
    want = np.zeros_like(table)
    np.add.at(np.moveaxis(want, axis, 0), index, np.moveaxis(slope, axis, 0))
    with emulated_card(cores=1, atomics=frozenset()) as card:
        source = given(table)
        picked = source[tuple(given(index) if each == axis else slice(None) for each in range(3))]
        (found,) = (picked * given(slope)).sum().gradient(source)
        np.testing.assert_array_equal(found.numpy(), want)
        names = [program.name for program in card.programs]
        assert "sum_rows_by_index" in names
        assert not any(str(slope.size) in name or "x".join(map(str, slope.shape)) in name for name in names)


@pytest.mark.parametrize("is_centred", [False, True], ids=["plain", "centred"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((9, 271853, 3, 4), (0, 1, 2, 3)),
        ((5469, 437, 1, 3), (0, 1, 3)),
        ((60, 401, 401), (1, 2)),
    ],
    ids=str,
)
def test_long_reductions_to_few_results_fill_the_card(
    shape: tuple[int, ...], axes: tuple[int, ...], is_centred: bool
) -> None:
    """Also where no axis has a useful divisor."""
    source = leaf(0, *shape)
    if is_centred:
        middle = leaf(1, *(1 if axis in axes else size for axis, size in enumerate(shape)))
        source = build.alu(Ops.SUB, source, build.expand(middle, shape)) * 2.0
    split = split_reduction(build.reduce_axis(Ops.ADD, source, axes), CARD)
    assert split is not None
    first = next(node for node in toposort(split) if node.op is Ops.REDUCE_AXIS)
    made = chosen(first)
    assert math.prod(size_of(axis) for axis in made.view.of_kind(AxisType.LOOP)) >= 2 * CARD.cores
    # Threads that share a sum read vectors side by side.
    steps = [stride(load, axis) for load in made.buffers for axis in made.view.of_kind(AxisType.GROUP)]
    assert any(step is not None and 0 < step <= 8 for step in steps)


def test_short_sums_by_index_are_left_as_they_are() -> None:
    x, index, values = whole_numbers(300), generator.integers(0, 300, 700), whole_numbers(700)
    with emulated_card() as card:
        given(x).scatter_add(0, given(index), given(values)).numpy()
        assert not segment_names(card)


# ---------------------------------------------------------------- running sums

SCANNED = [(3, 64), (2, 100), (1, 513), (5, 1000), (2, 3, 700), (1, 3000), (130, 65)]


@pytest.mark.parametrize("facts", [{}, {"max_local_bytes": 8192, "max_group_size": 64}], ids=["row", "blocks"])
@pytest.mark.parametrize("shape", SCANNED, ids=str)
def test_running_sums_of_rows(shape: tuple[int, ...], facts: dict[str, int]) -> None:
    """One kernel where a row fits in local memory; and their gradient, running sums from the other end."""
    x, slope = whole_numbers(*shape), whole_numbers(*shape)
    with emulated_card(**facts) as card:
        source = given(x)
        np.testing.assert_array_equal(source.cumsum(-1).numpy(), x.cumsum(-1))
        assert {"scan_rows"} <= {program.name for program in card.programs}
        assert facts or len(card.programs) == 1
        (found,) = (source.cumsum(-1) * given(slope)).sum().gradient(source)
        np.testing.assert_array_equal(found.numpy(), np.flip(np.flip(slope, -1).cumsum(-1), -1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_running_sums_of_long_rows_copy_no_row(dtype: str) -> None:
    """A length that is not a number of whole blocks, and a dtype that is summed in another: the kernel reads the rows
    as they are and stores the result."""
    x = generator.integers(-1, 2, (2, 1601)).astype(np.float32)
    with emulated_card(max_local_bytes=8192, max_group_size=64) as card:
        source = given(x).cast(dtype).realize()
        card.programs.clear()
        found = source.cumsum(-1).realize()
        sizes = [param.size for program in card.programs for param in program.params if param.is_written]
        assert sizes.count(x.size) == 1
        np.testing.assert_array_equal(found.cast("float32").numpy(), x.cumsum(-1))
        if dtype != "int8":
            (slopes,) = (source.cumsum(-1) * given(x).cast(dtype)).sum().gradient(source)
            np.testing.assert_array_equal(slopes.cast("float32").numpy(), np.flip(np.flip(x, -1).cumsum(-1), -1))


def test_a_running_sum_does_not_see_what_comes_later() -> None:
    x = np.ones((2, 300), np.float32)
    x[0, 200], x[1, 40:42] = np.inf, (np.inf, -np.inf)
    numbers = generator.integers(-9, 9, (2, 200)).astype(np.int32)
    with np.errstate(invalid="ignore"):
        want = x.cumsum(1)
    with emulated_card(max_local_bytes=4096, max_group_size=32):
        np.testing.assert_array_equal(given(x).cumsum(1).numpy(), want)
        np.testing.assert_array_equal(given(numbers).cumsum(1).numpy(), numbers.cumsum(1))


def test_other_running_reductions_stay_as_they_are() -> None:
    x = whole_numbers(70, 5)
    with emulated_card() as card:
        np.testing.assert_array_equal(given(x).cumsum(0).numpy(), x.cumsum(0))
        np.testing.assert_array_equal(given(x.T.copy()).cummax(1)[0].numpy(), np.maximum.accumulate(x.T, 1))
        assert not any(program.name == "scan_rows" for program in card.programs)


def test_threads_of_a_row_are_enough_for_what_it_stores() -> None:
    """A row of 279841 elements less the sum of 69 parts of it had as many threads as the sum."""
    parts, rows = build.reduce_axis(Ops.ADD, leaf(0, 120, 69), (1,)), leaf(1, 120, 529 * 529)
    made = chosen(build.alu(Ops.SUB, rows, build.expand(build.reshape(parts, (120, 1)), rows.shape)))
    assert made.threads >= 512

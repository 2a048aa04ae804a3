"""SCATTER: sums by index walk the terms once, in their order, and are what comparing every place with every term gives.
The heuristic takes it where there are many places, and the methods of tensors lead to kernels that it applies to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.kernels import kernel, kernel_of, leaf
from tests.kernel.test_transforms import check
from tilewright import Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.backends.python.device import python_target
from tilewright.base import events
from tilewright.base.config import Context
from tilewright.base.dtype import dtypes
from tilewright.base.errors import KernelOptError
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.execution.realize import schedule
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.kernel.analysis.versions import digit_of, share_digit, share_masked_digit
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import optimise

SCATTER, UPCAST, THREAD, LOCAL = OptOps.SCATTER, OptOps.UPCAST, OptOps.THREAD, OptOps.LOCAL
DISTRIBUTE, BLOCK, PADTO = OptOps.DISTRIBUTE, OptOps.BLOCK, OptOps.PADTO
generator = np.random.default_rng(5)


def by_index(places: int, terms: int, columns: int, own: str = "") -> UOp:
    """The kernel of an embedding's gradient; or what is added to a tensor, which may be kept where nothing is."""
    shape = (places, terms, columns)
    index, rows = leaf(0, terms, dtype=dtypes.int32), leaf(1, terms, columns)
    match = build.alu(Ops.CMPEQ, build.expand(build.reshape(index, (1, terms, 1)), shape), build.axis_iota(shape, 0))
    given = build.expand(build.reshape(rows, (1, terms, columns)), shape)
    total = build.reduce_axis(Ops.ADD, build.where(match, given, build.const(dtypes.float32, 0.0)), (1,))
    if not own:
        return kernel_of(total)
    begun = leaf(2, places, 1, columns)
    whole = begun + total
    return kernel_of(whole if own == "added" else build.where(total.eq(0.0), begun, whole))


def chosen(ast: UOp, target) -> list[OptOps]:
    info = optimise(ast, target).arg
    assert isinstance(info, KernelInfo)
    return [opt.op for opt in info.applied]


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
@pytest.mark.parametrize("name", ["added_by_index", "greatest_by_index"])
def test_no_place_looks_for_its_terms_any_more(name: str, parts: int) -> None:
    ast = kernel(name)
    axis = 0 if name == "added_by_index" else 1
    if parts > view_kernel(ast).axes[axis].vmax + 1:
        with pytest.raises(KernelOptError, match="SCATTER takes 1 to 7 parts of axis 1, not 9"):
            apply_opt(ast, Opt(SCATTER, axis, parts))
        return
    assert not any(node.op is Ops.REDUCE for node in toposort(apply_opt(ast, Opt(SCATTER, axis, parts))))
    check(ast, (Opt(SCATTER, axis, parts),), ("PYTHON", "CPU"))


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("own", ["added", "kept"])
def test_outputs_begin_with_what_the_sums_are_added_to(own: str, parts: int) -> None:
    """A copy and the rows that are added, in one kernel: the sums were stored, and added in a pass of their own."""
    ast = by_index(9, 5, 4, own)
    assert not any(node.op is Ops.REDUCE for node in toposort(apply_opt(ast, Opt(SCATTER, 0, parts))))
    check(ast, (Opt(SCATTER, 0, parts),), ("PYTHON", "CPU"))


def test_added_rows_keep_what_is_not_named() -> None:
    values = np.full((4000, 20), -0.0, np.float32)
    rows, index = generator.standard_normal((3, 20)).astype(np.float32), np.array([7, 3999, 7])
    expected = values.copy()
    np.add.at(expected, index, rows)
    found = Tensor(values).index_add(0, Tensor(index), Tensor(rows)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    spread = np.repeat(index[:, None], 20, 1)
    again = Tensor(values).scatter_add(0, Tensor(spread), Tensor(rows)).numpy()
    np.testing.assert_allclose(again, expected, rtol=1e-6)
    assert np.signbit(again[0]).all()
    with Context(NOOPT=1):
        np.testing.assert_allclose(
            Tensor(values).index_add(0, Tensor(index), Tensor(rows)).numpy(), expected, rtol=1e-6
        )


@pytest.mark.parametrize(
    ("opts", "device"),
    [
        ((Opt(SCATTER, 0, 3), Opt(UPCAST, 1, 4), Opt(THREAD, 0, 3)), "CPU"),
        ((Opt(SCATTER, 0, 1), Opt(UPCAST, 1, 2), Opt(THREAD, 1, 2)), "CPU"),
        ((Opt(SCATTER, 0, 3), Opt(LOCAL, 1, 4)), "PYTHON"),
        ((Opt(SCATTER, 0, 4), Opt(LOCAL, 1, 2), Opt(LOCAL, 1, 4)), "PYTHON"),
    ],
    ids=str,
)
def test_columns_and_parts_are_shared(opts: tuple[Opt, ...], device: str) -> None:
    """The emulator reports two threads at one place."""
    check(kernel("added_by_index"), opts, (device,))


@pytest.mark.parametrize(
    ("name", "opts", "words"),
    [
        ("row_sums", (Opt(SCATTER, 0, 2),), "not selected by a condition"),
        ("added_by_index", (Opt(SCATTER, 1, 2),), "no condition compares an index with axis 1"),
        ("added_by_index", (Opt(SCATTER, 2, 2),), "needs an output loop"),
        ("added_by_index", (Opt(SCATTER, 0, 0),), "takes 1 to 9 parts"),
        ("added_by_index", (Opt(SCATTER, 0, 2), Opt(SCATTER, 0, 2)), "does not order its stores"),
        ("added_by_index", (Opt(UPCAST, 1, 2), Opt(SCATTER, 0, 2)), "comes before"),
        ("elementwise", (Opt(SCATTER, 0, 2),), "not a reduction"),
    ],
)
def test_what_is_no_sum_by_index_is_refused(name: str, opts: tuple[Opt, ...], words: str) -> None:
    sink = kernel(name)
    for opt in opts[:-1]:
        sink = apply_opt(sink, opt)
    with pytest.raises(KernelOptError, match=words):
        apply_opt(sink, opts[-1])


def test_the_walk_over_terms_is_not_shared() -> None:
    """Terms of one place come in their order, so no thread and no tile takes the loop apart."""
    sink = apply_opt(kernel("added_by_index"), Opt(SCATTER, 0, 3))
    walk = next(number for number, axis in enumerate(view_kernel(sink).axes) if axis.vmax == 11)
    for op, amount in ((THREAD, 12), (UPCAST, 2), (LOCAL, 4)):
        with pytest.raises(KernelOptError):
            apply_opt(sink, Opt(op, walk, amount))


def test_the_heuristic_walks_terms_where_places_are_many() -> None:
    assert chosen(by_index(4096, 64, 64), cpu_target())[0] is SCATTER
    assert SCATTER not in chosen(by_index(4, 64, 64), cpu_target())
    assert chosen(by_index(4096, 64, 64), python_target())[0] is SCATTER
    assert SCATTER not in chosen(by_index(4, 64, 4), python_target())


def test_the_order_of_a_sum_does_not_depend_on_the_parts() -> None:
    index = Tensor(generator.integers(0, 40, 300).astype(np.int32))
    rows = Tensor(generator.standard_normal((300, 64), dtype=np.float32))
    found = set()
    ways: list[tuple[Opt, ...]] = [(Opt(SCATTER, 0, parts), Opt(UPCAST, 1, 16)) for parts in (1, 2, 5)]
    ways += [(Opt(SCATTER, 0, parts), Opt(DISTRIBUTE, 1), Opt(UPCAST, fill, 8)) for parts, fill in ((1, 0), (5, 1))]
    ways.append((Opt(SCATTER, 0, 1), Opt(BLOCK, 1, 16), Opt(THREAD, 1, 4), Opt(DISTRIBUTE, 2)))
    for opts in ways:
        ast = by_index(40, 300, 64)
        made = Tensor.custom_kernel(
            Tensor.empty(40, 64), index, rows, fxn=lambda *_, ast=ast, opts=opts: ast.replace(arg=KernelInfo("s", opts))
        )[0]
        found.add(made.numpy().tobytes())
    assert len(found) == 1


def spread(places: int, terms: int, columns: int) -> UOp:
    """Added by an index for each column of each term, as `scatter_add` along the first axis."""
    shape = (places, terms, columns)
    index, rows, begun = (
        leaf(0, terms, columns, dtype=dtypes.int32),
        leaf(1, terms, columns),
        leaf(2, places, 1, columns),
    )
    named, given = (build.expand(build.reshape(each, (1, terms, columns)), shape) for each in (index, rows))
    match = build.alu(Ops.CMPEQ, named, build.axis_iota(shape, 0))
    return kernel_of(
        begun + build.reduce_axis(Ops.ADD, build.where(match, given, build.const(dtypes.float32, 0.0)), (1,))
    )


@pytest.mark.parametrize("make", [by_index, spread])
@pytest.mark.parametrize(
    "opts",
    [
        (Opt(SCATTER, 0, 1), Opt(DISTRIBUTE, 1), Opt(UPCAST, 0, 8)),
        (Opt(SCATTER, 0, 3), Opt(THREAD, 0, 3), Opt(DISTRIBUTE, 1), Opt(UPCAST, 1, 8)),
        (Opt(SCATTER, 0, 1), Opt(BLOCK, 1, 4), Opt(THREAD, 1, 2), Opt(DISTRIBUTE, 2)),
        (
            Opt(SCATTER, 0, 2),
            Opt(PADTO, 1, 6),
            Opt(BLOCK, 1, 6),
            Opt(THREAD, 1, 2),
            Opt(DISTRIBUTE, 2),
            Opt(UPCAST, 3, 6),
        ),
    ],
    ids=str,
)
def test_rows_inside_the_loop_over_terms(make: Callable[..., UOp], opts: tuple[Opt, ...]) -> None:
    check(make(9, 12, 8), opts, ("CPU", "PYTHON"))


def last_by_index(places: int, terms: int, columns: int) -> UOp:
    """The last term that an index puts at each place, which keeps its own value where there is none."""
    shape = (places, terms, columns)
    index, rows, begun = leaf(0, terms, columns, dtype=dtypes.int32), leaf(1, terms, columns), leaf(2, places, columns)
    named = build.expand(build.reshape(index, (1, terms, columns)), shape)
    match = build.alu(Ops.CMPEQ, named, build.axis_iota(shape, 0))
    offered = build.where(match, build.axis_iota(shape, 1), build.const(dtypes.int32, dtypes.int32.min))
    last = build.reshape(build.reduce_axis(Ops.MAX, offered, (1,)), (places, columns))
    put = build.gather(rows, last, build.axis_iota((places, columns), 1))
    return kernel_of(build.where(build.alu(Ops.CMPLT, last, build.const(dtypes.int32, 0)), begun, put))


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("opts", [(), (Opt(DISTRIBUTE, 1),)], ids=str)
def test_the_last_term_replaces_what_is_there(parts: int, opts: tuple[Opt, ...]) -> None:
    ast = last_by_index(9, 12, 4)
    sink = apply_opt(ast, Opt(SCATTER, 0, parts))
    assert not any(node.op is Ops.REDUCE for node in toposort(sink))
    check(ast, (Opt(SCATTER, 0, parts), *opts), ("CPU", "PYTHON"))
    assert chosen(ast, cpu_target())[0] is SCATTER


def test_scatter_is_one_copy_and_one_walk_over_the_terms() -> None:
    index = generator.permuted(np.tile(np.arange(64)[:, None], (1, 40)), axis=0)[:50, :37]
    x, rows = (Tensor(generator.standard_normal((64, 40), dtype=np.float32)).realize() for _ in range(2))
    given = Tensor(index).realize()
    found = x.scatter(0, given, rows)
    items = schedule([found.uop], "CPU").items
    assert sum(item.ast is not None for item in items) == 1
    expected = x.numpy().copy()
    for term in range(50):
        for column in range(37):
            expected[index[term, column], column] = rows.numpy()[term, column]
    np.testing.assert_array_equal(found.numpy(), expected)


def test_distributed_loops_walk_memory_in_order() -> None:
    sink = apply_opt(apply_opt(spread(9, 12, 8), Opt(SCATTER, 0, 1)), Opt(DISTRIBUTE, 1))
    assert [int(axis.vmax) + 1 for axis in view_kernel(sink).axes] == [72, 12, 8]
    for op in (THREAD, DISTRIBUTE):
        with pytest.raises(KernelOptError):
            apply_opt(sink, Opt(op, 2, 8 if op is THREAD else None))


@pytest.mark.parametrize(
    ("name", "opt", "words"),
    [
        ("row_sums", Opt(DISTRIBUTE, 0), "stores in loops of their own"),
        ("elementwise", Opt(DISTRIBUTE, 0), "stores in loops of their own"),
        ("added_by_index", Opt(DISTRIBUTE, 2), "an output loop of known size"),
        ("added_by_index", Opt(DISTRIBUTE, 0, 2), "takes no argument"),
    ],
)
def test_what_cannot_be_distributed_is_refused(name: str, opt: Opt, words: str) -> None:
    with pytest.raises(KernelOptError, match=words):
        apply_opt(kernel(name), opt)


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
@pytest.mark.parametrize(("make", "columns"), [(spread, 64), (spread, 61), (by_index, 640), (by_index, 613)])
def test_cores_take_parts_of_rows(make: Callable[..., UOp], columns: int, cores: int) -> None:
    target = replace(cpu_target(), cores=cores)
    ast = make(100 if make is spread else 20, 7, columns)
    opts = optimise(ast, target).arg.applied
    assert OptOps.SCATTER in [opt.op for opt in opts]
    assert OptOps.DISTRIBUTE in [opt.op for opt in opts]
    assert (OptOps.THREAD in [opt.op for opt in opts]) is (cores > 1 and not (columns == 61 and cores == 2))
    check(ast, opts, ("CPU",))


@pytest.mark.parametrize("columns", [37, 61, 149, 1149])
def test_rows_without_divisors_are_padded_to_whole_vectors(columns: int) -> None:
    """A tile of a few lanes walks all terms as long as a wide one."""
    target = replace(cpu_target(), vector_bytes=64, cores=2)
    sink = optimise(by_index(96, 40, columns), target)
    assert OptOps.SCATTER in [opt.op for opt in sink.arg.applied]
    tiles = [opt.arg for opt in sink.arg.applied if opt.op is UPCAST]
    assert [tile for tile in tiles if isinstance(tile, int) and tile >= 32]
    if columns < 100:
        check(by_index(96, 40, columns), None, ("CPU",))


# ---------------------------------------------------------------- positions


def test_a_masked_axis_is_read_off_a_position_that_its_mask_keeps_in_a_row() -> None:
    memory, row, column = kernel("added_by_index").src[0].src[0].src[0], UOp.range(5, 0), UOp.range(16, 1)

    def access(step: int, *mask: UOp) -> UOp:
        return UOp(Ops.INDEX, dtypes.float32, (memory, row * step + column, *mask))

    inside = column < 13
    assert share_masked_digit([access(13, inside), access(26, inside & (row < 3))], column)
    assert share_masked_digit([access(16, inside)], column)
    assert not share_masked_digit([access(12, inside)], column)  # the last column of a row is the first of the next
    assert not share_masked_digit([access(13, inside), access(13)], column)
    assert not share_masked_digit([access(26, inside), access(33, inside)], column)
    assert share_masked_digit([access(13, inside)], row)  # the columns of a row are fewer than its step
    assert not share_masked_digit([access(12, inside)], row)
    assert share_masked_digit([access(-13, inside)], column)
    assert not share_masked_digit([access(13, inside), access(-13, inside)], row)
    part, limit = UOp.range(3, 2), (row + column * 5) < 7
    within = UOp(Ops.INDEX, dtypes.float32, (memory, part * 7 + row + column * 5, limit))
    assert all(share_masked_digit([within], axis) for axis in (row, column, part))
    assert not share_masked_digit([UOp(Ops.INDEX, dtypes.float32, (memory, part * 6 + row + column * 5, limit))], part)


def test_an_axis_is_read_off_a_position() -> None:
    view = view_kernel(apply_opt(kernel("added_by_index"), Opt(SCATTER, 0, 3)))
    part, column = view.axes[:2]
    positions = [place.src[1] for place in view.stores]
    assert [digit_of(position, part) for position in positions] == [(12, 0), (12, 0)]
    assert [digit_of(position, column) for position in positions] == [(1, 4), (1, 4)]
    assert share_digit(positions, part)
    # Moved by one, a place is reached in two iterations.
    assert not share_digit([positions[0], positions[0] + 1], column)
    assert not share_digit([positions[0], column * 2 + part * 12], column)


def test_a_loop_of_computed_size_ends_where_the_loops_around_it_are() -> None:
    """Rows k + 1, k + 2, ... of one matrix stay inside of it; rows that may leave it do not tell matrices apart."""
    matrix, step = UOp.range(3, 0), UOp.range(4, 1)
    rest = UOp.range(3 - step, 2)
    assert digit_of(matrix * 16 + (step + 1 + rest) * 4, matrix) == (16, 0)
    assert digit_of(matrix * 16 + (3 - rest) * 4 + step, matrix) == (16, 0)
    assert digit_of(matrix * 16 + (step + 2 + rest) * 4, matrix) is None
    assert digit_of(matrix * 16 + (2 - rest - step) * 4, matrix) == (16, 0)
    assert digit_of(matrix * 16 + (1 - rest - step) * 4, matrix) is None


# ---------------------------------------------------------------- tensors


def put(x: np.ndarray, index: np.ndarray, values: np.ndarray, function: Callable[..., None]) -> np.ndarray:
    found = x.copy()
    for k in range(len(index)):
        for column in range(x.shape[1]):
            place = found[index[k, column] : index[k, column] + 1 or None, column]
            function(place, values[k, column])
    return found


def _assign(place: np.ndarray, value: float) -> None:
    place[:] = value


COMBINES: dict[str, Callable[..., None]] = {
    "sum": lambda place, value: np.add(place, value, out=place),
    "prod": lambda place, value: np.multiply(place, value, out=place),
    "amax": lambda place, value: np.maximum(place, value, out=place),
    "amin": lambda place, value: np.minimum(place, value, out=place),
}


@pytest.fixture(params=["CPU", "PYTHON"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("reduce", [*COMBINES, "put"])
def test_scatter_of_many_places(reduce: str, dtype: str, device: str) -> None:
    x = generator.integers(-2, 3, (700, 5)).astype(dtype)
    index = generator.integers(-700, 700, (60, 5))
    index[7:12] = -1
    values = generator.integers(-2, 3, (60, 5)).astype(dtype)
    arguments = [Tensor(each, device=device) for each in (index, values)]
    target = Tensor(x, device=device)
    found = target.scatter(0, *arguments) if reduce == "put" else target.scatter_reduce(0, *arguments, reduce)
    assert found.tolist() == put(x, index, values, COMBINES.get(reduce, _assign)).tolist()


def test_rows_set_by_two_indices(device: str) -> None:
    x = generator.integers(-9, 9, (40, 30, 3)).astype(np.float32)
    first, second = generator.integers(-40, 40, 90), generator.integers(-30, 30, 90)
    rows = generator.integers(-9, 9, (90, 3)).astype(np.float32)
    target = Tensor(x, device=device)
    target[Tensor(first, device=device), Tensor(second, device=device)] = Tensor(rows, device=device)
    x[first, second] = rows
    assert target.tolist() == x.tolist()


def test_gradients_of_an_embedding(device: str) -> None:
    """Of first and second order; the rows that nothing names have none."""
    words = generator.integers(-300, 300, 50)
    words[:6] = 17
    weights = generator.integers(-3, 4, (50, 8)).astype(np.float32)
    table = Tensor(generator.integers(-3, 4, (300, 8)).astype(np.float32), device=device, requires_grad=True)
    picked = table[Tensor(words, device=device)]
    (gradient,) = (picked * picked * Tensor(weights, device=device)).sum().gradient(table)
    expected = np.zeros((300, 8), np.float32)
    np.add.at(expected, words, 2 * table.numpy()[words] * weights)
    assert gradient.tolist() == expected.tolist()
    (second,) = gradient.sum().gradient(table)
    expected = np.zeros((300, 8), np.float32)
    np.add.at(expected, words, 2 * weights)
    assert second.tolist() == expected.tolist()


def test_an_embedding_gradient_walks_its_words() -> None:
    """The kernel that adds 512 rows into 4096 takes no 4096 * 512 steps."""
    table = Tensor(np.zeros((4096, 64), np.float32), requires_grad=True)
    words = Tensor(generator.integers(0, 4096, 512))
    forget_kernels()
    seen: list[events.Event] = []
    with Context(CACHE=0), events.subscribe(seen.append, ("kernel-compiled",)):
        gradient = table[words].sum().gradient(table)[0].realize()
    assert gradient.sum().item() == 512 * 64
    assert any("SCATTER" in repr(event["kernel"]) for event in seen)


def test_terms_at_computed_indices_are_walked_though_the_places_are_few() -> None:
    """The gradient of the square of gathered elements gathers them: comparisons would do so for every output, lane by
    lane."""
    table = Tensor(generator.standard_normal((6, 2087)).astype(np.float32), requires_grad=True)
    words = generator.integers(0, 6, (6, 2087))
    forget_kernels()
    seen: list[events.Event] = []
    with Context(CACHE=0), events.subscribe(seen.append, ("kernel-compiled",)):
        gradient = table.gather(0, Tensor(words)).square().sum().gradient(table)[0].realize()
    expected = np.zeros((6, 2087), np.float32)
    np.add.at(expected, (words, np.arange(2087)), 2 * np.take_along_axis(table.numpy(), words, 0))
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6)
    assert any("SCATTER" in repr(event["kernel"]) for event in seen)


@pytest.mark.parametrize(
    ("places", "columns", "is_walked"), [(512, 816, True), (128, 512, True), (512, 64, True), (8, 816, False)]
)
def test_lanes_with_an_output_of_their_own_are_walked_unless_the_places_are_few(
    places: int, columns: int, is_walked: bool
) -> None:
    """`scatter_add` along the rows: each lane reads and writes an element, which costs a few comparisons of vectors."""
    shape = (places, places, columns)
    index, rows = leaf(0, places, columns, dtype=dtypes.int32), leaf(1, places, columns)
    spread = build.expand(build.reshape(index, (1, places, columns)), shape)
    match = build.alu(Ops.CMPEQ, spread, build.axis_iota(shape, 0))
    given = build.expand(build.reshape(rows, (1, places, columns)), shape)
    ast = kernel_of(build.reduce_axis(Ops.ADD, build.where(match, given, build.const(dtypes.float32, 0.0)), (1,)))
    assert (SCATTER in chosen(ast, cpu_target())) is is_walked


@pytest.mark.parametrize(("columns", "is_blocked"), [(4100, True), (256, False), (4099, False)])
def test_outputs_in_any_order_stay_in_the_cache_of_a_core(columns: int, is_blocked: bool) -> None:
    """4099 has no divisors: a masked element costs as much as what the cache saves."""
    shape = (100, 100, columns)
    index, rows = leaf(0, 100, columns, dtype=dtypes.int32), leaf(1, 100, columns)
    match = build.alu(
        Ops.CMPEQ, build.expand(build.reshape(index, (1, 100, columns)), shape), build.axis_iota(shape, 0)
    )
    given = build.expand(build.reshape(rows, (1, 100, columns)), shape)
    ast = kernel_of(build.reduce_axis(Ops.ADD, build.where(match, given, build.const(dtypes.float32, 0.0)), (1,)))
    target = replace(cpu_target(), cores=1, core_cache_bytes=1 << 20)
    blocks = [opt.arg for opt in optimise(ast, target).arg.applied if opt.op is OptOps.BLOCK]
    assert bool(blocks) is is_blocked
    assert all(100 * block * 4 <= target.core_cache_bytes // 2 for block in blocks)


@pytest.mark.parametrize(("columns", "is_walked"), [(479, True), (128, True), (8, False)])
def test_elements_along_a_row_are_walked_unless_the_places_are_few(columns: int, is_walked: bool) -> None:
    """`scatter_add` along the columns: a term is one element, not a row of vectors."""
    shape = (95, columns, columns)
    index, rows = leaf(0, 95, columns, dtype=dtypes.int32), leaf(1, 95, columns)
    spread = build.expand(build.reshape(index, (95, 1, columns)), shape)
    match = build.alu(Ops.CMPEQ, spread, build.axis_iota(shape, 1))
    given = build.expand(build.reshape(rows, (95, 1, columns)), shape)
    ast = kernel_of(build.reduce_axis(Ops.ADD, build.where(match, given, build.const(dtypes.float32, 0.0)), (2,)))
    assert (SCATTER in chosen(ast, cpu_target())) is is_walked

"""Reductions by index with atomic operations in memory and in local memory, on the emulator with the facts of a card:
values, special values, the same bits in any order of the terms, which of the ways is chosen, and that the emulator
reports what atomic operations do not order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.kernel.emulated_card import CARD, NAME, CardDriver, emulated_card
from tilewright import Context, Tensor
from tilewright.backends.python.emulator import run_program
from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import RaceError, UnsupportedError
from tilewright.codegen.pipeline import lower
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.kernels.nodes import load, loop, param, place, store
from tilewright.graph.kernels.sums_by_index import atomics, local_sums
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, const
from tilewright.schedule.sums_by_index import segments

generator = np.random.default_rng(41)
TINY = float(np.finfo(np.float32).smallest_subnormal)


def given(array: np.ndarray) -> Tensor:
    return Tensor(array, device=NAME)


FLOAT_KERNELS = {
    "_by_atomics": {"magnitudes_by_index", "add_by_index"},
    "_in_local_memory": {"sum_in_local_memory"},
    "_at_positions": {"max_by_index", "magnitudes_by_index", "add_by_index"},
    "_by_partition": {"order_by_bucket", "sum_buckets"},
}
CLOCKS = {
    "_by_atomics": "atomic_clocks",
    "_in_local_memory": "local_clocks",
    "_at_positions": "compact_clocks",
    "_by_partition": "partition_clocks",
}
WAYS = ("_by_index", "local", "bucket")


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """At sizes that the emulator runs."""
    monkeypatch.setattr(segments, "MIN_PASSES", 0)


@pytest.fixture(params=FLOAT_KERNELS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The kernels of a float sum, in the one way or the other."""
    choose(monkeypatch, request.param)
    return FLOAT_KERNELS[request.param]


def choose(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    for name in {*CLOCKS.values(), "segment_clocks"} - {CLOCKS[way]}:
        monkeypatch.setattr(segments, name, lambda *_: float("inf"))


def used(card: CardDriver) -> set[str]:
    return {program.name for program in card.programs if any(part in program.name for part in WAYS)}


def summed(index: np.ndarray, values: np.ndarray, count: int, kernels: set[str], **facts: int) -> np.ndarray:
    with emulated_card(**{"cores": 1} | facts) as card:
        zero = np.zeros((count, *values.shape[1:]), np.float32)
        found = given(zero).scatter_add(0, given(index), given(values)).numpy()
        assert used(card) == kernels
    return found


SCALES: dict[str, Callable[[int], np.ndarray]] = {
    "normal": lambda size: generator.standard_normal(size),
    "of all sizes": lambda size: generator.standard_normal(size) * 10.0 ** generator.uniform(-37, 37, size),
    "denormal": lambda size: generator.integers(-50, 50, size) * TINY,
    "large": lambda size: generator.standard_normal(size) * 1e36,
    "cancelling": lambda size: np.where(np.arange(size) % 2, 1e8, -1e8) + generator.standard_normal(size),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("count", [300, 2])
def test_a_float_sum_by_index_is_rounded_once(kind: str, count: int, kernels: set[str]) -> None:
    values = SCALES[kind](1100).astype(np.float32)
    index = generator.integers(0, count, 1100)
    want = np.zeros(count)
    np.add.at(want, index, values.astype(np.float64))
    largest = np.zeros(count)
    np.maximum.at(largest, index, np.abs(values.astype(np.float64)))
    error = np.abs(summed(index, values, count, kernels) - want)
    assert (error <= np.spacing(np.abs(want).astype(np.float32)) * 0.5001 + largest * 2.0**-40).all()


def test_a_float_sum_by_index_has_the_same_bits_in_any_order(kernels: set[str]) -> None:
    values = SCALES["of all sizes"](700).astype(np.float32)
    index = generator.integers(0, 20, 700)
    order = generator.permutation(700)
    first, second = summed(index, values, 20, kernels), summed(index[order], values[order], 20, kernels, cores=5)
    assert first.tobytes() == second.tobytes()


def test_infinities_and_nan_go_where_they_are_sent(kernels: set[str]) -> None:
    inf, nan = np.inf, np.nan
    values = np.array([inf, 1, -inf, 2, inf, -inf, nan, 3, nan, inf, 1e38, 3e38, 3e38, -0.0], np.float32)
    index = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 6])
    with np.errstate(all="ignore"):
        want = np.zeros(8, np.float32)
        np.add.at(want, index, values)
    np.testing.assert_array_equal(summed(index, values, 8, kernels), want)


@pytest.mark.parametrize("axis", [0, 1])
def test_columns_with_indices_of_their_own(axis: int, kernels: set[str]) -> None:
    x, values = (generator.integers(-4, 5, shape).astype(np.float32) for shape in ((30, 7), (40, 7)))
    index = generator.integers(0, 30, (40, 7))
    want = x.copy()
    np.add.at(want, (index, np.arange(7)[None, :].repeat(40, 0)), values)
    x, values, index, want = (array if axis == 0 else array.T.copy() for array in (x, values, index, want))
    with emulated_card(cores=1) as card:
        np.testing.assert_array_equal(given(x).scatter_add(axis, given(index), given(values)).numpy(), want)
        assert used(card) == kernels


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.int8])
@pytest.mark.parametrize("reduce", ["sum", "amax", "amin"])
def test_integers_are_combined_as_they_are(dtype: type, reduce: str) -> None:
    """Sums wrap. There are no atomic operations on narrow integers."""
    limits = np.iinfo(dtype)
    values = generator.integers(limits.min, limits.max, 400, dtype=dtype)
    x, index = np.arange(50).astype(dtype), generator.integers(0, 50, 400)
    want = x.copy()
    {"sum": np.add, "amax": np.maximum, "amin": np.minimum}[reduce].at(want, index, values)
    with emulated_card(cores=1) as card:
        found = given(x).scatter_reduce(0, given(index), given(values), reduce)
        np.testing.assert_array_equal(found.numpy(), want)
        assert bool(used(card) - {"sum_rows_by_index"}) == (dtype is not np.int8)


@pytest.mark.parametrize("columns", [1, 3])
def test_of_several_values_for_one_position_the_last_one_stays(columns: int) -> None:
    x, values = (generator.standard_normal((size, columns)).astype(np.float32) for size in (60, 90))
    index = generator.integers(0, 60, (90, columns))
    want = x.copy()
    for row in range(90):
        want[index[row], np.arange(columns)] = values[row]
    with emulated_card(cores=1) as card:
        np.testing.assert_array_equal(given(x).scatter(0, given(index), given(values)).numpy(), want)
        # One to find the last positions, one to read: indices are converted and positions counted there.
        assert used(card) == {"combine_in_local_memory"}
        assert len(card.programs) == 2
    with emulated_card(cores=1, max_local_bytes=0) as card:
        np.testing.assert_array_equal(given(x).scatter(0, given(index), given(values)).numpy(), want)
        assert used(card) == {"max_by_index"}
        assert len(card.programs) == 3  # one to fill


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_the_gradient_of_a_gather_in_two_bytes(dtype: DType, kernels: set[str]) -> None:
    table, index = generator.integers(-9, 9, (40, 5)).astype(np.float32), generator.integers(0, 40, (70, 5))
    slope = generator.integers(-3, 4, (70, 5)).astype(np.float32)
    want = np.zeros_like(table)
    np.add.at(want, (index, np.arange(5)[None, :].repeat(70, 0)), slope)
    with emulated_card(cores=1) as card:
        source = given(table).cast(dtype).realize()
        (found,) = (source.gather(0, given(index)) * given(slope).cast(dtype)).sum().gradient(source)
        np.testing.assert_array_equal(found.cast(dtypes.float32).numpy(), want)
        assert used(card) == kernels


@pytest.mark.parametrize("shape", [(300, 1), (1, 300), (300,)], ids=str)
def test_the_index_of_one_row_or_column_needs_no_kernel_of_its_own(shape: tuple[int, ...]) -> None:
    """Where axes of one element are does not change the order of the others."""
    axis = int(np.argmax(shape))
    x, slope = (generator.integers(-3, 4, shape).astype(np.float32) for _ in range(2))
    index = generator.integers(-300, 300, shape)
    want = np.zeros(300, np.float32)
    np.add.at(want, index.reshape(-1), slope.reshape(-1))
    with emulated_card(cores=1) as card:
        source, weight = given(x).realize(), given(slope).realize()
        (found,) = (source.gather(axis, given(index).realize()) * weight).sum().gradient(source)
        np.testing.assert_array_equal(found.numpy().reshape(-1), want)
        assert not [program.name for program in card.programs if program.params[0].dtype is dtypes.int32]


def test_what_names_no_output_is_left_out() -> None:
    numbers = np.array([-1, 0, 7, 2, -(2**31), 2**31 - 1, 2], np.int32)
    values = np.arange(1, 8, dtype=np.float32).reshape(1, 7, 1)
    with emulated_card():
        made = atomics.combine_by_number(Ops.ADD, given(numbers).uop, given(values).uop, 3, dtypes.float32, 256)
        np.testing.assert_array_equal(Tensor(made).numpy()[0, :, 0], [2, 0, 11])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("local_bytes", [1200, 2000, 1 << 17], ids="{} bytes".format)
@pytest.mark.parametrize("is_spread", [False, True], ids=["rows", "elements"])
@pytest.mark.parametrize(
    ("shape", "count"), [((1, 40, 37), 29), ((5, 33, 1), 70), ((3, 9, 4), 50), ((1, 3, 2), 1), ((9, 2, 1), 3)], ids=str
)
def test_columns_and_parts_of_outputs_in_local_memory(
    shape: tuple[int, int, int], count: int, is_spread: bool, local_bytes: int
) -> None:
    """Whatever of the outputs a work-group has, also with indices that name none of them."""
    outer, rows, inner = shape
    index = generator.integers(-2, count + 2, shape if is_spread else rows).astype(np.int32)
    values = generator.integers(-4, 5, shape).astype(np.float32)
    want = np.zeros((outer, count, inner), np.float32)
    full = np.broadcast_to(index if is_spread else index[None, :, None], shape)
    a, p, b = np.nonzero((full >= 0) & (full < count))
    np.add.at(want, (a, full[a, p, b], b), values[a, p, b])
    with emulated_card(cores=4, max_local_bytes=local_bytes) as card:
        plan = local_sums.plan_local_sums(shape, count, dtypes.float32, is_spread, card.target)
        assert plan is not None
        found = local_sums.sum_in_local_memory(given(index).uop, given(values).uop, count, plan)
        np.testing.assert_array_equal(Tensor(found).numpy(), want)
        least = np.full((outer, count, inner), np.iinfo(np.int32).max, np.int32)
        np.minimum.at(least, (a, full[a, p, b], b), values[a, p, b].astype(np.int32))
        plan = local_sums.plan_local(shape, count, dtypes.int32, is_spread, card.target, (dtypes.int32,))
        assert plan is not None
        whole = given(values.astype(np.int32)).uop
        found = local_sums.combine_in_local_memory(Ops.MIN, given(index).uop, whole, count, dtypes.int32, plan)
        np.testing.assert_array_equal(Tensor(found).numpy(), least)


# shape, axis of the outputs, outputs, whether each element has an index of its own; as measured on an H200 (h200.md)
CHOICES: dict[str, tuple[tuple[int, int, int], int, bool, set[str]]] = {
    "one long row": ((1, 1 << 20, 1), 1 << 20, True, {"_by_partition"}),
    "one row": ((1, 30000, 1), 30000, True, {"_by_atomics"}),
    "many terms for few outputs": ((1, 1 << 22, 1), 10000, True, {"_by_partition"}),
    "columns of a matrix": ((1, 2265, 2314), 2265, True, {"transposed"}),
    "rows of a matrix": ((8192, 512, 1), 512, True, {"in local memory"}),
    "many rows of an embedding": ((1, 60000, 64), 30000, False, {"_by_atomics"}),
    "few terms for many outputs": ((1, 1000000, 1), 20000000, True, {"_at_positions"}),
    "few rows of a long table": ((1, 3000, 32), 100000, False, {"_at_positions"}),
}


# The same where floats may be added in any order.
UNORDERED_CHOICES: dict[str, tuple[tuple[int, int, int], int, bool, set[str]]] = {
    "one long row": ((1, 1 << 20, 1), 1 << 20, True, {"_by_float_atomics"}),
    "many rows of an embedding": ((1, 60000, 64), 30000, False, {"_by_float_atomics"}),
    "few terms for many outputs": ((1, 1000000, 1), 20000000, True, {"_by_float_atomics"}),
    "many terms for very few outputs": ((1, 1 << 20, 1), 1000, True, {"_by_partition"}),
    "many terms for few outputs": ((1, 1 << 22, 1), 10000, True, {"_by_partition"}),
    "rows of a matrix": ((8192, 512, 1), 512, True, {"in local memory"}),
}


@pytest.mark.parametrize(
    ("choices", "name", "is_ordered"),
    [(CHOICES, name, True) for name in CHOICES] + [(UNORDERED_CHOICES, name, False) for name in UNORDERED_CHOICES],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_way_with_the_least_estimate_is_taken(choices: Any, name: str, is_ordered: bool) -> None:
    shape, outputs, is_spread, wanted = choices[name]
    whole = (shape[0], outputs, *shape[1:])
    index = Tensor.empty(*(shape if is_spread else (shape[1],)), dtype=dtypes.int32).uop
    numbers = build.reshape(index, (shape[0], 1, *shape[1:]) if is_spread else (1, 1, shape[1], 1))
    values = build.reshape(Tensor.empty(*shape).uop, (shape[0], 1, *shape[1:]))
    found = segments.IndexedReduction(Ops.ADD, numbers, values, 1, 2, outputs, is_spread)
    node = build.reduce_axis(Ops.ADD, build.expand(values, whole), (2,))
    target = replace(CARD, cores=132, max_local_bytes=232448)
    with Context(ALLOW_FLOAT_ATOMICS=int(not is_ordered)):
        first = segments._ways(found, node, target)[0]
    name = first.func.__name__ if isinstance(first, partial) else first.__name__
    if isinstance(first, partial) and name == "_in_local_memory":
        name = "transposed" if first.args[1] else "in local memory"
    assert {name} == wanted


def test_outputs_beyond_the_cache_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, "_by_atomics")
    values = SCALES["of all sizes"](900).astype(np.float32)
    index = generator.integers(0, 333, 900)
    whole, parts = (summed(index, values, 333, FLOAT_KERNELS["_by_atomics"], cache_bytes=c) for c in (1 << 20, 2000))
    assert whole.tobytes() == parts.tobytes()


@pytest.mark.parametrize("is_spread", [False, True], ids=["rows", "elements"])
def test_columns_are_copied_before_they_are_summed(is_spread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terms of a column adjacent: the results are the same bits."""
    x, values = np.zeros((2, 31, 7), np.float32), generator.standard_normal((2, 44, 7)).astype(np.float32)
    index = generator.integers(0, 31, (2, 44, 7) if is_spread else 44)
    found = []
    choose(monkeypatch, "_in_local_memory")
    for clocks in (-1e12, 1e12):
        monkeypatch.setattr(segments, "transposed_clocks", lambda *_, clocks=clocks: clocks)
        with emulated_card(cores=1) as card:
            given_x, given_index, given_values = (given(array) for array in (x, index, values))
            if is_spread:
                found.append(given_x.scatter_add(1, given_index, given_values).numpy())
            else:
                found.append(given_x.index_add(1, given_index, given_values).numpy())
            assert used(card) == {"sum_in_local_memory"}
    assert found[0].tobytes() == found[1].tobytes()
    full = np.broadcast_to(index if is_spread else index[None, :, None], values.shape)
    want = np.zeros(x.shape)
    np.add.at(want, (np.arange(2)[:, None, None], full, np.arange(7)), values.astype(np.float64))
    np.testing.assert_allclose(found[0], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("way", ["_by_atomics", "_in_local_memory"])
def test_rows_of_a_transposed_view_are_not_copied(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """index_add turns its rows to the end and back: that is no permutation of memory."""
    x, values, index = np.zeros((30, 8), np.float32), np.ones((50, 8), np.float32), generator.integers(0, 30, 50)
    want = x.copy()
    np.add.at(want, index, values)
    choose(monkeypatch, way)
    with emulated_card(cores=1) as card:
        tensors = [given(array).realize() for array in (x, index, values)]
        found = tensors[0].index_add(0, tensors[1], tensors[2])
        np.testing.assert_array_equal(found.numpy(), want)
        assert not any("50_8" in program.name for program in card.programs)


# ---------------------------------------------------------------- the store itself


def counting_kernel(threads: int, reads: bool = False) -> UOp:
    """Each thread adds 1 to cell thread % 4; or copies a cell that others add to."""
    thread = loop(threads, 0, AxisType.LOCAL)
    counts, copy = param(0, dtypes.int32, 4), param(1, dtypes.int32, threads)
    one = const(dtypes.int32, 1)
    effects = [UOp(Ops.STORE, dtypes.void, (place(counts, thread % 4), one), Ops.ADD)]
    if reads:
        effects.append(store(copy, thread, load(counts, thread % 4)))
    return UOp(Ops.SINK, dtypes.void, tuple(effects), KernelInfo("count", ()))


def test_the_interpreter_and_the_emulator_count_alike() -> None:
    with emulated_card() as card:
        program = lower(counting_kernel(10), card.target)
    found = np.zeros(4, np.int32)
    run_program(program, [found], [True])
    np.testing.assert_array_equal(found, [3, 3, 2, 2])
    assert [(p.is_read, p.is_written) for p in program.params] == [(True, True)]
    counts = np.full(4, 5, np.int32)
    evaluate(counting_kernel(10), {param(0, dtypes.int32, 4): counts})
    np.testing.assert_array_equal(counts, [8, 8, 7, 7])


def test_a_plain_read_beside_atomic_stores_is_a_race() -> None:
    with emulated_card() as card:
        program = lower(counting_kernel(10, reads=True), card.target)
    with pytest.raises(RaceError, match="nothing orders the two"):
        run_program(program, [np.zeros(4, np.int32), np.zeros(10, np.int32)], [True, False])


def test_a_target_without_atomic_operations_refuses_them() -> None:
    with emulated_card() as card, pytest.raises(UnsupportedError, match="updates int32 atomically"):
        lower(counting_kernel(10), replace(card.target, atomics=frozenset()))


# ---------------------------------------------------------------- extremes of floats, and constants


SPECIAL = {"plain": (), "NaN": (np.nan,), "infinities": (np.inf, -np.inf), "zeros": (0.0, -0.0), "tiny": (TINY, -TINY)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("has_own", [True, False])
@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("reduce", ["amax", "amin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_extremes_of_floats_are_those_of_integers(dtype: str, reduce: str, name: str, has_own: bool) -> None:
    """Every place with terms, every one without, NaN and what is next to it."""
    values = generator.standard_normal(200).astype(np.float32)
    for number in SPECIAL[name]:
        values[generator.integers(0, 200, 12)] = number
    index, x = generator.integers(0, 30, 200), generator.standard_normal(40).astype(np.float32)
    with emulated_card(atomics=CARD.atomics | {dtypes.int64}) as card:
        own, terms = (given(each).cast(dtype) for each in (x, values))
        found = own.scatter_reduce(0, given(index), terms, reduce, include_self=has_own)
        rounded, offered = own.double().numpy(), terms.double().numpy()
        seen = found.double().numpy()
        names = {program.name for program in card.programs}
        assert any(each.endswith(("_by_index", "in_local_memory")) for each in names)
    best, lowest = (np.maximum, -np.inf) if reduce == "amax" else (np.minimum, np.inf)
    want = rounded.copy() if has_own else np.where(np.isin(np.arange(40), index), lowest, rounded)
    with np.errstate(invalid="ignore"):
        best.at(want, index, offered)
    np.testing.assert_array_equal(seen, want)


def test_counts_are_sums_by_index_too() -> None:
    """A constant for every term was no value that is read by index: every place was compared with every term."""
    index = generator.integers(0, 50, 600)
    want = np.bincount(index, minlength=50)
    with emulated_card() as card:
        ones = Tensor.ones(600, device=NAME)
        np.testing.assert_array_equal(Tensor.zeros(50, device=NAME).index_add(0, given(index), ones).numpy(), want)
        np.testing.assert_array_equal(given(index).bincount(minlength=50).numpy(), want)
        means = Tensor.zeros(50, device=NAME).scatter_reduce(0, given(index), ones * 3, "mean", include_self=False)
        np.testing.assert_array_equal(means.numpy(), np.where(want > 0, 3.0, 0.0))
        assert not any(program.name.startswith("reduce_50_") for program in card.programs)

"""Float sums by index over a partition of the terms, on the emulator with the facts of a card: any sizes, indices that
name no output, buckets that most terms go to, terms of all magnitudes, and what is added in the store."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.emulated_card import CARD, NAME, emulated_card
from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.codegen.pipeline import lower
from tilewright.graph.kernels.sums_by_index import bucket_sums, partition
from tilewright.kernel.optimise import optimise
from tilewright.schedule.sums_by_index import segments

generator = np.random.default_rng(45)


def given(array: np.ndarray) -> Tensor:
    return Tensor(array, device=NAME)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 128 terms."""
    monkeypatch.setattr(partition, "THREADS", 32)
    monkeypatch.setattr(partition, "OWN", 4)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MIN_PASSES", 0)
    for name in ("atomic_clocks", "local_clocks", "compact_clocks", "segment_clocks"):
        monkeypatch.setattr(segments, name, lambda *_: float("inf"))


def summed(index: np.ndarray, values: np.ndarray, count: int, cores: int) -> np.ndarray:
    with emulated_card(cores=cores, max_group_size=64) as card:
        plan = partition.plan_partition(values.shape, count, dtypes.float32, card.target)
        assert plan is not None
        return Tensor(bucket_sums.sum_by_partition(given(index).uop, given(values).uop, count, plan)).numpy()


def expected(index: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    outer, _, inner = values.shape
    want = np.zeros((outer, count, inner))
    full = np.broadcast_to(index if index.ndim > 1 else index[None, :, None], values.shape)
    a, p, b = np.nonzero((full >= 0) & (full < count))
    np.add.at(want, (a, full[a, p, b], b), values[a, p, b].astype(np.float64))
    return want


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cores", [1, 4, 7])
@pytest.mark.parametrize("is_spread", [False, True], ids=["rows", "elements"])
@pytest.mark.parametrize(("shape", "count"), [((1, 700, 1), 300), ((5, 33, 3), 70), ((1, 3, 2), 1)], ids=str)
def test_sums_of_any_shape(shape: tuple[int, int, int], count: int, is_spread: bool, cores: int, small: None) -> None:
    """Also with indices that name no output."""
    index = generator.integers(-2, count + 2, shape if is_spread else shape[1]).astype(np.int32)
    values = generator.integers(-4, 5, shape).astype(np.float32)
    np.testing.assert_array_equal(summed(index, values, count, cores), expected(index, values, count))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["similar", "of all magnitudes", "one infinity"])
@pytest.mark.parametrize("hot", [0.0, 0.7, 1.0])
def test_a_bucket_with_most_terms(hot: float, kind: str, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """More terms than the parts of a sum have room for: carries go to the upper parts. The bits are those of sums with
    room for all of them."""
    index = generator.integers(0, 500, 900).astype(np.int32)
    index[generator.random(900) < hot] = 3
    values = generator.standard_normal((1, 900, 1))
    if kind == "of all magnitudes":
        values *= 10.0 ** generator.uniform(-30, 30, values.shape)
    values = values.astype(np.float32)
    if kind == "one infinity":
        values[0, 5] = np.inf
    found = []
    for most in (partition.MAX_UNCARRIED, 64):
        bucket_sums.sum_kernel.cache_clear()
        with monkeypatch.context() as changed:
            changed.setattr(bucket_sums, "MAX_UNCARRIED", most)
            changed.setattr(partition, "MAX_UNCARRIED", 1 << 30)
            found.append(summed(index, values, 500, 5))
    bucket_sums.sum_kernel.cache_clear()
    want = expected(index, values, 500)
    largest = np.zeros(500)
    np.maximum.at(largest, index, np.abs(values.reshape(-1).astype(np.float64)))
    finite = np.isfinite(want[0, :, 0])
    for sums in found:
        error = np.abs(sums[0, finite, 0] - want[0, finite, 0])
        limit = np.spacing(np.abs(want[0, finite, 0]).astype(np.float32)) * 0.5001 + largest[finite] * 2.0**-40
        assert (error <= limit).all()
        np.testing.assert_array_equal(sums[0, ~finite, 0], want[0, ~finite, 0])


def test_the_same_bits_in_any_order(small: None) -> None:
    index = generator.integers(0, 60, 700).astype(np.int32)
    values = (generator.standard_normal(700) * 10.0 ** generator.uniform(-3, 3, 700)).astype(np.float32)
    order = generator.permutation(700)
    found = [summed(i, v.reshape(1, -1, 1), 60, 3) for i, v in ((index, values), (index[order], values[order]))]
    assert found[0].tobytes() == found[1].tobytes()


def test_what_is_added_to_is_read_where_sums_are_stored(chosen: None) -> None:
    """One kernel orders, and converts the index as it reads it, and one sums; -0.0 without terms stays."""
    x = generator.standard_normal(200).astype(np.float32)
    x[::9] = -0.0
    index, values = generator.integers(1, 200, 150), generator.standard_normal(150).astype(np.float32)
    index[index % 9 == 0] = 1
    sums = np.zeros(200)
    np.add.at(sums, index, values.astype(np.float64))
    want = np.where(sums == 0, x, x + sums.astype(np.float32))
    with emulated_card(cores=2) as card:
        tensors = [given(array).realize() for array in (x, index, values)]
        before = len(card.programs)
        found = tensors[0].scatter_add(0, tensors[1], tensors[2]).numpy()
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)
        assert np.signbit(found[::9]).all()
        assert len(card.programs) - before == 2


@pytest.mark.parametrize("kind", ["zeros", "a product", "bfloat16"])
def test_what_is_added_to_is_not_stored_for_the_sums(kind: str, chosen: None) -> None:
    x, values = generator.integers(-4, 5, (2, 90)).astype(np.float32)
    index = generator.integers(0, 90, 90)
    with emulated_card(cores=2) as card:
        own, places, terms = (given(array).realize() for array in (x, index, values))
        if kind == "bfloat16":
            own, terms = (each.cast(dtypes.bfloat16).realize() for each in (own, terms))
        before = len(card.programs)
        if kind == "zeros":
            own = Tensor.zeros(90, device=NAME)
        elif kind == "a product":
            own = own * own
        found = own.scatter_add(0, places, terms).cast(dtypes.float32).numpy()
        made = [program.name for program in card.programs[before:]]
    want = {"zeros": x * 0, "a product": x * x, "bfloat16": x}[kind].astype(np.float64)
    np.add.at(want, index, values.astype(np.float64))
    np.testing.assert_array_equal(found, want)
    assert made[:2] == ["order_by_bucket", "sum_buckets"]
    assert len(made) == 3


@pytest.mark.parametrize("kind", ["from the end", "computed", "two indices"])
def test_an_index_is_computed_where_it_is_read(kind: str, chosen: None) -> None:
    """Negative numbers count from the end; an index of several tensors is stored first."""
    index, values = generator.integers(-90, 90, 150), generator.integers(-4, 5, 150).astype(np.float32)
    other = generator.integers(0, 2, 150)
    with emulated_card(cores=2) as card:
        places, terms, added = (given(array).realize() for array in (index, values, other))
        before = len(card.programs)
        numbers = {"from the end": places, "computed": (places * 2 + 1) % 90, "two indices": (places + added) % 90}[
            kind
        ]
        found = Tensor.zeros(90, device=NAME).scatter_add(0, numbers, terms).numpy()
        made = [program.name for program in card.programs[before:]]
    named = {"from the end": index, "computed": (index * 2 + 1) % 90, "two indices": (index + other) % 90}[kind]
    want = np.zeros(90)
    np.add.at(want, named, values)
    np.testing.assert_array_equal(found, want)
    assert made.index("order_by_bucket") == (1 if kind == "two indices" else 0)


def test_a_sum_that_is_used_twice_is_added_to_its_tensor_as_well(chosen: None) -> None:
    x, values = generator.standard_normal((2, 90)).astype(np.float32)
    index = generator.integers(0, 90, 90)
    with emulated_card(cores=2):
        tensors = [given(array) for array in (x, index, values)]
        added = tensors[0].scatter_add(0, tensors[1], tensors[2])
        found = (added * 2 + tensors[0]).numpy()
    want = x.astype(np.float64)
    np.add.at(want, index, values.astype(np.float64))
    np.testing.assert_allclose(found, want * 2 + x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1 << 20, 5200000])
def test_blocks_and_buckets_are_work_groups(size: int) -> None:
    """Clamped indices under a load are no blocks that overlap."""
    shape, target = (1, size, 1), replace(CARD, max_local_bytes=232448)
    plan = partition.plan_partition(shape, size, dtypes.float32, target)
    assert plan is not None
    assert plan.buckets % 2 == 1
    for kernel, groups in (
        (partition.order_kernel(True, shape, size, dtypes.float32, plan), -(-size // plan.tile)),
        (bucket_sums.sum_kernel(shape, size, dtypes.float32, plan), plan.buckets),
    ):
        program = lower(optimise(kernel, target), target)
        assert [axis.vmax + 1 for axis in program.global_ranges] == [groups]


def test_no_plan_where_local_memory_is_small() -> None:
    shape = (1, 1 << 20, 1)
    for local_bytes in (1 << 14, 1 << 10):
        target = replace(CARD, max_local_bytes=local_bytes)
        assert partition.plan_partition(shape, 1 << 24, dtypes.float32, target) is None

"""Attention as kernels for work-groups: on the emulator, which reports races, accesses out of bounds and reads of
memory that nothing wrote, and on every device with work-groups that is here. Values and gradients are compared with
float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.computed import computed
from tests.devices import settings, spare_compilers
from tests.kernel.attention_cases import Case, close, compare, compare_dropout, exact, expected, memory_of, names
from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor, dtypes
from tilewright.tensor.families.networks import grouped_attention

FORWARD = "attention_group"
GRADIENTS = {"attention_group_query_gradient", "attention_group_key_gradient"}

CASES = {
    "odd sizes": Case((1, 2, 45, 33), (1, 2, 70, 33), value_features=17),
    "causal, shared heads": Case((2, 4, 40, 16), (2, 2, 40, 16), is_causal=True),
    "causal, more queries than keys, one batch of these": Case((2, 1, 70, 8), (1, 1, 20, 8), is_causal=True),
    "causal, fewer queries than keys": Case((1, 2, 20, 8), (1, 1, 70, 8), is_causal=True),
    "bool mask, float64": Case((3, 27, 5), (3, 39, 5), mask="bool", dtype=dtypes.float64),
    "float mask of keys for each head": Case((1, 2, 30, 24), (1, 2, 50, 24), mask="heads"),
    "rows of the least float32": Case((1, 1, 33, 16), (1, 1, 60, 16), mask="padding"),
    "a large mask that all queries share": Case((1, 1, 33, 16), (1, 1, 34, 16), mask="large"),
    "the first tiles of keys are masked": Case((40, 80), (100, 80), mask="keys"),
    "one feature, one query": Case((1, 1, 1, 1), (1, 1, 3, 1)),
    "one key": Case((1, 1, 35, 3), (1, 1, 1, 3), is_causal=True),
    "wide heads": Case((1, 1, 5, 256), (1, 1, 9, 256)),
    "heads wider than a work-group's registers": Case((1, 2, 5, 300), (1, 1, 6, 300), value_features=700),
    "bfloat16": Case((1, 1, 60, 40), (1, 1, 60, 40), is_causal=True, dtype=dtypes.bfloat16),
    "float16": Case((1, 3, 17, 20), (1, 3, 19, 20), mask="bool", dtype=dtypes.float16),
}
DEVICES = [each.label for each in settings() if each.label in ("OPENCL", "WEBGPU", "METAL")]
ON_DEVICES = ("causal, shared heads", "float mask of keys for each head", "bfloat16")


@pytest.fixture(autouse=True)
def short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_attention, "MAX_STORED", 0)
    spare_compilers(monkeypatch)


@pytest.fixture
def card() -> Iterator[None]:
    with emulated_card(cores=4, warp_size=1, max_local_bytes=1 << 15):
        yield


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, card: None) -> None:
    case = CASES[name]
    compare(case, NAME)
    query, key, value, slope, *mask = case.tensors(NAME)
    found = case.attend(query, key, value, *mask)
    assert names(found).count(FORWARD) == 1
    assert set(names(*found.gradient(query, key, value, gradient=slope))) > {FORWARD, *GRADIENTS}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ON_DEVICES)
def test_results_on_devices(name: str, device: str) -> None:
    case = CASES[name]
    given = case.tensors(device)
    query, key, value, _, *mask = given
    wanted, _ = expected(case, exact(given))
    assert close(case.attend(query, key, value, *mask), wanted, 0.01 if name == "bfloat16" else 5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ON_DEVICES)
def test_gradients_on_devices(name: str, device: str) -> None:
    compare(CASES[name], device)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_symbolic_lengths_on_devices(device: str) -> None:
    for length in ((1, 1), (33, 33), (40, 40)):
        compare(CASES["causal, shared heads"], device, length)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1024, 40, 8])
@pytest.mark.parametrize("local", [1 << 13, 1 << 14, 1 << 17])
def test_tiles_of_every_size(local: int, threads: int) -> None:
    """Less local memory and fewer threads make smaller tiles."""
    with emulated_card(warp_size=1, max_local_bytes=local, max_group_size=threads):
        compare(Case((1, 1, 21, 34), (1, 1, 23, 34), is_causal=True), NAME)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["odd sizes", "causal, shared heads", "float mask of keys for each head", "bfloat16"])
def test_symbolic_lengths(name: str, card: None) -> None:
    case = CASES[name]
    queries, keys = case.query[-2], case.key[-2]
    for length in ((1, 1), (queries - 1, keys - 1), (min(32, queries), 5)):
        compare(case, NAME, (length[0], length[0]) if queries == keys else length)


def test_dropout(card: None) -> None:
    compare_dropout(Case((1, 2, 35, 8), (1, 1, 40, 8)), NAME)


def test_rows_without_keys(card: None) -> None:
    query, key = Tensor.ones(1, 1, 30, 16, device=NAME), Tensor.ones(1, 1, 70, 16, device=NAME)
    mask = Tensor(np.arange(30)[:, None] != 3, device=NAME).expand(30, 70)
    found = query.scaled_dot_product_attention(key, key, mask)
    assert FORWARD in names(found)
    assert np.isnan(found.numpy()[0, 0, 3]).all()
    assert (np.delete(found.numpy(), 3, 2) == 1).all()
    assert query[:, :, :0].scaled_dot_product_attention(key, key).shape == (1, 1, 0, 16)


def test_gradient_of_a_gradient_and_of_a_mask(card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((1, 2, 30, 8), (1, 1, 26, 8), mask="heads")
    results = []
    for most in (0, 1 << 30):
        monkeypatch.setattr(grouped_attention, "MAX_STORED", most)
        Tensor.manual_seed(1)
        query, key, value, slope, mask = case.tensors(NAME)
        with Tensor.train():
            found = case.attend(query, key, value, mask, dropout=0.3)
        assert (FORWARD in names(found)) == (most == 0)
        first = sum((each * each).sum() for each in found.gradient(query, key, value, mask, gradient=slope * query))
        assert isinstance(first, Tensor)
        results.append(computed(first.gradient(query, key, value, slope, mask)))
        del first, found  # they read the state of the generator, so the next update of it would compute them
    for one, other in zip(*results):
        assert np.abs(one - other).max() < 1e-4 * np.abs(other).max()


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_memory_grows_with_the_length(dropout: float, card: None) -> None:
    once, twice = (memory_of(time, NAME, False, dropout) for time in (5760, 11520))
    assert twice[0] == 2 * once[0] == 2 * 5760 * 2 * 16
    assert twice[1] == once[1]


def test_short_sequences_keep_their_kernels(card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for time, is_grouped in ((64, False), (4096, False), (6000, True)):
        query = Tensor.empty(1, 2, time, 16, device=NAME)
        assert (FORWARD in names(query.scaled_dot_product_attention(query, query))) == is_grouped

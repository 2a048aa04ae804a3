"""Attention on a CPU needs memory in proportion to its length: no matrix of scores is stored, neither for the result
nor for the gradients, for any mask, length, head size, shared heads or dropout. Values are compared with float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.computed import computed
from tests.kernel.attention_cases import Case, compare, compare_dropout, memory_of, names
from tilewright import Tensor, Variable, dtypes, jit
from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort
from tilewright.tensor.families.networks import attention, blocked_attention

FORWARD, GRADIENTS = "attention_blocks", "attention_block_gradients"


@pytest.fixture(autouse=True)
def short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences, which are quicker to compute from products and a softmax, as kernels in blocks."""
    for name in ("MIN_SCORES", "MIN_CHEAP_SCORES", "MIN_QUERIES"):
        monkeypatch.setattr(blocked_attention, name, 1)


CASES = {
    "odd sizes": Case((1, 2, 131, 33), (1, 2, 203, 33), value_features=17),
    "causal, shared heads": Case((2, 4, 121, 16), (2, 2, 121, 16), is_causal=True),
    "causal, more queries than keys, one batch of these": Case((2, 1, 210, 8), (1, 1, 50, 8), is_causal=True),
    "bool mask, float64": Case((3, 27, 5), (3, 99, 5), mask="bool", dtype=dtypes.float64),
    "float mask of keys for each head": Case((1, 2, 30, 24), (1, 2, 200, 24), mask="heads"),
    "rows of the least float32": Case((1, 1, 50, 16), (1, 1, 203, 16), mask="padding"),
    "a large mask that all queries share": Case((1, 1, 130, 16), (1, 1, 130, 16), mask="large"),
    "the first blocks of keys are masked": Case((40, 80), (400, 80), mask="keys"),
    "bfloat16": Case((1, 1, 60, 40), (1, 1, 60, 40), is_causal=True, dtype=dtypes.bfloat16),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    case = CASES[name]
    compare(case, "CPU")
    query, key, value, slope, *mask = case.tensors()
    found = case.attend(query, key, value, *mask)
    assert names(found).count(FORWARD) == 1
    assert {FORWARD, GRADIENTS} <= set(names(*found.gradient(query, key, value, gradient=slope)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.mask != "keys"])
def test_symbolic_lengths(name: str) -> None:
    """One kernel for all lengths: a query, whole blocks, and any others."""
    case = CASES[name]
    queries, keys = case.query[-2], case.key[-2]
    for length in ((1, 1), (queries - 1, keys - 1), (queries, keys), (min(queries, 48), 5)):
        compare(case, "CPU", (length[0], length[0]) if queries == keys else length)


def test_memory_of_symbolic_lengths_grows_with_the_length() -> None:
    def most_elements(most: int) -> int:
        size = Variable("n", 1, most).bind(100)
        query, key, value = (Tensor.empty(1, 2, most, 16)[:, :, :size] for _ in range(3))
        found = query.scaled_dot_product_attention(key, value, is_causal=True)
        items = found.schedule(*found.gradient(query, key, value, gradient=query))
        assert {FORWARD, GRADIENTS} <= {item.ast.arg.name for item in items if item.ast is not None}
        nodes = [node for item in items if item.ast is not None for node in toposort(item.ast)]
        return max(node.arg.size for node in nodes if node.op is Ops.PARAM)

    assert most_elements(11520) == 2 * most_elements(5760)


def test_gradients_with_dropout_that_go_through_scores_take_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second derivatives and those of a mask compute scores. They store those of some rows at a time, with the random
    numbers of these rows."""
    case = Case((1, 2, 30, 8), (1, 1, 26, 8), mask="heads")
    results = []
    for most in (attention.MAX_SCORES, 2 * 26 * 7):
        monkeypatch.setattr(attention, "MAX_SCORES", most)
        Tensor.manual_seed(1)
        query, key, value, slope, mask = case.tensors()
        with Tensor.train():
            found = case.attend(query, key, value, mask, dropout=0.3)
        assert FORWARD in names(found)
        (of_mask,) = found.gradient(mask, gradient=slope)
        stored = [
            node.arg.size
            for item in of_mask.schedule()
            if item.ast
            for node in toposort(item.ast)
            if node.op is Ops.PARAM
        ]
        assert (max(stored) < 2 * 26 * 30) == (most != 1 << 25)
        results.append(of_mask.numpy())
        del found, of_mask
    assert np.abs(results[0] - results[1]).max() < 1e-5


@pytest.mark.parametrize(("is_causal", "dropout"), [(False, 0.0), (True, 0.0), (False, 0.25)])
def test_memory_grows_with_the_length(is_causal: bool, dropout: float) -> None:
    once, twice = (memory_of(time, "CPU", is_causal, dropout) for time in (5760, 11520))
    assert twice[0] == 2 * once[0] <= 2 * 4 * 5760 * 2 * 16  # each of up to four groups has its part of a gradient
    assert twice[1] == once[1]


@pytest.mark.parametrize("features", [8, 1])
def test_dropout(features: int) -> None:
    compare_dropout(Case((1, 2, 50, features), (1, 1, 100, features)), "CPU")


def test_gradient_of_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((1, 2, 30, 8), (1, 1, 26, 8), is_causal=True)
    results = []
    for least in (1, 1 << 30):
        monkeypatch.setattr(blocked_attention, "MIN_CHEAP_SCORES", least)
        Tensor.manual_seed(1)
        query, key, value, slope = case.tensors()
        with Tensor.train():
            found = case.attend(query, key, value, dropout=0.3)
        assert (FORWARD in names(found)) == (least == 1)
        first = sum((each * each).sum() for each in found.gradient(query, key, value, gradient=slope * query))
        assert isinstance(first, Tensor)
        results.append(computed(first.gradient(query, key, value, slope)))
        del first, found  # they read the state of the generator, so the next update of it would compute them
    for one, other in zip(*results):
        assert np.abs(one - other).max() < 1e-4 * np.abs(other).max()


def test_operands_that_are_one_tensor_and_a_replay() -> None:
    """Parts of one product, and the same tensor as query, key and mask; a captured call reads its new arguments."""
    generator = np.random.default_rng(7)
    arrays = [generator.standard_normal((2, 40, 48)).astype(np.float32) for _ in range(4)]

    def run(x: Tensor) -> list[Tensor]:
        query, key, value = (each.reshape(2, 40, 2, 8).transpose(1, 2) for each in x.split(16, -1))
        found = query.scaled_dot_product_attention(key, query, query @ key.transpose(-1, -2)) + value
        return [found, found.gradient(x, gradient=found.detach())[0]]

    captured = jit(lambda x: run(x)[0].realize(*run(x)[1:]))
    for array in arrays:
        x = Tensor(array).realize()
        found, gradient = run(x)
        assert FORWARD in names(found)
        query, key, value = (np.swapaxes(each.reshape(2, 40, 2, 8), 1, 2) for each in np.split(array, 3, -1))
        scores = query @ np.swapaxes(key, -1, -2) * (1 + 1 / math.sqrt(8))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = weights / weights.sum(-1, keepdims=True) @ query + value
        assert np.abs(captured(x).numpy() - wanted).max() < 1e-4
    steps = []
    for sign in (1, -1):  # along the gradient itself, in float64
        moved = Tensor(arrays[-1].astype(np.float64) + sign * 1e-5 * gradient.double().numpy())
        steps.append(float((run(moved)[0].square().sum() / 2).numpy()))
    slope = (steps[0] - steps[1]) / 2e-5
    assert slope == pytest.approx(float((gradient.double() ** 2).sum().numpy()), rel=1e-3)


def test_rows_without_keys_and_nothing_at_all() -> None:
    query, key = Tensor.ones(1, 1, 30, 16), Tensor.ones(1, 1, 70, 16)
    mask = Tensor(np.arange(30)[:, None] != 3).expand(30, 70)
    found = query.scaled_dot_product_attention(key, key, mask)
    assert FORWARD in names(found)
    assert np.isnan(found.numpy()[0, 0, 3]).all()
    assert (np.delete(found.numpy(), 3, 2) == 1).all()
    assert query[:, :, :0].scaled_dot_product_attention(key, key).shape == (1, 1, 0, 16)
    assert query[:0].scaled_dot_product_attention(key[:0], key[:0]).numpy().size == 0


def test_short_sequences_keep_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for heads, time, features, is_causal, is_blocked in (
        (2, 64, 64, True, False),
        (2, 200, 64, True, True),
        (2, 200, 64, False, False),
        (2, 200, 16, False, True),
        (2000, 200, 64, False, True),
        (2, 1024, 520, True, False),
        (40, 1024, 520, True, True),
        (2, 1024, 64, False, True),
    ):
        query = Tensor.empty(1, heads, time, features)
        found = query.scaled_dot_product_attention(query, query, is_causal=is_causal)
        assert (FORWARD in names(found)) == is_blocked


@pytest.mark.parametrize("axis", [0, 1])
def test_two_devices(axis: int) -> None:
    """Operands that are divided among devices by batch or heads."""
    devices = ("CPU:0", "CPU:1")
    case = Case((2, 4, 50, 8), (2, 2, 60, 8), mask="bool")
    query, key, value, slope, mask = case.tensors()
    whole = case.attend(query, key, value, mask)
    wanted = [whole, *whole.gradient(query, key, value, gradient=slope)]
    parts = [each.shard(devices, axis) for each in (query, key, value, slope)]
    found = case.attend(*parts[:3], mask.shard(devices))
    results = [found, *found.gradient(*parts[:3], gradient=parts[3])]
    for one, other in zip(results, wanted):
        assert np.abs(one.numpy() - other.numpy()).max() < 1e-5

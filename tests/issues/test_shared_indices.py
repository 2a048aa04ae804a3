"""One index that many kernels use: where more than eight did, the comparison of each place with each term was stored,
20 GB in a PageRank of ten rounds. And gradients of scatters of extremes and products, which compared all places with
all terms: seconds where the scatter itself takes a millisecond."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.engine.execution.realize import schedule
from tilewright.graph.ops import Ops
from tilewright.graph.records import OptOps
from tilewright.graph.spec import max_count
from tilewright.graph.walk import toposort
from tilewright.kernel.optimise import optimise

PLACES, TERMS = 600, 900
generator = np.random.default_rng(8)


def largest(*results: Tensor) -> int:
    """The elements of the largest value that is stored on the way."""
    return max(max_count((slot.size,)) for slot in schedule([each.uop for each in results], "CPU").slots)


def ranks(rounds: int) -> Tensor:
    source, target = (Tensor(generator.integers(0, PLACES, TERMS).astype(np.int32)).realize() for _ in range(2))
    rank = Tensor.full((PLACES,), 1 / PLACES)
    for _ in range(rounds):
        rank = 0.1 + 0.9 * Tensor.zeros(PLACES).index_add(0, target, rank[source])
    return rank


def masked(rounds: int) -> Tensor:
    x = Tensor(generator.standard_normal((4, 200), dtype=np.float32)).realize()
    is_past = Tensor.ones(200, 200).tril() > 0
    for _ in range(rounds):
        x = x + (is_past.where(x.reshape(4, 1, 200), 0.0) * x.reshape(4, 200, 1)).amax(-1)
    return x


@pytest.mark.parametrize("rounds", [4, 12, 80])
@pytest.mark.parametrize(("make", "most"), [(ranks, TERMS), (masked, 800)])
def test_no_table_of_places_is_stored(make: Callable[[int], Tensor], most: int, rounds: int) -> None:
    assert largest(make(rounds)) <= most


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_computed_index_is_computed_in_vectors(is_shared: bool) -> None:
    """The loop over terms would compute it one element at a time, whether it is used elsewhere too or not."""
    x = Tensor(generator.standard_normal(4096, dtype=np.float32)).realize()
    levels = (x.sigmoid() * 255.999).int()
    counts = Tensor.zeros(256).scatter_add(0, levels, Tensor.ones(4096))
    results = [counts, counts[levels]] if is_shared else [counts]
    for item in schedule([each.uop for each in results], "CPU").items:
        assert item.ast is not None
        ops = {node.op for node in toposort(item.ast)}
        assert not {Ops.REDUCE, Ops.EXP2} <= ops
    np.testing.assert_array_equal(counts.numpy(), np.bincount(levels.numpy(), minlength=256))


# ---------------------------------------------------------------- gradients


def expected_gradients(
    x: np.ndarray, index: np.ndarray, values: np.ndarray, weights: np.ndarray, reduce: str, has_own: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Place by place: an extreme's gradient is shared by those that are equal to it, and a factor's is that of the
    product of the others."""
    for_x, for_values = np.zeros_like(x), np.zeros_like(values)
    for place in np.ndindex(x.shape):
        row, rest = place[0], place[1:]
        terms = (
            [t for t in range(index.shape[0]) if (t, *rest) < index.shape and index[(t, *rest)] == row]
            if all(at < size for at, size in zip(rest, index.shape[1:], strict=True))
            else []
        )
        factors = [values[(t, *rest)] for t in terms]
        if not terms or has_own:
            factors = [x[place], *factors]
        if reduce == "prod":
            shares = [np.prod(factors[:k] + factors[k + 1 :]) for k in range(len(factors))]
        else:
            best = max(factors) if reduce == "amax" else min(factors)
            shares = [float(each == best) / sum(other == best for other in factors) for each in factors]
        if not terms or has_own:
            for_x[place] = weights[place] * shares.pop(0)
        for t, share in zip(terms, shares, strict=True):
            for_values[(t, *rest)] = weights[place] * share
    return for_x, for_values


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("has_own", [True, False])
@pytest.mark.parametrize("reduce", ["amax", "amin", "prod"])
def test_gradients_share_ties_and_leave_out_the_factor(reduce: str, has_own: bool, device: str) -> None:
    """Small integers, zeros among them, so that there are ties and products with one zero and with several; and an
    index that is smaller than the tensor."""
    x = generator.integers(-2, 3, (7, 5)).astype(np.float32)
    index, values = generator.integers(0, 7, (12, 4)), generator.integers(-2, 3, (12, 4)).astype(np.float32)
    weights = generator.integers(1, 5, x.shape).astype(np.float32)
    own, given = (Tensor(each, device=device, requires_grad=True) for each in (x, values))
    found = own.scatter_reduce(0, Tensor(index.astype(np.int32), device=device), given, reduce, include_self=has_own)
    gradients = (found * Tensor(weights, device=device)).sum().gradient(own, given)
    for each, wanted in zip(gradients, expected_gradients(x, index, values, weights, reduce, has_own), strict=True):
        np.testing.assert_allclose(each.numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("reduce", ["amax", "prod"])
def test_gradients_in_other_dtypes(reduce: str, dtype: str) -> None:
    x, values = (Tensor(np.ones(size, np.float32)).cast(dtype).requires_grad_(True) for size in (2, 300))
    found = x.scatter_reduce(0, Tensor(np.zeros(300, np.int32)), values, reduce)
    gradient, second = found.sum().gradient(x, values)
    share = 1 / 301 if reduce == "amax" else 1.0
    np.testing.assert_allclose(gradient.float().numpy(), [share, 1.0], rtol=1e-2)
    np.testing.assert_allclose(second.float().numpy(), np.full(300, share), rtol=1e-2)
    assert gradient.dtype is x.dtype
    assert second.dtype is values.dtype


def test_a_gradient_of_second_order() -> None:
    values = Tensor([2.0, 3.0, 5.0], requires_grad=True)
    product = Tensor([1.0]).scatter_reduce(0, Tensor([0, 0, 0]), values, "prod")
    (first,) = product.sum().gradient(values)
    assert first.tolist() == [15.0, 10.0, 6.0]
    (second,) = first[0].gradient(values)
    np.testing.assert_allclose(second.numpy(), [0.0, 5.0, 3.0], atol=1e-5)


@pytest.mark.parametrize("reduce", ["amax", "amin", "prod"])
def test_gradients_walk_the_terms(reduce: str) -> None:
    x, values = (Tensor(generator.standard_normal((size, 4), dtype=np.float32)).realize() for size in (PLACES, TERMS))
    x.requires_grad_(True)
    values.requires_grad_(True)
    index = Tensor(generator.integers(0, PLACES, (TERMS, 4)).astype(np.int32)).realize()
    gradients = x.scatter_reduce(0, index, values, reduce).sum().gradient(x, values)
    assert largest(*gradients) <= TERMS * 4
    sums = [item.ast for item in schedule([each.uop for each in gradients], "CPU").items if item.ast is not None]
    sums = [ast for ast in sums if any(node.op is Ops.REDUCE for node in toposort(ast))]
    assert sums
    for ast in sums:
        assert OptOps.SCATTER in [opt.op for opt in optimise(ast, cpu_target()).arg.applied]

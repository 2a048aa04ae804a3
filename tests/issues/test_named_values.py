"""Values that a program names and that were computed on the way to another result. Computed again later, they took the
time of the first computation once more; and where the second kernel added up in another order, a maximum of a value was
equal to none of its elements."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from tilewright import Context, Tensor, jit
from tilewright.base.events import GlobalCounters
from tilewright.engine.memory.parts import is_held
from tilewright.graph.walk import toposort


def filled(*shape: int, seed: int = 1) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)).realize()


def is_computed(tensor: Tensor) -> bool:
    """Whether all that is left to compute of a tensor is without a loop over memory."""
    below = toposort(tensor.uop, stop=is_held)
    return not any(node.op.name in ("REDUCE_AXIS", "CUSTOM_KERNEL") and not is_held(node) for node in below)


def work_of(run: Callable[[], object]) -> float:
    before = GlobalCounters.global_ops
    run()
    return GlobalCounters.global_ops - before


def test_a_second_result_does_not_compute_the_network_again() -> None:
    x, weight, head = filled(64, 128), filled(128, 128, seed=2), filled(128, 10, seed=3)
    labels = Tensor(np.arange(64) % 10).realize()
    logits = (x @ weight).relu() @ head
    loss = logits.cross_entropy(labels)
    first = work_of(loss.item)
    assert is_computed(logits)
    assert work_of(lambda: (logits.argmax(1) == labels).sum().item()) < first / 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("extreme", ["max", "min", "median"])
@pytest.mark.parametrize(
    "value",
    [
        lambda a, b: a @ b.transpose(),
        lambda a, b: (a - a.mean(1, keepdim=True)).square().sum(1),
        lambda a, b: (a * b[:1]).mean(1),
        lambda a, b: a.softmax(1),
        lambda a, b: a.std(1) * 2 + 1,
    ],
    ids=["product", "variance", "mean", "softmax", "elementwise"],
)
def test_an_extreme_is_one_of_the_elements(
    value: Callable[[Tensor, Tensor], Tensor], extreme: str, axis: int | None
) -> None:
    for seed, shape in enumerate([(12, 281), (3, 332)]):
        named = value(filled(*shape, seed=seed), filled(*shape, seed=seed + 100))
        if extreme == "median":
            found = named.flatten().median() if axis is None else named.median(axis, keepdim=True).values
        else:
            found = getattr(named, extreme)(axis, keepdim=axis is not None)
        with Context(NOOPT=1):  # other opts add up in another order
            found.realize()
        assert (named == found).any(0 if axis is None else axis).any().item()
        assert axis is None or (named == found).any(axis).all().item()


def test_what_is_kept_is_the_smaller_of_a_value_and_its_reductions() -> None:
    x = filled(40, 500)
    shares = x.softmax(1)
    shares.square().sum().item()
    assert is_computed(shares)
    assert not is_held(shares.uop)  # 20000 elements that follow from 40 maxima and 40 sums
    scores = x.sum(1).exp()
    scores.sum().item()
    assert is_computed(scores)


def test_what_nobody_names_is_not_kept() -> None:
    x, weight = filled(30, 20), filled(20, 50, seed=2)
    gc.collect()
    before = GlobalCounters.mem_used
    total = (x @ weight).exp().sum().realize()
    assert GlobalCounters.mem_used - before <= 64 * total.nbytes()


def test_a_count_is_not_memory() -> None:
    """An arange is a sum of ones; nothing is read for it."""
    numbers = Tensor.arange(1000)
    assert (numbers * filled(1000)).sum().item() is not None
    assert not is_held(numbers.uop)


def test_views_of_a_named_value() -> None:
    x, weight = filled(30, 20), filled(20, 50, seed=2)
    product = x @ weight
    columns = product.transpose()
    del product
    first = columns.max(0).numpy()
    assert is_computed(columns)
    np.testing.assert_array_equal(first, columns.numpy().max(0))


def test_a_part_does_not_compute_the_whole() -> None:
    x, weight = filled(400, 200), filled(200, 300, seed=2)
    row = (x @ weight)[3]
    assert work_of(lambda: row.max().item()) < 2 * 200 * 300 * 1.1
    assert is_computed(row)


def test_an_update_after_it() -> None:
    """A kept value is that of before the update, and the update is done in place."""
    weight, x = filled(8, 8), filled(8, 8, seed=2)
    product = x @ weight
    expected = x.numpy() @ weight.numpy()
    weight.assign(weight + product)
    weight.realize()
    np.testing.assert_allclose(product.numpy(), expected, rtol=1e-5, atol=1e-6)
    product.max().item()
    np.testing.assert_allclose(product.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_gradients_go_through_what_was_kept() -> None:
    weight = Tensor(np.eye(5, dtype=np.float32), requires_grad=True)
    product = filled(4, 5) @ weight
    assert product.sum().item() == pytest.approx(filled(4, 5).numpy().sum(), abs=1e-4)
    product.square().sum().backward()
    assert weight.grad is not None
    x = filled(4, 5).numpy()
    np.testing.assert_allclose(weight.grad.numpy(), 2 * x.T @ x, rtol=1e-4, atol=1e-5)


def test_it_can_be_switched_off() -> None:
    product = filled(30, 20) @ filled(20, 50, seed=2)
    with Context(KEEP_NAMED=0):
        product.max().item()
    assert not is_computed(product)
    product.max(0).realize()
    assert is_computed(product)


def test_a_recorded_call_keeps_nothing() -> None:
    """A replay has no names: what it leaves are its results."""
    kept: list[Tensor] = []

    @jit
    def largest(x: Tensor) -> Tensor:
        product = x @ x
        kept.append(product)
        return product.max().realize()

    for seed in range(4):
        x = filled(9, 9, seed=seed)
        assert largest(x).item() == pytest.approx((x.numpy() @ x.numpy()).max(), rel=1e-5)


def test_sharded_values() -> None:
    x = filled(8, 6)
    shared = Tensor(x.numpy()).shard(("CPU:0", "CPU:1"), axis=0)
    product = shared @ Tensor(x.numpy().T.copy()).to(("CPU:0", "CPU:1"))
    assert product.max().item() == pytest.approx((x.numpy() @ x.numpy().T).max(), rel=1e-5)
    assert is_computed(product)
    np.testing.assert_allclose(product.numpy(), x.numpy() @ x.numpy().T, rtol=1e-5, atol=1e-5)

"""Issue 12, C: the work that a long program costs before it runs. It is counted (nodes, walks, kernels), not timed."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilewright.engine.execution.realize as realize_module
from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.engine.memory import outsiders
from tilewright.engine.planning import bind
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph.records import Access, Item, Slot
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.steps.memory import ALIGNMENT, MIN_SPAN, lifetimes, place_temps

# ---------------------------------------------------------------- gradients of activations


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


FIRST: dict[str, Callable[[float], float]] = {
    "sigmoid": lambda x: _sigmoid(x) * _sigmoid(-x),
    "tanh": lambda x: 1 - math.tanh(x) ** 2,
    "softplus": _sigmoid,
    "erf": lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x),
}
SECOND: dict[str, Callable[[float], float]] = {
    "sigmoid": lambda x: _sigmoid(x) * _sigmoid(-x) * (_sigmoid(-x) - _sigmoid(x)),
    "tanh": lambda x: -2 * math.tanh(x) * (1 - math.tanh(x) ** 2),
    "softplus": lambda x: _sigmoid(x) * _sigmoid(-x),
    "erf": lambda x: -4 * x / math.sqrt(math.pi) * math.exp(-x * x),
}
POINTS = [-1e30, -700.0, -90.0, -20.5, -3.0, -0.625, -1e-3, -0.0, 0.0, 1e-30, 0.3, 0.625, 1.0, 2.5, 19.5, 90.0, 1e30]


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_activations_have_the_derivatives_of_the_function(name: str, dtype: object) -> None:
    """Not of the formula that computes it, which is selected from cases."""
    x = Tensor(POINTS, dtype=dtype, requires_grad=True)
    (first,) = getattr(x, name)().sum().gradient(x)
    (second,) = first.sum().gradient(x)
    tolerance = 1e-6 if dtype is dtypes.float32 else 1e-12
    points = [min(max(point, -1e6), 1e6) for point in POINTS]
    np.testing.assert_allclose(first.numpy(), [FIRST[name](point) for point in points], rtol=1e-5, atol=tolerance)
    np.testing.assert_allclose(second.numpy()[1:-1], [SECOND[name](p) for p in points[1:-1]], rtol=1e-5, atol=tolerance)
    infinite = Tensor([-math.inf, math.inf, math.nan], dtype=dtype, requires_grad=True)
    (ends,) = getattr(infinite, name)().sum().gradient(infinite)
    expected = [0.0, 1.0 if name == "softplus" else 0.0, math.nan]
    np.testing.assert_array_equal(ends.numpy(), expected)


@pytest.mark.parametrize("name", FIRST)
def test_the_gradient_of_an_activation_is_a_few_nodes(name: str) -> None:
    """A step of a recurrent network has five of them, and a graph for training as many steps."""
    x = Tensor.rand(3, 4).realize().requires_grad_()
    y = getattr(x, name)()
    (gradient,) = (y * 3).gradient(x, gradient=Tensor.ones(3, 4))
    forward = set(toposort(y.uop))
    assert sum(node.op.is_elementwise for node in toposort(gradient.uop) if node not in forward) <= 12


# ---------------------------------------------------------------- memory for temps


def first_fit(lives: dict[int, tuple[int, int]], slots: list[Slot]) -> dict[int, int]:
    """What `place_temps` means: every temp is compared with every other."""
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[int, int] = {}
    for number in sorted(lives, key=lambda n: (-slots[n].nbytes, n)):
        first, last = lives[number]
        size = -(-slots[number].nbytes // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, stop, since, until in sorted(placed):
            if since <= last and first <= until:
                if offset + size <= start:
                    break
                offset = max(offset, stop)
        placed.append((offset, offset + size, first, last))
        offsets[number] = offset
    return offsets


@pytest.mark.parametrize("seed", range(12))
def test_every_temp_lies_at_the_lowest_free_offset(seed: int) -> None:
    """Also over many spans of times."""
    chance = random.Random(seed)
    count = chance.choice([1, 7, MIN_SPAN, 3 * MIN_SPAN, 9 * MIN_SPAN + 5])
    touched: list[set[int]] = [set() for _ in range(count)]
    slots = []
    for number in range(chance.randint(1, 150)):
        first = chance.randrange(count)
        last = min(count - 1, first + chance.choice([0, 1, 5, MIN_SPAN, count]))
        slots.append(Slot(dtypes.uint8, chance.choice([1, 512, 513, 2000, 5000]), "CPU", "temp"))
        touched[first].add(number)
        touched[last].add(number)
    writes = [tuple(Access(n, 0, slots[n].nbytes) for n in sorted(numbers)) for numbers in touched]
    items = [Item(None, (), (), found, "CPU") for found in writes]
    offsets, _ = place_temps(items, slots)
    assert dict(offsets) == first_fit(lifetimes(items), slots)


# ---------------------------------------------------------------- walks before a run


@contextmanager
def counted_nodes(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Iterator[list[int]]:
    """The length of every walk that a module does."""
    found: list[int] = []

    def counted(*roots: UOp, **options: Any) -> list[UOp]:
        order = toposort(*roots, **options)
        found.append(len(order))
        return order

    with monkeypatch.context() as patch:
        patch.setattr(module, "toposort", counted)
        yield found


def test_values_that_outsiders_hold_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of live tensors, each computed from the one before and from memory that is updated."""

    def visited(count: int) -> int:
        w = Tensor.ones(4).contiguous().realize()
        live = [w * 2]
        for _ in range(count):
            live.append(live[-1] + w)
        w.assign(w + 1)
        with counted_nodes(monkeypatch, outsiders) as found:
            w.realize()
        np.testing.assert_array_equal(live[-1].numpy(), np.full(4, 2.0 + count))
        return sum(found)

    gc.collect()
    few, many = visited(10), visited(110)
    assert many - few < 10 * 100


def test_a_graph_is_bound_once_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has to be planned first, and where values of outsiders are computed along with an update."""
    forget_schedules()
    w = Tensor.rand(4, 7).realize()
    loss = (w * 3).exp().sum()
    w.assign(w - loss * 0.25)
    size = len(toposort(w.uop, loss.uop))
    with counted_nodes(monkeypatch, bind) as found:
        w.realize()
    assert sum(found) <= size + 2
    assert loss.item() > 28


def test_a_graph_that_changed_while_it_was_planned_is_bound_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread computes and overwrites a part of it meanwhile."""
    forget_schedules()
    base = Tensor.full((4,), 2.0).contiguous().realize()
    part = base * 5
    whole = part + 1
    planned = realize_module.plan_graph
    changed: list[bool] = []

    def plan_graph(structure: Any, *rest: Any) -> Any:
        found = planned(structure, *rest)
        if not changed:
            changed.append(True)
            part.realize()
            base.assign(base * 100).realize()
        return found

    monkeypatch.setattr(realize_module, "plan_graph", plan_graph)
    np.testing.assert_array_equal(whole.numpy(), np.full(4, 11.0))
    np.testing.assert_array_equal(base.numpy(), np.full(4, 200.0))


def test_memory_that_is_alive_and_not_updated_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that other tests left alive are counted both times."""

    def nodes_walked() -> int:
        w = (Tensor(np.full((2, 3), 1.0, np.float32)) + 0).realize()
        w.assign(w + 1)
        gc.collect()
        with counted_nodes(monkeypatch, outsiders) as found:
            w.realize()
        return sum(found)

    alone = nodes_walked()
    live = [Tensor(np.full((2, 3), number, np.float32)).realize() for number in range(50)]
    assert nodes_walked() < alone + 50
    assert live[7].sum().item() == 42

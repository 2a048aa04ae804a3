"""Kernels stay within the buffers that a device takes. Each plan is run on the CPU with a smaller limit and compared
with the interpreter, so that a kernel parted at the wrong place is not taken for a good one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from tests.schedule.graphs import DEVICE, Graph, add, exp, matmul, mul, softmax, spread, total
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph.records import Schedule
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    def set_limit(buffers: int) -> None:
        smaller = dataclasses.replace(open_driver(DEVICE).target, max_buffers=buffers)
        monkeypatch.setattr("tilewright.engine.planning.plan._target_of", lambda device: smaller)
        forget_schedules()

    yield set_limit
    forget_schedules()


def sum_of_many(g: Graph) -> list[UOp]:
    value = g.input(6, 5)
    for _ in range(11):
        value = add(value, g.input(6, 5))
    return [value]


def tree(g: Graph) -> list[UOp]:
    values = [mul(g.input(4, 8), g.input(4, 8)) for _ in range(8)]
    while len(values) > 1:
        values = [add(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
    return values


def rows_of_many(g: Graph) -> list[UOp]:
    """Sums over rows inside: a sum, once stored, takes less than what is summed."""
    value = g.input(64, 5)
    for _ in range(4):
        summed = mul(g.input(64, 5), g.input(64, 5))
        value = mul(value, spread(total(summed, 1), summed))
    return [value]


def stored_on_the_way(g: Graph) -> list[UOp]:
    value, stored = g.input(40, 3), []
    for _ in range(5):
        value = exp(mul(value, g.input(40, 3)))
        stored.append(value)
    return stored


def apart_but_alike(g: Graph) -> list[UOp]:
    """Kernels over the same loops that read one input together, which are joined where there is room."""
    shared = g.input(16, 16)
    return [mul(add(shared, shared), add(g.input(16, 16), shared)) for _ in range(6)]


def product_of_sums(g: Graph) -> list[UOp]:
    left = add(add(g.input(8, 12), g.input(8, 12)), g.input(8, 12))
    return [softmax(matmul(left, add(add(g.input(12, 8), g.input(12, 8)), g.input(12, 8))))]


GRAPHS = (sum_of_many, tree, rows_of_many, stored_on_the_way, apart_but_alike, product_of_sums)


@pytest.mark.parametrize("most", [4, 5, 6])
@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_no_kernel_has_more(make: Callable[[Graph], list[UOp]], most: int, limit: Callable[[int], None]) -> None:
    graph = Graph()
    assert buffers_of(graph.plan(*make(graph)))[0] > 6
    limit(most)
    assert buffers_of(graph.plan(*make(graph)))[0] <= most


def test_a_kernel_is_parted_no_more_than_needed(limit: Callable[[int], None]) -> None:
    limit(8)
    graph = Graph()
    assert buffers_of(graph.plan(*sum_of_many(graph))) == [8, 7]


def test_rows_are_stored_rather_than_what_is_summed(limit: Callable[[int], None]) -> None:
    limit(6)
    graph = Graph()
    temps = [slot.size for slot in graph.plan(*rows_of_many(graph)).slots if slot.kind == "temp"]
    assert temps
    assert set(temps) == {64}


def buffers_of(plan: Schedule) -> list[int]:
    """How many buffers the kernels have, the most first."""
    return sorted((len(item.slots) for item in plan.items), reverse=True)

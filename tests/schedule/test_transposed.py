"""A factor whose summed axis is not contiguous is transposed by a separate kernel where cores share the product: which
products that are, that values stay right, and that work-groups and small products are left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.schedule.graphs import DEVICE, Graph
from tilewright import Tensor
from tilewright.base.target import Target
from tilewright.engine.execution.realize import schedule
from tilewright.engine.planning.plan import forget_schedules
from tilewright.schedule.fusion import transposed

ROWS, DEPTH, COLUMNS = 65, 160, 512  # products enough, and no square that would hide a wrong axis

Expression = Callable[[Tensor, Tensor], Tensor]

# What is multiplied, the shape of its first argument, and the kernels it takes on a CPU.
CASES: dict[str, tuple[Expression, tuple[int, ...], int]] = {
    "transposed": (lambda x, y: x.T @ y, (DEPTH, ROWS), 2),
    "transposed, with what follows": (lambda x, y: (x.T @ y + 1).relu(), (DEPTH, ROWS), 2),
    "as it is read": (lambda x, y: x @ y, (ROWS, DEPTH), 1),
    "one of several": (lambda x, y: x.transpose(-1, -2) @ y, (3, DEPTH, ROWS), 2),
    "part of a larger one": (lambda x, y: x[:, 1:].T @ y, (DEPTH, ROWS + 1), 2),
    "every second row": (lambda x, y: x[::2].T @ y, (2 * DEPTH, ROWS), 2),
    "computed as it is transposed": (lambda x, y: (x * 2).T @ y, (DEPTH, ROWS), 2),
    "few columns": (lambda x, y: x.T @ y[:, : transposed.MIN_COLUMNS - 1], (DEPTH, 4 * ROWS), 1),
    "few products": (lambda x, y: x.T @ y[:, : transposed.MIN_COLUMNS], (DEPTH, ROWS), 1),
    "masked": (lambda x, y: x.T.pad(((1, 0), (0, 0))) @ y, (DEPTH, ROWS), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_transposed(name: str) -> None:
    expression, shape, kernels = CASES[name]
    graph = Graph()
    assert graph.kernels(expression(graph.tensor(*shape), graph.tensor(DEPTH, COLUMNS))) == kernels


@pytest.mark.parametrize(("facts", "kernels"), [({"has_threads": True}, 2), ({"has_local": True}, 1), ({}, 1)])
def test_work_groups_read_either_way(facts: dict[str, bool], kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.engine.planning.plan._target_of", lambda device: Target(device, **facts))
    forget_schedules()
    graph = Graph()
    product = graph.tensor(DEPTH, ROWS).T @ graph.tensor(DEPTH, COLUMNS)
    assert len(schedule([product.uop], DEVICE).items) == kernels
    forget_schedules()

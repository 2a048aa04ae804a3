"""Random graphs whose kernels are given every size, stride and number at launch agree with the interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.execute import check_case
from tests.fuzz.generate import describe, make_case
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.planning import plan
from tilewright.engine.planning.dynamic import Form
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph.kernels.outline import make_dynamic, outline_of
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver

QUICK_GRAPHS = 20
GRAPHS = 60
CHUNK = 20


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Form]]:
    """The dynamic kernels that are made: one for each kernel."""
    made: list[Form] = []

    def form_of(sink: UOp, device: str) -> Form:
        outline = outline_of(sink)
        if outline is None or not open_driver(device).shares_kernels:
            return Form(sink)
        found = make_dynamic(sink, outline, [[number + 1 for number in outline.numbers]])
        assert found is not None
        values = found.values_for(outline.numbers)
        assert values is not None
        made.append(Form(found.sink, values))
        return made[-1]

    monkeypatch.setattr(plan, "choose_forms", lambda wanted: [form_of(*pair) for pair in wanted])
    monkeypatch.setattr(plan, "wants_results_alone", lambda: True)
    forget_schedules()
    forget_kernels()
    yield made
    forget_schedules()
    forget_kernels()


@pytest.mark.parametrize(
    "first",
    [
        *range(0, QUICK_GRAPHS, CHUNK),
        *(pytest.param(first, marks=pytest.mark.slow) for first in range(QUICK_GRAPHS, GRAPHS, CHUNK)),
    ],
)
def test_random_graphs_agree(first: int, forms: list[Form]) -> None:
    for seed in range(100_000 + first, 100_000 + first + CHUNK):
        case = make_case(seed)
        failure = check_case(case, devices=("CPU",))
        if failure is not None:
            pytest.fail(f"seed {seed}: {failure.kind}\n{describe(case)}\n{failure.text}", pytrace=False)
    assert len(forms) >= CHUNK

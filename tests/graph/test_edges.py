"""What is known of a mask at an element of a tile: against every iteration of the loops around it."""

from __future__ import annotations

import itertools

import pytest

from tests.kernel.kernels import axis
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import substitute

TILE, LOOP, WINDOW = axis(4, 0, AxisType.UNROLL), axis(3, 1), axis(3, 2, AxisType.UNROLL)
PLACE = LOOP * 4 + TILE - WINDOW

CONDITIONS: dict[str, UOp] = {
    "at least": PLACE >= 0,
    "less": PLACE < 10,
    "both": (PLACE >= 0) & (PLACE < 10),
    "of the tile alone": TILE - WINDOW >= 0,
    "of the loop alone": LOOP < 2,
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_known_is_what_holds_in_every_iteration(name: str) -> None:
    condition = CONDITIONS[name]
    answers = set()
    for tile, window in itertools.product(range(4), range(3)):
        at = {TILE: tile, WINDOW: window}
        seen = set()
        for loop in range(3):
            places = {axis: index_const(value) for axis, value in {**at, LOOP: loop}.items()}
            seen.add(bool(evaluate(substitute(condition, places), {})))
        found = holds_at(condition, at)
        assert found == (seen.pop() if len(seen) == 1 else None)
        answers.add(found)
    assert len(answers) > 1 or name == "of the loop alone"


def test_what_is_not_a_bound_is_not_known() -> None:
    assert holds_at((TILE % 2).eq(0), {TILE: 0}) is None
    assert holds_at((TILE % 2).eq(0) & (TILE < 2), {TILE: 3}) is False

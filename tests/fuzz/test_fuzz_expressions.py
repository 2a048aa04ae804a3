"""A hundred random graphs with fixed seeds agree between the CPU, the emulator and the interpreter, two thousand in
the slow tests; the parts of the fuzzer say what they should. `python -m tests.fuzz.run` goes on with fresh seeds and
explains how a failure is read."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz.error_bounds import Bound, evaluate_bounds, mismatches
from tests.fuzz.execute import Strength, check_case
from tests.fuzz.generate import Case, describe, make_case
from tests.fuzz.minimise import minimise
from tilewright.base.dtype import dtypes
from tilewright.graph import build
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.text.parse import parse
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp

QUICK_GRAPHS = 50
GRAPHS = 2000
CHUNK = 50


@pytest.mark.parametrize(
    "first",
    [
        *range(0, QUICK_GRAPHS, CHUNK),
        *(pytest.param(first, marks=pytest.mark.slow) for first in range(QUICK_GRAPHS, GRAPHS, CHUNK)),
    ],
)
def test_random_graphs_agree(first: int) -> None:
    strength = Strength()
    for seed in range(first, first + CHUNK):
        case = make_case(seed)
        failure = check_case(case, strength=strength)
        if failure is not None:
            small = minimise(failure, seconds=30.0)
            pytest.fail(f"seed {seed}: {small.kind}\n{describe(small.case)}\n{small.text}", pytrace=False)
    # A fuzzer that compares little finds little.
    assert strength.free < 0.2 * (strength.exact + strength.close)


def test_a_seed_gives_one_case_and_its_text_parses_back() -> None:
    for seed in range(40):
        case = make_case(seed)
        assert case.outputs == make_case(seed).outputs
        assert parse(show(case.sink)) is case.sink


# ---------------------------------------------------------------- the comparison itself


def _leaf(values: list[float], dtype=dtypes.float32, slot: int = 0) -> tuple[UOp, np.ndarray]:
    data = np.array(values, np.float32 if dtype is dtypes.float32 else np.float64)
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, len(values))), data


def _bound_of(root: UOp, bindings: dict[UOp, np.ndarray]) -> tuple[np.ndarray, Bound]:
    return evaluate_bounds((root,), bindings)[root]


def test_an_addition_of_a_product_may_be_contracted_and_a_lone_product_may_not() -> None:
    (x, left), (y, right), (z, added) = _leaf([1 / 3], slot=0), _leaf([3.1], slot=1), _leaf([-1.0], slot=2)
    bindings = {x: left, y: right, z: added}
    product = build.alu(Ops.MUL, x, y)
    assert _bound_of(product, bindings)[1].exact.all()
    value, bound = _bound_of(build.alu(Ops.ADD, product, z), bindings)
    contracted = np.float32(float(left[0]) * float(right[0]) - 1.0)
    assert contracted != value[0]
    assert not mismatches(np.array([contracted]), value, bound, dtypes.float32).any()
    assert mismatches(np.array([contracted * np.float32(1.01)]), value, bound, dtypes.float32).all()
    stored = build.alu(Ops.ADD, build.contiguous(product), z)
    assert _bound_of(stored, bindings)[1].exact.all()


@pytest.mark.parametrize(
    ("values", "is_exact"),
    [
        ([1.0, 2.0, 3.0, 4.0], True),
        ([0.5, 0.25, 8.0, -3.0], True),
        ([0.1, 0.2, 0.3, 0.4], False),
        ([1e8, 1.0, -1e8, 1.0], False),
        ([np.inf, 1.0, 2.0, 3.0], True),
        ([np.nan, 1.0, np.inf, 3.0], True),
    ],
)
def test_a_sum_that_no_order_changes_is_compared_to_the_bit(values: list[float], is_exact: bool) -> None:
    x, data = _leaf(values)
    _, bound = _bound_of(build.reduce_axis(Ops.ADD, x, (0,)), {x: data})
    assert bool(bound.exact.all()) == is_exact


def test_a_comparison_is_left_out_only_where_the_doubt_matters() -> None:
    x, data = _leaf([0.5, 4.0])
    squared = build.alu(Ops.EXP2, x)
    near = build.alu(Ops.CMPLT, squared, build.const(dtypes.float32, float(np.exp2(np.float32(0.5))), (2,)))
    assert _bound_of(near, {x: data})[1].free.tolist() == [True, False]


def test_signed_zeros_count_and_the_payload_of_a_nan_does_not() -> None:
    x, data = _leaf([0.0, np.nan])
    value, bound = _bound_of(x, {x: data})
    other_nan = np.array([0x7FC00123], np.uint32).view(np.float32)[0]
    assert mismatches(np.array([-0.0, other_nan], np.float32), value, bound, dtypes.float32).tolist() == [True, False]


def test_a_failing_case_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that gets SUB wrong: what is left of a large graph is little more than the SUB."""
    import tests.fuzz.execute as execute

    right = execute.run_on

    def wrong(case: Case, device: str) -> list[np.ndarray]:
        results = right(case, device)
        has_sub = any(node.op is Ops.SUB for node in execute.toposort(*case.outputs))
        return [result + 1 if has_sub else result for result in results]

    monkeypatch.setattr(execute, "run_on", wrong)
    x, data = _leaf([1.0, 2.0, 3.0, 4.0])
    deep = build.alu(
        Ops.SUB, build.alu(Ops.ADD, build.reshape(x, (2, 2)), build.reshape(x, (2, 2))), build.reshape(x, (2, 2))
    )
    deep = build.permute(build.alu(Ops.MAX, deep, build.reshape(x, (2, 2))), (1, 0))
    failure = check_case(Case(0, (deep, build.alu(Ops.NEG, x)), {x: data}), ("PYTHON",))
    assert failure is not None
    small = minimise(failure, seconds=600.0)
    assert len(small.case.outputs) == 1
    assert small.case.outputs[0].op is Ops.SUB
    assert small.case.outputs[0].shape == (1, 1)

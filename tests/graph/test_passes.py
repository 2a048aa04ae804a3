"""Passes as data: events, times, verification by name, and bisection with PASS_LIMIT inside one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tilewright import Context, Tensor
from tilewright.base import events
from tilewright.base.config import options, options_that_affect
from tilewright.base.dtype import dtypes
from tilewright.base.errors import VerifyError
from tilewright.codegen.pipeline import PASSES as CODEGEN
from tilewright.graph.ops import Ops
from tilewright.graph.passes import Pass, optional_passes_run, reset_pass_count, run_passes
from tilewright.graph.rewrite import reset_rewrite_count, rewrites_applied
from tilewright.graph.uop import UOp, const
from tilewright.graph.verification.verify import verify_tensor_graph
from tilewright.kernel.optimise import PASSES as KERNEL
from tilewright.schedule.pipeline import PASSES as SCHEDULE

STAGES = {"schedule": SCHEDULE, "kernel": KERNEL, "codegen": CODEGEN}


@dataclass
class Sum:
    """A state of one small graph."""

    root: UOp

    @property
    def graph(self) -> tuple[UOp, ...]:
        return (self.root,)

    def verify(self, pass_name: str) -> None:
        verify_tensor_graph(self.root, pass_name)


def add_one(state: Sum) -> None:
    state.root = UOp(Ops.ADD, dtypes.float32, (state.root, const(dtypes.float32, 1.0)))


def break_graph(state: Sum) -> None:
    state.root = UOp(Ops.ADD, dtypes.float32, (state.root, const(dtypes.int32, 1)))


ADD = Pass("add_one", add_one, "a number", "one more")
MAY_ADD = ADD._replace(name="may_add", is_optional=True)
ZERO = const(dtypes.float32, 0.0)


def test_passes_run_in_order_and_are_timed_and_told() -> None:
    seen: list[tuple[Any, ...]] = []
    events.pass_times.clear()
    state = Sum(ZERO)
    with events.subscribe(lambda e: seen.append((e.kind, e["name"], e["graph"])), ("pass-start", "pass-end")):
        run_passes("test", (ADD, MAY_ADD), state)
    one = UOp(Ops.ADD, dtypes.float32, (ZERO, const(dtypes.float32, 1.0)))
    assert seen == [
        ("pass-start", "add_one", (ZERO,)),
        ("pass-end", "add_one", (one,)),
        ("pass-start", "may_add", (one,)),
        ("pass-end", "may_add", (state.root,)),
    ]
    assert list(events.pass_times) == [("test", "add_one"), ("test", "may_add")]


def test_a_broken_graph_names_the_pass_that_left_it() -> None:
    with Context(VERIFY_GRAPH=1), pytest.raises(VerifyError) as caught:
        run_passes("test", (ADD, Pass("break_graph", break_graph, "", ""), ADD), Sum(ZERO))
    assert caught.value.pass_name == "break_graph"


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_limit_leaves_out_optional_passes_only(limit: int) -> None:
    reset_pass_count()
    state = Sum(ZERO)
    with Context(PASS_LIMIT=limit):
        run_passes("test", (MAY_ADD, ADD, MAY_ADD), state)
    depth = 0
    node = state.root
    while node.op is Ops.ADD:
        node, depth = node.src[0], depth + 1
    assert depth == 1 + limit == 1 + optional_passes_run()


def test_pass_names_tell_passes_apart() -> None:
    for passes in STAGES.values():
        assert len({step.name for step in passes}) == len(passes)
        assert all(step.needs and step.gives for step in passes)


def program() -> Tensor:
    x = Tensor(np.linspace(-3, 3, 96, dtype=np.float32).reshape(8, 12))
    return ((x @ x.T).softmax() * x.sum(1)).sum(0)


def stages_run(run: Any) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    with events.subscribe(lambda e: seen.append((str(e["stage"]), str(e["name"]))), ("pass-end",)):
        run()
    return seen


def test_every_stage_tells_every_pass() -> None:
    seen = stages_run(lambda: program().realize())
    assert set(seen) == {(stage, step.name) for stage, passes in STAGES.items() for step in passes}


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_the_result_is_right_without_any_optional_pass(device: str) -> None:
    """What PASS_LIMIT leaves out, one by one from the end, never changes the result; and no limit is answered from what
    another one left in the caches."""
    with Context(DEVICE=device):
        wanted = program().numpy()
        counts = set()
        for limit in (0, 1, 2, 3, 5, 8, 13, 21, 1000):
            reset_pass_count()
            with Context(PASS_LIMIT=limit):
                np.testing.assert_allclose(program().numpy(), wanted, rtol=2e-5)
            counts.add(optional_passes_run())
        assert {0, 1, 2, 3, 5, 8} <= counts


def index_heavy() -> Tensor:
    x = Tensor(np.arange(2 * 3 * 7 * 7, dtype=np.float32).reshape(2, 3, 7, 7) % 11)
    w = Tensor(np.ones((4, 3, 3, 3), dtype=np.float32))
    return x.pad((1, 1, 1, 1)).conv2d(w, stride=2).max_pool2d(2).flip(3).cumsum(1)


def test_a_bisection_of_rewrites_is_not_answered_from_memory() -> None:
    """Every limit takes the program through the stages anew, also one that was tried before another."""
    wanted = index_heavy().numpy()
    applied = []
    for limit in (1000, 0, 4, 2):
        reset_rewrite_count()
        with Context(REWRITE_LIMIT=limit):
            np.testing.assert_array_equal(index_heavy().numpy(), wanted)
        applied.append(rewrites_applied())
    assert applied[0] > 4
    assert applied[1:] == [0, 4, 2]


@pytest.mark.parametrize("option", options_that_affect("schedule", "kernel"))
def test_an_option_that_affects_a_stage_runs_it_anew(option: str) -> None:
    """Cache keys are made of what each option declares, so no option is answered from what another one left."""
    factor = 1.5 + sum(map(ord, option))  # a program of its own, which no test before this one compiled

    def make() -> Tensor:
        # A search measures in processes of its own, so it is given one kernel and one candidate.
        return (Tensor([1.0, 2.0]) if option == "BEAM" else program()) * factor

    make().realize()
    assert not stages_run_unwatched(make)
    with Context(**{"BEAM_CANDIDATES": 1, option: other_value(option)}):
        assert stages_run_unwatched(make)


def other_value(option: str) -> int | str:
    present = getattr(options, option)
    if isinstance(present, str):
        return "add-zero"  # the name of a rule
    return 2 if option == "BEAM" else int(not present)


def stages_run_unwatched(make: Callable[[], Tensor]) -> bool:
    """Whether any pass ran. Listeners are no help here: who listens sees every stage run."""
    before = dict(events.pass_times)
    make().realize()
    return events.pass_times != before

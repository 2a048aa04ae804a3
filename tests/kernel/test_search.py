"""Beam search over opts, measured by functions instead of machines: what is proposed, kept, dropped and resumed."""

from __future__ import annotations

import pytest

from tilewright import Tensor
from tilewright.base.target import Target
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.apply import candidate_opts
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.search import Limits, Opts, Search, Trial, extend, search_opts
from tilewright.kernel.templates.choose import planned_opts

TARGET = Target("TEST", vector_bytes=32, vector_registers=16, cores=4, has_threads=True)
WIDE = Limits(width=2, candidates=10_000, seconds=1e9)


def matmul_kernel(size: int = 16) -> UOp:
    product = Tensor.empty(size, size) @ Tensor.empty(size, size)
    (item,) = product.schedule()
    assert item.ast is not None
    return item.ast


def tile_size(opts: Opts) -> int:
    size = 1
    for opt in opts:
        size *= opt.arg if opt.op is OptOps.UPCAST else 1
    return size


class Measurements:
    """Gives times by a function of the opts, and remembers what it was asked."""

    def __init__(self, seconds: object) -> None:
        self.seconds = seconds
        self.asked: list[Opts] = []

    def __call__(self, candidates: list[Opts], best: float | None) -> list[Trial]:
        self.asked += candidates
        return [self.trial(opts) for opts in candidates]

    def trial(self, opts: Opts) -> Trial:
        assert callable(self.seconds)
        seconds = self.seconds(opts)
        return Trial(opts, None, seconds) if isinstance(seconds, str) else Trial(opts, seconds)


def run(measure: Measurements, limits: Limits = WIDE, search: Search | None = None) -> Search:
    search = search or Search()
    search_opts(matmul_kernel(), TARGET, measure, limits, search, lambda state: None)
    return search


def test_it_finds_the_fastest_tile() -> None:
    """A landscape with one lowest point: a tile of exactly 32 elements."""
    search = run(Measurements(lambda opts: 1.0 + abs(tile_size(opts) - 32)))
    assert search.is_complete
    assert search.best is not None
    assert tile_size(search.best.opts) == 32


def test_the_plans_of_templates_are_candidates() -> None:
    """Where nothing beats one, it wins, although it lies several opts away from the start; not only the chosen one."""
    chosen, *others = planned_opts(view_kernel(prepare_kernel(matmul_kernel()), TARGET))
    for plan in (chosen, max(others, key=len)):
        assert len(plan) > 1
        search = run(Measurements(lambda opts, plan=plan: 1.0 if opts == plan else 2.0))
        assert search.best is not None
        assert search.best.opts == plan


def test_a_dropped_candidate_never_wins_and_is_recorded() -> None:
    search = run(Measurements(lambda opts: "crashed: signal 11" if tile_size(opts) > 4 else 1.0 / tile_size(opts)))
    assert search.best is not None
    assert tile_size(search.best.opts) == 4
    assert search.dropped
    assert all(trial.reason == "crashed: signal 11" for trial in search.dropped)


def test_nothing_is_measured_twice() -> None:
    measure = Measurements(lambda opts: 1.0 / (1 + tile_size(opts)))
    run(measure)
    assert len(measure.asked) == len(set(measure.asked))


@pytest.mark.parametrize("most", [1, 7, 20])
def test_candidates_are_limited(most: int) -> None:
    measure = Measurements(lambda opts: 1.0 / (1 + tile_size(opts)))
    search = run(measure, Limits(2, most, 1e9))
    assert len(measure.asked) == len(search.trials) == most
    assert search.is_complete


def test_time_is_limited_and_the_next_call_goes_on() -> None:
    measure = Measurements(lambda opts: 1.0 / (1 + tile_size(opts)))
    whole = run(Measurements(measure.seconds))
    search = run(measure, Limits(2, 10_000, -1.0))
    assert not search.is_complete
    assert not search.trials
    search = run(measure, Limits(2, 30, 1e9), search)
    resumed = Search(dict(search.trials))
    again = Measurements(measure.seconds)
    run(again, WIDE, resumed)
    assert not set(again.asked) & set(search.trials)
    assert resumed.is_complete
    assert resumed.best == whole.best


def test_every_proposal_is_checked_like_a_users() -> None:
    kernel = prepare_kernel(matmul_kernel())
    legal = [opt for opt in candidate_opts(view_kernel(kernel, TARGET)) if extend(kernel, (opt,), TARGET) is not None]
    assert {opt.op for opt in legal} >= {OptOps.UPCAST, OptOps.UNROLL, OptOps.THREAD}
    assert OptOps.LOCAL not in {opt.op for opt in legal}, "the target has no work-groups"
    assert extend(kernel, (Opt(OptOps.UPCAST, 0, 7),), TARGET) is None


def test_a_tile_that_no_register_file_holds_is_not_tried() -> None:
    kernel = prepare_kernel(matmul_kernel(64))
    assert extend(kernel, (Opt(OptOps.UPCAST, 0, 8),), TARGET) is not None
    assert extend(kernel, (Opt(OptOps.UPCAST, 0, 64), Opt(OptOps.UPCAST, 1, 64)), TARGET) is None

"""Beam search over opts. In: a kernel, a target, and a function that measures candidates. Out: the fastest opts found,
and the record of every candidate. This proposes and records; the engine compiles and runs.

The first round measures the plans of every template that matches the kernel. Another round extends each of the best
kernels by one opt, measures the new ones and keeps the best. The search ends when a round brings no gain, or when time
or candidates run out. No candidate is measured twice, so an interrupted search continues from its records when it is
run again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from tilewright.base.errors import KernelOptError
from tilewright.base.records import field, mutable_record, record
from tilewright.base.target import Target
from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.apply import apply_opt, candidate_opts
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates.choose import planned_opts

Opts = tuple[Opt, ...]

# The search ends when the best time of a round is more than this fraction of the best time before it.
MAX_TIME_RATIO = 0.99
# Elements of a tile per vector register: a larger tile spills, and compiles slowly.
TILE_PER_REGISTER = 8
# Candidates per batch: after each, the deadline is checked and the records are saved.
BATCH = 16


@record
class Trial:
    """One candidate. `seconds` is None where it was dropped, for the `reason`."""

    opts: Opts
    seconds: float | None
    reason: str = ""


@record
class Limits:
    """`width` kernels are kept from round to round; a search measures at most `candidates` and ends after `seconds`."""

    width: int
    candidates: int
    seconds: float


@mutable_record
class Search:
    """The state of a search. `trials` may hold records of an earlier run."""

    trials: dict[Opts, Trial] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def best(self) -> Trial | None:
        timed = [trial for trial in self.trials.values() if trial.seconds is not None]
        return min(timed, key=lambda trial: trial.seconds or math.inf, default=None)

    @property
    def dropped(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.seconds is None]


Measure = Callable[[list[Opts], float | None], list[Trial]]
"""Measures candidates. The second argument is the best time so far, so that slow ones can be stopped early."""
Report = Callable[[Search], None]


def search_opts(sink: UOp, target: Target, measure: Measure, limits: Limits, search: Search, report: Report) -> None:
    """Adds trials to `search` until it is complete or a limit is reached; `report` is called after each batch."""
    deadline = time.monotonic() + limits.seconds
    start = prepare_kernel(sink, target)
    # The chosen plan is a candidate like any other, so the result is never slower than it.
    first: dict[Opts, UOp] = {(): start}
    for opts in planned_opts(view_kernel(start, target)):
        kernel = transformed(start, opts, target)
        if kernel is not None:
            first.setdefault(opts, kernel)
    seen: set[UOp] = set(first.values())
    if not _run_round(list(first), measure, limits, search, report, deadline):
        return
    beam = _best_of(first, search, limits.width)
    while beam:
        before = _best_time(beam, search)
        fresh: dict[Opts, UOp] = {}
        for opts, kernel in beam.items():
            for opt in candidate_opts(view_kernel(kernel, target)):
                made = extend(kernel, (opt,), target)
                if made is not None and made not in seen:
                    seen.add(made)
                    fresh[*opts, opt] = made
        if not _run_round(list(fresh), measure, limits, search, report, deadline):
            return
        beam = _best_of({**beam, **fresh}, search, limits.width)
        if _best_time(beam, search) > before * MAX_TIME_RATIO:
            break
    search.is_complete = True


def transformed(sink: UOp, opts: Opts, target: Target) -> UOp | None:
    """The kernel after opts; None where one is illegal."""
    try:
        for opt in opts:
            sink = apply_opt(sink, opt, target)
    except KernelOptError:
        return None
    return sink


def extend(sink: UOp, opts: Opts, target: Target) -> UOp | None:
    """The kernel after more opts; None where one is illegal or the tile is too large for the registers. A plan of a
    template knows its registers better: this counts the tiles of copies too."""
    made = transformed(sink, opts, target)
    if made is None:
        return None
    sink = made
    tile = math.prod(size_of(axis) for axis in view_kernel(sink).of_kind(AxisType.UPCAST, AxisType.UNROLL))
    return sink if tile <= target.vector_registers * max(TILE_PER_REGISTER, target.vector_bytes // 4) else None


def _run_round(
    wanted: list[Opts], measure: Measure, limits: Limits, search: Search, report: Report, deadline: float
) -> bool:
    """Measures the candidates without a record; False where a limit was reached before all of them."""
    unknown = [opts for opts in wanted if opts not in search.trials]
    for start in range(0, len(unknown), BATCH):
        room = limits.candidates - len(search.trials)
        if room <= 0 or time.monotonic() > deadline:
            # The limit of candidates ends the search for good: another run would measure no more.
            search.is_complete = room <= 0
            return False
        best = search.best
        for trial in measure(unknown[start : start + min(BATCH, room)], None if best is None else best.seconds):
            search.trials[trial.opts] = trial
        report(search)
    return True


def _best_of(kernels: dict[Opts, UOp], search: Search, width: int) -> dict[Opts, UOp]:
    timed = [(search.trials[opts].seconds, opts) for opts in kernels if opts in search.trials]
    chosen = sorted(((seconds, opts) for seconds, opts in timed if seconds is not None), key=lambda pair: pair[0])
    return {opts: kernels[opts] for _, opts in chosen[:width]}


def _best_time(beam: dict[Opts, UOp], search: Search) -> float:
    return min((search.trials[opts].seconds or math.inf for opts in beam), default=math.inf)

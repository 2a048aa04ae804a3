"""BEAM=n. In: a kernel and a device. Out: the fastest opts that were found, checked, and kept on disk.
Joins the search of the kernel stage with processes that compile and run its candidates.

A search that is stopped, by the user or by a limit of time, continues from its records at the next call; a complete
one is only looked up. The winner is checked against the unoptimised kernel on new inputs; one that fails is dropped,
and the next best is checked."""

from __future__ import annotations

import os
import sys
import time

from tilewright.base.config import options
from tilewright.base.events import emit
from tilewright.base.forks import renewed_lock
from tilewright.engine.compilation.search.process import Task, Timeouts, Workers
from tilewright.engine.compilation.search.store import kernel_text, read_search, write_search
from tilewright.graph.uop import UOp
from tilewright.kernel.search import Limits, Opts, Search, Trial, search_opts
from tilewright.runtime.device import open_driver

SEED_OF_MEASUREMENTS = 1
SEED_OF_CHECK = 1_000_001

_lock = renewed_lock()
_searched: dict[tuple[UOp, str], Opts] = {}


def find_opts(sink: UOp, device: str, hook: str = "", timeouts: Timeouts | None = None) -> Opts:
    """The opts for the prepared kernel; () where no candidate was better than none. `hook` is for tests."""
    with _lock:
        found = _searched.get((sink, device))
        if found is None:
            found = _searched[sink, device] = _search(sink, device, hook, timeouts or Timeouts())
        return found


def _search(sink: UOp, device: str, hook: str, timeouts: Timeouts) -> Opts:
    target = open_driver(device).target
    search = read_search(sink, target) or Search()
    if search.is_complete and search.best is not None:
        return search.best.opts
    progress = _Progress(sink.arg.name, device)

    def report(state: Search) -> None:
        write_search(sink, target, state)
        progress.show(state)

    task = Task(kernel_text(sink), device, SEED_OF_MEASUREMENTS, hook)
    limits = Limits(options.BEAM, options.BEAM_CANDIDATES, options.BEAM_SECONDS)
    processes = target.cores if target.has_threads else max(1, min(8, os.cpu_count() or 1))
    with Workers(task, processes, timeouts) as workers:
        search_opts(sink, target, workers.measure, limits, search, report)
        best = _checked_best(search, workers)
    report(search)
    progress.end(search)
    return () if best is None else best.opts


def _checked_best(search: Search, workers: Workers) -> Trial | None:
    """The fastest trial whose result is right on new inputs. Faster ones that fail are dropped, with the reason."""
    while (best := search.best) is not None and best.opts:
        complaint = workers.check(best.opts, SEED_OF_CHECK)
        if not complaint:
            return best
        search.trials[best.opts] = Trial(best.opts, None, f"as the winner, on fresh numbers: {complaint}")
    return search.best


class _Progress:
    """The progress line of a search: redrawn in place on a terminal, printed at the end at DEBUG=1 elsewhere."""

    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self.device = device
        self.begin = time.monotonic()
        self.is_terminal = sys.stderr.isatty()

    def line(self, search: Search) -> str:
        best, plain = search.best, search.trials.get(())
        text = f"search {self.name} on {self.device}: {len(search.trials)} candidates, {len(search.dropped)} dropped"
        if best is not None and best.seconds is not None:
            text += f", best {best.seconds * 1e6:.1f} us"
            if plain is not None and plain.seconds is not None:
                text += f" ({plain.seconds / best.seconds:.1f}x of no opts)"
        return f"{text}, {time.monotonic() - self.begin:.0f} s"

    def show(self, search: Search) -> None:
        emit("search", name=self.name, device=self.device, search=search)
        if self.is_terminal:
            print(f"\r\033[K{self.line(search)}", end="", file=sys.stderr, flush=True)

    def end(self, search: Search) -> None:
        if self.is_terminal:
            print(f"\r\033[K{self.line(search)}", file=sys.stderr, flush=True)
        elif options.DEBUG >= 1:
            print(self.line(search), file=sys.stderr, flush=True)

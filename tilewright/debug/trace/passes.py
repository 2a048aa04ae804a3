"""The passes of a compilation as they happen. In: the events of passes in one thread. Out: `Pass` records, those of a
schedule together and those of each kernel together."""

from __future__ import annotations

from typing import Any

from tilewright.debug import describe
from tilewright.debug.trace.places import function_place
from tilewright.debug.trace.pools import Pool, cut
from tilewright.debug.trace.records import Decision, Limits, Location, Pass, Rule
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

Fields = dict[str, Any]
OUTSIDE = "outside of passes"


class OpenPass:
    """A pass that has begun."""

    def __init__(self, stage: str, name: str, place: Location | None, start: int, pool: Pool) -> None:
        self.stage = stage
        self.name = name
        self.place = place
        self.start = start
        self.pool = pool
        self.graph: tuple[UOp, ...] = ()
        self.rules: list[Rule] = []
        self.rules_left_out = 0
        self.decisions: list[Decision] = []

    def finish(self, duration: int, is_changed: bool, roots: tuple[int, ...], text: str) -> Pass:
        return Pass(
            self.stage,
            self.name,
            self.place,
            self.start,
            duration,
            is_changed,
            roots,
            text,
            tuple(self.rules),
            self.rules_left_out,
            tuple(self.decisions),
        )


class KernelDraft:
    """The passes of one kernel, from the first of the kernel stage to the last of codegen. `optimised` is the graph
    that the kernel stage left, which tells one compilation of a kernel from another: a search makes many."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.passes: list[Pass] = []
        self.optimised: UOp | None = None
        self.is_lowered = False


class Compilation:
    """The passes of one thread, from a schedule to the end of its compilation."""

    def __init__(self, limits: Limits, began: int) -> None:
        self.limits = limits
        self.began = began
        self.pool = Pool(limits)  # of the schedule stage
        self.first_roots: tuple[int, ...] = ()
        self.passes: list[Pass] = []
        self.drafts: list[KernelDraft] = []
        self.open: list[OpenPass] = []
        self._loose: OpenPass | None = None

    def start_pass(self, time: int, fields: Fields) -> None:
        stage, graph = fields["stage"], fields["graph"]
        pool = self.pool
        if stage != "schedule":
            if not self.drafts or (stage == "kernel" and self.drafts[-1].is_lowered):
                self.drafts.append(KernelDraft(Pool(self.limits)))
            self.drafts[-1].is_lowered |= stage != "kernel"
            pool = self.drafts[-1].pool
        elif not self.passes:
            self.first_roots = pool.add(graph)
        self._end_loose()
        started = OpenPass(stage, fields["name"], function_place(fields["run"]), time - self.began, pool)
        started.graph = graph
        self.open.append(started)

    def end_pass(self, fields: Fields) -> Pass:
        ended, graph = self.open.pop(), fields["graph"]
        is_changed = graph != ended.graph
        roots = ended.pool.add(graph)
        text = "" if not is_changed else cut(graph_text(graph), self.limits.text)
        made = ended.finish(fields["nanoseconds"], is_changed, roots, text)
        if ended.stage == "schedule":
            self.passes.append(made)
        else:
            draft = self.drafts[-1]
            draft.passes.append(made)
            if ended.stage == "kernel":
                draft.optimised = graph[0]
        return made

    def open_pass(self) -> OpenPass:
        """The innermost pass. Rules that fire outside of passes are collected in one without a function."""
        if self.open:
            return self.open[-1]
        if self._loose is None:
            self._loose = OpenPass("graph", OUTSIDE, None, 0, self.pool)
        return self._loose

    def _end_loose(self) -> None:
        if self._loose is not None:
            loose, self._loose = self._loose, None
            self.passes.append(loose.finish(0, False, (), ""))

    def take_kernel(self, optimised: UOp) -> KernelDraft | None:
        """The passes that led to this kernel, the latest of several."""
        for draft in reversed(self.drafts):
            if draft.optimised is optimised:
                self.drafts.remove(draft)
                return draft
        return None


def graph_text(graph: tuple[UOp, ...]) -> str:
    """The expressions of kernels; empty for tensor graphs, whose nodes are shown instead."""
    kernels = [root for root in graph if root.op is Ops.SINK]
    return "\n".join(map(describe.show_kernel, kernels))

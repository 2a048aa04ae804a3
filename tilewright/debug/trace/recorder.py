"""Recording a trace. In: the events of a program while it runs. Out: a `Trace`. It only listens.

    with Recorder() as recorder:
        (Tensor([1, 2, 3]) + 2).tolist()
    trace = recorder.trace("program.py", "finished")

Everything is converted to text when its event arrives: the recorder keeps no node and no kernel alive."""

from __future__ import annotations

import importlib
import linecache
import threading
from collections import Counter
from typing import Any

from tilewright.base.config import options, set_option
from tilewright.base.events import Event, Subscription, subscribe
from tilewright.base.forks import renewed_lock
from tilewright.base.location import user_location
from tilewright.debug import describe
from tilewright.debug.trace import facts
from tilewright.debug.trace.passes import Compilation, KernelDraft, OpenPass
from tilewright.debug.trace.places import emitter_place, rule_place
from tilewright.debug.trace.pools import Pool, cut, expression_text
from tilewright.debug.trace.records import (
    FORMAT,
    Decision,
    Item,
    Kernel,
    Limits,
    Location,
    Rule,
    Run,
    Span,
    Step,
    Trace,
    UserLine,
)
from tilewright.debug.trace.timeline import TimelineRecorder
from tilewright.engine.compilation.compile import CompiledKernel, forget_kernels
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph.records import Schedule
from tilewright.graph.rewrite import watch_anew
from tilewright.graph.text.show import show_program
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver

KINDS = (
    "rule-fired",
    "pass-start",
    "pass-end",
    "decision",
    "stage",
    "schedule",
    "kernel-compiled",
    "kernel-run",
    "copy",
    "schedule-run",
    "replay",
    "warning",
)
STAGES = ("tilewright.schedule.pipeline", "tilewright.kernel.optimise", "tilewright.codegen.pipeline")
Fields = dict[str, Any]


class _Thread(threading.local):
    """The open compilation and step of one thread."""

    def __init__(self) -> None:
        self.compilation: Compilation | None = None
        self.step: int | None = None


class Recorder(TimelineRecorder):
    """Listens from `__enter__` to `__exit__`, in every thread."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits or Limits())
        self.steps: list[Step] = []
        self.kernels: list[Kernel] = []
        self.notes: Counter[str] = Counter()
        self.built: dict[Location, Counter[str]] = {}
        self._first_steps: dict[int, int] = {}  # the number of the first step by the identity of its graph's text
        self._here = _Thread()
        self._lock = renewed_lock()
        self._subscription: Subscription | None = None
        self._cache_option = 0
        self.duration = 0

    def __enter__(self) -> Recorder:
        # A stage that a cache replaces emits no events, so the caches of the process are cleared and the disk is not
        # read.
        forget_schedules()
        forget_kernels()
        watch_anew()
        for stage in STAGES:
            importlib.import_module(stage)  # the first use would count as time of the stage
        rule_place("")
        self._cache_option = options.CACHE
        set_option("CACHE", 0)
        self.began = Event("warning", {}).time_ns
        self._subscription = subscribe(self._note, KINDS)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._subscription is not None
        self._subscription.close()
        self.duration = Event("warning", {}).time_ns - self.began
        set_option("CACHE", self._cache_option)

    def _note(self, event: Event) -> None:
        handler = _HANDLERS.get(event.kind)
        with self._lock:
            if handler is None:
                self.note_event(event, self._here.step)
            else:
                handler(self, event, event.fields)

    # ------------------------------------------------------------ passes

    def _compilation(self) -> Compilation:
        if self._here.compilation is None:
            self._here.compilation = Compilation(self.limits, self.began)
        return self._here.compilation

    def _on_pass_start(self, event: Event, fields: Fields) -> None:
        if fields["stage"] == "schedule":
            self._here.step = None
        self._compilation().start_pass(event.time_ns, fields)

    def _on_pass_end(self, event: Event, fields: Fields) -> None:
        made = self._compilation().end_pass(fields)
        thread = threading.current_thread().name
        self.add_span(Span(made.stage, made.name, made.start, made.duration, thread, user_location()))

    def _on_rule(self, event: Event, fields: Fields) -> None:
        current = self._open_pass()
        if len(current.rules) >= self.limits.rules:
            current.rules_left_out += 1
            return
        before, after, limit = fields["before"], fields["after"], self.limits.expression
        texts = expression_text(before, limit), expression_text(after, limit)
        nodes = current.pool.pair(before, after)
        place = rule_place(fields["rule"])
        current.rules.append(Rule(fields["rule"], fields["ruleset"], *texts, place, before.line, nodes))

    def _on_decision(self, event: Event, fields: Fields) -> None:
        node: UOp | None = fields["node"]
        line = None if node is None else node.line
        made = Decision(fields["stage"], fields["choice"], fields["reason"], emitter_place(), line)
        self._open_pass().decisions.append(made)

    def _open_pass(self) -> OpenPass:
        return self._compilation().open_pass()

    # ------------------------------------------------------------ schedules and kernels

    def _on_schedule(self, event: Event, fields: Fields) -> None:
        compilation, self._here.compilation = self._compilation(), None
        plan: Schedule = fields["plan"]
        number = len(self.steps)
        self._note_lines(fields["graph"], fields["lines"])
        if number >= self.limits.steps:
            self.left_out["steps"] += 1
            self._here.step = None
            return
        # Equal graphs are one object, and so is their schedule while it is cached.
        identity = hash(fields["graph"])
        same_as = self._first_steps.get(identity) if fields["cached"] else None
        if same_as is None:
            self._first_steps[identity] = number
        pool = compilation.pool
        roots: tuple[int, ...] = ()
        if same_as is None:
            roots = compilation.first_roots or pool.add(tuple(fields["graph"]))
            self.left_out["nodes"] += pool.left_out
            pool.set_lines(fields["lines"])
        step = Step(
            number=number,
            line=user_location(),
            thread=threading.current_thread().name,
            start=event.time_ns - self.began - fields["nanoseconds"],
            duration=fields["nanoseconds"],
            same_as=same_as,
            nodes=tuple(pool.nodes) if same_as is None else (),
            roots=roots,
            passes=tuple(compilation.passes),
            items=tuple(_item(item, plan) for item in plan.items),
        )
        self.steps.append(step)
        self._here.step = number

    def _note_lines(self, graph: tuple[UOp, ...], lines: dict[UOp, Location]) -> None:
        for line, counts in facts.ops_by_line(graph, lines).items():
            self.built.setdefault(line, Counter()).update(counts)

    def _on_kernel(self, event: Event, fields: Fields) -> None:
        kernel: CompiledKernel = fields["kernel"]
        draft = self._compilation().take_kernel(kernel.optimised)
        number = len(self.kernels)
        if number >= self.limits.kernels:
            self.left_out["kernels"] += 1
            return
        made = self._kernel(number, kernel, draft)
        self.kernels.append(made)
        self.kernel_numbers[made.name, made.device] = number

    def _kernel(self, number: int, kernel: CompiledKernel, draft: KernelDraft | None) -> Kernel:
        limit = self.limits.text
        pool = draft.pool if draft is not None else Pool(self.limits)
        roots = pool.add((kernel.ast,))
        self.left_out["nodes"] += pool.left_out
        assembly = "(not recorded)"
        if self.limits.assembly:
            assembly = open_driver(kernel.device).disassemble(kernel.source)
        return Kernel(
            number=number,
            step=self._here.step,
            name=kernel.program.name,
            device=kernel.device,
            line=self._line_of(kernel),
            expression=cut(describe.show_kernel(kernel.ast), limit),
            nodes=tuple(pool.nodes),
            roots=roots,
            passes=tuple(draft.passes) if draft is not None else (),
            opts=tuple(describe.show_opts((opt,)) for opt in describe.opts_of(kernel.optimised)),
            axes=tuple(map(str, describe.axes_of(kernel.optimised))),
            optimised=cut(describe.show_kernel(kernel.optimised), limit),
            program=cut(show_program(kernel.program), limit),
            source=cut(kernel.source, limit),
            assembly=cut(assembly, limit),
            operations=kernel.program.flops,
            bytes_moved=kernel.program.bytes_moved,
            stages=tuple(describe.ordered_stages(kernel.stage_times)),
        )

    def _line_of(self, kernel: CompiledKernel) -> Location | None:
        """The user's line of the item that the kernel is compiled for; without one, of any of its nodes."""
        items = self.steps[self._here.step].items if self._here.step is not None else ()
        found = (item.line for item in items if item.name == kernel.program.name and item.line is not None)
        return next(found, None) or facts.first_line(kernel.ast)

    # ------------------------------------------------------------ the end

    def _on_schedule_run(self, event: Event, fields: Fields) -> None:
        self._here.step = None
        self._here.compilation = None

    def _on_warning(self, event: Event, fields: Fields) -> None:
        self.notes[str(fields["message"])] += 1

    def trace(self, program: str, outcome: str, calls: tuple[Any, ...] = (), notes: tuple[str, ...] = ()) -> Trace:
        """All that was recorded. Items of schedules are joined to the kernels, which were compiled after them."""
        with self._lock:
            steps = tuple(facts.with_kernels(step, self.kernel_numbers) for step in self.steps)
            passes = [made for step in steps for made in step.passes]
            passes += [made for kernel in self.kernels for made in kernel.passes]
            self.left_out["rewrites"] = sum(made.rules_left_out for made in passes)
            told = [text if count == 1 else f"{text} ({count} times)" for text, count in self.notes.items()]
            told += self.limit_notes()
            return Trace(
                format=FORMAT,
                program=program,
                outcome=outcome,
                versions=facts.versions(),
                options=facts.changed_options(),
                duration=self.duration,
                lines=self._user_lines(steps),
                steps=steps,
                kernels=tuple(self.kernels),
                runs=tuple(self.runs),
                spans=tuple(self.spans),
                memory=tuple(self.memory),
                calls=calls,
                notes=(*told, *notes),
            )

    def _user_lines(self, steps: tuple[Step, ...]) -> tuple[UserLine, ...]:
        asked: dict[Location, list[int]] = {}
        for step in steps:
            if step.line is not None:
                asked.setdefault(step.line, []).append(step.number)
        ran: dict[Location, list[Run]] = {}
        for run in self.runs:
            if run.line is not None:
                ran.setdefault(run.line, []).append(run)
        found = []
        for line in sorted({*self.built, *asked, *ran}):
            ops, runs = self.built.get(line, Counter()), ran.get(line, [])
            kernels = sorted({run.kernel for run in runs if run.kernel is not None})
            text = linecache.getline(*line).strip()
            found.append(
                UserLine(
                    line=line,
                    text=text,
                    nodes=sum(ops.values()),
                    ops=tuple(ops),
                    kernels=tuple(kernels),
                    steps=tuple(asked.get(line, ())),
                    runs=len(runs),
                    duration=facts.time_of(runs),
                )
            )
        return tuple(found)


def _item(item: Any, plan: Schedule) -> Item:
    reads = tuple(describe.show_access(access, plan) for access in item.reads)
    writes = tuple(describe.show_access(access, plan) for access in item.writes)
    return Item(describe.kernel_name(item), item.device, reads, writes, item.line, None)


_HANDLERS = {
    "rule-fired": Recorder._on_rule,
    "pass-start": Recorder._on_pass_start,
    "pass-end": Recorder._on_pass_end,
    "decision": Recorder._on_decision,
    "schedule": Recorder._on_schedule,
    "kernel-compiled": Recorder._on_kernel,
    "schedule-run": Recorder._on_schedule_run,
    "warning": Recorder._on_warning,
}

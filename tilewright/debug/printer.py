"""Prints events as they happen, as far as the option DEBUG of the thread they happen in asks for. In: events. Out:
lines on stderr. `base.events` loads this module by name at the first event once DEBUG is above 0; nothing imports it.

Each level includes those below it: 1 devices and caches; 2 a line per kernel, copy and compilation; 3 schedules, axes
and opts; 4 source; 5 graphs before and after; 6 assembly."""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from tilewright.base.config import options
from tilewright.base.events import PRINTED, Event, GlobalCounters, stage_times
from tilewright.base.forks import renewed_lock
from tilewright.debug import describe
from tilewright.graph.records import Schedule
from tilewright.graph.text.show import show, show_program
from tilewright.kernel.optimise import explain_opts
from tilewright.runtime.device import open_driver

_STYLES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_NAME_WIDTH = 32

Fields = dict[str, Any]


def paint(text: str, style: str) -> str:
    """The text in a colour where stderr is a terminal and NO_COLOR is not set; else as it is."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


class Printer:
    """What has been printed so far. One for the process: its threads share stderr and the caches."""

    def __init__(self) -> None:
        self.caches: Counter[tuple[str, str]] = Counter()  # (cache, "hit" or "miss")
        self.devices: set[str] = set()
        self.last_graph: object = None  # after the last pass
        self.lock = renewed_lock()
        # The summary is printed at the end of a process that has printed events.
        atexit.register(self.print_summary)

    def print_event(self, event: Event) -> None:
        """Prints an event if the level of this thread asks for it; events come also for the level of another thread."""
        level = options.DEBUG
        if level >= PRINTED[event.kind]:
            self.write(_HANDLERS[event.kind](self, event.kind, event.fields, level))

    def write(self, lines: list[str]) -> None:
        """All lines at once: those of other threads come before or after them."""
        if lines:
            with self.lock:
                sys.stderr.write("\n".join(lines) + "\n")
                sys.stderr.flush()

    # ------------------------------------------------------------ devices and caches

    def device_lines(self, names: list[str]) -> list[str]:
        """A line for each device that is met for the first time."""
        lines = []
        for name in names:
            if name not in self.devices:
                self.devices.add(name)
                target = open_driver(name).target
                kind = (target.arch or target.name).split()[0]
                facts = f"{kind}, {target.cores} cores, vectors of {target.vector_bytes} bytes"
                toolchain = f", {target.toolchain.split(' library ')[0]}" if target.toolchain else ""
                lines.append(f"{paint('device', 'green')}   {name}: {facts}{toolchain}")
        return lines

    def cache_line(self, cache: str, outcome: str, detail: str) -> str:
        self.caches[cache, outcome] += 1
        style = "green" if outcome == "hit" else "yellow"
        return f"{paint('cache', style)}    {cache} {outcome} {paint(detail, 'dim')}"

    def on_cache(self, kind: str, fields: Fields, level: int) -> list[str]:
        return [self.cache_line(fields["cache"], kind.removeprefix("cache-"), fields["key"][:12])]

    def on_warning(self, kind: str, fields: Fields, level: int) -> list[str]:
        location = fields.get("location")
        shown = "" if location is None else f"  {describe.show_location(location)}"
        return [f"{paint('warning', 'red')}  {fields['message']}{shown}"]

    # ------------------------------------------------------------ schedules

    def on_schedule(self, kind: str, fields: Fields, level: int) -> list[str]:
        plan: Schedule = fields["plan"]
        count = f"{len(plan.items)} item{'' if len(plan.items) == 1 else 's'}"
        spent = describe.show_seconds(fields["nanoseconds"] / 1e9)
        lines = self.device_lines([item.device for item in plan.items])
        lines.append(self.cache_line("schedule", "hit" if fields["cached"] else "miss", f"{count} in {spent}"))
        if level >= 5 and not fields["cached"]:
            for number, node in enumerate(fields["graph"]):
                lines += section(f"tensor graph {number}, with its inputs as PARAMs", show(node))
        if level >= 3:
            for number, item in enumerate(plan.items):
                lines.append(f"{paint('schedule', 'blue')} {describe.show_item(number, item, plan)}")
        return lines

    def on_pass_end(self, kind: str, fields: Fields, level: int) -> list[str]:
        """The graph after a pass; a pass that did not change it is only named."""
        if options.SHOW_PASS not in ("", fields["name"]):
            return []
        is_same, self.last_graph = fields["graph"] == self.last_graph, fields["graph"]
        spent = describe.show_seconds(fields["nanoseconds"] / 1e9)
        title = f"{fields['stage']}, after pass {fields['name']} in {spent}"
        if is_same:
            return [paint(f"---- {title}: the same", "cyan")]
        return [
            line for number, node in enumerate(fields["graph"]) for line in section(f"{title}: {number}", show(node))
        ]

    # ------------------------------------------------------------ kernels

    def on_kernel_compiled(self, kind: str, fields: Fields, level: int) -> list[str]:
        kernel = fields["kernel"]
        name = kernel.program.name
        driver = open_driver(fields["device"])
        lines: list[str] = []
        if level >= 5:
            lines += section(f"kernel {name}, as scheduled", show(kernel.ast))
            lines += section(f"kernel {name}, optimised", show(kernel.optimised))
            lines += section(f"program {name}", show_program(kernel.program))
        if level >= 3:
            axes = " ".join(map(str, describe.axes_of(kernel.optimised)))
            opts = describe.show_opts(describe.opts_of(kernel.optimised))
            lines.append(f"{paint('kernel', 'blue')}   {name} axes {axes or 'none'}; opts {opts}")
            lines.append(f"         {explain_opts(kernel.ast, driver.target, describe.opts_of(kernel.optimised))}")
            lines += [f"         {line}" for line in describe.show_kernel(kernel.optimised).splitlines()]
        if level >= 4:
            lines += section(f"source of {name}", kernel.source)
        if level >= 6:
            lines += section(f"assembly of {name}", driver.disassemble(kernel.source))
        lines.append(f"{paint('compiled', 'yellow')} {name} {describe.show_stage_times(kernel.stage_times)}")
        return lines

    def on_kernel_run(self, kind: str, fields: Fields, level: int) -> list[str]:
        location = describe.show_location(fields["location"])
        return [work_line("run", fields["name"], fields["device"], fields, location)]

    def on_schedule_run(self, kind: str, fields: Fields, level: int) -> list[str]:
        count = len(fields["items"])
        return [work_line("total", f"{count} items", "", fields, "")] if count > 1 else []

    def on_replay(self, kind: str, fields: Fields, level: int) -> list[str]:
        return [work_line("jit", fields["name"], "", fields, f"{fields['kernels']} kernels replayed")]

    def on_copy(self, kind: str, fields: Fields, level: int) -> list[str]:
        rest = f"{describe.show_bytes(fields['bytes'])}  {describe.show_location(fields['location'])}"
        return [work_line("copy", f"{fields['source']} to {fields['target']}", "", fields, rest)]

    # ------------------------------------------------------------ the end

    def print_summary(self) -> None:
        """The totals of the process, where its own DEBUG asks for them; that of a `Context` has ended by then."""
        lines = []
        if options.DEBUG >= 1:
            names = dict.fromkeys(cache for cache, _ in self.caches)
            counts = [f"{name} {self.caches[name, 'hit']} hits {self.caches[name, 'miss']} misses" for name in names]
            lines.append(f"{paint('caches', 'bold')}   " + (", ".join(counts) or "not used"))
        if options.DEBUG >= 2:
            spent = describe.show_seconds(GlobalCounters.time_sum_s)
            lines.append(f"{paint('kernels', 'bold')}  {GlobalCounters.kernel_count} ran, {spent} in those timed")
            if stage_times:
                lines.append(f"{paint('stages', 'bold')}   {describe.show_stage_times(stage_times)}")
        self.write(lines)


def section(title: str, text: str) -> list[str]:
    """A text of several lines under its title."""
    return [paint(f"---- {title}", "cyan"), *text.rstrip("\n").splitlines()]


def work_line(what: str, name: str, device: str, fields: Fields, rest: str) -> str:
    """Aligned columns: event, name, device, time, rates and the user's line."""
    seconds = fields["seconds"]
    columns = (
        paint(f"{what:8}", "bold"),
        f"{name:{_NAME_WIDTH}}",
        f"{device:8}",
        f"{describe.show_seconds(seconds):>8}",
        f"{describe.giga_per_second(fields['bytes'], seconds):>5} GB/s",
        f"{describe.giga_per_second(fields.get('operations', 0), seconds):>5} GFLOP/s",
        paint(rest, "dim") if rest else "",
    )
    return " ".join(columns).rstrip()


_HANDLERS: dict[str, Callable[[Printer, str, Fields, int], list[str]]] = {
    "cache-hit": Printer.on_cache,
    "cache-miss": Printer.on_cache,
    "copy": Printer.on_copy,
    "kernel-compiled": Printer.on_kernel_compiled,
    "kernel-run": Printer.on_kernel_run,
    "pass-end": Printer.on_pass_end,
    "replay": Printer.on_replay,
    "schedule": Printer.on_schedule,
    "schedule-run": Printer.on_schedule_run,
    "warning": Printer.on_warning,
}

_printer = Printer()
print_event = _printer.print_event

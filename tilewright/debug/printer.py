"""Prints events as they happen, as far as the option DEBUG of the thread they happen in asks for. In: events. Out: lines on
stderr. `base.events` loads this module by name at the first event once DEBUG is above 0; nothing imports it.

Each level includes those below it: 1 devices and caches; 2 a line per kernel, copy and compilation; 3 schedules, axes and
opts; 4 source; 5 graphs before and after; 6 assembly."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tilewright.base.config import options
from tilewright.base.events import Event, GlobalCounters, stage_times
from tilewright.debug import describe
from tilewright.graph.show import show, show_program
from tilewright.runtime.device import open_driver

_STYLES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_NAME_WIDTH = 32


def paint(text: str, style: str) -> str:
    """The text in a colour where stderr is a terminal, and nobody set NO_COLOR; else as it is."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


class Printer:
    """What has been told so far. One for the process: threads share stderr and the caches it speaks of."""

    def __init__(self) -> None:
        self.caches: Counter[tuple[str, str]] = Counter()  # (cache, "hit" or "miss")
        self.devices: set[str] = set()
        self.lock = threading.Lock()
        # Once the process was in a mode that prints, its end has something to sum up.
        atexit.register(self.print_summary)

    def print_event(self, event: Event) -> None:
        level = options.DEBUG
        handler = _HANDLERS[event.kind]
        if level > 0:
            self.write(handler(self, event, level))

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
                facts = f"{target.arch or target.name}, {target.cores} cores, vectors of {target.vector_bytes} bytes"
                toolchain = f", {target.toolchain.split(' library ')[0]}" if target.toolchain else ""
                lines.append(f"{paint('device', 'green')}   {name}: {facts}{toolchain}")
        return lines

    def cache_line(self, cache: str, outcome: str, detail: str) -> str:
        self.caches[cache, outcome] += 1
        style = "green" if outcome == "hit" else "yellow"
        return f"{paint('cache', style)}    {cache} {outcome} {paint(detail, 'dim')}"

    def on_cache(self, event: Event, level: int) -> list[str]:
        outcome = event.kind.removeprefix("cache-")
        return [self.cache_line(str(event["cache"]), outcome, str(event["key"])[:12])]

    def on_warning(self, event: Event, level: int) -> list[str]:
        location: Any = event.fields.get("location")
        place = f"  {describe.show_location(location)}" if location is not None else ""
        return [f"{paint('warning', 'red')}  {event['message']}{place}"]

    # ------------------------------------------------------------ schedules

    def on_schedule(self, event: Event, level: int) -> list[str]:
        plan: Any = event["plan"]
        count = f"{len(plan.items)} item{'' if len(plan.items) == 1 else 's'}"
        spent = describe.show_seconds(int(str(event["nanoseconds"])) / 1e9)
        lines = self.device_lines([item.device for item in plan.items])
        lines.append(self.cache_line("schedule", "hit" if event["cached"] else "miss", f"{count} in {spent}"))
        if level >= 5 and not event["cached"]:
            graph: Any = event["graph"]
            for number, node in enumerate(graph):
                lines += section(f"graph of value {number}, over {len(plan.slots)} slots", show(node))
        if level >= 3:
            for number, item in enumerate(plan.items):
                lines.append(f"{paint('schedule', 'blue')} {describe.show_item(number, item, plan)}")
        return lines

    # ------------------------------------------------------------ kernels

    def on_kernel_compiled(self, event: Event, level: int) -> list[str]:
        kernel: Any = event["kernel"]
        name = kernel.program.name
        driver = open_driver(str(event["device"]))
        lines: list[str] = []
        if level >= 5:
            lines += section(f"kernel {name}, as scheduled", show(kernel.ast))
            lines += section(f"kernel {name}, optimised", show(kernel.optimised))
            lines += section(f"program {name}", show_program(kernel.program))
        if level >= 3:
            axes = " ".join(map(str, describe.axes_of(kernel.optimised)))
            opts = describe.show_opts(describe.opts_of(kernel.ast, driver.target))
            lines.append(f"{paint('kernel', 'blue')}   {name} axes {axes or 'none'}; opts {opts}")
            lines += [f"         {line}" for line in describe.show_kernel(kernel.optimised).splitlines()]
        if level >= 4:
            lines += section(f"source of {name}", kernel.source)
        if level >= 6:
            lines += section(f"assembly of {name}", driver.disassemble(kernel.source))
        lines.append(f"{paint('compiled', 'yellow')} {name} {describe.show_stage_times(kernel.stage_times)}")
        return lines

    def on_kernel_run(self, event: Event, level: int) -> list[str]:
        location: Any = event["location"]
        return [work_line("run", str(event["name"]), str(event["device"]), event, describe.show_location(location))]

    def on_schedule_run(self, event: Event, level: int) -> list[str]:
        items: Any = event["items"]
        if len(items) < 2:
            return []
        return [work_line("total", f"{len(items)} items", "", event, "")]

    def on_replay(self, event: Event, level: int) -> list[str]:
        kernels = f"{event['kernels']} kernels replayed"
        return [work_line("jit", str(event["name"]), "", event, kernels)]

    def on_copy(self, event: Event, level: int) -> list[str]:
        location: Any = event["location"]
        devices = f"{event['source']} to {event['target']}"
        moved = describe.show_bytes(int(str(event["bytes"])))
        return [work_line("copy", devices, "", event, f"{moved}  {describe.show_location(location)}")]

    # ------------------------------------------------------------ the end

    def print_summary(self) -> None:
        """What the process did in all, where its own DEBUG asks for it: a block's DEBUG is over by then."""
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


def work_line(what: str, name: str, device: str, event: Event, rest: str) -> str:
    """Columns that line up: what, which, where, how long, how fast, and whose line."""
    seconds = float(str(event["seconds"]))
    moved = int(str(event["bytes"]))
    operations = int(str(event.fields.get("operations", 0)))
    columns = (
        paint(f"{what:8}", "bold"),
        f"{name:{_NAME_WIDTH}}",
        f"{device:8}",
        f"{describe.show_seconds(seconds):>8}",
        f"{describe.giga_per_second(moved, seconds):>5} GB/s",
        f"{describe.giga_per_second(operations, seconds):>5} GFLOP/s",
        paint(rest, "dim") if rest else "",
    )
    return " ".join(columns).rstrip()


_HANDLERS: dict[str, Callable[[Printer, Event, int], list[str]]] = {
    "cache-hit": Printer.on_cache,
    "cache-miss": Printer.on_cache,
    "copy": Printer.on_copy,
    "kernel-compiled": Printer.on_kernel_compiled,
    "kernel-run": Printer.on_kernel_run,
    "replay": Printer.on_replay,
    "schedule": Printer.on_schedule,
    "schedule-run": Printer.on_schedule_run,
    "warning": Printer.on_warning,
}

_printer = Printer()
print_event = _printer.print_event

"""Facts that a trace states. In: graphs, steps, the process. Out: counts by user line, versions, options."""

from __future__ import annotations

import dataclasses
import platform
from collections import Counter
from collections.abc import Iterable, Mapping

from tilewright.base.config import DECLARATIONS, options
from tilewright.base.version import __version__
from tilewright.debug.trace.records import Location, Run, Step
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort


def ops_by_line(graph: tuple[UOp, ...], lines: Mapping[UOp, Location]) -> dict[Location, Counter[str]]:
    """The ops of the nodes that each line of the user built. Equal constants are one node, which is counted for
    the line of its first user in the graph."""
    found: dict[Location, Counter[str]] = {}
    users: dict[UOp, UOp] = {}
    for node in toposort(*graph):
        line = lines.get(node) or node.line
        if line is not None and node.src:
            found.setdefault(line, Counter())[node.op.name] += 1
            for src in node.src:
                if src.op is Ops.CONST and users.setdefault(src, node) is node:
                    found[line]["CONST"] += 1
    return found


def first_line(sink: UOp) -> Location | None:
    """The line of the last store of a kernel, or of any of its nodes."""
    stores = [node for node in toposort(sink) if node.op is Ops.STORE]
    for node in (*reversed(stores), *(part for store in stores for part in store.src), *reversed(toposort(sink))):
        if node.line is not None:
            return node.line
    return None


def time_of(runs: Iterable[Run]) -> int:
    """The time of kernels and copies, without replays, whose kernels are in the list too."""
    return sum(run.duration for run in runs if run.kind != "replay")


def with_kernels(step: Step, numbers: Mapping[tuple[str, str], int]) -> Step:
    """The step with the number of each item's kernel."""
    items = tuple(dataclasses.replace(item, kernel=numbers.get((item.name, item.device))) for item in step.items)
    return dataclasses.replace(step, items=items)


def versions() -> tuple[tuple[str, str], ...]:
    return (
        ("tilewright", __version__),
        ("python", platform.python_version()),
        ("system", f"{platform.system()} {platform.machine()}"),
    )


def changed_options() -> tuple[tuple[str, str], ...]:
    """The options that are not at their defaults."""
    return tuple(
        (name, str(getattr(options, name)))
        for name, declared in DECLARATIONS.items()
        if getattr(options, name) != declared.default
    )

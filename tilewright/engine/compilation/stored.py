"""Kernels that an earlier process made. In: a kernel and a device's target. Out: its binary and the facts that its
driver stored, without optimising, lowering or rendering it again. The key has everything that those stages read: the
kernel's text, the target, the options, and the package's own files."""

from __future__ import annotations

import functools
import json
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.config import options, options_that_affect
from tilewright.base.events import emit, listeners
from tilewright.base.records import field_names, record
from tilewright.base.target import Target
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.spec import Kind
from tilewright.graph.text.arguments import literal
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.cache import cache_key, read_entry, write_entry

_PLAN_OPTIONS = options_that_affect("schedule", "kernel", "target")


def _reader_of(names: Sequence[str]) -> Callable[[], tuple[object, ...]]:
    return functools.partial(operator.attrgetter(*names), options)


# Functions that give the values of the options that affect: a plan (read by every run of a graph), a schedule, and the
# code of a kernel on a given target.
plan_options = _reader_of(_PLAN_OPTIONS)
schedule_options = _reader_of(options_that_affect("schedule", "target"))
kernel_options = _reader_of(options_that_affect("kernel"))

# Events that only running stages emit, or that name a user's line: what they watch is not read from disk.
_WATCHED = frozenset(
    {
        "rule-fired",
        "pass-start",
        "pass-end",
        "decision",
        "schedule",
        "kernel-compiled",
        "kernel-run",
        "copy",
        "schedule-run",
    }
)


@record
class StoredKernel:
    name: str
    operations: int
    bytes_moved: int
    launch: dict[str, Any]
    binary: bytes


def is_usable() -> bool:
    """Whether kernels and schedules may be read from disk."""
    return bool(options.CACHE) and wants_results_alone()


def wants_results_alone() -> bool:
    """Whether no listener watches the stages, and no option bisects, verifies or searches."""
    return not options.VERIFY_GRAPH and wants_any_kernels()


def wants_any_kernels() -> bool:
    """Whether no listener watches the stages, and no option bisects them, verifies kernels or searches for them."""
    limits = (options.REWRITE_LIMIT, options.PASS_LIMIT, options.OPT_LIMIT, options.FUSE_LIMIT, options.REUSE_LIMIT)
    is_bisected = max(limits) >= 0 or bool(options.DISABLE_RULES)
    return not is_bisected and not (options.VERIFY or options.BEAM) and not is_watched()


def is_watched() -> bool:
    return bool(listeners) and not _WATCHED.isdisjoint(listeners)


def kernel_key(ast: UOp, target: Target) -> str:
    return cache_key("kernel", package_identity(), target_text(target), options_text(), nodes_text(toposort(ast), {}))


def nodes_text(order: Sequence[UOp], numbers: dict[UOp, int]) -> str:
    """A text that differs for any two graphs. `order` has each node after its sources; their numbers, from 0 on, are
    added to `numbers`. It is made whenever a process sees a graph or a kernel for the first time, so it is quicker to
    make than the text that `parse` reads."""
    lines = []
    for node in order:
        arg = node.arg
        # For an argument of plain numbers `repr` is enough, and takes a fifth of the time.
        is_plain = arg is None or node.op is Ops.CONST or node.op is Ops.RANGE or node.op.kind is Kind.MOVEMENT
        text = repr(arg) if is_plain else literal(arg)
        sources = " ".join([str(numbers[src]) for src in node.src])
        numbers[node] = len(numbers)
        lines.append(f"{node.op.name} {node.dtype.name} {sources} {text}")
    return "\n".join(lines)


def read_kernel(key: str) -> StoredKernel | None:
    """The stored kernel; None where there is none, or a field is missing or malformed."""
    entry = read_entry(key)
    if entry is None:
        return None
    try:
        found = json.loads(entry)
        binary = read_entry(found["program"])
        return None if binary is None else StoredKernel(binary=binary, **{name: found[name] for name in _NOTED})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        emit("warning", message=f"the stored kernel {key} cannot be used: {error!r}", location=None)
        return None


_NOTED = ("name", "operations", "bytes_moved", "launch")


def write_kernel(key: str, program: Program, launch: dict[str, Any], program_key: str) -> None:
    noted = (program.name, program.flops, program.bytes_moved, launch)
    write_entry(key, json.dumps({**dict(zip(_NOTED, noted, strict=True)), "program": program_key}).encode())


def frozen(value: Any) -> Any:
    """A value read from JSON, with tuples in place of lists."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def options_text() -> str:
    return " ".join([f"{name}={value}" for name, value in zip(_PLAN_OPTIONS, plan_options(), strict=True)])


@functools.cache
def target_text(target: Target) -> str:
    """Every field, sets in a fixed order."""
    fields = ((name, getattr(target, name)) for name in field_names(target))
    return " ".join(f"{name}={sorted(map(repr, v)) if isinstance(v, frozenset) else repr(v)}" for name, v in fields)


@functools.cache
def package_identity() -> str:
    """A digest, by name, size and time, of the files that determine what a graph is compiled to."""
    package = os.path.abspath(__file__).rsplit(os.sep, 3)[0]
    facts: list[str] = []
    folders = ("base", "graph", "schedule", "kernel", "codegen", "backends", "engine")
    pending = [os.path.join(package, folder) for folder in folders]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    facts.append(f"{entry.path[len(package) :]} {status.st_size} {status.st_mtime_ns}")
                elif entry.is_dir() and entry.name != "__pycache__":
                    pending.append(entry.path)
    return cache_key(*sorted(facts))

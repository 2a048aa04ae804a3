"""Schedules that an earlier process made. In: a graph over PARAMs, as `BoundGraph` holds it. Out: its `Schedule` and
the stored kernel of each item, without fusing, splitting or ordering anything again. The key holds the structure of the
graph and all that the stages from there to a binary read; the user's lines are not part of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import to_dtype
from tilewright.base.errors import DTypeError
from tilewright.base.events import emit
from tilewright.base.records import NamedTuple, field_names
from tilewright.engine.compilation.stored import frozen, nodes_text, options_text, package_identity, target_text
from tilewright.graph.build import placed_on
from tilewright.graph.ops import Ops
from tilewright.graph.records import Access, Item, Schedule, Slot
from tilewright.graph.symbolic import capacity
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.cache import cache_key, read_entry, write_entry
from tilewright.runtime.device import open_driver

KernelKeys = tuple[str | None, ...]


class Binding(NamedTuple):
    """An item's use of a dynamic kernel: the name and the work of the static kernel that it replaces, and the values of
    its variables."""

    name: str
    operations: int
    bytes_moved: int
    values: dict[str, int]


Bindings = tuple[Binding | None, ...]


def schedule_key(outputs: Sequence[UOp], device: str, pinned: frozenset[int]) -> str | None:
    """The disk key of the schedule of these nodes; None where one of their devices stores no kernels."""
    order = toposort(*outputs)
    devices = {device}
    for node in order:
        if node.op is Ops.PARAM:
            devices.add(node.arg.device or device)
        elif node.op is Ops.COPY:
            devices.add(node.arg)
        elif other := placed_on(node):
            devices.add(other)
    drivers = [open_driver(name) for name in sorted(devices)]
    if not all(driver.keeps_launches for driver in drivers):
        return None
    targets = [f"{name} {target_text(driver.target)}" for name, driver in zip(sorted(devices), drivers, strict=True)]
    numbers: dict[UOp, int] = {}
    nodes = nodes_text(order, numbers)
    wanted = [str(numbers[node]) for node in outputs]
    pins = [str(slot) for slot in sorted(pinned)]
    facts = [device, " ".join(wanted), " ".join(pins), options_text(), "\n".join(targets)]
    return cache_key("schedule", package_identity(), *facts, nodes)


# ---------------------------------------------------------------- reading and writing


def write_schedule(key: str, plan: Schedule, kernels: Sequence[str | None], bindings: Sequence[Binding | None]) -> None:
    """`kernels` are the disk keys of the items' kernels, None for a copy."""
    slots = [[slot.dtype.name, *_row(slot, "dtype")] for slot in plan.slots]
    items = [
        {
            **{name: getattr(item, name) for name in _ITEM_FIELDS},
            "reads": [_row(access) for access in item.reads],
            "writes": [_row(access) for access in item.writes],
            "kernel": kernel,
            "binding": binding,
        }
        for item, kernel, binding in zip(plan.items, kernels, bindings, strict=True)
    ]
    rest = {name: getattr(plan, name) for name in _PLAN_FIELDS}
    write_entry(key, json.dumps({"key": key, "items": items, "slots": slots, **rest}).encode())


def read_schedule(
    key: str, params: Sequence[UOp], outputs: Sequence[UOp], device: str
) -> tuple[Schedule, KernelKeys, Bindings] | None:
    """The stored schedule; None where there is none, or where it does not fit these nodes."""
    entry = read_entry(key, "schedule")
    if entry is None:
        return None
    try:
        found = json.loads(entry)
        slots = tuple(Slot(to_dtype(row[0]), *row[1:]) for row in found["slots"])
        items = tuple(
            Item(
                ast=None,
                reads=tuple(Access(*row) for row in written["reads"]),
                writes=tuple(Access(*row) for row in written["writes"]),
                **{name: frozen(written[name]) for name in _ITEM_FIELDS},
            )
            for written in found["items"]
        )
        plan = Schedule(items=items, slots=slots, **{name: frozen(found[name]) for name in _PLAN_FIELDS})
        kernels = tuple(written["kernel"] for written in found["items"])
        bindings = tuple(_read_binding(written["binding"]) for written in found["items"])
        if found["key"] == key and _fits(plan, kernels, params, outputs, device):
            return plan, kernels, bindings
        reason = "it is that of another graph"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, DTypeError) as error:
        reason = repr(error)
    # This process schedules the graph, and writes what it finds over the entry.
    emit("warning", message=f"the stored schedule {key} cannot be used: {reason}", location=None)
    return None


def _read_binding(row: list[Any] | None) -> Binding | None:
    if row is None:
        return None
    name, operations, bytes_moved, values = row
    return Binding(str(name), int(operations), int(bytes_moved), {str(key): int(values[key]) for key in values})


def _fits(plan: Schedule, kernels: KernelKeys, params: Sequence[UOp], outputs: Sequence[UOp], device: str) -> bool:
    """Whether the plan takes these inputs, gives as many values, and names no memory that it does not have."""
    given = [Slot(node.dtype, capacity(node.arg.size), node.arg.device or device, "input") for node in params]
    count = len(plan.slots)
    used = {slot for item in plan.items for slot in item.slots} | set(plan.outputs)
    temps = {number for number, slot in enumerate(plan.slots) if slot.kind == "temp"} & used
    room = dict(plan.arenas)
    return (
        list(plan.slots[: len(given)]) == given
        and len(plan.outputs) == len(outputs)
        and all(0 <= slot < count for slot in used)
        and all(_starts_fit(item, plan.slots, kernel) for item, kernel in zip(plan.items, kernels, strict=True))
        and temps <= dict(plan.offsets).keys()
        and all(0 <= at <= room[plan.slots[n].device] - plan.slots[n].nbytes for n, at in plan.offsets)
        and all(kernel is None or isinstance(kernel, str) for kernel in kernels)
    )


def _starts_fit(item: Item, slots: Sequence[Slot], kernel: str | None) -> bool:
    """Whether each buffer of a kernel begins inside its memory."""
    if kernel is None:
        return not item.starts
    pairs = zip(item.slots, item.starts, strict=True)
    return all(0 <= start < max(slots[slot].nbytes, 1) for slot, start in pairs)


# All fields of plain values, read from the records so that a new field is stored too. A line belongs to the process
# that ran it, and a kernel is found by its key.
_ITEM_FIELDS = [name for name in field_names(Item) if name not in ("ast", "line", "reads", "writes")]
_PLAN_FIELDS = [name for name in field_names(Schedule) if name not in ("items", "slots")]


def _row(record: Access | Slot, *left_out: str) -> list[Any]:
    return [getattr(record, name) for name in field_names(record) if name not in left_out]

"""Joins launches of equal kernels. In: items in order. Out: fewer items, in order: equal small kernels that do not
depend on each other become sections of one kernel (graph/kernels/sections.py), such as the updates of all biases of a
network. A small kernel takes less time than its launch.

A section is a row of work-groups, so sections run in parallel and none waits for another. An item moves only past items
that access other bytes, or read the same ones: order comes from declared accesses. The sections of a launch access at
most half of the last-level cache, so that what a later launch reads is still there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from tilewright.base import events
from tilewright.base.records import NamedTuple, replace
from tilewright.base.target import Target
from tilewright.graph.kernels.sections import check_sections, join_sections
from tilewright.graph.ops import Ops
from tilewright.graph.records import Access, Item, KernelInfo
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort

# The most iterations of a kernel that is joined: larger products run on tensor cores, which have no sections.
MAX_ITERATIONS = 1 << 18

Key = tuple[UOp, str]


def join_launches(items: Sequence[Item], target_of: Callable[[str], Target]) -> list[Item]:
    """Joins equal kernels in two sweeps. The first begins with the last kernels: those that can wait move after all
    kernels that they read from. The second begins with the first kernels: those that can run early move before their
    users."""
    keys = [key for key in dict.fromkeys(map(_key_of, items)) if key is not None and _is_small(*key, target_of)]
    if not keys:
        return list(items)
    order = _Order(items)
    for ordered in (reversed(keys), keys):
        for key in ordered:
            while _join_some(order, key, target_of(key[1])):
                pass
    return order.items


def check_joined(item: Item) -> str | None:
    """None, or why the sections of an item's kernel are not independent of each other."""
    if item.ast is None or not isinstance(item.ast.arg, KernelInfo):
        return None
    fault = check_sections(item.ast)
    if fault is not None or item.ast.arg.sections == 1:
        return fault
    writes = sorted((access.slot, access.start, access.stop) for access in item.writes)
    reads = [access for access in item.reads if access not in item.writes]
    if any(one[0] == two[0] and two[1] < one[2] for one, two in itertools.pairwise(writes)):
        return "two sections write the same bytes"
    if any(write.conflicts(read) for read in reads for write in item.writes):
        return "a section reads what another writes"
    return None


# ---------------------------------------------------------------- which kernels


def _key_of(item: Item) -> Key | None:
    """The key that equal kernels share; None for a copy and for a kernel that is not joined: a custom kernel may order
    its effects, and a kernel with checks shares their words with others."""
    if item.ast is None or item.checks or not isinstance(item.ast.arg, KernelInfo):
        return None
    if item.ast.arg.opts_to_apply is not None or item.ast.arg.fills or item.ast.arg.sections > 1:
        return None
    return item.ast, item.device


def _is_small(ast: UOp, device: str, target_of: Callable[[str], Target]) -> bool:
    target = target_of(device)
    if target.max_sections < 2 or any(store.op is not Ops.STORE for store in ast.src):
        return False
    nodes = toposort(ast)
    if any(node.op in (Ops.AFTER, Ops.VARIABLE, Ops.CHECK) for node in nodes):
        return False
    loops = [node for node in nodes if node.op is Ops.RANGE]
    return math.prod(map(size_of, loops)) < MAX_ITERATIONS and _bytes_of(nodes) <= launch_bytes(target)


def _bytes_of(nodes: Sequence[UOp]) -> int:
    return sum(node.arg.size * node.dtype.itemsize for node in nodes if node.op is Ops.PARAM)


def launch_bytes(target: Target) -> int:
    """The bytes that the memory of a device transfers in the time of a launch."""
    return int(target.launch_clocks * target.memory_bytes_per_clock * target.cores)


# ---------------------------------------------------------------- which of them together


class _Member(NamedTuple):
    """An item that may move: after the item at `low` and before the one at `high`."""

    position: int
    low: int
    high: int


class _Order:
    """The items, and for each slot its readers and writers with the bytes they access."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = list(items)
        self.positions: dict[Key, list[int]] = {}
        self.readers: dict[int, list[tuple[int, Access]]] = {}
        self.writers: dict[int, list[tuple[int, Access]]] = {}
        self._note()

    def _note(self) -> None:
        for table in (self.positions, self.readers, self.writers):
            table.clear()
        for position, item in enumerate(self.items):
            key = _key_of(item)
            if key is not None:
                self.positions.setdefault(key, []).append(position)
            for access in item.reads:
                self.readers.setdefault(access.slot, []).append((position, access))
            for access in item.writes:
                self.writers.setdefault(access.slot, []).append((position, access))

    def member(self, position: int) -> _Member:
        low, high = -1, len(self.items)
        item = self.items[position]
        tables = [(item.reads, self.writers), (item.writes, self.writers), (item.writes, self.readers)]
        for accesses, table in tables:
            for access in accesses:
                for other, touched in table.get(access.slot, ()):
                    if other < position and other > low and access.conflicts(touched):
                        low = other
                    elif position < other < high and access.conflicts(touched):
                        high = other
        return _Member(position, low, high)

    def join(self, members: Sequence[_Member], joined: Item) -> None:
        """Replaces several items by one, at the position of the last of them, or at the last position that all of them
        may have."""
        place = min(max(member.position for member in members), min(member.high for member in members) - 1)
        gone = {member.position for member in members}
        before = [item for position, item in enumerate(self.items) if position <= place and position not in gone]
        after = [item for position, item in enumerate(self.items) if position > place and position not in gone]
        self.items = [*before, joined, *after]
        self._note()


def _join_some(order: _Order, key: Key, target: Target) -> bool:
    """Joins the items of one kernel that have a common position, starting with the first item that cannot move
    further."""
    ast, _ = key
    params = [node for node in toposort(ast) if node.op is Ops.PARAM]
    limit = min(target.max_sections, target.max_buffers // max(len(params), 1))
    limit = min(limit, target.cache_bytes // 2 // max(_bytes_of(params), 1))
    positions = order.positions.get(key, [])
    if limit < 2 or len(positions) < 2:
        return False
    members = sorted(map(order.member, positions), key=lambda member: member.high)
    for first, member in enumerate(members):
        chosen = _independent(order, [m for m in members[first:] if m.low < member.high], limit)
        if len(chosen) > 1:
            chosen.sort(key=lambda found: found.position)
            sections = [order.items[found.position] for found in chosen]
            order.join(chosen, _joined_item(ast, sections))
            if "decision" in events.listeners:
                choice = f"one launch of {len(chosen)} kernels {ast.arg.name}"
                reason = "they are equal, none needs another, and each takes less time than a launch"
                events.emit("decision", stage="schedule", choice=choice, reason=reason, node=None)
            return True
    return False


def _independent(order: _Order, members: Sequence[_Member], limit: int) -> list[_Member]:
    """The first member, and as many others, up to `limit`, that write nothing which another of them accesses."""
    chosen: list[_Member] = []
    read: dict[int, list[Access]] = {}
    written: dict[int, list[Access]] = {}
    for member in members:
        item = order.items[member.position]
        is_met = any(access.conflicts(other) for access in item.reads for other in written.get(access.slot, ()))
        is_met = is_met or any(
            access.conflicts(other)
            for access in item.writes
            for other in (*written.get(access.slot, ()), *read.get(access.slot, ()))
        )
        if is_met:
            continue
        chosen.append(member)
        for accesses, table in ((item.reads, read), (item.writes, written)):
            for access in accesses:
                table.setdefault(access.slot, []).append(access)
        if len(chosen) == limit:
            break
    return chosen


def _joined_item(ast: UOp, sections: Sequence[Item]) -> Item:
    return replace(
        sections[0],
        ast=join_sections(ast, len(sections)),
        slots=tuple(slot for item in sections for slot in item.slots),
        reads=tuple(dict.fromkeys(access for item in sections for access in item.reads)),
        writes=tuple(access for item in sections for access in item.writes),
        starts=tuple(start for item in sections for start in item.starts),
    )

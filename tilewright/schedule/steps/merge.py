"""Joins kernels that load the same memory. In: steps and their order. Out: fewer steps, in order, some with several
stores: the moments and the parameter of an optimiser, the two sums of the gradient of a normalisation.

A step moves forward to the position of an earlier one with the same loops. It does not move past anything it depends
on, so the order stays right. A step that writes a temp is moved only if it reduces what it loads to a small part of it,
because the temp lives longer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tilewright.base.records import mutable_record
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, substitute, toposort
from tilewright.schedule.fusion.fuse import MAX_STORES
from tilewright.schedule.steps.step import Part, Step, Store, kernel_step

# How many times the bytes of a temp a step loads that is moved.
MIN_REDUCTION = 16


@mutable_record
class Group:
    """Steps that become one."""

    node: UOp
    device: str
    stores: tuple[Store, ...]
    loops: frozenset[UOp]
    reduced: tuple[UOp, ...]  # the loops that all of its reductions have
    loads: dict[UOp, int]  # the INDEX of each load, and the bytes that it moves
    loaded: tuple[Part, ...]  # what each PARAM is


def merge_steps(
    steps: Sequence[Step],
    order: Sequence[int],
    temps: frozenset[int],
    devices: Mapping[UOp, str],
    max_buffers: Callable[[UOp], int],
) -> list[Step]:
    merger = _Merger(temps, max_buffers)
    positions: dict[int, int] = {}
    for number in order:
        step = steps[number]
        after = {positions[earlier] for earlier in step.after}
        positions[number] = merger.add(step, group_of(step, devices[step.node]), after)
    return merger.steps


class _Merger:
    def __init__(self, temps: frozenset[int], max_buffers: Callable[[UOp], int]) -> None:
        self.temps = temps
        self.max_buffers = max_buffers
        self.steps: list[Step] = []
        self.groups: dict[int, Group] = {}  # the position of a step -> what is known of its kernel
        self.readers: dict[tuple[frozenset[UOp], int], int] = {}  # loops and a version -> the last step to read it so

    def add(self, step: Step, own: Group | None, after: set[int]) -> int:
        """The position of the step, or of the one that it joins."""
        position = None if own is None else self._join(step, own, after)
        if position is None:
            position = len(self.steps)
            self.steps.append(step)
            if own is not None:
                self.groups[position] = own
        if own is not None:
            self.readers.update({(own.loops, version): position for version in step.reads})
        return position

    def _join(self, step: Step, own: Group, after: set[int]) -> int | None:
        candidates = {self.readers.get((own.loops, version), -1) for version in step.reads}
        for position in sorted(candidates - {-1}, reverse=True):
            may_move = position == len(self.steps) - 1 or self.temps.isdisjoint(step.targets) or _reduces(own)
            if any(p > position for p in after) or not may_move:
                return None
            if self._buffers_of(position, step) > self.max_buffers(step.node):
                continue
            joined = join(self.groups[position], own, self.steps[position], step)
            if joined is not None:
                self.groups[position] = joined
                self.steps[position] = kernel_step(joined.node, joined.loaded, *joined.stores)
                return position
        return None

    def _buffers_of(self, position: int, step: Step) -> int:
        """An upper bound on the buffers of the joined kernel: versions may share memory."""
        earlier = self.steps[position]
        return len({*earlier.targets, *earlier.reads, *step.targets, *step.reads})


def _reduces(group: Group) -> bool:
    """Whether what a kernel stores is a small part of what it loads."""
    stored = math.prod(map(size_of, group.loops)) * sum(store.value.dtype.itemsize for store in group.stores)
    return MIN_REDUCTION * stored <= sum(group.loads.values())


def group_of(step: Step, device: str) -> Group | None:
    """What is known of a kernel that may be joined with others; None for a contraction, which needs all registers."""
    if step.values is None:
        return None
    loops = step.stores[0].position.ranges
    if any(store.position.ranges != loops for store in step.stores):
        return None
    reduced, loads = loads_of(step.values)
    if len(reduced) > 1:
        return None
    inner = reduced[0] if reduced else ()
    if inner and not any(index.ranges.issuperset((*loops, *inner)) for index in loads):
        return None
    return Group(step.node, device, step.stores, loops, inner, loads, step.loaded)


def loads_of(values: UOp) -> tuple[list[tuple[UOp, ...]], dict[UOp, int]]:
    """The loops of the reductions of a kernel, and the bytes that each of its loads moves. Cached on the values, since
    a program has many equal steps."""
    found: tuple[list[tuple[UOp, ...]], dict[UOp, int]] | None = values.cache.get("loads")
    if found is None:
        nodes = toposort(values)
        reduced = list(dict.fromkeys([node.src[1:] for node in nodes if node.op is Ops.REDUCE]))
        found = reduced, {node: load_bytes(node) for node in nodes if node.op is Ops.INDEX}
        values.cache["loads"] = found
    return found


def load_bytes(index: UOp) -> int:
    buffer = index.src[0]
    return min(int(buffer.arg.size), math.prod(size_of(loop) for loop in index.ranges)) * buffer.dtype.itemsize


def join(group: Group, other: Group, earlier: Step, step: Step) -> Group | None:
    """The two kernels as one; None where that is wrong, or saves at most half of the bytes that the step loads."""
    if group.device != other.device or len(group.stores) + len(other.stores) > MAX_STORES:
        return None
    if not set(earlier.targets).isdisjoint((*step.reads, *step.targets, *step.overwrites)):
        return None
    if [size_of(loop) for loop in group.reduced] != [size_of(loop) for loop in other.reduced]:
        return None
    alike = [moved for index, moved in other.loads.items() if other.loaded[index.src[0].arg.slot] in group.loaded]
    if 2 * sum(alike) < sum(other.loads.values()):
        return None
    loaded = tuple(dict.fromkeys((*group.loaded, *other.loaded)))
    exchanges = {**dict(zip(other.reduced, group.reduced, strict=True)), **renumbered(other, loaded)}
    stores = tuple(store._replace(value=substitute(store.value, exchanges)) for store in other.stores)
    loads = {substitute(index, exchanges): moved for index, moved in other.loads.items()}
    # The joined kernel may read what the step overwrites at the element that is overwritten: that load comes first,
    # because the stored value depends on it.
    for index in group.loads:
        part = loaded[index.src[0].arg.slot]
        if part.version in step.overwrites:
            place = (part.start, index.src[1])
            if index not in loads or any(place != (store.start, store.position) for store in stores):
                return None
    shared = sum(moved for index, moved in loads.items() if index in group.loads)
    if 2 * shared < sum(loads.values()):
        return None
    all_loads = {**loads, **group.loads}
    return Group(group.node, group.device, group.stores + stores, group.loops, group.reduced, all_loads, loaded)


def renumbered(group: Group, loaded: Sequence[Part]) -> dict[UOp, UOp]:
    """The PARAMs of a group as those of a kernel that loads all of these."""
    params = {index.src[0] for index in group.loads}
    number_of = {part: number for number, part in enumerate(loaded)}
    return {
        param: param.replace(arg=ParamArg(number_of[group.loaded[param.arg.slot]], param.arg.size)) for param in params
    }

"""Steps: items before memory is assigned. In: what each kernel stores, over versions of memory. Out: the steps in an
order that respects what they declare. `order.py` makes them, `merge.py` joins some, `items.py` makes items of them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple, field, mutable_record
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort


class Part(NamedTuple):
    """The elements of a version that a PARAM of a kernel covers: those it accesses, so that the same step on another
    slice is the same kernel."""

    version: int
    start: int
    size: int


class Store(NamedTuple):
    """The element that a kernel stores per iteration of its loops, in the memory of a version; `position` is relative
    to element `start`. PARAMs are numbered as the step numbers them."""

    target: int
    position: UOp
    value: UOp
    start: int = 0


@mutable_record
class Step:
    """A kernel; or a copy or a custom kernel, which has no stores: its node says what it does."""

    node: UOp
    targets: tuple[int, ...]
    stores: tuple[Store, ...]
    reads: tuple[int, ...]
    after: list[int] = field(default_factory=list)
    overwrites: tuple[int, ...] = ()  # the versions whose memory it takes over
    values: UOp | None = None  # all that it stores, as one node
    loaded: tuple[Part, ...] = ()  # what each PARAM of the values is, by its number


def kernel_step(node: UOp, loaded: Sequence[Part], *stores: Store) -> Step:
    values = UOp(Ops.SINK, dtypes.void, tuple([store.value for store in stores]))
    reads = dict.fromkeys([loaded[n.arg.slot].version for n in toposort(values) if n.op is Ops.PARAM])
    return Step(node, tuple([store.target for store in stores]), stores, tuple(reads), [], (), values, tuple(loaded))


def order_steps(steps: list[Step], temp_sizes: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Positions in a valid order, and the steps left in a cycle (none where all is well). A step that frees as much
    memory as it needs comes as early as possible, so that what only it reads is freed; the others keep their order."""
    waiting = {position: len(step.after) for position, step in enumerate(steps)}
    followers: dict[int, list[int]] = {}
    readers: dict[int, set[int]] = {}
    for position, step in enumerate(steps):
        for earlier in step.after:
            followers.setdefault(earlier, []).append(position)
        for version in step.reads:
            readers.setdefault(version, set()).add(position)

    def is_free(position: int) -> bool:
        step = steps[position]
        freed = sum(temp_sizes.get(version, 0) for version in step.reads if len(readers[version]) == 1)
        return freed >= sum(temp_sizes.get(target, 0) for target in step.targets)

    order: list[int] = []
    ready = [(not is_free(position), position) for position, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    while ready:
        _, position = heapq.heappop(ready)
        if position not in waiting:
            continue
        order.append(position)
        del waiting[position]
        candidates = []
        for follower in followers.get(position, ()):
            waiting[follower] -= 1
            candidates.append(follower)
        for version in steps[position].reads:
            readers[version].discard(position)
            if len(readers[version]) == 1:
                candidates.extend(readers[version])
        for candidate in candidates:
            if waiting.get(candidate) == 0:
                heapq.heappush(ready, (not is_free(candidate), candidate))
    return order, sorted(waiting)

"""Items in an order that keeps every version apart. In: a plan and the values of its kernels. Out: items over slots.

Each stored node and each input is a version of some memory. An update (ASSIGN) makes a new version in the memory of
an old one, so every reader of the old version comes first. It is done in one of three ways, the first that is safe:
  direct   the kernel writes the old memory; it reads the old version only at the element it writes
  staged   the value goes to a temp, and is copied into the old memory when all readers of the old version are done
  fresh    the new version gets memory of its own: someone else still reads the old one, or no order exists"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.records import Access, Item, KernelInfo, Slot
from tilewright.graph.spec import element_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import substitute, toposort
from tilewright.schedule.fuse import Plan, loops_over, size_of
from tilewright.schedule.indexing import TRUE, Place, flatten_index, push_movement
from tilewright.schedule.split import KernelWriter, load_element


@dataclass
class Step:
    """An item before slots are final: versions instead of slots."""

    node: UOp
    target: int
    store_index: UOp | None
    value: UOp | None
    reads: tuple[int, ...]
    after: list[int] = field(default_factory=list)


class ItemBuilder:
    def __init__(
        self, plan: Plan, params: Sequence[UOp], outputs: Sequence[UOp], device: str, pinned: frozenset[int]
    ) -> None:
        self.plan = plan
        self.params = params
        self.outputs = outputs
        self.pinned = pinned
        self.versions: dict[UOp, int] = {node: number for number, node in enumerate(params)}
        for node in plan.stored:
            self.versions[node] = len(self.versions)
        self.nodes = list(self.versions)
        self.devices = self._devices(device)
        self.modes: dict[UOp, str] = {}
        writer = KernelWriter(plan, self.versions)
        self.values = writer.write_values()

    def _devices(self, default: str) -> dict[UOp, str]:
        devices: dict[UOp, str] = {}
        for node in self.plan.order:
            if node.op is Ops.PARAM:
                devices[node] = node.arg.device or default
            elif node.op is Ops.COPY:
                devices[node] = node.arg
            else:
                devices[node] = next((devices[s] for s in node.src if not _is_placeless(s)), default)
        for node in self.params:
            devices.setdefault(node, node.arg.device or default)
        return devices

    def build(self) -> tuple[list[Item], list[Slot], list[int]]:
        for node in self.plan.stored:
            if node.op is Ops.ASSIGN:
                self.modes[node] = self._first_mode(node)
        while True:
            steps = self._steps()
            order, cycle = order_steps(steps, self._temp_sizes())
            if not cycle:
                break
            self._yield_to_cycle(cycle, steps)
        slots = self._slots()
        items = [self._item(steps[position], slots) for position in order]
        return items, [slot for _, slot in slots.table], [slots.of[self.versions[node]] for node in self.outputs]

    def _temp_sizes(self) -> dict[int, int]:
        """The bytes of every version that is needed for a while only."""
        outputs = set(self.outputs)
        return {
            self.versions[node]: element_count(node.shape) * node.dtype.itemsize
            for node in self.plan.stored
            if node not in outputs and node.op is not Ops.ASSIGN
        }

    # ------------------------------------------------------------ updates

    def _base(self, assign: UOp) -> UOp:
        base = assign.src[0]
        while base not in self.versions:
            base = base.src[0]
        return base

    def _first_mode(self, node: UOp) -> str:
        base = self._base(node)
        if base in self.outputs or (base.op is Ops.PARAM and self.versions[base] in self.pinned):
            return "fresh"
        # Of two updates of one version only one can have its memory.
        if any(self._base(other) is base and mode != "fresh" for other, mode in self.modes.items()):
            return "fresh"
        if element_count(node.shape) == 0:
            return "direct"
        position = self._store_index(node)
        old = self.versions[base]
        reads = (n for n in toposort(self.values[node]) if n.op is Ops.INDEX and n.src[0].arg.slot == old)
        return "direct" if all(read.src[1] is position for read in reads) else "staged"

    def _yield_to_cycle(self, cycle: list[int], steps: list[Step]) -> None:
        involved = [steps[position].node for position in cycle if steps[position].node.op is Ops.ASSIGN]
        for weaker in ("staged", "fresh"):
            changed = [node for node in involved if _STRENGTH[self.modes[node]] < _STRENGTH[weaker]]
            if changed:
                for node in changed:
                    self.modes[node] = weaker
                return
        raise InternalError("items depend on each other in a circle that no update is part of")

    def _store_index(self, assign: UOp) -> UOp:
        """Where the value of an update goes in the memory of what it updates."""
        base, view, _ = assign.src
        place = Place(loops_over(view.shape), TRUE)
        while view is not base:
            place = push_movement(view, place)
            view = view.src[0]
        return flatten_index(place.indices, base.shape)

    # ------------------------------------------------------------ steps

    def _steps(self) -> list[Step]:
        steps: list[Step] = []
        producer: dict[int, int] = {}
        for node in self.plan.stored:
            target = self.versions[node]
            if element_count(node.shape) == 0:
                continue
            if node.op is Ops.COPY:
                steps.append(Step(node, target, None, None, (self._version_behind(node.src[0]),)))
            elif node.op is Ops.ASSIGN:
                self._assign_steps(node, steps)
            else:
                index = flatten_index(loops_over(node.shape), node.shape)
                steps.append(self._kernel_step(node, target, index, self.values[node]))
            producer[target] = len(steps) - 1
        self._link(steps, producer)
        return steps

    def _kernel_step(self, node: UOp, target: int, index: UOp, value: UOp) -> Step:
        reads = tuple(dict.fromkeys(n.arg.slot for n in toposort(value) if n.op is Ops.PARAM))
        return Step(node, target, index, value, reads)

    def _assign_steps(self, node: UOp, steps: list[Step]) -> None:
        base, view, _ = node.src
        target, mode = self.versions[node], self.modes[node]
        index, value = self._store_index(node), self.values[node]
        if mode == "fresh" and element_count(view.shape) != element_count(base.shape):
            old = self._base(node)
            whole = flatten_index(loops_over(base.shape), base.shape)
            source = UOp(Ops.PARAM, node.dtype, (), ParamArg(self.versions[old], element_count(base.shape)))
            steps.append(self._kernel_step(node, target, whole, load_element(source, whole, TRUE)))
        if element_count(view.shape) == 0:
            if mode != "fresh":
                steps.append(Step(node, target, None, None, ()))
            return
        if mode == "staged":
            temp = self._temp_version(node)
            flat = flatten_index(loops_over(view.shape), view.shape)
            steps.append(self._kernel_step(node, temp, flat, value))
            source = UOp(Ops.PARAM, node.dtype, (), ParamArg(temp, element_count(view.shape)))
            value = load_element(source, flat, TRUE)
        steps.append(self._kernel_step(node, target, index, value))

    def _temp_version(self, node: UOp) -> int:
        key = UOp(Ops.CONTIGUOUS, node.dtype, (node.src[2],), ("staged", self.versions[node]))
        if key not in self.versions:
            self.versions[key] = len(self.versions)
            self.nodes.append(key)
            self.devices[key] = self.devices[node]
        return self.versions[key]

    def _version_behind(self, node: UOp) -> int:
        while node not in self.versions:
            node = node.src[0]
        return self.versions[node]

    def _link(self, steps: list[Step], producer: dict[int, int]) -> None:
        """A step comes after what makes the versions it reads, and an update after the readers of what it updates."""
        writers: dict[int, list[int]] = {}
        readers: dict[int, list[int]] = {}
        for position, step in enumerate(steps):
            writers.setdefault(step.target, []).append(position)
            for version in step.reads:
                readers.setdefault(version, []).append(position)
        for position, step in enumerate(steps):
            earlier = [p for version in step.reads for p in writers.get(version, ()) if p != position]
            # Several steps that write one version (a copy of the old one, then the update) keep their order.
            earlier += [p for p in writers[step.target] if p < position]
            if step.node.op is Ops.ASSIGN and step.target == self.versions[step.node]:
                base = self.versions[self._base(step.node)]
                earlier += writers.get(base, ())
                if self.modes[step.node] != "fresh":
                    earlier += [p for p in readers.get(base, ()) if p != position]
            step.after = sorted(set(earlier))

    # ------------------------------------------------------------ slots and items

    def _slots(self) -> _Slots:
        slots = _Slots()
        outputs = {self.versions[node] for node in self.outputs}
        shared: dict[int, int] = {}
        for node, version in self.versions.items():
            if node.op is Ops.ASSIGN and self.modes[node] != "fresh":
                shared[version] = self.versions[self._base(node)]
        roots = {version: _root(version, shared) for version in self.versions.values()}
        kept = {roots[version] for version in outputs}
        for node, version in self.versions.items():
            if roots[version] != version:
                continue
            kind = "input" if version < len(self.params) else "output" if version in kept else "temp"
            slots.add(version, Slot(node.dtype, element_count(node.shape), self.devices[node], kind))
        for version, root in roots.items():
            slots.of[version] = slots.of[root]
        return slots

    def _item(self, step: Step, slots: _Slots) -> Item:
        device = self.devices[step.node]
        target = slots.of[step.target]
        if step.value is None or step.store_index is None:
            reads = tuple(_whole(slots, slots.of[version]) for version in step.reads)
            writes = (_whole(slots, target),) if step.reads else ()
            return Item(None, (target, *(r.slot for r in reads)), reads, writes, device, step.node.line)
        size = slots.slot(target).size
        buffer = UOp(Ops.PARAM, step.value.dtype, (), ParamArg(target, size))
        place = UOp(Ops.INDEX, buffer.dtype, (buffer, step.store_index))
        renamed = _rename_params(step.value, slots)
        sink = UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (place, renamed)),))
        ast, used = canonical_kernel(sink)
        reads_, writes_ = kernel_accesses(ast, used)
        return Item(ast, used, reads_, writes_, device, step.node.line)


class _Slots:
    """Slots in the order they are made, and the slot of each version."""

    def __init__(self) -> None:
        self.table: list[tuple[int, Slot]] = []
        self.of: dict[int, int] = {}

    def add(self, version: int, slot: Slot) -> None:
        self.of[version] = len(self.table)
        self.table.append((version, slot))

    def slot(self, number: int) -> Slot:
        return self.table[number][1]


_STRENGTH = {"direct": 0, "staged": 1, "fresh": 2}


def _is_placeless(node: UOp) -> bool:
    return node.op in (Ops.CONST, Ops.IOTA)


def _root(version: int, shared: dict[int, int]) -> int:
    while version in shared:
        version = shared[version]
    return version


def _whole(slots: _Slots, number: int) -> Access:
    return Access(number, 0, slots.slot(number).nbytes)


def _rename_params(value: UOp, slots: _Slots) -> UOp:
    exchanges = {
        node: node.replace(arg=ParamArg(slots.of[node.arg.slot], slots.slot(slots.of[node.arg.slot]).size))
        for node in toposort(value)
        if node.op is Ops.PARAM
    }
    return substitute(value, exchanges)


def order_steps(steps: list[Step], temp_sizes: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Positions in a right order, and the steps left in a circle (none where all is well). A step that frees as much as
    it needs comes as soon as it can, so that what only it reads does not stay; the others come as they stand."""
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
        return freed >= temp_sizes.get(step.target, 0)

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


def canonical_kernel(sink: UOp) -> tuple[UOp, tuple[int, ...]]:
    """The kernel with its buffers and loops numbered from 0, so that equal kernels are one node, and its slots."""
    nodes = toposort(sink)
    buffers = [store.src[0].src[0] for store in sink.src]
    buffers = list(dict.fromkeys(buffers + [node for node in nodes if node.op is Ops.PARAM]))
    loops = sorted((node for node in nodes if node.op is Ops.RANGE), key=lambda node: node.arg.id)
    exchanges = {node: node.replace(arg=ParamArg(k, node.arg.size)) for k, node in enumerate(buffers)}
    for number, loop in enumerate(loops):
        exchanges[loop] = loop.replace(arg=Axis((number,), loop.arg.kind))
    kind = "reduce" if any(loop.arg.kind is AxisType.REDUCE for loop in loops) else "map"
    sizes = "_".join(str(size_of(loop)) for loop in loops) or "1"
    named = sink.replace(arg=KernelInfo(f"{kind}_{sizes}"))
    return substitute(named, exchanges), tuple(node.arg.slot for node in buffers)


def kernel_accesses(ast: UOp, slots: tuple[int, ...]) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """The byte ranges that a kernel reads and writes, from the bounds of its indices."""
    stored = {store.src[0] for store in ast.src}
    spans: dict[tuple[int, bool], tuple[int, int]] = {}
    for node in toposort(ast):
        if node.op is not Ops.INDEX:
            continue
        buffer, position = node.src[:2]
        size = buffer.arg.size
        start, stop = max(int(position.vmin), 0), min(int(position.vmax) + 1, size)
        key = (buffer.arg.slot, node in stored)
        known = spans.get(key, (start, stop))
        spans[key] = (min(start, known[0]), max(stop, known[1]))
    itemsize = {n.arg.slot: n.dtype.itemsize for n in toposort(ast) if n.op is Ops.PARAM}
    accesses = [
        (is_write, Access(slots[k], start * itemsize[k], stop * itemsize[k]))
        for (k, is_write), (start, stop) in spans.items()
    ]
    reads = tuple(access for is_write, access in accesses if not is_write)
    return reads, tuple(access for is_write, access in accesses if is_write)

"""Orders items so that every read sees the version it means. In: a plan. Out: items over slots.

Each stored node and each input is a version of some memory. An update (ASSIGN, or a custom kernel that overwrites)
makes a new version in the memory of an old one, so every reader of the old version comes first. It is done in one of
three ways, the first that is safe:
  direct   the kernel writes the old memory; it reads the old version only at the element it writes
  staged   the value goes to a temp, and is copied into the old memory when all readers of the old version are done
  fresh    the new version gets memory of its own: someone else still reads the old one, or no order exists"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.base.errors import InternalError
from tilewright.base.target import Target
from tilewright.graph.kernels.custom import output_node, updated_source
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.records import Item, Slot
from tilewright.graph.spec import element_count, max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.fusion.indexing import TRUE, Element, flatten_index, push_movement
from tilewright.schedule.fusion.uses import Plan, loops_over
from tilewright.schedule.steps.items import Slots, version_behind, write_item
from tilewright.schedule.steps.joined_memory import index_in_join, joins_of
from tilewright.schedule.steps.merge import merge_steps
from tilewright.schedule.steps.split import KernelWriter, load_element
from tilewright.schedule.steps.step import Part, Step, Store, kernel_step, order_steps

_STRENGTH = {"direct": 0, "staged": 1, "fresh": 2}


class ItemBuilder:
    def __init__(
        self,
        plan: Plan,
        params: Sequence[UOp],
        outputs: Sequence[UOp],
        devices: Mapping[UOp, str],
        pinned: frozenset[int],
        max_buffers: Callable[[UOp], int],
        target_of: Callable[[str], Target],
    ) -> None:
        self.plan = plan
        self.params = params
        self.outputs = outputs
        self.asked_for = frozenset(outputs)
        self.pinned = pinned
        self.max_buffers = max_buffers
        self.target_of = target_of
        self.versions: dict[UOp, int] = {node: number for number, node in enumerate(params)}
        self.joins = joins_of(plan.stored)
        for node in plan.stored:
            if node not in self.joins:
                self.versions[node] = len(self.versions)
        self.devices = dict(devices)
        for node in plan.stored:
            for output in outputs_of_call(node):  # also the unused ones: the kernel writes them
                self.versions.setdefault(output, len(self.versions))
                self.devices.setdefault(output, self.devices[node])
        self.guests: dict[UOp, list[UOp]] = {}
        for guest, (root, _) in plan.hosts.items():
            self.guests.setdefault(root, []).append(guest)
            self.devices[guest] = self.devices[root]
        self.modes: dict[UOp, str] = {}
        self.values: Mapping[UOp, UOp] = {}
        self.loaded: Mapping[UOp, Sequence[Part]] = {}  # what the PARAMs of each kernel are
        self.steps: list[Step] = []
        self.order: list[int] = []
        self.ordered: list[Step] = []
        self.temp_sizes: dict[int, int] = {}

    def write_values(self) -> None:
        """The value of every stored node, as loops, loads and reductions."""
        writer = KernelWriter(self.plan, self.versions, self._alignment_of)
        self.values, self.loaded = writer.write_values(), writer.loaded

    def order_steps(self) -> None:
        """The steps in an order in which every read sees the version it means; how each update is done follows."""
        taken: set[UOp] = set()  # only one of two updates of a version can take over its memory
        for node in list(self.versions):
            if updated_source(node) is not None:
                self.modes[node] = "fresh" if self._base(node) in taken else self._first_mode(node)
                if self.modes[node] != "fresh":
                    taken.add(self._base(node))
        self.temp_sizes = self._temp_sizes()
        while True:
            self.steps = self._steps()
            self.order, cycle = order_steps(self.steps, self.temp_sizes)
            if not cycle:
                break
            self._yield_to_cycle(cycle, self.steps)
        self.ordered = [self.steps[position] for position in self.order]

    def merge_steps(self) -> None:
        """Steps that load the same memory become one."""
        temps = frozenset(self.temp_sizes)
        self.ordered = merge_steps(self.steps, self.order, temps, self.devices, self.max_buffers)

    def write_items(self) -> tuple[list[Item], list[Slot], list[int]]:
        """An item for each step, the slots of memory, and the slots of the outputs."""
        slots = self._slots()
        items = [
            write_item(step, self.devices[step.node], slots, self.versions, self.target_of) for step in self.ordered
        ]
        return items, slots.table, [slots.of[self.versions[node]] for node in self.outputs]

    def _temp_sizes(self) -> dict[int, int]:
        """The bytes of every version that lives only during the run."""
        return {
            self.versions[node]: max_count(node.shape) * node.dtype.itemsize
            for node in self.plan.stored
            if node not in self.asked_for and node not in self.joins and node.op is not Ops.ASSIGN
        }

    # ------------------------------------------------------------ updates

    def _base(self, update: UOp) -> UOp:
        base = updated_source(update)
        assert base is not None
        while base not in self.versions:
            base = base.src[0]
        return base

    def _first_mode(self, node: UOp) -> str:
        base = self._base(node)
        if base in self.asked_for or (base.op is Ops.PARAM and self.versions[base] in self.pinned):
            return "fresh"
        if node.op is Ops.CUSTOM_KERNEL:
            # What the kernel is given to read must stay as it is while the kernel writes.
            return "fresh" if self.versions[base] in self._call_reads(node) else "direct"
        if max_count(node.shape) == 0:
            return "direct"
        start, position = self._store_index(node)
        old, loaded = self.versions[base], self.loaded.get(node, ())
        reads = ((n, loaded[n.src[0].arg.slot]) for n in toposort(self.values[node]) if n.op is Ops.INDEX)
        of_old = [(part.start, read.src[1]) for read, part in reads if part.version == old]
        return "direct" if all(found == (start, position) for found in of_old) else "staged"

    def _yield_to_cycle(self, cycle: list[int], steps: list[Step]) -> None:
        involved = [node for position in cycle for node in self._updates(steps[position])]
        for weaker in ("staged", "fresh"):
            changed = [node for node in involved if _STRENGTH[self.modes[node]] < _STRENGTH[weaker]]
            if changed:
                for node in changed:
                    self.modes[node] = weaker if node.op is Ops.ASSIGN else "fresh"
                return
        raise InternalError("items depend on each other in a circle that no update is part of")

    def _updates(self, step: Step) -> list[UOp]:
        """The nodes that a step makes out of older versions of memory."""
        nodes = outputs_of_call(step.node) or (step.node,)
        return [node for node in nodes if node in self.modes and self.versions[node] in step.targets]

    def _alignment_of(self, root: UOp) -> int:
        return self.target_of(self.devices[root]).start_alignment

    def _store_index(self, assign: UOp) -> tuple[int, UOp]:
        """The target of an update in the memory that it updates: the first element, and the position relative to it."""
        base, view, _ = assign.src
        element = Element(loops_over(view.shape), TRUE)
        while view is not base:
            element = push_movement(view, element)
            view = view.src[0]
        position = self.plan.position(element.indices, base.shape)
        step = max(1, self._alignment_of(assign) // base.dtype.itemsize)
        start, _, moved = self.plan.part(position, max_count(base.shape), step)
        return start, moved

    # ------------------------------------------------------------ steps

    def _steps(self) -> list[Step]:
        steps: list[Step] = []
        called: set[int] = set()
        for node in self.plan.stored:
            if max_count(node.shape) == 0 or node in self.plan.hosts or node.op is Ops.CAT:
                continue
            if self.versions.get(node) in called:
                continue
            if node.op is Ops.COPY:
                steps.append(Step(node, (self.versions[node],), (), (version_behind(node.src[0], self.versions),)))
            elif node.op is Ops.CUSTOM_KERNEL:
                self._call_steps(node, steps)
                called.update(steps[-1].targets)
            elif node.op is Ops.ASSIGN:
                self._assign_steps(node, steps)
            else:
                own = self._own_store(node)
                guests = map(self._guest_store, self.guests.get(node, ()))
                steps.append(kernel_step(node, self.loaded.get(node, ()), own, *guests))
        self._link(steps)
        return steps

    def _own_store(self, node: UOp) -> Store:
        join = self.joins.get(node)
        if join is not None:
            start, index = index_in_join(node, join)
            position = self.plan.position(index, join.cat.shape)
            return Store(self.versions[join.cat], position, self.values[node], start)
        position = self.plan.position(loops_over(node.shape), node.shape)
        return Store(self.versions[node], position, self.values[node])

    def _guest_store(self, guest: UOp) -> Store:
        _, element = self.plan.hosts[guest]
        return Store(self.versions[guest], flatten_index(element.indices, guest.shape), self.values[guest])

    def _copy_step(self, node: UOp, target: int, source: int, position: UOp, to: tuple[int, UOp] | None = None) -> Step:
        """Copies all of a version, element by element, to the same positions of another version, or to those from
        `position` on."""
        start, index = to or (0, position)
        part = Part(source, 0, int(position.vmax) + 1)
        buffer = UOp(Ops.PARAM, node.dtype, (), ParamArg(0, part.size))
        return kernel_step(node, (part,), Store(target, index, load_element(buffer, position, TRUE), start))

    def _assign_steps(self, node: UOp, steps: list[Step]) -> None:
        base, view, _ = node.src
        target, mode = self.versions[node], self.modes[node]
        start, index = self._store_index(node)
        value = self.values[node]
        if mode == "fresh" and element_count(view.shape) != element_count(base.shape):
            whole = flatten_index(loops_over(base.shape), base.shape)
            old = self.versions[self._base(node)]
            steps.append(self._copy_step(node, target, old, whole))
        if max_count(view.shape) == 0:
            if mode != "fresh":
                steps.append(Step(node, (target,), (), ()))
            return
        if mode == "staged":
            temp = self._temp_version(node)
            flat = flatten_index(loops_over(view.shape), view.shape)
            steps.append(kernel_step(node, self.loaded.get(node, ()), Store(temp, flat, value)))
            steps.append(self._copy_step(node, target, temp, flat, (start, index)))
        else:
            steps.append(kernel_step(node, self.loaded.get(node, ()), Store(target, index, value, start)))

    def _temp_version(self, node: UOp) -> int:
        key = UOp(Ops.CONTIGUOUS, node.dtype, (node.src[2],), ("staged", self.versions[node]))
        if key not in self.versions:
            self.versions[key] = len(self.versions)
            self.devices[key] = self.devices[node]
        return self.versions[key]

    def _call_steps(self, node: UOp, steps: list[Step]) -> None:
        """A custom kernel, and before it a copy of each output that it may not overwrite in place."""
        outputs = outputs_of_call(node)
        for output in outputs:
            if self.modes.get(output) == "fresh":
                whole = flatten_index(loops_over(output.shape), output.shape)
                old = self.versions[self._base(output)]
                steps.append(self._copy_step(output, self.versions[output], old, whole))
        targets = tuple(self.versions[output] for output in outputs)
        steps.append(Step(outputs[0], targets, (), self._call_reads(node)))

    def _call_reads(self, node: UOp) -> tuple[int, ...]:
        """The versions that a custom kernel is given and does not write."""
        call = node.arg
        slots = (
            slot for slot, position in enumerate(call.sources) if position is not None and slot not in call.written
        )
        return tuple(dict.fromkeys(version_behind(node.src[call.sources[slot]], self.versions) for slot in slots))

    def _link(self, steps: list[Step]) -> None:
        """A step comes after what makes the versions it reads, and an update after the readers of what it updates."""
        writers: dict[int, list[int]] = {}
        readers: dict[int, list[int]] = {}
        for position, step in enumerate(steps):
            for target in step.targets:
                writers.setdefault(target, []).append(position)
            for version in step.reads:
                readers.setdefault(version, []).append(position)
        for position, step in enumerate(steps):
            earlier = [p for version in step.reads for p in writers.get(version, ()) if p != position]
            # Several steps that write one version (a copy of the old one, then the update) keep their order; steps that
            # write the parts of a join need none.
            if step.node not in self.joins:
                earlier += [p for target in step.targets for p in writers[target] if p < position]
            for node in self._updates(step):
                base = self.versions[self._base(node)]
                earlier += writers.get(base, ())
                if self.modes[node] != "fresh":
                    earlier += [p for p in readers.get(base, ()) if p != position]
                    step.overwrites = (*step.overwrites, base)
            step.after = sorted(set(earlier))

    # ------------------------------------------------------------ slots

    def _slots(self) -> Slots:
        """A slot for each piece of memory: an update in place shares the slot of what it updates."""
        slots = Slots()
        roots: dict[int, int] = {}
        for node, version in self.versions.items():
            root = version
            while self.modes.get(node, "fresh") != "fresh":
                node = self._base(node)
                root = self.versions[node]
            roots[version] = root
        kept = {roots[self.versions[node]] for node in self.outputs}
        for node, version in self.versions.items():
            if roots[version] == version:
                kind = "input" if version < len(self.params) else "output" if version in kept else "temp"
                slots.add(version, Slot(node.dtype, max_count(node.shape), self.devices[node], kind))
        for version, root in roots.items():
            slots.of[version] = slots.of[root]
        return slots


def outputs_of_call(node: UOp) -> tuple[UOp, ...]:
    """Every value that the custom kernel of a node computes; none of any other node."""
    if node.op is not Ops.CUSTOM_KERNEL:
        return ()
    return tuple(output_node(node, slot) for slot in node.arg.written)

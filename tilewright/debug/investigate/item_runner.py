"""Schedules run by the interpreter. In: a schedule and its inputs. Out: the contents of every slot afterwards, in
separate memory for each slot or in the memory that was planned; and which two buffers of a plan overlap. `steps.py`
checks the scheduler and the memory planner with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright.base.errors import OutOfBoundsError
from tilewright.base.records import replace
from tilewright.codegen.pipeline import program_params
from tilewright.debug.investigate.equivalence import count_iterations, interpret_kernel
from tilewright.debug.replay import bindings_of, computed_values
from tilewright.debug.sum_order import CANNOT, Array
from tilewright.engine.compilation.difference import find_difference
from tilewright.engine.compilation.verify import REFERENCE_DEVICE
from tilewright.graph.interpreter.evaluate import evaluate, evaluate_all
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.records import Item, Schedule
from tilewright.graph.sizes import fixed_graph
from tilewright.graph.text.repro import Repro, inputs_of
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.fusion.indexing import flatten_index
from tilewright.schedule.fusion.uses import loops_over
from tilewright.schedule.pipeline import Scheduling

UNDEFINED = 0xFF  # a byte: four of them are a NaN
MAX_POSITIONS = 1 << 20  # of one access that are looked at


def fixed_plan(plan: Schedule, values: Mapping[str, int]) -> Schedule:
    """The schedule with plain sizes in its kernels: what it means for these values of their variables."""
    if not values:
        return plan
    items = (item if item.ast is None else replace(item, ast=fixed_graph([item.ast], values)[0]) for item in plan.items)
    return replace(plan, items=tuple(items))


class ItemRunner:
    """Runs a schedule with the interpreter of kernels: in separate memory for each slot, or in the planned memory."""

    def __init__(self, plan: Schedule, inputs: Mapping[int, Array], is_planned: bool) -> None:
        self.plan = plan
        self.is_planned = is_planned
        self.failure = ""  # what ended the run: an access outside of its buffer
        self.inputs: list[tuple[Item, dict[int, Array]]] = []  # the arguments of each kernel before it ran
        self.blocks: dict[int, Array] = {}
        offsets = dict(plan.offsets)
        arenas = {device: np.zeros(size, np.uint8) for device, size in plan.arenas}
        for number, slot in enumerate(plan.slots):
            if number in inputs:
                self.blocks[number] = inputs[number].view(np.uint8).copy()
            elif is_planned and number in offsets:
                start = offsets[number]
                self.blocks[number] = arenas[slot.device][start : start + slot.nbytes]
            else:
                # As in a replay: elements that no kernel writes are not mistaken for zeros.
                self.blocks[number] = np.full(slot.nbytes, 0 if slot.kind == "check" else UNDEFINED, np.uint8)

    def memory(self, slot: int) -> Array:
        return self.blocks[slot].view(numpy_dtype(self.plan.slots[slot].dtype))

    def run(self, is_known: Callable[[int, list[int], Array], bool] | None = None) -> str:
        """All items. The name of the first kernel that writes what `is_known` (slot, elements, contents of the slot)
        does not know; empty where there is none."""
        strange = ""
        for item in self.plan.items:
            if self.is_planned:
                self._spoil_written(item)
            if item.ast is None:
                if len(item.slots) == 2:
                    target, source = item.slots
                    self.blocks[target][:] = self.blocks[source][: self.blocks[target].size]
                continue
            arrays: dict[int, Array] = {}
            views: dict[int, Array] = {}
            for node in (node for node in toposort(item.ast) if node.op is Ops.PARAM):
                kind = numpy_dtype(node.dtype)
                start = item.starts[node.arg.slot] if item.starts else 0
                block = self.blocks[item.slots[node.arg.slot]][start : start + node.arg.size * kind.itemsize]
                views[node.arg.slot] = block.view(kind)
                arrays[node.arg.slot] = block.view(kind).copy()
            self.inputs.append((item, arrays))
            try:
                written = interpret_kernel(item.ast, arrays)
            except OutOfBoundsError as error:
                self.failure = str(error)
                return str(item.ast.arg.name)
            if written is None:
                written = emulate_kernel(item.ast, arrays)
            for slot, data in written.items():
                views[slot][:] = data
            if is_known is not None and not strange:
                strange = self._strange(item, is_known)
        return strange

    def _strange(self, item: Item, is_known: Callable[[int, list[int], Array], bool]) -> str:
        assert item.ast is not None
        for store in (node.src[0] for node in toposort(item.ast) if node.op is Ops.STORE):
            if store.src[0].op is not Ops.PARAM or len(store.src) > 2:
                continue
            slot, elements = _memory(item, store), _positions(item, store)
            if elements and not is_known(slot, elements, self.memory(slot)):
                return str(item.ast.arg.name)
        return ""

    def _spoil_written(self, item: Item) -> None:
        """Fills the memory that an item writes with other bytes: a kernel may store before it has loaded everything, so
        a read of memory that shares these bytes gives wrong results."""
        read = {access.slot for access in item.reads}
        for access in item.writes:
            if access.slot not in read and self.plan.slots[access.slot].kind == "temp":
                self.blocks[access.slot][access.start : access.stop] = UNDEFINED


def overlap_of(plan: Schedule) -> str:
    """Two temporary buffers that share memory while both are needed, as words. Found from the accesses alone,
    independently of the planner."""
    offsets = dict(plan.offsets)
    needed: dict[int, list[int]] = {}
    for position, item in enumerate(plan.items):
        for access in (*item.reads, *item.writes):
            needed.setdefault(access.slot, []).append(position)
    for first in offsets:
        for second in offsets:
            left, right = plan.slots[first], plan.slots[second]
            if first >= second or left.device != right.device:
                continue
            start, stop = (
                max(offsets[first], offsets[second]),
                min(offsets[first] + left.nbytes, offsets[second] + right.nbytes),
            )
            since, until = max(needed[first][0], needed[second][0]), min(needed[first][-1], needed[second][-1])
            if start < stop and since <= until:
                return f"temps {first} and {second} share bytes {start} to {stop} in item {since}"
    return "temporary buffers that are needed at once share memory"


def held_versions(state: Scheduling, contents: Mapping[int, Array], sizes: Mapping[str, int]) -> dict[UOp, Array]:
    """The contents of the memory of each stored node and input, flat, as the graph defines them."""
    nodes = tuple(node for node in state.builder.versions if node.op not in (Ops.ASSIGN, Ops.CUSTOM_KERNEL, Ops.COPY))
    plain = fixed_graph(nodes, sizes)
    found = evaluate_all(plain, bindings_of(plain, contents))
    return {node: np.ascontiguousarray(value).reshape(-1) for node, value in zip(nodes, found, strict=True)}


def known_loads(state: Scheduling, held: Mapping[UOp, Array]) -> list[dict[UOp, Array]]:
    """The contents of the PARAMs of each kernel, in the order in which kernels are written."""
    nodes = {version: node for node, version in state.builder.versions.items()}
    found = []
    for parts in state.builder.loaded.values():
        loads = {}
        for number, (version, start, size) in enumerate(parts):
            node = nodes[version]
            if node in held and isinstance(size, int):
                loads[UOp(Ops.PARAM, node.dtype, (), ParamArg(number, size))] = held[node][start : start + size]
        found.append(loads)
    return found


def are_values_right(state: Scheduling, held: Mapping[UOp, Array], sizes: Mapping[str, int]) -> bool | None:
    """Whether the value that was written for each stored node, as loops and loads of other stored nodes, is the node's:
    then a kernel that is wrong was broken when it became an item. None where that cannot be told."""
    builder = state.builder
    data = {builder.versions[node]: value for node, value in held.items()}
    try:
        for node, value in builder.values.items():
            if node not in held or node in state.plan.hosts:
                continue
            both = fixed_graph((value, flatten_index(loops_over(node.shape), node.shape)), sizes)
            loads = {}
            for load in (load for load in toposort(both[0]) if load.op is Ops.PARAM):
                part = builder.loaded[node][load.arg.slot]
                loads[load] = data[part.version][part.start : part.start + load.arg.size]
            got, where = np.broadcast_arrays(*map(np.asarray, evaluate_all(both, loads)))
            if find_difference(got.reshape(-1), held[node][where.reshape(-1)], node.dtype) is not None:
                return False
    except CANNOT:
        return None
    return True


def hazard_of(item: Item) -> str:
    """How a kernel reads an element of memory that another of its iterations writes, as words; empty where none does.
    A kernel that states an order between its own effects is not checked."""
    assert item.ast is not None
    order = toposort(item.ast)
    if any(node.op is Ops.AFTER for node in order):
        return ""
    accesses: dict[str, list[UOp]] = {"read": [], "written": []}
    for node in order:
        if node.op is Ops.LOAD or node.op is Ops.STORE:
            accesses["read" if node.op is Ops.LOAD else "written"].append(node.src[0])
    for store in accesses["written"]:
        for load in accesses["read"]:
            if _memory(item, load) != _memory(item, store) or load.src[1] is store.src[1]:
                continue
            shared = set(_positions(item, load)) & set(_positions(item, store))
            if shared:
                element = f"element {min(shared)} of slot {_memory(item, store)}"
                return f"kernel {item.ast.arg.name} reads {element} in one iteration and writes it in another"
    return ""


def _memory(item: Item, access: UOp) -> int:
    return item.slots[int(access.src[0].arg.slot)]


def _positions(item: Item, access: UOp) -> list[int]:
    """Every element of its slot that an access may touch; none where that depends on what is loaded."""
    index = access.src[1]
    nodes = toposort(index)
    count = count_iterations(nodes)
    if any(node.op is Ops.LOAD for node in nodes) or count > MAX_POSITIONS:
        return []
    start = (item.starts[access.src[0].arg.slot] if item.starts else 0) // access.dtype.itemsize
    found: list[int] = (np.asarray(evaluate(index)).reshape(-1) + start).tolist()
    return found


def emulate_kernel(ast: UOp, arrays: Mapping[int, Array]) -> dict[int, Array]:
    """The results of a kernel that the interpreter has no rules for, from the emulator, without opts."""
    kept = {slot: data.tobytes() for slot, data in arrays.items()}
    repro = Repro("kernel", ast, REFERENCE_DEVICE, inputs_of(ast, kept))
    slots = [param.slot for param in program_params(ast) if param.is_written and not param.holds_checks]
    return dict(zip(slots, computed_values(repro, REFERENCE_DEVICE), strict=True))

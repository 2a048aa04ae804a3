"""Schedules run by the interpreter. In: a schedule and its inputs. Out: what every slot holds afterwards, in memory of
its own for each slot or in the memory that was planned; and which two buffers of a plan overlap. `steps.py` judges the
scheduler and the memory planner with it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tilewright.codegen.pipeline import program_params
from tilewright.debug.investigate.equivalence import interpret_kernel
from tilewright.debug.replay import Array, computed_values
from tilewright.engine.compilation.verify import REFERENCE_DEVICE
from tilewright.graph.interpreter.evaluate import evaluate, numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.records import Item, Schedule
from tilewright.graph.text.repro import Repro, inputs_of
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

UNDEFINED = 0xFF  # a byte: four of them are a NaN
MAX_POSITIONS = 1 << 20  # of one access that are looked at


class ItemRunner:
    """Runs a schedule with the interpreter of kernels: in memory of its own for each slot, or as it was planned."""

    def __init__(self, plan: Schedule, inputs: Mapping[int, Array], is_planned: bool) -> None:
        self.plan = plan
        self.is_planned = is_planned
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
                self.blocks[number] = np.zeros(slot.nbytes, np.uint8)

    def memory(self, slot: int) -> Array:
        return self.blocks[slot].view(numpy_dtype(self.plan.slots[slot].dtype))

    def run(self) -> None:
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
            written = interpret_kernel(item.ast, arrays)
            if written is None:
                written = emulate_kernel(item.ast, arrays)
            for slot, data in written.items():
                views[slot][:] = data

    def _spoil_written(self, item: Item) -> None:
        """What an item writes is undefined while it reads: a kernel may store before it has loaded all. A buffer that
        shares this memory with one that is read shows it."""
        read = {access.slot for access in item.reads}
        for access in item.writes:
            if access.slot not in read and self.plan.slots[access.slot].kind == "temp":
                self.blocks[access.slot][access.start : access.stop] = UNDEFINED


def overlap_of(plan: Schedule) -> str:
    """Two temporary buffers that share memory while both are needed, as words. Found here from the accesses alone, by
    other means than those of the planner."""
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


def hazard_of(item: Item) -> str:
    """How a kernel reads an element of memory that another of its iterations writes, as words; empty where none does.
    A kernel that states an order between its own effects is not judged."""
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
    count = math.prod(int(node.vmax) + 1 for node in nodes if node.op is Ops.RANGE)
    if any(node.op is Ops.LOAD for node in nodes) or count > MAX_POSITIONS:
        return []
    start = (item.starts[access.src[0].arg.slot] if item.starts else 0) // access.dtype.itemsize
    found: list[int] = (np.asarray(evaluate(index)).reshape(-1) + start).tolist()
    return found


def emulate_kernel(ast: UOp, arrays: Mapping[int, Array]) -> dict[int, Array]:
    """What the emulator makes of a kernel that the interpreter has no rules for, without opts."""
    kept = {slot: data.tobytes() for slot, data in arrays.items()}
    repro = Repro("kernel", ast, REFERENCE_DEVICE, inputs_of(ast, kept))
    slots = [param.slot for param in program_params(ast) if param.is_written and not param.holds_checks]
    return dict(zip(slots, computed_values(repro, REFERENCE_DEVICE), strict=True))

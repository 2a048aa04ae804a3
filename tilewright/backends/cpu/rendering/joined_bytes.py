"""Numbers that a kernel assembles from bytes. In: a program. Out: one load of two bytes where its nodes load,
widen, shift and join them: `a[i] | a[i + 1] << 8`. LLVM joins scalars itself, and never the lanes of vectors."""

from __future__ import annotations

from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.instructions import memory_type, value_type
from tilewright.backends.cpu.rendering.loads import Loads
from tilewright.backends.cpu.rendering.shuffles import shuffle_mask
from tilewright.base.dtype import dtypes
from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import consumers, size_of

_BYTE_BITS = 8


class JoinedBytes:
    """`loads` are the joined nodes that are vectors, with the INDEX of the first byte; `replaced` their sources
    that nothing else uses."""

    def __init__(self, memory: Loads) -> None:
        self.memory = memory
        self.loads: dict[UOp, UOp] = {}
        self.replaced: set[UOp] = set()
        for node in memory.program.body:
            index = _first_byte(node)
            if index is not None and memory.facts.vector_axis(node) is not None:
                self.loads[node] = index
        if self.loads:
            users = consumers(memory.program.body)
            parts = [node for node in users if node.op in (Ops.SHL, Ops.CAST, Ops.LOAD) and users[node]]
            for node in reversed(parts):
                if all(user in self.loads or user in self.replaced for user in users[node]):
                    self.replaced.add(node)

    def emit(self, node: UOp) -> None:
        self.memory.values[node] = {
            coordinates: self._vector(node, at) for coordinates, at in self.memory.values.elements(node)
        }

    def _vector(self, node: UOp, at: dict[UOp, int]) -> Element:
        """Loads and inserts one number at a time: no processor gathers elements of two bytes. A number that several
        lanes share is loaded once."""
        memory, index, emitter = self.memory, self.loads[node], self.memory.emitter
        axis = memory.facts.vector_axis(node)
        assert axis is not None
        positions = memory.lane_positions(index, at, axis)
        split = memory.constant_position(index)
        if split is None:
            pointers = [memory.pointer(index, {**at, axis: lane}) for lane in range(size_of(axis))]
            return emitter.here(self._inserted(node, pointers))
        base, offsets = memory.base_pointer(index, split[0]), list(dict.fromkeys(positions))
        result = self._inserted(node, [memory.moved(base, memory_type(index.dtype), offset) for offset in offsets])
        order = [offsets.index(position) for position in positions]
        if order != list(range(len(offsets))):
            kind = value_type(node.dtype, len(offsets))
            result = emitter.assign(f"shufflevector {kind} {result}, {kind} poison, {shuffle_mask(order)}")
        return emitter.here(result)

    def _inserted(self, node: UOp, pointers: list[Element]) -> str:
        """The numbers at some addresses as a vector."""
        emitter, kind, result = self.memory.emitter, value_type(node.dtype, len(pointers)), "poison"
        for lane, pointer in enumerate(pointers):
            number = emitter.assign(f"load i16, ptr {pointer.name}, align 1")
            result = emitter.assign(f"insertelement {kind} {result}, i16 {number}, i64 {lane}")
        return result


def _first_byte(node: UOp) -> UOp | None:
    """The INDEX of the low byte of a joined number; None where the node is something else."""
    if node.op is not Ops.OR or node.dtype is not dtypes.uint16:
        return None
    shifted = next((source for source in node.src if source.op is Ops.SHL), None)
    if shifted is None or not shifted.src[1].is_const or shifted.src[1].arg != _BYTE_BITS:
        return None
    low, high = (_loaded_byte(part) for part in (*(s for s in node.src if s is not shifted), shifted.src[0]))
    if low is None or high is None or memory_of(low) is not memory_of(high):
        return None
    distance = affine(high.src[1]).plus(affine(low.src[1]), -1)
    return low if distance.constant == 1 and not any(distance.terms.values()) else None


def _loaded_byte(node: UOp) -> UOp | None:
    """The INDEX of a byte that is widened."""
    load = node.src[0] if node.op is Ops.CAST else None
    if load is None or load.op is not Ops.LOAD or load.dtype is not dtypes.uint8:
        return None
    return load.src[0] if len(load.src) == 1 and len(load.src[0].src) == 2 else None

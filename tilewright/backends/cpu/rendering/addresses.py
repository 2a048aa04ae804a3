"""Addresses and masks of memory accesses. In: INDEX nodes and coordinates. Out: pointers, vectors of pointers, masks;
and at the function's entry the arrays that placeholders and masked-off accesses use. `loads` and `memory_access` read
and write there."""

from __future__ import annotations

from tilewright.backends.cpu.host import panels
from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.instructions import memory_type, of_lanes
from tilewright.backends.cpu.rendering.partial_vectors import Lanes, PartialVectors
from tilewright.backends.cpu.rendering.values import Values
from tilewright.backends.cpu.rendering.walked_loops import step_of, walked_loops
from tilewright.base.dtype import DType, dtypes, wrap_int
from tilewright.codegen.tiles import is_tile_expression, memory_dtype, tile_part
from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of


class Addresses:
    def __init__(self, values: Values, program: Program) -> None:
        self.values = values
        self.emitter = values.emitter
        self.facts = values.facts
        self.program = program
        self.buffers: dict[tuple[Op, int], Element] = {}  # by the op that defines the memory, and its slot
        self.entry: list[str] = []  # lines that define the memory of placeholders
        self.releases: list[str] = []  # lines before the return
        self.bases: dict[UOp, Element] = {}
        self.holding: set[UOp] = set()  # indices whose mask is known to hold
        self.partial = PartialVectors(values)
        self.trash_bytes = 0
        self._walked = walked_loops(program)
        self._panel_offsets, _ = panels.panel_offsets(program)

    def entry_lines(self) -> list[str]:
        """Defines placeholders, and the arrays on the stack that masked-off loads and stores use."""
        lines = list(self.entry)
        if self.partial.zeros_bytes:
            array = f"[{self.partial.zeros_bytes} x i8]"
            lines += [f"  %zeros = alloca {array}, align 64", f"  store {array} zeroinitializer, ptr %zeros, align 64"]
        if self.partial.vector_bytes:
            lines += [
                f"  %{name} = alloca [{self.partial.vector_bytes} x i8], align 64" for name in ("vectors", "lanes")
            ]
        if self.trash_bytes:
            lines += [f"  %trash = alloca [{self.trash_bytes} x i8], align 64"]
        return lines

    def define(self, node: UOp) -> None:
        """A placeholder is memory of one thread: on the stack, which LLVM promotes to registers where it can, or in the
        thread's panel."""
        name = f"%{'local' if node.op is Ops.DEFINE_LOCAL else 'register'}{node.arg.slot}"
        offset = self._panel_offsets.get(node)
        if offset is None:
            self.entry.append(f"  {name} = alloca [{node.arg.size} x {memory_type(node.dtype)}], align 64")
        else:
            if panels.GIVE not in self.releases:
                self.emitter.declarations["panels"] = panels.FUNCTIONS
                self.entry.extend(panels.TAKE)
                self.releases.append(panels.GIVE)
            self.entry.append(f"  {name} = getelementptr i8, ptr %panel, i64 {offset}")
        self.buffers[node.op, node.arg.slot] = Element(name, 0)

    def buffer(self, index: UOp) -> Element:
        memory = memory_of(index)
        return self.buffers[memory.op, memory.arg.slot]

    # ------------------------------------------------------------ pointers

    def emit_base(self, index: UOp) -> None:
        """The address that all elements of the tile are at constant offsets from, where there is one."""
        base, _ = tile_part(index.src[1])
        if base is None:
            self.bases[index] = self.buffer(index)
        elif not self.facts.axes(base):
            self.bases[index] = self.base_pointer(index, base)

    def base_pointer(self, index: UOp, base: UOp) -> Element:
        """Accesses that differ by a constant offset share a base address: LLVM then merges loads of adjacent bytes."""
        offset = 0
        if base.op is Ops.ADD and base.src[1].is_const:
            base, offset = base.src[0], int(base.src[1].arg)
        key = (f"{self.buffer(index).name}[{self.values.operand(base, {}, None)}] {memory_type(index.dtype)}", 0)
        made = self.emitter.reused.get(key)
        if made is None:
            is_walked = bool(self.emitter.loops) and self.emitter.loops[-1] in self._walked & base.ranges
            made = self._walking_pointer(index, base) if is_walked else self._element_pointer(index, base, {})
            self.emitter.reused[key] = made
        return self.moved(made, memory_type(index.dtype), offset)

    def _walking_pointer(self, index: UOp, base: UOp) -> Element:
        """A pointer that starts where the first iteration of the innermost loop begins."""
        emitter, axis = self.emitter, self.emitter.loops[-1]
        buffer, element = self.buffer(index), memory_type(index.dtype)
        first = self._first_position(base, axis)
        start = buffer.name
        if first is not None:
            text = f"getelementptr {element}, ptr {start}, i{base.dtype.bits} {first.name}"
            start = emitter.emit(text, max(first.depth, buffer.depth)).name
        return emitter.walk(start, element, step_of(base, axis))

    def _first_position(self, base: UOp, axis: UOp) -> Element | None:
        """A position in the first iteration of a loop, computed before the loop; None is zero."""
        if axis not in base.ranges:
            return Element(str(base.arg), 0) if base.is_const else self.values[base][()]
        if base.op is not Ops.ADD:
            return None  # an iteration moves on by a constant, so this is a multiple of the counter
        one, other = (self._first_position(part, axis) for part in base.src)
        if one is None or other is None:
            return one or other
        text = f"add nsw i{base.dtype.bits} {one.name}, {other.name}"
        return self.emitter.once((text, 0), text, max(one.depth, other.depth))

    def _element_pointer(self, index: UOp, base: UOp, at: dict[UOp, int]) -> Element:
        buffer, position = self.buffer(index), self.values.operand(base, at, None)
        text = f"getelementptr {memory_type(index.dtype)}, ptr {buffer.name}, i{base.dtype.bits} {position}"
        return self.emitter.emit(text)

    def constant_position(self, index: UOp) -> tuple[UOp, ...] | None:
        """The position of an access as a base without tile axes, and parts that are constants in the tile."""
        position, parts = index.src[1], []
        while position.op is Ops.ADD and is_tile_expression(position.src[1]):
            position, part = position.src
            parts.append(part)
        return None if self.facts.axes(position) else (position, *parts)

    def pointer(self, index: UOp, at: dict[UOp, int], axis: UOp | None = None) -> Element:
        """The address of one element; of a vector along `axis`, that of its first lane."""
        base, steps = tile_part(index.src[1])
        offset = sum(step * at[tile] for tile, step in steps.items() if tile is not axis)
        pointer = self.bases.get(index)
        if pointer is None:
            assert base is not None
            pointer = self._element_pointer(index, base, at)
        return self.moved(pointer, memory_type(index.dtype), offset)

    def moved(self, pointer: Element, element: str, offset: int) -> Element:
        """`offset` elements further on."""
        if offset == 0:
            return pointer
        key = (f"{pointer.name}+{offset} {element}", 0)
        text = f"getelementptr {element}, ptr {pointer.name}, i64 {wrapped(offset)}"
        return self.emitter.once(key, text, pointer.depth)

    def pointers(self, index: UOp, at: dict[UOp, int], axis: UOp, mask: str | None) -> str:
        """A vector of addresses, one per lane; that of a masked-off lane is arbitrary."""
        emitter, lanes, element = self.emitter, size_of(axis), memory_type(index.dtype)
        base, steps = tile_part(index.src[1])
        step = steps.get(axis, 0)
        if base is None or axis not in self.facts.axes(base):
            first = self.pointer(index, at, axis)
            return emitter.assign(f"getelementptr {element}, ptr {first.name}, {_offsets(lanes, step, 0)}")
        position = self.values.operand(base, at, axis)
        kind = of_lanes(f"i{base.dtype.bits}", lanes)
        if mask is not None and base.vmax - base.vmin >= 1 << 32:
            # LLVM would take a shift by more bits than an address has for the scale of an address, and abort.
            masks = of_lanes("i1", lanes)
            position = emitter.assign(f"select {masks} {mask}, {kind} {position}, {kind} zeroinitializer")
        if base.dtype.bits > 32 and memory_of(index).arg.size <= 1 << 31:
            # Indices of the buffer need 31 bits, and a gather instruction takes twice as many indices of 32 bits.
            narrow = of_lanes("i32", lanes)
            position, kind = emitter.assign(f"trunc {kind} {position} to {narrow}"), narrow
        pointers = emitter.assign(f"getelementptr {element}, ptr {self.buffer(index).name}, {kind} {position}")
        offset = sum(s * at[tile] for tile, s in steps.items() if tile is not axis)
        if step or offset:
            text = f"getelementptr {element}, <{lanes} x ptr> {pointers}, {_offsets(lanes, step, offset)}"
            pointers = emitter.assign(text)
        return pointers

    # ------------------------------------------------------------ masks and strides

    def mask(self, index: UOp, at: dict[UOp, int], axis: UOp | None) -> tuple[str | None, bool]:
        """The mask of an access, and whether it differs from lane to lane."""
        if len(index.src) < 3:
            return None, False
        valid = index.src[2]
        if holds_at(valid, at):
            return None, False
        varies = axis is not None and axis in self.facts.axes(valid)
        return self.values.operand(valid, at, axis if varies else None), varies

    def kept_lanes(self, index: UOp, at: dict[UOp, int], axis: UOp) -> Lanes:
        """The mask of a vector. It is computed before the loops in which it does not change, unless those need
        the registers for accumulators."""
        emitter, facts, values = self.emitter, self.facts, self.values
        bit, found, depth = "", [], 0
        for part in parts_of(index.src[2], Ops.AND):
            if axis not in facts.axes(part):
                one = values.operand(part, at, None)
                bit = emitter.assign(f"and i1 {bit}, {one}") if bit else one
                continue
            found.append(values.operand(part, at, axis))
            is_own = facts.vector_axis(part) is axis and part in values
            depth = max(depth, values[part][facts.coordinates(part, at)].depth if is_own else len(emitter.loops))
        while any(facts.updated_in(loop) for loop in emitter.loops[depth:]):
            depth += 1
        lanes = Lanes(bit, "", memory_dtype(index.dtype).bits, size_of(axis))
        # Each part by itself: LLVM would take the conjunction of bits in bytes, and widen that.
        texts = [f"sext {of_lanes('i1', lanes.size)} {name} to {lanes.kind}" for name in found]
        kept, *others = [emitter.once((text, 0), text, depth).name for text in texts]
        for other in others:
            text = f"and {lanes.kind} {kept}, {other}"
            kept = emitter.once((text, 0), text, depth).name
        return lanes._replace(kept=kept)

    def has_masks(self, dtype: DType) -> bool:
        """Whether the processor loads and stores vectors of these elements under a mask."""
        return dtype.itemsize in self.program.target.masked_itemsizes

    def stride(self, index: UOp, axis: UOp | None) -> int | None:
        """The stride along the vector axis, in elements; None where it is not constant."""
        if axis is None:
            return 1
        base, steps = tile_part(index.src[1])
        if base is not None and axis in self.facts.axes(base):
            return None
        return steps.get(axis, 0)


def wrapped(offset: int) -> int:
    """An offset wrapped to 64 bits: that of a masked-off position may need more."""
    return wrap_int(offset, dtypes.int64)


def _offsets(lanes: int, step: int, start: int) -> str:
    return f"<{lanes} x i64> <" + ", ".join(f"i64 {wrapped(step * lane + start)}" for lane in range(lanes)) + ">"


def lane_count(axis: UOp | None) -> int:
    """The lanes of a vector along `axis`; 0, a scalar, where there is none."""
    return 0 if axis is None else size_of(axis)

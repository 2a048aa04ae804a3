"""Where tiles lie in memory. In: INDEX nodes and placeholders, and the renderer that knows their operands. Out: text of
addresses, of one element or one for each lane of a vector, and masks; and on entry the placeholders, and the areas that
masked-off accesses go to. `memory_access` loads and stores there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.backends.cpu.host import panels
from tilewright.backends.cpu.rendering.instructions import memory_type, of_lanes
from tilewright.base.dtype import dtypes, wrap_int
from tilewright.codegen.tiles import axis_size, tile_part
from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of

if TYPE_CHECKING:
    from tilewright.backends.cpu.rendering.renderer import Element, Renderer


class Places:
    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.buffers: dict[tuple[Op, int], Element] = {}  # by the op that names the memory, and its slot
        self.areas: list[str] = []
        self.releases: list[str] = []
        self.panel_places, _ = panels.panel_places(renderer.program)
        self.bases: dict[UOp, Element] = {}
        self.scratch_bytes = 0
        self.trash_bytes = 0

    def scratch(self) -> list[str]:
        """Where placeholders lie, and the areas on the stack that masked-off accesses go to."""
        lines = list(self.areas)
        if self.scratch_bytes:
            area = f"[{self.scratch_bytes} x i8]"
            lines += [f"  %zeros = alloca {area}, align 64", f"  store {area} zeroinitializer, ptr %zeros, align 64"]
        if self.trash_bytes:
            lines += [f"  %trash = alloca [{self.trash_bytes} x i8], align 64"]
        return lines

    def define(self, node: UOp) -> None:
        """A placeholder is memory of the task, which one thread runs: registers where LLVM finds that they suffice."""
        name = f"%{'local' if node.op is Ops.DEFINE_LOCAL else 'register'}{node.arg.slot}"
        place = self.panel_places.get(node)
        if place is None:
            self.areas.append(f"  {name} = alloca [{node.arg.size} x {memory_type(node.dtype)}], align 64")
        else:
            if panels.GIVE not in self.releases:
                self.renderer.instructions.declarations["panels"] = panels.FUNCTIONS
                self.areas.extend(panels.TAKE)
                self.releases.append(panels.GIVE)
            self.areas.append(f"  {name} = getelementptr i8, ptr %panel, i64 {place}")
        self.buffers[node.op, node.arg.slot] = self.renderer.on_entry(name)

    def _memory(self, place: UOp) -> Element:
        memory = memory_of(place)
        return self.buffers[memory.op, memory.arg.slot]

    # ------------------------------------------------------------ addresses

    def place(self, node: UOp) -> None:
        """The address of a position whose base is the same for the whole tile, computed once."""
        base, _ = tile_part(node.src[1])
        facts = self.renderer.facts
        if base is not None and facts.axes(base):
            return
        buffer = self._memory(node)
        if base is None:
            self.bases[node] = buffer
            return
        position = self.renderer.operand(base, {}, None)
        kind = f"i{base.dtype.bits}"
        text = f"getelementptr {memory_type(node.dtype)}, ptr {buffer.name}, {kind} {position}"
        self.bases[node] = self.renderer.emit(text)

    def _pointer(self, node: UOp, at: dict[UOp, int], axis: UOp | None) -> Element:
        """The address of one element; of a vector, that of its first lane."""
        base, steps = tile_part(node.src[1])
        offset = sum(step * at[tile] for tile, step in steps.items() if tile is not axis)
        element = memory_type(node.dtype)
        if node in self.bases:
            pointer = self.bases[node]
        else:
            assert base is not None
            buffer = self._memory(node)
            position = self.renderer.operand(base, at, None)
            pointer = self.renderer.emit(f"getelementptr {element}, ptr {buffer.name}, i{base.dtype.bits} {position}")
        return self._moved(pointer, element, offset)

    def pointer(self, place: UOp, at: dict[UOp, int]) -> Element:
        """The address of one element."""
        return self._pointer(place, at, None)

    def _moved(self, pointer: Element, element: str, offset: int) -> Element:
        if offset == 0:
            return pointer
        key = (f"{pointer.name}+{offset} {element}", 0)
        made = self.renderer.splats.get(key)
        if made is None:
            text = f"getelementptr {element}, ptr {pointer.name}, i64 {wrapped(offset)}"
            made = self.renderer.emit(text, pointer.depth)
            self.renderer.splats[key] = made
        return made

    def _pointers(self, node: UOp, at: dict[UOp, int], axis: UOp, mask: str | None) -> str:
        """A vector of addresses, one per lane; where a lane is masked off, any."""
        base, steps = tile_part(node.src[1])
        lanes = axis_size(axis)
        element = memory_type(node.dtype)
        step = steps.get(axis, 0)
        offsets = "<" + ", ".join(f"i64 {wrapped(step * lane)}" for lane in range(lanes)) + ">"
        if base is None or axis not in self.renderer.facts.axes(base):
            first = self._pointer(node, at, axis)
            return self.renderer.emit(f"getelementptr {element}, ptr {first.name}, <{lanes} x i64> {offsets}").name
        buffer = self._memory(node)
        position = self.renderer.operand(base, at, axis)
        kind = of_lanes(f"i{base.dtype.bits}", lanes)
        if mask is not None and base.vmax - base.vmin >= 1 << 32:
            # LLVM takes a shift by more bits than an address has for the scale of the address, and stops the process.
            masks = of_lanes("i1", lanes)
            position = self.renderer.emit(f"select {masks} {mask}, {kind} {position}, {kind} zeroinitializer").name
        pointers = self.renderer.emit(f"getelementptr {element}, ptr {buffer.name}, {kind} {position}").name
        constant_offset = sum(s * at[tile] for tile, s in steps.items() if tile is not axis)
        if step or constant_offset:
            offsets = "<" + ", ".join(f"i64 {wrapped(step * lane + constant_offset)}" for lane in range(lanes)) + ">"
            text = f"getelementptr {element}, <{lanes} x ptr> {pointers}, <{lanes} x i64> {offsets}"
            pointers = self.renderer.emit(text).name
        return pointers

    def _mask(self, node: UOp, at: dict[UOp, int], axis: UOp | None) -> tuple[str | None, bool]:
        """The mask of an access, and whether it differs from lane to lane."""
        if len(node.src) < 3:
            return None, False
        valid = node.src[2]
        if holds_at(valid, at):
            return None, False
        varies = axis is not None and axis in self.renderer.facts.axes(valid)
        return self.renderer.operand(valid, at, axis if varies else None), varies

    def _step(self, node: UOp, axis: UOp | None) -> int | None:
        """The step along the vector axis; None where it is not constant."""
        if axis is None:
            return 1
        base, steps = tile_part(node.src[1])
        if base is not None and axis in self.renderer.facts.axes(base):
            return None
        return steps.get(axis, 0)


def wrapped(offset: int) -> int:
    """A step as 64 bits hold it: a position that is masked off may be computed from more."""
    return wrap_int(offset, dtypes.int64)

"""Loads and stores of tiles. In: INDEX, LOAD and STORE nodes, and the renderer that knows their operands. Out: text.

Along the vector axis a step of 1 is a vector access, -1 a reversed one, any other a gather or scatter. A masked access
never branches: a mask that is one bit for the whole vector chooses between the address and a scratch area on the stack
(zeros for loads), a mask per lane uses LLVM's masked forms, which touch no memory where it is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.backends.cpu.instructions import constant, memory_type, of_lanes, overload, value_type
from tilewright.base.dtype import DType, dtypes, wrap_int
from tilewright.codegen.tiles import axis_size, tile_part
from tilewright.graph.affine import coefficient
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of

if TYPE_CHECKING:
    from tilewright.backends.cpu.renderer import Element, Renderer


CACHE_LINE = 64
# How far ahead of a stream its lines are asked for; bench/prefetch.py measures other distances.
PREFETCH_BYTES = 4096


class MemoryAccess:
    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.buffers: dict[tuple[Op, int], Element] = {}  # by the op that names the memory, and its slot
        self.areas: list[str] = []
        self.bases: dict[UOp, Element] = {}
        self.scratch_bytes = 0
        self.trash_bytes = 0

    def scratch(self) -> list[str]:
        """What lies on the stack: placeholders, and the areas that masked-off accesses go to."""
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
        self.areas.append(f"  {name} = alloca [{node.arg.size} x {memory_type(node.dtype)}], align 64")
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

    def _moved(self, pointer: Element, element: str, offset: int) -> Element:
        if offset == 0:
            return pointer
        key = (f"{pointer.name}+{offset}", 0)
        made = self.renderer.splats.get(key)
        if made is None:
            text = f"getelementptr {element}, ptr {pointer.name}, i64 {wrapped(offset)}"
            made = self.renderer.emit(text, pointer.depth)
            self.renderer.splats[key] = made
        return made

    def _pointers(self, node: UOp, at: dict[UOp, int], axis: UOp) -> str:
        """A vector of addresses, one per lane."""
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

    # ------------------------------------------------------------ loads

    def load(self, node: UOp) -> None:
        renderer = self.renderer
        place = node.src[0]
        axis = renderer.facts.vector_axis(node)
        step = self._step(place, axis)
        values = {}
        for coordinates in renderer.facts.all_coordinates(node):
            at = dict(zip(renderer.facts.outer_axes(node), coordinates, strict=True))
            mask, varies = self._mask(place, at, axis)
            if step in (1, -1):
                made = self._load_row(place, at, axis, mask, varies, step == -1)
            else:
                assert axis is not None
                made = self._gather(place, at, axis, mask, varies)
            lanes = axis_size(axis) if axis is not None else 0
            if node.dtype.is_bool:
                zero = constant(dtypes.uint8, 0, lanes)
                made = renderer.emit(f"icmp ne {of_lanes('i8', lanes)} {made.name}, {zero}")
            if len(node.src) > 1 and mask is not None:
                made = self._or_else(node, at, axis, made)
            values[coordinates] = made
        renderer.values[node] = values

    def _or_else(self, node: UOp, at: dict[UOp, int], axis: UOp | None, made: Element) -> Element:
        lanes = axis_size(axis) if axis is not None else 0
        condition = self.renderer.operand(node.src[0].src[2], at, axis)
        other = self.renderer.operand(node.src[1], at, axis)
        return self.renderer.emit(self.renderer.instructions.select(node.dtype, lanes, condition, made.name, other))

    def _load_row(
        self, place: UOp, at: dict[UOp, int], axis: UOp | None, mask: str | None, varies: bool, is_reversed: bool
    ) -> Element:
        renderer = self.renderer
        lanes = axis_size(axis) if axis is not None else 0
        dtype = _memory_dtype(place.dtype)
        kind = of_lanes(memory_type(dtype), lanes)
        pointer = self._pointer(place, at, axis)
        if is_reversed:
            pointer = self._moved(pointer, memory_type(dtype), 1 - lanes)
        if mask is not None and varies:
            if is_reversed:
                mask = self._reverse(of_lanes("i1", lanes), mask, lanes).name
            made = renderer.emit(
                renderer.instructions.call(
                    f"llvm.masked.load.{overload(dtype, lanes)}.p0",
                    kind,
                    ("ptr", pointer.name),
                    ("i32", str(dtype.itemsize)),
                    (of_lanes("i1", lanes), mask),
                    (kind, "zeroinitializer"),
                )
            )
        else:
            name = pointer.name
            if mask is not None:
                self.scratch_bytes = max(self.scratch_bytes, dtype.itemsize * max(lanes, 1))
                name = renderer.emit(f"select i1 {mask}, ptr {name}, ptr %zeros").name
            elif self._is_stream(place, lanes * dtype.itemsize):
                self._prefetch(pointer, lanes * dtype.itemsize)
            made = renderer.emit(f"load {kind}, ptr {name}, align {dtype.itemsize}")
        return self._reverse(kind, made.name, lanes) if is_reversed else made

    def _is_stream(self, place: UOp, row_bytes: int) -> bool:
        """Whether a loop walks a buffer that no cache holds, row after row without gaps."""
        buffer, position = memory_of(place), place.src[1]
        itemsize = buffer.dtype.itemsize
        if not self.renderer.loops or buffer.arg.size * itemsize < self.renderer.program.target.cache_bytes:
            return False
        base, _ = tile_part(position)
        return base is not None and coefficient(base, self.renderer.loops[-1].axis) * itemsize == row_bytes

    def _prefetch(self, pointer: Element, row_bytes: int) -> None:
        """Asks for the lines that the loop reaches soon. Asking for lines past the end of the buffer does no harm."""
        renderer = self.renderer
        for line in range(0, row_bytes, CACHE_LINE):
            ahead = self._moved(pointer, "i8", PREFETCH_BYTES + line)
            text = renderer.instructions.call(
                "llvm.prefetch.p0", "void", ("ptr", ahead.name), ("i32", "0"), ("i32", "3"), ("i32", "1")
            )
            renderer.line(f"  {text}")

    def _reverse(self, kind: str, name: str, lanes: int) -> Element:
        order = ", ".join(f"i32 {lane}" for lane in range(lanes - 1, -1, -1))
        return self.renderer.emit(f"shufflevector {kind} {name}, {kind} poison, <{lanes} x i32> <{order}>")

    def _gather(self, place: UOp, at: dict[UOp, int], axis: UOp, mask: str | None, varies: bool) -> Element:
        renderer = self.renderer
        lanes = axis_size(axis)
        dtype = _memory_dtype(place.dtype)
        kind = of_lanes(memory_type(dtype), lanes)
        if mask is not None and not varies:
            mask = renderer.operand(place.src[2], at, axis)
        call = renderer.instructions.call(
            f"llvm.masked.gather.{overload(dtype, lanes)}.v{lanes}p0",
            kind,
            (f"<{lanes} x ptr>", self._pointers(place, at, axis)),
            ("i32", str(dtype.itemsize)),
            (of_lanes("i1", lanes), mask or "splat (i1 true)"),
            (kind, "zeroinitializer"),
        )
        return renderer.emit(call)

    # ------------------------------------------------------------ stores

    def store(self, node: UOp) -> None:
        renderer = self.renderer
        place, value = node.src
        axis = renderer.facts.vector_axis(node)
        step = self._step(place, axis)
        lanes = axis_size(axis) if axis is not None else 0
        dtype = _memory_dtype(place.dtype)
        for coordinates in renderer.facts.all_coordinates(node):
            at = dict(zip(renderer.facts.outer_axes(node), coordinates, strict=True))
            mask, varies = self._mask(place, at, axis)
            name = renderer.operand(value, at, axis)
            if value.dtype.is_bool:
                name = renderer.emit(f"zext {value_type(value.dtype, lanes)} {name} to {of_lanes('i8', lanes)}").name
            if step == 1:
                self._store_row(place, at, axis, dtype, name, mask, varies)
            else:
                assert axis is not None
                self._scatter(place, at, axis, dtype, name, mask, varies)

    def _store_row(
        self, place: UOp, at: dict[UOp, int], axis: UOp | None, dtype: DType, name: str, mask: str | None, varies: bool
    ) -> None:
        renderer = self.renderer
        lanes = axis_size(axis) if axis is not None else 0
        kind = of_lanes(memory_type(dtype), lanes)
        pointer = self._pointer(place, at, axis).name
        if mask is not None and varies:
            text = renderer.instructions.call(
                f"llvm.masked.store.{overload(dtype, lanes)}.p0",
                "void",
                (kind, name),
                ("ptr", pointer),
                ("i32", str(dtype.itemsize)),
                (of_lanes("i1", lanes), mask),
            )
            renderer.line(f"  {text}")
            return
        if mask is not None:
            self.trash_bytes = max(self.trash_bytes, dtype.itemsize * max(lanes, 1))
            pointer = renderer.emit(f"select i1 {mask}, ptr {pointer}, ptr %trash").name
        renderer.line(f"  store {kind} {name}, ptr {pointer}, align {dtype.itemsize}")

    def _scatter(
        self, place: UOp, at: dict[UOp, int], axis: UOp, dtype: DType, name: str, mask: str | None, varies: bool
    ) -> None:
        renderer = self.renderer
        lanes = axis_size(axis)
        if mask is not None and not varies:
            mask = renderer.operand(place.src[2], at, axis)
        text = renderer.instructions.call(
            f"llvm.masked.scatter.{overload(dtype, lanes)}.v{lanes}p0",
            "void",
            (of_lanes(memory_type(dtype), lanes), name),
            (f"<{lanes} x ptr>", self._pointers(place, at, axis)),
            ("i32", str(dtype.itemsize)),
            (of_lanes("i1", lanes), mask or "splat (i1 true)"),
        )
        renderer.line(f"  {text}")


def wrapped(offset: int) -> int:
    """A step as 64 bits hold it: a position that is masked off may be computed from more."""
    return wrap_int(offset, dtypes.int64)


def _memory_dtype(dtype: DType) -> DType:
    return dtypes.uint8 if dtype.is_bool else dtype

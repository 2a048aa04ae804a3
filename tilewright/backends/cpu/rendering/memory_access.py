"""Loads and stores of tiles. In: INDEX, LOAD and STORE nodes, and the renderer that knows their operands. Out: text.

Along the vector axis a step of 1 is a vector access, -1 a reversed one, a small one picks lanes of neighbours, any
other is a gather or scatter. A masked access never branches: a mask that is one bit for the whole vector chooses
between the address and a scratch area on the stack (zeros for loads), a mask per lane uses LLVM's masked forms,
which touch no memory where it is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.backends.cpu.rendering.addresses import Places
from tilewright.backends.cpu.rendering.groups import find_group, store_groups
from tilewright.backends.cpu.rendering.instructions import constant, memory_type, of_lanes, overload, value_type
from tilewright.backends.cpu.rendering.interleave import MOST_STEP, load_apart
from tilewright.backends.cpu.rendering.prefetch import Prefetch, is_walked
from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.tiles import axis_size
from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of

if TYPE_CHECKING:
    from tilewright.backends.cpu.rendering.renderer import Element, Renderer


_FENCE = "  fence seq_cst"


class MemoryAccess(Places):
    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer)
        self.prefetch = Prefetch(renderer.program)
        self.line_bytes = renderer.program.target.line_bytes

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
            elif step is not None and 1 < step <= MOST_STEP and not varies:
                assert axis is not None
                made = self._load_apart(place, at, axis, mask, step)
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
            else:
                self._ask_ahead(place, pointer, lanes * dtype.itemsize)
            made = renderer.emit(f"load {kind}, ptr {name}, align {dtype.itemsize}")
        return self._reverse(kind, made.name, lanes) if is_reversed else made

    def load_neighbours(self, place: UOp, at: dict[UOp, int], count: int) -> Element:
        """So many elements from one on, whatever axes they lie along; a mask is one bit for all of them."""
        renderer, dtype = self.renderer, _memory_dtype(place.dtype)
        mask, _ = self._mask(place, at, None)
        pointer = self._pointer(place, at, None)
        if mask is not None:
            self.scratch_bytes = max(self.scratch_bytes, dtype.itemsize * count)
            pointer = renderer.emit(f"select i1 {mask}, ptr {pointer.name}, ptr %zeros")
        else:
            self._ask_ahead(place, pointer, count * dtype.itemsize)
        return renderer.emit(f"load {of_lanes(memory_type(dtype), count)}, ptr {pointer.name}, align {dtype.itemsize}")

    def _load_apart(self, place: UOp, at: dict[UOp, int], axis: UOp, mask: str | None, step: int) -> Element:
        renderer = self.renderer
        lanes, dtype = axis_size(axis), _memory_dtype(place.dtype)
        element = memory_type(dtype)
        first = self._pointer(place, at, axis)
        if mask is not None:
            self.scratch_bytes = max(self.scratch_bytes, dtype.itemsize * lanes * step)
            first = renderer.emit(f"select i1 {mask}, ptr {first.name}, ptr %zeros")
        name = load_apart(
            lambda text: renderer.emit(text).name,
            lambda offset: self._moved(first, element, offset).name,
            element,
            dtype.itemsize,
            lanes,
            step,
        )
        return renderer.here(name)

    def _ask_ahead(self, place: UOp, pointer: Element, row_bytes: int) -> None:
        """Asks for the lines that are reached soon. Asking for lines past the end of the buffer does no harm."""
        renderer = self.renderer
        distance = self.prefetch.bytes_ahead(place, row_bytes, renderer.loop_axes)
        for line in range(0, row_bytes if distance else 0, self.line_bytes):
            ahead = self._moved(pointer, "i8", distance + line)
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
            (f"<{lanes} x ptr>", self._pointers(place, at, axis, mask)),
            ("i32", str(dtype.itemsize)),
            (of_lanes("i1", lanes), mask or "splat (i1 true)"),
            (kind, "zeroinitializer"),
        )
        return renderer.emit(call)

    # ------------------------------------------------------------ stores

    def store(self, node: UOp) -> None:
        renderer = self.renderer
        group = find_group(renderer, node)
        if group is not None:
            store_groups(renderer, node, group)
            return
        place, value = node.src
        axis = renderer.facts.vector_axis(node)
        step = self._step(place, axis)
        lanes = axis_size(axis) if axis is not None else 0
        dtype = _memory_dtype(place.dtype)
        rows: list[tuple[str, str]] = []
        for coordinates in renderer.facts.all_coordinates(node):
            at = dict(zip(renderer.facts.outer_axes(node), coordinates, strict=True))
            mask, varies = self._mask(place, at, axis)
            name = renderer.operand(value, at, axis)
            if value.dtype.is_bool:
                name = renderer.emit(f"zext {value_type(value.dtype, lanes)} {name} to {of_lanes('i8', lanes)}").name
            if step == 1 and mask is None:
                rows.append((name, self._pointer(place, at, axis).name))
            elif step == 1:
                self._store_masked_row(place, at, axis, dtype, name, mask, varies)
            else:
                assert axis is not None
                self._scatter(place, at, axis, dtype, name, mask, varies)
        self._store_rows(place, axis, rows)

    def _store_rows(self, place: UOp, axis: UOp | None, rows: list[tuple[str, str]]) -> None:
        """Whole lines that nothing reads soon, and that lie apart, go past the caches. Only aligned ones can: where the
        memory that the program is given is not, which is one bit for all of them, they are stored as others are."""
        dtype, lanes = _memory_dtype(place.dtype), axis_size(axis) if axis is not None else 0
        kind = of_lanes(memory_type(dtype), lanes)
        texts = [f"  store {kind} {name}, ptr {pointer}, align " for name, pointer in rows]
        renderer = self.renderer
        if not rows or not self._leaves_cache(place, axis, max(lanes, 1) * dtype.itemsize):
            for text in texts:
                renderer.line(f"{text}{dtype.itemsize}")
            return
        is_aligned = self._is_aligned(place)
        label = f"rows{next(renderer.counter)}"
        renderer.line(f"  br i1 {is_aligned}, label %{label}.aligned, label %{label}.any")
        for name, ending in (("aligned", f"{self.line_bytes}, !nontemporal !0"), ("any", str(dtype.itemsize))):
            renderer.line(f"{label}.{name}:")
            for text in texts:
                renderer.line(f"{text}{ending}")
            renderer.line(f"  br label %{label}.done")
        renderer.line(f"{label}.done:")
        renderer.label = f"{label}.done"

    def _leaves_cache(self, place: UOp, axis: UOp | None, row_bytes: int) -> bool:
        """Whether a store writes whole lines of a buffer that no cache holds, each far from the last: the lines would
        be fetched for nothing, and late. Where a loop walks them without gaps they are fetched ahead, and it is as
        quick to leave them in the cache."""
        buffer, program = memory_of(place), self.renderer.program
        is_only_written = buffer.op is Ops.PARAM and not any(
            p.is_read for p in program.params if p.slot == buffer.arg.slot
        )
        if not is_only_written or row_bytes % self.line_bytes or is_walked(place, row_bytes, self.renderer.loop_axes):
            return False
        itemsize = _memory_dtype(place.dtype).itemsize
        position = affine(place.src[1])
        steps = [position.constant, *(step for atom, step in position.terms.items() if atom is not axis)]
        is_large = buffer.arg.size * itemsize >= program.target.cache_bytes
        return is_large and all(step * itemsize % self.line_bytes == 0 for step in steps)

    def _is_aligned(self, place: UOp) -> str:
        """Whether a buffer starts at a line, known on entry. Stores past the caches are in order with nothing that
        follows, so the program ends with a fence."""
        renderer, buffer = self.renderer, self._memory(place)
        key = (f"{buffer.name} aligned", 0)
        if key not in renderer.splats:
            address = renderer.emit(f"ptrtoint ptr {buffer.name} to i64", 0)
            rest = renderer.emit(f"and i64 {address.name}, {self.line_bytes - 1}", 0)
            renderer.splats[key] = renderer.emit(f"icmp eq i64 {rest.name}, 0", 0)
            renderer.instructions.declarations["!0"] = "!0 = !{i32 1}"
            if _FENCE not in self.releases:
                self.releases.append(_FENCE)
        return renderer.splats[key].name

    def _store_masked_row(
        self, place: UOp, at: dict[UOp, int], axis: UOp | None, dtype: DType, name: str, mask: str | None, varies: bool
    ) -> None:
        renderer = self.renderer
        lanes = axis_size(axis) if axis is not None else 0
        kind = of_lanes(memory_type(dtype), lanes)
        pointer = self._pointer(place, at, axis).name
        if varies:
            assert mask is not None
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
            (f"<{lanes} x ptr>", self._pointers(place, at, axis, mask)),
            ("i32", str(dtype.itemsize)),
            (of_lanes("i1", lanes), mask or "splat (i1 true)"),
        )
        renderer.line(f"  {text}")


def _memory_dtype(dtype: DType) -> DType:
    return dtypes.uint8 if dtype.is_bool else dtype

"""Loads of tiles. In: LOAD nodes. Out: text, and the names of their values.

Along the vector axis a stride of 1 is a vector load, -1 a reversed one, a small one keeps some lanes of contiguous
loads, any other is a gather. A masked load never branches: where one bit masks the whole vector, it selects between the
address and zeros on the stack; a mask per lane uses LLVM's masked intrinsics, which touch no memory in lanes that are
off. Where the processor has no masks, all vectors of a tile share one branch (`partial_vectors`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from tilewright.backends.cpu.rendering.addresses import Addresses, lane_count
from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.instructions import constant, memory_type, of_lanes, overload
from tilewright.backends.cpu.rendering.masked_functions import MIN_VECTORS, masked_call
from tilewright.backends.cpu.rendering.partial_vectors import PartialLoad
from tilewright.backends.cpu.rendering.prefetch import Prefetch
from tilewright.backends.cpu.rendering.shuffles import MAX_STRIDE, load_strided, shuffle_mask
from tilewright.backends.cpu.rendering.strided_words import load_narrow
from tilewright.backends.cpu.rendering.values import FENCED, Values
from tilewright.backends.cpu.rendering.whole_vectors import Condition, inside_condition, whole_conditions
from tilewright.base.dtype import dtypes
from tilewright.codegen.tiles import Coordinates, memory_dtype, tile_part, tile_value
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of

# The most elements between the first and the last of a vector that is shuffled out of a contiguous load.
MAX_SPAN = 64
# How many contiguous loads a vector may be shuffled out of, each of another span; fewer are tried first.
SPAN_COUNTS = (1, 2, 4)


class Loads(Addresses):
    def __init__(self, values: Values, program: Program) -> None:
        super().__init__(values, program)
        self._prefetch = Prefetch(program)
        accesses = (node for node in program.body if node.op in (Ops.LOAD, Ops.STORE))
        self._masked = Counter(node.op for node in accesses if len(node.src[0].src) > 2)
        self.line_bytes = program.target.line_bytes

    def load(self, node: UOp) -> None:
        index, axis, lanes = node.src[0], self.facts.vector_axis(node), self.facts.lanes(node)
        stride = self.stride(index, axis)
        narrow = load_narrow(self, node, axis) if axis is not None and abs(stride or 0) > MAX_STRIDE else None
        if narrow is not None:
            self.values[node] = narrow
            return
        in_lanes = self._load_runs(node) if axis is None else None
        if in_lanes is not None:
            self.values[node] = in_lanes
            return
        loads: dict[Coordinates, Element | PartialLoad] = {}
        for coordinates, at in self.values.elements(node):
            mask, varies = self.mask(index, at, axis)
            if stride in (1, -1):
                loads[coordinates] = self._load_vector(index, at, axis, mask, varies, stride == -1)
            elif stride is not None and 1 < stride <= MAX_STRIDE:
                assert axis is not None
                loads[coordinates] = self._load_strided(index, at, axis, mask, varies, stride)
            else:
                assert axis is not None
                positions = self._near_positions(index, at, axis) if mask is None else []
                is_near = bool(positions)
                loads[coordinates] = (
                    self.load_span(index, positions) if is_near else self._gather(index, at, axis, mask, varies)
                )
        made = self._loaded(loads)
        self.values[node] = {
            coordinates: self._as_value(node, at, axis, made[coordinates], is_reversed=stride == -1 and lanes > 0)
            for coordinates, at in self.values.elements(node)
        }

    def _load_runs(self, node: UOp) -> dict[Coordinates, Element] | None:
        """Scalars that are adjacent in memory, as lanes of vectors, where products take lanes as operands: the pixels
        of a row of windows, a column of a packed tile. None where few of them are adjacent."""
        index, target, lanes = node.src[0], self.values.target, self.values.target.lanes(node.dtype)
        if not (target.has_lane_operands and node.dtype in FENCED and len(index.src) < 3 and self.emitter.loops):
            return None
        _, steps = tile_part(index.src[1])
        positions = {
            coordinates: sum(step * at[tile] for tile, step in steps.items())
            for coordinates, at in self.values.elements(node)
        }
        runs = runs_of(positions.values())
        if sum(map(len, runs)) < 2 * lanes or min(map(len, runs)) < lanes:
            return None
        at = {positions[coordinates]: at for coordinates, at in self.values.elements(node)}
        made: dict[int, Element] = {}
        for run in runs:
            for first in run[::lanes]:
                # The last vector overlaps the one before where it is not full.
                start = min(first, run.stop - lanes)
                vector = self._load(index, self.pointer(index, at[start]), None, lanes)
                for position in range(first, start + lanes):
                    made[position] = self.values.lane_of(vector, node.dtype, position - start)
        return {coordinates: made[position] for coordinates, position in positions.items()}

    def _loaded(self, loads: dict[Coordinates, Element | PartialLoad]) -> dict[Coordinates, Element]:
        """Each vector of a tile. Those that need a branch share one."""
        partial = {coordinates: load for coordinates, load in loads.items() if isinstance(load, PartialLoad)}
        names = iter(self.partial.load(list(partial.values())) if partial else ())
        return {
            coordinates: self.emitter.here(next(names)) if isinstance(load, PartialLoad) else load
            for coordinates, load in loads.items()
        }

    def _as_value(self, node: UOp, at: dict[UOp, int], axis: UOp | None, loaded: Element, is_reversed: bool) -> Element:
        """What memory has, as the value of a LOAD."""
        index, lanes = node.src[0], self.facts.lanes(node)
        if is_reversed:
            loaded = self._reverse(of_lanes(memory_type(memory_dtype(index.dtype)), lanes), loaded.name, lanes)
        if node.dtype.is_bool:
            zero = constant(dtypes.uint8, 0, lanes)
            loaded = self.emitter.emit(f"icmp ne {of_lanes('i8', lanes)} {loaded.name}, {zero}")
        if len(node.src) > 1 and self.mask(index, at, axis)[0] is not None:
            condition, other = (self.values.operand(given, at, axis) for given in (index.src[2], node.src[1]))
            loaded = self.emitter.emit(self.emitter.select(node.dtype, lanes, condition, loaded.name, other))
        return loaded

    def _near_positions(self, index: UOp, at: dict[UOp, int], axis: UOp) -> list[int]:
        """The positions of the lanes of a vector relative to the base of the tile; none where they are not constants,
        or too far apart to be shuffled out of a few loads."""
        positions = self.lane_positions(index, at, axis)
        count = span_count(positions) if positions else 0
        if not count or sum(max(part) - min(part) + 1 for part in cut(positions, count)) > MAX_SPAN:
            return []
        return positions

    def lane_positions(self, index: UOp, at: dict[UOp, int], axis: UOp) -> list[int]:
        """The positions of the lanes of a vector relative to the base of the tile; none where they are not
        constants."""
        split = self.constant_position(index)
        lanes = [{**at, axis: lane} for lane in range(size_of(axis))] if split is not None else []
        return [sum(tile_value(part, each) for part in (split or ())[1:]) for each in lanes]

    def load_span(self, index: UOp, positions: list[int]) -> Element:
        """Elements at constant positions: each span is loaded from its first to its last element, and shuffled."""
        split, kind = self.constant_position(index), memory_type(memory_dtype(index.dtype))
        assert split is not None
        base = self.base_pointer(index, split[0])
        spans = cut(positions, span_count(positions))
        length = len(spans[0])
        names = [self._load_one_span(index, base, span) for span in spans]
        while len(names) > 1:
            order, have = shuffle_mask(range(2 * length)), of_lanes(kind, length)
            pairs = zip(names[::2], names[1::2])
            names = [self.emitter.assign(f"shufflevector {have} {one}, {have} {two}, {order}") for one, two in pairs]
            length *= 2
        return self.emitter.here(names[0])

    def _load_one_span(self, index: UOp, base: Element, positions: list[int]) -> str:
        dtype = memory_dtype(index.dtype)
        first, span = min(positions), max(positions) - min(positions) + 1
        if (size := self._short_placeholder(index)) > 0:
            first, span = 0, size
        pointer = self.moved(base, memory_type(dtype), first)
        kind = of_lanes(memory_type(dtype), span)
        loaded = self.emitter.assign(f"load {kind}, ptr {pointer.name}, align {dtype.itemsize}")
        order = [position - first for position in positions]
        if order == list(range(len(order))):
            return loaded
        return self.emitter.assign(f"shufflevector {kind} {loaded}, {kind} poison, {shuffle_mask(order)}")

    def _short_placeholder(self, index: UOp) -> int:
        """The size of a short placeholder whose first element is the base of the tile; else 0. It is loaded as a whole:
        LLVM then keeps it in registers instead of loading parts of it from memory."""
        split, memory = self.constant_position(index), memory_of(index)
        is_first = split is not None and split[0].is_const and split[0].arg == 0
        is_short = memory.op is not Ops.PARAM and memory.arg.size <= MAX_SPAN
        return memory.arg.size if is_first and is_short else 0

    def _load_vector(
        self, index: UOp, at: dict[UOp, int], axis: UOp | None, mask: str | None, varies: bool, is_reversed: bool
    ) -> Element | PartialLoad:
        """Contiguous elements, in the order that they have in memory."""
        emitter, lanes, dtype = self.emitter, lane_count(axis), memory_dtype(index.dtype)
        kind = of_lanes(memory_type(dtype), lanes)
        pointer = self.pointer(index, at, axis)
        if is_reversed:
            pointer = self.moved(pointer, memory_type(dtype), 1 - lanes)
        if mask is None or not varies:
            return self._load(index, pointer, mask, lanes)
        assert axis is not None
        self._emit_prefetch(index, pointer, lanes * dtype.itemsize)
        if is_reversed:
            mask = self._reverse(of_lanes("i1", lanes), mask, lanes).name

        own_mask = mask

        def load_from(first: Element) -> str:
            return emitter.assign(f"load {kind}, ptr {first.name}, align {dtype.itemsize}")

        def load_masked(bits: str) -> str:
            return emitter.assign(self._masked_load(index, axis, pointer.name, bits or own_mask))

        whole = self.whole(index, at, axis)
        if whole is None:
            return emitter.here(load_masked(""))
        kept = self.kept_lanes(index, at, axis)
        if is_reversed:
            kept = kept._replace(kept=self._reverse(kept.kind, kept.kept, lanes).name)
        inside = self._inside(index, at, axis, -1 if is_reversed else 1)
        return PartialLoad(kind, pointer, load_from, load_masked, kept, 1, whole, inside)

    def whole(self, index: UOp, at: dict[UOp, int], axis: UOp) -> list[Condition] | None:
        """What holds for a whole vector, where masked ones need a branch."""
        has_masks = self.has_masks(memory_dtype(index.dtype))
        return None if has_masks else whole_conditions(self.values, index.src[2], at, axis)

    def _inside(self, index: UOp, at: dict[UOp, int], axis: UOp, stride: int) -> Condition | None:
        """What holds where all lanes are in the memory; None where that is not known. Where sizes are launch arguments,
        memory may end before the size that the kernel knows."""
        return None if self.program.variables else inside_condition(self.values, index, at, axis, stride)

    def load_contiguous(self, index: UOp, at: dict[UOp, int], count: int) -> Element:
        """`count` contiguous elements from one on, along any axes; one bit masks them all."""
        mask, _ = self.mask(index, at, None)
        return self._load(index, self.pointer(index, at), mask, count)

    def _load(self, index: UOp, pointer: Element, mask: str | None, lanes: int) -> Element:
        dtype = memory_dtype(index.dtype)
        self._emit_prefetch(index, pointer, lanes * dtype.itemsize)
        if mask is not None:
            pointer = self.partial.or_zeros(pointer, mask, dtype.itemsize * max(lanes, 1))
        text = f"load {of_lanes(memory_type(dtype), lanes)}, ptr {pointer.name}, align {dtype.itemsize}"
        return self.emitter.emit(text)

    def _load_strided(
        self, index: UOp, at: dict[UOp, int], axis: UOp, mask: str | None, varies: bool, stride: int
    ) -> Element | PartialLoad:
        lanes, dtype = size_of(axis), memory_dtype(index.dtype)
        element = memory_type(dtype)
        first = self.pointer(index, at, axis)
        if mask is not None and not varies:
            first = self.partial.or_zeros(first, mask, dtype.itemsize * lanes * stride)

        def load_from(start: Element) -> str:
            def load_at(offset: int) -> str:
                pointer = self.moved(start, element, offset).name
                return self.emitter.assign(f"load {of_lanes(element, lanes)}, ptr {pointer}, align {dtype.itemsize}")

            return load_strided(self.emitter.assign, load_at, element, lanes, stride)

        if mask is None or not varies:
            return self.emitter.here(load_from(first))

        def load_masked(bits: str) -> str:
            def load_at(offset: int) -> str:
                # Elements between the lanes are not accessed.
                flags = of_lanes("i1", lanes)
                order = [n // stride if n % stride == 0 else lanes for n in range(offset, offset + lanes)]
                text = f"shufflevector {flags} {bits or mask}, {flags} zeroinitializer, {shuffle_mask(order)}"
                own = self.emitter.assign(text)
                return self.emitter.assign(self._masked_load(index, axis, self.moved(first, element, offset).name, own))

            return load_strided(self.emitter.assign, load_at, element, lanes, stride)

        whole = self.whole(index, at, axis)
        if whole is None:
            return self.emitter.here(load_masked(""))
        kept, inside = self.kept_lanes(index, at, axis), self._inside(index, at, axis, stride)
        return PartialLoad(of_lanes(element, lanes), first, load_from, load_masked, kept, stride, whole, inside)

    def _masked_load(self, index: UOp, axis: UOp, pointer: str, mask: str) -> str:
        dtype, lanes = memory_dtype(index.dtype), size_of(axis)
        kind, bits = of_lanes(memory_type(dtype), lanes), of_lanes("i1", lanes)
        given = (("ptr", pointer), ("i32", str(dtype.itemsize)), (bits, mask), (kind, "zeroinitializer"))
        name = f"llvm.masked.load.{overload(dtype, lanes)}.p0"
        return masked_call(self.emitter, name, kind, given, self.shares_function(index, axis, Ops.LOAD))

    def shares_function(self, index: UOp, axis: UOp, op: Op) -> bool:
        """Whether masked accesses call a function, on a processor without them: those of a tile of several vectors, or
        of several accesses of a kernel, all loads or all stores."""
        vectors = math.prod(size_of(other) for other in self.facts.axes(index) if other is not axis)
        return max(vectors, self._masked[op]) >= MIN_VECTORS and not self.has_masks(memory_dtype(index.dtype))

    def _emit_prefetch(self, index: UOp, pointer: Element, row_bytes: int) -> None:
        """Prefetches the lines that are loaded soon. A prefetch past the end of the buffer is harmless."""
        distance = self._prefetch.bytes_ahead(index, row_bytes, self.emitter.loops)
        starts = [*range(0, row_bytes, self.line_bytes)] if distance else []
        if distance % self.line_bytes:
            starts.append(row_bytes - 1)  # rows do not start where lines do
        for start in starts:
            ahead = self.moved(pointer, "i8", distance + start)
            read, keep, data = ("i32", "0"), ("i32", "3"), ("i32", "1")
            self.emitter.line(
                f"  {self.emitter.call('llvm.prefetch.p0', 'void', ('ptr', ahead.name), read, keep, data)}"
            )

    def _reverse(self, kind: str, name: str, lanes: int) -> Element:
        order = shuffle_mask(range(lanes - 1, -1, -1))
        return self.emitter.emit(f"shufflevector {kind} {name}, {kind} poison, {order}")

    def _gather(self, index: UOp, at: dict[UOp, int], axis: UOp, mask: str | None, varies: bool) -> Element:
        if mask is not None and not varies:
            mask = self.values.operand(index.src[2], at, axis)
        pointers = self.pointers(index, at, axis, mask)
        is_read = mask is not None and not self.has_masks(memory_dtype(index.dtype)) and not self.program.variables
        if mask is None or not is_read:
            return self._gathered(index, axis, pointers, mask or "splat (i1 true)")
        # A test for each lane takes longer than its load: lanes that are off read the first element of the memory.
        lanes, kind = size_of(axis), of_lanes(memory_type(memory_dtype(index.dtype)), size_of(axis))
        bits, many = of_lanes("i1", lanes), of_lanes("ptr", lanes)
        first = self.emitter.assign(f"insertelement {many} poison, ptr {self.buffer(index).name}, i64 0")
        all_first = f"shufflevector {many} {first}, {many} poison, <{lanes} x i32> zeroinitializer"
        chosen = f"select {bits} {mask}, {many} {pointers}, {many} {self.emitter.assign(all_first)}"
        found = self._gathered(index, axis, self.emitter.assign(chosen), "splat (i1 true)")
        return self.emitter.emit(f"select {bits} {mask}, {kind} {found.name}, {kind} zeroinitializer")

    def _gathered(self, index: UOp, axis: UOp, pointers: str, mask: str) -> Element:
        lanes, dtype = size_of(axis), memory_dtype(index.dtype)
        kind = of_lanes(memory_type(dtype), lanes)
        call = self.emitter.call(
            f"llvm.masked.gather.{overload(dtype, lanes)}.v{lanes}p0",
            kind,
            (f"<{lanes} x ptr>", pointers),
            ("i32", str(dtype.itemsize)),
            (of_lanes("i1", lanes), mask),
            (kind, "zeroinitializer"),
        )
        return self.emitter.emit(call)


def span_count(positions: list[int]) -> int:
    """Into how many equal parts a vector is split so that the elements of each lie within MAX_SPAN; 0 where no count in
    SPAN_COUNTS suffices."""
    for count in SPAN_COUNTS:
        is_even = len(positions) % count == 0
        if is_even and all(max(part) - min(part) < MAX_SPAN for part in cut(positions, count)):
            return count
    return 0


def cut(positions: list[int], count: int) -> list[list[int]]:
    """Positions in `count` equal parts."""
    length = len(positions) // count
    return [positions[start : start + length] for start in range(0, len(positions), length)]


def runs_of(positions: Iterable[int]) -> list[range]:
    """The runs of adjacent positions, in order."""
    found: list[range] = []
    for position in sorted(set(positions)):
        if found and found[-1].stop == position:
            found[-1] = range(found[-1].start, position + 1)
        else:
            found.append(range(position, position + 1))
    return found
